"""Memory of a program: allocated, freed, copied and set."""

from __future__ import annotations

from harness.errors import EmulatorError
from harness.programs.places import Places
from harness.programs.runtime import host
from harness.programs.runtime.host import ALLOCATION, INVALID_DIRECTION, INVALID_VALUE, Misuse
from harness.programs.runtime.memory import DEVICE, HOST, MANAGED, DeviceMemory
from harness.programs.runtime.registered import Registered
from harness.programs.runtime.unwaited import Guard

_PITCH = 512  # bytes of which a pitch is a multiple
_TOTAL = 141 << 30  # bytes that the device says it has
_TO_DEVICE, _TO_HOST, _BETWEEN = 1, 2, 3  # cudaMemcpyKind
_WAYS = {1: "cudaMemcpyHostToDevice", 2: "cudaMemcpyDeviceToHost", 3: "cudaMemcpyDeviceToDevice"}


class Copies:
    """The functions of CUDA's runtime that allocate, free, copy and set memory."""

    def __init__(self, memory: DeviceMemory, registered: Registered, places: Places, guard: Guard) -> None:
        self._memory, self._registered, self._places = memory, registered, places
        self._guard = guard

    # -- allocations

    def cudaMalloc(self, caller: int, to: int, size: int, *_: int) -> None:
        self._allocate(caller, to, size, DEVICE)

    cudaMallocAsync = cudaMalloc

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

    def cudaFree(self, caller: int, address: int, *_: int) -> None:
        if not address:
            return
        if self._memory.free(address) is None:
            raise Misuse(INVALID_VALUE, self._freed(address) or "what was not allocated")

    cudaFreeAsync = cudaFreeHost = cudaFree

    def cudaHostRegister(self, caller: int, address: int, size: int, flags: int) -> None:
        """Let kernels reach memory of malloc, by the address that cudaHostGetDevicePointer gives."""
        if not self._memory.ours(address):
            self._memory.share(address, size, caller)

    def cudaHostUnregister(self, caller: int, address: int) -> None:
        """Take nothing back."""

    def cudaHostGetDevicePointer(self, caller: int, to: int, address: int, flags: int) -> None:
        found = address if self._memory.ours(address) else self._memory.shared(address)
        if not found:
            raise Misuse(INVALID_VALUE, "memory that is neither page-locked nor registered")
        host.put(to, found)

    def cudaMemGetInfo(self, caller: int, rest: int, total: int) -> None:
        host.put(rest, _TOTAL - self._memory.used)
        host.put(total, _TOTAL)

    def the_kind_of_memory(self, caller: int, address: int) -> int:
        """Return cudaMemoryType: unregistered, host, device or managed."""
        found = self._memory.at(address) if self._memory.ours(address) else None
        return 0 if found is None else {HOST: 1, MANAGED: 3}.get(found.kind, 2)

    # -- copies

    def cudaMemcpy(self, caller: int, to: int, source: int, size: int, kind: int, *_: int) -> None:
        self._within("to", to, size, kind in (_TO_DEVICE, _BETWEEN), kind)
        self._within("from", source, size, kind in (_TO_HOST, _BETWEEN), kind)
        self._memory.copy(to, source, size)

    def cudaMemcpyAsync(self, caller: int, to: int, source: int, size: int, kind: int, *_: int) -> None:
        self.cudaMemcpy(caller, to, source, size, kind)
        self._guard.wrote(to, to + size, "cudaMemcpyAsync")
        self._guard.read(source, source + size, "cudaMemcpyAsync")

    def cudaMemcpy2D(
        self,
        caller: int,
        to: int,
        pitch: int,
        source: int,
        every: int,
        width: int,
        height: int,
        kind: int,
        *_: int,
    ) -> None:
        if height and (width > pitch or width > every):
            raise Misuse(INVALID_VALUE, f"rows of {width:,} bytes with pitches of {pitch:,} and {every:,}")
        if not width or not height:
            return
        self._within("to", to, pitch * (height - 1) + width, kind in (_TO_DEVICE, _BETWEEN), kind)
        self._within("from", source, every * (height - 1) + width, kind in (_TO_HOST, _BETWEEN), kind)
        for row in range(height):
            self._memory.copy(to + row * pitch, source + row * every, width)

    def cudaMemcpy2DAsync(self, caller: int, to: int, pitch: int, *rest: int) -> None:
        self.cudaMemcpy2D(caller, to, pitch, *rest)
        _, _, width, height, *_ = rest
        if pitch == width:
            self._guard.wrote(to, to + width * height, "cudaMemcpy2DAsync")

    def cudaMemcpyToSymbol(
        self, caller: int, symbol: int, source: int, size: int, offset: int, kind: int, *_: int
    ) -> None:
        start = self._in_symbol(symbol, size, offset)
        self._within("from", source, size, kind == _BETWEEN, kind)
        self._memory.copy(start, source, size)

    cudaMemcpyToSymbolAsync = cudaMemcpyToSymbol

    def cudaMemcpyFromSymbol(
        self, caller: int, to: int, symbol: int, size: int, offset: int, kind: int, *_: int
    ) -> None:
        start = self._in_symbol(symbol, size, offset)
        self._within("to", to, size, kind == _BETWEEN, kind)
        self._memory.copy(to, start, size)

    cudaMemcpyFromSymbolAsync = cudaMemcpyFromSymbol

    def cudaMemset(self, caller: int, to: int, value: int, size: int, *_: int) -> None:
        self._within("to", to, size, True, _TO_DEVICE)
        if size:
            self._memory.view(to, size)[:] = value & 255
            self._memory.mark(to, size)

    cudaMemsetAsync = cudaMemset

    def cudaMemset2D(
        self, caller: int, to: int, pitch: int, value: int, width: int, height: int, *_: int
    ) -> None:
        if height > 1 and width > pitch:
            raise Misuse(INVALID_VALUE, f"rows of {width:,} bytes with a pitch of {pitch:,}")
        for row in range(height):
            self.cudaMemset(caller, to + row * pitch, value, width)

    cudaMemset2DAsync = cudaMemset2D

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
