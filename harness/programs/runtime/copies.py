"""Memory of a program: allocated, freed, copied and set."""

from __future__ import annotations

from harness.errors import EmulatorError
from harness.programs.places import Places
from harness.programs.runtime import host
from harness.programs.runtime.host import (
    ALLOCATION,
    ALREADY_REGISTERED,
    INVALID_DIRECTION,
    INVALID_VALUE,
    Misuse,
)
from harness.programs.runtime.memory import DEVICE, HOST, MANAGED, REGISTERED, DeviceMemory
from harness.programs.runtime.order.operations import Operations
from harness.programs.runtime.order.unwaited import Guard
from harness.programs.runtime.registered import Registered

_PITCH = 512  # bytes of which a pitch is a multiple
_TOTAL = 141 << 30  # bytes that the device says it has
_TO_DEVICE, _TO_HOST, _BETWEEN = 1, 2, 3  # cudaMemcpyKind
_WAYS = {1: "cudaMemcpyHostToDevice", 2: "cudaMemcpyDeviceToHost", 3: "cudaMemcpyDeviceToDevice"}


class Copies:
    """The functions of CUDA's runtime that allocate, free, copy and set memory."""

    def __init__(
        self,
        memory: DeviceMemory,
        registered: Registered,
        places: Places,
        operations: Operations,
        guard: Guard,
    ) -> None:
        self._memory, self._registered, self._places = memory, registered, places
        self._operations, self._guard = operations, guard

    # -- allocations

    def cudaMalloc(self, caller: int, to: int, size: int, *_: int) -> None:
        self._allocate(caller, to, size, DEVICE)

    def cudaMallocAsync(self, caller: int, to: int, size: int, stream: int) -> None:
        self._allocate(caller, to, size, DEVICE)
        self._memory.touch(host.pointer(to), size, writes=True)

    def memory_of_a_graph(self, caller: int, to: int, size: int) -> None:
        """Allocate what a graph allocates whenever it is launched, once for all of its launches."""
        self._allocate(caller, to, size, DEVICE)
        if (found := self._memory.at(host.pointer(to))) is not None:
            found.lasting = True

    def cudaMallocManaged(self, caller: int, to: int, size: int, _: int) -> None:
        self._allocate(caller, to, size, MANAGED)

    def cudaMallocHost(self, caller: int, to: int, size: int) -> None:
        self._allocate(caller, to, size, HOST)

    def cudaHostAlloc(self, caller: int, to: int, size: int, _: int) -> None:
        self._allocate(caller, to, size, HOST)

    def cudaMallocPitch(self, caller: int, to: int, pitch: int, width: int, height: int) -> None:
        host.put(pitch, -(-width // _PITCH) * _PITCH)
        self._allocate(caller, to, host.pointer(pitch) * height, DEVICE)

    def _allocate(self, caller: int, to: int, size: int, kind: str) -> None:
        if not to:
            raise Misuse(INVALID_VALUE, "a null pointer for the address")
        host.put(to, 0)
        if not size:
            return
        try:
            fits = size <= _TOTAL - self._memory.used
            found = self._memory.allocate(size, kind, "", caller) if fits else None
        except MemoryError:
            raise EmulatorError(f"this machine has no room for {size:,} bytes") from None
        if found is None:
            raise Misuse(ALLOCATION, f"{size:,} bytes where {_TOTAL - self._memory.used:,} are free")
        host.put(to, found.start)

    def cudaFree(self, caller: int, address: int) -> None:
        """Free memory when all work is done."""
        self._operations.clocks.wait_for_all()
        self._guard.waited()
        self.cudaFreeAsync(caller, address)

    cudaFreeHost = cudaFree

    def cudaFreeAsync(self, caller: int, address: int, *_: int) -> None:
        if not address:
            return
        if (found := self._memory.at(address)) is not None:
            self._memory.touch(address, found.size, writes=True)
        if self._memory.free(address) is None:
            raise Misuse(INVALID_VALUE, self._freed(address) or "what was not allocated")

    def cudaHostRegister(self, caller: int, address: int, size: int, flags: int) -> None:
        """Let kernels reach memory of malloc, by the address that cudaHostGetDevicePointer gives."""
        found = self._memory.at(address) if self._memory.ours(address) else None
        if found is not None and found.kind in (HOST, REGISTERED):
            raise Misuse(ALREADY_REGISTERED, "memory that is page-locked")
        if found is None or found.kind != MANAGED:
            self._memory.register(address, size, caller)

    def cudaHostUnregister(self, caller: int, address: int) -> None:
        """Let kernels reach it no more, when all work is done."""
        self._operations.clocks.wait_for_all()
        self._guard.waited()
        self._memory.unregister(address)

    def cudaHostGetDevicePointer(self, caller: int, to: int, address: int, flags: int) -> None:
        found = address if self._memory.ours(address) else self._memory.registered(address)
        if not found:
            raise Misuse(INVALID_VALUE, "memory that is neither page-locked nor registered")
        host.put(to, found)

    def cudaMemGetInfo(self, caller: int, rest: int, total: int) -> None:
        host.put(rest, _TOTAL - self._memory.used)
        host.put(total, _TOTAL)

    def the_kind_of_memory(self, caller: int, address: int) -> int:
        """Return cudaMemoryType: unregistered, host, device or managed."""
        found = self._memory.at(address) if self._memory.ours(address) else None
        return 0 if found is None else {HOST: 1, REGISTERED: 1, MANAGED: 3}.get(found.kind, 2)

    # -- copies

    def cudaMemcpy(self, caller: int, to: int, source: int, size: int, kind: int) -> None:
        self._copy(to, source, size, kind)
        self._wait(to, source)

    def cudaMemcpyAsync(self, caller: int, to: int, source: int, size: int, kind: int, stream: int) -> None:
        self._copy(to, source, size, kind)
        self._go_on(to, size, source, size, "cudaMemcpyAsync")

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        self._within("to", to, size, kind in (_TO_DEVICE, _BETWEEN), kind)
        self._within("from", source, size, kind in (_TO_HOST, _BETWEEN), kind)
        self._memory.copy(to, source, size)

    def cudaMemcpy2D(
        self, caller: int, to: int, pitch: int, source: int, every: int, width: int, height: int, kind: int
    ) -> None:
        self._copy_rows(to, pitch, source, every, width, height, kind)
        self._wait(to, source)

    def cudaMemcpy2DAsync(
        self,
        caller: int,
        to: int,
        pitch: int,
        source: int,
        every: int,
        width: int,
        height: int,
        kind: int,
        stream: int,
    ) -> None:
        self._copy_rows(to, pitch, source, every, width, height, kind)
        sizes = (width * height if gap == width else 0 for gap in (pitch, every))  # rows without gaps
        self._go_on(to, next(sizes), source, next(sizes), "cudaMemcpy2DAsync")

    def _copy_rows(
        self, to: int, pitch: int, source: int, every: int, width: int, height: int, kind: int
    ) -> None:
        if height and (width > pitch or width > every):
            raise Misuse(INVALID_VALUE, f"rows of {width:,} bytes with pitches of {pitch:,} and {every:,}")
        if not width or not height:
            return
        self._within("to", to, pitch * (height - 1) + width, kind in (_TO_DEVICE, _BETWEEN), kind)
        self._within("from", source, every * (height - 1) + width, kind in (_TO_HOST, _BETWEEN), kind)
        for row in range(height):
            self._memory.copy(to + row * pitch, source + row * every, width)

    def cudaMemcpyToSymbol(
        self, caller: int, symbol: int, source: int, size: int, offset: int, kind: int
    ) -> None:
        self._wait(self._to_symbol(symbol, source, size, offset, kind), source)

    def cudaMemcpyToSymbolAsync(
        self, caller: int, symbol: int, source: int, size: int, offset: int, kind: int, stream: int
    ) -> None:
        to = self._to_symbol(symbol, source, size, offset, kind)
        self._go_on(to, size, source, size, "cudaMemcpyToSymbolAsync")

    def _to_symbol(self, symbol: int, source: int, size: int, offset: int, kind: int) -> int:
        start = self._in_symbol(symbol, size, offset)
        self._within("from", source, size, kind == _BETWEEN, kind)
        self._memory.copy(start, source, size)
        return start

    def cudaMemcpyFromSymbol(
        self, caller: int, to: int, symbol: int, size: int, offset: int, kind: int
    ) -> None:
        self._wait(to, self._from_symbol(to, symbol, size, offset, kind))

    def cudaMemcpyFromSymbolAsync(
        self, caller: int, to: int, symbol: int, size: int, offset: int, kind: int, stream: int
    ) -> None:
        source = self._from_symbol(to, symbol, size, offset, kind)
        self._go_on(to, size, source, size, "cudaMemcpyFromSymbolAsync")

    def _from_symbol(self, to: int, symbol: int, size: int, offset: int, kind: int) -> int:
        start = self._in_symbol(symbol, size, offset)
        self._within("to", to, size, kind == _BETWEEN, kind)
        self._memory.copy(to, start, size)
        return start

    def cudaMemset(self, caller: int, to: int, value: int, size: int) -> None:
        self._set(to, value, size)
        self._wait(to, to)

    def cudaMemsetAsync(self, caller: int, to: int, value: int, size: int, stream: int) -> None:
        self._set(to, value, size)
        self._guard.wrote(to, to + size, "cudaMemsetAsync")

    def _set(self, to: int, value: int, size: int) -> None:
        self._within("to", to, size, True, _TO_DEVICE)
        if size:
            self._memory.view(to, size)[:] = value & 255
            self._memory.mark(to, size)

    def cudaMemset2D(self, caller: int, to: int, pitch: int, value: int, width: int, height: int) -> None:
        self.cudaMemset2DAsync(caller, to, pitch, value, width, height, 0)
        self._wait(to, to)

    def cudaMemset2DAsync(
        self, caller: int, to: int, pitch: int, value: int, width: int, height: int, stream: int
    ) -> None:
        if height > 1 and width > pitch:
            raise Misuse(INVALID_VALUE, f"rows of {width:,} bytes with a pitch of {pitch:,}")
        for row in range(height):
            self._set(to + row * pitch, value, width)

    def _wait(self, to: int, source: int) -> None:
        """Let the host wait for what is being done, as far as such a call does: not between two places of the
        device (CUDA Runtime API, "API synchronization behavior").
        """
        one = self._operations.running
        if one is not None:
            one.waited = not (self._device(to) and self._device(source))

    def _go_on(self, to: int, written: int, source: int, read: int, what: str) -> None:
        """Let the host go on while a copy uses memory of its own. To pageable memory it waits, and what it
        copies from there is staged: that it may change at once.
        """
        if self._operations.running is not None and not (
            self._memory.ours(to) or self._memory.registered(to)
        ):
            self._operations.running.waited = True
        self._guard.wrote(to, to + written, what)
        self._guard.read(source, source + read, what)

    def _device(self, address: int) -> bool:
        found = self._memory.at(address) if self._memory.ours(address) else None
        return found is not None and found.kind not in (HOST, MANAGED)

    def a_pattern(self, caller: int, to: int, value: int, count: int, size: int) -> None:
        """Repeat a number of `size` bytes, as a node of a graph does."""
        self._within("to", to, count * size, True, _TO_DEVICE)
        self._memory.view(to, count * size).view(f"u{size}")[:] = value & (1 << 8 * size) - 1
        self._memory.mark(to, count * size)

    def _in_symbol(self, symbol: int, size: int, offset: int) -> int:
        start, most = self._registered.symbol(symbol)
        if offset + size > most:
            raise Misuse(INVALID_VALUE, f"{size:,} bytes from {offset:,} on in a variable of {most:,}")
        return start + offset

    def _freed(self, address: int) -> str:
        """Return what lay at an address until it was freed; empty if nothing did."""
        self._memory.name(self._places)
        found = self._memory.freed(address)
        return found.label if found else ""

    def _within(self, way: str, address: int, size: int, device: bool, kind: int) -> None:
        """Raise Misuse unless all bytes are of one allocation, or of the host where the kind says so.

        device: the kind of the copy says that they are of the device
        """
        if not size:
            return
        if not self._memory.ours(address):
            if device:
                whose = "memory of the host" if address else "a null pointer"
                raise Misuse(INVALID_VALUE, f"{way} {whose}, with {_WAYS.get(kind, kind)}")
            return
        found = self._memory.at(address)
        if found is None or address >= found.end:
            said = self._freed(address) or "memory that is not allocated"
            raise Misuse(INVALID_VALUE, f"{size:,} bytes {way} {said}")
        if address + size > found.end:
            self._memory.name(self._places)
            left = f"which has {found.end - address:,} from there on"
            raise Misuse(INVALID_VALUE, f"{size:,} bytes {way} {found.label}, {left}")
        if not device and kind in _WAYS and found.kind not in (HOST, MANAGED):
            raise Misuse(INVALID_DIRECTION, f"{way} memory of the device, with {_WAYS[kind]}")
