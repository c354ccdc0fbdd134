"""The words of a finding of a race: who, whom, where, which lines, and whether both stored the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.emulator import Finding, Index3
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.conflicts import Access, Values, report
from harness.emulator.watch.findings import Findings, Source
from harness.emulator.watch.shadow import (
    BLOCK_READ,
    BLOCK_WRITE,
    READ,
    STRONG_READ,
    STRONG_WRITE,
    WRITE,
    Conflict,
    Lanes,
    Watched,
)

THREADS, GRID = 8, Index3(3, 2, 2)  # blocks of 4 x 2 threads
EVERY = 96
OPCODES = ("ld.global.u32", "st.global.u32", "atom.global.add.u32", "red.global.add.u32",
           "cp.async.bulk.global.shared::cta.bulk_group", "cp.reduce.async.bulk.global.add.f32")  # fmt: skip
LOAD, STORE, ATOM, RED, BULK, REDUCE = range(6)


class Launch(SimpleNamespace):
    def __init__(self) -> None:
        made = [
            Instruction(index=i, opcode=tuple(o.split(".")), operands=(), source=Source(10 + i), ptx_line=i)
            for i, o in enumerate(OPCODES)
        ]
        super().__init__(
            grid=GRID,
            threads=THREADS,
            findings=Findings(),
            entry=SimpleNamespace(instructions=made),
            code=SimpleNamespace(guesses=frozenset()),
        )

    def thread(self, number: int) -> Index3:
        assert 0 <= number < THREADS
        return Index3(number % 4, number // 4, 0)

    def block_index(self, number: int) -> Index3:
        assert 0 <= number < 12
        return Index3(number % 3, number // 3 % 2, number // 6)

    def variable(self, space: str, offset: int) -> tuple[str, int]:
        assert space == "shared"
        return "tile", offset - 4


def told(
    earlier: tuple[int, int, list[int]],
    later: tuple[int, int, list[int]],
    *,
    cells: list[int] | None = None,
    name: str = "a",
    columns: int = 1,
    values: Values | None = None,
    among: bool = False,
    word: int = 0,
) -> list[Finding]:
    """Report that (kind, instruction, threads in the grid) meet, pair by pair; return the findings."""
    launch: Any = Launch()
    kind, site, others = earlier
    mine, instruction, grid = np.array(later[2]), launch.entry.instructions[later[1]], len(others)
    at = np.array(cells or [2] * grid)
    lanes = Lanes(at, mine, mine % THREADS, mine // THREADS, np.ones(grid, np.int64))
    access = Access(instruction, later[0], lanes, Watched(64, columns), name, word, values)
    met = Conflict(kind, np.arange(grid), np.array(others), np.full(grid, site))
    report(launch, access, met, **({"among": True} if among else {}))
    return list(launch.findings.all())


@pytest.mark.parametrize(
    ("first", "second", "kind", "verbs"),
    [
        ((WRITE, STORE), (READ, LOAD), "RAW hazard", ("writes", "reads")),
        ((WRITE, STORE), (STRONG_READ, LOAD), "RAW hazard", ("writes", "reads")),
        ((READ, LOAD), (WRITE, STORE), "WAR hazard", ("reads", "writes")),
        ((BLOCK_READ, LOAD), (WRITE, STORE), "WAR hazard", ("reads", "writes")),
        ((WRITE, STORE), (WRITE, STORE), "WAW hazard", ("writes", "writes")),
        ((WRITE, STORE), (STRONG_WRITE, ATOM), "WAW hazard", ("writes", "updates")),
        ((STRONG_WRITE, RED), (WRITE, STORE), "WAW hazard", ("updates", "writes")),
    ],
)
def test_a_hazard_within_a_block(
    first: tuple[int, int], second: tuple[int, int], kind: str, verbs: tuple[str, str]
) -> None:
    base = 4 * THREADS  # block (1, 1, 0)
    (found,) = told((*first, [base + 1]), (*second, [base + 6]))
    said = f"thread (1, 0, 0) {verbs[0]} it, thread (2, 1, 0) {verbs[1]} it with no barrier between"
    assert found == Finding(
        kind=kind,
        message=f"a at offset 8: {said}, block (1, 1, 0)",
        sources=(Source(10 + first[1]), Source(10 + second[1])),
        variable="a",
        offset=8,
        threads=(Index3(1, 0, 0), Index3(2, 1, 0)),
        block=Index3(1, 1, 0),
    )


@pytest.mark.parametrize(
    ("first", "second", "turned", "verbs"),
    [
        ((WRITE, STORE), (READ, LOAD), False, ("writes", "reads")),
        ((READ, LOAD), (WRITE, STORE), True, ("writes", "reads")),
        ((STRONG_READ, LOAD), (WRITE, STORE), True, ("writes", "reads")),
        ((WRITE, STORE), (STRONG_WRITE, ATOM), False, ("writes", "updates")),
    ],
)
def test_a_race_between_blocks_names_the_store_first(
    first: tuple[int, int], second: tuple[int, int], turned: bool, verbs: tuple[str, str]
) -> None:
    blocks, lines, threads = ["(2, 0, 0)", "(0, 1, 0)"], [first[1], second[1]], [5, 0]
    (found,) = told((*first, [2 * THREADS + 5]), (*second, [3 * THREADS]))
    if turned:
        for pair in (blocks, lines, threads):
            pair.reverse()
    assert found.message == (
        f"a at offset 8: block {blocks[0]} {verbs[0]} it, block {blocks[1]} {verbs[1]} it, "
        "and nothing orders the two"
    )
    assert found.kind == "global race" and str(found.block) == blocks[0] and not found.benign
    assert [s.line for s in found.sources] == [10 + n for n in lines]
    assert list(found.threads) == [Index3(n % 4, n // 4, 0) for n in threads]


def test_the_copies_of_a_thread_have_its_number_and_wait_for_no_barrier() -> None:
    """Units have the number of their thread and one or two multiples of the grid's threads."""
    (found,) = told((WRITE, BULK, [EVERY + 9]), (READ, LOAD, [10]))
    assert found.message == (
        "a at offset 8: thread (1, 0, 0) writes it by TMA, thread (2, 0, 0) reads it with no wait between, "
        "block (1, 0, 0)"
    ) and found.threads == (Index3(1, 0, 0), Index3(2, 0, 0))
    (found,) = told((WRITE, BULK, [EVERY + 4 * THREADS]), (READ, LOAD, [1 * THREADS]))
    assert found.kind == "global race"  # blocks 4 and 1
    (found,) = told((READ, LOAD, [10]), (STRONG_WRITE, REDUCE, [2 * EVERY + 9]))
    assert (found.kind, found.threads) == ("WAR hazard", (Index3(2, 0, 0), Index3(1, 0, 0)))
    assert "thread (1, 0, 0) writes it by TMA with no wait between" in found.message
    (found,) = told((WRITE, BULK, [EVERY + 9]), (READ, LOAD, [17]))
    assert (
        found.kind == "global race"
        and "block (1, 0, 0) writes it by TMA, block (2, 0, 0) reads it" in found.message
    )


