"""Matrix multiplication as a `Problem`, with one class for each element type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.kernels.dtypes import BF16, BF16X6, FP16, FP16X3, FP32, TF32, TF32X3, DType
from harness.kernels.epilogue import PLAIN, ROWS, Epilogue
from harness.problems import bounds
from harness.problems.protocol import Argument, Axes, Layout, Reference

_INT_MAX = 2**31 - 1
_SECTOR, _MAPPED = 32, 16  # bytes: of the L2 cache; at whose multiples rows begin that TMA reads


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """``C = alpha * op(A) @ op(B) + beta * C``, row-major, with leading dimensions in elements.

    op(A) is M x K, op(B) is K x N, C is M x N. As in BLAS, `transa` says that A is stored transposed, K x M,
    and `transb` that B is stored N x K; both are 0 or 1. The leading dimensions ``lda``, ``ldb`` and ``ldc``
    are at least the length of a stored row; 0 stands for exactly that. A kernel is compiled for one layout,
    by its parameters TRANSA and TRANSB; one without them reads matrices that are not transposed.

    `epilogue` says what is done to that before it is rounded: an operand ``bias`` may be added, and an
    activation applied, or its derivative at an operand ``at``, which lies as C does, be a factor. A kernel
    must be compiled for it (`Epilogue.compiled`).

    With ``beta == 0`` C is not read, as in BLAS. All three matrices are of type `dtype`, float32 in this
    class. Products are summed in float32, alpha and beta are float32, and the result is rounded once to
    `dtype`.

    Raises UsageError for sizes, scalars or layouts out of range.
    """

    M: int
    N: int
    K: int
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    transa: int = 0
    transb: int = 0
    epilogue: Epilogue = PLAIN

    axes: ClassVar[Mapping[str, int | float | None]] = {
        "M": None, "N": 1024, "K": None, "lda": 0, "ldb": 0, "ldc": 0, "alpha": 1.0, "beta": 0.0,
        "transa": 0, "transb": 0,
    }  # fmt: skip
    compiled: ClassVar[tuple[str, ...]] = ("transa", "transb")  # see `protocol.Compiled`
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
        for name in self.compiled:
            if getattr(self, name) not in (0, 1):
                raise UsageError(f"{name}={getattr(self, name)} is neither 0 nor 1", hint="1: transposed")
        for name, least in self._packed().items():
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

    def _packed(self) -> dict[str, int]:
        """Return the least leading dimensions: the lengths of the stored rows."""
        a, b = self.M if self.transa else self.K, self.K if self.transb else self.N
        return {"lda": a, "ldb": b, "ldc": self.N}

    @classmethod
    def from_axes(cls, axes: Axes) -> Self:
        """Return the product of these sizes; M and K default to N, so that N alone gives the square one."""
        n = axes.get("N", cls.axes["N"])
        return cls(**{"M": n, "N": n, "K": n, **axes})  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        square = self.M == self.N == self.K
        shape = str(self.N) if square else f"{self.M}x{self.N}x{self.K}"
        dense = {**self._packed(), "alpha": 1.0, "beta": 0.0, "transa": 0, "transb": 0}
        extra = [f"{k}={getattr(self, k)}" for k, v in dense.items() if getattr(self, k) != v]
        typed = [] if self.dtype is FP32 else [self.dtype.name]
        return " ".join([shape, *typed, *extra, *filter(None, [self.epilogue.label])])

    @property
    def layout(self) -> str:
        """Return how A and B are stored, as BLAS names it: ``"NT"`` if B is transposed and A is not."""
        return "NT"[self.transa] + "NT"[self.transb]

    def without_maps(self, steps: Sequence[int] = (0, 0)) -> str:
        """Return which operands have rows that do not begin where TMA reads: "", "A", "B" or "AB".

        Of a batch `steps` are the elements from one matrix of A, and of B, to the next.
        """
        return "".join(x for x, each in zip("AB", self._pitches(steps), strict=True) if each % _MAPPED)

    def straddles(self, steps: Sequence[int] = (0, 0)) -> str:
        """Return which operands have rows that TMA reads, but across sectors of L2: "", "A", "B" or "AB"."""
        both = zip("AB", self._pitches(steps), strict=True)
        return "".join(x for x, each in both if each % _SECTOR and each % _MAPPED == 0)

    @property
    def uneven(self) -> bool:
        """True if rows of C do not begin where TMA writes, which is at multiples of 16 bytes."""
        return self.ldc * self.stored.itemsize % _MAPPED != 0

    @property
    def c_straddled(self) -> bool:
        """True if rows of C begin where TMA writes, but not all at sectors of L2."""
        return not self.uneven and self.ldc * self.stored.itemsize % _SECTOR != 0

    def _pitches(self, steps: Sequence[int]) -> list[int]:
        """Return the bytes at whose multiples the rows of A and B begin, if the first does."""
        both = zip((self.lda, self.ldb), steps, strict=True)
        return [math.gcd(ld, step) * self.dtype.itemsize for ld, step in both]

    @property
    def stored(self) -> DType:
        """Return the element type of C and of what the epilogue reads."""
        return FP32 if self.epilogue.float_c else self.dtype

    @property
    def extents(self) -> tuple[int, ...]:
        return self.M, self.N

    @property
    def flops(self) -> int:
        return 2 * self.M * self.N * self.K

    @property
    def bytes(self) -> int:
        passes = 1 + (self.beta != 0) + self.epilogue.derivative  # over C, and what lies as C does
        written = self.stored.itemsize * self.M * self.N * passes
        return self.dtype.itemsize * (self.M * self.K + self.K * self.N) + written

    @property
    def buffer_bytes(self) -> int:
        return sum(x.dtype.itemsize * x.rows * x.ld for x in self.layouts().values())

    @property
    def accumulates(self) -> bool:
        return self.beta != 0

    def inputs(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return A, B and C as they are stored: matrices of the rows of `layouts`, padded to their `ld`.

        A and B are standard normal, and so is C if beta is not 0; all are rounded to the stored type, and the
        reference is computed from the rounded values. (tf32 is stored as float32 and rounded only when it is
        multiplied.) Padding, and a C that is not read, hold NaN, so that using them shows.
        """
        rng = np.random.default_rng(seed)

        def operand(x: Layout, filled: bool) -> NDArray[Any]:
            array = np.full((x.rows, x.ld), x.dtype.encode(np.full(1, np.nan, np.float32)))
            if filled:
                values = rng.standard_normal((x.rows, x.columns), dtype=np.float32)
                array[:, : x.columns] = x.dtype.encode(values)
            return array

        found = {name: operand(x, name != "C" or self.beta != 0) for name, x in self.layouts().items()}
        if self.epilogue.bias:
            count = self.M if self.epilogue.bias == ROWS else self.N
            found["bias"] = self.stored.encode(rng.standard_normal(count, dtype=np.float32))
        if self.epilogue.derivative:
            found["at"] = operand(self.layouts()["C"], True)
        return found

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Reference:
        """Return the product of the inputs in float64, and bounds on a kernel's error.

        There is one for every element and one for the rms of all: `harness.problems.bounds` derives them.
        """
        a, b = self.left(self.dtype.decode(inputs["A"])), self.right(self.dtype.decode(inputs["B"]))
        c = self.stored.decode(inputs["C"][:, : self.N]) if self.beta else None
        alpha, beta = float(np.float32(self.alpha)), float(np.float32(self.beta))
        if not any(self.epilogue):
            return bounds.product(self.dtype, a, b, c, alpha=alpha, beta=beta)
        plain = bounds.product(self.dtype.unrounded, a, b, c, alpha=alpha, beta=beta)
        read = self.stored.decode(inputs[self.epilogue.operand]) if self.epilogue.operand else None
        if read is not None and self.epilogue.derivative:
            read = read[:, : self.N]
        return bounds.finished(plain, self.epilogue, read, self.stored)

    def arguments(self) -> tuple[Argument, ...]:
        sizes = (self.M, self.N, self.K, self.lda, self.ldb, self.ldc)
        read = (self.epilogue.operand,) if self.epilogue.operand else ()
        return ("A", "B", "C", *map(np.int32, sizes), np.float32(self.alpha), np.float32(self.beta), *read)

    def left(self, a: NDArray[Any]) -> NDArray[Any]:
        """Return op(A), M x K, of A as it is stored, with its padding: a view."""
        return a[:, : self.M].T if self.transa else a[:, : self.K]

    def right(self, b: NDArray[Any]) -> NDArray[Any]:
        """Return op(B), K x N, of B as it is stored, with its padding: a view."""
        return b[:, : self.K].T if self.transb else b[:, : self.N]

    def layouts(self) -> dict[str, Layout]:
        """Return the layout of A, B and C in their buffers, by name (see `protocol.Matrices`)."""
        a, b = (self.M, self.K), (self.K, self.N)
        a, b = a[::-1] if self.transa else a, b[::-1] if self.transb else b
        shapes = {"A": a, "B": b, "C": (self.M, self.N)}
        types = {"A": self.dtype, "B": self.dtype, "C": self.stored}
        return {
            name: Layout(rows=rows, columns=columns, ld=getattr(self, f"ld{name.lower()}"), dtype=types[name])
            for name, (rows, columns) in shapes.items()
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


class GemmFp16x3(Gemm):
    """`Gemm` on float32 matrices, with each product computed as three of fp16: scaled, but short of range."""

    dtype: ClassVar[DType] = FP16X3


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
    cls.dtype.name: cls for cls in (Gemm, GemmTf32, Gemm3xTf32, GemmFp16x3, GemmBf16x6, GemmBf16, GemmFp16)
}
