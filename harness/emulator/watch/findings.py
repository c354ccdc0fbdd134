"""What the emulator found wrong: each distinct fault once, with how often it was seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple


class Source(NamedTuple):
    """A line of the kernel's own file, or of `file` where it came from a header. 0 is unknown."""

    line: int = 0
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}"


UNKNOWN = Source()


class Index3(NamedTuple):
    """A thread in its block or a block in its grid."""

    x: int
    y: int
    z: int

    def __str__(self) -> str:
        return f"({self.x}, {self.y}, {self.z})"


ORIGIN = Index3(0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault of the kernel.

    kind: ``RAW hazard``, ``WAR hazard``, ``WAW hazard``, ``missing cp.async wait``, ``divergent barrier``,
      ``out of bounds``, ``misaligned``, ``uninitialised read`` or ``global race``
    sources: where in the kernel; of a hazard the earlier access first, then the later one
    variable: the shared variable, or the name of the global buffer
    offset: bytes from its start; of an out-of-bounds access the first byte outside it
    distance: of an out-of-bounds access, bytes from the nearest byte that is the buffer's own
    threads, block: who did it, the first time; of a hazard in the order of `sources`
    seen: how many times
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

    def __str__(self) -> str:
        lines = " and ".join(str(source) for source in self.sources)
        return f"{self.kind}: {lines}: {self.message}"


class Findings:
    """Gathers findings; a fault seen again only counts."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Finding] = {}

    def add(self, kind: str, key: tuple[object, ...], times: int, make: Callable[[], Finding]) -> None:
        """`key` tells faults of one kind apart; `make` is called for the first of them only."""
        whole = (kind, *key)
        old = self._found.get(whole)
        self._found[whole] = replace(old, seen=old.seen + times) if old else replace(make(), seen=times)

    def all(self) -> tuple[Finding, ...]:
        return tuple(sorted(self._found.values(), key=lambda found: (found.sources, found.kind)))
