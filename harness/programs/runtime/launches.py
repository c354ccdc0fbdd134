"""Launches of a program: the configuration checked, then the kernel run by the emulator."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.emulator import Buffer, Emulation, emulate
from harness.errors import EmulatorError, NeedsGpu, OutOfTime
from harness.programs.events import Event, Launched, Stopped
from harness.programs.places import Places
from harness.programs.runtime import host
from harness.programs.runtime.host import (
    CONFIGURATION,
    COOPERATIVE,
    INVALID_VALUE,
    LAUNCH_FAILURE,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    Misuse,
)
from harness.programs.runtime.memory import DeviceMemory
from harness.programs.runtime.modules import Module, allocates, grain, samples
from harness.programs.runtime.order.operations import Operations
from harness.programs.runtime.order.unwaited import Guard
from harness.programs.runtime.order.waiting import Waiting
from harness.programs.runtime.registered import Registered
from harness.programs.runtime.textures import Textures

_SHARED, _MOST_SHARED = 49_152, 232_448  # bytes a block, without and with cudaFuncSetAttribute
_DYNAMIC = 8  # cudaFuncAttributeMaxDynamicSharedMemorySize
Extents = tuple[int, int, int]
Work = Callable[[], int | None]  # returns an error's code, 0 or None for none


@dataclass(frozen=True, kw_only=True)
class How:
    """How kernels run; see `harness.emulator.emulate`. `until` is what the monotonic clock shows at last."""

    schedule: str
    seed: int
    budget: int
    until: float
    sms: int
    sample: int


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A launch that host code asked for, in `caller`.

    cluster: zeros where the kernel may say it
    overlaps: it may begin before the launch before it has ended (programmatic dependent launch)
    """

    module: Module
    kernel: str
    grid: Extents
    block: Extents
    arguments: bytes
    shared: int
    cluster: Extents
    overlaps: bool
    caller: int


