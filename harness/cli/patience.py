"""How long kernels without front matter may take together, and which of them were not reached."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.bench.row import Measurement
    from harness.kernels.spec import Kernel, Variant
    from harness.launch.builds import Built, Skipped
    from harness.problems.protocol import Axes, Problem

# Shares of the time: for guessing how kernels are launched, compiling, running, and counting again.
READ, BUILT, ENDED, COUNTED = 1 / 3, 4 / 5, 5 / 4, 5 / 2
_LEAST = 10  # seconds for compiling one kernel: without any there is nothing to say
# Instructions of global memory, or of any: what TMA and textures ask for is not counted as a request.
_ACCESS = re.compile(r"^\s*(?:@!?%\w+\s+)?(?:ld|st|atom|red)\.(?!param|shared|local|const)", re.MULTILINE)
_NAMED = 6  # kernels that were not run


class Patience:
    """The time from now on in which kernels are begun, if none of them has front matter.

    A file of somebody else's may have dozens of kernels and instances: whoever waits for a minute is told of
    those that were run, and which were not. A third of it is for reading, and four fifths for compiling at
    most.
    """

    def __init__(self, seconds: float) -> None:
        self._begun, self._seconds = time.monotonic(), seconds
        self._variants: Sequence[Variant] = ()
        self._unread: list[str] = []

    def read(self, kernels: Sequence[Kernel]) -> Iterator[Kernel]:
        """Yield the kernels for which there is time to guess how they are launched, the first in any case."""
        limited = all(kernel.plain for kernel in kernels)
        for n, kernel in enumerate(kernels):
            if limited and n and time.monotonic() - self._begun > READ * self._seconds:
                self._unread = [kernel.name for kernel in kernels[n:]]
                return
            yield kernel

    def unread(self) -> str:
        """Return how many kernels were not yielded, as a hint; "" if none."""
        said = f"{READ * self._seconds:.3g} s were over before {len(self._unread)} others were read"
        return f"{said}: --seconds gives more time, --entry names a kernel" if self._unread else ""

    def ordered(self, variants: Sequence[Variant]) -> Sequence[Variant]:
        """Return the variants to build in their order, with one instance of each template first."""
        if not all(v.kernel.plain for v in variants):
            return variants
        first = {v.entry.partition("<")[0]: v for v in reversed(variants)}
        self._variants = sorted(variants, key=lambda v: first[v.entry.partition("<")[0]] is not v)
        return self._variants

    def until(self, share: float) -> float:
        """Return what the monotonic clock shows when a share of the time is over."""
        return self._begun + share * self._seconds if self._variants else math.inf

    def end(self) -> float:
        """Return what the monotonic clock shows when nothing is compiled any more, be it the first kernel."""
        return max(self.until(ENDED), self._begun + _LEAST)

    def kept(self, rows: Iterable[Measurement]) -> Iterator[Measurement]:
        """Yield rows, of which none but the first is begun once the time is over."""
        for row in rows:
            yield row
            if time.monotonic() > self.until(1):
                return

    def reached(
        self,
        rows: Sequence[Measurement],
        built: Sequence[Built],
        skipped: Sequence[Skipped],
        points: dict[type[Problem], list[Axes]],
    ) -> tuple[list[Built], dict[type[Problem], list[Axes]], str]:
        """Return what was built and run, its sizes, and a remark on the others, "" if there are none.

        Of the others without front matter, those that did not compile were not verified either.
        """
        from harness.bench.row import LATE
        from harness.problems.registry import resolve

        slow = [row.label for row in rows if row.status == LATE]
        known = {row.label for row in rows} | {one.variant.label for one in skipped}
        late = [v.label for v in self._variants if v.label not in known] + self._unread
        left = [one for one in built if one.label not in late]
        classes = {resolve(one.variant.kernel) for one in left}
        remarks = [f"NOT ENDED after {self._seconds * ENDED:g} s: {', '.join(slow)}"] if slow else []
        if late:
            more = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
            remarks.append(f"NOT RUN, as {self._seconds:g} s were over: {', '.join(late[:_NAMED])}{more}")
        if remarks:
            remarks.append("--seconds gives more time, --entry names a kernel, and -a has smaller sizes")
        busy = {row.label for row in rows if not _idle(row)}
        if idle := dict.fromkeys(row.label for row in rows if row.label not in busy):
            remarks.append(f"NOTHING DONE, all threads leave before they read or write: {', '.join(idle)}")
            remarks.append("-a has other sizes, --block and --grid other launches")
        if said := doubts(rows):
            remarks.append(f"IN DOUBT, as the kernel goes farther than the text says: {'; '.join(said)}")
            remarks.append("-a says how long a buffer is")
        if lost := [one.variant.label for one in skipped if one.failed and one.variant.kernel.plain]:
            remarks.append(f"NOT COMPILED: {', '.join(lost)}")
        remark = ". ".join(remarks)
        return left, {cls: axes for cls, axes in points.items() if cls in classes}, remark


def doubts(rows: Iterable[Measurement]) -> list[str]:
    """Return the buffers whose lengths are in doubt, for each kernel once, with what was guessed first."""
    from harness.launch.further import unsure

    found = dict[tuple[str, str], str]()
    for row in rows:
        for option in unsure(row.problem):
            found.setdefault((row.label, option.partition("=")[0]), f"{row.label}, {option}")
    return [*found.values()]


def _idle(row: Measurement) -> bool:
    """Return that a guessed launch is right only because no thread of it asked for global memory."""
    from harness.bench.row import UNVERIFIED

    run, built = row.emulation, row.built
    if run is None or built is None or not built.variant.kernel.plain or row.status != UNVERIFIED:
        return False
    total = run.total
    asked = total.global_requests or total.boxes or total.atomics or run.output
    own = built.cubin.ptx.partition(f".entry {built.cubin.entry}")[2].partition(".entry ")[0]
    return not asked and _ACCESS.search(own) is not None
