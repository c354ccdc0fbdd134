"""Inputs of matrix products that show what random ones hide, each with the result that it must have.

On standard normal numbers the bound grows with sqrt(K), and a long sum hides a product of less precision.
In rows with few products that are not zero, sums are short however large K is, and the bound is that of the
short sum: `harness.problems.bounds` with the number of products in place of K, for float32. (Adding a zero
is exact, in any order.)
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
    return problem.dtype.decode(inputs["A"][:, : problem.K]), problem.dtype.decode(inputs["B"][:, : problem.N])


def styles(problem: Gemm) -> tuple[str, ...]:
    """Return the names of the styles of inputs for this product: subnormal numbers for float32 only."""
    return tuple(name for name in _STYLES if name != "subnormal" or problem.dtype is FP32)


def styled(problem: Gemm, style: str, seed: int) -> Trial:
    """Return inputs of a style, one of `styles`, and their result."""
    rng = np.random.default_rng(seed)
    base = problem.inputs(seed)
    a, b = matrices(problem, base)
    if style == "infinity and NaN":
        return _unbounded(problem, base, a, b, rng)
    a, b, products = _STYLES[style](problem, a, b, rng)
    inputs = filled(problem, base, a, b)
    reference = problem.reference(inputs)
    return Trial(inputs=inputs, reference=_short(problem, reference, products))


def _short(problem: Gemm, reference: Reference, products: int) -> Reference:
    """Return the reference with the bound of a sum of that many products; 0 stands for all K."""
    if not products or problem.dtype is not FP32:
        return reference

    def growth(terms: int) -> float:
        return min(terms, 4 * math.sqrt(terms))

    share = growth(products + 3) / growth(problem.K + 3)
    rms = None if reference.rms_bound is None else reference.rms_bound * share
    tiny = (products + 3) * 2.0**-149
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


Styled = tuple[Matrix, Matrix, int]
_Style = Callable[[Gemm, Matrix, Matrix, np.random.Generator], Styled]


def _wide(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    reach = 4 if problem.dtype.name == "fp16" else 30
    powers = np.exp2(rng.integers(-reach, reach + 1, problem.K).astype(np.float64))
    return a * powers, b / powers[:, None], 0


def _one_sign(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    return np.abs(a), np.abs(b), 0


def _cancelling(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    half = problem.K // 2
    a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half], b[:half]
    return a, b, 0


def _few(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    products = min(3, problem.K)
    kept = np.zeros_like(a)
    for row in kept:
        row[rng.choice(problem.K, products, replace=False)] = 1
    return a * kept, b, products


def _permutation(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    a = np.zeros_like(a)
    a[np.arange(problem.M), rng.permutation(max(problem.M, problem.K))[: problem.M] % problem.K] = 1
    return a, b, 1


def _identity(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    a = np.zeros_like(a)
    a[np.arange(problem.M), np.arange(problem.M) % problem.K] = 1
    return a, b, 1


def _constant(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    return np.broadcast_to(a[:, :1], a.shape).copy(), np.broadcast_to(b[:1], b.shape).copy(), 0


def _last(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Leave only the last of the products: a loop that ends early has nothing."""
    a[:, :-1] = 0
    return a, b, 1


def _subnormal(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    return a * 2.0**-130, b, 0


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
