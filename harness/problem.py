"""What a kernel computes: inputs, reference, arguments and work, independent of how it is computed.

`Problem` is the protocol; `Gemm` and `Copy` implement it here, and front matter may name a class in a
user's file (``problem = "my_problem.py:Softmax"``). Nothing outside this module knows about matrices.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from harness.errors import SpecError, UsageError
from harness.spec import Kernel

Argument = str | np.generic  # a buffer by name, or a scalar whose dtype is its C type
Axes = Mapping[str, int | float]

_INT_MAX = 2**31 - 1
U32 = 2.0**-24  # unit roundoff of float32


@dataclass(frozen=True, kw_only=True)
class Reference:
    """`expected` in float64, and the elementwise `bound` that a correct float32 kernel keeps."""

    expected: NDArray[np.float64]
    bound: NDArray[np.float64]


class Problem(Protocol):
    """One instance of a computation: sizes fixed, data not made yet.

    `axes` holds the names that ``-a`` accepts with their default, which also gives their type (None: derived
    from the others, an integer). `sizes` are the axes that ``harness bench`` and `harness verify` go through
    when none is given.
    """

    axes: ClassVar[Mapping[str, int | float | None]]
    bench_axes: ClassVar[tuple[Axes, ...]]
    verify_axes: ClassVar[tuple[Axes, ...]]
    output: ClassVar[str]

    @classmethod
    def from_axes(cls, axes: Axes) -> Self:
        """Raises UsageError for sizes that make no sense."""
        ...

    @property
    def label(self) -> str: ...

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the output, outermost first; with a kernel's tile they give its grid."""
        ...

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counting two."""
        ...

    @property
    def bytes(self) -> int:
        """Compulsory traffic: every input read once, every output written once."""
        ...

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one set of operands on the device, padding included."""
        ...

    @property
    def accumulates(self) -> bool:
        """Whether the output is an input too, so that a repeated launch computes something else."""
        ...

    def inputs(self, seed: int) -> dict[str, NDArray[Any]]:
        """Every operand by name, the output poisoned with NaN unless it is an input too."""
        ...

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Reference: ...

    def arguments(self) -> tuple[Argument, ...]:
        """The kernel's parameters in order."""
        ...

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        """FLOP for each byte loaded from global memory, for blocks that cover `tile` and load `loads`
        floats a step; None where the problem knows no such notion.
        """
        ...


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
        extra = [f"{k}={getattr(self, k):g}" for k, v in dense.items() if getattr(self, k) != v]
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
        """The product in float64, and a bound on a float32 kernel's error, element by element::

            |err| <= min(n, 4 sqrt(n)) * 2^-24 * (|alpha| |A||B| + |beta| |C|),    n = K + 3

        The n term is the worst case of any summation order (Higham, Accuracy and Stability of Numerical
        Algorithms, 2nd ed., eq. 3.5, to first order, plus three roundings for alpha and beta). The square
        root is the probabilistic bound of Higham and Mary (SIAM J. Sci. Comput. 41, 2019, A2815) with
        lambda = 4; on random data float32 stays some 15 standard deviations inside it, while TF32 inputs or
        one dropped term of a sum of 4096 do not. The worst case alone lets both through at that size.
        """
        a = inputs["A"][:, : self.K].astype(np.float64)
        b = inputs["B"][:, : self.N].astype(np.float64)
        alpha, beta = float(np.float32(self.alpha)), float(np.float32(self.beta))
        expected = a @ b
        expected *= alpha
        magnitude = (np.abs(a, out=a) @ np.abs(b, out=b)) * abs(alpha)
        if beta:
            c = inputs["C"][:, : self.N].astype(np.float64)
            expected += beta * c
            magnitude += np.abs(beta * c)
        n = self.K + 3
        magnitude *= min(n, 4 * math.sqrt(n)) * U32
        magnitude += n * 2.0**-149  # below float32's normal range accuracy is absolute, not relative
        return Reference(expected=expected, bound=magnitude)

    def arguments(self) -> tuple[Argument, ...]:
        sizes = (self.M, self.N, self.K, self.lda, self.ldb, self.ldc)
        return ("A", "B", "C", *map(np.int32, sizes), np.float32(self.alpha), np.float32(self.beta))

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        """A step of k is one multiply-add for each element of the tile."""
        return 2 * math.prod(tile) / (4 * loads)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """``dst = src`` for N floats: the bandwidth that a kernel of this card can reach at best."""

    N: int

    axes: ClassVar[Mapping[str, int | float | None]] = {"N": 2**26}
    bench_axes: ClassVar[tuple[Axes, ...]] = ({"N": 2**22}, {"N": 2**24}, {"N": 2**26})
    verify_axes: ClassVar[tuple[Axes, ...]] = ({"N": 1}, {"N": 4099}, {"N": 2**20})
    output: ClassVar[str] = "dst"
    accumulates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.N < 2**40:
            raise UsageError(f"N={self.N} is out of range", hint="1 to 2^40 elements")

    @classmethod
    def from_axes(cls, axes: Axes) -> Self:
        return cls(**{"N": cls.axes["N"], **axes})  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        return str(self.N)

    @property
    def extents(self) -> tuple[int, ...]:
        return (self.N,)

    @property
    def flops(self) -> int:
        return 0

    @property
    def bytes(self) -> int:
        return 8 * self.N

    @property
    def buffer_bytes(self) -> int:
        return 8 * self.N

    def inputs(self, seed: int) -> dict[str, NDArray[Any]]:
        src = np.random.default_rng(seed).standard_normal(self.N, dtype=np.float32)
        return {"src": src, "dst": np.full(self.N, np.nan, dtype=np.float32)}

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Reference:
        """Every element exactly."""
        expected = inputs["src"].astype(np.float64)
        return Reference(expected=expected, bound=np.zeros_like(expected))

    def arguments(self) -> tuple[Argument, ...]:
        return "src", "dst", np.int64(self.N)

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        return None


BUILTIN: dict[str, type[Problem]] = {"gemm": Gemm, "copy": Copy}


def resolve(kernel: Kernel) -> type[Problem]:
    """The class that a kernel's ``problem`` names: built in, or ``file.py:Class`` beside the kernel.

    Such a file is Python of the kernel's author and is executed. Raises SpecError where it cannot serve.
    """
    name, where = kernel.problem, str(kernel.path)
    if name in BUILTIN:
        return BUILTIN[name]
    file, colon, class_name = name.partition(":")
    if not colon:
        raise SpecError(
            f"no problem {name!r}", where=where, hint=f"built in: {', '.join(BUILTIN)}; or 'file.py:Class'"
        )
    path = kernel.path.parent / file
    module_spec = importlib.util.spec_from_file_location(f"harness_problem_{path.stem}", path)
    if module_spec is None or module_spec.loader is None or not path.is_file():
        raise SpecError(f"problem file {path} is not there, or not Python", where=where)
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
        found = getattr(module, class_name)
    except Exception as e:
        raise SpecError(f"problem {name!r} cannot be loaded: {type(e).__name__}: {e}", where=where) from e
    missing = [m for m in MEMBERS if not hasattr(found, m)]
    if missing:
        raise SpecError(f"problem {name!r} lacks {', '.join(missing)}", where=where)
    return cast(type[Problem], found)


MEMBERS = (
    *("axes", "bench_axes", "verify_axes", "output", "from_axes", "label", "extents", "flops", "bytes"),
    *("buffer_bytes", "accumulates", "inputs", "reference", "arguments", "intensity"),
)
