"""A kernel's claim in figures: ``sectors <= 0.16 of 01_naive``, ``conflicts == 0``.

A prediction compares one of `FIGURES` with a number, or with a share of another kernel's, both launched on
the same problem. It is checked with what the emulator counts and what the compiler reports: no GPU needed.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.errors import UsageError

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
    "registers": "a thread",
    "shared": "bytes of shared memory a block",
    "occupancy": "theoretical, 0 to 1",
}
_FORM = re.compile(r"(\w+)\s*(<=|>=|==|<|>)\s*(\d+(?:\.\d+)?)(?:\s+of\s+(\S+))?\Z")
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
    """`of` names the kernel whose figure `bound` is multiplied with; empty where it is a number."""

    text: str
    figure: str
    comparison: str
    bound: float
    of: str = ""

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
            hint="such as 'sectors <= 0.16 of 01_naive', 'conflicts == 0'",
        )
    figure, comparison, bound, of = match.groups()
    if figure not in FIGURES:
        close = difflib.get_close_matches(figure, FIGURES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"figures: {', '.join(FIGURES)}"
        raise UsageError(f"nothing counts {figure!r}", hint=hint)
    return Prediction(
        text=text.strip(), figure=figure, comparison=comparison, bound=float(bound), of=of or ""
    )
