"""NVIDIA's command-line tools: found in their wheels, in a toolkit, or on the PATH."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

from harness.errors import MissingDependency

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