def test_shared_memory_is_told_by_variable() -> None:
    """Cell 7 of two blocks side by side is the fourth word of the second."""
    (found,) = told((WRITE, STORE, [8]), (READ, LOAD, [9]), cells=[7], columns=2, name="")
    assert (found.variable, found.offset) == ("tile", 8) and found.message.startswith(
        "tile at offset 8: thread"
    )
    assert found.block == Index3(1, 0, 0)


def test_each_kind_is_told_once_by_its_first_lane_and_counted() -> None:
    """Lanes 0, 2 and 3 meet a thread of their own block, lanes 1 and 4 one of another."""
    found = told((WRITE, STORE, [0, 8, 9, 10, 11]), (READ, LOAD, [1, 1, 10, 11, 16]), cells=[4, 5, 6, 7, 8])
    told_of = {f.kind: (f.seen, f.offset, f.threads[1].x, str(f.block)) for f in found}
    assert told_of == {
        "RAW hazard": (3, 16, 1, "(0, 0, 0)"),
        "global race": (2, 20, 1, "(1, 0, 0)"),
    }


# Stores of the same bytes


def stored(before: list[int], after: list[int], size: int = 4) -> Values:
    """Return what lanes find in memory, and what they store, as words of `size` bytes."""
    kinds = {4: np.uint32, 8: np.uint64}

    def values(lanes: Array) -> tuple[Array, Array]:
        both = (
            np.array(x, kinds[size])[lanes].view(np.uint8).reshape(len(lanes), size) for x in (before, after)
        )
        first, second = both
        return first, second

    return values


