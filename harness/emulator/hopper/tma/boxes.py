"""Boxes on their way between global and shared memory: their elements, what is outside, and the swizzle.

In im2col mode a box is a column of pixels, each with some channels (PTX ISA, "im2col mode").

A box lies in shared memory in rows along its innermost extent, the others following. With a swizzle of 128
bytes the 16-byte units of every eight 128-byte rows change places: address bits 4 to 6 are combined with bits
7 to 9 by exclusive or; with 64 bytes bits 4 and 5 with 7 and 8, with 32 bytes bit 4 with bit 7 (PTX ISA,
"Tensor swizzling modes").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.emulator.hopper.tma.tensormap import Map
from harness.emulator.memory import GLOBAL_BASE, Arena, Scratch
from harness.emulator.numbers.values import Array

_BITS = {0: 0, 32: 1, 64: 3, 128: 7}


def swizzled(address: Array, swizzle: int) -> Array:
    """Return the byte addresses at which a swizzle of 0, 32, 64 or 128 bytes puts those of plain rows."""
    found: Array = address ^ (((address >> 7) & _BITS[swizzle]) << 4)
    return found


def gather(arena: Arena, address: Array, size: int) -> Array:
    """Return the elements of `size` bytes at device addresses as unsigned integers."""
    found: Array = arena.view(size)[(address - GLOBAL_BASE) // size].view(f"u{size}")
    return found


def scatter(arena: Arena, address: Array, values: Array) -> None:
    """Store unsigned integers at device addresses."""
    size = values.dtype.itemsize
    owner = arena.holding(int(address.min()), int(address.max()) + size)
    arena.store(
        (address - GLOBAL_BASE) // size, GLOBAL_BASE, size, values.view(arena.view(size).dtype), owner
    )


NEVER = "adds to shared memory that was never written"


def read_shared(shared: Scratch, start: int, size: int) -> Array:
    """Return bytes of the shared memory of a cluster, a copy."""
    found: Array = shared.flat().view(np.uint8)[start : start + size].copy()
    return found


def write_shared(shared: Scratch, start: int, data: Array) -> None:
    """Write bytes, uint8, to the shared memory of a cluster."""
    shared.flat().view(np.uint8)[start : start + len(data)] = data
    shared.written().view(np.uint8)[start : start + len(data)] = 1


def unwritten(shared: Scratch, start: int, size: int) -> bool:
    """Return whether nothing has written some of these bytes."""
    return not shared.written().view(np.uint8)[start : start + size].all()


@dataclass(frozen=True, kw_only=True)
class Box:
    """The elements of one box, in the order in which they lie in shared memory before the swizzle.

    address: device address of each; `inside` tells whether it belongs to the tensor
    """

    address: Array
    inside: Array


def box_of(map_: Map, at: tuple[int, ...], offsets: tuple[int, ...] = ()) -> Box:
    """Return the box whose first element has the indices `at`, innermost first.

    offsets: those of im2col mode, along W, H and D
    """
    if map_.im2col:
        return _column_of(map_, at, offsets or (0,) * len(map_.lower))
    address = np.full((1,) * len(at), map_.address, np.int64)
    inside = np.ones((1,) * len(at), np.bool_)
    strides = (map_.size, *map_.strides)
    for axis, (start, count, step) in enumerate(zip(at, map_.counts, map_.steps, strict=True)):
        index = start + step * np.arange(count, dtype=np.int64)
        shape = [1] * len(at)
        shape[len(at) - 1 - axis] = count
        address = address + (index * strides[axis]).reshape(shape)
        inside = inside & ((index >= 0) & (index < map_.extents[axis])).reshape(shape)
    whole = tuple(reversed(map_.counts))
    return Box(address=np.broadcast_to(address, whole).ravel(), inside=np.broadcast_to(inside, whole).ravel())


def _column_of(map_: Map, at: tuple[int, ...], offsets: tuple[int, ...]) -> Box:
    """Return a column of pixels. The first is the base `at`, and bases go on within the pixel box, W fastest;
    at its far corner they begin again at the near one of the next image. Offsets shift all of them.
    """
    channel = at[0] + np.arange(map_.box[0], dtype=np.int64)
    number = np.arange(map_.box[1], dtype=np.int64)
    address = map_.address + channel * map_.size
    inside = (channel >= 0) & (channel < map_.extents[0])
    axes = zip(at[1:-1], map_.lower, map_.upper, offsets, strict=True)
    for axis, (base, low, high, offset) in enumerate(axes, 1):
        step, last = map_.steps[axis], map_.extents[axis] - 1 + high
        row = (last - low) // step + 1  # bases
        first = max((last - base) // step + 1, 1)  # that are left of the row which this one is in
        later = number - first
        index = np.where(later < 0, base + step * number, low + step * (later % row)) + offset
        address, inside = _along(map_, axis, index, address, inside)
        number = np.where(later < 0, 0, later // row + 1)
    address, inside = _along(map_, len(at) - 1, at[-1] + number, address, inside)
    return Box(address=address.ravel(), inside=inside.ravel())


def _along(map_: Map, axis: int, index: Array, address: Array, inside: Array) -> tuple[Array, Array]:
    """Return addresses, and which are inside, with the index of each pixel along one more axis."""
    within = (index >= 0) & (index < map_.extents[axis])
    return address + (index * map_.strides[axis - 1])[:, None], inside & within[:, None]


def fetch(arena: Arena, map_: Map, box: Box) -> Array:
    """Return the elements of a box as bytes, uint8; those outside the tensor are zero, or NaN."""
    unit = f"u{map_.size}"
    found = np.zeros(box.address.shape, unit)
    if map_.nan:
        found[...] = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}[map_.size]
    found[box.inside] = gather(arena, box.address[box.inside], map_.size)
    if map_.element.startswith("TFLOAT32"):
        rounded = (found + np.uint32(0xFFF) + ((found >> np.uint32(13)) & np.uint32(1))) & np.uint32(
            0xFFFFE000
        )
        special = (found & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
        found = np.where(special, found, rounded)
    return found.view(np.uint8)


def reduced(old: Array, new: Array, operation: str, element: str) -> Array:
    """Return the bits of ``operation(old, new)`` for elements given by their bits."""
    if element == "BFLOAT16":
        wide = [(v.astype(np.uint32) << np.uint32(16)).view(np.float32) for v in (old, new)]
        total = _combine(operation, *wide).astype(np.float32).view(np.uint32)
        rounded = total + np.uint32(0x7FFF) + ((total >> np.uint32(16)) & np.uint32(1))
        return (rounded >> np.uint32(16)).astype(np.uint16)
    kind = {
        "FLOAT16": "f2",
        "FLOAT32": "f4",
        "FLOAT32_FTZ": "f4",
        "FLOAT64": "f8",
        "INT32": "i4",
        "INT64": "i8",
    }
    typed = kind.get(element, f"u{old.dtype.itemsize}")
    found: Array = np.ascontiguousarray(_combine(operation, old.view(typed), new.view(typed))).view(old.dtype)
    return found


def _combine(operation: str, old: Array, new: Array) -> Array:
    """Apply one of the reductions of ``cp.reduce.async.bulk``."""
    functions = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }  # fmt: skip
    if operation == "inc":
        return np.where(old >= new, 0, old + 1).astype(old.dtype)
    if operation == "dec":
        return np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype)
    found: Array = functions[operation](old, new)
    return found
