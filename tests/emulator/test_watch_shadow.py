"""The shadow of a memory by itself: which pairs of accesses conflict, and which accesses a cell remembers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from harness.emulator.numbers.values import Array
from harness.emulator.watch.knowledge import BLOCK, CLUSTER, GRID, Semantics
from harness.emulator.watch.shadow import (
    BLOCK_READ,
    BLOCK_WRITE,
    CLUSTER_READ,
    CLUSTER_WRITE,
    READ,
    READS,
    STRONG_READ,
    STRONG_WRITE,
    WRITE,
    Conflict,
    Lanes,
    Shadow,
    Watched,
    kind_of,
)

THREADS = 4  # of a block
KINDS = (READ, WRITE, STRONG_READ, STRONG_WRITE, BLOCK_READ, BLOCK_WRITE, CLUSTER_READ, CLUSTER_WRITE)
CLUSTERS = np.array([0, 1, 0, 1])  # of blocks; a cluster's need not follow each other
Knows = Callable[[Array, Array, Array], Array]


def nothing(lanes: Array, threads: Array, stamps: Array) -> Array:
    return np.zeros(len(lanes), np.bool_)


def everything(lanes: Array, threads: Array, stamps: Array) -> Array:
    return np.ones(len(lanes), np.bool_)


def lanes(*accesses: tuple[int, int], stamp: int = 1) -> Lanes:
    """Lanes of (cell, thread in the grid), all with one stamp."""
    cells, grid = (np.array(a, np.int64) for a in zip(*accesses, strict=True))
    return Lanes(cells, grid, grid % THREADS, grid // THREADS, np.full(len(cells), stamp, np.int64))


def found(
    shadow: Shadow, kind: int, at: Lanes, knows: Knows = nothing, clusters: Array | None = None
) -> list[tuple[int, list[int], list[int], list[int]]]:
    """Return the conflicts as lists: kind, lanes, threads and sites of the earlier accesses."""
    return [listed(c) for c in shadow.conflicts(kind, at, THREADS, knows, clusters)]


def listed(c: Conflict) -> tuple[int, list[int], list[int], list[int]]:
    return (c.kind, c.lanes.tolist(), c.threads.tolist(), c.sites.tolist())


# Which accesses conflict


@pytest.mark.parametrize("write", [False, True])
def test_the_kind_of_an_access_by_its_semantics(write: bool) -> None:
    for scope in (BLOCK, CLUSTER, GRID):
        assert kind_of(Semantics(False, scope, False, False), write) == (WRITE if write else READ)
    assert kind_of(Semantics(True, BLOCK, False, False), write) == (BLOCK_WRITE if write else BLOCK_READ)
    clusters = CLUSTER_WRITE if write else CLUSTER_READ
    assert kind_of(Semantics(True, CLUSTER, False, False), write) == clusters
    assert kind_of(Semantics(True, GRID, False, False), write) == (STRONG_WRITE if write else STRONG_READ)


@pytest.mark.parametrize("block", [0, 1, 2])  # of the later access, whose cluster is that of 0, but of 1
@pytest.mark.parametrize(("earlier", "later"), list(product(KINDS, KINDS)))
def test_which_kinds_conflict(earlier: int, later: int, block: int) -> None:
    """Two accesses race unless both read, or both are strong and each one's scope has the other's thread.

    PTX ISA, "Memory Consistency Model": morally strong operations do not race.
    """
    shadow = Shadow(3)
    shadow.add(earlier, lanes((1, 0)), 7, nothing)
    other = block * THREADS + 1
    plain = {READ, WRITE} & {earlier, later}
    narrow = {BLOCK_READ, BLOCK_WRITE} & {earlier, later} and block != 0
    cluster = {CLUSTER_READ, CLUSTER_WRITE} & {earlier, later} and block == 1
    races = not {earlier, later} <= set(READS) and bool(plain or narrow or cluster)
    expected = [(earlier, [0], [0], [7])] if races else []
    assert found(shadow, later, lanes((1, other)), nothing, CLUSTERS) == expected
    assert found(shadow, later, lanes((1, other)), everything, CLUSTERS) == []  # ordered
    assert found(shadow, later, lanes((1, 0))) == []  # the thread's own
    assert found(shadow, later, lanes((2, other), (0, other))) == []  # of other cells


def test_only_the_lanes_in_conflict_are_told_each_with_its_own_access() -> None:
    shadow = Shadow(8)
    shadow.add(WRITE, lanes((2, 5), stamp=3), 10, nothing)
    shadow.add(WRITE, lanes((4, 6), stamp=4), 11, nothing)
    asked = []

    def knows(which: Array, threads: Array, stamps: Array) -> Array:
        asked.append((which.tolist(), threads.tolist(), stamps.tolist()))
        return np.asarray(threads == 6)

    at = lanes((0, 1), (2, 1), (4, 1), (4, 6), (2, 2))
    assert found(shadow, READ, at, knows) == [(WRITE, [1, 4], [5, 5], [10, 10])]
    assert asked == [([1, 2, 4], [5, 6, 5], [3, 4, 3])]


def test_a_conflict_across_blocks_is_told_of_lanes_of_other_blocks_only() -> None:
    shadow = Shadow(2)
    shadow.add(BLOCK_WRITE, lanes((0, 1), (1, 9)), 3, nothing)
    at = lanes((0, 0), (0, 2), (0, 5), (1, 8), (1, 11), (1, 3))
    assert found(shadow, STRONG_READ, at) == [(BLOCK_WRITE, [2, 5], [1, 9], [3, 3])]
    assert [c[1:] for c in found(shadow, READ, at)] == [([0, 1, 2, 3, 4, 5], [1, 1, 1, 9, 9, 9], [3] * 6)]


@pytest.mark.parametrize(
    ("kind", "wanted"), [(WRITE, [0, 1, 2]), (STRONG_WRITE, []), (BLOCK_WRITE, [1, 2]), (CLUSTER_WRITE, [1])]
)
def test_lanes_of_one_write_conflict_where_its_scope_has_not_the_other(kind: int, wanted: list[int]) -> None:
    """The last of them, which the cell remembers, is of block 3, in a cluster with block 1."""
    at = lanes((0, 13), (0, 0), (0, 4), (0, 15))
    shadow = Shadow(1)
    shadow.add(kind, at, 9, nothing)
    inner = shadow.among(kind, at, THREADS, CLUSTERS)
    assert (None if inner is None else listed(inner)) == (
        (kind, wanted, [15] * len(wanted), [9] * len(wanted)) if wanted else None
    )


# Which accesses a cell remembers


def test_of_several_threads_a_cell_remembers_the_lowest_and_the_highest() -> None:
    for numbers in ((3, 9, 6), (9, 3, 6), (6, 9, 3), (6, 3, 9)):
        shadow = Shadow(1)
        for site, number in enumerate(numbers):
            shadow.add(READ, lanes((0, number), stamp=number), site, nothing)
        told = [(READ, [0], [n], [numbers.index(n)]) for n in (3, 9)]
        assert found(shadow, WRITE, lanes((0, 1))) == told
        assert found(shadow, WRITE, lanes((0, 3))) == told[1:]  # its own is no conflict
        assert found(shadow, WRITE, lanes((0, 9))) == told[:1]


def test_of_several_lanes_of_one_access_too() -> None:
    shadow = Shadow(2)
    shadow.add(READ, lanes((0, 4), (0, 5), (1, 2), (0, 6)), 8, nothing)
    assert found(shadow, WRITE, lanes((0, 1))) == [(READ, [0], [4], [8]), (READ, [0], [6], [8])]
    assert found(shadow, WRITE, lanes((1, 1))) == [(READ, [0], [2], [8])]


def test_one_thread_is_told_once() -> None:
    shadow = Shadow(1)
    shadow.add(READ, lanes((0, 5)), 8, nothing)
    assert found(shadow, WRITE, lanes((0, 1))) == [(READ, [0], [5], [8])]


def test_who_comes_after_all_of_them_takes_their_place() -> None:
    for number in (1, 5, 9):
        shadow = Shadow(1)
        shadow.add(READ, lanes((0, 3), (0, 7)), 0, nothing)
        shadow.add(READ, lanes((0, number), stamp=2), 1, everything)
        assert found(shadow, WRITE, lanes((0, 0))) == [(READ, [0], [number], [1])]


@pytest.mark.parametrize("known", [3, 7])
def test_who_comes_after_one_of_them_does_not(known: int) -> None:
    """Thread 5 lies between the two: it would be forgotten, were it not that both places stay as they are."""
    shadow = Shadow(1)
    shadow.add(READ, lanes((0, 3), (0, 7), stamp=2), 0, nothing)
    asked = []

    def knows(which: Array, threads: Array, stamps: Array) -> Array:
        asked.append((which.tolist(), threads.tolist(), stamps.tolist()))
        return np.asarray(threads == known)

    shadow.add(READ, lanes((0, 5), stamp=3), 1, knows)
    assert asked == [([0], [3], [2]), ([0], [7], [2])]
    assert found(shadow, WRITE, lanes((0, 0))) == [(READ, [0], [3], [0]), (READ, [0], [7], [0])]


def test_a_thread_alone_renews_its_own_access_without_a_question() -> None:
    shadow = Shadow(2)
    shadow.add(WRITE, lanes((0, 3), (1, 3)), 0, nothing)
    shadow.add(WRITE, lanes((1, 4)), 1, nothing)

    def knows(which: Array, threads: Array, stamps: Array) -> Array:
        assert which.tolist() == [1]  # cell 1 has another thread, too
        return np.zeros(1, np.bool_)

    shadow.add(WRITE, lanes((0, 3), (1, 3), stamp=5), 2, knows)
    assert found(shadow, READ, lanes((0, 1), (1, 1)), lambda some, threads, stamps: stamps < 5) == [
        (WRITE, [0, 1], [3, 3], [2, 2])
    ]
    assert found(shadow, READ, lanes((1, 1)), lambda some, threads, stamps: stamps == 5) == [
        (WRITE, [0], [4], [1])
    ]


def test_threads_with_equal_places_renew_both() -> None:
    """The lowest renews the lower place, the highest the upper, each with its new stamp and instruction."""
    shadow = Shadow(1)
    shadow.add(READ, lanes((0, 3), (0, 7)), 0, nothing)
    shadow.add(READ, lanes((0, 3), stamp=2), 1, nothing)
    shadow.add(READ, lanes((0, 7), stamp=4), 2, nothing)
    seen = []

    def knows(which: Array, threads: Array, stamps: Array) -> Array:
        seen.append((threads.tolist(), stamps.tolist()))
        return np.zeros(1, np.bool_)

    assert found(shadow, WRITE, lanes((0, 0)), knows) == [(READ, [0], [3], [1]), (READ, [0], [7], [2])]
    assert seen == [([3], [2]), ([7], [4])]


def test_the_last_atomic_takes_the_place_of_all_before_it() -> None:
    """A read-modify-write has seen those before it. Lanes are executed in their order: the last one stays."""
    shadow = Shadow(2)
    shadow.add(STRONG_WRITE, lanes((0, 3), (0, 9), (0, 7), (1, 2)), 0, nothing, atomic=True)
    assert found(shadow, WRITE, lanes((0, 1))) == [(STRONG_WRITE, [0], [7], [0])]
    assert found(shadow, WRITE, lanes((0, 7), (1, 2))) == []  # that one may set the cell back
    shadow.add(STRONG_WRITE, lanes((0, 5), stamp=2), 1, nothing, atomic=True)
    assert found(shadow, WRITE, lanes((0, 1), (1, 1))) == [(STRONG_WRITE, [0, 1], [5, 2], [1, 0])]


def test_large_numbers_of_threads_and_stamps() -> None:
    shadow = Shadow(1)
    shadow.add(WRITE, lanes((0, 2**31 - 2), stamp=2**31 - 1), 1, nothing)
    shadow.add(WRITE, lanes((0, 5)), 0, nothing)
    told = []

    def knows(which: Array, threads: Array, stamps: Array) -> Array:
        told.append((threads.tolist(), stamps.tolist()))
        return np.zeros(1, np.bool_)

    conflicts = found(shadow, WRITE, lanes((0, 1)), knows)
    assert [c[2:] for c in conflicts] == [([5], [0]), ([2**31 - 2], [1])]
    assert told == [([5], [1]), ([2**31 - 2], [2**31 - 1])]


# Lanes of one store


def test_lanes_of_one_store_that_meet() -> None:
    shadow = Shadow(4)
    assert shadow.among(WRITE, lanes((0, 1)), THREADS) is None  # nothing was added yet
    apart = lanes((0, 1), (1, 2), (2, 3))
    shadow.add(WRITE, apart, 5, nothing)
    assert shadow.among(WRITE, apart, THREADS) is None
    met = lanes((3, 1), (0, 2), (3, 4), (3, 6))
    shadow.add(WRITE, met, 6, everything)
    conflict = shadow.among(WRITE, met, THREADS)
    assert conflict is not None and listed(conflict) == (WRITE, [0, 2], [6, 6], [6, 6])


# Cells


def test_lanes_move_to_the_next_cells() -> None:
    at = lanes((1, 5), (4, 6), stamp=9)
    assert at.moved(0) is at
    moved = at.moved(3)
    assert moved.cells.tolist() == [4, 7]
    for name in ("grid", "thread", "column", "stamps"):
        assert getattr(moved, name) is getattr(at, name)


@pytest.mark.parametrize("columns", [1, 3])
def test_a_finer_shadow_remembers_the_same_of_both_halves(columns: int) -> None:
    watched = Watched(16, columns)
    assert watched.grain == 4
    last = columns - 1
    cell = 2 * columns + last  # bytes 8 to 11 of the last block
    watched.shadow.add(WRITE, lanes((cell, 1), (cell, 3), stamp=6), 4, nothing)
    watched.shadow.publications()[cell] = 77
    whole = watched.shadow
    watched.refine(8)
    watched.refine(4)
    assert watched.grain == 4 and watched.shadow is whole
    watched.refine(1)
    assert watched.grain == 1 and isinstance(watched.grain, int)
    for byte in range(16):
        for column in range(columns):
            at, inside = byte * columns + column, 8 <= byte < 12 and column == last
            asked = []

            def knows(which: Array, threads: Array, stamps: Array, asked: list[Array] = asked) -> Array:
                asked.append(stamps)
                return np.zeros(1, np.bool_)

            told = [(WRITE, [0], [1], [4]), (WRITE, [0], [3], [4])] if inside else []
            assert found(watched.shadow, READ, lanes((at, 0)), knows) == told
            assert [a.tolist() for a in asked] == [[6]] * len(told)
            assert watched.shadow.publications()[at] == (77 if inside else 0)


def test_a_finer_shadow_has_nothing_that_the_coarse_one_has_not() -> None:
    finer = Shadow(2).refined(1)
    assert finer.published is None and len(finer.publications()) == 4
    assert found(finer, WRITE, lanes((3, 0))) == []


def test_a_cell_takes_24_bytes_for_each_kind_of_access_that_there_was() -> None:
    """Thread, stamp and instruction of the lowest and the highest, of 4 bytes each."""
    shadow = Shadow(1000)
    for kind in (READ, WRITE):
        tracemalloc.start()
        shadow.add(kind, lanes((1, 2)), 0, nothing)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 24_000 <= taken < 26_000


def test_what_is_published_stays() -> None:
    shadow = Shadow(5)
    assert shadow.published is None
    nodes = shadow.publications()
    assert nodes.tolist() == [0] * 5 and nodes.dtype == np.int64
    nodes[2] = 1 << 40
    assert shadow.publications() is nodes is shadow.published


@pytest.mark.parametrize("size", [0, 1, 4, 5, 8])
def test_every_byte_of_a_memory_has_a_cell(size: int) -> None:
    """One cell more than its bytes fill: a word that begins in the last one may reach beyond it."""
    for columns in (1, 2):
        watched = Watched(size, columns)
        cells = (-(-size // 4) + 1) * columns
        assert (watched.grain, watched.columns, len(watched.shadow.publications())) == (4, columns, cells)


def test_the_range_that_was_written() -> None:
    """Of all kinds of writes, in bytes of the allocation; reads leave none."""
    watched = Watched(64, 1)
    assert watched.written() is None

    def add(kind: int, *cells: int) -> None:
        count = np.arange(len(cells))
        lanes = Lanes(np.array(cells), count, count, count * 0, count)
        watched.shadow.add(kind, lanes, 0, nothing)

    add(READ, 1)
    add(STRONG_READ, 15)
    assert watched.written() is None
    add(WRITE, 5, 3)
    assert watched.written() == (12, 24)
    add(CLUSTER_WRITE, 7)
    add(STRONG_WRITE, 4)
    assert watched.written() == (12, 32)
    watched.refine(1)
    assert watched.written() == (12, 32)
