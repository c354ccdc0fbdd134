"""Findings of races: who accessed what, the first time, and whether it shows in the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import Finding
from harness.emulator.watch.shadow import (
    BLOCK_WRITE,
    CLUSTER_WRITE,
    READ,
    READS,
    STRONG_WRITE,
    WRITE,
    Conflict,
    Lanes,
    Watched,
)

if TYPE_CHECKING:
    from harness.emulator.machine import Launch

_STRONG = (STRONG_WRITE, BLOCK_WRITE, CLUSTER_WRITE)
_BENIGN = {True: ", the same value", False: ", which a compare-and-swap verifies"}  # by whether it stores
Values = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Access:
    """One cell of what an instruction accesses in each lane.

    kind: as in `shadow`
    name: the buffer; "" in shared memory
    word: the number of the cell in the access
    values: returns of lanes, by index, the bytes in memory before a store and after it; None if not known
    """

    instruction: Instruction
    kind: int
    lanes: Lanes
    watched: Watched
    name: str
    word: int
    values: Values | None


def report(launch: Launch, access: Access, conflict: Conflict, among: bool = False) -> None:
    """Add findings for a conflict: one for threads of a block, one for blocks; apart what does not show.

    That are stores of the same value, and loads whose value a compare-and-swap then verifies.

    among: the conflict is one among the lanes of the instruction
    """
    blocks = launch.grid.x * launch.grid.y * launch.grid.z
    theirs, mine = conflict.threads // launch.threads, access.lanes.grid[conflict.lanes] // launch.threads
    across = theirs % blocks != mine % blocks
    equal = np.zeros(len(across), np.bool_)
    if access.kind == WRITE and conflict.kind == WRITE and access.values is not None:
        equal = _equal(access, access.values, conflict, among)
    elif access.kind == READ and conflict.kind in _STRONG:
        equal |= access.instruction.index in launch.code.guesses
    elif access.kind in _STRONG and conflict.kind == READ:
        equal = np.isin(conflict.sites, list(launch.code.guesses))
    for between in (False, True):
        for benign in (False, True):
            some = np.nonzero((across == between) & (equal == benign))[0]
            if len(some):
                _add(launch, access, conflict, some, between, benign)


def _equal(access: Access, values: Values, conflict: Conflict, among: bool) -> Array:
    """Return whether the stores of a conflict stored the same bytes, elementwise."""
    lanes, grain = access.lanes, access.watched.grain
    here = slice(access.word * grain, (access.word + 1) * grain)
    before, after = (b[:, here] for b in values(conflict.lanes))
    if among:  # the other lane of the same store, whose bytes are not in memory yet
        place = np.minimum(np.searchsorted(lanes.grid, conflict.threads), len(lanes.grid) - 1)
        other = values(place)[1][:, here]
        before = np.where((lanes.grid[place] == conflict.threads)[:, None], other, before)
    same: Array = (before == after).all(1)
    return same


def _add(
    launch: Launch, access: Access, conflict: Conflict, some: Array, between: bool, benign: bool
) -> None:
    """Add the finding for the lanes `some` of a conflict, described by the first of them."""
    lane = conflict.lanes[some[0]]
    offset = int(access.lanes.cells[lane]) // access.watched.columns * access.watched.grain
    name = access.name
    if not name:
        name, offset = launch.variable("shared", offset)
    # An asynchronous unit has the number of its thread and a multiple of the grid's threads.
    every = launch.grid.x * launch.grid.y * launch.grid.z * launch.threads
    numbers = [int(conflict.threads[some[0]]) % every, int(access.lanes.grid[lane]) % every]
    kinds = [conflict.kind, access.kind]
    made = [launch.entry.instructions[int(conflict.sites[some[0]])], access.instruction]
    if between and kinds[0] in READS:  # the store comes first
        for pair in (numbers, kinds, made):
            pair.reverse()
    kind = "global race" if between else _hazard(*kinds)
    lines = tuple(instruction.source for instruction in made)

    def make() -> Finding:
        threads = [launch.thread(n % launch.threads) for n in numbers]
        blocks = [launch.block_index(n // launch.threads) for n in numbers]
        verbs = [_verb(k, i) for k, i in zip(kinds, made, strict=True)]
        if between:
            said = f"block {blocks[0]} {verbs[0]}, block {blocks[1]} {verbs[1]}, and nothing "
            said += "orders the two"
        else:
            missing = "wait" if any("bulk" in instruction.opcode for instruction in made) else "barrier"
            said = f"thread {threads[0]} {verbs[0]}, thread {threads[1]} {verbs[1]} with no "
            said += f"{missing} between, block {blocks[0]}"
        if any("nc" in instruction.opcode for instruction in made):
            said += "; ld.global.nc (__ldg) need not see what the kernel has written, whatever orders them"
        return Finding(
            kind=kind,
            message=f"{name} at offset {offset}: {said}" + (_BENIGN[WRITE in kinds] if benign else ""),
            sources=lines,
            variable=name,
            offset=offset,
            threads=tuple(threads),
            block=blocks[0],
            benign=benign,
        )

    launch.findings.add(kind, (*lines, name, benign), len(some), make)


def _hazard(first: int, second: int) -> str:
    """Return the kind of a hazard within a block, by the kinds of the earlier and the later access."""
    return "RAW hazard" if second in READS else "WAR hazard" if first in READS else "WAW hazard"


def _verb(kind: int, ins: Instruction) -> str:
    verb = "reads" if kind in READS else "updates" if ins.opcode[0] in ("atom", "red") else "writes"
    return f"{verb} it by TMA" if "bulk" in ins.opcode else f"{verb} it"


def never(lanes: Array, threads: Array, stamps: Array) -> Array:
    """Return that no order counts: ``ld.global.nc`` is for what no thread writes while the kernel runs.

    It need not see what was written before it (PTX ISA, "ld.global.nc": its cache is not coherent).
    """
    return np.zeros(len(threads), np.bool_)