class Launches:
    """The functions of CUDA's runtime that launch kernels. They return what runs them, for graphs.

    tell: takes what happened; write: takes what kernels print
    """

    def __init__(
        self,
        how: How,
        memory: DeviceMemory,
        registered: Registered,
        textures: Textures,
        waiting: Waiting,
        places: Places,
        operations: Operations,
        guard: Guard,
        tell: Callable[[Event], None],
        write: Callable[[bytes], None],
    ) -> None:
        self._how, self._memory, self._registered = how, memory, registered
        self._textures, self._waiting = textures, waiting
        self._operations, self._guard = operations, guard
        self._places, self._tell, self._write = places, tell, write
        self._heap = 0  # bytes that kernels' malloc has given
        self._dynamic: dict[int, int] = {}  # bytes of dynamic shared memory that a kernel may have

    def cudaLaunchKernel(
        self, caller: int, kernel: int, grid: int, block: int, given: int, shared: int, stream: int
    ) -> Work:
        return self.kernel(caller, kernel, grid, block, given, shared)

    def kernel(self, caller: int, kernel: int, grid: int, block: int, given: int, shared: int) -> Work:
        """Return a launch as a graph's node has it."""
        return self._prepared(caller, kernel, host.extents(grid), host.extents(block), given, shared)

    def cudaLaunchCooperativeKernel(
        self, caller: int, kernel: int, grid: int, block: int, given: int, shared: int, stream: int
    ) -> Work:
        blocks, threads = host.extents(grid), host.extents(block)
        total, each = blocks[0] * blocks[1] * blocks[2], threads[0] * threads[1] * threads[2]
        room = self._how.sms * (2048 // max(1, min(each, 2048)))
        if total > room:
            raise Misuse(COOPERATIVE, f"{total:,} blocks where {room:,} run at once")
        return self._prepared(caller, kernel, blocks, threads, given, shared)

    def cudaLaunchKernelExC(
        self,
        caller: int,
        kernel: int,
        grid: int,
        block: int,
        given: int,
        shared: int,
        stream: int,
        cluster: int,
        overlaps: int,
    ) -> Work:
        blocks, threads = host.extents(grid), host.extents(block)
        clusters = host.extents(cluster)
        return self._prepared(caller, kernel, blocks, threads, given, shared, clusters, bool(overlaps))

    def cudaFuncSetAttribute(self, caller: int, kernel: int, attribute: int, value: int) -> None:
        if attribute != _DYNAMIC:
            return
        module, name = self._registered.kernel(kernel)
        most = _MOST_SHARED - module.entries[name].sizes.get("shared", 0)
        if not 0 <= host.signed(value) <= most:
            said = f"{host.signed(value):,} bytes of dynamic shared memory for {name}: at most {most:,}"
            raise Misuse(INVALID_VALUE, said)
        self._dynamic[kernel] = value

    def the_shared_memory_of_a_kernel(self, caller: int, kernel: int) -> int:
        """Return the bytes that a kernel declares."""
        module, name = self._registered.kernel(kernel)
        return module.entries[name].sizes.get("shared", 0)

    def _prepared(
        self,
        caller: int,
        kernel: int,
        grid: Extents,
        block: Extents,
        given: int,
        shared: int,
        cluster: Extents = (0, 0, 0),
        overlaps: bool = False,
    ) -> Work:
        """Check a launch, read its arguments, and return what runs it."""
        module, name = self._registered.kernel(kernel)
        self._check(module, name, grid, block, shared, self._dynamic.get(kernel))
        parameters = module.entries[name].parameters
        space = bytearray(max((p.offset + p.size for p in parameters), default=0))
        for number, one in enumerate(parameters):
            value = ctypes.string_at(host.pointer(given + 8 * number), one.size)
            space[one.offset : one.offset + one.size] = value
        asked = Asked(
            module=module,
            kernel=name,
            grid=grid,
            block=block,
            arguments=bytes(space),
            shared=shared,
            cluster=cluster,
            overlaps=overlaps,
            caller=caller,
        )
        return partial(self._run, asked)

    def _run(self, asked: Asked) -> int:
        if self._waiting.over:
            return self._waiting.over
        place = self._places.of(asked.caller)
        launched = Launched(kernel=asked.kernel, grid=asked.grid, block=asked.block, place=place)
        self._memory.name(self._places)
        if allocates(asked.module, asked.kernel):
            self._memory.heap()
        buffers = self._memory.buffers(grain(asked.module, asked.kernel), asked.module.symbols)
        begun = time.monotonic()
        try:
            run = self._emulated(asked, buffers)
        except OutOfTime:
            self._waiting.over = TIMEOUT
            self._tell(Stopped(kernel=asked.kernel, grid=asked.grid, block=asked.block, place=place))
            return TIMEOUT
        except EmulatorError as e:
            refused = isinstance(e, NeedsGpu)
            self._tell(replace(launched, findings=tuple(e.findings), error=str(e), refused=refused))
            self._waiting.over = self._waiting.over if refused else LAUNCH_FAILURE
            return NOT_SUPPORTED if refused else LAUNCH_FAILURE
        if run.blocks < asked.grid[0] * asked.grid[1] * asked.grid[2]:
            self._memory.suppose(buffers)
        self._heap = run.heap
        early = run.early if asked.overlaps else {}
        self._operations.launched(asked.kernel, asked.caller, run.footprints, early)
        for start, end in run.stored.values():
            self._guard.wrote(start, end, asked.kernel)
        self._write(run.output.encode())
        self._tell(
            replace(
                launched,
                findings=(*run.findings, *run.notices),
                counts=run.total,
                seconds=time.monotonic() - begun,
                blocks=run.blocks,
            )
        )
        return SUCCESS

    def _emulated(self, asked: Asked, buffers: Sequence[Buffer]) -> Emulation:
        module, name = asked.module, asked.kernel
        return emulate(
            module.ptx,
            name,
            grid=asked.grid,
            block=asked.block,
            arguments=asked.arguments,
            memory=buffers,
            textures=self._textures.bound() if samples(module, name) else {},
            shared=asked.shared,
            cluster=asked.cluster if any(asked.cluster) else (),
            schedule=self._how.schedule,
            seed=self._how.seed,
            budget=self._how.budget,
            until=self._how.until,
            sample=self._how.sample,
            private=self._memory.private,
            heap=self._heap,
            footprints=self._operations.watching,
        )

    @staticmethod
    def _check(
        module: Module, name: str, grid: Extents, block: Extents, shared: int, dynamic: int | None
    ) -> None:
        """Raise Misuse for a configuration that CUDA does not launch (Programming Guide, technical
        specifications).
        """
        if not all(grid) or grid[0] >= 1 << 31 or grid[1] > 65535 or grid[2] > 65535:
            raise Misuse(CONFIGURATION, f"{name} with a grid of {grid} blocks")
        if not all(block) or block[0] * block[1] * block[2] > 1024 or block[2] > 64:
            raise Misuse(CONFIGURATION, f"{name} with blocks of {block} threads")
        static = module.entries[name].sizes.get("shared", 0)
        most = _SHARED - static if dynamic is None else max(dynamic, _SHARED - static)
        if shared > most:
            why = " without cudaFuncSetAttribute" if dynamic is None else ""
            said = (
                f"{name} with {shared:,} bytes of dynamic shared memory, where it has {most:,} at most{why}"
            )
            raise Misuse(INVALID_VALUE, said)
