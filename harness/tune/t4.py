"""Convert a tuning's result at one size to T4, the autotuning community's format that Kernel Tuner writes.

Names are those of the published schema (odgaard/TuningSchema, T4 ``results-schema.json`` 1.0.0, which Kernel
Tuner ships). Times are in milliseconds, as in Kernel Tuner's files; ``metadata.timeunit`` says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.bench.row import ERROR, FAILED, IMPOSSIBLE, OK
from harness.results.record import Document
from harness.results.rows import Row
from harness.tune.search import Unfit

VERSION = "1.0.0"
_INVALID = {OK: "correct", FAILED: "correctness", IMPOSSIBLE: "runtime", ERROR: "runtime"}


def document(ranking: Sequence[Row], unfit: Sequence[Unfit], when: str) -> Document:
    """Return a T4 document with a result for each row of `ranking` and each candidate in `unfit`.

    `ranking` is that of `harness.tune.search.Result`. `when` is the time for the unfit ones, in ISO 8601.
    """
    results = [_measured(row) for row in ranking] + [_unfit(one, when) for one in unfit]
    return {"results": results, "schema_version": VERSION, "metadata": {"timeunit": "milliseconds"}}


def _measured(row: Row) -> Document:
    """Return the T4 result of a candidate that was launched."""
    right = row["status"] == OK
    measurements = [
        {"name": name, "value": value * scale, "unit": unit}
        for value, name, unit, scale in (
            (row.get("seconds"), "time", "ms", 1e3),
            (row.get("flops_rate"), "GFLOP/s", "GFLOP/s", 1e-9),
            (row.get("sm_hz"), "sm_clock", "MHz", 1e-6),
        )
        if value is not None
    ]
    if row["ratio"]:
        measurements.append({"name": f"time/{row['against']}", "value": row["ratio"]["estimate"], "unit": ""})
    if not right:
        measurements.append({"name": "error", "value": row["detail"], "unit": ""})
    return {
        "timestamp": row["utc"],
        "configuration": dict(row["params"]),
        "objectives": ["time"],
        "times": {
            "compilation_time": 1e3 * row["build_seconds"],
            "runtimes": [1e3 * t for t in row["times"]],
        },
        "invalidity": "timeout" if row.get("hung") else _INVALID[row["status"]],
        "correctness": 1 if right else 0,
        "measurements": measurements,
    }


def _unfit(one: Unfit, when: str) -> Document:
    """Return the T4 result of a candidate that was not launched."""
    return {
        "timestamp": when,
        "configuration": dict(one.variant.params),
        "objectives": ["time"],
        "times": {"runtimes": []},
        "invalidity": "constraints" if one.compiled else "compile",
        "correctness": 0,
        "measurements": [{"name": "error", "value": one.why, "unit": ""}],
    }
