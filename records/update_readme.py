"""Write the README's tables from the records beside this file: ``python records/update_readme.py``.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->``; tests/test_readme.py fails where one
is not what its record says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import record
from harness.tables import params_text, plain_table

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
_MARKED = re.compile(r"(<!-- table:(\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def load(name: str) -> dict[str, Any]:
    return record.load(HERE / f"{name}.json")


def provenance(content: dict[str, Any]) -> str:
    meta = content["meta"]
    gpu = meta["gpu"]
    compiler = next(r["compiler"] for r in content["rows"] if "compiler" in r)
    return (
        f"{gpu['name']}, driver {gpu['driver']}, {compiler}, cuBLAS {gpu['cublas']} in {gpu['math_mode']}; "
        f"`{' '.join(meta['argv'])}`, {meta['utc'][:10]}."
    )


def rate(row: dict[str, Any]) -> str:
    """A rate stands only for what was verified and timed."""
    return f"{row['flops_rate'] / 1e9:,.0f}" if row["status"] == "ok" else row["status"]


def ladder() -> str:
    """GFLOP/s of each rung by size, and its share of cuBLAS at the largest."""
    content = load("h200-ladder")
    shapes = list(dict.fromkeys(r["shape"] for r in content["rows"]))
    kernels = list(dict.fromkeys(r["kernel"] for r in content["rows"]))
    rows = {(r["kernel"], r["shape"]): r for r in content["rows"]}
    cells = []
    for kernel in kernels:
        mine = [rows[kernel, shape] for shape in shapes]
        share = mine[-1]["vs_cublas"]
        cells.append([kernel, *map(rate, mine), f"{100 * share:.1f} %" if share else "-"])
    headings = ["GFLOP/s at n =", *shapes, f"of cuBLAS at {shapes[-1]}"]
    return f"{plain_table(cells, headings, 'md')}\n\n{provenance(content)}"


def tiles() -> str:
    """Every parameter set of the first rungs at one size."""
    content = load("h200-tiles")
    cells = []
    for r in content["rows"]:
        if r["params"]:
            per_byte = f"{r['intensity']:.3g}"
            occupancy = f"{r['occupancy']:.0%}"
            shared, registers = str(r["shared"]), str(r["registers"])
            label = params_text(r)
            cells.append([r["kernel"], label, shared, registers, occupancy, per_byte, rate(r)])
    headings = ["kernel", "parameters", "shared B", "registers", "occupancy", "FLOP/B", "GFLOP/s"]
    return f"{plain_table(cells, headings, 'md')}\n\n{provenance(content)}"


# What of ncu's counters stands in the table, and its heading.
_COUNTERS = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "load requests",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "sectors",
    "smsp__inst_executed_op_shared_ld.sum": "shared loads",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": "wavefronts",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": "conflicts",
}


def matmul() -> str:
    """The dispatcher beside cuBLAS: squares, then rectangles, and the geometric mean of each."""
    squares = load("h200-matmul")
    files = sorted((HERE / "rectangles").glob("h200-*.json"), key=lambda f: int(f.stem.rpartition("-")[2]))
    cells, means = [], []
    for rows in (squares["rows"], [r for f in files for r in load(f"rectangles/{f.stem}")["rows"]]):
        timed = [r for r in rows if not r["baseline"]]
        for r in timed:
            chosen = r["chosen"]
            label = chosen["label"]
            share = r["speedup"]
            within = f"{100 * share['estimate']:.1f} ({100 * share['low']:.1f} to {100 * share['high']:.1f})"
            cells.append([r["shape"], label, rate(r), within])
        means.append(math.exp(sum(math.log(r["speedup"]["estimate"]) for r in timed) / len(timed)))
    note = (
        f"Geometric means: {means[0]:.3f} over the squares, {means[1]:.3f} over the rectangles. "
        f"{provenance(squares)}"
    )
    return f"{plain_table(cells, ['M x N x K', 'chosen', 'GFLOP/s', '% of cuBLAS'], 'md')}\n\n{note}"


def emulator() -> str:
    """Counts as compiled against ncu's counters: one number where they are equal."""
    record = load("h200-emulator")
    cells = []
    for r in record["rows"]:
        pairs = [(r["measured"].get(name), r["compiled"][name]) for name in _COUNTERS]
        equal = [f"{ours:,}" if ours == theirs else f"{ours:,} / {theirs:,.0f}" for theirs, ours in pairs]
        cells.append([r["kernel"], params_text(r), r["shape"], *equal, r["bits"]])
    meta = record["meta"]
    compiler = record["rows"][0]["compiler"]
    headings = ["kernel", "parameters", "n", *_COUNTERS.values(), "output bits"]
    note = (
        f"One number: emulated and measured are equal; otherwise emulated / measured. {meta['gpu']['name']}, "
        f"driver {meta['gpu']['driver']}, {compiler}; `records/calibrate_emulator.py`, {meta['utc'][:10]}. "
        "ncu counts a cp.async as a shared load, too, and more sectors where copies are zero-filled; at "
        "ragged edges the hardware repeats a few wavefronts."
    )
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def selftest() -> str:
    """What comparisons of known differences came to."""
    record = load("h200-selftest")
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
    """Our times beside those of nvbench's Python package and of Nsight Compute, on the same cubins."""
    record = load("h200-calibration")
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
    """What a launch costs the host."""
    record = load("h200-launch-cost")
    cells = [[r["peer"], r["version"][:7], f"{r['median'] * 1e6:.2f} us", r["text"]] for r in record["rows"]]
    meta = record["meta"]
    note = f"{meta['gpu']}'s host, `benchmarks/launch_cost.py`, {meta['utc'][:10]}."
    return f"{plain_table(cells, ['', 'version', 'a launch', 'over harness'], 'md')}\n\n{note}"


def emulator_speed() -> str:
    """Seconds a launch takes."""
    record = load("emulator-speed")
    sizes = list(dict.fromkeys(r["n"] for r in record["rows"]))
    by_kernel: dict[str, list[str]] = {}
    for r in record["rows"]:
        by_kernel.setdefault(r["kernel"], []).append(f"{r['seconds']:.2g}")
    cells = [[kernel, *times] for kernel, times in by_kernel.items()]
    peak = record["meta"]["peak_bytes"] / 2**20
    day = record["meta"]["utc"][:10]
    note = f"Two cores of a server, `benchmarks/emulator_speed.py`, {day}; {peak:.0f} MiB at most."
    return f"{plain_table(cells, ['seconds at n =', *map(str, sizes)], 'md')}\n\n{note}"


def machine(record: dict[str, Any]) -> str:
    meta = record["meta"]
    return f"{meta['gpu']['name']}; `{' '.join(meta['argv'])}`, {meta['utc'][:10]}."


TABLES: dict[str, Callable[[], str]] = {
    "ladder": ladder,
    "matmul": matmul,
    "tiles": tiles,
    "emulator": emulator,
    "emulator_speed": emulator_speed,
    "selftest": selftest,
    "calibration": calibration,
    "launch_cost": launch_cost,
}


def updated(text: str) -> str:
    """`text` with every marked table as its record has it now."""
    return _MARKED.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", text)


if __name__ == "__main__":
    README.write_text(updated(README.read_text()))
