"""Memory of the host that the device uses: host code has to wait before it does.

The emulator does work at once, so that a program without ``cudaDeviceSynchronize`` is right here, and wrong
now and then on a GPU. What a kernel or an asynchronous copy wrote is protected until host code waits, and
what such a copy read may only be read; a use before that is told, with its line.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

from harness.programs.events import Event, Unwaited
from harness.programs.places import Place, Places
from harness.programs.runtime.memory import HOST, MANAGED, DeviceMemory

_FRAMES = 16
PAGE = mmap.PAGESIZE
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
    """Managed and page-locked memory that the device may still be using.

    native: the library of native/
    """

    def __init__(
        self, native: ctypes.CDLL, memory: DeviceMemory, places: Places, tell: Callable[[Event], None]
    ) -> None:
        self._native, self._memory, self._places, self._tell = native, memory, places, tell
        self._users: dict[int, str] = {}  # by the start of what is protected: who does what to it
        native.harness_protect.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]
        native.harness_watch()

    def wrote(self, start: int, end: int, writer: str) -> None:
        """Protect a range that `writer` wrote, if it is memory that host code may use."""
        self._protect(start, end, f"{writer} may still be writing", readable=False)

    def read(self, start: int, end: int, reader: str) -> None:
        """Protect a range that `reader` read: host code may read it as well."""
        self._protect(start, end, f"{reader} may still be reading", readable=True)

    def _protect(self, start: int, end: int, user: str, *, readable: bool) -> None:
        """Protect the pages that are of the range only: host code may use what else the allocation has."""
        found = self._memory.at(start) if self._memory.ours(start) else None
        if found is None or found.kind not in (HOST, MANAGED):
            return
        low = start if start == found.start else -(-start // PAGE) * PAGE
        high = -(-end // PAGE) * PAGE if end >= found.end else end // PAGE * PAGE
        if low < high and low not in self._users:
            self._native.harness_protect(low, high - low, readable)
            self._users[low] = user

    def waited(self) -> None:
        """Give all of it back to host code."""
        if self._users:
            self._native.harness_waited()
            self._users.clear()

    def look(self) -> None:
        """Tell what host code touched since the last look."""
        start, frames = ctypes.c_uint64(), (ctypes.c_void_p * _FRAMES)()
        while self._native.harness_touch(ctypes.byref(start), frames):
            found = self._memory.at(start.value)
            if found is None or start.value not in self._users:
                continue
            self._memory.name(self._places)
            places = (self._places.of((frame or 0) + 1) for frame in frames)
            said = f"host code uses {found.label}, which {self._users[start.value]}"
            self._tell(Unwaited(what=said, place=next((p for p in places if p.line), Place())))
