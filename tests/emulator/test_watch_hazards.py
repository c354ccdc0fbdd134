"""Hazards on shared memory, of accesses given one by one: whose clock, which blocks, which copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator.numbers.values import integer_of, mask_of
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import Findings, Index3, Source
from harness.emulator.watch.hazards import Flight, HazardWatch
from harness.emulator.watch.touches import ATOMIC, READ, WRITE, Clock

THREADS = 64
THREAD = np.arange(THREADS)[:, None]


class Block:
    """Blocks of 64 threads, and the watch of their shared memory, in which thread t's own word is word t."""

    def __init__(self, blocks: int = 1, **options: Any) -> None:
        self.findings = Findings()
        self.watch = HazardWatch(
            self.findings, lambda byte, column: ("s", byte, column), lambda t: Index3(t, 0, 0), **options
        )
        self.blocks = blocks
        if blocks > 1:
            self.watch.start(blocks)
        self.group = Clock(0, (THREADS, blocks))
        self._kept: dict[Any, Any] = {}

    def access(
        self,
        line: int,
        kind: str,
        shift: Any = 0,
        where: Any = True,
        size: int = 4,
        group: Any = None,
        value: Any = None,
    ) -> None:
        """Let thread t access the word of thread ``t + shift`` in line `line`."""
        lanes = self.lanes(where)
        self.watch.record(
            instruction(line), kind, self.words(shift, size), lanes, size, group or self.group, value
        )

    def copy(self, line: int, where: Any = True, shift: int = 0) -> Flight:
        return self.watch.issue(instruction(line), self.words(shift), self.lanes(where), 4, self.group)

    def words(self, shift: int, size: int = 4) -> Any:
        """Return the address; the same one for the same words, as a register's value in a loop is."""
        return self._kept.setdefault((shift, size), integer_of(size * np.clip(THREAD + shift, 0, None)))

    def lanes(self, where: Any) -> Any:
        return where if isinstance(where, bool) else self._kept.setdefault(where.tobytes(), mask_of(where))

    def next(self, columns: Any = None) -> None:
        """Let the blocks `columns` pass a barrier, after which their threads' clocks begin anew."""
        self.watch.barrier(None if columns is None else np.array(columns))
        self.group = Clock(0, (THREADS, self.blocks))

    def faults(self) -> set[tuple[Any, ...]]:
        """Return (kind, line, line) of each finding."""
        return {(f.kind, *(s.line for s in f.sources)) for f in self.findings.all()}

    def seen(self) -> list[tuple[Any, ...]]:
        """Return (block, how often) of each finding."""
        return [(f.block, f.seen) for f in self.findings.all()]


def instruction(line: int) -> Instruction:
    return Instruction(index=line, opcode=("x",), operands=(), source=Source(line), ptx_line=line)


def test_what_came_first_and_what_came_last_of_a_loop_count() -> None:
    both = ["RAW", "WAR"]
    for order, kinds in (("wr", ["RAW"]), ("rw", ["WAR"]), ("rwrr", both), ("wrww", both), ("rrw", ["WAR"])):
        block = Block()
        for letter in order:
            line, kind, shift = (1, WRITE, 0) if letter == "w" else (2, READ, 1)
            block.access(line, kind, shift)
        block.next()
        lines = {"RAW": ("RAW hazard", 1, 2), "WAR": ("WAR hazard", 2, 1)}
        assert block.faults() == {lines[kind] for kind in kinds}, order


@pytest.mark.parametrize(("write", "read", "kind"), [(1, 1, "WAR"), (1, 2, "RAW"), (2, 1, "WAR")])
def test_warps_with_clocks_of_their_own_make_one_hazard(write: int, read: int, kind: str) -> None:
    """The first warp reads what the second writes, at the same reading of their clocks or at another."""
    block = Block()
    warps = [Clock(0, (32, 1)), Clock(32, (32, 1))]
    word = integer_of(4 * np.arange(32)[:, None])
    for warp, line, access, times in ((0, 2, READ, read), (1, 1, WRITE, write)):
        for _ in range(times - 1):
            warps[warp].tick()
        block.watch.record(instruction(line), access, word, True, 4, warps[warp])
    block.next()
    assert block.faults() == {("RAW hazard", 1, 2) if kind == "RAW" else ("WAR hazard", 2, 1)}


