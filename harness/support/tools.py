"""NVIDIA's command-line tools: found in their wheels, in a toolkit, or on the PATH, and run."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness.errors import HarnessError, MissingDependency
from harness.support.files import ROOT

_PACKAGES = {"nvdisasm": "nvidia-cuda-nvdisasm", "cuobjdump": "nvidia-cuda-cuobjdump"}


@functools.cache
def find(name: str) -> Path | None:
    """The executable, a wheel's before the system's; None where there is none."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:  # cuda-pathfinder before 1.3
        found = None
    else:
        try:
            found = find_nvidia_binary_utility(name)
        except Exception:  # it raises for names outside its own list
            found = None
    found = found or shutil.which(name)
    return Path(found) if found else None


def require(name: str) -> Path:
    """The same; raises MissingDependency with the command that installs it."""
    path = find(name)
    if path is None:
        package = _PACKAGES.get(name)
        hint = f"pip install '{package}>=13.4,<14'" if package else f"put {name} on the PATH"
        raise MissingDependency(f"{name} is not installed", hint=hint)
    return path


def run(
    command: Sequence[str | Path], where: str, *, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """A tool's answer, whatever it is; what it starts by ``python -m harness`` is the package that runs here.
    Raises HarnessError where it gives none within `timeout` seconds, or cannot be started.
    """
    name = Path(command[0]).name
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=environment()
        )
    except subprocess.TimeoutExpired:
        raise HarnessError(f"{name} gave no answer within {timeout:.0f} s", where=where) from None
    except OSError as e:
        raise HarnessError(f"{name} cannot be run: {e}", where=where) from None


def environment() -> dict[str, str]:
    """That of this process, in which Python finds the same package as here, in a bare checkout, too, and in
    which no line is broken that is to be read here.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return inherited | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    }
