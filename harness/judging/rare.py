"""Inputs that random ones never are: numbers, neighbours, rows and results that a kernel may treat apart.

A kernel that is wrong for one number in millions is right on any random data that a judge can afford. So such
numbers are put at random places among random ones: zeros of both signs, powers of two, integers, and numbers
of few bits. Elements are made equal to a neighbour or to a factor of the other matrix, and rows begin as
others do; sums nearly cancel, and results are as large and as small as float32 has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from harness.problems.gemm import Gemm

Matrix = NDArray[np.float64]
Styled = tuple[Matrix, Matrix, float | None]
Style = Callable[[Gemm, Matrix, Matrix, np.random.Generator], Styled]

TINY = "results below 2^-126"  # which atomic additions in global memory flush to zero (PTX ISA)
_SHARE, _CORNERS = 1 / 16, 1 / 2  # of all elements, and of those at multiples of _TILE
_TILE = 8
_NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 2.0, -0.5, 0.25, -0.125, 3.0, -5.0, 7.0, 10.0, -16.0, 100.0, 1.5, -2.75, 0.1, 1 / 3,
    1 + 2.0**-7, -1 - 2.0**-10, 2.0**-6, -(2.0**-12), 1e-3, 255.0, -256.0,
)  # fmt: skip


def _places(matrix: Matrix, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw places in a matrix, more of them where tiles may begin."""
    chance = np.full(matrix.shape, _SHARE)
    chance[::_TILE, ::_TILE] = _CORNERS
    found: NDArray[np.bool_] = rng.random(matrix.shape) < chance
    return found


def _special(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Put special numbers at random places."""
    for matrix in (a, b):
        matrix[...] = np.where(_places(matrix, rng), rng.choice(_NUMBERS, matrix.shape), matrix)
    return a, b, None


def _equal(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Make elements equal to the one before, in their row and in their column, or to a factor of theirs."""
    for matrix in (a, b):
        for axis in (0, 1):
            matrix[...] = np.where(_places(matrix, rng), np.roll(matrix, 1, axis), matrix)
    for at in np.flatnonzero(rng.random(problem.K) < 4 * _SHARE):
        row = rng.integers(problem.M)
        columns = rng.random(problem.N) < 0.5
        b[at, columns] = a[row, at] * rng.choice((-1, 1), int(columns.sum()))
    return a, b, None


def _beginnings(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Begin rows of A and columns of B as the ones before begin."""
    end = max(1, problem.K // 2)
    for row in range(1, problem.M):
        if rng.random() < 0.5:
            a[row, :end] = a[row - 1, :end]
    for column in range(1, problem.N):
        if rng.random() < 0.5:
            b[:end, column] = b[:end, column - 1]
    return a, b, None


def _symmetric(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Make the corners of both matrices symmetric."""
    for matrix in (a, b):
        size = min(matrix.shape)
        corner = np.tril(matrix[:size, :size])
        matrix[:size, :size] = corner + np.tril(corner, -1).T
    return a, b, None


def _ordered(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Sort rows of A and columns of B, each up or down."""
    a, b = np.sort(a, 1), np.sort(b, 0)
    down = rng.random(problem.M) < 0.5
    a[down] = a[down, ::-1]
    return a, b[::-1], None


def _nearly(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Let each sum cancel but for a thousandth of what it is a sum of."""
    half = problem.K // 2
    a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half] * (1 + 2.0**-10), b[:half]
    a[:, 2 * half :] *= 2.0**-10
    return a, b, None


def _large(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Make results as large as they can be where no sum of magnitudes overflows, half of them of one sign."""
    b, alike = np.abs(b), rng.random(problem.M) < 0.5
    a[alike] = np.abs(a[alike]) * rng.choice((-1, 1), (int(alike.sum()), 1))
    most = (np.abs(a) @ np.abs(b)).max() or 1.0
    power = 126 - math.ceil(math.log2(most))
    return a * 2.0 ** (power // 2), b * 2.0 ** (power - power // 2), None


def _tiny(problem: Gemm, a: Matrix, b: Matrix, rng: np.random.Generator) -> Styled:
    """Make results subnormal, and no factor; they stay far above the least number."""
    power = -128 - math.ceil(math.log2(problem.K) / 2)
    return a * 2.0 ** (power // 2), b * 2.0 ** (power - power // 2), None


# Those of float32 alone: other types have neither such results nor sums that cancel so far.
STYLES: dict[str, Style] = {
    "special numbers at random places": _special,
    "equal neighbours": _equal,
    "rows that begin alike": _beginnings,
    "symmetric corners": _symmetric,
    "sorted rows and columns": _ordered,
    "sums that nearly cancel": _nearly,
    "results near the largest number": _large,
    TINY: _tiny,
}
FLOAT32 = ("sums that nearly cancel", "results near the largest number", TINY)
