"""Tables of the rungs: how fast each is, what it adds, and its best parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.instruments import counters, diagnosis
from harness.kernels import catalog
from harness.results.rows import params_text
from harness.results.tables import plain_table
from readme.records import (
    ROOT,
    clock,
    command,
    every,
    load,
    machine,
    of_type,
    provenance,
    rate,
    share,
    size,
    unit,
)

IMAGES = ROOT / "docs" / "images"
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


def ladder(dtype: str = "fp32") -> str:
    """Return each rung's rate by size, and its share of cuBLAS at the largest."""
    records = of_type(dtype, "bench/ladder*.json")
    if not records:
        return ""
    found = [r for content in records for r in content["rows"]]
    rows = {(r["kernel"], size(r)): r for r in found}
    # Of a run that was cut off, a size at which only cuBLAS was timed says nothing.
    timed = {size(r) for r in found if r["kernel"] != "cuBLAS"}
    shapes = sorted(timed or set(map(size, found)), key=int)
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
    contents = every("tune/[0-9]*.json")
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
