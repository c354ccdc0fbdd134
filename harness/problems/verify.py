"""Compare a kernel's output with its reference.

NaN never passes, and each element is held to its own bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from harness.problems.protocol import Reference
from harness.support.processes import cores

_SUSPECTS = {  # the likely cause, by element type, of errors that are all somewhat too large
    "fp32": "reduced precision, such as TF32?",
    "tf32": "inputs truncated, not rounded to nearest?",
    "": "rounded more than once, or truncated?",
}
_CHUNK = 1 << 17  # elements compared at a time: their float64 temporaries fit a CPU's cache


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of comparing one output with its reference.

    `ok` is True if every element is within its bound, the root mean square (rms) of all errors within its
    own, and nothing outside the result was written. `bad` of `elements` elements exceed their bound; the
    first of them in row-major order, `first_bad` (its index), holds `got` instead of `expected`. `stray`
    counts elements written outside the result, in the padding of a leading dimension.

    `worst` is the largest ``|error| / bound``: 1 is the limit, NaN gives inf. `bound` is the bound of the
    element that has it. `rms` is the rms of all errors divided by its bound; 0 if the reference has no such
    bound. `max_error` is the largest absolute error, like `bound` in units of the output. `dtype` names the
    element type that the bounds are for, and `output` the output if there are several.
    """

    ok: bool
    elements: int
    bad: int
    stray: int
    worst: float
    rms: float
    max_error: float
    bound: float = 0.0
    first_bad: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    dtype: str = "fp32"
    output: str = ""

    def __str__(self) -> str:
        if self.ok:
            return f"ok: worst error {self.worst:.2f} of the bound, {self.max_error:.2e} absolute"
        failed = self._failure()
        return f"FAILED: {self.output}: {failed}" if self.output else f"FAILED: {failed}"

    def _failure(self) -> str:
        if self.rms > 1 and not self.bad:
            return (
                f"each element within its bound, but the errors' root mean square is {self.rms:.3g} "
                f"times what {self.dtype} gives ({_SUSPECTS.get(self.dtype, _SUSPECTS[''])})"
            )
        if not self.bad:
            return f"{self.stray} elements of the padding were written"
        index = ",".join(map(str, self.first_bad or ()))
        padding = f", {self.stray} elements of the padding written" if self.stray else ""
        return (
            f"{self.bad} of {self.elements} elements wrong, first at [{index}]: "
            f"{self.got:.7g} instead of {self.expected:.7g}{padding}"
        )


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The outcome of `launches` more launches on the inputs of the verified one.

    `equal` of them wrote the same bits as the verified launch. `first` is the number, from 1, of the first
    that did not, or None.
    """

    launches: int
    equal: int
    first: int | None

    @classmethod
    def of(cls, verified: bytes, later: Iterable[bytes]) -> Self:
        """Compare the verified output with later ones, each given as its contents or a digest of them."""
        launches, equal, first = 0, 0, None
        for launches, found in enumerate(later, 1):
            equal += found == verified
            if found != verified and first is None:
                first = launches
        return cls(launches=launches, equal=equal, first=first)

    @property
    def ok(self) -> bool:
        """True if every launch wrote the same bits as the verified one."""
        return self.equal == self.launches

    def __str__(self) -> str:
        if self.ok:
            return f"{self.launches:,} equal"
        return (
            f"FAILED: not deterministic: launch {self.first:,} after the verified one wrote other bits from "
            f"the same inputs, as did {self.launches - self.equal:,} of {self.launches:,} in all"
        )


def compare_each(
    arrays: Mapping[str, NDArray[Any]],
    references: Mapping[str, Reference],
    before: Mapping[str, NDArray[Any]],
) -> Verdict:
    """Compare every output that `references` names, as `compare` does, and return the worst verdict."""
    found = [
        replace(compare(arrays[name], reference, before[name]), output=name if len(references) > 1 else "")
        for name, reference in references.items()
    ]
    return max(found, key=lambda v: (not v.ok, v.bad, v.stray, v.worst))


def compare(output: NDArray[Any], reference: Reference, before: NDArray[Any] | None = None) -> Verdict:
    """Compare the leading part of `output` with the reference, element by element, on all CPU cores.

    `output` has as many dimensions as ``reference.expected``, and may be larger in any of them (padding of
    leading dimensions). If `before`, the output buffer before the launch, is given, that rest must be bitwise
    equal to it.
    """
    shape = reference.expected.shape
    rows = max(1, _CHUNK // max(1, math.prod(shape[1:])))
    starts = range(0, shape[0], rows)

    def part(start: int) -> _Part:
        return _part(output, reference, before, slice(start, min(start + rows, shape[0])))

    if len(starts) < 2:
        parts = list(map(part, starts))
    else:
        with ThreadPoolExecutor(min(cores(), len(starts))) as threads:  # NumPy releases the GIL
            parts = list(threads.map(part, starts))
    stray = sum(p.stray for p in parts)
    if before is not None and len(output) > shape[0]:
        stray += _changed_outside(output[shape[0] :], before[shape[0] :], (slice(0, 0),))
    bad = sum(p.bad for p in parts)
    first = next((p.first for p in parts if p.first is not None), None)
    worst, limit = max(((p.worst, p.limit) for p in parts), default=(0.0, 0.0), key=lambda pair: pair[0])
    elements = math.prod(shape)
    rms = 0.0
    if reference.rms_bound is not None:
        typical = math.sqrt(sum(p.squares for p in parts) / elements)
        rms = typical / reference.rms_bound if reference.rms_bound else (math.inf if typical else 0.0)
        rms = math.inf if math.isnan(rms) else rms
    return Verdict(
        ok=bad == 0 and stray == 0 and rms <= 1,
        elements=elements,
        bad=bad,
        stray=stray,
        worst=worst,
        rms=rms,
        max_error=max((p.max_error for p in parts), default=0.0),
        bound=limit,
        first_bad=first,
        got=None if first is None else float(reference.decode(output[first][None])[0]),
        expected=None if first is None else float(reference.expected[first]),
        dtype="fp32" if reference.dtype is None else reference.dtype.name,
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The comparison of some of the rows; the names are those of `Verdict`.

    `first` is ``first_bad`` in the whole output, `squares` the sum of squared errors, and `limit` the bound
    of the element that has the `worst` share of its bound.
    """

    bad: int
    first: tuple[int, ...] | None
    stray: int
    squares: float
    max_error: float
    worst: float
    limit: float


