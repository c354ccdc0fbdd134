"""Verify matrix products on the GPU by Freivalds' algorithm, at the cost of reading the operands once.

For a vector x of random signs, ``C x`` must be ``alpha A (B x) + beta C0 x`` (R. Freivalds, Probabilistic
machines can use less running time, IFIP 1977). Both sides are computed in float64. x is drawn after C was
computed. The residual of row i is then the sum of its errors with random signs, ``r_i = sum_j e_ij x_j``,
where ``e_ij`` does not depend on x. Two tests follow. Symbols are those of `harness.problems.bounds`.

**Every row.** By Hoeffding's inequality ``P(|r_i| > t ||e_i||) <= 2 exp(-t^2 / 2)``, with the Euclidean norm
of the row's errors. With t = 8 a right row fails once in 10^13. The norm is bounded by three terms, which are
added::

    summing    sqrt(N) g sqrt(x_i^2 + D_i^2)        x_i^2 = alpha^2 sum_k a_ik^2 mean_j b_kj^2
                                                    D_i^2 = mean_j c_ij^2
    reading    v / sqrt(3) sqrt(sum_k (alpha a_ik)^2 ((B x)_k^2 + sum_j b_kj^2))
    writing    sqrt(sum_j h_ij^2)

The first is the model for the rms of errors, row by row. The second is exact: what rounding the inputs to
tf32 adds to ``r_i`` is a sum of independent errors of variance v^2/3 at most, each with a known factor. The
third bounds the rounding of each result. One wrong element is found if its error exceeds t times the sum,
which is about 1% of a typical element in float32 at N = K = 4096 and most of one in bf16. A wrong tile
exceeds it by far in either.

**All rows together.** ``sum_i r_i^2`` is a quadratic form in x, whose mean is the sum of all squared errors.
``exp`` of it has an expectation no larger than for a normal x, so that for independent errors in f directions
it exceeds its mean by a factor of ``1 + 2 sqrt(a / f) + 2 a / f`` with probability exp(-a) (Laurent and
Massart, Ann. Statist. 28, 2000, lemma 1); a is 25. The mean is held against the rms bound of `bounds`, which
is much tighter than that of a row: it finds results of lower precision. f is ``M K / (M + K)`` for each
launch, since a rounded element of A or B takes part in a whole row or column.

A NaN fails both tests. Elements that overflow cannot be told from wrong ones, so products whose results
come near the largest number of the type are not verified in this way (`applies`).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.driver import Buffer, Stream
from harness.kernels.dtypes import DType
from harness.launch.fresh import normal
from harness.launch.fresh.code import KINDS, Code, derive
from harness.problems import bounds
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.protocol import Problem, Reference
from harness.problems.verify import Verdict, compare
from harness.support.resources import Closing

SIGMAS = 8.0  # t of the module's docstring
_RARE = 25.0  # a of the module's docstring
_ROWS = 128  # rows that are verified by element on the host
_ROW = 32  # threads for a row
_SUMS = ("residuals", "products", "outputs", "halves")
_COUNTS = ("bad", "first_bad", "worst", "wrong_a", "first_a", "wrong_b", "first_b", "stray")
_FOUND = np.dtype([*((name, "f8") for name in _SUMS), *((name, "u8") for name in _COUNTS)])  # of fresh.cu


def applies(problem: Problem) -> bool:
    """Return True for products of random matrices, defined as in `GEMMS`, that stay clear of overflow."""
    if not isinstance(problem, Gemm) or type(problem) not in GEMMS.values():
        return False
    # No product of two elements exceeds LARGEST^2, and no sum of K of them LARGEST^2 sqrt(K) by far.
    sums = abs(problem.alpha) * normal.LARGEST**2 * math.sqrt(problem.K)
    return sums + abs(problem.beta) * normal.LARGEST < problem.dtype.overflow / 4


def limit(dtype: DType, sizes: tuple[int, int, int], launches: int, found: NDArray[Any]) -> float:
    """Return the rms of the residuals over what it may be: right results stay below 1.

    `sizes` are M, N, K, `found` the records of fresh.cu, which hold the sums over `launches` launches.
    """
    m, n, k = sizes
    elements = launches * m * n
    sums = {name: float(found[name].sum()) for name in _SUMS}
    if not all(map(math.isfinite, sums.values())):
        return math.inf
    rms = bounds.root_mean_square(
        dtype,
        (launches * m, n, k),
        squares=sums["products"] / elements,
        outputs=sums["outputs"] / elements,
        halves=sums["halves"] / elements,
    )
    independent = launches * m * k / (m + k)
    spread = 1 + 2 * math.sqrt(_RARE / independent) + 2 * _RARE / independent
    return math.sqrt(sums["residuals"] / elements) / (rms * math.sqrt(spread))


def said(problem: Gemm, launches: int, found: NDArray[Any]) -> str:
    """Return in words what is wrong with these launches, by the records of fresh.cu; empty if nothing is."""
    for name, ld in (("a", problem.lda), ("b", problem.ldb)):
        if (damaged := found[f"wrong_{name}"]).any():
            row, column = divmod(_first(found[f"first_{name}"][damaged > 0]), ld)
            count = damaged.sum()
            return f"it overwrote its input {name.upper()}: {count} elements, one of them [{row},{column}]"
    if (bad := found["bad"]).any():
        row = _first(found["first_bad"][bad > 0])
        worst = found["worst"].max().view("f8")
        return (
            f"on new data {bad.sum()} of {launches * problem.M} rows of C are wrong, one of them row {row}: "
            f"the error is {worst:.3g} times its bound (Freivalds' algorithm)"
        )
    if found["stray"].any():
        return f"{found['stray'].sum()} elements of C's padding were written"
    return imprecise(problem, launches, found)


def imprecise(problem: Gemm, launches: int, found: NDArray[Any]) -> str:
    """Return in words that all errors together are too large; empty if they are not."""
    share = limit(problem.dtype, (problem.M, problem.N, problem.K), launches, found)
    if share <= 1:
        return ""
    return (
        "on new data each row of C is within its bound, but the errors' root mean square is "
        f"{share:.3g} times what {problem.dtype.name} gives"
    )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One launch's operands, downloaded to be verified by element on the host.

    `a` has the chosen rows of op(A), `c` and `before` those of C with its padding, and `b` is B as stored.
    """

    problem: Gemm
    a: NDArray[Any]
    b: NDArray[Any]
    c: NDArray[Any]
    before: NDArray[Any]

    def verdict(self) -> Verdict:
        """Compare the chosen rows of C with their float64 reference."""
        problem, dtype = self.problem, self.problem.dtype
        found = bounds.product(
            dtype,
            dtype.decode(self.a),
            dtype.decode(problem.right(self.b)),
            dtype.decode(self.before[:, : problem.N]) if problem.beta else None,
            alpha=float(np.float32(problem.alpha)),
            beta=float(np.float32(problem.beta)),
        )
        # The rms of a few rows may exceed that of all; what all rows have was tested on the GPU.
        reference = Reference(expected=found.expected, bound=found.bound, dtype=dtype)
        return compare(self.c, reference, self.before)


