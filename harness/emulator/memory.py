"""Memory of the emulated device: an arena for global memory, columns of words for shared and local memory.

`access.place` has already left out the lanes that are out of bounds or misaligned; a load clips the index of
a lane that is not active. Values are bits: float32 for 4 bytes, float64 for 8, unsigned integers for fewer,
each shaped (T threads, C blocks).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.numbers.addresses import Access
from harness.emulator.numbers.values import Array, Lanes, Mask
from harness.errors import EmulatorError
from harness.support.processes import sparse

GLOBAL_BASE = 1 << 40
SHARED_BASE = 1 << 32  # generic address at which shared memory begins
WINDOW = 18  # bits of an address within the shared memory of one block of a cluster
LOCAL_BASE = 1 << 33  # generic address at which local memory begins
HEAP, HEAP_BYTES = "the heap", 8 << 20  # the buffer that a kernel's malloc takes from
WORKSPACE = "the grid's barrier"  # the buffer that cooperative groups count blocks in
# Unowned bytes between two allocations, which cost no memory; those where we place them; and all of these.
GAP, _WIDE, _ALL = 1 << 20, 1 << 26, 1 << 29
_MANY, _OVERRUN = 64, 4  # buffers whose gaps are most of the arena; how much less is before one than past one
_OF_HEADERS = re.compile(r"_ZN(?:\d+__|4cuda)")
Private = Callable[[int], tuple[Array, Array]]
UNIT: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.float32, 8: np.float64}


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """An array that a kernel gets as a pointer.

    array: C-contiguous; the kernel's stores are written back into it
    name: its name in findings
    initialised: False if a byte may not be read before the kernel has written it, whatever the array holds
    written: of one that is not initialised, a 1 for each byte that was written; the launch adds its own
    pointers: places in bytes, and the buffers whose addresses stand there
    address: where it lies, in a program whose launches share it; None for the next place that is free
    """

    array: NDArray[Any]
    name: str
    initialised: bool = True
    written: NDArray[np.uint8] | None = None
    pointers: tuple[tuple[int, Buffer], ...] = ()
    address: int | None = None


@dataclass(frozen=True)
class Allocation:
    """The range of global memory that belongs to one buffer.

    index: its place in `Arena.allocations`
    start, end: device addresses; `end` is the first one after it
    initialised: as in `Buffer`
    grain: bytes in which races are told apart: the size of an element, at most 4
    """

    index: int
    name: str
    start: int
    end: int
    initialised: bool
    grain: int


class Arena:
    """Global memory: a copy of every buffer, those with an address first, in ascending order.

    private: returns so many bytes of memory in which those with an address lie already, and their flags

    Raises EmulatorError if they do not fit this machine.
    """

    def __init__(self, buffers: list[Buffer], private: Private | None = None) -> None:
        self.allocations: list[Allocation] = []
        top = GAP
        lie = any(buffer.address is not None for buffer in buffers)
        apart = GAP if lie or private else max(GAP, min(_WIDE, _ALL // max(1, len(buffers)) // GAP * GAP))
        for index, buffer in enumerate(buffers):
            start = GLOBAL_BASE + top if buffer.address is None else buffer.address
            end, grain = start + buffer.array.nbytes, min(4, buffer.array.itemsize)
            self.allocations.append(Allocation(index, buffer.name, start, end, buffer.initialised, grain))
            top = start - GLOBAL_BASE + -(-(buffer.array.nbytes + apart) // GAP) * GAP
        lying = sum(b.address is not None for b in buffers) if private else 0
        _check_room(sum(b.array.nbytes for b in buffers[lying:]))
        try:
            self._bytes, self._written = private(top) if private else _room(buffers, top)
        except (MemoryError, OSError, ValueError) as error:
            raise EmulatorError(f"{top:,} bytes of global memory do not fit this machine") from error
        for allocation, buffer in zip(self.allocations[lying:], buffers[lying:], strict=True):
            self._slice(allocation)[:] = np.ascontiguousarray(buffer.array).reshape(-1).view(np.uint8)
            if buffer.written is not None:
                self._slice(allocation, self._written)[:] = buffer.written
        self._views = {size: self._bytes.view(unit) for size, unit in UNIT.items()}
        self._flags = {size: self._written.view(f"u{size}") for size in UNIT}
        self._starts = np.array([a.start for a in self.allocations] or [0])
        self._ends = np.array([a.end for a in self.allocations] or [0])
        self._pointers: list[tuple[int, int, bytes, bytes]] = []  # (index, place, address, bytes before)
        self.stored: set[int] = set()  # indices of the allocations that the kernel has stored to

    def _slice(self, allocation: Allocation, of: Array | None = None) -> Array:
        place = slice(allocation.start - GLOBAL_BASE, allocation.end - GLOBAL_BASE)
        return (self._bytes if of is None else of)[place]

    def view(self, size: int) -> Array:
        """Return the whole arena as an array of units of `size` bytes."""
        return np.asarray(self._views[size])

    def raw(self, addresses: Array, size: int) -> Array:
        """Return the `size` bytes at each of the device addresses: uint8 (lanes, size)."""
        return np.asarray(self._bytes[(addresses - GLOBAL_BASE)[:, None] + np.arange(size)])

    def point(self, allocation: Allocation, offset: int, address: int) -> None:
        """Let an allocation hold an address at this place, until it is copied back."""
        place, data = self._slice(allocation)[offset : offset + 8], address.to_bytes(8, "little")
        self._pointers.append((allocation.index, offset, data, bytes(place)))
        place[:] = np.frombuffer(data, np.uint8)

    def copy_back(self, buffers: list[Buffer]) -> None:
        """Copy what the kernel stored into the arrays of `buffers`, those that the arena was made of.

        An address is copied if the kernel has stored another one there. Raises EmulatorError if an array is
        read-only.
        """
        for index, offset, data, before in self._pointers:
            place = self._slice(self.allocations[index])[offset : offset + 8]
            if bytes(place) == data:
                place[:] = np.frombuffer(before, np.uint8)
        for index in self.stored:
            array = buffers[index].array
            if not array.flags.writeable:
                raise EmulatorError(f"the kernel stores to {buffers[index].name}, a read-only array")
            array[...] = self._slice(self.allocations[index]).view(array.dtype).reshape(array.shape)
            if (written := buffers[index].written) is not None:
                written[...] = self._slice(self.allocations[index], self._written)

    def holding(self, low: int, end: int) -> Allocation | None:
        """Return the allocation that holds all bytes from `low` up to but not including `end`, or None."""
        for allocation in self.allocations:
            if allocation.start <= low and end <= allocation.end:
                return allocation
        return None

    def among(self, addresses: Array) -> list[Allocation]:
        """Return the allocations in which some of the addresses may lie."""
        # One more than the number of each.
        places = np.searchsorted(self._starts, addresses, side="right").reshape(-1)
        seen = np.nonzero(np.bincount(places, minlength=len(self.allocations) + 1)[1:])[0]
        return [self.allocations[i] for i in seen.tolist() if i < len(self.allocations)]

    def nearest(self, address: int, size: int) -> tuple[Allocation, int] | None:
        """Return the allocation nearest to an access of `size` bytes, and their distance.

        None if there are none. The distance is how many bytes the access starts before it or ends after it,
        which is likelier. Variables of CUDA's headers are not meant where there are others.
        """
        own = [a for a in self.allocations if not _OF_HEADERS.match(a.name)] or self.allocations
        pairs = ((a, a.start - address if address < a.start else address + size - a.end) for a in own)
        return min(pairs, key=lambda at: at[1] * (_OVERRUN if address < at[0].start else 1), default=None)

    def inside(self, addresses: Array, size: int) -> Array:
        """Return, per lane, whether the `size` bytes at its address lie within one allocation."""
        place = np.clip(np.searchsorted(self._starts, addresses, side="right") - 1, 0, None)
        return (addresses >= self._starts[place]) & (addresses + size <= self._ends[place])

    def undefined(self, addresses: Array) -> Array:
        """Return, per lane, whether its address lies in an allocation that was not initialised."""
        place = np.clip(np.searchsorted(self._starts, addresses, side="right") - 1, 0, None)
        return ~np.array([a.initialised for a in self.allocations])[place]

    def load(self, index: Array, first: int, size: int, out: Array | None) -> Array:
        """Return the unit of `size` bytes at device address ``first + index * size`` for each lane.

        The values have the type of `UNIT` and the shape of `index`; they are written into `out` unless that
        is None. An index outside the arena is clipped to its nearest unit.
        """
        start = (first - GLOBAL_BASE) // size
        return np.take(self._views[size][start:], index, out=out, mode="clip")

    def store(self, index: Array, first: int, size: int, values: Array, owner: Allocation | None) -> None:
        """Store `values` in units of `size` bytes at device addresses ``first + index * size``.

        `owner` is the allocation that holds all of them, None if they lie in several.
        """
        start = (first - GLOBAL_BASE) // size
        self._views[size][start:][index] = values
        self.wrote(index, start, size, owner)

    def wrote(self, index: Array, start: int, size: int, owner: Allocation | None) -> None:
        """Note that units of `size` bytes were stored: those with the numbers ``start + index`` in the arena.

        `owner` is the allocation that holds all of them, None if they lie in several.
        """
        if owner is None:
            self.stored.update(range(len(self.allocations)))
        else:
            self.stored.add(owner.index)
        if len(self._written) and (owner is None or not owner.initialised):
            self._flags[size][start:][index] = ONES[size]

    def unwritten(self, index: Array, first: int, size: int) -> Array:
        """Return, per lane, whether some byte of the unit that `load` would return was never written."""
        start = (first - GLOBAL_BASE) // size
        return np.asarray(np.take(self._flags[size][start:], index, mode="clip") != ONES[size])


def _room(buffers: list[Buffer], size: int) -> tuple[Array, Array]:
    """Return bytes and flags for buffers, flags only if there are some that are not initialised."""
    flags = size if not all(b.initialised for b in buffers) else 0
    if len(buffers) > _MANY or any(b.address is not None for b in buffers):
        return np.frombuffer(sparse(size), np.uint8), np.frombuffer(sparse(flags or 1), np.uint8)[:flags]
    return np.empty(size, np.uint8), np.zeros(flags, np.uint8)


ONES = {size: int.from_bytes(b"\1" * size, "little") for size in UNIT}  # written flags, one a byte


def _check_room(wanted: int) -> None:
    """Raise EmulatorError if `wanted` bytes are more than three quarters of this machine's memory."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > room * 3 // 4:
        raise EmulatorError(
            f"the kernel's arrays take {wanted:,} bytes and this machine has {room:,}",
            hint="Take a smaller shape.",
        )


