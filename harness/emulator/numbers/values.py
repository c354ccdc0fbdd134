"""Integers and predicates of a group of threads, stored without a full array where possible.

A group is laid out (T threads, C blocks). Most integers of a kernel are the sum of a part that depends on the
thread, a part that depends on the block and a constant, and `Affine` stores them so: an address that moves
through a loop changes only its constant. Components are immutable and numbered, so everything derived from
them (bounds, masks, index arrays, bank conflicts) can be looked up by their numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_COUNTER = itertools.count(1)
INT64 = (-(1 << 63), (1 << 63) - 1)


class Component:
    """One part of an integer: an immutable int64 array, (T, 1), (1, C) or (T, C).

    `low` and `high` are its least and greatest element; `id` is never used again.
    """

    __slots__ = ("array", "high", "id", "low")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.low = int(array.min())
        self.high = int(array.max())
        self.id = next(_COUNTER)


class Affine:
    """An integer per lane: thread part + block part + full part + offset.

    Each part is a component, (T, 1), (1, C) or (T, C), or None for zero; `key` holds their ids. The value is
    signed and within its register's range.
    """

    __slots__ = ("block", "full", "key", "offset", "thread")

    def __init__(
        self, thread: Component | None, block: Component | None, full: Component | None, offset: int
    ) -> None:
        self.thread, self.block, self.full, self.offset = thread, block, full, offset
        self.key = (
            thread.id if thread is not None else 0,
            block.id if block is not None else 0,
            full.id if full is not None else 0,
        )

    def bounds(self) -> tuple[int, int]:
        """Return a lower and an upper bound of the value in all lanes."""
        low = high = self.offset
        for part in (self.thread, self.block, self.full):
            if part is not None:
                low += part.low
                high += part.high
        return low, high

    def parts(self) -> Array:
        """Return the sum of the parts without the offset, int64, broadcastable to (T, C)."""
        found = [part.array for part in (self.thread, self.block, self.full) if part is not None]
        total: Array = found[0] if found else np.zeros((1, 1), np.int64)
        for array in found[1:]:
            total = total + array
        return total

    def array(self) -> Array:
        """Return the values, int64, broadcastable to (T, C)."""
        total: Array = self.parts() + np.int64(signed(self.offset, 64))
        return total

    def shifted(self, by: int) -> Affine:
        """Return the value plus `by`, not wrapped.

        It is for addresses, which leave their register's range only where they are out of bounds anyway.
        """
        return self if not by else Affine(self.thread, self.block, self.full, self.offset + by)


Integer = int | Affine


class Mask:
    """Some but not all of the lanes: an immutable bool array that broadcasts to (T, C).

    All lanes are True and no lanes are False, see `Lanes`.
    """

    __slots__ = ("array", "count", "id")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.count = int(np.count_nonzero(array))
        self.id = next(_COUNTER)

    def lanes(self, total: int) -> int:
        """Return the number of lanes in the mask, for a group of `total` lanes.

        The array may be smaller than the group, (T, 1) or (1, C), and then stands for all blocks or threads.
        """
        return self.count * (total // self.array.size)


Lanes = Mask | bool


def signed(value: int, bits: int) -> int:
    """Return `value` wrapped to a signed number of `bits` bits."""
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def shift(value: Integer, by: int) -> Integer:
    """Return ``value + by``, not wrapped."""
    return value + by if isinstance(value, int) else value.shifted(by)


def identity(value: Integer) -> Hashable:
    """Return a key that stands for the value: equal keys have equal values."""
    return value if isinstance(value, int) else (value.key, value.offset)


def bounds(value: Integer) -> tuple[int, int]:
    """Return a lower and an upper bound of the value in all lanes."""
    return (value, value) if isinstance(value, int) else value.bounds()


def array_of(value: Integer) -> Array | np.int64:
    """Return the value as int64: a scalar, or an array that broadcasts to (T, C)."""
    return np.int64(signed(value, 64)) if isinstance(value, int) else value.array()


def mask_of(array: Array) -> Lanes:
    """Return a bool array as lanes: True or False if all its elements agree, otherwise a mask."""
    mask = Mask(array)
    return mask if 0 < mask.count < array.size else bool(mask.count)


def lane_id(mask: Lanes) -> int:
    """Return a number that stands for the lanes: 0 for all, -1 for none, otherwise the id of the mask."""
    return mask.id if isinstance(mask, Mask) else int(mask) - 1


def part_of(array: Array) -> Component | int:
    """Return an int64 array as a component, or as an int if all its elements are equal."""
    part = Component(array)
    return part.low if part.low == part.high else part


def integer_of(array: Array) -> Integer:
    """Return an int64 array as an `Integer`.

    (T, 1) becomes a thread part, (1, C) a block part and (T, C) a full part; equal elements become an int.
    """
    part = part_of(np.atleast_2d(array))
    if isinstance(part, int):
        return part
    rows, columns = part.array.shape
    if columns == 1 and rows > 1:
        return Affine(part, None, None, 0)
    if rows == 1 and columns > 1:
        return Affine(None, part, None, 0)
    return Affine(None, None, part, 0)