def _part(output: NDArray[Any], reference: Reference, before: NDArray[Any] | None, rows: slice) -> _Part:
    """Compare the slice `rows` of the output with the reference."""
    expected, bound = reference.expected[rows], reference.bound[rows]
    inside = tuple(slice(0, n) for n in expected.shape)
    got = reference.decode(output[rows][inside])
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.subtract(got, expected)
        np.abs(error, out=error)
        good = error <= bound  # False where either side is NaN
        if not good.all():
            error[got == expected] = 0.0  # for equal infinities the difference is NaN
            good = error <= bound
        if (unbounded := np.isinf(bound)).any():
            error[good & unbounded] = 0.0
        shares = np.divide(error, bound, out=got)
    at = int(np.argmax(shares))  # the first NaN, if there is one
    if math.isnan(shares.flat[at]):
        shares[error == 0] = 0.0  # 0 / 0: no error and a bound of 0
        at = int(np.argmax(shares))
    bad, first = int(good.size - np.count_nonzero(good)), None
    if bad:
        index = np.unravel_index(int(np.argmin(good)), good.shape)
        first = (rows.start + int(index[0]), *map(int, index[1:]))
    worst, max_error = _number(shares.flat[at]), _number(error.max())
    padded = before is not None and output.shape != reference.expected.shape
    return _Part(
        bad=bad,
        first=first,
        stray=_changed_outside(output[rows], before[rows], inside) if padded and before is not None else 0,
        squares=float(np.square(error, out=error).sum()),
        max_error=max_error,
        worst=worst,
        limit=float(bound.flat[at]) if worst > 0 else 0.0,
    )


def _number(largest: float) -> float:
    """Return `largest` as a float, with NaN replaced by inf, which ranks above every number."""
    return math.inf if math.isnan(largest) else float(largest)


def _changed_outside(output: NDArray[Any], before: NDArray[Any], inside: tuple[slice, ...]) -> int:
    """Count the elements outside of `inside` whose bits differ between `before` and `output`."""
    words = np.dtype(f"u{output.dtype.itemsize}")
    changed = output.view(words) != before.view(words)
    changed[inside] = False
    return int(np.count_nonzero(changed))
