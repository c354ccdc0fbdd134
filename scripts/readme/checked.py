"""Tables of how far results and times can be trusted, and of what harness itself costs."""

from __future__ import annotations

from typing import Any

from harness.bench.row import EXPECTED, FAILED
from harness.results.tables import plain_table
from readme.records import command, every, linked, load, machine

_TOOLS = ("memcheck", "racecheck", "synccheck")


def soundness() -> str:
    """Return what `harness verify --repeat` and compute-sanitizer found of each rung, over all sizes."""
    verified = every("verify/*.json")
    checked = every("check/*.json")
    if not verified:
        return ""
    groups: dict[str, list[dict[str, Any]]] = {}
    for r in (r for content in verified for r in content["rows"]):
        typed = f" {r['dtype']}" if r["kernel"] == "matmul" else ""
        groups.setdefault(r["kernel"] + typed, []).append(r)
    cells = []
    for rung, rows in sorted(groups.items()):
        right = sum(r["status"] == "ok" for r in rows)
        shares = [r["verdict"]["worst"]["error_over_bound"] if r["verdict"] else None for r in rows]
        told = [s for s in shares if s is not None]
        error = f"{max(told):.2f}" if right and len(told) == len(rows) else "wrong"
        repeats = [r["repeats"] for r in rows if r["repeats"]]
        launches, equal = (sum(r[key] for r in repeats) for key in ("launches", "equal"))
        same = "-" if not launches else f"{equal:,}" if equal == launches else f"{equal:,} of {launches:,}"
        found = [r for content in checked for r in content["rows"] if r["kernel"] == rung]
        seen = [sanitized([r["status"] for r in found if r["tool"] == tool]) for tool in _TOOLS]
        cells.append([rung, f"{right}/{len(rows)}", error, same, *seen])
    headings = ["", "shapes right", "error/bound", "repeats equal", *_TOOLS]
    meta = verified[0]["meta"]
    commands = " and ".join(command(c) for c in (*verified, *checked))
    note = f"{meta['gpu']['name']}, driver {meta['gpu']['driver']}; {commands}, {meta['utc'][:10]}."
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def sanitized(statuses: list[str]) -> str:
    """Return the worst that one tool said of a kernel at any size."""
    if not statuses:
        return "-"
    told = {"error": "error", FAILED: FAILED, EXPECTED: "finds it"}
    return next((told[s] for s in told if s in statuses), "clean")


def selftest() -> str:
    """Return the results of comparisons whose true difference is known."""
    record = load("selftest/noise")
    (row,) = record["rows"]
    cells = [
        [
            "itself" if t["slowdown"] == 0 else f"{t['slowdown']:.0%} more work",
            str(t["runs"]),
            f"{t['estimate']:+.2%}",
            f"{t['half_width']:.2%}",
            f"{t['called']:.1%}",
        ]
        for t in row["trials"]
    ]
    called = f"called at {row['threshold']:.1%}"
    headings = ["a tiled kernel against", "runs", "mean estimate", "interval +-", called]
    note = f"n = {row['shape']}; {machine(record)}"
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def calibration() -> str:
    """Return harness's times beside nvbench's and Nsight Compute's, of the same cubins."""
    record = load("selftest/calibration")
    cells = []
    for r in record["rows"]:
        apart = [f"{r['cold_mean'] / r['cuda-bench'] - 1:+.1%}", f"{r['cold_mean'] / r['ncu'] - 1:+.1%}"]
        times = [f"{r[key] * 1e6:,.2f}" for key in ("cold_mean", "graph_mean", "cuda-bench", "ncu")]
        cells.append([r["kernel"], r["shape"], *times, *apart])
    headings = ["us", "n", "cold", "graph", "cuda-bench", "ncu", "cold to cuda-bench", "to ncu"]
    overhead = record["rows"][0]["event_overhead"] * 1e6
    note = (
        f"An empty pair of events takes {overhead:.2f} us, which cold times contain, as nvbench's do, and "
        f"ncu's do not: the residual of the shortest kernels. {machine(record)}"
    )
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def launch_cost() -> str:
    """Return the time that a launch costs the host, for harness and its peers."""
    record = load("benchmarks/launch_cost")
    cells = [[r["peer"], r["version"][:7], f"{r['median'] * 1e6:.2f} us", r["text"]] for r in record["rows"]]
    meta = record["meta"]
    note = f"{meta['gpu']}'s host, {linked('benchmarks/launch_cost.py', record)}, {meta['utc'][:10]}."
    return f"{plain_table(cells, ['', 'version', 'a launch', 'over harness'], 'md')}\n\n{note}"


def accuracy() -> str:
    """Return the largest errors of float32 products in units of fp32's bound, by kind of input."""
    record = load("scripts/accuracy")
    names = [name for name, value in record["rows"][0].items() if isinstance(value, dict)]
    cells = []
    for row in record["rows"]:
        whole = [row[name]["same"] > 0.99 for name in names]
        shown = [f"{row[n]['largest']:.2g}" + ("" if w else " *") for n, w in zip(names, whole, strict=True)]
        cells.append([row["kind"], f"{row['M']} x {row['N']} x {row['K']}", *shown])
    note = f"\\* gives a NaN for most infinities. {machine(record)}"
    return f"{plain_table(cells, ['inputs', 'size', *names], 'md')}\n\n{note}"


def tuners() -> str:
    """Return the times of `harness tune` and Kernel Tuner on the same spaces."""
    record = load("benchmarks/tuners")
    cells = [
        [
            *(r["kernel"], r["tool"], str(r["visited"]), f"{r['wall']:.2f} s", f"{r['search']:.2f} s"),
            *(f"{r['per_second']:.2f}", f"{r['confirmed']:.2f} s" if r["confirmed"] else "-"),
            " ".join(f"{k}={v}" for k, v in r["winner"].items()),
        ]
        for r in record["rows"]
    ]
    headings = ["kernel", "tool", "sets", "all of it", "search", "sets a second", "with finals", "winner"]
    meta, made = record["meta"], linked("benchmarks/tuners.py", record)
    note = f"One H200, {made}, {meta['axis']}, {meta['utc'][:10]}."
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"
