"""Error bounds of a correct matrix product, by element type.

Three errors add up. Each has a bound for every element and one for the root mean square (rms) of all errors,
which is much tighter. Below, n = K + 3, |A||B| is the product of the matrices of magnitudes, and x is the
elementwise square root of (A*A)(B*B), with ``*`` elementwise: the size of a typical partial sum. alpha is
taken as part of A, and beta C adds to |A||B|.

**Summing** K products in float32 for all types, with three more roundings for alpha, beta and C::

    |err| <= g |A||B|        g = min(n, 4 sqrt(n)) * u      u = 2^-24, on tensor cores 2^-23
    rms   <= g rms(sqrt(x^2 + D^2))                         D the expected result

The n term is the worst case of any order of summation (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., eq. 3.5, to first order). The square root is the probabilistic bound of Higham and Mary
(SIAM J. Sci. Comput. 41, 2019, A2815) with lambda = 4. On random data float32 stays some 15 standard
deviations inside it, while a sum of 4096 that lacks one term does not; the worst case alone would not detect
that. Tensor cores truncate, so their errors have a mean: at most u/2 of a partial sum every 8 products. Where
partial sums grow like sqrt(K), that is a tenth of g at most. On data of one sign it reaches g at K = 2^15;
beyond that this bound does not hold for tensor cores.

**Reading** float32 as tf32 rounds each input to nearest with unit roundoff v = 2^-11 (v = 2^-22 for 3xtf32,
which uses three products). Each product changes by a factor (1 + d)(1 + e)::

    |err| <= min((2 v + v^2) |A||B|, 8 sqrt(2/3) (1 + v) v x)
    rms   <= sqrt(2/3) v rms(x) * (1 + 6 / sqrt(f)),        f = M N K / (K + max(M, N))

d and e are spread evenly over [-v, v] at most. They are therefore sub-Gaussian with variance v^2/3, and so
are sums of them (Vershynin, High-Dimensional Probability, prop. 2.6.1). The elementwise bound is eight
standard deviations, exceeded by one element in 10^14. Standard normal data comes to 0.60 v rms(x). Truncating
the inputs instead of rounding them comes to 1.56 v rms(x), because it shifts every product towards zero, and
exceeds the rms bound as long as sqrt(K) < 400 and f is large. f estimates how many independent errors the
mean is made of: fewer than there are elements, since each rounded input takes part in many.

fp16x3 (v = 2^-22) scales rows of A and columns of B by powers of two until their largest element is 2^14 or
more, and what it has of them then are multiples of 2^-24. So each element has an error of up to w = 2^-39 of
the largest, too. With R the largest of a row of A, and S that of a column of B::

    |err| <= w (R sum_k |b| + S sum_k |a|)

Where a row spans fewer than 17 octaves, that is no more than rounding adds.

**Writing** the result in the type, with h half the distance between adjacent numbers of the type at the
result, subnormal ones included::

    |err| <= h,    rms <= rms(h) / sqrt(3) * (1 + 6 / sqrt(M N))

A rounding error spread evenly over [-h, h] has that rms. A result that is truncated, or rounded more than
once (partial sums over k added up in bf16, say), has a larger one. For float32 this rounding is already among
those of the sum.

**An epilogue** comes before that rounding. An activation enlarges errors by its largest slope, below 1.13; so
does its derivative as a factor.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness.kernels.dtypes import DType
from harness.kernels.epilogue import STEEPEST, Epilogue
from harness.problems.protocol import Reference

Matrix = NDArray[np.float64]

_SPREAD = math.sqrt(2 / 3)  # standard deviation of d + e, in units of v
_SIGMAS, _RMS_SIGMAS = 8, 6  # allowed standard deviations: for one element, for the root mean square


def product(
    dtype: DType, a: Matrix, b: Matrix, c: Matrix | None, *, alpha: float = 1.0, beta: float = 0.0
) -> Reference:
    """Return ``alpha a b + beta c`` in float64 with the error bounds that the module derives.

    a is M x K, b is K x N and c is M x N; c is not read if it is None or beta is 0. a and b are overwritten.
    """
    (m, k), n = a.shape, b.shape[1]
    g, tiny = summing(dtype, k), smallest(k)
    expected = a @ b
    expected *= alpha
    # The mean over all elements of (A*A)(B*B), without forming that matrix.
    squares = float(np.mean(a * a, axis=0) @ np.mean(b * b, axis=1)) * alpha**2
    typical = _typical(a, b, abs(alpha)) if dtype.reads < dtype.precision else None
    bound = np.abs(a, out=a) @ np.abs(b, out=b)
    bound *= abs(alpha)
    beside = _beside_largest(a, b, dtype.beside_largest * abs(alpha)) if dtype.beside_largest else None
    worst = bound * (2 * _unit(dtype) + _unit(dtype) ** 2) if typical is not None else None
    if c is not None and beta:
        expected += beta * c
        bound += np.abs(beta * c)
    bound *= g
    bound += tiny
    if beside is not None:
        bound += beside
    outputs, halves = float(np.mean(np.square(expected))), 0.0
    if typical is not None and worst is not None:
        typical *= _SIGMAS * _SPREAD * (1 + _unit(dtype)) * _unit(dtype)
        bound += np.minimum(worst, typical)
    if dtype.itemsize < 4:
        half = dtype.half_spacing(np.abs(expected) + bound)
        halves = float(np.mean(np.square(half)))
        bound += half
    rms = root_mean_square(dtype, (m, n, k), squares=squares, outputs=outputs, halves=halves)
    if beside is not None:
        rms += math.sqrt(float(np.mean(np.square(beside))))
    return _overflowing(dtype, Reference(expected=expected, bound=bound, rms_bound=rms, dtype=dtype))


def finished(plain: Reference, epilogue: Epilogue, operand: Matrix | None, dtype: DType) -> Reference:
    """Return the reference of a product with an epilogue, stored as `dtype`, from that in float32.

    The bias is one addition more, and the activation is computed in float32, to within 2^-20 of its argument.
    A derivative is computed to within 2^-20. There is no rms bound.
    """
    arguments, expected = plain.expected, epilogue.finish(plain.expected, operand)
    if epilogue.bias:
        arguments = Epilogue(epilogue.bias).finish(arguments, operand)
    bound = STEEPEST * plain.bound + 2.0**-20 * (np.abs(arguments) + np.abs(plain.expected))
    if dtype.itemsize < 4:
        bound += dtype.half_spacing(np.abs(expected) + bound)
    return _overflowing(dtype, Reference(expected=expected, bound=bound, dtype=dtype))


def summing(dtype: DType, k: int) -> float:
    """Return g of the module's docstring: the relative error of a sum of k products."""
    terms = k + 3
    return min(terms, 4 * math.sqrt(terms)) * dtype.accumulate


