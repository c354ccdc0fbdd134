"""Sums as tensor cores form them, of mma.sync, wmma and wgmma.

A sum adds some products and the accumulator at once. Products are exact. All terms are aligned to the largest
exponent, where that of a product is the sum of its factors', and cut off some bits below it; what is left is
summed exactly and cut off to the bits of the result. Two groups measured this bit for bit: Xie et al.,
"MMA-Sim", arXiv 2511.10909, and Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv
2512.07004; Fasi et al., PeerJ Computer Science 7:e330 (2021), found the same form in earlier cores.

The tables are those of Hopper: PTX names the least architecture that it needs, not the one that it is run on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.emulator.numbers.values import Array


@dataclass(frozen=True, kw_only=True)
class Model:
    """How an instruction adds up its products and the accumulator.

    terms: products of one sum; an instruction of more takes several sums, each on top of the one before it
    fraction: bits that are kept below the largest exponent
    result: bits of a float32 result after the first
    pairs: where it is not 0, elements are widened to 16 bits first: of each `pairs` along k the first half is
      in one sum, the other half in the next
    apart: the accumulator is added to the finished sum of products, and rounded to nearest
    """

    terms: int
    fraction: int = 25
    result: int = 23
    pairs: int = 0
    apart: bool = False


# scripts/mma_bits.py asks a card which of its candidates is right.
WGMMA = {"bf16": Model(terms=16), "f16": Model(terms=16), "tf32": Model(terms=8)} | dict.fromkeys(
    ("e4m3", "e5m2"), Model(terms=32, fraction=13, result=13)
)
# Hopper's mma.sync has no unit for 8 bits: ptxas (13.0) widens them and multiplies twice.
MMA = {"bf16": Model(terms=16), "f16": Model(terms=16), "tf32": Model(terms=8)} | dict.fromkeys(
    ("e4m3", "e5m2"), Model(terms=16, pairs=4, apart=True)
)
_NONE = np.int16(-8192)  # in place of the exponent of zero
_LOWEST = {
    "bf16": -126,
    "tf32": -126,
    "f16": -14,
    "e4m3": -6,
    "e5m2": -14,
    "f32": -126,
}  # exponent of normals


def summed(
    left: Array,
    right: Array,
    addend: Array,
    kinds: tuple[str, str],
    to: str,
    model: Model,
    kept: Array | None = None,
) -> Array:
    """Return ``left right + addend`` of matrices (M, K, ...), (K, N, ...) and (M, N, ...) in float64.

    kinds: the element types of `left` and `right`
    to: the accumulator's type; a result of f16 is rounded to nearest by who stores it
    kept: of a sparse product which elements of `left` are stored; nothing is multiplied by the others
    """
    if kept is not None and not np.isfinite(right).all():
        plain = np.where(np.isfinite(right), right, np.copysign(1.0, right))
        found = summed(left, plain, addend, kinds, to, model)
        endless = _endless(left, right, kept)
        with np.errstate(invalid="ignore"):
            return np.where(endless == 0, found, found + endless)
    if model.pairs:
        kinds = ("f16", "f16")
    total = np.zeros_like(addend) if model.apart else addend
    first = True
    for chosen in sums_of(left.shape[1], model):
        total = total if first else stored(total, to)
        total = fused(left[:, chosen], right[chosen], total, kinds, to, model)
        first = False
    return stored(total, to) + addend if model.apart else total


def _endless(left: Array, right: Array, kept: Array) -> Array:
    """Return the sums of the products of elements that are `kept` and of ones that are not finite."""
    found = np.zeros((len(left), *right.shape[1:]))
    with np.errstate(invalid="ignore"):
        for k in np.flatnonzero(~np.isfinite(right).reshape(len(right), -1).all(1)):
            counts = kept[:, k, None] & ~np.isfinite(right[None, k])
            found += np.where(counts, left[:, k, None] * right[None, k], 0.0)
    return found


def sums_of(depth: int, model: Model) -> list[Array]:
    """Return which of `depth` products each sum adds, in the order of the sums."""
    order, terms = np.arange(depth), model.terms
    if model.pairs:
        first = order % model.pairs < model.pairs // 2
        order, terms = np.concatenate([order[first], order[~first]]), min(terms, depth // 2)
    return np.split(order, range(terms, depth, terms))


def stored(values: Array, to: str) -> Array:
    """Return values as the accumulator's type `to` holds them, in float64."""
    with np.errstate(over="ignore"):  # to infinity
        found: Array = values.astype(np.float16 if to == "f16" else np.float32).astype(np.float64)
    return found


def fused(left: Array, right: Array, addend: Array, kinds: tuple[str, str], to: str, model: Model) -> Array:
    """Return one sum: ``left right + addend``, cut off, of matrices as `summed` takes them."""
    given = left, right, addend
    if not all(np.isfinite(values).all() for values in given):  # these are as they would be in any order
        with np.errstate(invalid="ignore"):
            plain = np.einsum("mk...,kn...->mn...", left, right) + addend
        finite = [np.where(np.isfinite(values), values, 0.0) for values in given]
        found = fused(finite[0], finite[1], finite[2], kinds, to, model)
        return np.where(np.isfinite(plain), found, plain)
    a, b = exponents(left, kinds[0]), exponents(right, kinds[1])
    a, b = np.where(left == 0, _NONE, a), np.where(right == 0, _NONE, b)
    highest = np.where(addend == 0, np.int16(-126), exponents(addend, "f16" if to == "f16" else "f32"))
    both = np.empty_like(highest)
    for k in range(len(right)):
        np.maximum(highest, np.add(a[:, k, None], b[None, k], out=both), out=highest)
    unit = np.ldexp(1.0, model.fraction - highest)  # terms are counted in these, so that sums are exact
    total, term = np.trunc(addend * unit), np.empty_like(unit)
    for k in range(len(right)):
        np.multiply(left[:, k, None], right[None, k], out=term)
        term *= unit
        total += np.trunc(term, out=term)
    total /= unit
    return total if to == "f16" else cut(total, model.result)


def exponents(values: Array, kind: str) -> Array:
    """Return the exponents of finite values; subnormals have the lowest of their type, int16."""
    found: Array = np.maximum(np.frexp(values)[1] - 1, _LOWEST[kind]).astype(np.int16)
    return found


def cut(values: Array, bits: int) -> Array:
    """Return values rounded towards zero to `bits` bits after the first, and to float32's subnormals."""
    unit = np.ldexp(1.0, bits - exponents(values, "f32"))
    found: Array = np.trunc(values * unit) / unit
    return found
