"""Memory of the emulated device: one arena for global memory, word columns for shared and local memory.

Loads and stores here touch valid, aligned lanes only; `access` has sorted out the others. Values are bits:
float32 for 4 bytes, float64 for 8, unsigned integers for less, each shaped (T, C).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.numbers.algebra import Memo
from harness.emulator.numbers.values import Array, Integer, Lanes, Mask, lane_id
from harness.errors import EmulatorError

GLOBAL_BASE = 1 << 40
SHARED_BASE = 1 << 32  # where generic addresses see shared memory
LOCAL_BASE = 1 << 33
GAP = 1 << 20  # unowned bytes between two allocations, never touched, so they cost no memory
UNIT: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.float32, 8: np.float64}


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """An array that a kernel gets as a pointer. `initialised` False: whatever it holds, nothing may be read
    before it is written.
    """

    array: NDArray[Any]
    name: str
    initialised: bool = True


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """`start` to `end` are device addresses; `grain` is the bytes in which races are told apart, an element's
    or 4.
    """

    index: int
    name: str
    start: int
    end: int
    initialised: bool
    grain: int


class Arena:
    """Global memory: every buffer copied in, gaps between them."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self.allocations: list[Allocation] = []
        top = GAP
        for index, buffer in enumerate(buffers):
            start = GLOBAL_BASE + top
            self.allocations.append(
                Allocation(
                    index=index,
                    name=buffer.name,
                    start=start,
                    end=start + buffer.array.nbytes,
                    initialised=buffer.initialised,
                    grain=min(4, buffer.array.itemsize),
                )
            )
            top += -(-(buffer.array.nbytes + GAP) // GAP) * GAP
        _check_room(sum(b.array.nbytes for b in buffers))
        try:
            self._bytes = np.empty(top, np.uint8)
            self._written = np.zeros(top if not all(b.initialised for b in buffers) else 0, np.uint8)
        except (MemoryError, ValueError) as error:
            raise EmulatorError(f"{top:,} bytes of global memory do not fit this machine") from error
        for allocation, buffer in zip(self.allocations, buffers, strict=True):
            self._slice(allocation)[:] = np.ascontiguousarray(buffer.array).reshape(-1).view(np.uint8)
        self._views = {size: self._bytes.view(unit) for size, unit in UNIT.items()}
        self._flags = {size: self._written.view(f"u{size}") for size in UNIT}
        self._starts = np.array([a.start for a in self.allocations] or [0])
        self._ends = np.array([a.end for a in self.allocations] or [0])
        self.stored: set[int] = set()

    def _slice(self, allocation: Allocation) -> Array:
        return self._bytes[allocation.start - GLOBAL_BASE : allocation.end - GLOBAL_BASE]

    def view(self, size: int) -> Array:
        """All of the arena in units of `size` bytes."""
        found: Array = self._views[size]
        return found

    def copy_back(self, buffers: list[Buffer]) -> None:
        """What the kernel stored, into the arrays it came from."""
        for index in self.stored:
            array = buffers[index].array
            if not array.flags.writeable:
                raise EmulatorError(f"the kernel stores to {buffers[index].name}, a read-only array")
            array[...] = self._slice(self.allocations[index]).view(array.dtype).reshape(array.shape)

    def holding(self, low: int, end: int) -> Allocation | None:
        """The allocation that holds all of [low, end)."""
        for allocation in self.allocations:
            if allocation.start <= low and end <= allocation.end:
                return allocation
        return None

    def nearest(self, address: int, size: int) -> tuple[Allocation, int] | None:
        """The allocation next to an access outside, and how many bytes lie between (1: adjoining)."""

        def distance(a: Allocation) -> int:
            return a.start - address if address < a.start else address + size - a.end

        return min(((a, distance(a)) for a in self.allocations), key=lambda pair: pair[1], default=None)

    def inside(self, addresses: Array, size: int) -> Array:
        """Per lane, whether [address, address + size) lies within one allocation."""
        place = np.clip(np.searchsorted(self._starts, addresses, side="right") - 1, 0, None)
        return (addresses >= self._starts[place]) & (addresses + size <= self._ends[place])

    def undefined(self, addresses: Array) -> Array:
        """Per lane, whether it lies in an allocation that was not initialised."""
        place = np.clip(np.searchsorted(self._starts, addresses, side="right") - 1, 0, None)
        return ~np.array([a.initialised for a in self.allocations])[place]

    def load(self, index: Array, first: int, size: int, out: Array | None) -> Array:
        """`index` counts units of `size` bytes from device address `first`; lanes outside are clipped."""
        start = (first - GLOBAL_BASE) // size
        return np.take(self._views[size][start:], index, out=out, mode="clip")

    def store(self, index: Array, first: int, size: int, values: Array, owner: Allocation | None) -> None:
        start = (first - GLOBAL_BASE) // size
        self._views[size][start:][index] = values
        if owner is None:
            self.stored.update(range(len(self.allocations)))
        else:
            self.stored.add(owner.index)
        if len(self._written) and (owner is None or not owner.initialised):
            self._flags[size][start:][index] = ONES[size]

    def unwritten(self, index: Array, first: int, size: int) -> Array:
        """Per lane, whether some byte of it has never been written."""
        start = (first - GLOBAL_BASE) // size
        flags = np.take(self._flags[size][start:], index, mode="clip")
        bad: Array = flags != ONES[size]
        return bad


ONES = {size: int.from_bytes(b"\1" * size, "little") for size in UNIT}


def _check_room(wanted: int) -> None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > room * 3 // 4:
        raise EmulatorError(
            f"the kernel's arrays take {wanted:,} bytes and this machine has {room:,}",
            hint="Take a smaller shape.",
        )


class Scratch:
    """Shared or local memory: `words` rows of 4 bytes, a column for each owner (a block, or a thread)."""

    def __init__(self, size: int, columns: int) -> None:
        self.size = size
        self.columns = columns
        words = -(-size // 8) * 2 + 2
        self._words = np.zeros((words, columns), np.float32)
        self._written = np.zeros((words, columns), np.uint32)

    def flat(self) -> Array:
        """All words, a row of columns after the other."""
        return self._words.reshape(-1)

    def load(self, at: Access, size: int, out: Array | None) -> Array:
        if size == 4 and at.rows is not None:
            return np.take(self._words[at.first :], at.rows, axis=0, out=out, mode="clip")
        return self._gather(self._words, at, size, out)

    def _gather(self, memory: Array, at: Access, size: int, out: Array | None) -> Array:
        if size == 8:
            flat = memory.reshape(-1)[at.first * self.columns :]
            index = at.words(self.columns)
            halves = [np.take(flat[half * self.columns :], index, mode="clip") for half in (0, 1)]
            pair = np.stack(halves, axis=-1).view(np.float64 if memory.dtype == np.float32 else np.uint64)
            found: Array = pair[..., 0]
            if out is None:
                return found
            np.copyto(out, found)
            return out
        kind = UNIT[size] if memory.dtype == np.float32 else f"u{size}"
        flat = memory.reshape(-1).view(kind)[at.first * self.columns * (4 // size) :]
        return np.take(flat, at.units(self.columns, size), out=out, mode="clip")

    def store(self, at: Access, size: int, values: Any, where: Lanes) -> None:
        """Lanes that write one address at once: the last one wins."""
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
        bad: Array = self._gather(self._written, at, size, None) != ONES[size]
        return bad


def _by_thread(where: Lanes) -> bool:
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
    wide = np.float64 if dtype == np.float32 else np.uint64
    whole = np.ascontiguousarray(np.broadcast_to(np.asarray(values, wide), shape))
    pair: Array = whole.view(dtype).reshape(*shape, 2)
    return pair


class Access:
    """Where a group's lanes go in a `Scratch`: `rows` (T,) from word `first` on if all blocks agree, else by
    lane. Of one address pattern only `first` changes as the address moves: see `moved`.
    """

    __slots__ = ("_offsets", "_units", "columns", "first", "rows", "shape")

    def __init__(self, rows: Array | None, offsets: Array, columns: Array, shape: tuple[int, int]) -> None:
        self.rows = rows
        self._offsets = offsets  # bytes from `first`
        self.columns = columns  # the owner of each lane
        self.shape = shape
        self._units: dict[int, Array] = {}
        self.first = 0

    def moved(self, first: int) -> Access:
        other = Access(self.rows, self._offsets, self.columns, self.shape)
        other._units = self._units
        other.first = first
        return other

    def words(self, columns: int) -> Array:
        if 8 not in self._units:
            self._units[8] = np.broadcast_to((self._offsets >> 2) * columns + self.columns, self.shape)
        return self._units[8]

    def units(self, columns: int, size: int) -> Array:
        if size not in self._units:
            per = 4 // size
            units = ((self._offsets >> 2) * columns + self.columns) * per + (self._offsets & 3) // size
            self._units[size] = np.ascontiguousarray(np.broadcast_to(units, self.shape))
        return self._units[size]


def access(memo: Memo, address: Integer, where: Lanes, columns: Array, shape: tuple[int, int]) -> Access:
    """The access pattern of `address`; lanes outside `where` may be anywhere and are clipped.

    `columns`: the owner of each lane, (1, C) for shared memory and (T, C) for local.
    """
    if isinstance(address, int):
        key: Any = ("access", address & 3, columns.shape)
        offset = address
    else:
        key = ("access", address.key, address.offset & 3, lane_id(where), columns.shape)
        offset = address.offset

    def make() -> tuple[Access, int]:
        parts = np.zeros((1, 1), np.int64) if isinstance(address, int) else address.parts()
        low = _lowest(parts, where, shape)
        offsets = parts - low + (low + offset & 3)
        rows = None
        alike = not isinstance(address, int) and address.block is None and address.full is None
        if alike and columns.shape[0] == 1:
            rows = (offsets >> 2).ravel()
        return Access(rows, offsets, columns, shape), low

    found: tuple[Access, int] = memo.get(key, make, 24 * shape[0] * shape[1])
    pattern, low = found
    return pattern.moved((low + offset) >> 2)


def _lowest(parts: Array, where: Lanes, shape: tuple[int, int]) -> int:
    if isinstance(where, Mask):
        parts = np.broadcast_to(parts, shape)[np.broadcast_to(where.array, shape)]
    return int(parts.min())
