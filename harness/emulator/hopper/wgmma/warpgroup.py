"""A warpgroup: its threads come to an instruction together, and registers of products in flight are busy.

Nobody may touch the accumulators of a product that is not waited for, nor write registers that hold its A.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.emulator.decode import Attempt, Decoder
from harness.emulator.group import Group
from harness.emulator.hopper.order.races import misuse
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.numbers.values import Lanes
from harness.emulator.ptx.program import Instruction

_NO_RESULT = {
    "st",
    "red",
    "bra",
    "brx",
    "bar",
    "barrier",
    "cp",
    "prefetch",
    "setmaxnreg",
    "fence",
    "ret",
    "exit",
}


@dataclass(eq=False)
class Warpgroup:
    """The products of a warpgroup that it has not waited for.

    column: of their reads of shared memory in the clocks; `count` groups have been committed in all
    fenced: there was a ``wgmma.fence``; since the last one other instructions have written `touched`
    busy, read: accumulators, and registers that hold A, of all products in flight
    """

    column: int = -1
    count: int = 0
    fenced: bool = False
    touched: set[int] = field(default_factory=set)
    busy: frozenset[int] = frozenset()
    read: frozenset[int] = frozenset()
    _groups: list[tuple[set[int], set[int]]] = field(default_factory=lambda: [(set(), set())])

    def begin(self, accumulators: tuple[int, ...], fragment: tuple[int, ...]) -> None:
        """Begin a product with these registers."""
        self._groups[-1][0].update(accumulators)
        self._groups[-1][1].update(fragment)
        self.busy |= frozenset(accumulators)
        self.read |= frozenset(fragment)

    def commit(self) -> None:
        """Close the open group."""
        self.count += 1
        self._groups.append((set(), set()))

    def wait(self, left: int) -> None:
        """End all groups but the open one and the `left` before it."""
        del self._groups[: max(0, len(self._groups) - left - 1)]
        self.busy = frozenset().union(*(group[0] for group in self._groups))
        self.read = frozenset().union(*(group[1] for group in self._groups))


def warpgroup_of(group: Group) -> Warpgroup:
    """Return the state of a group's warpgroup."""
    block: Any = group.batch
    cluster, key = block.cluster, ("wgmma", block.rank, group.row)
    found = cluster.streams.get(key)
    if found is None:
        found = cluster.streams[key] = Warpgroup()
        if cluster.clocks is not None:
            found.column = cluster.clocks.columns(1, generic=False)
        group.warpgroup = found
    return found  # type: ignore[no-any-return]


def converged(group: Group, where: Lanes) -> bool:
    """Return whether all threads of the warpgroup that have not ended are in `where`."""
    block: Any = group.batch
    alive = block.alive[group.row : group.row + group.shape[0]]
    return bool((broadcast_mask(where, group.shape)[:, 0] >= alive).all()) and bool(alive.any())


def together(decoder: Decoder, ins: Instruction, act: Callable[[Group, Lanes], None]) -> Attempt:
    """Return an instruction that executes once all threads of the warpgroup have come to it."""

    def attempt(group: Group, where: Lanes) -> Lanes:
        if not converged(group, where):
            return False
        act(group, where)
        return where

    def describe(group: Group, where: Lanes) -> str:
        return f"waits for the other threads of its warpgroup to come to this {ins.opcode[0]}"

    return Attempt(run=attempt, describe=describe)


def aligned(group: Group, where: Lanes) -> None:
    """Order the threads of each warp: an aligned instruction is executed by all of them together."""
    block: Any = group.batch
    clocks = block.cluster.clocks
    if clocks is not None:
        for warp in block.rows(group, where).reshape(-1, 32):
            clocks.meet(warp)


def used(ins: Instruction, numbers: Mapping[str, int]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the registers that an instruction reads and writes, by number. Those of a wgmma do not count."""
    if ins.opcode[0] == "wgmma":
        return frozenset(), frozenset()
    found = [
        {numbers[name] for name in re.findall(r"[\w$%:]+", text) if name in numbers} for text in ins.operands
    ]
    reads: set[int] = set().union(*found[1:]) if found else set()
    if ins.guard in numbers:
        reads.add(numbers[ins.guard])
    if not found or ins.opcode[0] in _NO_RESULT or ins.operands[0].startswith("["):
        return frozenset(reads | (found[0] if found else set())), frozenset()
    return frozenset(reads), frozenset(found[0])


def mark(group: Group, ins: Instruction, reads: frozenset[int], writes: frozenset[int]) -> None:
    """Report an instruction that touches registers of products in flight; note what it writes.

    A ``mov`` is the compiler's, which copies accumulators from the name of one asm statement to that of the
    next; ptxas makes them one register. The copy is in flight as the original is.
    """
    state: Any = group.warpgroup
    if ins.opcode[0] == "mov" and (state.busy.isdisjoint(writes) or not state.busy.isdisjoint(reads)):
        if not state.busy.isdisjoint(reads):
            state.busy |= writes
        return
    if not state.busy.isdisjoint(reads) or not state.busy.isdisjoint(writes):
        hit = next(iter(state.busy & (reads | writes)))
        name = list(group.launch.entry.registers)[hit]
        misuse(
            group,
            ins,
            f"{'writes' if hit in writes else 'reads'} register {name}, an accumulator "
            "of a wgmma that is not waited for: wgmma.wait_group before would order it",
            kind="missing wgmma wait",
        )
    if not state.read.isdisjoint(writes):
        misuse(
            group,
            ins,
            "writes a register that a wgmma in flight reads as A: wgmma.wait_group before would order it",
            kind="missing wgmma wait",
        )
    state.touched |= writes
