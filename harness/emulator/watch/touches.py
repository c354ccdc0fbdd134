"""Accesses to shared memory, gathered by pattern, and the bytes and blocks in which they overlap.

And the bytes of global memory that a launch reads, for whoever asks what it accessed: a footprint.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.memory import ONES, Allocation
from harness.emulator.numbers.algebra import Memo
from harness.emulator.numbers.values import Array, Integer, Lanes, Mask, array_of, lane_id, mask_of
from harness.emulator.ptx.program import Instruction

if TYPE_CHECKING:
    from harness.emulator.group import Group

_MOST = 1 << 28  # bytes of a buffer of which marks are kept
READ, WRITE, ATOMIC, ISSUE = "read", "write", "atomic", "cp.async"


@dataclass(kw_only=True, eq=False)
class Touch:
    """One access pattern: an instruction with its addresses and lanes, however often it was executed.

    In a batch a pattern is one object: it is compared by identity.

    instruction: the PTX instruction that accesses shared memory
    kind: READ, WRITE, ATOMIC or ISSUE
    address: byte address of each lane in shared memory; `where` has the active lanes
    size: bytes per lane
    row: the first thread of the group; `shape` is its (threads, blocks)
    epoch: warp barriers that the group had passed
    value: what was stored, if it was the same in all lanes: stores of the same value do not conflict
    first, last: the group's clock at the first and the last execution in the interval, which
        lasts from barrier to barrier
    """

    instruction: Instruction
    kind: str
    address: Integer
    where: Lanes
    size: int
    row: int
    shape: tuple[int, int]
    epoch: int
    value: Hashable
    first: int = 0
    last: int = 0


class Clock:
    """The progress of a group of threads: `clock` counts its shared accesses, `epoch` its warp barriers.

    `row` is the group's first thread, `shape` its (threads, blocks).
    """

    def __init__(self, row: int, shape: tuple[int, int]) -> None:
        self.row = row
        self.shape = shape
        self.clock = 0
        self.epoch = 0

    def tick(self) -> int:
        """Advance the clock by one access, and return it."""
        self.clock += 1
        return self.clock


class Layout:
    """Shared memory in cells, in which the accesses of an interval are compared.

    A cell is `granule` bytes of one block. Where all accesses are the same in every block, one block stands
    for all.

    touches: the accesses to compare, one at least
    blocks: number of blocks in the batch
    columns: the blocks to look at, bool (blocks,); None for all
    """

    def __init__(self, touches: list[Touch], blocks: int, columns: Array | None) -> None:
        self.granule = min([4, *(t.size for t in touches)])
        alike = all(_alike(t) for t in touches)
        chosen = np.arange(blocks) if columns is None else np.nonzero(columns)[0]
        self._columns = chosen[:1] if alike else chosen
        self._blocks = blocks
        self._cells: dict[int, tuple[Array, Array]] = {}
        self.count = 1 + max(int(self.cells(t)[0].max(initial=0)) for t in touches)

    def cells(self, touch: Touch) -> tuple[Array, Array]:
        """Return (cells, threads), an element each for every granule that every active lane accesses."""
        found = self._cells.get(id(touch))
        if found is None:
            found = self._cells[id(touch)] = self._find(touch)
        return found

    def _find(self, touch: Touch) -> tuple[Array, Array]:
        """Compute the result of `cells`."""
        shape = (touch.shape[0], self._blocks)
        address = np.broadcast_to(array_of(touch.address), shape)[:, self._columns]
        threads = np.broadcast_to(np.arange(shape[0])[:, None] + touch.row, address.shape)
        cells = address // self.granule * len(self._columns) + np.arange(len(self._columns))
        if isinstance(touch.where, Mask):
            active = np.broadcast_to(touch.where.array, shape)[:, self._columns]
            cells, threads = cells[active], threads[active]
        cells, threads = cells.ravel(), threads.ravel()
        count = max(1, touch.size // self.granule)
        if count > 1:
            cells = np.concatenate([cells + i * len(self._columns) for i in range(count)])
            threads = np.tile(threads, count)
        return cells, threads

    def place(self, cell: int) -> tuple[int, int]:
        """Return the byte address in shared memory and the block's column of a cell."""
        word, column = divmod(cell, len(self._columns))
        return word * self.granule, int(self._columns[column])

    def owners(self, touch: Touch) -> tuple[Array, Array]:
        """Return the lowest and the highest thread that touched each cell; (1 << 30, -1) if none did."""
        low = np.full(self.count, 1 << 30, np.int64)
        high = np.full(self.count, -1, np.int64)
        cells, threads = self.cells(touch)
        np.minimum.at(low, cells, threads)
        np.maximum.at(high, cells, threads)
        return low, high

    def conflict(self, touches: list[Touch]) -> bool:
        """Return whether some cell has a writer and another thread: a quick test that most intervals pass."""
        low = np.full(self.count, 1 << 30, np.int64)
        high = np.full(self.count, -1, np.int64)
        for touch in touches:
            if touch.kind != READ:
                cells, threads = self.cells(touch)
                np.minimum.at(low, cells, threads)
                np.maximum.at(high, cells, threads)
        if ((high >= 0) & (low != high)).any():
            return True
        for touch in touches:
            if touch.kind == READ:
                cells, threads = self.cells(touch)
                if ((high[cells] >= 0) & (high[cells] != threads)).any():
                    return True
        return False


