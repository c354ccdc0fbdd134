"""Floating-point formats narrower than float32, encoded from float64 and decoded to it.

The formats are those of the PTX ISA, "Alternate Floating-Point Data Formats": f16, bf16, tf32, the 8-bit e4m3
and e5m2, the 6-bit e2m3 and e3m2, the 4-bit e2m1, and ue8m0, the power of two that scales a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.emulator.numbers.floats import Array


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format with `exponent` and `mantissa` bits.

    bits: width of an element
    low: exponent of the smallest normal number
    largest: the largest finite number
    infinity: bits of infinity; -1 without one
    nan: bits of the NaN that a conversion gives; -1 without one, and then NaN gives the largest number
    shift: zero bits below the mantissa
    """

    bits: int
    exponent: int
    mantissa: int
    low: int
    largest: float
    infinity: int = -1
    nan: int = -1
    shift: int = 0

    @property
    def sign(self) -> int:
        """Return the place of the sign bit, counted without `shift`."""
        return self.exponent + self.mantissa


FORMATS: dict[str, Format] = {
    "f16": Format(bits=16, exponent=5, mantissa=10, low=-14, largest=65504.0, infinity=0x7C00, nan=0x7FFF),
    "bf16": Format(
        bits=16,
        exponent=8,
        mantissa=7,
        low=-126,
        largest=float.fromhex("0x1.fep127"),
        infinity=0x7F80,
        nan=0x7FFF,
    ),
    "tf32": Format(
        bits=32,
        exponent=8,
        mantissa=10,
        low=-126,
        largest=float.fromhex("0x1.ffcp127"),
        infinity=0x7F800000 >> 13,
        nan=0x7FFFFFFF >> 13,
        shift=13,
    ),
    "e4m3": Format(bits=8, exponent=4, mantissa=3, low=-6, largest=448.0, nan=0x7F),
    "e5m2": Format(bits=8, exponent=5, mantissa=2, low=-14, largest=57344.0, infinity=0x7C, nan=0x7F),
    "e2m3": Format(bits=8, exponent=2, mantissa=3, low=0, largest=7.5),
    "e3m2": Format(bits=8, exponent=3, mantissa=2, low=-2, largest=28.0),
    "e2m1": Format(bits=4, exponent=2, mantissa=1, low=0, largest=6.0),
}
BLOCK_SCALE = "ue8m0"


def encode(
    values: Array, name: str, mode: str = "rn", *, saturate: bool = False, noise: Array | float = 0.0
) -> Array:
    """Return float64 `values` rounded once to a format, as its bits, int64.

    mode: rn (to nearest even), rna (to nearest, ties away from zero), rz, rm (down), rp (up) or rs (away from
      zero where the part that is cut off and `noise`, from 0 to 1, sum up to 1 or more)
    saturate: what is too large becomes the largest number instead of infinity
    """
    if name == BLOCK_SCALE:
        return _encode_scale(values, mode)
    form = FORMATS[name]
    size, negative = np.abs(values), np.signbit(values)
    finite = np.isfinite(values)
    _, exponent = np.frexp(np.where(finite & (size > 0), size, 2.0**form.low))
    scale = np.maximum(exponent - 1, form.low)
    exact = np.ldexp(np.where(finite, size, 0.0), form.mantissa - scale)
    whole = np.floor(exact + noise) if mode == "rs" else _rounded(exact, negative, mode)
    bits = ((scale - form.low).astype(np.int64) << form.mantissa) + whole.astype(np.int64)
    over = np.isinf(values) | (np.ldexp(whole, scale - form.mantissa) > form.largest)
    inward = (mode == "rz") | ((mode == "rm") & ~negative) | ((mode == "rp") & negative)
    last = int(_magnitude(form.largest, form))
    beyond = form.infinity if form.infinity >= 0 else form.nan if form.nan >= 0 else last
    stays = np.full(values.shape, saturate) | (inward & np.isfinite(values))
    bits = np.where(over, np.where(stays, last, beyond), bits)
    bits = bits | (negative.astype(np.int64) << form.sign)
    nan = form.nan if form.nan >= 0 else last
    return np.where(np.isnan(values), nan, bits) << form.shift


def _rounded(exact: Array, negative: Array, mode: str) -> Array:
    """Return non-negative numbers rounded to whole ones; `negative` tells which stand for a negative one."""
    if mode == "rna":
        return np.floor(exact + 0.5)
    if mode == "rz":
        return np.floor(exact)
    if mode in ("rm", "rp"):
        away = negative if mode == "rm" else ~negative
        return np.where(away, np.ceil(exact), np.floor(exact))
    found: Array = np.rint(exact)
    return found


def _magnitude(value: float, form: Format) -> float:
    """Return the bits of a positive normal number of a format."""
    exponent = int(np.frexp(value)[1]) - 1
    return ((exponent - form.low) << form.mantissa) + value * 2.0 ** (form.mantissa - exponent)


def decode(bits: Array, name: str) -> Array:
    """Return the float64 numbers that the bits of a format stand for; `bits` are integers."""
    bits = np.asarray(bits).astype(np.int64)
    if name == BLOCK_SCALE:
        return np.where(bits == 0xFF, np.nan, np.ldexp(1.0, (bits & 0xFF) - 127))
    form = FORMATS[name]
    bits = bits >> form.shift
    magnitude = bits & ((1 << form.sign) - 1)
    field = magnitude >> form.mantissa
    fraction = magnitude & ((1 << form.mantissa) - 1)
    whole = np.where(field > 0, fraction + (1 << form.mantissa), fraction).astype(np.float64)
    values = np.ldexp(whole, np.maximum(field, 1) - 1 + form.low - form.mantissa)
    if form.infinity >= 0:
        special = field == (1 << form.exponent) - 1
        values = np.where(special, np.where(fraction > 0, np.nan, np.inf), values)
    elif form.nan >= 0:
        values = np.where(magnitude == form.nan, np.nan, values)
    signed: Array = np.where((bits >> form.sign) & 1 == 1, -values, values)
    return signed


def _encode_scale(values: Array, mode: str) -> Array:
    """Return the exponents, biased by 127, of the powers of two around `values`: rz below, rp above."""
    mantissa, exponent = np.frexp(np.abs(values))
    up = (mantissa > 0.5) if mode == "rp" else np.zeros(values.shape, bool)
    found = np.clip(np.where(values == 0, 0, exponent - 1 + up + 127), 0, 254)
    return np.where(np.isnan(values), 0xFF, np.where(np.isinf(values), 254, found)).astype(np.int64)
