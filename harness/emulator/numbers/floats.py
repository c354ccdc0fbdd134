"""Floating-point arithmetic as PTX rounds it, in NumPy, which has no fused multiply-add.

The fma of float32: product and sum in float64 round twice only where the float64 sum is the middle between
two float32 (its low 29 bits are 1 0...0) or the result is subnormal. Those lanes get the sum rounded to odd
from its exact error (TwoSum), after which rounding again is right: Boldo & Melquiond, "Emulation of FMA and
correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57(4), 2008. The same
paper gives the fma of float64.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_LOW29 = np.int64(0x1FFFFFFF)
_MIDDLE = np.int64(0x10000000)
_SMALLEST_NORMAL = np.float32(2.0**-126)


class Underflow:
    """Whether a float32 result was inexact below the normal numbers: NumPy calls it within `watching()`."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, kind: str, flag: int) -> None:
        self.seen = True

    def watching(self) -> np.errstate:
        """The context in which `fma32` has to run."""
        return np.errstate(all="ignore", under="call", call=self)


class Workspace:
    """Scratch arrays of one shape, so that an fma allocates nothing."""

    def __init__(self, shape: tuple[int, int], underflow: Underflow) -> None:
        self.wide = np.empty(shape, np.float64)
        self.wide_bits = self.wide.view(np.int64)
        self.bits = np.empty(shape, np.int64)
        self.flags = np.empty(shape, np.bool_)
        self.underflow = underflow


def fma32(a: Any, b: Any, c: Any, out: Array, work: Workspace) -> None:
    """out = a * b + c, rounded once. Operands float32 scalars or arrays that broadcast to `out`."""
    wide, flags, underflow = work.wide, work.flags, work.underflow
    np.multiply(a, b, out=wide, dtype=np.float64)
    np.add(wide, c, out=wide)
    np.bitwise_and(work.wide_bits, _LOW29, out=work.bits)
    np.equal(work.bits, _MIDDLE, out=flags)
    if np.count_nonzero(flags):
        _round_to_odd(a, b, c, wide, flags)
    underflow.seen = False
    np.copyto(out, wide, casting="same_kind")
    if underflow.seen:
        np.less(np.abs(wide), 2.0 * _SMALLEST_NORMAL, out=flags)
        _round_to_odd(a, b, c, wide, flags)
        np.copyto(out, wide, casting="same_kind")


def _round_to_odd(a: Any, b: Any, c: Any, wide: Array, where: Array) -> None:
    """Replace float64 sums of a * b + c by the same, rounded to odd."""
    lanes = np.nonzero(where)

    def pick(x: Any) -> Array:
        return np.broadcast_to(np.asarray(x), where.shape)[lanes].astype(np.float64)

    product = pick(a) * pick(b)  # exact: 24 bits times 24 bits
    wide[lanes] = odd_sum(product, pick(c))


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    total = x + y
    back = total - x
    return total, (x - (total - back)) + (y - back)


def odd_sum(x: Array, y: Array) -> Array:
    """x + y of float64, rounded to odd: rounding that to a narrower type is rounding once."""
    total, error = _two_sum(x, y)
    even = (total.view(np.int64) & 1) == 0
    adjust = (error != 0) & even & np.isfinite(total)
    return np.where(adjust, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def fma64(a: Any, b: Any, c: Any, out: Array, work: Workspace) -> None:
    """out = a * b + c of float64, rounded once."""
    a, b, c = (np.broadcast_to(np.asarray(x, np.float64), out.shape) for x in (a, b, c))
    high, low = _two_product(a, b)
    upper, lower = _two_sum(c, low)
    total, rest = _two_sum(high, upper)
    result = total + odd_sum(lower, rest)
    # Outside these bounds the error terms above are not exact; those lanes go through exact arithmetic.
    magnitude = np.maximum(np.abs(high), np.abs(c))
    product_safe = (a == 0) | (b == 0) | (np.abs(high) > 2.0**-900)
    safe = (magnitude < 2.0**990) & (np.abs(a) < 2.0**990) & (np.abs(b) < 2.0**990) & product_safe
    out[...] = np.where(safe, result, high + c)
    for lane in zip(*np.nonzero(~safe), strict=True):
        out[lane] = fma_exact(float(a[lane]), float(b[lane]), float(c[lane]))


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Dekker's product: a * b = high + low exactly, short of overflow and underflow."""
    high = a * b
    a1, a2 = _split(a)
    b1, b2 = _split(b)
    return high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2


def _split(x: Array) -> tuple[Array, Array]:
    scaled = 134217729.0 * x  # 2^27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def fma_exact(a: float, b: float, c: float) -> float:
    """One fma of float64 through exact rationals."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:  # the sign of a zero: exact products of zero keep it, a cancelled sum is +0
        return a * b + c if a == 0 or b == 0 else 0.0
    try:
        return exact.numerator / exact.denominator  # of integers, correctly rounded
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def flush(x: Any) -> Any:
    """``.ftz``: subnormal float32 become zero of the same sign."""
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)


def round_to(values: Array, dtype: Any, mode: str) -> Array:
    """float64 `values` to a narrower `dtype` by PTX's mode: rn, rz, rm (down) or rp (up)."""
    near = values.astype(dtype)
    if mode == "rn":
        return near
    back = near.astype(np.float64)
    zero = np.zeros((), dtype)
    up, down = dtype(np.inf), dtype(-np.inf)
    too_high, too_low = back > values, back < values
    if mode == "rz":
        return np.where(np.abs(back) > np.abs(values), np.nextafter(near, zero), near)
    if mode == "rm":
        return np.where(too_high, np.nextafter(near, down), near)
    return np.where(too_low, np.nextafter(near, up), near)


def to_odd32(values: Array) -> Array:
    """float64 -> float32 rounded to odd, from which a narrower type is rounded to once."""
    near = values.astype(np.float32)
    error = values - near.astype(np.float64)
    even = (near.view(np.uint32) & 1) == 0
    towards = np.where(error > 0, np.float32(np.inf), np.float32(-np.inf))
    return np.where((error != 0) & even & np.isfinite(near), np.nextafter(near, towards), near)


def bfloat16_of(values: Array) -> Array:
    """float32 -> bfloat16 bits (uint16), to nearest even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def of_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)