class Scratch:
    """Shared or local memory, `size` bytes per owner: rows of 4-byte words, a column per block or thread.

    each: of the shared memory of a cluster, what each block has of its ``1 << WINDOW`` bytes; else 0
    """

    def __init__(self, size: int, columns: int, each: int = 0) -> None:
        self.size, self.each = size, each
        self.columns = columns
        words = -(-size // 8) * 2 + 2
        self._words = np.zeros((words, columns), np.float32)
        self._written = np.zeros((words, columns), np.uint32)

    def holds(self, address: Any, size: int) -> Any:
        """Return whether the `size` bytes at an address, or at each of them, are there."""
        inside = (address >= 0) & (address + size <= self.size)
        return inside & ((address & (1 << WINDOW) - 1) + size <= self.each) if self.each else inside

    def within(self, low: int, high: int, size: int) -> bool:
        """Return whether the `size` bytes at all addresses between are there, in one block of a cluster."""
        return low >> WINDOW == high >> WINDOW and bool(self.holds(low, size) and self.holds(high, size))

    def flat(self) -> Array:
        """Return all words as one array: word w of owner c has index ``w * columns + c``."""
        return self._words.reshape(-1)

    def written(self) -> Array:
        """Return the flags of the words of `flat`, uint32: in each a byte of 1 for every byte written."""
        return self._written.reshape(-1)

    def raw(self, addresses: Array, columns: Array, size: int) -> Array:
        """Return the `size` bytes at each of the addresses of the owners `columns`: uint8 (lanes, size)."""
        byte = addresses[:, None] + np.arange(size)
        found: Array = self.flat().view(np.uint8)[
            ((byte >> 2) * self.columns + columns[:, None]) * 4 + (byte & 3)
        ]
        return found

    def load(self, at: Access, size: int, out: Array | None) -> Array:
        """Return `size` bytes per lane at `at`, written into `out` unless that is None."""
        if size == 4 and at.rows is not None:
            found: Array = self._words[at.first :].take(at.rows, 0, out, "clip")
            return found
        return self._gather(self._words, at, size, out)

    def _gather(self, memory: Array, at: Access, size: int, out: Array | None) -> Array:
        """Load from `memory`: the words, or up to 4 bytes of the flags of written bytes."""
        if size == 8:
            flat = memory.reshape(-1)[at.first * self.columns :]
            index = at.words(self.columns)
            halves = [np.take(flat[half * self.columns :], index, mode="clip") for half in (0, 1)]
            found: Array = np.stack(halves, axis=-1).view(np.float64)[..., 0]
            if out is None:
                return found
            np.copyto(out, found)
            return out
        kind = UNIT[size] if memory.dtype == np.float32 else f"u{size}"
        flat = memory.reshape(-1).view(kind)[at.first * self.columns * (4 // size) :]
        return np.take(flat, at.units(self.columns, size), out=out, mode="clip")

    def store(self, at: Access, size: int, values: Any, where: Lanes) -> None:
        """Store `size` bytes per lane at `at`; of lanes that write the same address, the last one wins."""
        for memory, new in ((self._words, values), (self._written, ONES[size])):
            if size == 8:
                pair = _halves(new, at.shape, memory.dtype)
                index = at.words(self.columns)
                flat = memory.reshape(-1)[at.first * self.columns :]
                for half in (0, 1):
                    _scatter(flat[half * self.columns :], index, pair[..., half], where)
            elif size == 4 and at.rows is not None and _by_thread(where):
                _scatter_rows(memory[at.first :], at.rows, new, where)
            else:
                kind = UNIT[size] if memory.dtype == np.float32 else f"u{size}"
                flat = memory.reshape(-1).view(kind)[at.first * self.columns * (4 // size) :]
                _scatter(flat, at.units(self.columns, size), new, where)

    def unwritten(self, at: Access, size: int) -> Array:
        """Return, per lane, whether some of its `size` bytes at `at`, 1, 2 or 4, was never written."""
        return np.asarray(self._gather(self._written, at, size, None) != ONES[size])


def _by_thread(where: Lanes) -> bool:
    """Return whether the lanes are the same threads in every block."""
    return where is True or (isinstance(where, Mask) and where.array.shape[1] == 1)


def _scatter_rows(memory: Array, rows: Array, values: Any, where: Lanes) -> None:
    if isinstance(where, Mask):
        chosen = where.array.ravel()
        whole = isinstance(values, np.ndarray) and values.shape[0] > 1
        memory[rows[chosen]] = values[chosen] if whole else values
    else:
        memory[rows] = values


def _scatter(flat: Array, index: Array, values: Any, where: Lanes) -> None:
    if isinstance(where, Mask):
        chosen = np.broadcast_to(where.array, index.shape)
        flat[index[chosen]] = np.broadcast_to(values, index.shape)[chosen]
    else:
        flat[index] = values


def _halves(values: Any, shape: tuple[int, int], dtype: Any) -> Array:
    """Return 8-byte values as pairs of 4-byte words of type `dtype`: (T, C, 2)."""
    wide = np.float64 if dtype == np.float32 else np.uint64
    whole = np.ascontiguousarray(np.broadcast_to(np.asarray(values, wide), shape))
    pair: Array = whole.view(dtype).reshape(*shape, 2)
    return pair
