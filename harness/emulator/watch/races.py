"""Races on global memory between blocks: nothing orders two blocks of a launch, short of fences and atomics.

Only buffers that the kernel stores to can race. Which those are shows in the first batch of blocks: till its
end all reads are kept, later those of the buffers stored to. A store to another buffer after that means
starting over with it watched from the beginning (`Rewatch`). A kernel that executes a fence orders its
blocks by means that are not followed here, so it is not judged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.group import Group, spread
from harness.emulator.memory import Allocation
from harness.emulator.numbers.values import Array, Integer, Lanes, Mask
from harness.emulator.ptx.module import Instruction
from harness.emulator.watch.findings import Finding, Findings, Index3
from harness.emulator.watch.touches import ATOMIC, READ

_NOBODY = 1 << 30


class Rewatch(Exception):
    """A buffer was stored to whose reads were not kept: run again with it watched."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class _Watched:
    """Per grain of a buffer: the lowest and highest block that read, wrote or updated it, and where."""

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        size = -(-(allocation.end - allocation.start) // allocation.grain) + 1
        self.low = {kind: np.full(size, _NOBODY, np.int32) for kind in ("read", "write", "atomic")}
        self.high = {kind: np.full(size, -1, np.int32) for kind in self.low}
        self.site = {kind: np.full(size, -1, np.int32) for kind in self.low}

    def mark(self, kind: str, site: int, cells: Array, blocks: Array) -> None:
        np.minimum.at(self.low[kind], cells, blocks)
        np.maximum.at(self.high[kind], cells, blocks)
        self.site[kind][cells] = site

    def conflicts(self) -> list[tuple[str, str, Array]]:
        """(kind, other kind, cells) where two blocks met and at least one of them stored."""
        found = []
        low, high = self.low["write"], self.high["write"]
        found.append(("write", "write", np.nonzero((high >= 0) & (low != high))[0]))
        for other in ("read", "atomic"):
            met = (high >= 0) & (self.high[other] >= 0)
            apart = (low != self.low[other]) | (high != self.high[other])
            found.append(("write", other, np.nonzero(met & apart)[0]))
        return found


class RaceWatch:
    """`watched`: buffers by index that are known to be stored to."""

    def __init__(self, findings: Findings, watched: set[int]) -> None:
        self._findings = findings
        self._watched: dict[int, _Watched] = {}
        self._known = set(watched)
        self._reads: list[tuple[Any, ...]] = []
        self._first_batch = True
        self.fenced = False

    def record(
        self,
        group: Group,
        ins: Instruction,
        kind: str,
        owner: Allocation,
        address: Integer,
        where: Lanes,
        size: int,
    ) -> None:
        if kind == READ:
            if owner.index in self._known:
                self._mark(group, ins, kind, owner, address, where, size)
            elif self._first_batch:
                self._reads.append((group, ins, kind, owner, address, where, size))
            return
        if owner.index not in self._known:
            if not self._first_batch:
                raise Rewatch(owner.index)
            self._known.add(owner.index)
        self._mark(group, ins, kind, owner, address, where, size)

    def end_batch(self) -> None:
        for access in self._reads:
            if access[3].index in self._known:
                self._mark(*access)
        self._reads = []
        self._first_batch = False

    def _mark(
        self,
        group: Group,
        ins: Instruction,
        kind: str,
        owner: Allocation,
        address: Integer,
        where: Lanes,
        size: int,
    ) -> None:
        watched = self._watched.get(owner.index)
        if watched is None:
            watched = self._watched[owner.index] = _Watched(owner)
        cells = (spread(address, group.shape) - owner.start) // owner.grain
        blocks = np.broadcast_to(np.arange(group.shape[1]) + group.batch.first, group.shape)
        if isinstance(where, Mask):
            active = np.broadcast_to(where.array, group.shape)
            cells, blocks = cells[active], blocks[active]
        name = "read" if kind == READ else "atomic" if kind == ATOMIC else "write"
        for i in range(max(1, size // owner.grain)):
            watched.mark(name, ins.index, cells.ravel() + i, blocks.ravel().astype(np.int32))

    def judge(self, instructions: tuple[Instruction, ...], block_index: Any) -> None:
        """Report, at the end of the launch."""
        if self.fenced:
            return
        for watched in self._watched.values():
            for kind, other, cells in watched.conflicts():
                if len(cells):
                    self._report(watched, kind, other, cells, instructions, block_index)

    def _report(
        self,
        watched: _Watched,
        kind: str,
        other: str,
        cells: Array,
        instructions: tuple[Instruction, ...],
        block_index: Any,
    ) -> None:
        cell = cells[0]
        name = watched.allocation.name
        sites = (int(watched.site[kind][cell]), int(watched.site[other][cell]))
        one = int(watched.low[kind][cell])
        two = int(watched.high[other][cell])
        if one == two:
            one, two = int(watched.high[kind][cell]), int(watched.low[other][cell])
        blocks: tuple[Index3, Index3] = (block_index(one), block_index(two))
        verb = {"read": "reads", "write": "writes", "atomic": "updates"}
        offset = int(cell) * watched.allocation.grain

        sources = tuple(instructions[site].source for site in sites)

        def make() -> Finding:
            return Finding(
                kind="global race",
                message=f"{name} at offset {offset}: block {blocks[0]} writes it, block {blocks[1]} "
                f"{verb[other]} it, and nothing orders the two",
                sources=sources,
                variable=name,
                offset=offset,
                block=blocks[0],
            )

        self._findings.add("global race", (*sources, name), len(cells), make)
