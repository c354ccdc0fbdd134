"""Floating-point arithmetic as PTX rounds it, in NumPy, which has no fused multiply-add.

The fma of float32 takes product and sum in float64, where the product is exact, and rounds the sum to
float32. Rounding twice differs from rounding once only where the float64 sum is half-way between two float32
(its low 29 bits are 1 0...0) or the result is subnormal. In those lanes the sum is rounded to odd, from its
exact error (TwoSum), and rounding that to float32 is right: Boldo & Melquiond, "Emulation of FMA and
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
_TOP29 = np.int64(35)  # moves the low 29 bits to the top
_MIDDLE = np.int64(-(1 << 63))  # 1 0...0 there
_SMALLEST_NORMAL = np.float32(2.0**-126)


class Underflow:
    """A flag that NumPy sets, within `watching()`, for an inexact float32 result below the normal numbers.

    `fma32` clears it and reads it back in `seen`.
    """

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, kind: str, flag: int) -> None:
        self.seen = True

    def watching(self) -> np.errstate:
        """Return the context in which `fma32` has to run; other floating-point errors are ignored."""
        return np.errstate(all="ignore", under="call", call=self)


class Workspace:
    """Scratch arrays of one shape for `fma32` and `add32`, which then allocate no memory."""

    def __init__(self, shape: tuple[int, ...], underflow: Underflow) -> None:
        self.products = np.empty(shape, np.float64)
        self.wide = np.empty(shape, np.float64)
        self.wide_bits = self.wide.view(np.int64)
        self.bits = np.empty(shape, np.int64)
        self.rounded = np.empty(shape, np.float32)
        self.underflow = underflow


def fma32(a: Any, b: Any, c: Any, out: Array, work: Workspace) -> None:
    """Compute ``a * b + c`` of float32 into `out`, rounded once, to nearest even.

    The operands are float32 scalars or arrays that broadcast to `out`, and may be `out` itself, which is
    written last; `work` has the shape of `out`. Call it within `Underflow.watching`.
    """
    np.multiply(a, b, out=work.products, dtype=np.float64)
    add32(c, out, work)


def add32(c: Any, out: Array, work: Workspace) -> None:
    """Add float32 `c` to the products in `work`, each of two float32 and exact, rounded as by `fma32`."""
    wide, underflow = work.wide, work.underflow
    np.add(work.products, c, out=wide)
    np.left_shift(work.wide_bits, _TOP29, out=work.bits)
    if work.bits.min() == _MIDDLE:
        _round_to_odd(work.products, c, wide, work.bits == _MIDDLE)
    underflow.seen = False
    np.copyto(work.rounded, wide, casting="same_kind")
    if underflow.seen:
        _round_to_odd(work.products, c, wide, np.abs(wide) < 2.0 * _SMALLEST_NORMAL)
        np.copyto(work.rounded, wide, casting="same_kind")
    np.copyto(out, work.rounded)


def _round_to_odd(products: Array, c: Any, wide: Array, where: Array) -> None:
    """Replace the float64 sums ``products + c`` in `wide`, in the lanes `where`, by sums rounded to odd."""
    lanes = np.nonzero(where)
    addends = np.broadcast_to(np.asarray(c), where.shape)[lanes].astype(np.float64)
    wide[lanes] = odd_sum(products[lanes], addends)


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """Return x + y as rounded, and its error: the two together are exact (Knuth's TwoSum)."""
    total = x + y
    back = total - x
    return total, (x - (total - back)) + (y - back)


def odd_sum(x: Array, y: Array) -> Array:
    """Return x + y of float64 rounded to odd; rounding that to a narrower type is rounding once."""
    total, error = two_sum(x, y)
    even = (total.view(np.int64) & 1) == 0
    adjust = (error != 0) & even & np.isfinite(total)
    return np.where(adjust, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def fma64(a: Any, b: Any, c: Any, out: Array, work: Workspace | None = None) -> None:
    """Compute ``a * b + c`` of float64 into `out`, rounded once, to nearest even.

    The operands are scalars or arrays that broadcast to `out`; `work` is there as in `fma32` and not used.
    """
    a, b, c = (np.broadcast_to(np.asarray(x, np.float64), out.shape) for x in (a, b, c))
    high, low = two_product(a, b)
    upper, lower = two_sum(c, low)
    total, rest = two_sum(high, upper)
    result = total + odd_sum(lower, rest)
    # Outside these bounds the error terms above are not exact; those lanes use rational numbers.
    magnitude = np.maximum(np.abs(high), np.abs(c))
    product_safe = (a == 0) | (b == 0) | (np.abs(high) > 2.0**-900)
    safe = (magnitude < 2.0**990) & (np.abs(a) < 2.0**990) & (np.abs(b) < 2.0**990) & product_safe
    out[...] = np.where(safe, result, high + c)
    for lane in zip(*np.nonzero(~safe), strict=True):
        out[lane] = fma_exact(float(a[lane]), float(b[lane]), float(c[lane]))


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (high, low), in sum exactly ``a * b`` (Dekker's product), barring over- and underflow."""
    high = a * b
    a1, a2 = _split(a)
    b1, b2 = _split(b)
    return high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2


def _split(x: Array) -> tuple[Array, Array]:
    """Return x as the sum of two numbers of at most 26 bits each (Veltkamp's splitting)."""
    scaled = 134217729.0 * x  # 2^27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def fma_exact(a: float, b: float, c: float) -> float:
    """Return ``a * b + c`` of float64, rounded once: computed with exact rational numbers."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:  # a product of zero keeps IEEE's sign of zero; a sum that cancels is +0
        return a * b + c if a == 0 or b == 0 else 0.0
    try:
        return exact.numerator / exact.denominator  # Python rounds a quotient of integers correctly
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def flush(x: Any) -> Any:
    """Return float32 `x` with subnormal numbers replaced by zeros of the same sign (``.ftz``)."""
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)


def round_to(values: Array, dtype: Any, mode: str) -> Array:
    """Round float64 `values` to a narrower `dtype` in one of PTX's modes.

    mode: rn (to nearest even), rz (towards zero), rm (down) or rp (up)
    """
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
    """Round float64 to float32, to odd; rounding that to a narrower type is rounding once."""
    near = values.astype(np.float32)
    error = values - near.astype(np.float64)
    even = (near.view(np.uint32) & 1) == 0
    towards = np.where(error > 0, np.float32(np.inf), np.float32(-np.inf))
    return np.where((error != 0) & even & np.isfinite(near), np.nextafter(near, towards), near)


def bfloat16_of(values: Array) -> Array:
    """Round float32 to bfloat16, to nearest even, and return its bits, uint16; NaN becomes 0x7FFF."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def of_bfloat16(bits: Array) -> Array:
    """Return the float32 of bfloat16 bits, uint16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
