"""Programs without a GPU: host code runs as it is, and the emulator runs what it launches.

    run = run_program([Path("saxpy.cu")], ["1000"])
    run.kernels, run.misuses, run.code

nvcc compiles the program, and links it with a CUDA runtime of harness' own, so that sizes, contents and the
order of launches are the program's. Follow a launch through `build`, `child`, `runtime`, `registered` and
`launches`.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from harness.emulator import Counts, Finding
from harness.emulator.watch.counts import total
from harness.errors import HarnessError
from harness.programs import build
from harness.programs.events import Event, Launched, Misused, Refused, Stopped
from harness.support import tools

__all__ = ["KernelRuns", "Run", "run_program"]

BUDGET = 50_000_000  # instructions of a batch of blocks, unless it is said otherwise
_GRACE = 5.0  # seconds that host code has when time for launches is over


@dataclass(kw_only=True)
class KernelRuns:
    """What the launches of one kernel had in common.

    kernel: its PTX name
    findings: each with the first launch that had it, counted from 1, among them notices
    errors: why launches were given up; `refused` if the emulator does not know an instruction
    """

    kernel: str
    launches: int = 0
    threads: int = 0
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    findings: dict[tuple[object, ...], tuple[Finding, int, Launched]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    refused: bool = False

    def add(self, launch: Launched) -> None:
        """Add one launch."""
        from dataclasses import replace

        self.launches += 1
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
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


@dataclass(kw_only=True)
class Run:
    """What a program did.

    kernels: in the order of their first launches
    misuses, refusals: calls of the runtime that a GPU's would refuse, and those that only the emulator does
    stopped: the launch in which time was over
    code: what ``main`` returned, or the program gave to exit; negative for the signal that ended it
    timed_out: host code had not ended, either
    """

    kernels: dict[str, KernelRuns] = field(default_factory=dict)
    misuses: dict[Misused, int] = field(default_factory=dict)
    refusals: dict[Refused, int] = field(default_factory=dict)
    stopped: Stopped | None = None
    code: int = 0
    timed_out: bool = False

    def add(self, event: Event) -> None:
        """Add what happened."""
        if isinstance(event, Launched):
            self.kernels.setdefault(event.kernel, KernelRuns(kernel=event.kernel)).add(event)
        elif isinstance(event, Misused):
            self.misuses[event] = self.misuses.get(event, 0) + 1
        elif isinstance(event, Refused):
            self.refusals[event] = self.refusals.get(event, 0) + 1
        else:
            self.stopped = event

    @property
    def findings(self) -> list[Finding]:
        """Return the findings of all kernels, without notices."""
        return [f for one in self.kernels.values() for f, *_ in one.findings.values() if not f.benign]


def run_program(
    sources: Sequence[Path],
    arguments: Sequence[str] = (),
    *,
    include: Sequence[str] = (),
    flags: Sequence[str] = (),
    seconds: float = 120.0,
    schedule: str = "lockstep",
    seed: int = 1,
    budget: int = BUDGET,
    sms: int = 132,
    quiet: bool = False,
) -> Run:
    """Build a program of CUDA sources and run it, each kernel on the emulator.

    sources: ``.cu`` and ``.cpp`` files, one of them with ``main``
    arguments: of the program
    include, flags: of the build, see `harness.programs.build.program`
    seconds: after which no launch goes on; host code has a few more
    schedule, seed, budget: see `harness.emulator.emulate`
    sms: multiprocessors that the device says it has
    quiet: what the program prints goes nowhere

    Raises UsageError for sources without ``main``, BuildError if nvcc refuses them, MissingDependency without
    nvcc or a C++ compiler.
    """
    with tempfile.TemporaryDirectory(prefix="harness-program-") as folder:
        program = build.program(sources, Path(folder), include=include, flags=flags)
        how = {"schedule": schedule, "seed": seed, "budget": budget, "sms": sms}
        asked: dict[str, object] = {
            "program": str(program),
            "arguments": [sources[0].stem, *arguments],
            "sources": [str(path.resolve()) for path in sources],
            "foreign": [str(build.compilers().include), "/usr/"],
        }
        return _followed(asked, how, seconds, quiet)


def _followed(asked: dict[str, object], how: dict[str, object], seconds: float, quiet: bool) -> Run:
    """Start the program's process, collect what it tells, and end it when time is over."""
    reading, writing = os.pipe()
    run = Run()
    end = time.monotonic() + seconds
    asked |= {"pipe": writing, "how": how | {"until": end}}
    nowhere = subprocess.DEVNULL if quiet else None
    with os.fdopen(reading, "rb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.programs.child", json.dumps(asked)],
            pass_fds=[writing],
            env=tools.environment(),
            stdout=nowhere,
            stderr=nowhere,
        )
        os.close(writing)
        with _ended(process, end + _GRACE) as late:
            for event in _events(stream):
                run.add(event)
            process.wait()
    run.code, run.timed_out = process.returncode, late.is_set()
    return run


@contextmanager
def _ended(process: subprocess.Popen[bytes], end: float) -> Iterator[threading.Event]:
    """Kill a process that goes on after `end`, or when this context is left by an exception."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(max(0.0, end - time.monotonic()), kill)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _events(stream: BinaryIO) -> Iterator[Event]:
    """Yield what comes through the pipe until it is closed."""
    while True:
        try:
            yield pickle.load(stream)
        except EOFError:
            return
        except (pickle.UnpicklingError, AttributeError, ValueError, IndexError) as e:
            raise HarnessError(f"the program wrote into harness' pipe: {e}") from None
