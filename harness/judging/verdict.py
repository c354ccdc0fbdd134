"""The verdict on a submission, and the checks that it is made of.

`CHECKS` lists every check with the exploits that it excludes; docs/judge.md shows the list. A check is made
in up to three places: ``static`` (the text and its PTX), ``emulator`` and ``GPU``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.errors import INCONCLUSIVE_EXIT

STATIC, EMULATOR, GPU = "static", "emulator", "GPU"
PASSED, FAILED, WARNING, SKIPPED = "passed", "failed", "warning", "not possible here"
ACCEPTED, REJECTED, INCOMPLETE = "accepted", "rejected", "not everything checked"
EXIT_CODES = {ACCEPTED: 0, REJECTED: 1, INCOMPLETE: INCONCLUSIVE_EXIT}

# Each check: where it is made, and what it excludes.
CHECKS: dict[str, tuple[tuple[str, ...], str]] = {
    "sealed": (
        (STATIC,),
        "Python of the submitter, includes from outside its folder, texts that exhaust, and those that know "
        "where or when they are compiled",
    ),
    "compiles": ((STATIC,), "code that the compiler refuses, or that exhausts it"),
    "clocks": ((STATIC,), "work that depends on the time, on the number of the launch or of its graph"),
    "L2 persistence": ((STATIC,), "lines kept in L2 for the next launch"),
    "device heap": ((STATIC,), "memory that outlives the launch"),
    "state": (
        (STATIC,),
        "results kept in variables of the module (a warning: semaphores are kept there, too)",
    ),
    "waiting": ((STATIC,), "spinning until something changes (a warning: stream-K waits, too)"),
    "odd instructions": (
        (STATIC,),
        "traps, printing, prefetches, discards, the number of the SM or warp (a warning)",
    ),
    "other architectures": ((STATIC,), "code that may be other code for another GPU or compiler (a warning)"),
    "drawn shapes": ((EMULATOR, GPU), "a kernel that knows the shapes at which it is verified"),
    "values": ((EMULATOR, GPU), "less precision, terms left out, ranges not covered"),
    "spoilt output": ((EMULATOR, GPU), "work done only where the output holds a value that it knows"),
    "fresh data": ((EMULATOR, GPU), "results kept from an earlier launch, wherever they are kept"),
    "near copies": (
        (EMULATOR, GPU),
        "results kept for inputs that it recognises by something that they share",
    ),
    "own output": ((EMULATOR, GPU), "work left out where the output looks finished"),
    "launch count": ((EMULATOR, GPU), "launches that are counted, and later ones that do less"),
    "inputs intact": ((EMULATOR, GPU), "inputs overwritten"),
    "stray writes": ((EMULATOR, GPU), "writes before, behind and between the rows of a buffer"),
    "same bits": ((EMULATOR, GPU), "results that differ from launch to launch (a warning within the bound)"),
    "races and memory": ((EMULATOR,), "races, accesses out of bounds, reads of what nobody wrote, barriers"),
    "dead matrix code": (
        (EMULATOR,),
        "matrix instructions that raise the ceiling and do not make the product",
    ),
    "timed launches": ((GPU,), "launches that are right only when nobody times them"),
    "ceiling": ((GPU,), "times that this GPU cannot have"),
    "ends": ((STATIC, EMULATOR, GPU), "hangs, crashes, faults, memory and output without end"),
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check in one place: a name of `CHECKS`, its outcome, and the reason in words."""

    name: str
    where: str
    outcome: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The time at one size.

    `seconds` is the median of a launch, None where it was not timed for the reason in `detail`. `ratio` is
    the reference's time over the kernel's with its interval (low, estimate, high): above 1 the kernel is
    faster. `sm_hz` is the SM clock meanwhile in Hz, and `protections` what kept the times honest.
    """

    shape: str
    regime: str
    seconds: float | None
    ratio: tuple[float, float, float] | None = None
    against: str = ""
    of_ceiling: float | None = None
    sm_hz: float | None = None
    detail: str = ""
    protections: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of judging one submission.

    `sha256` is that of the kernel file and of everything in its folder that it includes. `seed` repeats the
    run. `shapes` are the sizes at which it was held against float64, `requires` the sizes that it takes,
    in its own words. `about` has versions, the GPU, and why there was none.
    """

    kernel: str
    sha256: str
    problem: str
    dtype: str
    seed: int
    checks: tuple[Check, ...]
    times: tuple[Timed, ...] = ()
    shapes: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    seconds: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that it failed."""
        return tuple(c for c in self.checks if c.outcome == FAILED)

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the checks that could be made nowhere, in the order of `CHECKS`."""
        made = {c.name for c in self.checks if c.outcome != SKIPPED}
        return tuple(name for name in CHECKS if name not in made)

    @property
    def status(self) -> str:
        """REJECTED if a check failed, INCOMPLETE if one was made nowhere, else ACCEPTED.

        Checks that only the emulator makes are not missed where it cannot run the kernel and a GPU did.
        """
        if self.failed:
            return REJECTED
        needed = [name for name in self.missing if not self.times or GPU in CHECKS[name][0]]
        return INCOMPLETE if needed else ACCEPTED

    @property
    def exit_code(self) -> int:
        """0 for ACCEPTED, 1 for REJECTED, 3 for INCOMPLETE."""
        return EXIT_CODES[self.status]

    def __str__(self) -> str:
        """Return the verdict in one line: ``mine: rejected: fresh data (GPU): ...``."""
        why = [f"{c.name} ({c.where}): {c.reason}" for c in self.failed]
        return ": ".join([self.kernel, self.status, *why[:1]])

    def record(self) -> dict[str, Any]:
        """Return the verdict as values of JSON."""
        return {"verdict": self.status, "exit_code": self.exit_code, **asdict(self)}
