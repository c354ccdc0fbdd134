"""Memory of the host that the device writes: host code has to wait before it uses it.

The emulator does work at once, so that a program without ``cudaDeviceSynchronize`` is right here, and wrong
now and then on a GPU. What a kernel or an asynchronous copy wrote is protected until host code waits; a use
before that is told, with its line.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

from harness.emulator.memory import GAP
from harness.programs.events import Event, Unwaited
from harness.programs.places import Place, Places
from harness.programs.runtime.memory import HOST, MANAGED, DeviceMemory

_FRAMES = 16
# The functions after which work is done. A stream or an event may be one that other work is not in: then a
# fault is missed, and none invented.
WAITS = frozenset(
    {
        *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceReset"),
        *("cudaStreamQuery", "cudaEventQuery", "cudaFree", "cudaFreeHost"),
        *("cudaMemcpy", "cudaMemcpy2D", "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol"),
        *("cudaMemcpy2DToArray", "cudaMemcpy2DFromArray", "cudaMemcpyToArray", "cudaMemcpyFromArray"),
    }
)


class Guard:
    """Managed and page-locked memory that may still be written.

    native: the library of native/
    """

    def __init__(
        self, native: ctypes.CDLL, memory: DeviceMemory, places: Places, tell: Callable[[Event], None]
    ) -> None:
        self._native, self._memory, self._places, self._tell = native, memory, places, tell
        self._writers: dict[int, str] = {}  # by the start of the allocation
        native.harness_protect.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
        native.harness_watch()

    def wrote(self, addresses: Iterable[int], writer: str) -> None:
        """Protect the allocations that `writer` wrote to, of those that host code may use."""
        for address in addresses:
            found = self._memory.at(address) if self._memory.ours(address) else None
            if found is None or found.kind not in (HOST, MANAGED):
                continue
            if found.start not in self._writers:
                self._native.harness_protect(found.start, -(-found.size // GAP) * GAP)
            self._writers[found.start] = writer

    def waited(self) -> None:
        """Give all of it back to host code."""
        if self._writers:
            self._native.harness_waited()
            self._writers.clear()

    def look(self) -> None:
        """Tell what host code used since the last look."""
        start, frames = ctypes.c_uint64(), (ctypes.c_void_p * _FRAMES)()
        while self._native.harness_touch(ctypes.byref(start), frames):
            found = self._memory.at(start.value)
            if found is None or start.value not in self._writers:
                continue
            self._memory.name(self._places)
            places = (self._places.of((frame or 0) + 1) for frame in frames)
            said = f"host code uses {found.label}, which {self._writers[start.value]} may still be writing"
            self._tell(Unwaited(what=said, place=next((p for p in places if p.line), Place())))
