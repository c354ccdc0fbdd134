"""The device memory of a program: what it has allocated, and the bytes, which host code and emulator share.

All of it lies in one range of addresses from `GLOBAL_BASE` on, which host code sees, too. What only the
device may touch is protected there: host code that reads it ends by SIGSEGV, as with a GPU. There is a second
mapping of the same bytes, for harness. Pages of the host's own that are registered are some of this memory.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.emulator.memory import GAP, GLOBAL_BASE, HEAP, HEAP_BYTES, Buffer
from harness.errors import EmulatorError
from harness.programs.places import Places
from harness.programs.runtime.host import ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED, Misuse
from harness.programs.runtime.pages import Pages, whole

SIZE = 1 << 40  # bytes of addresses; memory is taken as it is written
DEVICE, HOST, MANAGED, VARIABLE, ARRAY = "device", "host", "managed", "variable", "array"
REGISTERED = "registered"
_PROT_NONE, _PROT_BOTH = 0, mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED_NOREPLACE, _MAP_NORESERVE, _MAP_FIXED, _PAGE = 0x100000, 0x4000, 0x10, mmap.PAGESIZE
_WINDOW = 1 << 36  # bytes of the host's addresses, at least, whose pages keep their distances here
_FREED = 64  # allocations that were freed, of which accesses are told as such
_PUNCH = getattr(mmap, "MADV_REMOVE", 9)


@dataclass(kw_only=True)
class Allocation:
    """What one call allocated.

    kind: ``device``, ``host`` (page-locked), ``managed``, ``variable``, ``array``, what textures read, or
        ``registered``, the host's own
    name: its name in findings
    written: a 1 for each byte that something wrote; None where all of them count as written
    caller: where host code asked for it
    lasting: it belongs to a graph, which allocates it anew at the same place: to free it changes nothing
    host: where registered memory is for host code
    """

    start: int
    size: int
    kind: str
    name: str
    written: NDArray[np.uint8] | None
    caller: int = 0
    freed: bool = False
    lasting: bool = False
    host: int = 0

    @property
    def label(self) -> str:
        """Return what findings call it."""
        return f"{self.name or 'memory'}, which was freed" if self.freed else self.name

    @property
    def end(self) -> int:
        """Return the first address behind it."""
        return self.start + self.size


def _host(one: Allocation) -> int:
    return one.host


def _file(name: str) -> int:
    """Return a descriptor of memory, a large one, which few programs close."""
    first = os.memfd_create(name)
    os.ftruncate(first, SIZE)
    try:
        return fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 900)
    finally:
        os.close(first)


class DeviceMemory:
    """Allocations by address. Raises EmulatorError if the addresses are taken."""

    def __init__(self, native: ctypes.CDLL) -> None:
        self._files = [_file("harness-device"), _file("harness-flags")]
        self._known = [os.fstat(file) for file in self._files]
        self._maps = [mmap.mmap(file, SIZE, mmap.MAP_SHARED | _MAP_NORESERVE) for file in self._files]
        self._bytes, self._flags = (np.frombuffer(one, np.uint8) for one in self._maps)
        self._alias = int(self._bytes.ctypes.data)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        flags = mmap.MAP_SHARED | _MAP_FIXED_NOREPLACE | _MAP_NORESERVE
        if libc.mmap(GLOBAL_BASE, SIZE, _PROT_NONE, flags, self._files[0], 0) != GLOBAL_BASE:
            raise EmulatorError(f"the addresses from {GLOBAL_BASE:#x} on are taken in this process")
        self._libc = libc
        self._starts: list[int] = []
        self._allocations: list[Allocation] = []
        self._freed: list[Allocation] = []
        self._top = GLOBAL_BASE + GAP
        self._pages = Pages(native, self._files[0])
        # From and to which address the host's are how far from here.
        self._rooms: list[tuple[int, int, int]] = []
        self._registered: list[Allocation] = []  # by where they are for host code
        self.used = 0
        self.log: list[tuple[int, int, int, bool]] = []  # what the operation that runs has touched
        self._numbers = 0  # of allocations that were given a name

    def allocate(self, size: int, kind: str, name: str, caller: int = 0) -> Allocation | None:
        """Return a new allocation, whose bytes are zero; None if there is no room."""
        room = -(-(size + GAP) // GAP) * GAP
        if self._top + room > GLOBAL_BASE + SIZE:
            return None
        start, self._top = self._top, self._top + room
        place = start - GLOBAL_BASE
        written = self._flags[place : place + size] if kind == DEVICE else None
        found = Allocation(start=start, size=size, kind=kind, name=name, written=written, caller=caller)
        if kind in (HOST, MANAGED):
            self._libc.mprotect(start, room - GAP or GAP, _PROT_BOTH)
        self._starts.append(start)
        self._allocations.append(found)
        self.used += size
        return found

    def register(self, address: int, size: int, caller: int) -> None:
        """Let host memory be an allocation, too, and its pages lie at two addresses.

        The device has these bytes only: what else is in the pages changes while a kernel runs.
        """
        first, end = whole(address, size)
        if any(one.host < address + size and address < one.host + one.size for one in self._registered):
            raise Misuse(ALREADY_REGISTERED, f"{size:,} bytes of which some are registered")
        if not size or not self._pages.writable(first, end):
            what = f"{size:,} bytes from {address:#x} on" if address else "a null pointer"
            raise Misuse(INVALID_VALUE, f"{what}, which host code cannot write to" if size else what)
        distance = self._distance(first, end)
        self._libc.mprotect(first + distance, end - first, _PROT_BOTH)
        if not self._pages.lend(first, end, first + distance - GLOBAL_BASE):
            raise EmulatorError(f"{size:,} bytes of the host's cannot be reached by kernels")
        start = address + distance
        self._freed = [one for one in self._freed if one.end <= start or start + size <= one.start]
        found = Allocation(
            start=start, size=size, kind=REGISTERED, name="", written=None, caller=caller, host=address
        )
        place = bisect.bisect(self._starts, start)
        self._starts.insert(place, start)
        self._allocations.insert(place, found)
        bisect.insort(self._registered, found, key=_host)

    def _sharing(self, first: int, end: int) -> list[Allocation]:
        """Return the registered memory that has bytes in a range of the host's pages."""
        return [one for one in self._registered if one.host < end and first < one.host + one.size]

    def _distance(self, first: int, end: int) -> int:
        """Return how far from the host's pages they are here: neighbours there are neighbours here."""
        held = {one.start - one.host for one in self._sharing(first, end)}
        for low, high, distance in reversed(self._rooms):
            if low <= first and end <= high and held <= {distance}:
                return distance
        low, high = first // _WINDOW * _WINDOW, -(-end // _WINDOW) * _WINDOW
        if held or self._top + high - low + GAP > GLOBAL_BASE + SIZE:
            raise EmulatorError(f"no room for {end - first:,} bytes of the host's beside those registered")
        distance = self._top - low
        self._rooms.append((low, high, distance))
        self._top += high - low + GAP
        return distance

    def unregister(self, address: int) -> None:
        """Take registered memory from the device, and let pages be the host's alone where nothing else is."""
        place = bisect.bisect_left(self._registered, address, key=_host)
        if place == len(self._registered) or self._registered[place].host != address:
            raise Misuse(NOT_REGISTERED, f"{address:#x}, where no registered memory begins")
        found = self._registered.pop(place)
        self._remove(found)
        self._freed.append(replace(found, freed=True))
        first, end = whole(address, found.size)
        while first < end and self._sharing(first, first + _PAGE):
            first += _PAGE
        while first < end and self._sharing(end - _PAGE, end):
            end -= _PAGE
        distance = found.start - address
        for here, size in self._pages.give_back(first, end, first + distance - GLOBAL_BASE):
            self._libc.mprotect(GLOBAL_BASE + here, size, _PROT_NONE)
            self._maps[0].madvise(_PUNCH, here, size)

    def _remove(self, one: Allocation) -> None:
        place = bisect.bisect_left(self._starts, one.start)
        del self._starts[place], self._allocations[place]

    def registered(self, address: int) -> int:
        """Return where kernels find an address of host memory that is registered; 0 if it is not."""
        place = bisect.bisect(self._registered, address, key=_host) - 1
        if place < 0 or address >= (found := self._registered[place]).host + found.size:
            return 0
        return found.start + address - found.host

    def heap(self) -> None:
        """Have the memory that kernels' malloc takes from, which stays from launch to launch."""
        if not any(one.name == HEAP for one in self._allocations):
            self.allocate(HEAP_BYTES, DEVICE, HEAP)

    def free(self, start: int) -> Allocation | None:
        """Take an allocation back; None if none begins there. Its addresses are not used again."""
        found = self.at(start)
        if found is None or found.start != start or found.kind == REGISTERED:
            return None
        if found.lasting:
            return found
        self._remove(found)
        room = -(-found.size // GAP) * GAP or GAP
        self._libc.mprotect(start, room, _PROT_NONE)
        for one in self._maps:
            one.madvise(_PUNCH, start - GLOBAL_BASE, room)
        self._freed.append(replace(found, written=None, freed=True))
        self.used -= found.size
        return found

    def at(self, address: int) -> Allocation | None:
        """Return the allocation that an address lies in, or just behind."""
        place = bisect.bisect_right(self._starts, address) - 1
        found = self._allocations[place] if place >= 0 else None
        return found if found is not None and address <= found.end else None

    def freed(self, address: int) -> Allocation | None:
        """Return what lay at this address until it was freed."""
        return next((a for a in reversed(self._freed) if a.start <= address < a.end), None)

    @staticmethod
    def ours(address: int) -> bool:
        """Return whether an address is of the device."""
        return GLOBAL_BASE <= address < GLOBAL_BASE + SIZE

    def view(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return the bytes from an address on."""
        return self._bytes[start - GLOBAL_BASE : start - GLOBAL_BASE + size]

    def pointer(self, address: int) -> int:
        """Return where harness finds the byte that a program, or its kernels, find at `address`."""
        return address - GLOBAL_BASE + self._alias if self.ours(address) else address

    def touch(self, start: int, size: int, *, writes: bool) -> None:
        """Note in the log that bytes of an allocation are read, or written: its start, theirs, their end."""
        start = start if self.ours(start) else self.registered(start)
        if size and (found := self.at(start)) is not None:
            self.log.append((found.start, start, start + size, writes))

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy bytes; what was written of them, and what was not, goes along."""
        self.touch(source, size, writes=False)
        ctypes.memmove(self.pointer(to), self.pointer(source), size)
        origin = self.at(source) if self.ours(source) else None
        flags = None
        if origin is not None and origin.written is not None:
            flags = origin.written[source - origin.start :][:size]
        self.mark(to, size, flags)

    def mark(self, start: int, size: int, flags: NDArray[np.uint8] | None = None) -> None:
        """Note that bytes were written, or those of them that have a 1 in `flags`."""
        self.touch(start, size, writes=True)
        target = self.at(start) if self.ours(start) else None
        if target is None or target.written is None:
            return
        if flags is None and size == target.size:
            target.written = None
        else:
            target.written[start - target.start :][:size] = 1 if flags is None else flags

    def private(self, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the first bytes, and their flags, for a launch to change: what it writes is its own."""
        found = []
        for file, known, held in zip(self._files, self._known, (self._bytes, self._flags), strict=True):
            try:
                kept = os.path.samestat(os.fstat(file), known)
            except OSError:
                kept = False
            if kept:
                one = mmap.mmap(file, size, mmap.MAP_PRIVATE | _MAP_NORESERVE)
            else:  # the program has closed what it did not open
                one = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
            found.append(np.frombuffer(one, np.uint8))
            for each in () if kept else self._allocations:
                place = slice(each.start - GLOBAL_BASE, each.end - GLOBAL_BASE)
                found[-1][place] = held[place]
        return found[0], found[1]

    def name(self, places: Places) -> None:
        """Call allocations what the lines that made them do, and those that say nothing by their numbers."""
        unnamed = [one for one in (*self._allocations, *self._freed[-_FREED:]) if not one.name]
        places.learn(one.caller for one in unnamed)
        for one in unnamed:
            self._numbers += 1
            one.name = places.named(one.caller) or f"allocation {self._numbers}"

    def suppose(self, buffers: Sequence[Buffer]) -> None:
        """Take for written what a launch wrote in part, of which only some blocks ran."""
        for buffer in buffers:
            found = self.at(buffer.address or 0)
            if found is not None and buffer.written is not None and buffer.written.any():
                found.written = None

    def buffers(self, grain: int, variables: Mapping[str, int]) -> list[Buffer]:
        """Return all allocations as the emulator takes them.

        grain: bytes in which a kernel accesses memory at least, and in which its races are told apart
        variables: the addresses of those that are variables of its module, by their PTX names
        """
        found, ours = [], {address: name for name, address in variables.items()}
        for one in sorted([*self._allocations, *self._freed[-_FREED:]], key=lambda a: a.start):
            if one.written is not None and one.written[-1] and one.written.all():
                one.written = None
            size = one.size if self.at(one.start) is one else 0
            unit = 1 if (one.start | size) % grain else grain
            found.append(
                Buffer(
                    array=self.view(one.start, size).view(f"u{unit}"),
                    name=ours.get(one.start, one.label),
                    initialised=one.written is None,
                    written=one.written,
                    address=one.start,
                )
            )
        return found
