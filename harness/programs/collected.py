"""Collects what a program did, kernel by kernel, and says what is wrong."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harness.emulator import Counts, Finding
from harness.emulator.watch.counts import total
from harness.programs.events import Event, Launched, Misused, Raced, Refused, Said, Stopped, Unwaited
from harness.sass.binary import demangled

FAILED, REFUSED = "FAILED", "refused"


@dataclass(kw_only=True)
class KernelRuns:
    """All launches of one kernel.

    kernel: its PTX name
    findings: each with the first launch that had it, counted from 1, among them notices
    blocks, ran: of all launches together; fewer ran where only a sample was asked for
    errors: why launches were given up; `refused` if the emulator does not know an instruction
    """

    kernel: str
    launches: int = 0
    threads: int = 0
    blocks: int = 0
    ran: int = 0
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    findings: dict[tuple[object, ...], tuple[Finding, int, Launched]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    refused: bool = False

    def add(self, launch: Launched) -> None:
        """Add one launch."""
        self.launches += 1
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        self.blocks += blocks
        self.ran += launch.blocks
        self.threads += blocks * launch.block[0] * launch.block[1] * launch.block[2]
        self.counts = total([self.counts, launch.counts])
        self.seconds += launch.seconds
        for finding in launch.findings:
            key = (finding.kind, finding.sources, finding.variable, finding.benign)
            old = self.findings.get(key)
            if old is None:
                self.findings[key] = finding, self.launches, launch
            else:
                more = replace(old[0], seen=old[0].seen + finding.seen)
                self.findings[key] = more, old[1], old[2]
        if launch.error and launch.error not in self.errors:
            self.errors.append(launch.error)
            self.refused |= launch.refused

    @property
    def status(self) -> str:
        """Return the verdict: a notice is no failure."""
        wrong = any(not f.benign for f, *_ in self.findings.values())
        if wrong or (self.errors and not self.refused):
            return FAILED
        return REFUSED if self.refused else "ok"

    def row(self, name: str) -> dict[str, Any]:
        """Return it as a row of a record, in which the kernel is called `name`."""
        found = [
            asdict(f) | {"launch": number, "called": {"file": first.place.file, "line": first.place.line}}
            for f, number, first in self.findings.values()
        ]
        return {
            "kernel": name,
            "params": {},
            "shape": f"{self.launches} launches",
            "entry": self.kernel,
            "launches": self.launches,
            "threads": self.threads,
            "blocks": self.blocks,
            "ran": self.ran,
            "seconds": self.seconds,
            "status": self.status,
            "detail": "; ".join(self.errors),
            "findings": [f for f in found if not f["benign"]],
            "notices": [f for f in found if f["benign"]],
            "total": {name: n for name, n in asdict(self.counts).items() if isinstance(n, int)},
            "emulated": {
                "intensity": self.counts.intensity,
                "sectors_per_request": self.counts.sectors_per_request,
                "ways": self.counts.ways,
            },
        }


@dataclass(kw_only=True)
class Run:
    """One run of a program.

    kernels: in the order of their first launches
    misuses, refusals: calls of the runtime that a GPU's would refuse, and those that only the emulator does
    unwaited: uses of memory that the device may still be writing
    races: operations of two streams, or branches of a graph, that nothing orders and that use the same bytes
    stopped: the launch in which time was over
    code: what ``main`` returned, or the program gave to exit; negative for the signal that ended it
    timed_out: host code had not ended, either
    """

    kernels: dict[str, KernelRuns] = field(default_factory=dict)
    misuses: Counter[Said] = field(default_factory=Counter)
    unwaited: Counter[Said] = field(default_factory=Counter)
    races: Counter[Said] = field(default_factory=Counter)
    refusals: Counter[Said] = field(default_factory=Counter)
    stopped: Stopped | None = None
    code: int = 0
    timed_out: bool = False

    def add(self, event: Event) -> None:
        """Add what happened."""
        if isinstance(event, Launched):
            self.kernels.setdefault(event.kernel, KernelRuns(kernel=event.kernel)).add(event)
        elif isinstance(event, Misused):
            self.misuses[event] += 1
        elif isinstance(event, Unwaited):
            self.unwaited[event] += 1
        elif isinstance(event, Raced):
            self.races[event] += 1
        elif isinstance(event, Refused):
            self.refusals[event] += 1
        else:
            self.stopped = event

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """Return what kernels are called, ``add<float>``, by their PTX names; refused ones, too."""
        told = re.findall(
            r"\b_Z\w+", " ".join(event.what for event in (*self.misuses, *self.unwaited, *self.races))
        )
        return {ptx: short(name) for ptx, name in demangled([*self.kernels, *told]).items()}

    @property
    def failed(self) -> bool:
        """Return whether something is wrong: a finding, a refused call, or how the program ended."""
        wrong = any(one.status == FAILED for one in self.kernels.values())
        # Of results of which a part was not computed a program may well say that they are wrong.
        ended = self.code < 0 or (self.code > 0 and not self.sampled)
        return bool(self.misuses or self.unwaited or self.races or wrong or ended)

    @property
    def sampled(self) -> bool:
        """Return whether only some blocks of a launch ran."""
        return any(one.ran < one.blocks and not one.errors for one in self.kernels.values())

    @property
    def complete(self) -> bool:
        """Return whether all that the program asked for was done."""
        refused = any(one.refused for one in self.kernels.values())
        return not (self.refusals or self.stopped or self.timed_out or refused)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of a record for each kernel."""
        return [one.row(self.names[one.kernel]) for one in self.kernels.values()]

    def meta(self) -> dict[str, Any]:
        """Return what a record says of the whole program."""
        return {
            "misuses": [_call(event, times) for event, times in self.misuses.items()],
            "unwaited": [_call(event, times) for event, times in self.unwaited.items()],
            "races": [_call(event, times) for event, times in self.races.items()],
            "refusals": [_call(event, times) for event, times in self.refusals.items()],
            "stopped": asdict(self.stopped) if self.stopped else None,
            "timed_out": self.timed_out,
            "exit_code": self.code,
        }


def short(name: str) -> str:
    """Return a kernel's name without its parameters and what it returns: ``add<float>``."""
    text = name.removeprefix("void ")
    depth = 0
    for place, c in enumerate(text):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0 and not text.startswith("(anonymous namespace)", place):
            return text[:place]
    return text


def _call(event: Said, times: int) -> dict[str, Any]:
    places = [{"file": one.file, "line": one.line} for one in (event.place, *event.others)]
    return {"what": event.what, **places[0], "times": times} | ({"others": places[1:]} if places[1:] else {})
