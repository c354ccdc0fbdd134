"""The integers and predicates of a group of threads, without an array for each where possible.

A launch is laid out (threads, blocks). Most integers of a kernel are sums of a part that depends on the
thread, one that depends on the block and a constant, so `Affine` stores them that way: an address that moves
through a loop changes its constant only. Components are immutable and numbered, which makes every derived
fact (bounds, masks, index arrays, bank conflicts) a look-up by number.
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
    """One part of an integer: int64, shaped (T, 1), (1, C) or (T, C), with its bounds."""

    __slots__ = ("array", "high", "id", "low")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.low = int(array.min())
        self.high = int(array.max())
        self.id = next(_COUNTER)


class Affine:
    """thread part + block part + full part + offset, any of the parts None. Signed, within its register."""

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
        low = high = self.offset
        for part in (self.thread, self.block, self.full):
            if part is not None:
                low += part.low
                high += part.high
        return low, high

    def parts(self) -> Array:
        """The sum of the parts without the offset, broadcastable to (T, C)."""
        found = [part.array for part in (self.thread, self.block, self.full) if part is not None]
        total: Array = found[0] if found else np.zeros((1, 1), np.int64)
        for array in found[1:]:
            total = total + array
        return total

    def array(self) -> Array:
        total: Array = self.parts() + np.int64(signed(self.offset, 64))
        return total

    def shifted(self, by: int) -> Affine:
        """Not wrapped: for addresses, which leave their range only where they are out of bounds anyway."""
        return self if not by else Affine(self.thread, self.block, self.full, self.offset + by)


Integer = int | Affine


class Mask:
    """Some but not all of the lanes: bool, broadcastable to (T, C). True and False are the others."""

    __slots__ = ("array", "count", "id")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.count = int(np.count_nonzero(array))
        self.id = next(_COUNTER)

    def lanes(self, total: int) -> int:
        return self.count * (total // self.array.size)


Lanes = Mask | bool


def signed(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def shift(value: Integer, by: int) -> Integer:
    return value + by if isinstance(value, int) else value.shifted(by)


def identity(value: Integer) -> Hashable:
    return value if isinstance(value, int) else (value.key, value.offset)


def bounds(value: Integer) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value.bounds()


def array_of(value: Integer) -> Array | np.int64:
    return np.int64(signed(value, 64)) if isinstance(value, int) else value.array()


def mask_of(array: Array) -> Lanes:
    mask = Mask(array)
    return mask if 0 < mask.count < array.size else bool(mask.count)


def lane_id(mask: Lanes) -> int:
    return mask.id if isinstance(mask, Mask) else int(mask) - 1


def part_of(array: Array) -> Component | int:
    part = Component(array)
    return part.low if part.low == part.high else part


def integer_of(array: Array) -> Integer:
    """An int64 array as an `Integer`, its kind told by its shape."""
    part = part_of(np.atleast_2d(array))
    if isinstance(part, int):
        return part
    rows, columns = part.array.shape
    if columns == 1 and rows > 1:
        return Affine(part, None, None, 0)
    if rows == 1 and columns > 1:
        return Affine(None, part, None, 0)
    return Affine(None, None, part, 0)
