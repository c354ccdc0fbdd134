"""Matrix multiplication as a `Problem`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.problem import Argument, Axes, Reference

_INT_MAX = 2**31 - 1
U32 = 2.0**-24  # unit roundoff of float32


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """``C = alpha * A @ B + beta * C`` in float32, row-major, leading dimensions in elements.

    A is M x K, B is K x N, C is M x N; ``lda >= K``, ``ldb >= N``, ``ldc >= N`` (0: just that).
    With ``beta == 0`` C is not read, as in BLAS.
    """

    M: int
    N: int
    K: int
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    alpha: float = 1.0
    beta: float = 0.0

    axes: ClassVar[Mapping[str, int | float | None]] = {
        "M": None, "N": 1024, "K": None, "lda": 0, "ldb": 0, "ldc": 0, "alpha": 1.0, "beta": 0.0,
    }  # fmt: skip
    bench_axes: ClassVar[tuple[Axes, ...]] = tuple({"N": n} for n in (512, 1024, 2048, 4096))
    verify_axes: ClassVar[tuple[Axes, ...]] = (
        {"N": 256},
        {"M": 1, "N": 1, "K": 1},
        {"M": 300, "N": 500, "K": 260, "alpha": 0.7, "beta": 0.3},
        {"M": 129, "N": 132, "K": 17, "lda": 20, "ldb": 140, "ldc": 135, "alpha": -1.5},
        {"M": 31, "N": 65, "K": 1000, "lda": 1003, "ldb": 67, "ldc": 66, "beta": 1.0},
    )
    output: ClassVar[str] = "C"

    def __post_init__(self) -> None:
        for name in ("N", "M", "K"):
            if not 1 <= getattr(self, name) <= _INT_MAX:
                raise UsageError(f"{name}={getattr(self, name)} is out of range", hint=f"1 to {_INT_MAX}")
        for name, least in (("lda", self.K), ("ldb", self.N), ("ldc", self.N)):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, least)
            if not least <= getattr(self, name) <= _INT_MAX:
                raise UsageError(
                    f"{name}={getattr(self, name)} is out of range",
                    hint=f"{least} (the row length) to {_INT_MAX}: it counts elements from row to row",
                )
        for name in ("alpha", "beta"):
            if not abs(getattr(self, name)) <= float(np.finfo(np.float32).max):
                raise UsageError(f"{name}={getattr(self, name)} is not a finite float32")

    @classmethod
    def from_axes(cls, axes: Axes) -> Self:
        """N alone is the square product; M and K default to N."""
        n = axes.get("N", cls.axes["N"])
        return cls(**{"M": n, "N": n, "K": n, **axes})  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        square = self.M == self.N == self.K
        shape = str(self.N) if square else f"{self.M}x{self.N}x{self.K}"
        dense = {"lda": self.K, "ldb": self.N, "ldc": self.N, "alpha": 1.0, "beta": 0.0}
        extra = [f"{k}={getattr(self, k)}" for k, v in dense.items() if getattr(self, k) != v]
        return " ".join([shape, *extra])

    @property
    def extents(self) -> tuple[int, ...]:
        return self.M, self.N

    @property
    def flops(self) -> int:
        return 2 * self.M * self.N * self.K

    @property
    def bytes(self) -> int:
        reads_c = self.beta != 0
        return 4 * (self.M * self.K + self.K * self.N + self.M * self.N * (2 if reads_c else 1))

    @property
    def buffer_bytes(self) -> int:
        return 4 * (self.M * self.lda + self.K * self.ldb + self.M * self.ldc)

    @property
    def accumulates(self) -> bool:
        return self.beta != 0

    def inputs(self, seed: int) -> dict[str, NDArray[Any]]:
        """Standard normal A and B, and C where beta reads it. Padding holds NaN, so that using it shows."""
        rng = np.random.default_rng(seed)

        def operand(rows: int, columns: int, ld: int, filled: bool) -> NDArray[Any]:
            array = np.full((rows, ld), np.nan, dtype=np.float32)
            if filled:
                array[:, :columns] = rng.standard_normal((rows, columns), dtype=np.float32)
            return array

        return {
            "A": operand(self.M, self.K, self.lda, True),
            "B": operand(self.K, self.N, self.ldb, True),
            "C": operand(self.M, self.N, self.ldc, self.beta != 0),
        }

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Reference:
        """The product in float64, and two bounds on a float32 kernel's error. Element by element::

            |err| <= g * (|alpha| |A||B| + |beta| |C|),    g = min(n, 4 sqrt(n)) * 2^-24,    n = K + 3

        The n term is the worst case of any summation order (Higham, Accuracy and Stability of Numerical
        Algorithms, 2nd ed., eq. 3.5, to first order, plus three roundings for alpha and beta). The square
        root is the probabilistic bound of Higham and Mary (SIAM J. Sci. Comput. 41, 2019, A2815) with
        lambda = 4; on random data float32 stays some 15 standard deviations inside it, while one dropped
        term of a sum of 4096 does not. The worst case alone lets that through.

        And for the root mean square of all errors, because |A||B| grows faster with K than errors do::

            rms(err) <= g * rms(sqrt(alpha^2 (A*A)(B*B) + D^2)),    D the expected result, * elementwise

        The right side is g times the size of a typical partial sum, whether terms cancel or add up. TF32
        inputs (an error near 2^-12 of it, whatever K is) break it up to K of a million.
        """
        a = inputs["A"][:, : self.K].astype(np.float64)
        b = inputs["B"][:, : self.N].astype(np.float64)
        alpha, beta = float(np.float32(self.alpha)), float(np.float32(self.beta))
        expected = a @ b
        expected *= alpha
        # The mean over all elements of (A*A)(B*B), without forming it.
        squares = float(np.mean(a * a, axis=0) @ np.mean(b * b, axis=1)) * alpha**2
        magnitude = np.abs(a, out=a) @ np.abs(b, out=b)
        magnitude *= abs(alpha)
        if beta:
            c = inputs["C"][:, : self.N].astype(np.float64)
            expected += beta * c
            magnitude += np.abs(beta * c)
        n = self.K + 3
        g = min(n, 4 * math.sqrt(n)) * U32
        tiny = n * 2.0**-149  # below float32's normal range accuracy is absolute, not relative
        magnitude *= g
        magnitude += tiny
        typical = math.sqrt(squares + float(np.mean(np.square(expected))))
        return Reference(expected=expected, bound=magnitude, rms_bound=g * typical + tiny)

    def arguments(self) -> tuple[Argument, ...]:
        sizes = (self.M, self.N, self.K, self.lda, self.ldb, self.ldc)
        return ("A", "B", "C", *map(np.int32, sizes), np.float32(self.alpha), np.float32(self.beta))

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        """A step of k is one multiply-add for each element of the tile."""
        return 2 * math.prod(tile) / (4 * loads)
