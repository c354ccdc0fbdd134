"""Read ncu's reports: counters by ncu's own metric names, and samples by instruction.

An ``.ncu-rep`` file is read by NVIDIA's own package: ``pip install ncu-report``, or the copy in ncu's folder.
Without either, ncu prints the same as pages of CSV. Raw pages that were exported elsewhere are read, too.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from harness.errors import UsageError
from harness.instruments.hotspots import Hotspots, Sampled
from harness.support import files, tools

RAW = ("--csv", "--page", "raw", "--print-units", "base")
_SASS = ("--csv", "--page", "source", "--print-source", "sass")
_LINES = ("--csv", "--page", "source", "--print-source", "cuda,sass")
_ABOUT = ("Kernel Name", "Grid Size", "Block Size", "CC")
# Units that show that a page was not made with --print-units base.
_SCALED = {"us", "ms", "s", "usecond", "msecond", "second", "Ghz", "Mhz", "Kbyte", "Mbyte", "Gbyte"}
# One folder per version; the ncu of a CUDA toolkit is a script that starts the one there.
_INSTALLED = Path("/opt/nvidia/nsight-compute")
_FILE = re.compile(r'"File Path","(.*)"')
_LINE = re.compile(r'"(\d+)","(.*?)","-","-",')  # quotes in the source are not doubled: no CSV
_OF_LINE = re.compile(r'"","","(0x[0-9a-f]+)",')
_SAMPLES = "smsp__pcsamp_warps_issue_stalled_"
# Stall reasons as the sampler's metrics and the source page name them -> the names in `counters.STALLS`.
_REASONS = {
    "no_instructions": "no_instruction",
    "dispatch": "dispatch_stall",
    "imc": "imc_miss",
    "lg": "lg_throttle",
    "long_sb": "long_scoreboard",
    "math": "math_pipe_throttle",
    "mio": "mio_throttle",
    "no_inst": "no_instruction",
    "short_sb": "short_scoreboard",
    "sleep": "sleeping",
    "tex": "tex_throttle",
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One launch: its counters in base units, the launch as ncu names it, and where its warps were sampled.

    `grid` and `block` are texts such as ``(8, 8, 1)``, `capability` is the GPU's, as ``9.0``. `hotspots` is
    None if no samples were taken.
    """

    label: str
    function: str
    grid: str
    block: str
    capability: str
    counters: Mapping[str, float]
    hotspots: Hotspots | None = None


def load(path: Path, *, label: str = "") -> list[Profile]:
    """Return the launches of a report.

    It is an ``.ncu-rep``, or a raw page as CSV (``ncu --csv --page raw --print-units base``), which has no
    samples. `label` names the launches; by default it comes from the file's name. Raises UsageError for a
    file that is no such report or has no launch, and MissingDependency for an ``.ncu-rep`` with neither
    ncu-report nor ncu.
    """
    label = label or path.stem.removeprefix("ncu-")
    try:
        with files.opened(path):
            pass
    except OSError as e:
        raise UsageError(f"cannot read: {e.strerror}", where=str(path)) from None
    said = ""
    if path.suffix != ".ncu-rep":
        text = files.read(path).decode(errors="replace")
        found, said = raw_page(text, label, str(path)), last_word(text)
    elif (package := _package()) is not None:
        found = _by_package(package, path, label)
    else:
        found, said = _by_ncu(path, label)
    if not found:
        raise UsageError(
            "no launch in it" + said,
            where=str(path),
            hint=f"export one with: ncu --import REPORT.ncu-rep {' '.join(RAW)}",
        )
    return found


def _package() -> Any | None:
    """Import NVIDIA's ncu_report; None if there is none, or none that this Python can load."""
    ncu = tools.find("ncu")
    above = [*(ncu.resolve().parents if ncu else ()), *sorted(_INSTALLED.glob("*"), reverse=True)]
    beside = [str(a / "extras" / "python") for a in above if (a / "extras" / "python").is_dir()]
    for folders in ([], *([folder] for folder in beside)):
        sys.path.extend(folders)
        try:
            import ncu_report
        except ImportError:
            for folder in folders:
                sys.path.remove(folder)
        else:
            return ncu_report
    return None


def _by_package(package: Any, path: Path, label: str) -> list[Profile]:
    """Read a report with NVIDIA's package."""
    try:
        context = package.load_report(str(path))  # keep it: it owns the actions and must outlive them
        actions = [action for launches in context for action in launches]
    except Exception as e:  # the type differs from version to version
        raise UsageError(
            f"ncu-report cannot read it: {e}",
            where=str(path),
            hint="a report of a newer Nsight Compute needs a newer ncu-report",
        ) from None
    return [_profile(action, label) for action in actions]


def _profile(action: Any, label: str) -> Profile:
    """Convert one launch (an ``action`` of ncu_report)."""
    metrics = {name: action.metric_by_name(name) for name in action.metric_names()}
    values = {name: metric.value() for name, metric in metrics.items()}
    major, minor = (values.get(f"device__attribute_compute_capability_{x}", 0) for x in ("major", "minor"))
    sources = {
        PurePath(name).name: dict(enumerate(text.splitlines(), 1))
        for name, text in (action.source_files() or {}).items()
    }
    return Profile(
        label=label,
        function=action.name(),
        grid=_triple(values, "grid"),
        block=_triple(values, "block"),
        capability=f"{major}.{minor}",
        counters={
            name: float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not math.isnan(value)
        },
        hotspots=Hotspots.of(_instructions(action, metrics), sources),
    )


def _triple(values: Mapping[str, Any], what: str) -> str:
    """Return the ``grid`` or ``block`` dimensions as text."""
    return f"({', '.join(str(values.get(f'launch__{what}_dim_{axis}', '?')) for axis in 'xyz')})"


