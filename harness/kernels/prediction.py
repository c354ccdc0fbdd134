"""A kernel's claim in figures: ``sectors <= 0.16 of 01_naive``, ``seconds < 1 of cuBLAS at N=4096``.

    FIGURE [with PARAMETER=VALUE...] <= NUMBER [of KERNEL [with PARAMETER=VALUE...]] [at AXIS=VALUE...]

A prediction compares one of `FIGURES` with a number, or with a share of another kernel's, both launched on
the same problem: that of ``at``, or whichever the check is made at. Parameters not named have their defaults.
It is checked with what the emulator counts and what the compiler reports, which needs no GPU, with ncu's
counters, and, of ``seconds``, with result files of ``harness bench``.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.errors import UsageError

SECONDS, RACES = "seconds", "races"
# What can be predicted, of a whole launch; requests and bytes in the widths of the machine code.
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
    """`of` names the kernel whose figure `bound` is multiplied with; empty where it is a number. `params` and
    `of_params` are what either's parameters are besides the defaults, `at` the size; empty: any.
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
        """None where a figure is not known; nothing holds of what was not counted."""
        value, limit = ours.get(self.figure), self.limit(theirs)
        return None if value is None or limit is None else _COMPARE[self.comparison](value, limit)

    def limit(self, theirs: Figures | None) -> float | None:
        """What the figure is compared with."""
        if not self.of:
            return self.bound
        other = (theirs or {}).get(self.figure)
        return None if other is None else self.bound * other


def parse(text: str) -> Prediction:
    """Raises UsageError that shows the text and the accepted form."""
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
    """``M=1 N=4096``."""
    pairs = [word.split("=") for word in (text or "").split()]
    found = {name: int(value) for name, value in pairs}
    if len(found) < len(pairs):
        raise UsageError(f"'{(text or '').strip()}' names one of them twice")
    return found
