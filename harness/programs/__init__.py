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
from pathlib import Path
from typing import BinaryIO

from harness.errors import HarnessError
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
