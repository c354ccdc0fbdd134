"""Write rows in the shape of nvbench's JSON files, so that its tools can open ours, and read them back.

Field names are those of nvbench's json_printer.cu, file version 1.0.0. A summary carries an ``nv/`` tag only
if its meaning is nvbench's: GPU times of single launches that find none of their operands in a cache.
Everything else is under ``harness/`` tags, and the whole row is in each state's ``harness`` entry, which
nvbench's tools ignore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]  # a JSON object

JSON_VERSION = {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}
_KEY = "harness"


def devices(gpu: Mapping[str, Any]) -> list[Object]:
    """Return one GPU as nvbench describes it, with its UUID in addition."""
    major, minor = gpu["capability"]
    return [
        {
            "id": gpu["ordinal"],
            "name": gpu["name"],
            "uuid": gpu["uuid"],
            "sm_version": 100 * major + 10 * minor,
            "ptx_version": 100 * major + 10 * minor,
            "sm_default_clock_rate": gpu["clock_hz"],
            "number_of_sms": gpu["sms"],
            "max_threads_per_sm": gpu["max_threads_per_sm"],
            "registers_per_sm": gpu["registers_per_sm"],
            "global_memory_size": gpu["memory_bytes"],
            "global_memory_bus_peak_clock_rate": gpu["memory_clock_hz"],
            "global_memory_bus_width": gpu["bus_bits"],
            "l2_cache_size": gpu["l2_bytes"],
            "shared_memory_per_sm": gpu["shared_per_sm"],
        }
    ]


def benchmarks(rows: Sequence[Object], device: int, rule: Mapping[str, Any]) -> list[Object]:
    """Return one benchmark for each kernel with its parameters, which has one state for each of its rows.

    `device` is the GPU's ordinal. `rule` has the stop options min_samples, min_time, max_noise and timeout.
    """
    names = list(dict.fromkeys(_name(row) for row in rows))
    return [_benchmark(name, [r for r in rows if _name(r) == name], device, rule) for name in names]


def rows(content: Mapping[str, Any]) -> list[Object]:
    """Return the rows that `benchmarks` was given, in their original order."""
    states = [state for bench in content["benchmarks"] for state in bench["states"]]
    return [state[_KEY] for state in sorted(states, key=lambda s: int(s[_KEY]["index"]))]


def _name(row: Mapping[str, Any]) -> str:
    """Return a benchmark's name: kernel, parameters, and the element type where it is not fp32.

    cuBLAS and the dispatcher have one kernel name for all element types.
    """
    typed = [] if row.get("dtype") in (None, "fp32") else [f"dtype={row['dtype']}"]
    return " ".join([row["kernel"], *(f"{k}={v}" for k, v in row["params"].items()), *typed])


def _benchmark(name: str, rows: Sequence[Object], device: int, rule: Mapping[str, Any]) -> Object:
    """Return the benchmark of one kernel."""
    limits = {
        "min_samples": rule.get("min_samples", 0),
        "min_time": rule.get("min_time", 0.0),
        "max_noise": rule.get("max_noise", 0.0),
        "skip_time": -1.0,
        "timeout": rule.get("timeout", 0.0),
    }
    axes = {
        n: [r["axes"][n] for r in rows] for n in rows[0].get("axes", {}) if rows[0]["axes"][n] is not None
    }
    states = []
    for row in rows:
        values = [(n, row["axes"][n]) for n in axes]
        skipped = row.get("seconds") is None
        states.append(
            {
                "name": " ".join([f"Device={device}", *(f"{n}={v}" for n, v in values)]),
                **limits,
                "device": device,
                "type_config_index": 0,
                "axis_values": [_value(n, v) for n, v in values] or None,
                "summaries": None if skipped else _summaries(row),
                "is_skipped": skipped,
                **({"skip_reason": str(row.get("detail") or "emulated: no times")} if skipped else {}),
                _KEY: row,
            }
        )
    return {
        "name": name,
        "index": 0,
        **limits,
        "devices": [device],
        "axes": [_axis(n, values) for n, values in axes.items()] or None,
        "states": states,
    }


def _axis(name: str, values: Sequence[float]) -> Object:
    """Return an axis with its distinct values."""
    distinct = list(dict.fromkeys(values))
    kind = _value(name, distinct[0])["type"]
    shown = [{"input_string": str(v), "description": "", "value": v} for v in distinct]
    return {"name": name, "type": kind, "flags": "", "values": shown}


def _value(name: str, value: float) -> Object:
    """Return the value of an axis, as a string, which is how nvbench writes numbers."""
    return {"name": name, "type": "int64" if isinstance(value, int) else "float64", "value": str(value)}


def _summaries(row: Mapping[str, Any]) -> list[Object]:
    """Return the summaries of a timed row."""
    cold = row["regime"] == "cold"
    prefix = "nv/cold" if cold else f"harness/{row['regime']}"
    how = "isolated" if cold else row["regime"]
    found = [
        _summary(
            f"{prefix}/sample_size", "Samples", f"Number of {how} executions", "sample_size", row["samples"]
        ),
        # Not nvbench's CPU time, which is that of a single launch for which the host waits.
        _summary(
            "harness/time/cpu",
            "CPU Time",
            "Wall time a run, of runs queued together",
            "duration",
            row["wall"],
        ),
        _summary(
            f"{prefix}/time/gpu/mean", "GPU Time", f"Mean {how} time (CUDA events)", "duration", row["mean"]
        ),
        _summary(
            f"{prefix}/time/gpu/stdev/relative",
            "Noise",
            "Relative standard deviation",
            "percentage",
            row["stdev"],
        ),
        _summary("harness/time/gpu/median", "Median", "Median GPU time", "duration", row["seconds"]),
        _summary("harness/cycles", "Cycles", "SM cycles a run", "", row["cycles"]),
        _summary("harness/sm_clock_rate", "Clock Rate", "Measured SM clock", "frequency", row["sm_hz"]),
        _summary("harness/flops", "FLOP/s", "At the median time", "item_rate", row["flops_rate"]),
        _summary("harness/bandwidth", "Compulsory BW", "At the median time", "byte_rate", row["bandwidth"]),
    ]
    return [s for s in found if s is not None]


def _summary(tag: str, name: str, description: str, hint: str, value: float | None) -> Object | None:
    """Return one summary; None if it has no value."""
    if value is None:
        return None
    kind = "int64" if isinstance(value, int) else "float64"
    entry: Object = {"tag": tag, "name": name, "description": description}
    if hint:
        entry["hint"] = hint
    return {**entry, "data": [{"name": "value", "type": kind, "value": str(value)}]}
