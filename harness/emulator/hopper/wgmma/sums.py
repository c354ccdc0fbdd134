"""Sums as Hopper's tensor cores form them.

One instruction adds 32 bytes of k and the accumulator at once. Products are exact. All terms are aligned to
the largest exponent, where that of a product is the sum of its factors', and cut off `FRACTION` bits below
it; what is left is summed exactly and cut off to the bits of the result. Of 8-bit types sum and result have
13 bits. Two groups measured this bit for bit: Xie et al., "MMA-Sim", arXiv 2511.10909, and Khattak and
Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv 2512.07004; Fasi et al., PeerJ Computer Science
7:e330 (2021), found the same form in earlier cores.
"""

from __future__ import annotations

import numpy as np

from harness.emulator.numbers.values import Array

FRACTION = {"bf16": 25, "f16": 25, "tf32": 25, "e4m3": 13, "e5m2": 13}  # bits kept below the largest exponent
_LOWEST = {
    "bf16": -126,
    "tf32": -126,
    "f16": -14,
    "e4m3": -6,
    "e5m2": -14,
    "f32": -126,
}  # exponent of normals
_RESULT = {25: 23, 13: 13}  # bits of a float32 result after the first


def exponents(values: Array, kind: str) -> Array:
    """Return the exponents of finite values; subnormals have the lowest of their type, int32."""
    found: Array = np.maximum(np.frexp(values)[1] - 1, _LOWEST[kind]).astype(np.int32)
    return found


def fused(left: Array, right: Array, addend: Array, kinds: tuple[str, str], to: str) -> Array:
    """Return ``left right^T + addend`` for (M, K), (N, K) and (M, N) in float64, summed and cut off.

    to: the accumulator's type; a result of f16 is rounded to nearest by who stores it
    """
    with np.errstate(invalid="ignore"):
        plain = np.matmul(left, right.T) + addend
    if not np.isfinite(plain).all():  # infinities and NaN are as they would be in any order
        finite = [np.where(np.isfinite(a), a, 0.0) for a in (left, right, addend)]
        found = fused(finite[0], finite[1], finite[2], kinds, to)
        return np.where(np.isfinite(plain), found, plain)
    bits = FRACTION[kinds[0]]
    a, b = exponents(left, kinds[0]), exponents(right, kinds[1])
    low = np.int32(-(1 << 20))
    a, b = np.where(left == 0, low, a), np.where(right == 0, low, b)
    highest = np.where(addend == 0, np.int32(-126), exponents(addend, "f16" if to == "f16" else "f32"))
    for k in range(left.shape[1]):
        np.maximum(highest, a[:, k, None] + b[None, :, k], out=highest)
    unit = np.ldexp(1.0, bits - highest)  # terms are counted in these, so that sums are exact
    total = np.trunc(addend * unit)
    for k in range(left.shape[1]):
        total += np.trunc(left[:, k, None] * right[None, :, k] * unit)
    total /= unit
    return total if to == "f16" else cut(total, _RESULT[bits])


def cut(values: Array, bits: int) -> Array:
    """Return values rounded towards zero to `bits` bits after the first, and to float32's subnormals."""
    unit = np.ldexp(1.0, bits - exponents(values, "f32"))
    found: Array = np.trunc(values * unit) / unit
    return found
