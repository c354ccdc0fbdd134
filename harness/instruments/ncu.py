"""Run one launch of a kernel under Nsight Compute and read its hardware counters and warp samples.

ncu starts ``harness verify`` on exactly this kernel and size, and profiles its first launch. Clocks are left
as they are unless the caller asks otherwise.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from harness.errors import CountersDenied, HarnessError, UnknownMetrics
from harness.instruments import ncu_reports
from harness.instruments.counters import METRICS
from harness.instruments.ncu_reports import Profile
from harness.kernels import catalog
from harness.kernels.spec import Variant
from harness.support import tools

_DENIED = "ERR_NVGPUCTRPERM"
_UNKNOWN = re.compile(r"Failed to find metric (?:regex:\^)?(\w+)")  # ncu looks up the part before the dot


def counters(
    variant: Variant, axes: Mapping[str, int | float], metrics: Sequence[str], *, seed: int = 1
) -> dict[str, float]:
    """Return the values of `metrics` for one launch, in base units.

    A metric that this GPU does not have is left out. Raises MissingDependency without ncu, CountersDenied if
    ncu may not read counters, UnknownMetrics if it knows some of the metrics by no such name, and
    HarnessError if it saw no launch of the kernel.
    """
    found = _launch(variant, axes, ["--metrics", ",".join(metrics)], seed).counters
    return {name: found[name] for name in metrics if name in found}


def profile(
    variant: Variant,
    axes: Mapping[str, int | float],
    *,
    sections: str = "basic",
    metrics: Sequence[str] = (),
    clocks: str = "none",
    seed: int = 1,
) -> Profile:
    """Profile one launch as ``harness profile`` shows it.

    `sections` is a set of ncu's sections (``--set``), `metrics` are more of ncu's metrics, and `clocks` is
    ncu's ``--clock-control``. Raises as `counters` does.
    """
    wanted = ["--set", sections, "--section", "SourceCounters", "--metrics", ",".join([*METRICS, *metrics])]
    return _launch(variant, axes, wanted, seed, clocks)


def _launch(
    variant: Variant,
    axes: Mapping[str, int | float],
    wanted: Sequence[str],
    seed: int,
    clocks: str = "none",
) -> Profile:
    """Run ncu on the first launch of the kernel; `wanted` are the options that choose what it measures."""
    tool = tools.require("ncu")
    kernel = variant.kernel
    base = kernel.entry.partition("<")[0].rpartition("::")[2]  # ncu compares with the bare function's name
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        report, log = Path(folder) / "launch.ncu-rep", Path(folder) / "log"
        command: list[str | Path] = [
            *(tool, "--export", report, "--import-source", "yes", "--log-file", log),
            *("--clock-control", clocks, "--launch-count", "1", "--kernel-name", base),
            *wanted,
            *(sys.executable, "-m", "harness", "verify", *catalog.arguments(kernel)),
            *("--seed", str(seed)),
            *(f"-p{name}={value}" for name, value in variant.params.items()),
            *(f"-a{name}={value}" for name, value in axes.items()),
        ]
        done = tools.run(command, variant.label)
        if not report.exists():
            said = log.read_text(errors="replace") if log.exists() else ""
            _refuse(variant, f"{said}\n{done.stdout}\n{done.stderr}", wanted)
        return ncu_reports.load(report, label=variant.label)[0]


def _refuse(variant: Variant, text: str, wanted: Sequence[str]) -> NoReturn:
    """Raise the error for a run of ncu with the options `wanted` that left no report.

    `text` is what ncu printed.
    """
    if _DENIED in text:
        raise CountersDenied(
            "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)",
            where=variant.label,
            hint="run as root, or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0",
        )
    metrics = [name for option in wanted for name in option.split(",")]
    if unknown := tuple(name for name in metrics if name.partition(".")[0] in _UNKNOWN.findall(text)):
        raise UnknownMetrics(unknown, where=variant.label)
    raise HarnessError(
        "ncu saw no launch of it" + ncu_reports.last_word(text),
        where=variant.label,
        hint="a newer Nsight Compute knows this GPU" if "not supported" in text else "",
    )
