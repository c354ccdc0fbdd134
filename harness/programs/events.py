"""What happens while a program runs, as the process that it runs in tells it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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

    def counted(self, counts: Counts, seconds: float, blocks: int) -> Launched:
        """Return it as one that ended, and of which `blocks` ran."""
        return replace(self, counts=counts, seconds=seconds, blocks=blocks)

    def ended(self, error: str, *, refused: bool) -> Launched:
        """Return it as one that was given up."""
        return replace(self, error=error, refused=refused)


@dataclass(frozen=True, kw_only=True)
class _Said:
    """Something that host code does, and where."""

    what: str
    place: Place


class Misused(_Said):
    """A call that a GPU's runtime refuses, too."""


class Unwaited(_Said):
    """A use of memory that the device may still be using."""


class Refused(_Said):
    """A call that only the emulator refuses."""


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A launch that time was over in; none after it ran."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    place: Place


Event = Launched | Misused | Unwaited | Refused | Stopped
