"""Chains of small matrix products: the problem that measures the ceilings of tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.problems.protocol import Argument, Axes, Reference

ROWS, COLUMNS, DEPTH = 64, 256, 16  # of a product: what one wgmma of 16-bit elements multiplies at most
_MOST_STEPS = 2**20  # sums of DEPTH products of one each stay below 2^24, and so exact in float32


@dataclass(frozen=True, kw_only=True)
class Mma:
    """K products of one pair of matrices, added up, for each of N tiles.

    For each tile, y (ROWS x COLUMNS) is K times the product of a (ROWS x DEPTH) and b (DEPTH x COLUMNS). The
    elements of a and b are 1 or -1, which every element type holds exactly, and no sum is rounded. They are
    float32 in memory, whatever the type they are multiplied in.
    """

    N: int
    K: int

    axes: ClassVar[Mapping[str, int | float | None]] = {"N": 264, "K": 2**13}
    bench_axes: ClassVar[tuple[Axes, ...]] = ({"N": 264, "K": 2**13},)
    verify_axes: ClassVar[tuple[Axes, ...]] = ({"N": 1, "K": 1}, {"N": 5, "K": 7}, {"N": 2, "K": 50})
    output: ClassVar[str] = "y"
    accumulates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.N < 2**20 or not 1 <= self.K <= _MOST_STEPS:
            raise UsageError(f"N={self.N} K={self.K} is out of range", hint="1 to 2^20 - 1, 1 to 2^20")

    @classmethod
    def from_axes(cls, axes: Axes) -> Self:
        return cls(**{"N": cls.axes["N"], "K": cls.axes["K"], **axes})  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        return f"{self.N}x{self.K}"

    @property
    def extents(self) -> tuple[int, ...]:
        return (self.N * ROWS, COLUMNS)

    @property
    def flops(self) -> int:
        return 2 * ROWS * COLUMNS * DEPTH * self.N * self.K

    @property
    def bytes(self) -> int:
        return 4 * self.N * (ROWS * DEPTH + DEPTH * COLUMNS + ROWS * COLUMNS)

    @property
    def buffer_bytes(self) -> int:
        return self.bytes

    def inputs(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return signs a (N ROWS x DEPTH) and b (N DEPTH x COLUMNS), and y (N ROWS x COLUMNS) of NaN."""
        rng = np.random.default_rng(seed)

        def signs(*shape: int) -> NDArray[np.float32]:
            return (2 * rng.integers(0, 2, shape) - 1).astype(np.float32)

        return {
            "a": signs(self.N * ROWS, DEPTH),
            "b": signs(self.N * DEPTH, COLUMNS),
            "y": np.full(self.extents, np.nan, dtype=np.float32),
        }

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Reference:
        """Return K a b, with a bound of 0."""
        a = inputs["a"].astype(np.float64).reshape(self.N, ROWS, DEPTH)
        b = inputs["b"].astype(np.float64).reshape(self.N, DEPTH, COLUMNS)
        expected = (self.K * (a @ b)).reshape(self.extents)
        return Reference(expected=expected, bound=np.zeros_like(expected))

    def arguments(self) -> tuple[Argument, ...]:
        return "a", "b", "y", np.int32(self.K)

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        """Return None: blocks do not load tiles in steps."""
        return None
