"""Write the README's tables from the records beside this file: ``python records/update_readme.py``.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->``; tests/test_readme.py fails where one
is not what its record says.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.bench.row import EXPECTED, FAILED
from harness.instruments import counters, diagnosis
from harness.kernels import catalog
from harness.launch import cublaslt
from harness.results import record
from harness.results.tables import params_text, plain_table

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
_MARKED = re.compile(r"(<!-- table:(\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def load(name: str) -> dict[str, Any]:
    return record.load(HERE / f"{name}.json")


def provenance(content: dict[str, Any], *others: dict[str, Any]) -> str:
    """Of a table; `others` are further records of the same machine in it."""
    meta = content["meta"]
    gpu = meta["gpu"]
    compiler = next(r["compiler"] for r in content["rows"] if "compiler" in r)
    return (
        f"{gpu['name']}, driver {gpu['driver']}, {compiler}, cuBLAS {gpu['cublas']} in {gpu['math_mode']}; "
        f"{' and '.join(f'`{command(c)}`' for c in (content, *others))}, {meta['utc'][:10]}."
    )


def command(content: dict[str, Any]) -> str:
    return " ".join(content["meta"]["argv"])


def of_type(dtype: str, *patterns: str) -> list[dict[str, Any]]:
    """The records of these names, each with its rows of this element type; those that have none left out."""
    files = [f for p in patterns for f in sorted(HERE.glob(p), key=lambda f: (len(f.stem), f.stem))]
    found = []
    for content in map(record.load, files):
        rows = [r for r in content["rows"] if (r.get("dtype") or "fp32") == dtype]
        found += [{**content, "rows": rows}] if rows else []
    return found


def unit(dtype: str) -> tuple[str, float, str]:
    """What a rate is given in, how much that is in FLOP/s, and its format."""
    return ("GFLOP/s", 1e9, ",.0f") if dtype == "fp32" else ("TFLOP/s", 1e12, ",.1f")


def rate(row: dict[str, Any], dtype: str = "fp32") -> str:
    """A rate stands only for what was verified and timed."""
    _, scale, form = unit(dtype)
    if row["status"] == "ok":
        return f"{row['flops_rate'] / scale:{form}}"
    return "wrong" if row["status"] == EXPECTED else row["status"]


def size(row: dict[str, Any]) -> str:
    """``512`` or ``300x500x260``, without the type that the table is about."""
    return str(row["shape"].split()[0])


def share(row: dict[str, Any]) -> str:
    """% of cuBLAS with its interval, where it was timed in turn with that and verified."""
    if row["status"] != "ok" or row["against"] != "cuBLAS" or not row["speedup"]:
        return "-"
    low, estimate, high = (100 * row["speedup"][key] for key in ("low", "estimate", "high"))
    return f"{estimate:.1f} ({low:.1f} to {high:.1f})"


def clock(row: dict[str, Any]) -> str:
    return f"{row['sm_hz'] / 1e6:,.0f}" if row["status"] == "ok" and row["sm_hz"] else "-"


def ladder(dtype: str = "fp32") -> str:
    """Each rung's rate by size; at the largest its share of cuBLAS."""
    records = of_type(dtype, "h200-ladder*.json")
    if not records:
        return ""
    found = [r for content in records for r in content["rows"]]
    shapes = sorted(set(map(size, found)), key=int)
    rows = {(r["kernel"], size(r)): r for r in found}
    cells = []
    for kernel in sorted({r["kernel"] for r in found}, key=lambda k: (k != "cuBLAS", k)):
        mine = [rows.get((kernel, shape)) for shape in shapes]
        rates = [rate(r, dtype) if r else "-" for r in mine]
        last = mine[-1]
        if dtype == "fp32":
            told = [f"{100 * last['vs_cublas']:.1f} %" if last and last["vs_cublas"] else "-"]
        else:
            told = [share(last), clock(last)] if last else ["-", "-"]
        cells.append([kernel, *rates, *told])
    if dtype == "fp32":
        more = [f"of cuBLAS at {shapes[-1]}"]
    else:
        more = [f"% of cuBLAS at {shapes[-1]}", "SM MHz there"]
    typed = "" if dtype == "fp32" else f"{dtype}, "
    table = plain_table(cells, [f"{typed}{unit(dtype)[0]} at n =", *shapes, *more], "md")
    return f"{table}\n\n{provenance(*records)}{'' if dtype == 'fp32' else plot(dtype)}"


def plot(dtype: str) -> str:
    """The type's ladder as a chart, where `harness report --plots` has drawn it."""
    name = f"plots/ladder-{dtype}.svg"
    drawn = (HERE / name).exists()
    return f"\n\n![GFLOP/s of each {dtype} rung by size, against cuBLAS](records/{name})" if drawn else ""


def rungs() -> str:
    """What each rung of the tensor cores is, in the words of its file."""
    cells = [[k.name, k.dtype, k.min_arch, k.title, k.claim] for k in catalog.ladder() if k.dtype != "fp32"]
    return plain_table(cells, ["rung", "type", "from", "what", "gained"], "md")


