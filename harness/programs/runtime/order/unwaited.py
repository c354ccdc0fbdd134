"""Memory of the host that the device uses: host code has to wait before it does.

The emulator does work at once, so that a program without ``cudaDeviceSynchronize`` is right here, and wrong
now and then on a GPU. What a kernel or an asynchronous copy wrote is protected until host code waits for
that, and what such a copy read may only be read; a use before that is told, with its line.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import NamedTuple

from harness.programs.events import Event, Unwaited
from harness.programs.places import Place, Places
from harness.programs.runtime.memory import HOST, MANAGED, DeviceMemory
from harness.programs.runtime.order.clocks import Line
from harness.programs.runtime.order.operations import Operations

_FRAMES = 16
PAGE = mmap.PAGESIZE


class Use(NamedTuple):
    """A use of pages by the operation with a number in a line of work: `user` says who does what."""

    low: int
    high: int
    readable: bool
    user: str
    line: Line
    number: int


class Guard:
    """Managed and page-locked memory that the device may still be using.

    native: the library of native/
    """

    def __init__(
        self,
        native: ctypes.CDLL,
        memory: DeviceMemory,
        places: Places,
        operations: Operations,
        tell: Callable[[Event], None],
    ) -> None:
        self._native, self._memory, self._places, self._tell = native, memory, places, tell
        self._operations = operations
        self._uses: dict[object, Use] = {}  # of those that are alike in one line of work the last
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
        one = self._operations.running
        if low < high and one is not None:
            self._uses[low, high, readable, one.line] = Use(low, high, readable, user, one.line, one.number)
            self._native.harness_protect(low, high - low, readable)
            for use in self._uses.values() if readable else ():
                if not use.readable and use.low < high and low < use.high:
                    self._native.harness_protect(use.low, use.high - use.low, False)

    def waited(self) -> None:
        """Give to host code what it has waited for."""
        known = self._operations.clocks.known
        left = {key: use for key, use in self._uses.items() if not known(use.line, use.number)}
        if len(left) == len(self._uses):
            return
        self._uses = left
        self._native.harness_waited()
        for use in sorted(left.values(), key=lambda use: use.readable, reverse=True):
            self._native.harness_protect(use.low, use.high - use.low, use.readable)

    def look(self) -> None:
        """Tell what host code touched since the last look."""
        start, frames = ctypes.c_uint64(), (ctypes.c_void_p * _FRAMES)()
        while self._native.harness_touch(ctypes.byref(start), frames):
            found = self._memory.at(start.value)
            uses = [use for use in self._uses.values() if use.low == start.value]
            if found is None or not uses:
                continue
            user = min(uses, key=lambda use: use.readable).user
            self._uses = {key: use for key, use in self._uses.items() if use.low != start.value}
            self._memory.name(self._places)
            places = (self._places.of((frame or 0) + 1) for frame in frames)
            said = f"host code uses {found.label}, which {user}"
            self._tell(Unwaited(what=said, place=next((p for p in places if p.line), Place())))
