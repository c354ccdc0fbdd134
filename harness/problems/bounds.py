"""How far a correct product may lie from the exact one, by element type.

Three errors add up, each with a bound for every element and one for the root mean square (rms) of all, which
is much tighter. Below n = K + 3, |A||B| is the product of magnitudes, and x the square root of (A*A)(B*B),
``*`` elementwise: the size of a typical partial sum. alpha is part of A, beta C adds to |A||B|.

**Summing**, in float32 for all types, K products and three roundings for alpha, beta and C::

    |err| <= g |A||B|        g = min(n, 4 sqrt(n)) * u      u = 2^-24, on tensor cores 2^-23
    rms   <= g rms(sqrt(x^2 + D^2))                         D the expected result

The n term is the worst case of any order (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
eq. 3.5, to first order). The square root is the probabilistic bound of Higham and Mary (SIAM J. Sci. Comput.
41, 2019, A2815) with lambda = 4: on random data float32 stays some 15 standard deviations inside it, while
one dropped term of a sum of 4096 does not; the worst case alone lets that through. Tensor cores truncate, so
their errors have a mean: at most u/2 of a partial sum every 8 products. Where partial sums grow like sqrt(K)
that is a tenth of g at most; data of one sign reaches g at K of 2^15, and from there on is not served.

**Reading** float32 as tf32, v = 2^-11 (in three products, v = 2^-22), to nearest: each product changes by a
factor (1 + d)(1 + e)::

    |err| <= min((2 v + v^2) |A||B|, 8 sqrt(2/3) (1 + v) v x)
    rms   <= sqrt(2/3) v rms(x) * (1 + 6 / sqrt(f)),        f = M N K / (K + max(M, N))

d and e are spread evenly over [-v, v] at most, hence sub-Gaussian with variance v^2/3, and so are sums of
them (Vershynin, High-Dimensional Probability, prop. 2.6.1): eight standard deviations, passed by one element
in 10^14. Standard normal data comes to 0.60 v rms(x). Bits cut off instead of rounded come to 1.56 v, because
they shift every product towards zero, and pass no rms bound here while sqrt(K) < 400 and f is large. f counts
how many errors the mean is made of, fewer than elements, for each rounded input has a part in many.

**Writing** in the type, h = half the distance between its numbers at the result, subnormal ones included::

    |err| <= h,    rms <= rms(h) / sqrt(3) * (1 + 6 / sqrt(M N))

Rounding evenly spread over [-h, h] has that rms; a result that is truncated, or rounded once more on its way
(parts of k added up in bf16), more. float32's own is among the roundings of the sum.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness.kernels.dtypes import DType
from harness.problems.protocol import Reference

Matrix = NDArray[np.float64]

_SPREAD = math.sqrt(2 / 3)  # standard deviation of d + e, in v
_SIGMAS, _RMS_SIGMAS = 8, 6


def product(
    dtype: DType, a: Matrix, b: Matrix, c: Matrix | None, *, alpha: float = 1.0, beta: float = 0.0
) -> Reference:
    """``alpha a b + beta c`` in float64 with the bounds above; c None: it is not read. Overwrites a and b."""
    (m, k), n = a.shape, b.shape[1]
    terms = k + 3
    g = min(terms, 4 * math.sqrt(terms)) * dtype.accumulate
    tiny = terms * 2.0**-149  # below float32's normal range accuracy is absolute, not relative
    expected = a @ b
    expected *= alpha
    # The mean over all elements of (A*A)(B*B), without forming it.
    squares = float(np.mean(a * a, axis=0) @ np.mean(b * b, axis=1)) * alpha**2
    typical = _typical(a, b, abs(alpha)) if dtype.reads < dtype.precision else None
    bound = np.abs(a, out=a) @ np.abs(b, out=b)
    bound *= abs(alpha)
    worst = bound * (2 * _unit(dtype) + _unit(dtype) ** 2) if typical is not None else None
    if c is not None and beta:
        expected += beta * c
        bound += np.abs(beta * c)
    bound *= g
    bound += tiny
    rms = g * math.sqrt(squares + float(np.mean(np.square(expected)))) + tiny
    if typical is not None and worst is not None:
        typical *= _SIGMAS * _SPREAD * (1 + _unit(dtype)) * _unit(dtype)
        bound += np.minimum(worst, typical)
        independent = m * n * k / (k + max(m, n))
        rms += _SPREAD * _unit(dtype) * math.sqrt(squares) * (1 + _RMS_SIGMAS / math.sqrt(independent))
    if dtype.itemsize < 4:
        half = dtype.half_spacing(np.abs(expected) + bound)
        rms += math.sqrt(float(np.mean(np.square(half))) / 3) * (1 + _RMS_SIGMAS / math.sqrt(m * n))
        bound += half
    return _overflowing(dtype, Reference(expected=expected, bound=bound, rms_bound=rms, dtype=dtype))


def _unit(dtype: DType) -> float:
    return 2.0**-dtype.reads


def _typical(a: Matrix, b: Matrix, alpha: float) -> Matrix:
    """x of the module's docstring."""
    squares = np.square(a) @ np.square(b)
    np.sqrt(squares, out=squares)
    squares *= alpha
    return squares


def _overflowing(dtype: DType, found: Reference) -> Reference:
    """Where the result is sure to be beyond the type, infinity is expected; where it may be, no bound is
    kept. Then nothing can be said of a mean.
    """
    magnitude = np.abs(found.expected)
    if not float(np.max(magnitude + found.bound)) >= dtype.overflow:
        return found
    surely = magnitude - found.bound >= dtype.overflow
    expected = np.where(surely, np.copysign(np.inf, found.expected), found.expected)
    bound = np.where(magnitude + found.bound >= dtype.overflow, np.inf, found.bound)
    return Reference(expected=expected, bound=np.where(surely, 0.0, bound), dtype=dtype)