class Products(Closing):
    """New random matrices for every launch of a product, verified by Freivalds' algorithm.

    `buffers` has the operands A, B and C of each set. `refresh` fills those of the first sets, `verify`
    checks them after the launches, and `wrong` says what was found.
    """

    label = "new random data for each launch, verified by Freivalds' algorithm"
    rounds = 50

    def __init__(
        self, code: Code, problem: Gemm, buffers: Sequence[Mapping[str, Buffer]], stream: Stream, *, seed: int
    ) -> None:
        self._code, self.problem, self.buffers, self._seed = code, problem, buffers, seed
        self._number = self._launches = 0  # of refreshes so far; of launches since the last `wrong`
        self._key = 0
        self._so_far, self._all = np.zeros(1, _FOUND), 0  # sums over all launches, and their number
        self._evidence: Evidence | None = None
        p, dtype, sets = problem, problem.dtype, len(buffers)
        context = code.context
        # C holds what is multiplied by beta, or numbers as large as results: no value marks a fresh one.
        alpha, beta = float(np.float32(p.alpha)), float(np.float32(p.beta))
        self._scale = 1.0 if beta else max(abs(alpha) * math.sqrt(p.K), 2.0**dtype.emin)
        shapes = [(name, x.rows, x.columns, x.ld, 1.0) for name, x in p.layouts().items() if name != "C"]
        shapes.append(("C", p.M, p.ldc, p.ldc, self._scale))  # its padding, too
        kind, u64, u32, f64 = np.uint32(KINDS[dtype.storage]), np.uint64, np.uint32, np.float64
        with ExitStack() as owned:
            tables = {
                name: owned.enter_context(code.table([copy[name].ptr for copy in buffers], stream))
                for name in "ABC"
            }
            words = owned.enter_context(Buffer(context, 4 * -(-p.N // 32)))
            y, q = (owned.enter_context(Buffer(context, 8 * p.K * sets)) for _ in range(2))
            self._found = owned.enter_context(Buffer(context, _FOUND.itemsize * sets))
            self._fills = []
            for i, (name, rows, columns, ld, scale) in enumerate(shapes):
                matrix = [tables[name], u64(rows), u64(columns), u64(ld), u64(0)]
                arguments = [*matrix, np.float32(scale), u32(i), kind, u32(0)]
                self._fills.append(code.prepare("fill", -(-rows * ld // 4), arguments, sets=sets))
            self._signs = code.prepare("signs", -(-p.N // 32), [words, u64(-(-p.N // 32)), u64(0)])
            sizes = [u64(p.K), u64(p.N), u64(p.ldb)]
            self._project = code.prepare(
                "project",
                _ROW * (p.ldb if p.transb else p.K),
                [tables["B"], words, y, q, self._found, *sizes, u64(0), kind, u32(p.transb), u32(0)],
                sets=sets,
            )
            sizes = [u64(p.M), u64(p.N), u64(p.K), u64(p.lda), u64(p.ldc)]
            rounding = [
                f64(bounds.summing(dtype, p.K)),
                f64(bounds.reading(dtype)),
                f64(bounds.smallest(p.K)),
            ]
            precision = dtype.precision if dtype.itemsize < 4 else 0
            self._residual = code.prepare(
                "residual",
                _ROW * (p.lda if p.transa else p.M),
                [
                    *(tables["A"], tables["C"], words, y, q, self._found, *sizes, u64(0)),
                    *(f64(alpha), f64(beta), *rounding, f64(SIGMAS), np.float32(self._scale)),
                    *(np.int32(precision), np.int32(dtype.emin), kind, u32(p.transa), u32(0)),
                ],
                sets=sets,
            )
            self._bases = [
                (launch.argument(key, ctypes.c_uint64), launch.argument(count, ctypes.c_uint32))
                for launch, key, count in (
                    *((fill, 4, 8) for fill in self._fills),
                    (self._project, 8, 11),
                    (self._residual, 11, 23),
                )
            ]
            self._x = self._signs.argument(2, ctypes.c_uint64)
            self._found.fill_u32(0, stream)
            self._owned = owned.pop_all()

    def refresh(self, stream: Stream, count: int) -> None:
        """Queue filling A, B and C of the first `count` sets with new data."""
        self._number += 1
        self._key = derive(self._seed, self._number, "data")
        for key, sets in self._bases:
            key.value, sets.value = self._key, count
        for fill in self._fills:
            fill(stream)

    def verify(self, stream: Stream, count: int) -> None:
        """Queue verifying the first `count` sets, of which each was launched on once since `refresh`."""
        self._x.value = derive(self._seed, self._number, "signs")
        self._signs(stream)
        self._project(stream)
        self._residual(stream)
        self._launches += count

    def wrong(self, stream: Stream) -> str:
        """Wait, and return what `verify` has found since the last call in words; empty if all is right."""
        found = np.zeros(len(self.buffers), _FOUND)
        self._found.download(found, stream)
        self._found.fill_u32(0, stream)
        launches, self._launches = self._launches, 0
        if wrong := said(self.problem, launches, found):
            return wrong
        # The more launches, the closer the mean of all errors comes to what it should be.
        self._so_far = np.append(self._so_far, found)
        for name in _SUMS:
            self._so_far[name][0] = self._so_far[name].sum()
        self._so_far = self._so_far[:1]
        self._all += launches
        return imprecise(self.problem, self._all, self._so_far)

    def keep(self, stream: Stream, rng: np.random.Generator, count: int) -> None:
        """Download one of the first `count` sets, chosen at random, for `verdict`.

        C is as the launch left it. The inputs have been found unchanged, and the earlier C is made anew.
        """
        p, chosen = self.problem, int(rng.integers(count))
        host = {}
        for name, x in p.layouts().items():
            host[name] = np.empty((x.rows, x.ld), p.dtype.storage)
            self.buffers[chosen][name].download(host[name], stream)
        rows = np.sort(rng.choice(p.M, min(p.M, _ROWS), replace=False))
        before = normal.matrix(
            p.dtype,
            normal.key_of(self._key, chosen, 2),
            rows=p.M,
            columns=p.ldc,
            ld=p.ldc,
            scale=self._scale,
            of=rows,
        )
        a = p.left(host["A"])[rows]
        self._evidence = Evidence(problem=p, a=a, b=host["B"], c=host["C"][rows], before=before)

    def verdict(self) -> Verdict | None:
        """Compare some rows of the launch that was kept with a float64 reference; None without one."""
        return self._evidence.verdict() if self._evidence is not None else None

    def close(self) -> None:
        self._owned.close()


def _first(flipped: NDArray[np.uint64]) -> int:
    """Return the smallest place of those that fresh.cu counts down from the largest word."""
    return int(~flipped.max())
