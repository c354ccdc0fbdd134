"""Counts of executions, FLOPs and memory requests for each PTX instruction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from harness.emulator.numbers.algebra import Memo
from harness.emulator.numbers.values import Affine, Array, Integer, Lanes, Mask, lane_id
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import UNKNOWN, Source
from harness.emulator.watch.patterns import SECTOR, WARP, sectors, wavefronts

_NUMBERS = 14  # how many fields of Counts, the last ones, are numbers that add up


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts of one PTX instruction, of a source line or of a kernel; `opcode` is "" for the latter two.

    executions: number of threads that executed it, summed over all executions
    flops: floating-point operations; an fma counts 2
    global_requests: warps that sent a request, summed over all executions
    sectors: 32-byte sectors that these requests touch
    global_bytes: bytes that the threads asked for; the ideal is sectors * 32, more is a broadcast
    shared_requests, shared_bytes: like global_requests and global_bytes, for shared memory
    wavefronts: passes over shared memory that the requests take, see `patterns`
    conflicts: wavefronts beyond one for each part of a request
    atomics: number of threads that executed an atomic operation, summed over all executions
    products: matrix instructions of warps, mma.sync, wmma.mma and wgmma.mma_async; each of the four warps of
      a warpgroup executes its own
    boxes: bulk copies between global and shared memory, TMA's boxes among them; a multicast is one
    box_sectors, box_bytes: 32-byte sectors of global memory that they touch, and bytes
    """

    source: Source = UNKNOWN
    opcode: str = ""
    ptx_line: int = 0
    executions: int = 0
    flops: int = 0
    global_requests: int = 0
    sectors: int = 0
    global_bytes: int = 0
    shared_requests: int = 0
    wavefronts: int = 0
    conflicts: int = 0
    shared_bytes: int = 0
    atomics: int = 0
    products: int = 0
    boxes: int = 0
    box_sectors: int = 0
    box_bytes: int = 0

    @property
    def intensity(self) -> float | None:
        """Return the FLOP per byte that threads ask global memory for; None if they ask for none."""
        return self.flops / self.global_bytes if self.global_bytes else None

    @property
    def sectors_per_request(self) -> float | None:
        """Return the sectors per global request; None without requests."""
        return self.sectors / self.global_requests if self.global_requests else None

    @property
    def ways(self) -> float | None:
        """Return the wavefronts over the least possible for the requests' widths.

        1.0 is free of bank conflicts; None without shared requests.
        """
        least = self.wavefronts - self.conflicts
        return self.wavefronts / least if least else None


def total(counts: Iterable[Counts], source: Source = UNKNOWN) -> Counts:
    """Return the sum of `counts`, under one `source`."""
    sums: Any = dict.fromkeys([f.name for f in fields(Counts)[-_NUMBERS:]], 0)
    for count in counts:
        for name in sums:
            sums[name] += getattr(count, name)
    return Counts(source=source, **sums)


def by_line(counts: Iterable[Counts]) -> tuple[Counts, ...]:
    """Return the sum of the counts of each source line, in the order of lines."""
    groups: dict[Source, list[Counts]] = {}
    for count in counts:
        groups.setdefault(count.source, []).append(count)
    return tuple(total(groups[source], source) for source in sorted(groups))


