"""Write the generated tables of README.md and docs/*.md from records/: ``python scripts/update_readme.py``.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->``. tests/repo/test_readme.py fails where a
table differs from what its records and kernel files say.
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
from harness.results.rows import params_text
from harness.results.tables import plain_table

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "records"
IMAGES = ROOT / "docs" / "images"
GPU = "h200"  # whose records the tables show
_MARKED = re.compile(r"(<!-- table:(\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return the files that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def up(page: Path) -> str:
    """Return the way from the page's folder to the root: empty for README.md, ``../`` in docs/."""
    return "../" * (len(page.relative_to(ROOT).parts) - 1)


def load(name: str, folder: str = GPU) -> dict[str, Any]:
    """Return the record of this name, as ``bench/ladder``, with its path as ``path``."""
    return read(RECORDS / folder / f"{name}.json")


def read(path: Path) -> dict[str, Any]:
    """Return the record at `path`; its key ``path`` says where it lies, for links."""
    return {**_loaded(path, path.stat().st_mtime_ns), "path": path.relative_to(RECORDS).as_posix()}


@functools.cache
def _loaded(path: Path, _changed: int) -> dict[str, Any]:
    """Return the record's contents, which many tables share."""
    return record.load(path)


def provenance(content: dict[str, Any], *others: dict[str, Any]) -> str:
    """Return the footer of a table: machine, versions, commands and date. `others` are further records of the
    same machine that the table shows.
    """
    meta = content["meta"]
    gpu = meta["gpu"]
    compiler = next(r["compiler"] for r in content["rows"] if "compiler" in r)
    return (
        f"{gpu['name']}, driver {gpu['driver']}, {compiler}, cuBLAS {gpu['cublas']} in {gpu['math_mode']}; "
        f"{' and '.join(command(c) for c in (content, *others))}, {meta['utc'][:10]}."
    )


def command(content: dict[str, Any]) -> str:
    """Return the command that made the record, as a link to it (`updated` completes the address)."""
    return linked(" ".join(content["meta"]["argv"]), content)


def linked(text: str, content: dict[str, Any]) -> str:
    return f"[`{text}`](ROOT/records/{content['path']})"


def of_type(dtype: str, *patterns: str) -> list[dict[str, Any]]:
    """Return the records of these names that have rows of this element type, with those rows only."""
    folder = RECORDS / GPU
    files = [f for p in patterns for f in sorted(folder.glob(p), key=lambda f: (len(f.stem), f.stem))]
    found = []
    for content in map(read, files):
        rows = [r for r in content["rows"] if (r.get("dtype") or "fp32") == dtype]
        found += [{**content, "rows": rows}] if rows else []
    return found


def unit(dtype: str) -> tuple[str, float, str]:
    """Return the unit of a type's rates, its size in FLOP/s, and the format of a number of it."""
    return ("GFLOP/s", 1e9, ",.0f") if dtype == "fp32" else ("TFLOP/s", 1e12, ",.1f")


def rate(row: dict[str, Any], dtype: str = "fp32") -> str:
    """Return a row's rate, or its status where it was not both verified and timed."""
    _, scale, form = unit(dtype)
    if row["status"] == "ok":
        return f"{row['flops_rate'] / scale:{form}}"
    return "wrong" if row["status"] == EXPECTED else row["status"]


def size(row: dict[str, Any]) -> str:
    """Return ``512`` or ``300x500x260``, without the element type, which the table's heading names."""
    return str(row["shape"].split()[0])


def share(row: dict[str, Any]) -> str:
    """Return the per cent of cuBLAS with its interval, where the row was verified and paired with it."""
    if row["status"] != "ok" or row["against"] != "cuBLAS" or not row["speedup"]:
        return "-"
    low, estimate, high = (100 * row["speedup"][key] for key in ("low", "estimate", "high"))
    return f"{estimate:.1f} ({low:.1f} to {high:.1f})"


def clock(row: dict[str, Any]) -> str:
    return f"{row['sm_hz'] / 1e6:,.0f}" if row["status"] == "ok" and row["sm_hz"] else "-"


def ladder(dtype: str = "fp32") -> str:
    """Return each rung's rate by size, and its share of cuBLAS at the largest."""
    records = of_type(dtype, "bench/ladder*.json")
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
    """Return the chart of the type's ladder, where `harness report --plots` has drawn it."""
    name = f"ladder-{dtype}.svg"
    text = f"GFLOP/s of each {dtype} rung by size, against cuBLAS"
    return f"\n\n![{text}](ROOT/docs/images/{name})" if (IMAGES / name).exists() else ""


