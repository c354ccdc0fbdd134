"""One launch of one kernel under Nsight Compute -> its hardware counters by ncu's own metric names.

ncu starts ``harness verify`` on exactly this kernel and size, and looks at its first launch. Clocks are left
as they are.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import tools
from harness.errors import HarnessError
from harness.spec import Variant

_TIMEOUT = 600  # seconds; a counter set needs several replays of the kernel
_DENIED = "ERR_NVGPUCTRPERM"


def counters(
    variant: Variant, axes: Mapping[str, int | float], metrics: Sequence[str], *, seed: int = 1
) -> dict[str, float]:
    """The values of `metrics` for one launch, in base units. A metric that this GPU or ncu does not have is
    left out.

    Raises MissingDependency without ncu, HarnessError where ncu may not read counters or saw no such kernel.
    """
    tool = tools.require("ncu")
    kernel = variant.kernel
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        report = Path(folder) / "ncu.csv"
        command: list[str | Path] = [
            *(tool, "--csv", "--page", "raw", "--print-units", "base", "--log-file", report),
            *("--clock-control", "none", "--launch-count", "1", "--kernel-name", kernel.entry),
            *("--metrics", ",".join(metrics)),
            *(sys.executable, "-m", "harness", "verify", str(kernel.path), "--seed", str(seed)),
            *(f"-p{name}={value}" for name, value in variant.params.items()),
            *(f"-a{name}={value}" for name, value in axes.items()),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=_environment()
            )
        except subprocess.TimeoutExpired:
            raise HarnessError(f"ncu gave no answer within {_TIMEOUT} s", where=variant.label) from None
        except OSError as e:
            raise HarnessError(f"ncu cannot be run: {e}", where=variant.label) from None
        text = report.read_text(errors="replace") if report.exists() else ""
    found = _parse(text)
    if not found:
        _refuse(variant, f"{text}\n{done.stdout}\n{done.stderr}")
    return {name: found[name] for name in metrics if name in found}


def _parse(text: str) -> dict[str, float]:
    """A CSV page between ncu's own messages: names, units, then a row for each launch; the first one's."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return {}
    names, _, values, *_ = csv.reader(lines)
    found = {}
    for name, value in zip(names, values, strict=True):
        if "__" in name:
            try:
                found[name] = float(value.replace(",", ""))
            except ValueError:
                continue  # n/a
    return found


def _refuse(variant: Variant, text: str) -> None:
    if _DENIED in text:
        raise HarnessError(
            "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)",
            where=variant.label,
            hint="run as root, or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0",
        )
    said = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING==", "error:"))]
    raise HarnessError(
        "ncu saw no launch of it" + (f": {said[-1].strip('= ')}" if said else ""), where=variant.label
    )


def _environment() -> dict[str, str]:
    """The same package as here, in a bare checkout, too."""
    here = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}