class Counter:
    """Adds up the counts of an entry's instructions during a launch.

    flops: per thread and execution, for each instruction
    widths: by PTX line, bytes per lane where the compiled access has another width than the one in the PTX;
      0 where it was merged into another access and is not counted
    """

    def __init__(
        self, instructions: tuple[Instruction, ...], flops: list[int], widths: Mapping[int, int]
    ) -> None:
        self._instructions = instructions
        self._flops = flops
        self._widths = widths
        self.executions = [0] * len(instructions)
        self._straight: dict[tuple[int, int], int] = {}  # executions of straight code, by its instructions
        self._global = [[0, 0, 0] for _ in instructions]
        self._shared = [[0, 0, 0, 0] for _ in instructions]
        self._atomics = [0] * len(instructions)
        self._bulk = [[0, 0, 0] for _ in instructions]
        self._memo = Memo()

    def global_access(
        self, instruction: Instruction, address: Integer, where: Lanes, size: int, shape: tuple[int, int]
    ) -> None:
        """Count an access to global memory: `size` bytes per lane at byte `address`, in the lanes `where`.

        `shape` is (T threads, C blocks) of the group.
        """
        size = self._widths.get(instruction.ptx_line, size)
        if not size:
            return
        sums = self._global[instruction.index]
        if isinstance(address, int):
            address = Affine(None, None, None, address)
        lanes = shape[0] * shape[1]
        if address.full is None and _by_thread(where):
            thread = address.thread
            for phase, times in self._phases(address, shape[1]):
                key = ("sectors", thread.id if thread else 0, phase, lane_id(where), size, shape[0])

                def make(thread: Any = thread, phase: int = phase) -> tuple[int, int]:
                    column = np.zeros((shape[0], 1), np.int64) if thread is None else thread.array
                    active = where.array if isinstance(where, Mask) else None
                    return sectors(column - column.min() // SECTOR * SECTOR + phase, active, size)

                requests, touched = self._memo.get(key, make)
                sums[0] += requests * times
                sums[1] += touched * times
        else:
            whole = address
            key = ("all", address.key, address.offset % SECTOR, lane_id(where), size)  # type: ignore[assignment]
            requests, touched = self._memo.get(
                key, lambda: sectors(_spread(whole.array(), shape), _active(where, shape), size)
            )
            sums[0] += requests
            sums[1] += touched
        sums[2] += size * (lanes if where is True else where.lanes(lanes) if isinstance(where, Mask) else 0)

    def _phases(self, address: Affine, blocks: int) -> list[tuple[int, int]]:
        """Return (byte, blocks) pairs: in so many blocks the address begins at that byte of a sector."""
        part = address.block

        def make() -> list[tuple[int, int]]:
            if part is None:
                return [(0, blocks)]
            values, times = np.unique(part.array % SECTOR, return_counts=True)
            return list(zip(values.tolist(), times.tolist(), strict=True))

        found = self._memo.get(("phases", part.id if part else 0, blocks), make)
        return [((value + address.offset) % SECTOR, times) for value, times in found]

    def shared_access(
        self, instruction: Instruction, address: Integer, where: Lanes, size: int, shape: tuple[int, int]
    ) -> tuple[int, int, int, int]:
        """Count an access to shared memory, and return what `shared_again` counts for one like it.

        The arguments are those of `global_access`.
        """
        cost = self._shared_cost(instruction, address, where, size, shape)
        self.shared_again(instruction, cost)
        return cost

    def shared_again(self, instruction: Instruction, cost: tuple[int, int, int, int]) -> None:
        """Count an access to shared memory like one that was counted before."""
        sums = self._shared[instruction.index]
        sums[0] += cost[0]
        sums[1] += cost[1]
        sums[2] += cost[2]
        sums[3] += cost[3]

    def _shared_cost(
        self, instruction: Instruction, address: Integer, where: Lanes, size: int, shape: tuple[int, int]
    ) -> tuple[int, int, int, int]:
        """Return the requests, wavefronts, conflicts and bytes of an access to shared memory."""
        size = self._widths.get(instruction.ptx_line, size)
        if not size:
            return 0, 0, 0, 0
        if isinstance(address, int):
            address = Affine(None, None, None, address)
        alike = address.block is None and address.full is None and _by_thread(where)
        part = address
        # The offset moves all lanes by the same number of banks; only its part below a word matters.
        key = ("banks", address.key, address.offset & 3, lane_id(where), size, shape)

        def make() -> tuple[int, int, int]:
            offset = part.offset & 3
            if alike:
                column = (
                    np.zeros((shape[0], 1), np.int64) if part.thread is None else part.thread.array
                ) + offset
                return wavefronts(column, where.array if isinstance(where, Mask) else None, size)
            return wavefronts(_spread(part.parts() + offset, shape), _active(where, shape), size)

        times = shape[1] if alike else 1
        requests, passes, conflicts = self._memo.get(key, make)
        lanes = shape[0] * shape[1]
        lanes = lanes if where is True else where.lanes(lanes) if isinstance(where, Mask) else 0
        return requests * times, passes * times, conflicts * times, size * lanes

    def executed(self, first: int, end: int, lanes: int) -> None:
        """Count an execution of the instructions from `first` up to `end` by `lanes` threads."""
        self._straight[first, end] = self._straight.get((first, end), 0) + lanes

    def atomic(self, instruction: Instruction, lanes: int) -> None:
        """Count an atomic operation of `lanes` threads."""
        self._atomics[instruction.index] += lanes

    def bulk(self, instruction: Instruction, address: Array, size: int) -> None:
        """Count a bulk copy of an element of `size` bytes at each address of global memory.

        The addresses ascend along rows, and no element crosses the end of a sector.
        """
        sums = self._bulk[instruction.index]
        sums[0] += 1
        sums[1] += int(np.count_nonzero(np.diff(address // SECTOR))) + 1 if len(address) else 0
        sums[2] += size * len(address)

    def all(self) -> tuple[Counts, ...]:
        """Return the counts of all instructions, in PTX order."""
        for (first, end), lanes in self._straight.items():
            for index in range(first, end):
                self.executions[index] += lanes
        self._straight.clear()
        return tuple(
            Counts(
                source=ins.source,
                opcode=str(ins),
                ptx_line=ins.ptx_line,
                executions=self.executions[ins.index],
                flops=self.executions[ins.index] * self._flops[ins.index],
                global_requests=self._global[ins.index][0],
                sectors=self._global[ins.index][1],
                global_bytes=self._global[ins.index][2],
                shared_requests=self._shared[ins.index][0],
                wavefronts=self._shared[ins.index][1],
                conflicts=self._shared[ins.index][2],
                shared_bytes=self._shared[ins.index][3],
                atomics=self._atomics[ins.index],
                products=self.executions[ins.index] // WARP if _multiplies(ins) else 0,
                boxes=self._bulk[ins.index][0],
                box_sectors=self._bulk[ins.index][1],
                box_bytes=self._bulk[ins.index][2],
            )
            for ins in self._instructions
        )


def _multiplies(ins: Instruction) -> bool:
    """Return whether an instruction is a product of matrices."""
    return ins.opcode[0] == "mma" or (
        ins.opcode[0] in ("wmma", "wgmma") and ins.opcode[1] in ("mma", "mma_async")
    )


def _by_thread(where: Lanes) -> bool:
    """Return whether the lanes are the same threads in every block."""
    return where is True or (isinstance(where, Mask) and where.array.shape[1] == 1)


def _spread(array: Array, shape: tuple[int, int]) -> Array:
    return np.broadcast_to(array, shape)


def _active(where: Lanes, shape: tuple[int, int]) -> Array | None:
    return _spread(where.array, shape) if isinstance(where, Mask) else None