def rungs(*, tensor: bool) -> str:
    """Return what each rung is, in the words of its own file: those of fp32, or those of the tensor cores."""
    cells = [
        [
            k.name,
            k.after or "-",
            *([", ".join(k.dtypes)] if tensor else []),
            k.min_arch,
            k.title,
            k.claim or "-",
        ]
        for k in catalog.ladder()
        if k.dtype == k.dtypes[0] and (k.dtype != "fp32") == tensor
    ]
    headings = ["rung", "after", *(["type"] if tensor else []), "from", "what it does", "what is gained"]
    return plain_table(cells, headings, "md")


def profile_tensor() -> str:
    """Return Nsight Compute's counters of the tensor-core rungs, and what holds each back."""
    content = load("profile/tensor")
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
    """Return speed, clock, power and energy of kernels that ran alone for seconds."""
    records = of_type(dtype, "matmul/sustained*.json")
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
    """Return every parameter set of the first rungs at one size."""
    content = load("bench/tiles")
    cells = []
    for r in content["rows"]:
        if r["params"]:
            per_byte = f"{r['intensity']:.3g}"
            occupancy = f"{r['occupancy']:.0%}"
            shared, registers = str(r["shared"]), str(r["registers"])
            label = params_text(r["params"])
            cells.append([r["kernel"], label, shared, registers, occupancy, per_byte, rate(r)])
    headings = ["kernel", "parameters", "shared B", "registers", "occupancy", "FLOP/B", "GFLOP/s"]
    return f"{plain_table(cells, headings, 'md')}\n\n{provenance(content)}"


def tuned() -> str:
    """Return the default and the tuned speed of each rung that was tuned."""
    contents = [read(f) for f in sorted((RECORDS / GPU).glob("tune/[0-9]*.json"))]
    if not contents:
        return ""
    naive = {size(r): r["flops_rate"] for r in load("bench/ladder")["rows"] if r["kernel"] == "01_naive"}
    cells = []
    for content in contents:
        for result in content["meta"]["results"]:
            rows = [r for r in content["rows"] if size(r) == result["shape"]]
            last = {params_text(r["params"]): r for r in rows if r["stage"] != "duel"}  # rungs, then finals
            kernel = catalog.kernel(rows[0]["kernel"])
            standard = kernel.variant().params.items()  # a parameter may be younger than the record
            default = next(r for r in last.values() if r["params"].items() <= standard)
            best = last[params_text(result["winners"][0])]
            changed = {k: v for k, v in best["params"].items() if v != default["params"][k]}
            faster, other = best["flops_rate"] / naive[size(best)], params_text(changed)
            told = [rate(default), rate(best), share(best), f"{faster:,.0f}x", other or "-"]
            cells.append([kernel.name, result["shape"], str(len(last)), *told])
    headings = ["", "n", "sets", "default", "tuned", "% of cuBLAS", "over 01", "other than the default"]
    meta = contents[0]["meta"]
    return (
        f"{plain_table(cells, headings, 'md')}\n\nGFLOP/s. {meta['gpu']['name']}; "
        f"{command(contents[0])} and so on, {meta['utc'][:10]}."
    )


# Which of ncu's counters the table shows, and under which heading.
_COUNTERS = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "load requests",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "sectors",
    "smsp__inst_executed_op_shared_ld.sum": "shared loads",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": "wavefronts",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": "conflicts",
    "sm__inst_executed_pipe_tensor_op_hmma.sum": "matrix instructions",
    "lts__t_sectors_srcunit_tex_op_read.sum": "sectors from L2",
}


def dispatched(records: list[dict[str, Any]], *, right: bool) -> tuple[list[dict[str, Any]], ...]:
    """Return the dispatcher's rows, only those with status ok where `right`: squares, then rectangles."""
    rows = (r for content in records for r in content["rows"] if not _library(r))
    timed = [r for r in rows if r["status"] == "ok" or not right]
    return [r for r in timed if "x" not in size(r)], [r for r in timed if "x" in size(r)]


def _library(row: dict[str, Any]) -> bool:
    return row["baseline"] or row["kernel"] == cublaslt.LABEL


