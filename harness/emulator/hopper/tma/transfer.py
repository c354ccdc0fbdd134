"""One bulk copy: its rules, the accesses that it makes, and what it does when it lands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.emulator.group import Group
from harness.emulator.hopper.grid import Block, BulkGroups, Cluster, Operation
from harness.emulator.hopper.order.clocks import Known
from harness.emulator.hopper.order.global_memory import Bytes
from harness.emulator.hopper.order.races import misuse, operation, past_array
from harness.emulator.hopper.phases import Mbarrier, find, landed
from harness.emulator.hopper.tma import tensormap
from harness.emulator.hopper.tma.boxes import (
    NEVER,
    box_of,
    fetch,
    gather,
    read_shared,
    reduced,
    scatter,
    swizzled,
    unwritten,
    write_shared,
)
from harness.emulator.memory import SHARED_BASE, WINDOW
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.faults import FAR, beyond, named

_WINDOW_MASK = (1 << WINDOW) - 1


@dataclass(kw_only=True, eq=False)
class Transfer:
    """One bulk copy of the thread `row` of the cluster.

    start: its first byte in shared memory; for a multicast the same in each block
    map, at: the tensor map and the indices of the box's first element; None and () for plain bytes, which are
      at the address `far` of global or shared memory
    offsets: those of a load in im2col mode
    size: bytes
    """

    group: Group
    ins: Instruction
    block: Block
    row: int
    start: int
    map: tensormap.Map | None
    at: tuple[int, ...]
    offsets: tuple[int, ...]
    far: int
    size: int
    reduction: str
    element: str

    @property
    def near(self) -> bool:
        """Tell whether it copies from shared memory to that of another block."""
        return "shared::cta" in self.ins.opcode and "shared::cluster" in self.ins.opcode

    def aligned(self) -> bool:
        """Return whether addresses and size keep the rules; report it otherwise."""
        faults = []
        if self.map is not None:
            faults += [(self.start % 128, f"a box at byte {self.start & _WINDOW_MASK} of shared memory", 128)]
            if not self.map.im2col:
                what = unaligned(self.map, self.at)
                if not what and "bulk_group" in self.ins.opcode and min(self.at) < 0:
                    what = f"a store of a box that begins at {self.at}, outside the tensor: only loads may"
                if what:
                    misuse(self.group, self.ins, what, kind="TMA misuse")
                    return False
        else:
            faults += [(self.start % 16, f"a copy at byte {self.start & _WINDOW_MASK} of shared memory", 16)]
            faults += [
                (self.far % 16, f"a copy at an address of {'shared' if self.near else 'global'} memory", 16),
                (self.size % 16, f"a copy of {self.size} bytes", 16),
            ]
        for bad, what, need in faults:
            if bad:
                misuse(self.group, self.ins, f"{what}, which is no multiple of {need}", kind="TMA misuse")
                return False
        low = self.start & _WINDOW_MASK
        for begin in (low, self.far & _WINDOW_MASK) if self.near else (low,):
            if begin + self.size > self.group.launch.shared_size:
                what = f"{self.size} bytes at byte {begin} of shared memory, of which there are "
                what += f"{self.group.launch.shared_size:,}"
                misuse(self.group, self.ins, what, kind="out of bounds")
                return False
        if self.near and (self.far & (SHARED_BASE - 1)) >> WINDOW != self.block.rank:
            what = "the source of a copy between blocks lies in another block: it has to be the block's own"
            misuse(self.group, self.ins, what, kind="TMA misuse")
            return False
        past_array(self.group, self.ins, np.array([low]), self.size)
        return True

    def known(self) -> Known | None:
        """Return what is known where the copy begins."""
        clocks = self.block.cluster.clocks
        return clocks.begin(np.array([self.row])) if clocks is not None else None

    def load(self, barrier: int, ranks: list[int], *, multicast: bool, lane: int, near: bool) -> None:
        """Begin a copy to the shared memory of the blocks `ranks`, which completes at their mbarriers."""
        cluster, known = self.block.cluster, self.known()
        targets = []
        for rank in ranks:
            start, at = self.start, barrier
            if multicast:
                start, at = ((a & _WINDOW_MASK) | rank << WINDOW for a in (start, at))
            found = (
                find(self.group, self.ins, at, lane)
                if at in cluster.barriers or rank == self.block.rank
                else cluster.barriers.get(at)
            )
            if found is None or not self.block.reaches(self.group, self.ins, start):
                continue
            _visible(self.group, self.ins, found, known)
            targets.append((cluster.blocks[rank], start, found, found.phase))
            stream = np.array([found.column]), np.array([found.phase + 1])
            for touched in (start, self.far & (SHARED_BASE - 1)) if near else (start,):
                self.block.visit(touched, self.ins, *stream, copy=True)
            operation(
                cluster.blocks[rank],
                self.ins,
                "write",
                cluster.shadow.places(start, self.size) if cluster.shadow is not None else slice(0),
                known,
                (found.column, found.phase + 1),
                what="a TMA load",
                by=self.row,
                adds=bool(self.reduction),
            )
        if (
            near and known is not None and cluster.shadow is not None and targets
        ):  # from shared memory of this block to that of another
            operation(
                self.block, self.ins, "read", cluster.shadow.places(self.far & (SHARED_BASE - 1), self.size),
                known, (targets[0][2].column, targets[0][2].phase + 1), what="a bulk copy",
            )  # fmt: skip

        told = None
        if cluster.memory is not None and targets and not near:
            told = cluster.memory.load(self.row, self.ins, self._bytes())

        def land() -> None:
            data = self._fetched(near)
            for block, start, found, phase in targets:
                if block.alive.any():
                    self._place(start, data)
                    found.tell(told)
                    landed(self.group, self.ins, found, self.size, known, phase)

        cluster.begin(Operation(land=land, source=self.ins))

    def _bytes(self) -> Bytes:
        """Return the bytes of global memory that the copy accesses."""
        map_, at, offsets = self.map, self.at, self.offsets
        if map_ is None:
            start, count = self.far, self.size // 4
            return Bytes(start, 4, lambda: start + 4 * np.arange(count))

        def inside() -> Array:
            box = box_of(map_, at, offsets)
            return box.address[box.inside]

        return Bytes(map_.address, map_.size, inside)

    def _fetched(self, near: bool) -> Array:
        """Return the bytes of the source."""
        if self.map is not None:
            box = box_of(self.map, self.at, self.offsets)
            if not self._within("reads", box.address[box.inside], self.map.size):
                return np.zeros(self.map.total, np.uint8)
            self._count(box.address[box.inside], self.map.size)
            return fetch(self.group.launch.arena, self.map, box)
        if near:
            return read_shared(self.block.cluster.shared, self.far & (SHARED_BASE - 1), self.size)
        if self.group.launch.arena.holding(self.far, self.far + self.size) is None:
            self._outside("reads", self.far, self.size)
            return np.zeros(self.size, np.uint8)
        address = self.far + 4 * np.arange(self.size // 4)
        self._count(address, 4)
        return gather(self.group.launch.arena, address, 4).view(np.uint8)

    def _within(self, verb: str, address: Array, size: int) -> bool:
        """Return whether the elements of a tensor lie in one buffer, and report that they do not.

        A map that the kernel makes may have other extents and strides than its tensor.
        """
        arena = self.group.launch.arena
        if not len(address):
            return True
        first, last = int(address.min()), int(address.max())
        if arena.holding(first, last + size) is None:
            self._outside(verb, first if arena.holding(first, first + size) is None else last, size)
            return False
        return True

    def _outside(self, verb: str, far: int, size: int) -> None:
        """Report that the copy goes past what it copies from, or to, with the `size` bytes at `far`."""
        variable, offset, distance = named(self.group, "global", far, size)
        where = beyond(variable, offset, distance)
        if distance >= FAR:
            where = f"that lie in no buffer ({variable} is nearest)"
        misuse(self.group, self.ins, f"{verb} {size} bytes {where}", kind="out of bounds")
        if offset >= 0:
            self.group.launch.findings.reached(variable, offset + size)

    def _count(self, address: Array, size: int) -> None:
        """Count the copy: `size` bytes at each address of global memory."""
        if self.group.launch.counter is not None:
            self.group.launch.counter.bulk(self.ins, address, size)

    def _units(self, start: int) -> Array:
        """Return the byte address in shared memory of each 16-byte unit of the box at `start`."""
        plain = start + 16 * np.arange(self.size // 16)
        return swizzled(plain, self.map.swizzle if self.map is not None else 0)

    def _place(self, start: int, data: Array) -> None:
        """Write the bytes of a box to shared memory."""
        shared = self.block.cluster.shared
        if self.reduction:
            if unwritten(shared, start, self.size):
                misuse(self.group, self.ins, NEVER, kind="uninitialised read")
            old = read_shared(shared, start, self.size).view(f"u{tensormap.SIZES[self.element]}")
            data = reduced(old, data.view(old.dtype), self.reduction, self.element).view(np.uint8)
        if self.map is None or not self.map.swizzle:
            write_shared(shared, start, data)
            return
        whole = np.empty((self.size // 16, 16), np.uint8)
        whole[(self._units(start) - start) // 16] = data.reshape(-1, 16)
        write_shared(shared, start, whole.reshape(-1))

    def store(self) -> None:
        """Begin a copy from shared to global memory, in the open bulk group of its thread."""
        cluster, known = self.block.cluster, self.known()
        groups = groups_of(cluster, self.row)
        if cluster.shadow is not None:
            operation(
                self.block,
                self.ins,
                "read",
                cluster.shadow.places(self.start, self.size),
                known,
                (groups.column, groups.count + 1),
                what="a TMA store",
            )
        if cluster.memory is not None:
            cluster.memory.store(self.row, self.ins, self._bytes(), groups.count + 1)
        begun = Operation(land=self._stored, source=self.ins)
        groups.open.append(begun)
        cluster.begin(begun)

    def _stored(self) -> None:
        """Copy the box to global memory; what is outside the tensor is not written."""
        arena = self.group.launch.arena
        data = read_shared(self.block.cluster.shared, self.start, self.size)
        if self.map is not None:
            if self.map.swizzle:
                data = data.reshape(-1, 16)[(self._units(self.start) - self.start) // 16].reshape(-1)
            box = box_of(self.map, self.at, self.offsets)
            address, new = box.address[box.inside], data.view(f"u{self.map.size}")[box.inside]
            if not self._within("writes", address, self.map.size):
                return
        else:
            unit = tensormap.SIZES[self.element] if self.reduction else 4
            if arena.holding(self.far, self.far + self.size) is None:
                self._outside("writes", self.far, self.size)
                return
            address, new = self.far + unit * np.arange(self.size // unit), data.view(f"u{unit}")
        self._count(address, new.dtype.itemsize)
        if not len(address):
            return
        if self.reduction:
            new = reduced(gather(arena, address, new.dtype.itemsize), new, self.reduction, self.element)
        scatter(arena, address, new)
        self.group.launch.progress += 1


def unaligned(map_: tensormap.Map, at: tuple[int, ...]) -> str:
    """Return what is wrong with where a box begins in its row.

    It is "an illegal instruction" to an H200, though PTX names no such rule.
    """
    begin = at[0] * map_.size
    return (
        f"a box from index {at[0]} of its rows on, byte {begin}, which is no multiple of 16"
        if begin % 16
        else ""
    )


def _visible(group: Group, ins: Instruction, barrier: Mbarrier, known: Known | None) -> None:
    """Report an mbarrier whose initialisation nothing has made visible to the async proxy.

    For cuda::memcpy_async it is a notice: NVIDIA's own examples do without the fence that PTX wants.
    """
    if barrier.visible or known is None:
        return
    if known.widened(barrier.by + 1).passed[barrier.by] >= barrier.at:
        barrier.visible = True
        return
    misuse(
        group,
        ins,
        "a copy completes at an mbarrier whose initialisation was not made visible: fence.mbarrier_init or "
        "fence.proxy.async after it would",
        barrier.initialised,
        kind="missing proxy fence",
        benign=any("/cuda/__memcpy_async/" in header for header in ins.source.headers),
    )


def groups_of(cluster: Cluster, row: int) -> BulkGroups:
    """Return the bulk groups of a thread of the cluster."""
    found = cluster.streams.get(("bulk", row))
    if found is None:
        column = cluster.clocks.columns(1, generic=False) if cluster.clocks is not None else -1
        found = cluster.streams["bulk", row] = BulkGroups(column)
    return found
