"""One launch of one kernel under Nsight Compute -> its hardware counters by ncu's own metric names.

ncu starts ``harness verify`` on exactly this kernel and size, and looks at its first launch. Clocks are left
as they are, unless asked. Reports made elsewhere are read, too.
"""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import tools
from harness.counters import METRICS, Counters
from harness.errors import CountersDenied, HarnessError, UsageError
from harness.spec import Variant

_TIMEOUT = 600  # seconds; a counter set needs several replays of the kernel
_DENIED = "ERR_NVGPUCTRPERM"
_PAGE = ("--csv", "--page", "raw", "--print-units", "base")
_ABOUT = ("Kernel Name", "Grid Size", "Block Size", "CC")
# Units in which --print-units base prints nothing that harness reads.
_SCALED = {"us", "ms", "s", "usecond", "msecond", "second", "Ghz", "Mhz", "Kbyte", "Mbyte", "Gbyte"}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One launch: its counters in base units, and what ncu says of the launch itself."""

    label: str
    function: str
    grid: str
    block: str
    capability: str
    counters: Counters


def counters(
    variant: Variant, axes: Mapping[str, int | float], metrics: Sequence[str], *, seed: int = 1
) -> dict[str, float]:
    """The values of `metrics` for one launch, in base units. A metric that this GPU or ncu does not have is
    left out.

    Raises MissingDependency without ncu, HarnessError where ncu may not read counters or saw no such kernel.
    """
    found = _launch(variant, axes, ["--metrics", ",".join(metrics)], seed)[0].counters
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
    """All that ``harness profile`` shows of one launch, with a set of ncu's sections and more `metrics` of
    the user's. `clocks`: ncu's ``--clock-control``. Raises as `counters` does.
    """
    wanted = ["--set", sections, "--section", "SourceCounters", "--metrics", ",".join([*METRICS, *metrics])]
    return _launch(variant, axes, wanted, seed, clocks)[0]


def load(path: Path) -> list[Profile]:
    """The launches of a report: a raw page as CSV (``ncu --csv --page raw --print-units base``), or an
    ``.ncu-rep``, for which ncu itself is needed.

    Raises UsageError for a file that is no such report, HarnessError where ncu cannot read it.
    """
    if path.suffix == ".ncu-rep":
        done = _run([tools.require("ncu"), "--import", path, *_PAGE], str(path))
        text = f"{done.stdout}\n{done.stderr}"
    else:
        try:
            text = path.read_text(errors="replace")
        except OSError as e:
            raise UsageError(f"cannot read: {e.strerror}", where=str(path)) from None
    found = _parse(text, path.stem.removeprefix("ncu-"), str(path))
    if not found:
        raise UsageError(
            "no launch in it" + _said(text),
            where=str(path),
            hint=f"export one with: ncu --import REPORT.ncu-rep {' '.join(_PAGE)}",
        )
    return found


def _launch(
    variant: Variant, axes: Mapping[str, int | float], wanted: Sequence[str], seed: int, clocks: str = "none"
) -> list[Profile]:
    tool = tools.require("ncu")
    kernel = variant.kernel
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        report = Path(folder) / "ncu.csv"
        command: list[str | Path] = [
            *(tool, *_PAGE, "--log-file", report),
            *("--clock-control", clocks, "--launch-count", "1", "--kernel-name", kernel.entry),
            *wanted,
            *(sys.executable, "-m", "harness", "verify", str(kernel.path), "--seed", str(seed)),
            *(f"-p{name}={value}" for name, value in variant.params.items()),
            *(f"-a{name}={value}" for name, value in axes.items()),
        ]
        done = _run(command, variant.label)
        text = report.read_text(errors="replace") if report.exists() else ""
    found = _parse(text, variant.label, variant.label)
    if not found:
        _refuse(variant, f"{text}\n{done.stdout}\n{done.stderr}")
    return found


def _run(command: Sequence[str | Path], where: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=_environment()
        )
    except subprocess.TimeoutExpired:
        raise HarnessError(f"ncu gave no answer within {_TIMEOUT} s", where=where) from None
    except OSError as e:
        raise HarnessError(f"ncu cannot be run: {e}", where=where) from None


def _parse(text: str, label: str, where: str) -> list[Profile]:
    """A CSV page between ncu's own messages: names, units, then a row for each launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return []
    names, units, *rows = csv.reader(lines)
    if "Kernel Name" not in names or any(len(row) != len(names) for row in (units, *rows)):
        hint = f"export it with {' '.join(_PAGE)}"
        raise UsageError("not a raw page of ncu, or cut off", where=where, hint=hint)
    if _SCALED & set(units):
        raise UsageError(
            f"not in base units: it has {', '.join(sorted(_SCALED & set(units)))}",
            where=where,
            hint="export it with --print-units base",
        )
    found = []
    for row in rows:
        cells = dict(zip(names, row, strict=True))
        about = dict(zip(("function", "grid", "block", "capability"), map(cells.get, _ABOUT), strict=True))
        told = {key: value or "" for key, value in about.items()}
        found.append(Profile(label=label, counters=_numbers(cells), **told))
    return found


def _numbers(cells: Mapping[str, str]) -> dict[str, float]:
    """The metrics, which have no spaces in their names; those that were not measured are left out."""
    found = {}
    for name, value in cells.items():
        if "_" in name and " " not in name:
            try:
                number = float(value.replace(",", ""))
            except ValueError:
                continue  # n/a, no data
            if not math.isnan(number):
                found[name] = number
    return found


def _refuse(variant: Variant, text: str) -> None:
    if _DENIED in text:
        raise CountersDenied(
            "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)",
            where=variant.label,
            hint="run as root, or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0",
        )
    raise HarnessError(
        "ncu saw no launch of it" + _said(text),
        where=variant.label,
        hint="a newer Nsight Compute knows this GPU" if "not supported" in text else "",
    )


def _said(text: str) -> str:
    """ncu's last word, after a colon."""
    said = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING==", "error:"))]
    return f": {said[-1].strip('= ')}" if said else ""


def _environment() -> dict[str, str]:
    """The same package as here, in a bare checkout, too."""
    here = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}
