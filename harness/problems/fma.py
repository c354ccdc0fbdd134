"""Chains of fused multiply-adds: the problem that measures the ceiling of fp32 arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.problems.protocol import Argument, Axes, Reference

CHAINS = 8  # independent chains of multiply-adds per thread
_A, _B = 1 - 2.0**-12, 2.0**-12  # exact in float32; the iteration converges slowly to 1
_U32 = 2.0**-24  # unit roundoff of float32


@dataclass(frozen=True, kw_only=True)
class Fma:
    """Iterated multiply-adds on N elements, CHAINS independent chains for each.

    For each element x of the input, y is the sum over j < CHAINS of s_j, where s_j starts as x + j and is
    replaced K times by ``a * s_j + b``.
    """

    N: int
    K: int

    axes: ClassVar[Mapping[str, int | float | None]] = {"N": 2**18, "K": 2**15}
    bench_axes: ClassVar[tuple[Axes, ...]] = ({"N": 2**18, "K": 2**15},)
    verify_axes: ClassVar[tuple[Axes, ...]] = (
        {"N": 1, "K": 1},
        {"N": 4099, "K": 100},
        {"N": 1000, "K": 5000},
    )
    output: ClassVar[str] = "y"
    accumulates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.N < 2**31 or not 1 <= self.K < 2**31:
            raise UsageError(f"N={self.N} K={self.K} is out of range", hint="1 to 2^31 - 1 each")

    @classmethod
    def from_axes(cls, axes: Axes) -> Self:
        return cls(**{"N": cls.axes["N"], "K": cls.axes["K"], **axes})  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        return f"{self.N}x{self.K}"

    @property
    def extents(self) -> tuple[int, ...]:
        return (self.N,)

    @property
    def flops(self) -> int:
        return 2 * CHAINS * self.N * self.K

    @property
    def bytes(self) -> int:
        return 8 * self.N

    @property
    def buffer_bytes(self) -> int:
        return 8 * self.N

    def inputs(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return the input x, standard normal, and the output y, filled with NaN."""
        x = np.random.default_rng(seed).standard_normal(self.N, dtype=np.float32)
        return {"x": x, "y": np.full(self.N, np.nan, dtype=np.float32)}

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Reference:
        """Return the closed form, ``s_K = a^K s_0 + b (1 - a^K) / (1 - a)``, and a bound on the error.

        The rounding error of a step is at most 2^-24 of a value no larger than it began, and each later step
        multiplies it by a < 1. The bound sums these errors over all chains.
        """
        x = inputs["x"].astype(np.float64)
        decay = _A**self.K
        expected = np.zeros_like(x)
        bound = np.zeros_like(x)
        steps = min(float(self.K), 1 / (1 - _A))
        for j in range(CHAINS):
            expected += decay * (x + j) + _B * (1 - decay) / (1 - _A)
            bound += (steps + CHAINS + 2) * _U32 * np.maximum(np.abs(x) + j, 1)
        return Reference(expected=expected, bound=bound)

    def arguments(self) -> tuple[Argument, ...]:
        return "x", "y", np.float32(_A), np.float32(_B), np.int32(self.N), np.int32(self.K)

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        """Return None: blocks do not load tiles in steps."""
        return None
