"""Inputs of matrix products that show what random ones hide, each with the result that it must have.

On standard normal numbers the bound grows with sqrt(K), and a long sum hides a product of less precision.
In rows with few products that are not zero, sums are short however large K is, and the bound is that of the
short sum: `harness.problems.bounds` with the number of products in place of K, for float32. (Adding a zero
is exact, in any order.) Where all products of a sum are equal, so are the roundings, and only the worst case
of that module holds: K + 3 of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.kernels.dtypes import FP32
from harness.problems.gemm import Gemm
from harness.problems.protocol import Reference
from harness.problems.verify import Verdict, compare

Matrix = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Inputs by name, their result, and `unbounded`: elements that must be infinite or NaN, None for none."""

    inputs: Arrays
    reference: Reference
    unbounded: NDArray[np.bool_] | None = None

    def compare(self, output: NDArray[Any], before: NDArray[Any]) -> Verdict:
        """Compare an output with the result; `before` is the output buffer before the launch."""
        if self.unbounded is None:
            return compare(output, self.reference, before)
        output, inside = output.copy(), tuple(slice(0, n) for n in self.unbounded.shape)
        held = output[inside]
        lost = self.unbounded & np.isfinite(self.reference.decode(held))
        dtype = self.reference.dtype or FP32
        right = dtype.encode(self.reference.expected.astype(np.float32))
        held[self.unbounded & ~lost] = right[self.unbounded & ~lost]
        held[lost] = dtype.encode(np.full(1, np.nan, np.float32))[0]  # finite where it must not be: wrong
        return compare(output, self.reference, before)


def random(problem: Any, seed: int) -> Trial:
    """Return the problem's own random inputs."""
    inputs = problem.inputs(seed)
    return Trial(inputs=inputs, reference=problem.reference(inputs))


def filled(problem: Gemm, base: Arrays, a: Matrix, b: Matrix) -> Arrays:
    """Return the inputs `base` with these matrices, rounded to the type, in place of A and B."""
    found = {name: array.copy() for name, array in base.items()}
    for name, matrix in (("A", a), ("B", b)):
        rows, columns = matrix.shape
        with np.errstate(over="ignore"):
            found[name][:rows, :columns] = problem.dtype.encode(matrix.astype(np.float32))
    return found


def matrices(problem: Gemm, inputs: Mapping[str, NDArray[Any]]) -> tuple[Matrix, Matrix]:
    """Return A and B in float64, without padding."""
    return problem.dtype.decode(inputs["A"][:, : problem.K]), problem.dtype.decode(
        inputs["B"][:, : problem.N]
    )


def styles(problem: Gemm) -> tuple[str, ...]:
    """Return the names of the styles of inputs for this product.

    Subnormal numbers are for float32 only, and so are equal products: in other types the roundings of the
    inputs would be equal, too.
    """
    only = () if problem.dtype is FP32 else ("subnormal", "constant rows")
    return tuple(name for name in _STYLES if name not in only)


def styled(problem: Gemm, style: str, seed: int) -> Trial:
    """Return inputs of a style, one of `styles`, and their result."""
    rng = np.random.default_rng(seed)
    base = problem.inputs(seed)
    a, b = matrices(problem, base)
    if style == "infinity and NaN":
        return _unbounded(problem, base, a, b, rng)
    a, b, growth = _STYLES[style](problem, a, b, rng)
    inputs = filled(problem, base, a, b)
    reference = problem.reference(inputs)
    return Trial(inputs=inputs, reference=_rebound(problem, reference, growth))


def _growth(terms: int) -> float:
    """Return by how many roundings a sum of that many terms is off, as `harness.problems.bounds` has it."""
    return min(terms, 4 * math.sqrt(terms))


def _rebound(problem: Gemm, reference: Reference, growth: float | None) -> Reference:
    """Return the reference with the bound for `growth` roundings in place of those of K random products."""
    if growth is None or problem.dtype is not FP32:
        return reference
    share = growth / _growth(problem.K + 3)
    rms = None if reference.rms_bound is None else reference.rms_bound * share
    tiny = (problem.K + 3) * 2.0**-149
    return replace(reference, bound=reference.bound * share + tiny, rms_bound=rms)


def _unbounded(problem: Gemm, base: Arrays, a: Matrix, b: Matrix, rng: np.random.Generator) -> Trial:
    """Put infinity into a row and NaN into a column: their products are not finite, all others as ever."""
    row, column = int(rng.integers(problem.M)), int(rng.integers(problem.N))
    finite = filled(problem, base, a, b)
    reference = problem.reference(finite)
    mask = np.zeros((problem.M, problem.N), np.bool_)
    mask[row], mask[:, column] = True, True
    a[row, rng.integers(problem.K)], b[rng.integers(problem.K), column] = np.inf, np.nan
    return Trial(inputs=filled(problem, base, a, b), reference=reference, unbounded=mask)


Styled = tuple[Matrix, Matrix, float | None]  # A, B, and the roundings of a sum where they are not those of K
_Style = Callable[[Gemm, Matrix, Matrix, np.random.Generator], Styled]


def _wide(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    reach = 4 if problem.dtype.name == "fp16" else 30
    powers = np.exp2(rng.integers(-reach, reach + 1, problem.K).astype(np.float64))
    return a * powers, b / powers[:, None], None


def _one_sign(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    return np.abs(a), np.abs(b), None


def _cancelling(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    half = problem.K // 2
    a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half], b[:half]
    return a, b, None


def _few(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    products = min(3, problem.K)
    kept = np.zeros_like(a)
    for row in kept:
        row[rng.choice(problem.K, products, replace=False)] = 1
    return a * kept, b, _growth(products + 3)


def _permutation(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    a = np.zeros_like(a)
    a[np.arange(problem.M), rng.permutation(max(problem.M, problem.K))[: problem.M] % problem.K] = 1
    return a, b, _growth(4)


def _identity(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    a = np.zeros_like(a)
    a[np.arange(problem.M), np.arange(problem.M) % problem.K] = 1
    return a, b, _growth(4)


def _constant(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    return np.broadcast_to(a[:, :1], a.shape).copy(), np.broadcast_to(b[:1], b.shape).copy(), problem.K + 3


def _last(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Leave only the last of the products: a loop that ends early has nothing."""
    a[:, :-1] = 0
    return a, b, _growth(4)


def _subnormal(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Make A subnormal, but no sum: atomic additions in global memory flush subnormal ones (PTX ISA)."""
    return a * 2.0**-130, b * 2.0**20, None


_STYLES: dict[str, _Style] = {
    "few products": _few,
    "wide exponents": _wide,
    "the last product": _last,
    "permutation": _permutation,
    "one sign": _one_sign,
    "cancellation": _cancelling,
    "identity": _identity,
    "constant rows": _constant,
    "subnormal": _subnormal,
    "infinity and NaN": _one_sign,  # made by `_unbounded`
}
