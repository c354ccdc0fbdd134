"""Matrix descriptors of wgmma: where in shared memory the elements of an operand lie.

Layouts: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix Descriptor Format".
In units of 16 bytes, with L the leading and S the stride byte offset:

- K-major: without a swizzle core matrices of 8 rows of 16 bytes, S from one to the next along M or N, L along
  k. With a swizzle of W bytes rows of W bytes, S from eight of them to the next eight; an instruction takes
  32 bytes of a row, and of B of a sparse product 64, which a swizzle of 32 bytes has no place for.
- MN-major: with a swizzle of W bytes rows of W bytes along M or N, one for each k, L from one piece of W
  bytes to the next along M or N, S from eight k to the next eight. Without one core matrices of 8 k of 16
  bytes, S from one to the next along M or N, L along k.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from harness.emulator.hopper.tma.boxes import swizzled
from harness.emulator.numbers.values import Array

_SWIZZLES = (0, 128, 64, 32)


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """The fields of a descriptor, in bytes; `phase` is the base offset, in rows of the swizzle's pattern."""

    start: int
    leading: int
    stride: int
    phase: int
    swizzle: int


def descriptor(bits: int) -> Descriptor:
    """Return the fields of a descriptor's 64 bits."""
    return Descriptor(
        start=(bits & 0x3FFF) << 4,
        leading=(bits >> 16 & 0x3FFF) << 4,
        stride=(bits >> 32 & 0x3FFF) << 4,
        phase=bits >> 49 & 7,
        swizzle=_SWIZZLES[bits >> 62 & 3],
    )


@lru_cache(maxsize=64)
def _plain(rows: int, depth: int, size: int, leading: int, stride: int, swizzle: int, across: bool) -> Array:
    """Return the offset of each element (rows, depth) from the start, before the swizzle."""
    row, k = np.arange(rows)[:, None], np.arange(depth)[None, :] * size
    if not across:
        if swizzle:
            return row % 8 * swizzle + row // 8 * stride + k
        return row % 8 * 16 + row // 8 * stride + k // 16 * leading + k % 16
    byte, step = row * size, np.arange(depth)[None, :]
    if swizzle:
        return byte % swizzle + byte // swizzle * leading + step % 8 * swizzle + step // 8 * stride
    return byte % 16 + byte // 16 * stride + step % 8 * 16 + step // 8 * leading


def elements(found: Descriptor, rows: int, depth: int, size: int, *, across: bool) -> Array:
    """Return the byte in the block's shared memory of each element of an operand: (rows, depth).

    rows: of A, or columns of B
    depth: k of the instruction
    size: bytes of an element
    across: the operand is MN-major
    """
    address = found.start + _plain(rows, depth, size, found.leading, found.stride, found.swizzle, across)
    return (
        swizzled(address + found.phase * -128, found.swizzle) + found.phase * 128
        if found.phase
        else swizzled(address, found.swizzle)
    )
