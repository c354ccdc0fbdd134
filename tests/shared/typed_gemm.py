"""GEMMs of every element type for tests: inputs whose products are exact, and kernels in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from harness.problems.gemm import GEMMS, Gemm
from harness.problems.protocol import Reference

KINDS = ("integers", "one-hot rows", "one-hot columns")


@cache
def exact(dtype: str, kind: str) -> type[Gemm]:
    """Return the GEMM of that type on inputs that every correct kernel multiplies exactly: sums are integers
    below 2^24, so what is left is one rounding to nearest even, which is expected bit by bit.

    ``integers``: A and B hold -4 to 4, C too. ``one-hot rows``: each row of A holds a single 1 (a sum is an
    element of B: a wrong row, column, swizzle or transpose shows as another integer); ``one-hot columns``:
    each column of B does. alpha and beta must be powers of two or small integers.
    """

    class Exact(GEMMS[dtype]):  # type: ignore[misc]
        def inputs(self, seed: int) -> dict[str, Any]:
            found = super().inputs(seed)
            rng = np.random.default_rng(seed)
            shapes = {"A": (self.M, self.K), "B": (self.K, self.N), "C": (self.M, self.N)}
            for name, (rows, columns) in shapes.items():
                if name == "C" and not self.beta:
                    continue
                values = rng.integers(-4, 5, (rows, columns))
                if (kind, name) == ("one-hot rows", "A"):
                    values = np.eye(columns)[rng.integers(0, columns, rows)]
                elif (kind, name) == ("one-hot columns", "B"):
                    values = np.eye(rows)[rng.integers(0, rows, columns)].T
                elif kind != "integers":  # all different as far as the type goes
                    values = (np.arange(rows)[:, None] * 7 + np.arange(columns) * 3) % 256 - 128
                found[name][:, :columns] = self.dtype.encode(values.astype(np.float32))
            return found

        def reference(self, inputs: Mapping[str, Any]) -> Reference:
            exactly = super().reference(inputs).expected
            assert np.abs(exactly).max() < 2**24
            expected = self.dtype.decode(self.dtype.encode(exactly.astype(np.float32)))
            return Reference(expected=expected, bound=np.zeros_like(expected), dtype=self.dtype)

    return Exact


def rounded(x: Any, bits: int) -> Any:
    """Round float64 to nearest even, to that many significant bits, without limits to the exponent."""
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, exponent - bits)
    return np.rint(x / step) * step


def truncated(x: Any, bits: int) -> Any:
    """Round float64 towards zero, to that many significant bits."""
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, exponent - bits)
    return np.trunc(x / step) * step


def operands(p: Gemm, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return A and B in float64, as a product of the type reads them."""
    a, b = p.dtype.decode(inputs["A"][:, : p.K]), p.dtype.decode(inputs["B"][:, : p.N])
    return (rounded(a, p.dtype.reads), rounded(b, p.dtype.reads)) if p.dtype.name == "tf32" else (a, b)


def tensor_core_sum(a: Any, b: Any, step: int = 8) -> Any:
    """Multiply as tensor cores do: `step` exact products at a time are added to a float32 sum, which is then
    truncated.
    """
    total = np.zeros((a.shape[0], b.shape[1]))
    for k in range(0, a.shape[1], step):
        total = truncated(total + a[:, k : k + step] @ b[k : k + step], 24)
    return total


def finished(p: Gemm, inputs: Mapping[str, Any], total: Any) -> Any:
    """Return the output: alpha and beta in float32, one rounding to the type; the padding as it was."""
    out = inputs["C"].copy()
    result = np.float32(p.alpha) * total.astype(np.float32)
    if p.beta:
        c = p.dtype.decode(out[:, : p.N]).astype(np.float32)
        result = result + np.float32(p.beta) * c
    out[:, : p.N] = p.dtype.encode(result.astype(np.float32))
    return out


def split_sum(p: Gemm, inputs: Mapping[str, Any], corrections: int = 2) -> Any:
    """Multiply as 3xtf32 does: a float is two numbers of tf32, of which there are three products; tensor-core
    sums of 8 k are added up in float32.
    """
    a, b = operands(p, inputs)
    high = rounded(a, 11), rounded(b, 11)
    low = truncated(a - high[0], 11), truncated(b - high[1], 11)
    total = np.zeros((p.M, p.N), np.float32)
    for k in range(0, p.K, 8):
        part = np.zeros((p.M, p.N))
        for x, y in ((low[0], high[1]), (high[0], low[1]), high)[2 - corrections :]:
            part = truncated(part + x[:, k : k + 8] @ y[k : k + 8], 24)
        total += part.astype(np.float32)
    return total


def six_products(p: Gemm, inputs: Mapping[str, Any], degree: int = 2) -> Any:
    """Multiply as bf16x6 does: a float is three numbers of bf16, of which there are six products, smallest
    first; tensor-core sums of 16 k are added up in float32 every 32 k. With `degree` 0 there is one product.
    """
    a, b = operands(p, inputs)
    parts: list[tuple[Any, Any]] = []
    for _ in range(3):
        parts.append((rounded(a, 8), rounded(b, 8)))
        a, b = a - parts[-1][0], b - parts[-1][1]
    total = np.zeros((p.M, p.N), np.float32)
    for start in range(0, p.K, 32):
        part = np.zeros((p.M, p.N))
        for k in range(start, min(start + 32, p.K), 16):
            for order in range(degree, -1, -1):
                for i in range(order + 1):
                    x, y = parts[i][0][:, k : k + 16], parts[order - i][1][k : k + 16]
                    part = truncated(part + x @ y, 24)
        total += part.astype(np.float32)
    return total


def three_products(p: Gemm, inputs: Mapping[str, Any], corrections: int = 2, lower: int = 0) -> Any:
    """Multiply as fp16x3 does: rows of A and columns of B are scaled until their largest element is 2^14 or
    more, and then two numbers of fp16, of which there are three products; tensor-core sums of 16 k are added
    up in float32 every 32 k. `lower` scales to so many octaves below.
    """
    a, b = (x.astype(np.float64) for x in operands(p, inputs))
    scales = []
    for x, axis in ((a, 1), (b, 0)):
        _, exponent = np.frexp(np.max(np.abs(x), axis=axis, keepdims=True))
        scales.append(np.minimum(15 - lower - exponent, 127))
    a, b = np.ldexp(a, scales[0]), np.ldexp(b, scales[1])
    high = a.astype(np.float16).astype(np.float64), b.astype(np.float16).astype(np.float64)
    low = [(x - y).astype(np.float16).astype(np.float64) for x, y in zip((a, b), high, strict=True)]
    total = np.zeros((p.M, p.N), np.float32)
    for start in range(0, p.K, 32):
        part = np.zeros((p.M, p.N))
        for k in range(start, min(start + 32, p.K), 16):
            for x, y in ((high[0], low[1]), (low[0], high[1]), high)[2 - corrections :]:
                part = truncated(part + x[:, k : k + 16] @ y[k : k + 16], 24)
        total += part.astype(np.float32)
    return np.ldexp(total.astype(np.float64), -scales[0] - scales[1])


def correct(p: Gemm, inputs: Mapping[str, Any]) -> Any:
    """Return the output of a correct kernel of the type."""
    if p.dtype.name == "3xtf32":
        return finished(p, inputs, split_sum(p, inputs))
    if p.dtype.name == "fp16x3":
        return finished(p, inputs, three_products(p, inputs))
    if p.dtype.name == "bf16x6":
        return finished(p, inputs, six_products(p, inputs))
    return finished(p, inputs, tensor_core_sum(*operands(p, inputs)))