def test_a_barrier_of_a_warp_orders_its_own_threads_only() -> None:
    """Thread t reads the word of its neighbour behind a barrier of its warp: 31 and 32 are in two of them."""
    for shift, reader, kinds in (
        (-1, 34, set()),
        (-1, 32, {("RAW hazard", 1, 2)}),
        (-33, 34, {("RAW hazard", 1, 2)}),
    ):
        block = Block()
        block.access(1, WRITE)
        block.group.epoch += 1
        block.access(2, READ, shift, where=THREAD == reader)
        block.next()
        assert block.faults() == kinds, (shift, reader)


# ---- blocks that pass a barrier by themselves


def test_a_barrier_of_some_blocks_ends_the_interval_of_those() -> None:
    """In each block thread t writes its word and reads its neighbour's behind barriers of some blocks."""
    for between, at_fault in (
        ([], {0, 1, 2}), ([[1, 1, 1]], set()), ([[1, 0, 0]], {1, 2}), ([[0, 1, 0]], {0, 2}),
        ([[1, 0, 0], [0, 1, 0]], {2}), ([[1, 0, 0], [0, 1, 1]], set()), ([[1, 1, 0], [0, 0, 1]], set()),
        ([[1, 0, 0], [1, 0, 0]], {1, 2}), ([[0, 1, 0], [1, 1, 0], [0, 1, 1]], set()),
        ([[0, 0, 1], [0, 1, 1], [0, 0, 1]], {0}),
    ):  # fmt: skip
        for own in range(3):  # this block alone writes and reads: which one a finding names is always clear
            block = Block(3)
            column = np.arange(3)[None, :] == own
            block.access(1, WRITE, where=np.broadcast_to(column, (THREADS, 3)))
            for columns in between:
                block.watch.barrier(np.array(columns, bool))
            block.access(2, READ, 1, where=np.broadcast_to(column, (THREADS, 3)))
            block.watch.barrier(None)
            assert {f.block for f in block.findings.all()} == ({own} if own in at_fault else set()), (
                between,
                own,
            )


def test_blocks_that_go_on_keep_their_accesses_after_others_have_passed() -> None:
    """A write, a barrier of block 0, one of block 1, and a read in block 2, which has passed none."""
    block = Block(3)
    block.access(1, WRITE)
    for columns in ([1, 0, 0], [0, 1, 0]):
        block.watch.barrier(np.array(columns, bool))
    block.access(2, READ, 1)
    block.watch.barrier(None)
    (found,) = block.findings.all()
    assert found.block == 2 and found.seen == THREADS - 1


def test_an_interval_that_comes_again_is_told_again_for_its_own_blocks() -> None:
    """Threads of block 0 write and read the same thrice, and block 1 passes a barrier first or last."""
    block = Block(2)
    in_first = np.broadcast_to(np.array([[True, False]]), (THREADS, 2))
    seen = 0
    for order in ((1, 0), (0, 1), (1, 0)):
        block.access(1, WRITE, where=in_first)
        block.access(2, READ, 1, where=in_first)
        for own in order:
            block.next(np.arange(2) == own)
            seen += 63 * (own == 0)
            assert sum(f.seen for f in block.findings.all()) == seen


@pytest.mark.parametrize("where", [True, THREAD < 50])
def test_one_block_stands_for_all_that_do_the_same(where: Any) -> None:
    """The first of those that pass the barrier is named, and only its threads are counted."""
    for columns, first in (([1, 1, 1], 0), ([0, 1, 1], 1)):
        block = Block(3)
        block.access(1, WRITE, where=where)
        block.access(2, READ, 1, where=where)
        block.next(np.array(columns, bool))
        (found,) = block.findings.all()
        assert (found.block, found.seen) == (first, 63 if where is True else 49)


