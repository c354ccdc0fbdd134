"""An output and its reference -> a `Verdict`. NaN never passes; nothing is averaged away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.problem import Reference


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`worst` is the largest ``|error| / bound`` (1 is the limit, inf for NaN); `max_error` the largest
    absolute error, in units of the output. `stray` counts elements outside the result that were written
    (the padding of a leading dimension).
    """

    ok: bool
    elements: int
    bad: int
    stray: int
    worst: float
    max_error: float
    first_bad: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None

    def __str__(self) -> str:
        if self.ok:
            return f"ok: worst error {self.worst:.2f} of the bound, {self.max_error:.2e} absolute"
        if not self.bad:
            return f"FAILED: {self.stray} elements of the padding were written"
        index = ",".join(map(str, self.first_bad or ()))
        padding = f", {self.stray} elements of the padding written" if self.stray else ""
        return (
            f"FAILED: {self.bad} of {self.elements} elements wrong, first at [{index}]: "
            f"{self.got:.7g} instead of {self.expected:.7g}{padding}"
        )


def compare(output: NDArray[Any], reference: Reference, before: NDArray[Any] | None = None) -> Verdict:
    """Compare the leading part of `output` with the reference, element by element.

    `output` may be larger than the reference in any dimension (leading dimensions); that rest must be
    bitwise what it was in `before`.
    """
    inside = tuple(slice(0, n) for n in reference.expected.shape)
    got = output[inside].astype(np.float64)
    error = np.abs(got - reference.expected)
    good = error <= reference.bound  # False where either side is NaN
    bad = int(good.size - np.count_nonzero(good))
    stray = 0 if before is None or output.shape == got.shape else _changed_outside(output, before, inside)
    first = None
    if bad:
        first = tuple(int(i) for i in np.unravel_index(int(np.argmin(good)), good.shape))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / reference.bound)
    worst = float(np.max(np.where(np.isnan(ratio), math.inf, ratio)))
    return Verdict(
        ok=bad == 0 and stray == 0,
        elements=good.size,
        bad=bad,
        stray=stray,
        worst=worst,
        max_error=float(np.max(np.where(np.isnan(error), math.inf, error))),
        first_bad=first,
        got=None if first is None else float(got[first]),
        expected=None if first is None else float(reference.expected[first]),
    )


def _changed_outside(output: NDArray[Any], before: NDArray[Any], inside: tuple[slice, ...]) -> int:
    words = np.dtype(f"u{output.dtype.itemsize}")
    changed = output.view(words) != before.view(words)
    changed[inside] = False
    return int(np.count_nonzero(changed))
