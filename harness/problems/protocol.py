"""What a kernel computes, independent of how: the `Problem` protocol.

A problem makes inputs, knows the right answer and how close a kernel must come to it, and counts
the work. `harness.problems.gemm` and `harness.problems.registry` hold those there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from harness.kernels.dtypes import DType

Argument = str | np.generic  # a buffer by name, or a scalar whose dtype is its C type
Axes = Mapping[str, int | float]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """`expected` in float64, and what a correct kernel keeps: an elementwise `bound`, and a much
    tighter one on the root mean square of all errors, `rms_bound`, where the problem knows one. `dtype` is
    the output's element type, where NumPy's own does not say it.
    """

    expected: NDArray[np.float64]
    bound: NDArray[np.float64]
    rms_bound: float | None = None
    dtype: DType | None = None

    def decode(self, output: NDArray[Any]) -> NDArray[np.float64]:
        """Elements of the output as numbers."""
        return output.astype(np.float64) if self.dtype is None else self.dtype.decode(output)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a row-major matrix lies in its buffer; the leading dimension `ld` in elements."""

    rows: int
    columns: int
    ld: int
    dtype: DType


@runtime_checkable
class Matrices(Protocol):
    """What a problem has besides, if kernels for it are to have ``tensormaps``."""

    def layouts(self) -> Mapping[str, Layout]:
        """Of each operand that is a matrix, by name."""
        ...


class Problem(Protocol):
    """One instance of a computation: sizes fixed, data not made yet.

    `axes` holds the names that ``-a`` accepts, each an attribute of the instance, with their default, which
    also gives their type (None: an integer derived from the others). `bench_axes` and `verify_axes` are the
    points that ``harness bench`` and ``harness verify`` visit when none is given. `output` names the operand
    that the kernel writes.
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
        elements a step; None where the problem knows no such notion.
        """
        ...