def test_an_address_or_lanes_of_each_block_s_own_are_looked_at_block_by_block() -> None:
    """In block 1 alone thread 0 reads what thread 1 writes: by its address, or since it takes part there."""
    own = integer_of(np.array([[0, 4]]) + 0 * THREAD)
    for address, where in (
        (own, mask_of(THREAD == 0)),
        (4, mask_of((THREAD == 0) & np.array([[False, True]]))),
    ):
        block = Block(2)
        block.watch.record(instruction(1), WRITE, integer_of(4 * THREAD), True, 4, block.group)
        block.watch.record(instruction(2), READ, address, where, 4, block.group)
        block.next()
        (found,) = block.findings.all()
        assert (found.block, found.seen, found.threads[1].x) == (1, 1, 0)


# ---- copies in flight


def test_lanes_that_have_not_waited_are_in_flight_still() -> None:
    """The copy of the threads below 32 has landed; a thread then reads the word of thread 10 or 40."""
    for place, kinds in ((10, set()), (40, {("missing cp.async wait", 1, 2)})):
        block = Block()
        flight = block.copy(1)
        block.watch.land(flight, mask_of(THREAD < 32), mask_of(THREAD >= 32), block.group)
        block.next()
        block.access(2, READ, place, where=THREAD == 0)
        block.next()
        assert block.faults() == kinds, place


def test_what_comes_after_a_landing_of_some_lanes_is_looked_at_too() -> None:
    """The landing is an access of the same instruction, and the read in the same interval comes after it."""
    block = Block()
    flight = block.copy(1)
    block.watch.land(flight, mask_of(THREAD < 32), mask_of(THREAD >= 32), block.group)
    block.access(2, READ, 40, where=THREAD == 0)
    block.next()
    assert block.faults() == {("missing cp.async wait", 1, 2)}


def test_the_same_accesses_with_another_copy_in_flight() -> None:
    """Thread 0 reads word 40, always alike: before a copy to it, during that and during another."""
    block = Block()
    for line, shift, seen in ((1, 0, 1), (3, 64, 1), (1, 0, 2)):
        block.access(2, READ, 40, where=THREAD == 0)
        block.next()
        flight = block.copy(line, shift=shift)
        block.next()
        block.access(2, READ, 40, where=THREAD == 0)
        block.next()
        assert sum(f.seen for f in block.findings.all()) == seen
        block.watch.land(flight, True, False, block.group)
        block.next()


def test_where_races_are_watched_only_copies_are_looked_at_here() -> None:
    for fine, expected in ((True, set()), (False, {("RAW hazard", 1, 2)})):
        for copies in (False, True):
            block = Block(fine=fine)
            if copies:
                block.copy(3, where=THREAD >= 40)
            block.access(1, WRITE, where=THREAD < 8)
            block.access(2, READ, 1, where=THREAD < 7)
            block.next()
            assert block.faults() == expected


# ---- words


@pytest.mark.parametrize(
    ("first", "second", "element"), [(4, 2, 2), (2, 4, 4), (16, 8, 8), (8, 16, 4), (1, 8, 8), (16, 16, 4)]
)
def test_the_element_is_the_later_access_s(first: int, second: int, element: int) -> None:
    block = Block()
    block.access(1, WRITE, size=first, where=THREAD == 0)
    block.access(2, READ, -1, size=second, where=THREAD == 1)
    block.next()
    (found,) = block.findings.all()
    assert f"s[0] ({element}-byte elements)" in found.message


def test_a_notice_says_that_both_store_the_same() -> None:
    for value, end in ((7, "block 0, the same value"), (None, "block 0")):
        block = Block()
        block.access(1, WRITE, where=THREAD == 0, value=value)
        block.access(2, WRITE, -1, where=THREAD == 1, value=value)
        block.next()
        (found,) = block.findings.all()
        assert (
            found.kind == "WAW hazard" and found.message.endswith(end) and found.benign == (value is not None)
        )
    block = Block()
    for line, shift, thread in ((1, 0, 0), (2, -1, 1)):
        block.access(line, ATOMIC, shift, where=THREAD == thread)
    block.next()
    assert block.findings.all() == ()
