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
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from harness.programs import build
from harness.programs.collected import KernelRuns, Run
from harness.programs.events import Event
from harness.support import tools

__all__ = ["KernelRuns", "Run", "run_program"]

_BUDGET = 10**15  # instructions: what ends a launch is time
_GRACE = 5.0  # seconds that host code has when time for launches is over


def run_program(
    sources: Sequence[Path],
    arguments: Sequence[str] = (),
    *,
    include: Sequence[str] = (),
    flags: Sequence[str] = (),
    seconds: float = 120.0,
    schedule: str = "lockstep",
    seed: int = 1,
    sms: int = 132,
    sample: int = 0,
    quiet: bool = False,
) -> Run:
    """Build a program of CUDA sources and run it, each kernel on the emulator.

    sources: ``.cu`` and ``.cpp`` files, one of them with ``main``
    arguments: of the program
    include, flags: of the build, see `harness.programs.build.program`
    seconds: after which no launch goes on; host code has a few more
    schedule, seed: see `harness.emulator.emulate`
    sample: of a larger grid run so many blocks, see `harness.emulator.emulate`; results are then incomplete
    sms: multiprocessors that the device says it has
    quiet: what the program prints goes nowhere

    Raises UsageError for sources without ``main``, BuildError if nvcc refuses them, MissingDependency without
    nvcc or a C++ compiler.
    """
    with tempfile.TemporaryDirectory(prefix="harness-program-") as folder:
        program = build.program(sources, Path(folder), include=include, flags=flags)
        how = {"schedule": schedule, "seed": seed, "budget": _BUDGET, "sms": sms, "sample": sample}
        asked: dict[str, object] = {
            "program": str(program),
            "arguments": [sources[0].stem, *arguments],
            "events": str(Path(folder, "events")),
            "called": sorted(build.called(program)),
            "sources": [str(path.resolve()) for path in sources],
            "foreign": [str(build.compilers().include), str(build.OLDER), "/usr/"],
        }
        return _followed(asked, how, seconds, quiet)


def _followed(asked: dict[str, object], how: dict[str, object], seconds: float, quiet: bool) -> Run:
    """Run the program in a process, end it when time is over, and collect what happened."""
    told = Path(str(asked["events"]))
    told.touch()
    end = time.monotonic() + seconds
    asked |= {"how": how | {"until": end}}
    nowhere = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.programs.child", json.dumps(asked)],
        env=tools.environment(),
        stdout=nowhere,
        stderr=nowhere,
        start_new_session=True,  # so that all that it starts can be ended with it
    )
    run = Run()
    try:
        process.wait(seconds + _GRACE)
    except subprocess.TimeoutExpired:
        run.timed_out = True
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        run.code = process.wait()
    for event in _events(told):
        run.add(event)
    return run


def _events(told: Path) -> Iterator[Event]:
    """Yield what a program's process wrote; the last of it may be cut off."""
    with told.open("rb") as stream:
        while True:
            try:
                yield pickle.load(stream)
            except (EOFError, pickle.UnpicklingError, AttributeError, ValueError, IndexError):
                return
