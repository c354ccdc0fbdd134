"""Accesses beyond the two that a cell keeps, against a table of all of them; kernels that need them."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator.watch import crowd as module
from harness.emulator.watch.crowd import Crowd
from harness.emulator.watch.shadow import READ, STRONG_READ, STRONG_WRITE, WRITE, Conflict, Lanes, Shadow
from shared.emulator_kernels import launch

CELLS, THREADS = 24, 40
Table = dict[tuple[int, int], tuple[int, int]]


def listed(found: tuple[np.ndarray, ...], cells: np.ndarray) -> list[tuple[int, ...]]:
    """Return accesses as (cell, thread, stamp, instruction), the latest of each thread, for each lane."""
    latest: dict[tuple[int, int], tuple[int, ...]] = {}
    for lane, thread, stamp, site in zip(*(part.tolist() for part in found), strict=True):
        kept = latest.get((lane, thread))
        if kept is None or stamp > kept[2]:
            latest[lane, thread] = (int(cells[lane]), thread, stamp, site)
    return sorted(latest.values())


@pytest.mark.parametrize("unsorted", [1, 7, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_is_what_was_added(seed: int, unsorted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UNSORTED", unsorted)
    rng = np.random.default_rng(seed)
    crowd, table = Crowd(CELLS), Table()
    for step in range(60):
        cells = rng.integers(0, CELLS, rng.integers(0, 8))
        threads = rng.choice(THREADS, len(cells), replace=False)
        if step % 7 == 6:
            crowd.forget(cells)
            table = {key: value for key, value in table.items() if key[0] not in cells}
        else:
            crowd.add(cells, threads, np.full(len(cells), step), np.full(len(cells), step % 5))
            table |= dict.fromkeys(zip(cells.tolist(), threads.tolist(), strict=True), (step, step % 5))
        asked = rng.integers(0, CELLS, 5)
        right = [(c, t, *rest) for cell in asked.tolist() for (c, t), rest in table.items() if c == cell]
        assert listed(crowd.at(asked), asked) == sorted(right)


def test_finer_cells_hold_what_their_whole_held() -> None:
    crowd = Crowd(6)  # two blocks side by side
    crowd.add(*(np.array(part) for part in ([0, 3, 3], [8, 9, 10], [1, 2, 3], [5, 6, 7])))
    crowd.forget(np.array([0]))
    asked = np.arange(12)
    found = listed(crowd.refined(2).at(asked), asked)
    assert found == [(5, 9, 2, 6), (5, 10, 3, 7), (7, 9, 2, 6), (7, 10, 3, 7)]


@pytest.mark.parametrize("columns", [1, 3, 5])
def test_each_half_of_a_cell_holds_what_the_cell_held(columns: int) -> None:
    rng, rows = np.random.default_rng(columns), 4
    cells, threads = rng.integers(0, rows * columns, 30), rng.permutation(100)[:30]
    crowd = Crowd(rows * columns)
    crowd.add(cells, threads, np.ones(30, np.int64), np.arange(30))
    asked = np.arange(2 * rows * columns)
    right = [
        ((2 * (cell // columns) + half) * columns + cell % columns, thread, 1, site)
        for site, (cell, thread) in enumerate(zip(cells.tolist(), threads.tolist(), strict=True))
        for half in (0, 1)
    ]
    assert listed(crowd.refined(columns).at(asked), asked) == sorted(right)


def test_beyond_the_limit_accesses_are_lost_until_others_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    crowd, asked = Crowd(2), np.array([0, 1])

    def add(cell: int, *threads: int) -> list[int]:
        for thread in threads:
            crowd.add(np.array([cell]), np.array([thread]), np.array([1]), np.array([0]))
        return [row[1] for row in listed(crowd.at(asked), asked)]

    assert add(0, *range(9)) == [0, 1, 2, 3]
    crowd.forget(np.array([0]))
    assert add(1, *range(20, 26)) == [20, 21, 22, 23]


def lanes(cell: int, *threads: int, stamp: int = 1) -> Lanes:
    many = np.array(threads)
    return Lanes(np.full(len(many), cell), many, many % 8, many // 8, np.full(len(many), stamp))


def conflicts(shadow: Shadow, kind: int, at: Lanes, known: set[int]) -> list[int]:
    """Return the threads whose accesses conflict with one that knows those of `known`."""

    def knows(_: np.ndarray, threads: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        return np.isin(threads, list(known))

    def threads_of(conflict: Conflict) -> list[int]:
        return conflict.threads.tolist()

    return sorted({t for c in shadow.conflicts(kind, at, 8, knows) for t in threads_of(c)})


def nothing(_: np.ndarray, threads: np.ndarray, stamps: np.ndarray) -> np.ndarray:
    return np.zeros(len(threads), np.bool_)


@pytest.mark.parametrize("order", [(1, 9, 17, 25), (25, 17, 9, 1), (9, 25, 1, 17), (17, 1, 25, 9)])
@pytest.mark.parametrize("missing", [1, 9, 17, 25])
def test_the_one_reader_that_a_writer_does_not_know(order: tuple[int, ...], missing: int) -> None:
    for at_once in (False, True):
        shadow = Shadow(1, crowded=True)
        for some in [order] if at_once else [(thread,) for thread in order]:
            shadow.add(READ, lanes(0, *some), 0, nothing)
        known = set(order) - {missing}
        assert conflicts(shadow, WRITE, lanes(0, 30), known) == [missing]
        assert conflicts(shadow, WRITE, lanes(0, 30), set(order)) == []
        assert conflicts(shadow, READ, lanes(0, 30), set()) == []


def test_a_store_comes_after_all_readers() -> None:
    shadow = Shadow(1, crowded=True)
    shadow.add(READ, lanes(0, 1, 9, 17), 0, nothing)
    shadow.add(WRITE, lanes(0, 30), 1, nothing)
    assert conflicts(shadow, WRITE, lanes(0, 31), {1, 17, 30}) == []  # 9 and 30 were judged before


def test_an_atomic_takes_the_place_of_strong_stores() -> None:
    shadow = Shadow(1, crowded=True)
    for thread in (1, 9, 17):
        shadow.add(STRONG_WRITE, lanes(0, thread), 0, nothing)
    shadow.add(STRONG_READ, lanes(0, 1, 9, 17), 0, nothing)
    assert conflicts(shadow, READ, lanes(0, 30), {1, 17}) == [9]
    shadow.add(STRONG_WRITE, lanes(0, 5), 1, nothing, atomic=True)
    assert conflicts(shadow, READ, lanes(0, 30), {5}) == []
    assert conflicts(shadow, WRITE, lanes(0, 30), {1, 5, 17}) == [9]  # as a reader


# Each of the blocks but the last reads a word and says so by a flag of its own; the last one waits for all
# flags but one, and writes it. Readers are warps, so that many threads read a cell at once.
WAITS = """extern "C" __global__ void k(int* data, volatile int* flag, int* out) {
  int b = blockIdx.x, t = threadIdx.x;
  if (b < gridDim.x - 1) {
    out[b * blockDim.x + t] = data[t & 3];
    __syncthreads();
    if (t == 0) { __threadfence(); flag[b] = 1; }
  } else {
    if (t == 0) for (int i = 0; i < gridDim.x - 1; i++) if (i != LEFT) while (!flag[i]) ;
    __threadfence();
    __syncthreads();
    if (t < 4) data[t] = 1;
  }
}"""


@pytest.mark.parametrize("left", [-1, 0, 3, 6])
def test_a_block_that_is_not_waited_for(left: int) -> None:
    arrays = (np.zeros(64, np.int32), np.zeros(64, np.int32), np.zeros(512, np.int32))
    found = launch(WAITS.replace("LEFT", str(left)), "k", (8,), (64,), *arrays).findings
    assert [f.kind for f in found] == ([] if left < 0 else ["global race"])
