"""Inputs of matrix products that show what random ones hide, each with the result that it must have.

On standard normal numbers the bound grows with sqrt(K), and a long sum hides a product of less precision.
In rows with few products that are not zero, sums are short however large K is, and the bound is that of the
short sum: `harness.problems.bounds` with the number of products in place of K, for float32. (Adding a zero
is exact, in any order.) Where all products of a sum are equal, so are the roundings, and only the worst case
of that module holds: K + 3 of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.judging import rare
from harness.kernels.dtypes import FP32
from harness.problems.gemm import Gemm
from harness.problems.protocol import Reference
from harness.problems.verify import Verdict, compare

Matrix = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Inputs by name, their result, and `unbounded`: NaN where it must be infinite or NaN, infinite where it
    must be this infinity or NaN, 0 elsewhere; None where all of it is finite.
    """

    inputs: Arrays
    reference: Reference
    unbounded: Matrix | None = None

    def compare(self, output: NDArray[Any], before: NDArray[Any]) -> Verdict:
        """Compare an output with the result; `before` is the output buffer before the launch."""
        if self.unbounded is None:
            return compare(output, self.reference, before)
        output, inside = output.copy(), tuple(slice(0, n) for n in self.unbounded.shape)
        held = output[inside]
        numbers, mask = self.reference.decode(held), self.unbounded != 0
        lost = mask & (np.isfinite(numbers) | (np.isinf(numbers) & (numbers == -self.unbounded)))
        dtype = self.reference.dtype or FP32
        right = dtype.encode(self.reference.expected.astype(np.float32))
        held[mask & ~lost] = right[mask & ~lost]
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
    inputs would be equal, too, and those of integers are ties. fp16 has neither dust nor such scales, and
    small products beside a large one are for types that round sums to nearest.
    """
    only = ["subnormal", "constant rows", "one large product", "integers", *rare.FLOAT32]
    only = [] if problem.dtype is FP32 else only
    only += ["scaled rows and columns", "few products among dust"] if problem.dtype.name == "fp16" else []
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
    if style in _UNEVEN or style in rare.STYLES:
        reference = replace(reference, rms_bound=None)
    if style == rare.TINY:  # each of several terms of a product may be rounded to a multiple of 2^-149
        reference = replace(reference, bound=reference.bound + 16 * (problem.K + 3) * 2.0**-149)
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
    at = rng.integers(problem.K)
    a[row, at] = np.inf
    mask = np.zeros((problem.M, problem.N))
    mask[row] = np.copysign(np.inf, b[at]) * np.sign(problem.alpha)
    mask[:, column], b[rng.integers(problem.K), column] = np.nan, np.nan
    return Trial(inputs=filled(problem, base, a, b), reference=reference, unbounded=mask)


def near(problem: Gemm, inputs: Arrays, rng: np.random.Generator) -> Iterator[tuple[str, Arrays]]:
    """Yield inputs that have much in common with these, and give other results: all bits in another order,
    all magnitudes, the upper half of all bits.
    """
    a, b = matrices(problem, inputs)
    if problem.M > 1:
        yield (
            "rows of A in another order",
            filled(problem, inputs, np.roll(a, rng.integers(1, problem.M), 0), b),
        )
    if problem.N > 1:
        rolled = np.roll(b, rng.integers(1, problem.N), 1)
        yield "columns of B in another order", filled(problem, inputs, a, rolled)
    signs = rng.choice((-1, 1), a.shape)
    signs[:, 0] = -1
    yield "other signs in A", filled(problem, inputs, a * signs, b)
    for name in ("A", "B"):
        bits = inputs[name].view(f"u{inputs[name].itemsize}")
        lower = rng.integers(0, 1 << 16 if bits.itemsize == 4 else 2, bits.shape, bits.dtype)
        yield f"other lower bits in {name}", {**inputs, name: (bits ^ lower).view(inputs[name].dtype)}


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


def _dust(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Keep few products, and make the others so small that no sum has them: rows that do not look sparse."""
    kept, _, growth = _few(problem, a, b, rng)
    return np.where(kept == 0, a * 2.0**-60, kept), b, growth


def _one_large(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Make one product of each sum large, and all of one sign: what is left out beside it is missed.

    A sum that cuts what lies below it, as that of tensor cores and of kernels in terms of a smaller type,
    is always cut the same way: its errors add up, and a quarter of a rounding a product is allowed.
    """
    a, b = np.abs(a) * np.exp2(rng.integers(-21, -18, a.shape).astype(np.float64)), np.abs(b) + 0.5
    a[np.arange(problem.M), rng.integers(problem.K, size=problem.M)] = rng.uniform(1, 2, problem.M)
    return a, b, max(_growth(problem.K + 3), problem.K / 4)


def _scaled(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Scale rows of A and columns of B, so that results lie between 2^-88 and 2^116, about."""
    scales = []
    for extent, low, high in ((problem.M, -20, 44), (problem.N, -68, 72)):
        powers = rng.integers(low, high + 1, extent).astype(np.float64)
        powers[rng.integers(extent)], powers[rng.integers(extent)] = low, high
        scales.append(np.exp2(powers))
    return a * scales[0][:, None], b * scales[1], None


def _integers(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Take integers whose sums float32 has exactly."""
    a, b = (rng.integers(-n, n + 1, m.shape).astype(np.float64) for n, m in ((1023, a), (2, b)))
    return 2 * a + 1, b, _growth(4)


def _zero_rows(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Make rows of A and columns of B zero, the first ones among them."""
    rows, columns = (rng.random(n) < 0.5 for n in (problem.M, problem.N))
    rows[0] = columns[0] = True
    rows[-1] = columns[-1] = False
    a[rows], b[:, columns] = 0, 0
    return a, b, None


def _alike(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Begin B as A begins."""
    rows, columns = min(problem.M, problem.K), min(problem.K, problem.N)
    b[:rows, :columns] = a[:rows, :columns]
    return a, b, None


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


_UNEVEN = {"scaled rows and columns", "zero rows and columns"}  # few elements have all of the mean error
_STYLES: dict[str, _Style] = {
    "few products": _few,
    "few products among dust": _dust,
    "one large product": _one_large,
    "wide exponents": _wide,
    "scaled rows and columns": _scaled,
    "the last product": _last,
    "integers": _integers,
    "zero rows and columns": _zero_rows,
    "B begins as A": _alike,
    "permutation": _permutation,
    "one sign": _one_sign,
    "cancellation": _cancelling,
    "identity": _identity,
    "constant rows": _constant,
    "subnormal": _subnormal,
    "infinity and NaN": _one_sign,  # made by `_unbounded`
    **rare.STYLES,
}