def _instructions(action: Any, metrics: Mapping[str, Any]) -> Iterator[Sampled]:
    """Yield the instructions that have samples or execution counts, in the order of their addresses."""
    stalls: dict[int, dict[str, int]] = {}
    for name, metric in metrics.items():
        if name.startswith(_SAMPLES) and not name.endswith("_not_issued"):
            reason = name.removeprefix(_SAMPLES)
            for pc, count in _by_address(metric).items():
                if count:
                    stalls.setdefault(pc, {})[_REASONS.get(reason, reason)] = count
    executed = _by_address(metrics.get("inst_executed"))
    first = min(stalls.keys() | executed.keys(), default=0)
    for pc in sorted(stalls.keys() | executed.keys()):
        where = action.source_info(pc)
        yield Sampled(
            offset=pc - first,
            text=" ".join((action.sass_by_pc(pc) or "").split()),
            stalls=stalls.get(pc, {}),
            executed=executed.get(pc, 0),
            file=where.file_name() if where else "",
            line=where.line() if where else 0,
        )


def _by_address(metric: Any) -> dict[int, int]:
    """Return the values of a metric by instruction address; empty if it has none."""
    if metric is None or not metric.has_correlation_ids():
        return {}
    addresses = metric.correlation_ids()
    return {addresses.value(i): metric.value(i) for i in range(metric.num_instances())}


def _by_ncu(path: Path, label: str) -> tuple[list[Profile], str]:
    """Read a report with ncu itself.

    The second value is ncu's last error or warning if there is no launch, and else "".
    """
    ncu = tools.require("ncu")
    raw = tools.run([ncu, "--import", path, *RAW], str(path))
    found = raw_page(raw.stdout, label, str(path))
    if not found:
        return [], last_word(f"{raw.stdout}\n{raw.stderr}")
    places, sources = line_page(tools.run([ncu, "--import", path, *_LINES], str(path)).stdout)
    sampled = source_page(tools.run([ncu, "--import", path, *_SASS], str(path)).stdout, places)
    if len(sampled) != len(found):
        return found, ""
    return [replace(p, hotspots=Hotspots.of(s, sources)) for p, s in zip(found, sampled, strict=True)], ""


def raw_page(text: str, label: str, where: str) -> list[Profile]:
    """Read a raw page as CSV, which may stand between messages of ncu: names, units, then a row per launch.

    `label` becomes the label of each profile and `where` names the file in errors. Returns an empty list if
    there are no rows. Raises UsageError for a page that is damaged or not in base units.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return []
    names, units, *rows = csv.reader(lines)
    if "Kernel Name" not in names or any(len(row) != len(names) for row in (units, *rows)):
        hint = f"export it with {' '.join(RAW)}"
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
        function, grid, block, capability = (cells.get(name, "") for name in _ABOUT)
        found.append(
            Profile(
                label=label,
                function=function,
                grid=grid,
                block=block,
                capability=capability,
                counters=_numbers(cells),
            )
        )
    return found


def _numbers(cells: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics of a row, whose names have no spaces; those that were not measured are left out."""
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


def source_page(text: str, places: Mapping[int, tuple[str, int]]) -> list[list[Sampled]]:
    """Return the instructions of each launch, from a CSV page by machine instruction.

    Each launch has a line with the kernel's name, a line of headings and a row per instruction. `places` maps
    addresses to (file, line). Raises UsageError for a row without an address.
    """
    found: list[list[Sampled]] = []
    names: list[str] = []
    first = 0
    for row in csv.reader(line for line in text.splitlines() if line.startswith('"')):
        if row[0] == "Kernel Name":
            found.append([])
        elif row[0] == "Address":
            names = row
        elif found and len(row) == len(names):
            try:
                address = int(row[0], 16)
            except ValueError:
                raise UsageError(f"not a source page of ncu: {row[0]!r} is no address") from None
            first = first if found[-1] else address
            cells = dict(zip(names, row, strict=True))
            found[-1].append(_instruction(cells, address - first, places.get(address, ("", 0))))
    return found


def line_page(text: str) -> tuple[dict[int, tuple[str, int]], dict[str, dict[int, str]]]:
    """Read a CSV page of source lines, each followed by its instructions.

    Return the file and line of each instruction by address, and the text of the lines by file and line. An
    inlined instruction is listed under several lines; the first one is taken, as in ncu-report.
    """
    places: dict[int, tuple[str, int]] = {}
    sources: dict[str, dict[int, str]] = {}
    file, line = "", 0
    for row in text.splitlines():
        if match := _FILE.match(row):
            file = PurePath(match[1]).name
        elif match := _LINE.match(row):
            line = int(match[1])
            sources.setdefault(file, {})[line] = match[2]
        elif match := _OF_LINE.match(row):
            places.setdefault(int(match[1], 16), (file, line))
    return places, sources


def _instruction(cells: Mapping[str, str], offset: int, place: tuple[str, int]) -> Sampled:
    """Build an instruction from a row of a source page."""
    stalls = {}
    for name, value in cells.items():
        reason = name.removeprefix("stall_")
        if reason != name and not name.endswith("(Not Issued)") and value.isdigit() and int(value):
            stalls[_REASONS.get(reason, reason)] = int(value)
    executed = cells.get("Instructions Executed", "")
    return Sampled(
        offset=offset,
        text=" ".join(cells["Source"].split()),
        stalls=stalls,
        executed=int(executed) if executed.isdigit() else 0,
        file=place[0],
        line=place[1],
    )


def last_word(text: str) -> str:
    """Return ncu's last error or warning with ": " before it, or ""."""
    said = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING==", "error:"))]
    return f": {said[-1].strip('= ')}" if said else ""
