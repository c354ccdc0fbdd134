"""Address patterns in shared and local memory, made once and moved with a loop's offset."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.numbers.algebra import Memo
from harness.emulator.numbers.values import Array, Integer, Lanes, Mask, lane_id


class Access:
    """An address pattern in a `Scratch`: where the lanes of a group go, relative to word `first`.

    A moving address keeps its pattern and changes only `first`, see `moved`.

    rows: (T,) the word of each thread, if all blocks go to the same words; otherwise None
    columns: the column of each lane, (1, C) or (T, C)
    shape: (T, C)
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
        """Return the same pattern, relative to another word `first`."""
        other = Access(self.rows, self._offsets, self.columns, self.shape)
        other._units = self._units
        other.first = first
        return other

    def words(self, columns: int) -> Array:
        """Return each lane's index (T, C) in the flat words of a `Scratch`, counted from word `first`."""
        if 8 not in self._units:
            self._units[8] = np.broadcast_to((self._offsets >> 2) * columns + self.columns, self.shape)
        return self._units[8]

    def units(self, columns: int, size: int) -> Array:
        """Return the same as `words` in units of `size` bytes: 1, 2 or 4."""
        if size not in self._units:
            per = 4 // size
            units = ((self._offsets >> 2) * columns + self.columns) * per + (self._offsets & 3) // size
            self._units[size] = np.ascontiguousarray(np.broadcast_to(units, self.shape))
        return self._units[size]


def access(memo: Memo, address: Integer, where: Lanes, columns: Array, shape: tuple[int, int]) -> Access:
    """Return the access pattern of the byte address `address` in a `Scratch`; patterns are kept in `memo`.

    where: the active lanes, which are in bounds; other lanes may have any address
    columns: the column of each lane, (1, C) for shared memory and (T, C) for local
    shape: (T, C) of the group
    """
    if isinstance(address, int):
        key: Any = ("access", address & 3)
        offset = address
    else:
        key = ("access", address.key, address.offset & 3, lane_id(where))
        offset = address.offset
    # The last warp of a block may be a part of one, and local memory has a column for each thread.
    key += (shape, columns.shape, int(columns[0, 0]))

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
    """Return the least of `parts` (an address without its offset) among the active lanes."""
    if isinstance(where, Mask):
        parts = np.broadcast_to(parts, shape)[np.broadcast_to(where.array, shape)]
    return int(parts.min())
