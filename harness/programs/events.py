"""Events of a program that runs, as its process tells them."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.emulator import Counts, Finding
from harness.programs.places import Place


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A launch that the emulator ran, or gave up.

    kernel: its PTX name
    findings: with notices among them
    error: why it was given up, "" if it ended; `refused` for an instruction that the emulator does not know
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    place: Place
    findings: tuple[Finding, ...] = ()
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0
    blocks: int = 0
    error: str = ""
    refused: bool = False


@dataclass(frozen=True, kw_only=True)
class Said:
    """Something that host code does, and where; `others` are places that belong to it."""

    what: str
    place: Place
    others: tuple[Place, ...] = ()


class Misused(Said):
    """A call that a GPU's runtime refuses, too."""


class Unwaited(Said):
    """A use of memory that the device may still be using."""


class Raced(Said):
    """Two operations that nothing orders access the same bytes; the place is that of the second."""


class Refused(Said):
    """A call that only the emulator refuses."""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A launch that time was over in; none after it ran."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    place: Place


Event = Launched | Misused | Unwaited | Raced | Refused | Stopped