def _alike(touch: Touch) -> bool:
    """Return whether an access is the same in every block."""
    by_block = isinstance(touch.address, int) or (touch.address.block is None and touch.address.full is None)
    return by_block and not (isinstance(touch.where, Mask) and touch.where.array.shape[1] > 1)


class Marks:
    """Bytes of buffers that lanes accessed, but for buffers that are too large for a flag of each byte."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self._flags: dict[int, Array] = {}  # by index of the allocation

    def add(
        self, owner: Allocation, address: Integer, where: Lanes, size: int, shape: tuple[int, int]
    ) -> None:
        """Add an access of `size` bytes by lanes, (threads, blocks). In a loop only its offset changes."""
        offset, key = (address, 0) if isinstance(address, int) else (address.offset, address.key)

        def make() -> tuple[int, Array | slice]:
            found = np.broadcast_to(array_of(address), shape)
            if isinstance(where, Mask):
                found = found[np.broadcast_to(where.array, shape)]
            low, high = int(found.min()), int(found.max())
            places = (found - low) >> (size.bit_length() - 1)
            if (high - low) // size >= 4 * found.size:
                return low - offset, places
            seen = np.zeros((high - low) // size + 1, np.bool_)
            seen[places] = True
            return low - offset, slice(len(seen)) if seen.all() else np.nonzero(seen)[0]

        first, places = self._memo.get(
            ("marks", key, lane_id(where), size, shape), make, 8 * math.prod(shape)
        )
        self.mark(owner, first + offset, places, size)

    def mark(self, owner: Allocation, first: int, places: Array | slice, size: int) -> None:
        """Mark places of `size` bytes, counted from the address `first` on."""
        flags = self._flags.get(owner.index)
        if owner.end - owner.start > _MOST:
            return
        if flags is None:
            flags = self._flags[owner.index] = np.zeros(owner.end - owner.start, np.uint8)
        rest = flags[first - owner.start :]
        whole = rest[: len(rest) // size * size]
        if size in ONES:
            whole.view(f"u{size}")[places] = ONES[size]
        else:
            whole.reshape(-1, size)[places] = 1

    def runs(self) -> dict[int, Array]:
        """Return the runs of bytes by index of the allocation."""
        return {index: runs(flags.view(np.bool_)) for index, flags in self._flags.items()}


class Reach:
    """The reads of a launch from buffers that it does not store to, and of which there is no shadow.

    And, in a kernel with ``griddepcontrol.wait``, what blocks access before one of their threads waits for
    the launch before: that is then visible to all, who may wait for that thread.

    reads: the former, early: the latter, by kind of access, see `shadow`
    depends: the kernel has that instruction
    """

    def __init__(self, memo: Memo, *, depends: bool) -> None:
        self._memo, self.depends = memo, depends
        self.reads: dict[int, Marks] = {}
        self.early: dict[int, Marks] = {}
        self._waited: dict[int, Array] = {}  # by the first block of a batch, bool (1, C)

    def add(
        self,
        group: Group,
        kind: int,
        owner: Allocation,
        address: Integer,
        where: Lanes,
        size: int,
        *,
        kept: bool,
    ) -> None:
        """Add an access of `size` bytes by lanes; it is `kept` in a shadow, too."""
        if not kept:
            self._of(self.reads, kind).add(owner, address, where, size, group.shape)
        if self.depends:
            waited = self._waited.get(group.batch.first)
            if waited is not None:
                where = group.algebra.both(where, mask_of(~waited))
            if where is not False:
                self._of(self.early, kind).add(owner, address, where, size, group.shape)

    def copy(
        self, kind: int, owner: Allocation, addresses: Array, size: int, block: int, *, kept: bool
    ) -> None:
        """Add what a bulk copy of a block accesses, `size` bytes at each of the addresses."""
        inside = (addresses >= owner.start) & (addresses + size <= owner.end)
        places = (addresses[inside] - owner.start) // size
        if not kept:
            self._of(self.reads, kind).mark(owner, owner.start, places, size)
        if self.depends and not (block in self._waited and self._waited[block].any()):
            self._of(self.early, kind).mark(owner, owner.start, places, size)

    def wait(self, group: Group, lanes: Array) -> None:
        """Note that lanes, bool (T, C), have waited for the launch before."""
        blocks: Array = np.any(lanes, axis=0)[None]
        self._waited[group.batch.first] = blocks | self._waited.get(group.batch.first, blocks)

    def _of(self, marks: dict[int, Marks], kind: int) -> Marks:
        return marks.setdefault(kind, Marks(self._memo))


def runs(flags: Array) -> Array:
    """Return the runs of true among flags, each as the first place and the one behind the last: (n, 2)."""
    if flags.all():
        return np.array([(0, len(flags))][: len(flags)], np.int64).reshape(-1, 2)
    raw = flags.tobytes()  # in which the part that has any is found sooner
    low, high = max(raw.find(1), 0), raw.rfind(1) + 1
    edges = np.nonzero(np.diff(flags[low:high], prepend=False, append=False))[0]
    return edges.reshape(-1, 2) + low