def test_stores_of_the_same_value_are_told_apart() -> None:
    found = told(
        (WRITE, STORE, [0, 0, 16, 16]), (WRITE, STORE, [1, 2, 3, 4]), cells=[2, 3, 4, 5],
        values=stored([5, 6, 7, 8], [5, 0, 7, 0]),
    )  # fmt: skip
    told_of = {(f.kind, f.benign): (f.offset, f.seen, f.message.endswith(", the same value")) for f in found}
    assert told_of == {
        ("WAW hazard", True): (8, 1, True),
        ("WAW hazard", False): (12, 1, False),
        ("global race", True): (16, 1, True),
        ("global race", False): (20, 1, False),
    }


@pytest.mark.parametrize("word", [0, 1])
@pytest.mark.parametrize("same", [0, 1])
def test_of_a_wide_store_the_bytes_of_the_cell_count(word: int, same: int) -> None:
    values = stored([5 | 6 << 32], [5 | 9 << 32] if same == 0 else [4 | 6 << 32], 8)
    (found,) = told((WRITE, STORE, [0]), (WRITE, STORE, [1]), values=values, word=word)
    assert found.benign == (word == same)


def test_one_byte_that_differs_is_enough() -> None:
    for byte in range(4):
        values = stored([0], [1 << (8 * byte)])
        (found,) = told((WRITE, STORE, [0]), (WRITE, STORE, [1]), values=values)
        assert not found.benign


@pytest.mark.parametrize(("first", "second"), [(WRITE, STRONG_WRITE), (STRONG_WRITE, WRITE), (READ, WRITE)])
def test_only_two_plain_stores_are_of_the_same_value(first: int, second: int) -> None:
    (found,) = told((first, STORE, [0]), (second, STORE, [1]), values=stored([5], [5]))
    assert not found.benign


def test_lanes_of_one_store_are_compared_with_one_another() -> None:
    """Memory still has what was there before: what the other lane stores is what counts."""
    lanes = (WRITE, STORE, [1, 2, 20])
    cases = (([3, 3, 3], True, True), ([3, 4, 3], False, True), ([4, 4, 3], True, False))
    for stores, hazard, race in cases:
        found = told((WRITE, STORE, [2, 1, 1]), lanes, values=stored([9, 9, 9], stores), among=True)
        assert {f.kind: f.benign for f in found} == {"WAW hazard": hazard, "global race": race}, stores
    found = told((WRITE, STORE, [2, 1, 1]), lanes, values=stored([9, 9, 9], [4, 4, 3]), among=False)
    assert {f.benign for f in found} == {False}


@pytest.mark.parametrize(
    ("other", "stores", "benign"),
    [(3, [4, 5, 4], True), (3, [9, 4, 4], False), (5, [9, 4, 4], True), (5, [4, 4, 4], False)],
)
def test_the_other_thread_is_the_last_lane_or_none(other: int, stores: list[int], benign: bool) -> None:
    """Thread 1 meets thread 3 of the same store, or 5, which stored before: memory has its value."""
    values = stored([9, 9, 9], stores)
    launch: Any = Launch()
    grid = np.array([1, 2, 3])
    lanes = Lanes(np.array([2, 2, 2]), grid, grid, grid * 0, grid)
    access = Access(launch.entry.instructions[STORE], WRITE, lanes, Watched(64, 1), "a", 0, values)
    report(launch, access, Conflict(WRITE, np.array([0]), np.array([other]), np.array([STORE])), among=True)
    assert [f.benign for f in launch.findings.all()] == [benign]


def test_lanes_of_one_store_conflict_within_the_block() -> None:
    assert [f.kind for f in told((WRITE, STORE, [0]), (BLOCK_WRITE, ATOM, [1]))] == ["WAW hazard"]
    assert [f.kind for f in told((WRITE, STORE, [0]), (WRITE, STORE, [1]), among=True)] == ["WAW hazard"]
