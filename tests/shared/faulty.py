"""Runs of the command line in which one call fails, of all those that write to files or start processes.

`tests/data/faults.c` counts the calls and lets one fail. A worker with that library loaded imports harness
once and forks for each run, which has a folder of its own with a cache and one for temporary files.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import __main__
from harness.errors import MissingDependency, NoDriver
from shared.places import DATA, ROOT

SECONDS = 120  # a run that takes longer hangs


@dataclass(frozen=True)
class Fault:
    """The call number `at`, from 0, fails with `code` of errno; `lasting`: so do all later ones to files."""

    at: int
    code: int
    lasting: bool = False


@dataclass(frozen=True)
class Run:
    """The outcome of a run: exit code, output, and its calls as "name path", those that failed after "! ".

    folder: where it ran, with `cache`, `tmp` and the files that it wrote
    modules: names of those that were imported in the end; none where it was killed
    """

    folder: Path
    code: int
    output: str
    calls: tuple[str, ...]
    modules: tuple[str, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Return the calls that failed."""
        return tuple(call for call in self.calls if call.startswith("! "))


@functools.cache
def library() -> Path:
    """Compile `faults.c`; skip the test where there is no gcc or no LD_PRELOAD."""
    compiler = shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and gcc")
    built = Path(tempfile.mkdtemp(prefix="faults-"), "faults.so")
    source = str(DATA / "faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(built), source, "-ldl"], check=True)
    return built


def runs(
    template: Path,
    folder: Path,
    command: Sequence[str],
    faults: Sequence[Fault | None],
    *,
    gpu: bool = False,
    imports: Sequence[str] = (),
) -> list[Run]:
    """Run a command once for each fault, None for a run without, in copies of the folder `template`.

    The copies are made in `folder`. With `gpu` there is a fake one. The modules `imports` are imported once,
    before all runs. A command ``-c CODE`` is Python.
    """
    order = {
        "template": str(template), "folder": str(folder), "command": list(command), "gpu": gpu,
        "imports": list(imports),
        "faults": [fault and asdict(fault) for fault in faults],
    }  # fmt: skip
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "MUTANT_UNDER_TEST")}
    env |= {"LD_PRELOAD": str(library()), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["OPENBLAS_NUM_THREADS"] = (
        "1"  # or it begins its threads anew in each fork, and waits for those that fail
    )
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    subprocess.run(
        [sys.executable, "-m", "shared.faulty"],
        input=json.dumps(order),
        env=env,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found = []
    for number in range(len(faults)):
        place = folder / str(number)
        calls = tuple((place / "calls").read_text(errors="replace").splitlines())
        output = (place / "output").read_text(errors="replace")
        modules = tuple((place / "modules").read_text().split()) if (place / "modules").exists() else ()
        found.append(Run(place / "work", int((place / "code").read_text()), output, calls, modules))
    return found


def _work() -> None:
    """Do what `runs` ordered on standard input, each run in a forked child.

    Imports before the forks save time in each, and threads that a library begins then do not count.
    """
    order = json.load(sys.stdin)
    if order["gpu"]:
        from fakes import gemm as fake_gemm

        fake_gemm.gpu(pytest.MonkeyPatch())
    else:
        from harness.driver import api

        def refuse() -> None:
            raise NoDriver("libcuda was not found", hint="install it")

        api.init = refuse
    import harness.cli

    modules = [module.name for module in pkgutil.walk_packages(harness.cli.__path__, "harness.cli.")]
    for name in [*modules, "harness.emulator", "numpy", "matplotlib.figure", *order["imports"]]:
        with contextlib.suppress(ImportError, MissingDependency):
            importlib.import_module(name)
    faults = ctypes.CDLL(os.environ.pop("LD_PRELOAD"))
    for number, fault in enumerate(order["faults"]):
        _run(order, Path(order["folder"], str(number)), fault, faults)


def _run(order: dict[str, Any], place: Path, fault: dict[str, Any] | None, faults: ctypes.CDLL) -> None:
    """Run the command with one fault. The child leaves by SystemExit, as harness does."""
    shutil.copytree(order["template"], place / "work")
    (place / "work" / "tmp").mkdir(exist_ok=True)
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        (place / "code").write_text(str(os.waitstatus_to_exitcode(status)))
        return
    os.chdir(place / "work")
    os.environ |= {"HARNESS_CACHE_DIR": str(place / "work" / "cache"), "TMPDIR": str(place / "work" / "tmp")}
    tempfile.tempdir = None
    output = os.open(place / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1), os.dup2(output, 2)
    log = os.open(place / "calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.argv = ["harness", *order["command"]]
    signal.alarm(SECONDS)

    def tell() -> None:
        faults.fault_arm(-1, ctypes.c_long(-1), 0, 0)
        (place / "modules").write_text("\n".join(sys.modules))

    atexit.register(tell)
    one = fault or {"at": -1, "code": 0, "lasting": False}
    faults.fault_arm(log, ctypes.c_long(one["at"]), one["code"], int(one["lasting"]))
    exec(order["command"][1]) if order["command"][0] == "-c" else __main__.main()
    sys.exit(0)


if __name__ == "__main__":
    _work()
