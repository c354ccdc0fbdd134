"""Programs for the emulator need nvcc and a C++ compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.programs import Run, build, run_program


def _absent() -> str:
    """Return what is missing; empty if programs can be built."""
    try:
        build.compilers()
    except HarnessError as e:
        return e.what
    return "" if sys.platform == "linux" else "programs need Linux"


needs_nvcc = pytest.mark.skipif(bool(_absent()), reason=_absent() or "nvcc is there")


def ran(folder: Path, text: str, *arguments: str, **how: object) -> Run:
    """Run a program of one source in `folder`, which is not to print anything."""
    source = folder / "program.cu"
    source.write_text(text)
    return run_program([source], arguments, quiet=True, **how)  # type: ignore[arg-type]


def kinds(run: Run) -> set[str]:
    """Return the kinds of all findings."""
    return {f.kind for one in run.kernels.values() for f, *_ in one.findings.values() if not f.benign}


def harness(folder: Path, *words: str, columns: str = "200") -> subprocess.CompletedProcess[str]:
    """Run the command line in `folder`: what a program prints is printed by its own process."""
    command, env = [sys.executable, "-m", "harness", *words], os.environ | {"COLUMNS": columns}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=env
    )
