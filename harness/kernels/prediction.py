"""Parse a kernel's predictions: ``sectors <= 0.16 of 01_naive``, ``seconds < 1 of cuBLAS at N=4096``.

    FIGURE [with PARAMETER=VALUE...] <= NUMBER [of KERNEL [with PARAMETER=VALUE...]] [at AXIS=VALUE...]

The comparison may be <, <=, >, >= or ==. A prediction compares one of `FIGURES` with a number, or with a
share of another kernel's figure. ``seconds`` need ``of`` and ``at``, and cannot have ==. Both kernels are
launched on the same problem, that of ``at``, or else the one at which the check is made. Parameters that are
not named have their defaults. A prediction is checked with what the emulator counts and the compiler reports,
which needs no GPU, and with ncu's counters; ``seconds`` are checked with result files of ``harness bench``.

In a file of several element types, KERNEL means that kernel in the type of the one that predicts, if it has
that type and its name selects no other (`harness.kernels.catalog.related`).
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.errors import UsageError

SECONDS, RACES = "seconds", "races"
# The figures of a whole launch, each with its unit. Requests and bytes are in the widths of the machine code.
FIGURES = {
    "flops": "FLOP",
    "global_requests": "warps' requests of global memory",
    "sectors": "32-byte sectors that they touch",
    "sectors_per_request": "sectors a request",
    "global_bytes": "bytes that threads ask global memory for",
    "intensity": "FLOP a byte of those",
    "shared_requests": "warps' requests of shared memory",
    "wavefronts": "passes that they take",
    "conflicts": "wavefronts that bank conflicts add",
    "ways": "wavefronts over those without conflicts",
    "barriers": "threads' arrivals at a block's barrier",
    RACES: "pairs of lines between which warps race",
    "registers": "a thread",
    "shared": "bytes of shared memory a block",
    "occupancy": "theoretical, 0 to 1",
    SECONDS: "of a launch, in a result file",
}
_VALUES = r"((?:\s+\w+=\d+)+)"
_WITH = rf"(?:\s+with{_VALUES})?"
_FORM = re.compile(
    rf"(\w+){_WITH}\s*(<=|>=|==|<|>)\s*(\d+(?:\.\d+)?)(?:\s+of\s+(\S+){_WITH})?(?:\s+at{_VALUES})?\Z"
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}

Figures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One prediction, parsed.

    `bound` is a number, or with `of` a share of that kernel's figure. `params` and `of_params` are the
    parameters of the two kernels that are not at their defaults, and `at` the size; an empty one means any.
    """

    text: str
    figure: str
    comparison: str
    bound: float
    of: str = ""
    params: Mapping[str, int] = field(default_factory=dict)
    of_params: Mapping[str, int] = field(default_factory=dict)
    at: Mapping[str, int] = field(default_factory=dict)

    def holds(self, ours: Figures, theirs: Figures | None = None) -> bool | None:
        """Return True where the prediction holds, and None where a figure is not known."""
        value, limit = ours.get(self.figure), self.limit(theirs)
        return None if value is None or limit is None else _COMPARE[self.comparison](value, limit)

    def limit(self, theirs: Figures | None) -> float | None:
        """Return the value that the figure is compared with, None where the other kernel's is not known."""
        if not self.of:
            return self.bound
        other = (theirs or {}).get(self.figure)
        return None if other is None else self.bound * other


def parse(text: str) -> Prediction:
    """Parse one prediction. Raises UsageError that shows the text and the accepted form."""
    match = _FORM.match(text.strip())
    if not match:
        raise UsageError(
            f"cannot read the prediction {text!r}",
            hint="such as 'sectors <= 0.16 of 01_naive', 'conflicts == 0', 'seconds < 1 of cuBLAS at N=4096'",
        )
    figure, params, comparison, bound, of, of_params, at = match.groups()
    if figure not in FIGURES:
        close = difflib.get_close_matches(figure, FIGURES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"figures: {', '.join(FIGURES)}"
        raise UsageError(f"nothing counts {figure!r}", hint=hint)
    if figure == SECONDS and (not of or not at or comparison == "=="):
        raise UsageError(
            f"{text!r} is of no use: times differ from GPU to GPU, and no two are equal",
            hint="such as 'seconds <= 0.9 of 13_cp_async at N=4096'",
        )
    if figure == RACES and of:
        raise UsageError(f"{text!r}: races of two kernels are not compared", hint="such as 'races >= 1'")
    return Prediction(
        text=text.strip(),
        figure=figure,
        comparison=comparison,
        bound=float(bound),
        of=of or "",
        params=_values(params),
        of_params=_values(of_params),
        at=_values(at),
    )


def _values(text: str | None) -> dict[str, int]:
    """Read ``M=1 N=4096``."""
    pairs = [word.split("=") for word in (text or "").split()]
    found = {name: int(value) for name, value in pairs}
    if len(found) < len(pairs):
        raise UsageError(f"'{(text or '').strip()}' names one of them twice")
    return found
