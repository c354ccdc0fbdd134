"""Write times in the JSON of services that keep histories: github-action-benchmark, Bencher, asv.

The formats are those of their own documentation: github-action-benchmark's ``customSmallerIsBetter``, Bencher
Metric Format, and version 2 of asv's result files.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.results.record import Document
from harness.results.rows import Row, label, seconds
from harness.support import files

FORMATS = ("github-action-benchmark", "bencher", "asv")
_Z = 1.959963984540054  # the standard normal's 97.5% quantile


def write(form: str, contents: Mapping[str, Document], path: Path) -> None:
    """Write result files of ``harness bench`` in the format `form`.

    For github-action-benchmark and Bencher, which take one run, `path` is a file that gets the newest
    content. For asv it is the folder ``results`` of its project and gets all of them, by GPU and commit.
    Raises HarnessError if something cannot be written, and UsageError if there is no time.
    """
    ordered = sorted(contents.values(), key=lambda c: str(c["meta"].get("utc") or ""))
    timed = [c for c in ordered if any(True for _ in _timed(c))]
    if not timed:
        raise UsageError("no file has times", hint="files that bench --json wrote on a GPU")
    if form == "asv":
        for name, part in _asv(timed):
            files.write_file(path / name, json.dumps(part, indent=1).encode() + b"\n")
        return
    newest = _action(timed[-1]) if form == "github-action-benchmark" else _bencher(timed[-1])
    files.write_file(path, json.dumps(newest, indent=1).encode() + b"\n")


def _timed(content: Document) -> Iterator[Row]:
    """Yield the rows that are right and have a time."""
    yield from (r for r in content["rows"] if r.get("seconds") and r.get("status") == "ok")


def _name(row: Row) -> str:
    """Return a name that stays the same from run to run."""
    return f"{label(row)}, {row['problem']} {row['shape']}, {row.get('regime') or ''}".rstrip(", ")


def _half(row: Row) -> float:
    """Return half of the 95% interval of the mean of a row's samples in seconds, 0 where it is not known.

    A row's ``stdev`` is a fraction of the mean.
    """
    deviation, samples = row.get("stdev"), row.get("samples")
    return _Z * deviation * seconds(row) / samples**0.5 if deviation and samples else 0.0


def _action(content: Document) -> list[dict[str, Any]]:
    """Return one run for github-action-benchmark; ``range`` is the standard deviation of the samples."""
    gpu = (content["meta"].get("gpu") or {}).get("name", "")
    return [
        {
            "name": _name(row),
            "unit": "us",
            "value": 1e6 * seconds(row),
            "range": f"± {1e6 * seconds(row) * (row.get('stdev') or 0):.3g}",
            "extra": f"{gpu}, {row.get('samples') or 0} samples, {row.get('compiler', '')}",
        }
        for row in _timed(content)
    ]


def _bencher(content: Document) -> dict[str, Any]:
    """Return one run in Bencher Metric Format: latency in nanoseconds with its interval, FLOP/s."""
    found: dict[str, Any] = {}
    for row in _timed(content):
        nano, half = 1e9 * seconds(row), 1e9 * _half(row)
        measures: dict[str, Any] = {
            "latency": {"value": nano, "lower_value": nano - half, "upper_value": nano + half}
        }
        if row.get("flops_rate"):
            measures["throughput"] = {"value": row["flops_rate"]}
        found[_name(row)] = measures
    return found


def _moment(meta: Mapping[str, Any]) -> datetime.datetime:
    """Return when a file was made. Raises UsageError where it does not say."""
    try:
        return datetime.datetime.fromisoformat(str(meta.get("utc")))
    except ValueError:
        raise UsageError(f"a result file was made at {meta.get('utc')!r}, which is no time") from None


_COLUMNS = ["result", "params", "version", "stats_ci_99_a", "stats_ci_99_b"]
_99 = 2.5758293035489004 / _Z


def _asv(contents: list[Document]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the files of asv's folder of results by name: machines, runs by commit, and all benchmarks."""
    benchmarks: dict[str, Any] = {"version": 2}
    machines: dict[str, dict[str, Any]] = {}
    runs: dict[str, dict[str, Any]] = {}
    for content in contents:
        meta = content["meta"]
        gpu, commit = meta.get("gpu") or {}, meta.get("commit")
        if not commit:
            continue
        machine = re.sub(r"[^\w.-]+", "-", gpu.get("name", "unknown")) + f"-{str(gpu.get('uuid', ''))[4:12]}"
        machines[machine] = {
            "machine": machine,
            "gpu": gpu.get("name", ""),
            "os": platform.system(),
            "arch": platform.machine(),
            "version": 1,
        }
        python = meta.get("python") or platform.python_version()
        made = _moment(meta)
        run = runs.setdefault(
            f"{machine}/{commit[:8]}-harness.json",
            {
                "commit_hash": commit,
                "env_name": "harness",
                "date": int(1000 * made.timestamp()),
                "params": {**machines[machine], "python": python},
                "python": python,
                "requirements": {},
                "env_vars": {},
                "result_columns": _COLUMNS,
                "results": {},
                "durations": {},
                "version": 2,
            },
        )
        for row in _timed(content):
            name, half = _name(row), _99 * _half(row)
            benchmarks[name] = {
                "name": name,
                "code": "",
                "param_names": [],
                "params": [],
                "type": "time",
                "unit": "seconds",
                "version": "1",
                "timeout": 60.0,
            }
            time = seconds(row)
            run["results"][name] = [[time], [], "1", [time - half], [time + half]]
    if not runs:
        raise UsageError("no file names its commit, which asv goes by", hint="run bench in a checkout")
    yield from ((f"{name}/machine.json", about) for name, about in machines.items())
    yield from runs.items()
    yield "benchmarks.json", benchmarks
