"""Executions, FLOPs and memory requests of each instruction, as written in the PTX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from harness.emulator.numbers.algebra import Memo
from harness.emulator.numbers.values import Affine, Array, Integer, Lanes, Mask, lane_id
from harness.emulator.ptx.module import Instruction
from harness.emulator.watch.findings import UNKNOWN, Source
from harness.emulator.watch.patterns import SECTOR, sectors, wavefronts

_NUMBERS = 10  # the last fields of Counts, which add up


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Of one PTX instruction, of one line (`opcode` "") or of the kernel.

    executions: by threads; flops: an fma is 2
    global_requests: warps that sent one; sectors: of 32 bytes that the requests touch; global_bytes: what the
      threads asked for, the ideal being sectors * 32 == global_bytes or less (a broadcast)
    shared_requests: likewise; wavefronts: see `patterns`; conflicts: wavefronts beyond one for each part of
      the request; shared_bytes: what the threads asked for
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

    @property
    def intensity(self) -> float | None:
        """FLOP for each byte that threads ask global memory for."""
        return self.flops / self.global_bytes if self.global_bytes else None

    @property
    def sectors_per_request(self) -> float | None:
        return self.sectors / self.global_requests if self.global_requests else None

    @property
    def ways(self) -> float | None:
        """Wavefronts of the shared requests over the least for their widths: 1 without bank conflicts."""
        least = self.wavefronts - self.conflicts
        return self.wavefronts / least if least else None


def total(counts: Iterable[Counts], source: Source = UNKNOWN) -> Counts:
    """The sum, under one `source`."""
    sums: Any = dict.fromkeys([f.name for f in fields(Counts)[-_NUMBERS:]], 0)
    for count in counts:
        for name in sums:
            sums[name] += getattr(count, name)
    return Counts(source=source, **sums)


def by_line(counts: Iterable[Counts]) -> tuple[Counts, ...]:
    """One for each source line that has instructions, in order."""
    groups: dict[Source, list[Counts]] = {}
    for count in counts:
        groups.setdefault(count.source, []).append(count)
    return tuple(total(groups[source], source) for source in sorted(groups))


class Counter:
    """`widths`: bytes a lane by PTX line where the compiled access has another width than the written one, 0
    where it was merged into another.
    """

    def __init__(
        self, instructions: tuple[Instruction, ...], flops: list[int], widths: Mapping[int, int]
    ) -> None:
        self._instructions = instructions
        self._flops = flops
        self._widths = widths
        self.executions = [0] * len(instructions)
        self._global = [[0, 0, 0] for _ in instructions]
        self._shared = [[0, 0, 0, 0] for _ in instructions]
        self._atomics = [0] * len(instructions)
        self._memo = Memo()

    def global_access(
        self, instruction: Instruction, address: Integer, where: Lanes, size: int, shape: tuple[int, int]
    ) -> None:
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
        """How the blocks' addresses lie within a sector: (bytes, number of blocks)."""
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
    ) -> None:
        size = self._widths.get(instruction.ptx_line, size)
        if not size:
            return
        sums = self._shared[instruction.index]
        if isinstance(address, int):
            address = Affine(None, None, None, address)
        alike = address.block is None and address.full is None and _by_thread(where)
        part = address
        # The offset moves all lanes by as many banks; only below a word does it change the pattern.
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
        for place, number in enumerate(self._memo.get(key, make)):
            sums[place] += number * times
        lanes = shape[0] * shape[1]
        sums[3] += size * (lanes if where is True else where.lanes(lanes) if isinstance(where, Mask) else 0)

    def atomic(self, instruction: Instruction, lanes: int) -> None:
        self._atomics[instruction.index] += lanes

    def all(self) -> tuple[Counts, ...]:
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
            )
            for ins in self._instructions
        )


def _by_thread(where: Lanes) -> bool:
    return where is True or (isinstance(where, Mask) and where.array.shape[1] == 1)


def _spread(array: Array, shape: tuple[int, int]) -> Array:
    return np.broadcast_to(array, shape)


def _active(where: Lanes, shape: tuple[int, int]) -> Array | None:
    return _spread(where.array, shape) if isinstance(where, Mask) else None
