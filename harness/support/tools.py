"""Find and run NVIDIA's command-line tools, from their wheels, a CUDA toolkit or the PATH."""

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
    """Return the path of the executable `name`, preferring a wheel's to the system's, or None."""
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
    """Return the path of the executable `name`, as `find` does.

    Raises MissingDependency, with the way to install it, if there is none.
    """
    path = find(name)
    if path is None:
        package = _PACKAGES.get(name)
        hint = f"pip install '{package}>=13.4,<14'" if package else f"put {name} on the PATH"
        raise MissingDependency(f"{name} is not installed", hint=hint)
    return path


def run(
    command: Sequence[str | Path], where: str, *, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run `command` and return its outcome, whatever its exit code.

    A ``python -m harness`` that it starts uses the package running here. `where` names the object of the call
    in errors. Raises HarnessError if the command cannot be started or does not end within `timeout` seconds.
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
    """Return this process's environment variables, changed for a child process whose output is read.

    PYTHONPATH makes Python find this very package, in a bare checkout too. COLUMNS is left out, so that
    harness wraps no lines in its output.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return inherited | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    }