def profile_tensor() -> str:
    """What ncu counts of the rungs of the tensor cores, and what holds each back."""
    content = load("h200-profile-tensor")
    cells = []
    for r in content["rows"]:
        values = r["counters"]
        busy = [f"{values[metric]:.0f} %" for metric in (counters.SM, counters.ISSUED, counters.L2)]
        time, instructions = values[counters.TIME] / 1e3, values[counters.INSTRUCTIONS] / 1e6
        held = ", ".join(d.kind for d in diagnosis.diagnose(values))
        cells.append([r["kernel"], f"{time:.1f}", f"{instructions:.1f}", *busy, held])
    headings = ["n = 2048", "us", "instructions, 10^6", "tensor cores", "issue slots", "L2", "held back"]
    return f"{plain_table(cells, headings, 'md')}\n\n{machine(content)}"


def sustained(dtype: str) -> str:
    """Each kernel by itself for seconds: what the card's power leaves of its speed, and energy."""
    records = of_type(dtype, "h200-sustained*.json")
    if not records:
        return ""
    rows = [r for content in records for r in content["rows"] if r["status"] == "ok"]
    if paired := [r["kernel"] for r in rows if r["pair"]]:
        raise ValueError(f"{paired[0]} was timed in turn with another: the power is of both")
    cells = []
    for r in sorted(rows, key=lambda r: r["axes"]["M"] * r["axes"]["N"] * r["axes"]["K"]):
        watts = r["device"]["power"] if r["device"] else None
        energy = [f"{watts:.0f}", f"{watts / r['flops_rate'] * 1e12:.3g}"] if watts else ["-", "-"]
        star = "*" if r.get("notes") else ""
        cells.append([size(r), r["kernel"], f"{rate(r, dtype)}{star}", clock(r), *energy])
    headings = [f"{dtype}, sustained, n =", "kernel", unit(dtype)[0], "SM MHz", "W", "pJ/FLOP"]
    note = (
        "Each by itself, not in turn; W: the median of NVML's readings. A pJ/FLOP is a mJ/GFLOP. "
        f"{provenance(records[0])}"
    )
    said = "".join(f" * {r['kernel']}: {'; '.join(r['notes'])}." for r in rows if r.get("notes"))
    return f"{plain_table(cells, headings, 'md')}\n\n{note}{said}"


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


def tuned() -> str:
    """Of each rung that was tuned, its default beside the parameters that were found, and rung 01."""
    contents = [record.load(f) for f in sorted(HERE.glob("tuned/*.json"))]
    if not contents:
        return ""
    naive = {size(r): r["flops_rate"] for r in load("h200-ladder")["rows"] if r["kernel"] == "01_naive"}
    cells = []
    for content in contents:
        for result in content["meta"]["results"]:
            rows = [r for r in content["rows"] if size(r) == result["shape"]]
            last = {params_text(r): r for r in rows if r["stage"] != "duel"}  # rungs, then finals
            kernel = catalog.kernel(rows[0]["kernel"])
            standard = kernel.variant().params.items()  # a parameter may be younger than the record
            default = next(r for r in last.values() if r["params"].items() <= standard)
            best = last[params_text({"params": result["winners"][0]})]
            changed = {k: v for k, v in best["params"].items() if v != default["params"][k]}
            faster, other = best["flops_rate"] / naive[size(best)], params_text({"params": changed})
            told = [rate(default), rate(best), share(best), f"{faster:,.0f}x", other or "-"]
            cells.append([kernel.name, result["shape"], str(len(last)), *told])
    headings = ["", "n", "sets", "default", "tuned", "% of cuBLAS", "over 01", "other than the default"]
    meta = contents[0]["meta"]
    return (
        f"{plain_table(cells, headings, 'md')}\n\nGFLOP/s. {meta['gpu']['name']}; "
        f"`{command(contents[0])}` and so on, {meta['utc'][:10]}."
    )


# What of ncu's counters stands in the table, and its heading.
_COUNTERS = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "load requests",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "sectors",
    "smsp__inst_executed_op_shared_ld.sum": "shared loads",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": "wavefronts",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": "conflicts",
}


def dispatched(records: list[dict[str, Any]], *, right: bool) -> tuple[list[dict[str, Any]], ...]:
    """The dispatcher's rows, or those that are `right`: squares and rectangles."""
    rows = (r for content in records for r in content["rows"] if not _library(r))
    timed = [r for r in rows if r["status"] == "ok" or not right]
    return [r for r in timed if "x" not in size(r)], [r for r in timed if "x" in size(r)]


def _library(row: dict[str, Any]) -> bool:
    return row["baseline"] or row["kernel"] == cublaslt.LABEL


