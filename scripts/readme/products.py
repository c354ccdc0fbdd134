"""Tables of `harness.matmul` beside cuBLAS, at the shapes of the table and at sampled ones."""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import Any

import numpy as np

from harness.launch import cublaslt
from harness.results.tables import plain_table
from readme.records import (
    GPU,
    OTHERS,
    ROOT,
    clock,
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

MATMUL = ("matmul/squares*.json", "matmul/rectangle*.json")
_SAMPLED = "benchmarks/shapes"
_AS_FP32 = f"{_SAMPLED}-fp32-tensor"
BACK_TO_BACK = "matmul/graph*.json"  # the same shapes in the regime `graph`


def headline() -> str:
    """Return the dispatcher's mean speed over cuBLAS by type: back to back, with events around each launch,
    and on sampled shapes.
    """
    packed = {r["shape"] for c in every(BACK_TO_BACK) for r in c["rows"]}
    drawn = {**_sampled(), **_sampled(GPU, _AS_FP32)}
    cells = []
    for dtype in ("fp32", "bf16x6", "fp16x3", "3xtf32", "tf32", "bf16", "fp16"):
        told = [dtype]
        for patterns in ((BACK_TO_BACK,), MATMUL):
            parts = [
                [r for r in rows if not packed or r["shape"] in packed]
                for rows in dispatched(of_type(dtype, *patterns), right=True)
            ]
            told += [f"{mean(rows):.2f}" if all(parts) else "-" for rows in parts]
        average, low, _ = _ratios(drawn[dtype]) if dtype in drawn else (None, None, None)
        told += [f"{average:.2f}", f"{low:.3f}"] if average else ["-", "-"]
        if set(told[1:]) != {"-"}:
            cells.append(told)
    headings = ["", "squares", "rectangles", "squares, events", "rectangles, events", "drawn", "5th pct"]
    by_draw = (
        " `drawn` are shapes that nobody chose, in all layouts, beside the faster of cuBLAS and cuBLASLt "
        "([how](ROOT/docs/matmul.md#how-it-is-measured-on-shapes-nobody-chose))."
    )
    return (
        "`harness.matmul` picks the fastest of these kernels for a shape. Its speed over cuBLAS's on an "
        f"H200:\n\n{plain_table(cells, headings, 'md')}\n\n"
        "Geometric means, back to back and with events around each launch ([every "
        f"shape](ROOT/docs/matmul.md#results)).{by_draw if drawn else ''}"
    )


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


def shapes() -> str:
    """Return the ratios of `harness.matmul` to cuBLAS on sampled shapes, by GPU and type; may be empty."""
    return "\n\n".join(filter(None, map(_shapes, (GPU, *OTHERS))))


def shapes_as_fp32() -> str:
    """Return the same of the precisions of float32 on tensor cores, beside cuBLAS's true float32."""
    return _shapes(GPU, _AS_FP32)


def _shapes(gpu: str, name: str = _SAMPLED) -> str:
    """Return the table of one record."""
    by_type = _sampled(gpu, name)
    if not by_type:
        return ""
    cells = []
    for dtype, rows in by_type.items():
        means = [f"{mean:.3f}" for mean in _ratios(rows)]
        for part in ("packed", "long"):
            some = [r for r in rows if sampler_tables().counts(r, part)]
            means.append(f"{_ratios(some)[0]:.3f}" if some else "-")
        below = np.mean([r["ratio"] < sampler_tables().LOST for r in rows])
        cells.append([dtype, str(len(rows)), *means, f"{below:.0%}"])
    headings = [
        "",
        "draws",
        "geomean",
        "5th percentile",
        "least",
        "packed",
        "long",
        f"below {sampler_tables().LOST}",
    ]
    record = load(name, gpu)
    note = f"Time of the faster library over ours; seed {record['meta']['seed']}. {machine(record)}"
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def batches() -> str:
    """Return the ratios of batches in `harness.matmul` to ``torch.bmm``, by type and kind."""
    found = every("benchmarks/batches.json")
    if not found:
        return ""
    rows = [r for r in found[0]["rows"] if r["status"] == "ok"]
    kinds = list(dict.fromkeys(r["kind"] for r in rows))
    cells = []
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        mine = [r for r in rows if r["dtype"] == dtype]
        parts = [[r for r in mine if r["kind"] == kind] for kind in kinds]
        means = [*_ratios(mine), *(_ratios(part)[0] for part in parts)]
        cells.append([dtype, str(len(mine)), *(f"{mean:.2f}" for mean in means)])
    headings = ["", "draws", "geomean", "5th percentile", "least", *kinds]
    note = f"Time of PyTorch's over ours; seed {found[0]['meta']['seed']}. {machine(found[0])}"
    return f"{plain_table(cells, headings, 'md')}\n\n{note}"


def _sampled(gpu: str = GPU, name: str = _SAMPLED) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of sampled shapes by element type; empty without a record."""
    by_type: dict[str, list[dict[str, Any]]] = {}
    for row in (r for content in every(f"{name}.json", gpu) for r in content["rows"] if r["status"] == "ok"):
        by_type.setdefault(row["dtype"], []).append(row)
    return by_type


def _ratios(rows: list[dict[str, Any]]) -> tuple[float, ...]:
    """Return the statistics of the rows' ratios: geometric mean, 5th percentile and least."""
    return tuple(sampler_tables().statistics(np.array([r["ratio"] for r in rows])))


@functools.cache
def sampler_tables() -> Any:
    """Return the module of benchmarks/ that makes tables of sampled shapes."""
    found = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks/sampler/tables.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
