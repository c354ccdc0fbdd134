"""Races on global memory between blocks, which only fences and atomics can order within a launch.

Only buffers that the kernel stores to can race. The first batch of blocks shows which ones those are: until
its end all reads are kept, later only reads of those buffers. If a later batch stores to another buffer, the
launch starts over with that one watched from the beginning (`Rewatch`). A kernel that executes a fence
wider than a block, or an atomic with acquire or release semantics, may order its blocks in ways that the
emulator does not follow, so no races are reported for it (`RaceWatch.fenced`).
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
    """Raised by a store to a buffer whose reads were not kept: the launch has to run again and watch it.

    `index` is the index of the buffer's allocation.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class _Watched:
    """The blocks that accessed each cell of a buffer; a cell has `Allocation.grain` bytes.

    `low`, `high` and `site` hold, by kind of access (read, write, atomic), the lowest and the highest block
    and the index of the last instruction; -1, and a huge `low`, mean none.
    """

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        size = -(-(allocation.end - allocation.start) // allocation.grain) + 1
        self.low = {kind: np.full(size, _NOBODY, np.int32) for kind in ("read", "write", "atomic")}
        self.high = {kind: np.full(size, -1, np.int32) for kind in self.low}
        self.site = {kind: np.full(size, -1, np.int32) for kind in self.low}

    def mark(self, kind: str, site: int, cells: Array, blocks: Array) -> None:
        """Record that the instruction with index `site` accessed `cells` in `blocks`, element by element."""
        np.minimum.at(self.low[kind], cells, blocks)
        np.maximum.at(self.high[kind], cells, blocks)
        self.site[kind][cells] = site

    def conflicts(self) -> list[tuple[str, str, Array]]:
        """Return (kind, other kind, cells) of cells that two blocks accessed, at least one with a store."""
        found = []
        low, high = self.low["write"], self.high["write"]
        found.append(("write", "write", np.nonzero((high >= 0) & (low != high))[0]))
        for other in ("read", "atomic"):
            met = (high >= 0) & (self.high[other] >= 0)
            apart = (low != self.low[other]) | (high != self.high[other])
            found.append(("write", other, np.nonzero(met & apart)[0]))
        return found


class RaceWatch:
    """Watches global accesses for races between blocks.

    watched: indices of the allocations that are known, from an earlier run, to be stored to
    fenced: set from outside by a fence wider than a block and by an atomic with acquire or release; no races
        are reported then
    """

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
        """Record an access of `size` bytes per lane at a device address, in the lanes `where`.

        Raises Rewatch for a store to a buffer whose reads were not kept.
        """
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
        """End a batch; after the first one, mark its reads of buffers that it stored to."""
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
        """Mark the cells of an access; the arguments are those of `record`."""
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
        """Report the races, at the end of the launch.

        `block_index` returns the index in the grid of a block's linear number.
        """
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
        """Add a finding for the race on `cells`, described by the first of them."""
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
