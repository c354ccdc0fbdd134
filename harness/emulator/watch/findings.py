"""Findings of the emulator: each fault of a kernel once, with how often it was seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.emulator.ptx.declarations import RESERVED

_PLACE = re.compile(r"\[\d+\]")


class _Line(NamedTuple):
    line: int
    file: str


class Source(_Line):
    """A source line, of the kernel's own file or of the header `file`; line 0 is unknown.

    caller: the line of the kernel that calls the function of this line, 0 for one of the kernel itself
    headers: those with the functions that this line calls to get at the code

    Sources with other callers or headers are equal.
    """

    caller: int
    headers: tuple[str, ...]

    def __new__(cls, line: int = 0, file: str = "", caller: int = 0, headers: tuple[str, ...] = ()) -> Source:
        found = super().__new__(cls, line, file)
        found.caller, found.headers = caller, headers
        return found

    def __str__(self) -> str:
        called = f", called in line {self.caller}" if self.caller else ""
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}{called}"


UNKNOWN = Source()


class Index3(NamedTuple):
    """The index of a thread in its block, or of a block in its grid."""

    x: int
    y: int
    z: int

    def __str__(self) -> str:
        return f"({self.x}, {self.y}, {self.z})"


ORIGIN = Index3(0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault of the kernel.

    kind: ``RAW hazard``, ``WAR hazard``, ``WAW hazard``, ``global race``, ``missing cp.async wait``,
      ``divergent barrier``, ``warp mask``, ``undefined shuffle``, ``out of bounds``, ``misaligned``,
      ``uninitialised read``, ``constant written``, ``trap`` and others of Hopper's units
    message: what happened, with the threads and blocks of the first time
    sources: the source lines; for a hazard those of the earlier and of the later access
    variable: the shared variable, global buffer or register
    offset: byte of the variable at which the access begins or the conflict lies; negative before the variable
    distance: for an access out of bounds, bytes by which it starts before the variable or ends after it
    threads, block: who did it, the first time; for a hazard in the order of `sources`
    seen: how many times
    benign: a notice: a race of stores of the same value, whose order the result does not show, a shuffle
      whose value is undefined, which matters only where it is used, a proxy fence in another place than that
      of NVIDIA's guide
    """

    kind: str
    message: str
    sources: tuple[Source, ...]
    variable: str = ""
    offset: int = 0
    distance: int = 0
    threads: tuple[Index3, ...] = ()
    block: Index3 = ORIGIN
    seen: int = 1
    benign: bool = False

    def __str__(self) -> str:
        lines = " and ".join(str(source) for source in self.sources)
        return f"{self.kind}: {lines}: {self.message}"


class Rewatch(Exception):
    """Raised where the launch has to run again from the start and watch more closely.

    index: of the allocation whose reads were not kept, -1 for none
    """

    def __init__(self, index: int = -1) -> None:
        super().__init__(index)
        self.index = index


class Findings:
    """Collects findings; a fault that is seen again only raises its count.

    provisional: the launch is not watched closely enough for a finding to be certain: the first one starts it
      over
    """

    def __init__(self, *, provisional: bool = False) -> None:
        self._found: dict[tuple[object, ...], Finding] = {}
        self.ends: dict[str, int] = {}  # of buffers past whose end the kernel went, in bytes, by name
        self._provisional = provisional

    def add(self, kind: str, key: tuple[object, ...], times: int, make: Callable[[], Finding]) -> None:
        """Record a fault that was seen `times` times.

        key: identifies the fault among those of its kind; what it names in arrays, such as the buffers to
          which the pointers of a table lead, is alike
        make: returns the finding; called only when the fault is new

        Raises Rewatch while findings are provisional.
        """
        if self._provisional:
            raise Rewatch
        whole = (kind, *(_PLACE.sub("[]", part) if isinstance(part, str) else part for part in key))
        old = self._found.get(whole)
        self._found[whole] = replace(old, seen=old.seen + times) if old else replace(make(), seen=times)

    def reached(self, variable: str, end: int) -> None:
        """Record that the kernel went as far as `end`, in bytes, past the end of a buffer."""
        self.ends[variable] = max(end, self.ends.get(variable, 0))

    def all(self) -> tuple[Finding, ...]:
        """Return the findings, ordered by source lines and kind.

        What cooperative groups do in the memory that the system reserves for them is left out: all of it is
        CUDA's own code, and a tile of several warps reduces with lanes that only their shuffles order.
        """
        own = (f for f in self._found.values() if f.variable != RESERVED or f.kind == "out of bounds")
        return tuple(sorted(own, key=lambda found: (found.sources, found.kind)))