def heuristics(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return cuBLASLt's row by shape, for shapes where its result was right."""
    rows = [r for content in records for r in content["rows"] if r["kernel"] == cublaslt.LABEL]
    return {r["shape"]: r for r in rows if r["status"] == "ok"}


def of_heuristics(row: dict[str, Any], other: dict[str, Any] | None) -> str:
    """Return the per cent of cuBLASLt: the quotient of both ratios to cuBLAS, or else of the times."""
    if row["status"] != "ok" or other is None:
        return "-"
    if row["speedup"] and other["speedup"]:
        return f"{100 * row['speedup']['estimate'] / other['speedup']['estimate']:.1f}"
    return f"{100 * other['seconds'] / row['seconds']:.1f}"


def mean(rows: list[dict[str, Any]]) -> float:
    """Return the geometric mean of the rows' speed-ups over cuBLAS."""
    return math.exp(sum(math.log(r["speedup"]["estimate"]) for r in rows) / len(rows))


MATMUL = ("matmul/squares*.json", "matmul/rectangle*.json")
BACK_TO_BACK = "matmul/graph*.json"  # the same shapes in the regime `graph`


def headline() -> str:
    """Return the dispatcher's mean speed over cuBLAS by type: back to back, and with events around each
    launch.
    """
    told = {}
    packed = {r["shape"] for c in map(read, sorted((RECORDS / GPU).glob(BACK_TO_BACK))) for r in c["rows"]}
    for heading, patterns in (("back to back", (BACK_TO_BACK,)), ("with events around each launch", MATMUL)):
        means = []
        for dtype in ("fp32", "bf16x6", "tf32", "bf16", "fp16"):
            squares, rectangles = (
                [r for r in rows if not packed or r["shape"] in packed]
                for rows in dispatched(of_type(dtype, *patterns), right=True)
            )
            if squares and rectangles:
                means.append(f"{dtype} {mean(squares):.2f} and {mean(rectangles):.2f}")
        if means:
            told[heading] = ", ".join(means)
    return (
        "`harness.matmul` picks the fastest of these kernels for a shape. Its speed over cuBLAS's on an "
        "H200, as geometric means over squares and over rectangles, "
        f"{'; '.join(f'{heading}: {means}' for heading, means in told.items())} "
        "([every shape](ROOT/docs/matmul.md#results))."
    )


# The rungs of the front page: each is a large step.
_FRONT = (
    "01_naive",
    "02_coalesced",
    "03_tiled",
    "09_blocked_2d",
    "11_conflict_free",
    "14_warp_tiles",
    "20_stream_k",
)


def front() -> str:
    """Return a few rungs of the fp32 ladder at n = 4096 beside cuBLAS."""
    records = of_type("fp32", "bench/ladder.json", "bench/ladder-20.json")
    rows, packed = (
        {r["kernel"]: r for content in found for r in content["rows"] if size(r) == "4096"}
        for found in (records, of_type("fp32", "bench/graph*.json"))
    )
    cells = []
    for kernel in _FRONT:
        told = [of_cublas(rows[kernel]), *([of_cublas(packed.get(kernel))] if packed else [])]
        cells.append([kernel, catalog.kernel(kernel).title, rate(rows[kernel]), *told])
    last = ["cuBLAS", "pedantic fp32", rate(rows["cuBLAS"]), *(["100 %"] * (len(cells[0]) - 3))]
    name = records[0]["meta"]["gpu"]["name"]
    records += of_type("fp32", "bench/graph*.json")
    headings = ["rung", "what it adds", "GFLOP/s", "of cuBLAS", *(["back to back"] if packed else [])]
    table = plain_table([*cells, last], headings, "md")
    return f"{table}\n\nfp32, n = 4096, {name}; records: {' and '.join(short(c) for c in records)}."


def of_cublas(row: dict[str, Any] | None) -> str:
    """Return the row's speed in per cent of cuBLAS's; a dash where it was not both verified and timed."""
    return f"{100 * row['vs_cublas']:.0f} %" if row and row["status"] == "ok" else "-"


def short(content: dict[str, Any]) -> str:
    """Return a link to the record, by its file name."""
    return f"[{Path(content['path']).name}](ROOT/records/{content['path']})"


def matmul(dtype: str = "fp32") -> str:
    """Return the dispatcher's speed beside cuBLAS (squares, then rectangles, and the geometric mean of each),
    and beside cuBLASLt's best where that was timed.
    """
    records = of_type(dtype, *MATMUL)
    if not records:
        return ""
    squares, rectangles = dispatched(records, right=False)
    others = heuristics(records)
    packed = {r["shape"]: r for rows in dispatched(of_type(dtype, BACK_TO_BACK), right=True) for r in rows}
    cells = []
    for r in squares + rectangles:
        told = [size(r), r["chosen"]["label"], rate(r, dtype), share(r)]
        told += [share(packed[r["shape"]]) if r["shape"] in packed else "-"] if packed else []
        told += [of_heuristics(r, others.get(r["shape"]))] if others else []
        cells.append(told if dtype == "fp32" else [*told, clock(r)])
    means = [
        f"{mean(rows):.3f} over the {what}"
        for rows, what in zip(dispatched(records, right=True), ("squares", "rectangles"), strict=True)
        if rows
    ]
    headings = ["M x N x K", "chosen", unit(dtype)[0], "% of cuBLAS"]
    headings += (["back to back"] if packed else []) + (["% of cuBLASLt"] if others else [])
    if dtype != "fp32":
        headings = [f"{dtype}, {headings[0]}", *headings[1:], "SM MHz"]
    table = plain_table(cells, headings, "md")
    return f"{table}\n\nGeometric means: {', '.join(means)}. {provenance(records[0])}"


_TOOLS = ("memcheck", "racecheck", "synccheck")


def soundness() -> str:
    """Return what `harness verify --repeat` and compute-sanitizer found of each rung, over all sizes."""
    verified = [read(f) for f in sorted((RECORDS / GPU).glob("verify/*.json"))]
    checked = [read(f) for f in sorted((RECORDS / GPU).glob("check/*.json"))]
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


def emulator() -> str:
    """Return the emulator's counts beside ncu's counters: one number where they are equal."""
    record = load("scripts/calibrate_emulator")
    cells = []
    columns = [name for name in _COUNTERS if all(name in r["compiled"] for r in record["rows"])]
    for r in record["rows"]:
        pairs = [(r["measured"].get(name), r["compiled"][name]) for name in columns]
        equal = [f"{ours:,}" if ours == theirs else f"{ours:,} / {theirs:,.0f}" for theirs, ours in pairs]
        cells.append([r["kernel"], params_text(r["params"]), r["shape"], *equal, r["bits"]])
    meta = record["meta"]
    compiler = record["rows"][0]["compiler"]
    headings = ["kernel", "parameters", "n", *(_COUNTERS[name] for name in columns), "output bits"]
    note = (
        f"One number: emulated and measured are equal; otherwise emulated / measured. {meta['gpu']['name']}, "
        f"driver {meta['gpu']['driver']}, {compiler}; {linked('scripts/calibrate_emulator.py', record)}, "
        f"{meta['utc'][:10]}. "
        "ncu counts a cp.async as a shared load, too, and more sectors where copies are zero-filled; at "
        "ragged edges the hardware repeats a few wavefronts."
    )
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


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


def emulator_speed() -> str:
    """Return the seconds that the emulator takes for a launch."""
    record = load("benchmarks/emulator_speed", "cpu")
    sizes = list(dict.fromkeys(r["n"] for r in record["rows"]))
    by_kernel: dict[str, list[str]] = {}
    for r in record["rows"]:
        by_kernel.setdefault(r["kernel"], []).append(f"{r['seconds']:.2g}")
    cells = [[kernel, *times] for kernel, times in by_kernel.items()]
    peak = record["meta"]["peak_bytes"] / 2**20
    day = record["meta"]["utc"][:10]
    made = linked("benchmarks/emulator_speed.py", record)
    note = f"Two cores of a server, {made}, {day}; {peak:.0f} MiB at most."
    return f"{plain_table(cells, ['seconds at n =', *map(str, sizes)], 'md')}\n\n{note}"


def emulator_hopper() -> str:
    """Return how the emulator fares on the Hopper rungs: right shapes, findings, seconds and memory."""
    record = load("benchmarks/emulator_hopper", "cpu")
    cells = []
    for rung in dict.fromkeys(r["rung"] for r in record["rows"]):
        rows = [r for r in record["rows"] if r["rung"] == rung]
        cells.append(
            [
                rows[0]["kernel"],
                params_text(rows[0]["params"]),
                f"{sum(r['status'] == 'ok' for r in rows)}/{len(rows)}",
                str(sum(len(r["findings"]) for r in rows)),
                f"{max(r['seconds'] for r in rows):.1f}",
                f"{max(r['peak_bytes'] for r in rows) / 2**20:.0f}",
            ]
        )
    meta, made = record["meta"], linked("benchmarks/emulator_hopper.py", record)
    headings = ["kernel", "parameters", "right", "findings", "slowest (s)", "peak (MiB)"]
    note = f"One core of a server, {made} --seed {meta['seed']}, {meta['utc'][:10]}."
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def emulator_peers() -> str:
    """Return the CPU seconds of the same kernels in the emulator and in its peers."""
    record = load("benchmarks/emulator_peers", "cpu")
    peers = [name for name in record["rows"][0] if name not in ("kernel", "harness")]
    cells = [
        [r["kernel"], f"{r['harness']:.2g}", *(f"{r[p]:.2g} ({r[p] / r['harness']:.0f}x)" for p in peers)]
        for r in record["rows"]
    ]
    note = f"{linked('benchmarks/emulator_peers.py', record)}, {record['meta']['utc'][:10]}."
    return f"{plain_table(cells, ['CPU seconds', 'harness', *peers], 'md')}\n\n{note}"


def indigo() -> str:
    """Return what the emulator found of the bugs that were planted in Indigo's kernels."""
    record = load("scripts/indigo", "cpu")
    cells = []
    races = {"race": ("race", "hazard"), "bounds": ("bounds", "uninitialised")}
    for bug, words in races.items():
        seen = [
            (bug in row["planted"], any(word in kind for kind in row["found"] for word in words))
            for row in record["rows"]
        ]
        name = {"race": "races", "bounds": "accesses out of bounds"}[bug]
        cells.append(
            [name, *(str(seen.count(pair)) for pair in ((True, True), (True, False), (False, True)))]
        )
    slowest = max(row["seconds"] for row in record["rows"])
    note = (
        f"{len(record['rows'])} kernels, at most {record['meta']['graphs']} graphs each, the slowest launch "
        f"{slowest:.1f} s; {linked('scripts/indigo.py', record)}, {record['meta']['utc'][:10]}."
    )
    return f"{plain_table(cells, ['planted', 'found', 'missed', 'false alarms'], 'md')}\n\n{note}"


def gpuverify() -> str:
    """Return GPUVerify's verdicts on its tests beside the emulator's, and why they differ."""
    record = load("scripts/gpuverify", "cpu")
    verdicts = ("pass", "fail", "not run")
    pairs = [(row["expected"], row["ours"]) for row in record["rows"]]
    cells = [[told, *(str(pairs.count((told, ours))) for ours in verdicts)] for told in verdicts[:2]]
    table = plain_table(cells, ["GPUVerify", *(f"emulator: {ours}" for ours in verdicts)], "md")
    reasons: dict[tuple[str, str, str], int] = {}
    for row in record["rows"]:
        if row["ours"] != row["expected"]:
            key = row["reason"], row["expected"], row["ours"]
            reasons[key] = reasons.get(key, 0) + 1
    told = [
        [f"{expected} / {ours}", str(count), reason]
        for (reason, expected, ours), count in sorted(reasons.items(), key=lambda item: item[0][1:])
    ]
    why = plain_table(told, ["GPUVerify / emulator", "tests", "why"], "md")
    note = f"{linked('scripts/gpuverify.py', record)}, {record['meta']['utc'][:10]}."
    return f"{table}\n\n{why}\n\n{note}"


def machine(record: dict[str, Any]) -> str:
    meta = record["meta"]
    return f"{meta['gpu']['name']}; {command(record)}, {meta['utc'][:10]}."


TABLES: dict[str, Callable[[], str]] = {
    "front": front,
    "headline": headline,
    "ladder": ladder,
    "matmul": matmul,
    "tiles": tiles,
    "emulator": emulator,
    "emulator_speed": emulator_speed,
    "emulator_hopper": emulator_hopper,
    "emulator_peers": emulator_peers,
    "gpuverify": gpuverify,
    "indigo": indigo,
    "selftest": selftest,
    "calibration": calibration,
    "launch_cost": launch_cost,
    "profile_tensor": profile_tensor,
    "tuned": tuned,
    "tuners": tuners,
    "rungs": functools.partial(rungs, tensor=False),
    "rungs_tensor": functools.partial(rungs, tensor=True),
    "soundness": soundness,
}
# Tables of types that were not measured are empty.
for _dtype in ("bf16", "fp16", "tf32", "3xtf32", "bf16x6"):
    for _name, _table in {"ladder": ladder, "sustained": sustained, "matmul": matmul}.items():
        TABLES[f"{_name}_{_dtype}"] = functools.partial(_table, _dtype)


def updated(text: str, root: str = "") -> str:
    """Return `text` with every marked table made anew. `root` leads from the page's folder to the root."""

    def made(name: str) -> str:
        table = TABLES[name]().replace("(ROOT/docs/", "(" if root else "(docs/").replace("(ROOT/", f"({root}")
        return f"{table}\n" if table else ""

    return _MARKED.sub(lambda m: m[1] + made(m[2]) + m[3], text)


def main() -> None:
    for page in pages():
        text = page.read_text()
        new = updated(text, up(page))
        if new != text:
            page.write_text(new)
            print(f"updated {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