def heuristics(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """cuBLASLt's row of each shape that has one which was right."""
    rows = [r for content in records for r in content["rows"] if r["kernel"] == cublaslt.LABEL]
    return {r["shape"]: r for r in rows if r["status"] == "ok"}


def of_heuristics(row: dict[str, Any], other: dict[str, Any] | None) -> str:
    """% of cuBLASLt: the quotient of their ratios to cuBLAS, each paired, or else of their times."""
    if row["status"] != "ok" or other is None:
        return "-"
    if row["speedup"] and other["speedup"]:
        return f"{100 * row['speedup']['estimate'] / other['speedup']['estimate']:.1f}"
    return f"{100 * other['seconds'] / row['seconds']:.1f}"


def mean(rows: list[dict[str, Any]]) -> float:
    """The geometric mean of their speed-ups over cuBLAS."""
    return math.exp(sum(math.log(r["speedup"]["estimate"]) for r in rows) / len(rows))


def headline() -> str:
    """The dispatcher over cuBLAS in a sentence."""
    told = []
    for dtype in ("fp32", "tf32", "bf16", "fp16"):
        records = of_type(dtype, "h200-matmul*.json", "rectangles/h200-*.json")
        squares, rectangles = dispatched(records, right=True)
        if squares and rectangles:
            told.append(f"{dtype} {mean(squares):.2f} and {mean(rectangles):.2f}")
    return (
        "The speed of `harness.matmul`, which runs the fastest of these kernels for a shape, over cuBLAS's "
        "on an H200, as geometric means over squares and over rectangles: "
        f"{', '.join(told)} ([each of them](#matmul))."
    )


def matmul(dtype: str = "fp32") -> str:
    """The dispatcher beside cuBLAS: squares, then rectangles, and the geometric mean of each; also beside
    cuBLASLt's best, where that was timed.
    """
    records = of_type(dtype, "h200-matmul*.json", "rectangles/h200-*.json")
    if not records:
        return ""
    squares, rectangles = dispatched(records, right=False)
    others = heuristics(records)
    cells = []
    for r in squares + rectangles:
        told = [size(r), r["chosen"]["label"], rate(r, dtype), share(r)]
        told += [of_heuristics(r, others.get(r["shape"]))] if others else []
        cells.append(told if dtype == "fp32" else [*told, clock(r)])
    means = [
        f"{mean(rows):.3f} over the {what}"
        for rows, what in zip(dispatched(records, right=True), ("squares", "rectangles"), strict=True)
        if rows
    ]
    headings = ["M x N x K", "chosen", unit(dtype)[0], "% of cuBLAS", *(["% of cuBLASLt"] if others else [])]
    if dtype != "fp32":
        headings = [f"{dtype}, {headings[0]}", *headings[1:], "SM MHz"]
    table = plain_table(cells, headings, "md")
    return f"{table}\n\nGeometric means: {', '.join(means)}. {provenance(records[0])}"


_TOOLS = ("memcheck", "racecheck", "synccheck")


def soundness() -> str:
    """Of each rung what `harness verify --repeat` and compute-sanitizer found, over all sizes."""
    verified = [record.load(f) for f in sorted(HERE.glob("h200-verify*.json"))]
    checked = [record.load(f) for f in sorted(HERE.glob("h200-sanitizer*.json"))]
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
    commands = " and ".join(f"`{command(c)}`" for c in (*verified, *checked))
    note = f"{meta['gpu']['name']}, driver {meta['gpu']['driver']}; {commands}, {meta['utc'][:10]}."
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def sanitized(statuses: list[str]) -> str:
    """What became of one tool at all sizes: the worst of it."""
    if not statuses:
        return "-"
    told = {"error": "error", FAILED: FAILED, EXPECTED: "finds it"}
    return next((told[s] for s in told if s in statuses), "clean")


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


def tuners() -> str:
    """`harness tune` beside Kernel Tuner, on the same spaces."""
    record = load("h200-tuners")
    cells = [
        [
            *(r["kernel"], r["tool"], str(r["visited"]), f"{r['wall']:.2f} s", f"{r['search']:.2f} s"),
            *(f"{r['per_second']:.2f}", f"{r['confirmed']:.2f} s" if r["confirmed"] else "-"),
            " ".join(f"{k}={v}" for k, v in r["winner"].items()),
        ]
        for r in record["rows"]
    ]
    headings = ["kernel", "tool", "sets", "all of it", "search", "sets a second", "with finals", "winner"]
    note = f"One H200, `benchmarks/tuners.py`, {record['meta']['axis']}, {record['meta']['utc'][:10]}."
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


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
    "headline": headline,
    "ladder": ladder,
    "matmul": matmul,
    "tiles": tiles,
    "emulator": emulator,
    "emulator_speed": emulator_speed,
    "selftest": selftest,
    "calibration": calibration,
    "launch_cost": launch_cost,
    "profile_tensor": profile_tensor,
    "tuned": tuned,
    "tuners": tuners,
    "rungs": rungs,
    "soundness": soundness,
}
# Tables of types that were not measured are empty.
for _dtype in ("bf16", "fp16", "tf32", "3xtf32"):
    for _name, _table in {"ladder": ladder, "sustained": sustained, "matmul": matmul}.items():
        TABLES[f"{_name}_{_dtype}"] = functools.partial(_table, _dtype)


def updated(text: str) -> str:
    """`text` with every marked table as its record has it now."""
    return _MARKED.sub(lambda m: m[1] + (f"{made}\n" if (made := TABLES[m[2]]()) else "") + m[3], text)


if __name__ == "__main__":
    README.write_text(updated(README.read_text()))
