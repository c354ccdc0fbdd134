"""A device-to-device copy: it measures the bandwidth ceiling, and is the shortest example of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.problems.protocol import Argument, Axes, Reference


@dataclass(frozen=True, kw_only=True)
class Copy:
    """The problem ``dst = src`` for N float32 elements; `Problem` describes the members.

    A good kernel for it measures the highest bandwidth that a kernel can reach on this GPU.
    """

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
        """Return the source, standard normal, and the destination, filled with NaN."""
        src = np.random.default_rng(seed).standard_normal(self.N, dtype=np.float32)
        return {"src": src, "dst": np.full(self.N, np.nan, dtype=np.float32)}

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Reference:
        """Return the source as the expected result, with a bound of 0: every element must be exact."""
        expected = inputs["src"].astype(np.float64)
        return Reference(expected=expected, bound=np.zeros_like(expected))

    def arguments(self) -> tuple[Argument, ...]:
        return "src", "dst", np.int64(self.N)

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        """Return None: a copy does no arithmetic."""
        return None