def smallest(k: int) -> float:
    """Return the error of a sum of k products below float32's normal range, where accuracy is absolute."""
    return (k + 3) * 2.0**-149


def reading(dtype: DType) -> float:
    """Return v of the module's docstring where the type's products round their inputs, else 0."""
    return _unit(dtype) if dtype.reads < dtype.precision else 0.0


def root_mean_square(
    dtype: DType, sizes: tuple[int, int, int], *, squares: float, outputs: float, halves: float
) -> float:
    """Return the bound on the rms of all errors of an M x N result of K products; `sizes` are M, N, K.

    The arguments are means over all elements: `squares` of x^2, `outputs` of the squared result, and `halves`
    of h^2, 0 for float32, in the symbols of the module's docstring.
    """
    m, n, k = sizes
    rms = summing(dtype, k) * math.sqrt(squares + outputs) + smallest(k)
    independent = m * n * k / (k + max(m, n))
    rms += _SPREAD * reading(dtype) * math.sqrt(squares) * (1 + _RMS_SIGMAS / math.sqrt(independent))
    return rms + math.sqrt(halves / 3) * (1 + _RMS_SIGMAS / math.sqrt(m * n))


def _unit(dtype: DType) -> float:
    """Return v, the unit roundoff with which a product reads its inputs."""
    return 2.0**-dtype.reads


def _typical(a: Matrix, b: Matrix, alpha: float) -> Matrix:
    """Return x of the module's docstring, the size of a typical partial sum of each element."""
    squares = np.square(a) @ np.square(b)
    np.sqrt(squares, out=squares)
    squares *= alpha
    return squares


def _beside_largest(a: Matrix, b: Matrix, unit: float) -> Matrix:
    """Return the error of inputs with errors of `unit` of the largest of their row of a or column of b.

    a and b hold magnitudes.
    """
    found: Matrix = np.outer(np.max(a, axis=1), np.sum(b, axis=0))
    found += np.outer(np.sum(a, axis=1), np.max(b, axis=0))
    found *= unit
    return found


def _overflowing(dtype: DType, found: Reference) -> Reference:
    """Adapt a reference to the largest number of the type.

    An element is expected to be infinite if its result overflows for certain, and gets an infinite bound
    (nothing is checked) if it may overflow. In either case there is no rms bound. Other references are
    returned as they are.
    """
    magnitude = np.abs(found.expected)
    if not float(np.max(magnitude + found.bound)) >= dtype.overflow:
        return found
    surely = magnitude - found.bound >= dtype.overflow
    expected = np.where(surely, np.copysign(np.inf, found.expected), found.expected)
    bound = np.where(magnitude + found.bound >= dtype.overflow, np.inf, found.bound)
    return Reference(expected=expected, bound=np.where(surely, 0.0, bound), dtype=dtype)
