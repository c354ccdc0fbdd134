"""The bounds of a matrix product, against the formulas of `harness.problems.bounds` summed one element at a
time in plain Python, and where numbers overflow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.kernels.dtypes import DTYPES, FP16, FP32, DType
from harness.problems.bounds import _overflowing, product
from harness.problems.protocol import Reference

Rows = list[list[float]]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def formulas(dtype: DType, a: Rows, b: Rows, c: Rows | None, alpha: float, beta: float) -> tuple[Any, ...]:
    """Return the result, the bound of each element and the bound of the rms, as the docstring has them."""
    m, n, k = len(a), len(b[0]), len(b)
    a = [[alpha * x for x in row] for row in a]
    c = c if c is not None and beta else [[0.0] * n for _ in range(m)]
    v, terms = 2.0**-dtype.reads, k + 3
    g = min(terms, 4 * terms**0.5) * dtype.accumulate
    tiny = terms * 2.0**-149
    results, bounds, partial, halves, beside = [], [], [], [], []
    for i in range(m):
        for j in range(n):
            terms_of = [a[i][p] * b[p][j] for p in range(k)]
            result = math.fsum(terms_of) + beta * c[i][j]
            magnitude = math.fsum(map(abs, terms_of))
            x = math.sqrt(math.fsum(t * t for t in terms_of))
            bound = g * (magnitude + abs(beta * c[i][j])) + tiny
            if dtype.reads < dtype.precision:
                bound += min((2 * v + v * v) * magnitude, 8 * (2 / 3) ** 0.5 * (1 + v) * v * x)
            row, column = [abs(x) for x in a[i]], [abs(b[p][j]) for p in range(k)]
            largest = max(row) * math.fsum(column) + max(column) * math.fsum(row)
            beside.append(dtype.beside_largest * largest)
            results.append(result)
            bounds.append(bound + beside[-1])
            partial.append(x)
    rms = g * math.sqrt(mean([x * x for x in partial]) + mean([d * d for d in results])) + tiny
    rms += math.sqrt(mean([x * x for x in beside]))
    if dtype.reads < dtype.precision:
        f = m * n * k / (k + max(m, n))
        rms += (2 / 3) ** 0.5 * v * math.sqrt(mean([x * x for x in partial])) * (1 + 6 / f**0.5)
    if dtype.itemsize == 2:
        for at, result in enumerate(results):
            exponent = max(math.frexp(abs(result) + bounds[at])[1] - 1, dtype.emin)
            halves.append(2.0 ** (exponent - dtype.precision))
            bounds[at] += halves[-1]
        rms += math.sqrt(mean([h * h for h in halves]) / 3) * (1 + 6 / (m * n) ** 0.5)
    return np.reshape(results, (m, n)), np.reshape(bounds, (m, n)), rms


def holds(dtype: DType, a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
    expected, bound, rms = formulas(
        dtype, a.tolist(), b.tolist(), None if c is None else c.tolist(), alpha, beta
    )
    found = product(dtype, a.copy(), b.copy(), c, alpha=alpha, beta=beta)
    np.testing.assert_allclose(found.expected, expected, rtol=1e-9, atol=1e-12 * bound.max())
    np.testing.assert_allclose(found.bound, bound, rtol=1e-9)
    assert found.rms_bound == pytest.approx(rms, rel=1e-9, abs=0) and found.dtype is dtype


sizes = st.integers(1, 6)
scalars = st.sampled_from([0.0, 1.0, -1.0, 0.5, -3.25, 7.0])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(DTYPES.values())), sizes, sizes, st.integers(1, 40), scalars, scalars,
    st.booleans(), st.sampled_from([1.0, 1e-3, 1e-23]), st.integers(0, 99),
)  # fmt: skip
def test_the_bounds_are_those_of_the_formulas(
    dtype: DType, m: int, n: int, k: int, alpha: float, beta: float, has_c: bool, scale: float, seed: int
) -> None:
    """At 1e-23 products are subnormal, and what counts is the absolute term."""
    rng = np.random.default_rng(seed)
    a, b, c = (scale * rng.normal(size=s) for s in ((m, k), (k, n), (m, n)))
    holds(dtype, a, b, c if has_c else None, alpha, beta)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_an_uneven_product_of_each_type(dtype: DType) -> None:
    """M, N and K differ, beta is neither 0 nor 1, alpha is negative, C is large and of both signs: without
    beta in the bound, with n = K + 2, or with M for N, it is another.
    """
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, 11)), rng.normal(size=(11, 5)), 100 * rng.normal(size=(3, 5))
    holds(dtype, a, b, c, -1.5, 0.25)
    holds(dtype, np.abs(a), np.abs(b), c, 2.0, -8.0)
    holds(dtype, rng.normal(size=(4, 300)), rng.normal(size=(300, 2)), None, 1.0, 0.0)


def test_the_bound_of_one_product_by_hand() -> None:
    """K = 1: four roundings at most, of 3 * 5 and of 0.5 * 8."""
    found = product(FP32, np.array([[3.0]]), np.array([[5.0]]), np.array([[8.0]]), alpha=-2.0, beta=0.5)
    assert found.expected.item() == -26.0
    assert found.bound.item() == pytest.approx(4 * 2.0**-24 * (2 * 3 * 5 + 4), rel=1e-12)
    assert found.rms_bound == pytest.approx(4 * 2.0**-24 * math.hypot(30, -26), rel=1e-12)


def test_defaults_are_a_plain_product() -> None:
    found = product(FP32, np.array([[3.0]]), np.array([[5.0]]), np.array([[math.nan]]))
    assert found.expected.item() == 15.0  # and C is not read


def test_a_beta_of_zero_reads_no_c() -> None:
    a, b = np.array([[3.0]]), np.array([[5.0]])
    assert product(FP32, a, b, np.array([[math.nan]]), alpha=1.0, beta=0.0).expected.item() == 15.0


def test_the_spacing_is_that_of_the_largest_result_within_the_bound() -> None:
    """A result just below 1 may be computed as 1, above which bf16 has half as many numbers."""
    below = np.array([[1 - 2.0**-24]])
    found = product(DTYPES["bf16"], below, np.array([[1.0]]), None)
    assert found.bound.item() == pytest.approx(2.0**-8, rel=1e-3)


# ---- overflow ---------------------------------------------------------------------------------------


def test_what_overflows_for_certain_and_what_may() -> None:
    edge = FP16.overflow
    expected = np.array([1.0, edge - 8, -edge - 8, edge + 8, -edge + 8, edge + 2])
    reference = Reference(
        expected=expected, bound=np.array([9.0, 4.0, 4.0, 8.0, 8.0, 4.0]), rms_bound=1.0, dtype=FP16
    )
    found = _overflowing(FP16, reference)
    assert found.expected.tolist() == [1.0, edge - 8, -math.inf, math.inf, -edge + 8, edge + 2]
    assert found.bound.tolist() == [9.0, 4.0, 0.0, 0.0, math.inf, math.inf]
    assert found.rms_bound is None and found.dtype is FP16


@pytest.mark.parametrize("sign", [1, -1])
def test_the_edge_itself_overflows(sign: int) -> None:
    below = Reference(expected=np.array([sign * 65000.0]), bound=np.array([519.0]), rms_bound=2.0, dtype=FP16)
    assert _overflowing(FP16, below) is below
    edge = Reference(expected=np.array([sign * 65000.0]), bound=np.array([520.0]), rms_bound=2.0, dtype=FP16)
    assert _overflowing(FP16, edge).bound.item() == math.inf


def test_a_product_that_overflows() -> None:
    found = product(FP16, np.array([[300.0, 0.0], [1.0, 1.0]]), np.array([[-300.0], [2.0]]), None)
    assert found.expected.ravel().tolist() == [-math.inf, -298.0] and found.bound[0, 0] == 0.0
    assert 0 < found.bound[1, 0] < 1 and found.rms_bound is None and found.dtype is FP16
