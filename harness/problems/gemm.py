"""Matrix multiplication as a `Problem`, with one class for each element type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.kernels.dtypes import BF16, BF16X6, FP16, FP32, TF32, TF32X3, DType
from harness.problems import bounds
from harness.problems.protocol import Argument, Axes, Layout, Reference

_INT_MAX = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """``C = alpha * A @ B + beta * C``, row-major, with leading dimensions in elements.

    A is M x K, B is K x N, C is M x N. ``lda >= K``, ``ldb >= N``, ``ldc >= N``; 0 stands for exactly that.
    With ``beta == 0`` C is not read, as in BLAS. All three matrices are of type `dtype`, float32 in this
    class. Products are summed in float32, alpha and beta are float32, and the result is rounded once to
    `dtype`.

    Raises UsageError for sizes or scalars out of range.
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
    dtype: ClassVar[DType] = FP32

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
        """Return the product of these sizes; M and K default to N, so that N alone gives the square one."""
        n = axes.get("N", cls.axes["N"])
        return cls(**{"M": n, "N": n, "K": n, **axes})  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        square = self.M == self.N == self.K
        shape = str(self.N) if square else f"{self.M}x{self.N}x{self.K}"
        dense = {"lda": self.K, "ldb": self.N, "ldc": self.N, "alpha": 1.0, "beta": 0.0}
        extra = [f"{k}={getattr(self, k)}" for k, v in dense.items() if getattr(self, k) != v]
        typed = [] if self.dtype is FP32 else [self.dtype.name]
        return " ".join([shape, *typed, *extra])

    @property
    def extents(self) -> tuple[int, ...]:
        return self.M, self.N

    @property
    def flops(self) -> int:
        return 2 * self.M * self.N * self.K

    @property
    def bytes(self) -> int:
        reads_c = self.beta != 0
        return self.dtype.itemsize * (
            self.M * self.K + self.K * self.N + self.M * self.N * (2 if reads_c else 1)
        )

    @property
    def buffer_bytes(self) -> int:
        return self.dtype.itemsize * (self.M * self.lda + self.K * self.ldb + self.M * self.ldc)

    @property
    def accumulates(self) -> bool:
        return self.beta != 0

    def inputs(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return A (M x lda), B (K x ldb) and C (M x ldc) as they are stored.

        A and B are standard normal, and so is C if beta is not 0; all are rounded to the stored type, and the
        reference is computed from the rounded values. (tf32 is stored as float32 and rounded only when it is
        multiplied.) Padding, and a C that is not read, hold NaN, so that using them shows.
        """
        rng = np.random.default_rng(seed)

        def operand(rows: int, columns: int, ld: int, filled: bool) -> NDArray[Any]:
            array = np.full((rows, ld), self.dtype.encode(np.full(1, np.nan, np.float32)))
            if filled:
                array[:, :columns] = self.dtype.encode(rng.standard_normal((rows, columns), dtype=np.float32))
            return array

        return {
            "A": operand(self.M, self.K, self.lda, True),
            "B": operand(self.K, self.N, self.ldb, True),
            "C": operand(self.M, self.N, self.ldc, self.beta != 0),
        }

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Reference:
        """Return the product of the inputs in float64, and bounds on a kernel's error.

        There is one for every element and one for the rms of all: `harness.problems.bounds` derives them.
        """
        a, b = self.dtype.decode(inputs["A"][:, : self.K]), self.dtype.decode(inputs["B"][:, : self.N])
        c = self.dtype.decode(inputs["C"][:, : self.N]) if self.beta else None
        alpha, beta = float(np.float32(self.alpha)), float(np.float32(self.beta))
        return bounds.product(self.dtype, a, b, c, alpha=alpha, beta=beta)

    def arguments(self) -> tuple[Argument, ...]:
        sizes = (self.M, self.N, self.K, self.lda, self.ldb, self.ldc)
        return ("A", "B", "C", *map(np.int32, sizes), np.float32(self.alpha), np.float32(self.beta))

    def layouts(self) -> dict[str, Layout]:
        """Return the layout of A, B and C in their buffers, by name (see `protocol.Matrices`)."""
        return {
            "A": Layout(rows=self.M, columns=self.K, ld=self.lda, dtype=self.dtype),
            "B": Layout(rows=self.K, columns=self.N, ld=self.ldb, dtype=self.dtype),
            "C": Layout(rows=self.M, columns=self.N, ld=self.ldc, dtype=self.dtype),
        }

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        """Return the FLOP per byte loaded from global memory in one step of k.

        A step does one multiply-add for each element of `tile` and loads `loads` elements.
        """
        return 2 * math.prod(tile) / (cls.dtype.itemsize * loads)


class GemmTf32(Gemm):
    """`Gemm` on float32 matrices whose elements are rounded to tf32, to nearest, when they are multiplied."""

    dtype: ClassVar[DType] = TF32


class Gemm3xTf32(Gemm):
    """`Gemm` on float32 matrices, with each product computed as three of tf32: nearly as exact as float32."""

    dtype: ClassVar[DType] = TF32X3


class GemmBf16x6(Gemm):
    """`Gemm` on float32 matrices, with each product computed as six of bf16: as exact as float32."""

    dtype: ClassVar[DType] = BF16X6


class GemmBf16(Gemm):
    """`Gemm` on bf16 matrices, which NumPy stores as uint16."""

    dtype: ClassVar[DType] = BF16


class GemmFp16(Gemm):
    """`Gemm` on fp16 matrices."""

    dtype: ClassVar[DType] = FP16


GEMMS: dict[str, type[Gemm]] = {
    cls.dtype.name: cls for cls in (Gemm, GemmTf32, Gemm3xTf32, GemmBf16x6, GemmBf16, GemmFp16)
}
