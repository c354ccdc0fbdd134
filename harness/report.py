"""Rows -> records, and records -> tables for people, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import tabulate as tabulate_module
from tabulate import tabulate

from harness.builds import Built
from harness.code import Code
from harness.contract import Finding
from harness.diff import compare
from harness.emulator import Counts
from harness.measure import Measurement
from harness.record import Record, sha256

COUNTED = ("FFMA", "LDG", "LDG.128", "LDS", "LDS.64", "LDS.128", "STS", "BAR", "LDL", "STL")
NO_GPU = "no GPU"  # what stands in a cell that only a GPU could fill

Column = tuple[str, str, Callable[[Any], str]]  # key in the record, heading, how to print the value


def static_record(built: Built) -> Record:
    """What is known of a kernel without running it."""
    variant, resources, sass = built.variant, built.cubin.resources, built.sass
    return {
        "kernel": variant.kernel.name,
        "params": dict(variant.params),
        "arch": built.cubin.arch,
        "compiler": built.cubin.compiler,
        "problem": variant.kernel.problem,
        "tile": list(variant.tile),
        "block": list(variant.block),
        "registers": resources.registers,
        "shared": built.cubin.shared,
        "occupancy": built.occupancy.fraction,
        "occupancy_limiter": built.occupancy.limiter,
        "spills": resources.spill_stores + resources.spill_loads,
        "intensity": built.intensity,
        "sass": sass and {**{o: sass.count(o) for o in COUNTED}, "bytes": sass.code_bytes},
        "source_sha256": sha256(variant.kernel.source.encode()),
        "cubin_sha256": built.cubin.sha256,
        "sass_sha256": sass and sass.sha256,
    }


def code_record(code: Code, findings: Sequence[Finding]) -> Record:
    """What stands in the machine code, loop by loop, and what became of each expectation."""
    peak, banks, found = code.sass.peak, code.banks, code.occupancy
    return {
        "label": code.label,
        "arch": code.arch,
        "compiler": code.compiler,
        "function": code.sass.function,
        "registers": code.registers,
        "shared": code.shared,
        "spills": code.spills,
        "live_registers": peak and {"peak": peak.live, "address": peak.address, "line": peak.line},
        "occupancy": found and found.fraction,
        "occupancy_limiter": found and found.limiter,
        "sass_sha256": code.sass.sha256,
        "mix": dict(code.sass.mix),
        "loops": [
            {
                "address": loop.header,
                "depth": loop.depth,
                "hot": loop == code.hot_loop,
                "instructions": len(loop.instructions),
                "mix": dict(Counter(i.opcode for i in loop.instructions)),
            }
            for loop in code.loops
        ],
        "banks": banks and {**asdict(banks), "ffma_per_cycle": banks.ffma_per_cycle},
        "expectations": [
            {
                "text": f.expectation.text,
                "holds": f.holds,
                "actual": f.actual,
                "evidence": [f"{i.address:#06x} {i}" for i in f.evidence],
                "note": f.note,
            }
            for f in findings
        ],
    }


def diff_record(a: Code, b: Code) -> Record:
    """Two codes and what differs between them."""
    return {"a": code_record(a, ()), "b": code_record(b, ()), **asdict(compare(a, b))}


def timed_record(row: Measurement, peak_fp32: float) -> Record:
    """A measured row; times in seconds, rates in FLOP/s and bytes/s, ratios as fractions."""
    static: Record = {"kernel": row.label, "params": {}, "problem": "gemm"}  # the baseline
    if row.built is not None:
        static = static_record(row.built)
    summary = row.samples.summary if row.samples else None
    return {
        **static,
        "shape": row.problem.label,
        "axes": {name: getattr(row.problem, name, None) for name in row.problem.axes},
        "status": row.status,
        "detail": row.detail,
        "seconds": row.seconds,
        "noise": summary.noise if summary else None,
        "samples": summary.samples if summary else None,
        "stopped": row.samples.stopped if row.samples else None,
        "flops_rate": row.flops_rate,
        "bandwidth": row.bandwidth,
        "vs_cublas": row.speedup,
        "vs_peak": row.flops_rate / peak_fp32 if row.flops_rate else None,
        "driver_occupancy": row.occupancy,
        "regime": {True: "cold", False: "warm", None: None}[row.cold],
        "sets": row.sets,
        "bytes_touched": row.bytes_touched,
        "device": asdict(row.device) if row.device else None,
        "error_over_bound": row.before.worst if row.before and math.isfinite(row.before.worst) else None,
        "times": [float(f"{t:.4g}") for t in row.samples.times] if row.samples else [],
    }


def emulated_record(row: Measurement) -> Record:
    """A row of the emulator: verdict, findings, and counts by source line."""
    run = row.emulation
    return {
        **(static_record(row.built) if row.built is not None else {}),
        "shape": row.problem.label,
        "axes": {name: getattr(row.problem, name, None) for name in row.problem.axes},
        "status": row.status,
        "detail": row.error,
        "error_over_bound": row.before.worst if row.before and math.isfinite(row.before.worst) else None,
        "findings": [asdict(f) for f in run.findings] if run else [],
        "total": _counts(run.total) if run else None,
        "lines": [_counts(c) for c in run.lines] if run else [],
    }


def _counts(counts: Counts) -> Record:
    """The numbers, and where they stand: the PTX's own line numbers mean nothing to others."""
    found = asdict(counts)
    return {"line": counts.source.line, "file": counts.source.file} | {
        k: v for k, v in found.items() if k not in ("source", "opcode", "ptx_line")
    }


# ---- tables ----------------------------------------------------------------------------------------


def params_text(record: Record) -> str:
    """``TILE=64 COARSE=16``."""
    return _params(record["params"])


def _params(value: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in value.items())


def _by(value: Sequence[int]) -> str:
    return "x".join(map(str, value))


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _giga(value: float) -> str:
    return f"{value / 1e9:.0f}" if value >= 1e10 else f"{value / 1e9:.2f}"


def _si_seconds(value: float) -> str:
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1e-9:.0f} ns"


STATIC: tuple[Column, ...] = (
    ("name", "kernel", str),
    ("params", "params", _params),
    ("tile", "tile", _by),
    ("registers", "regs", str),
    ("shared", "smem", str),
    ("intensity", "FLOP/B", "{:.3g}".format),
    ("sass.LDS.128", "LDS.128", str),
    ("occupancy", "occ", "{:.0%}".format),
)
TIMED: tuple[Column, ...] = (
    ("name", "kernel", str),
    ("seconds", "time", _si_seconds),
    ("noise", "+-%", _share),
    ("flops_rate", "GFLOP/s", _giga),
    ("vs_cublas", "%cuBLAS", _share),
    ("vs_peak", "%peak", _share),
    ("bandwidth", "GB/s", _giga),
    ("status", "check", str),
)
GPU_ONLY: tuple[Column, ...] = (
    ("gpu.flops_rate", "GFLOP/s", str),
    ("gpu.vs_cublas", "cuBLAS", str),
)
FLAT: tuple[Column, ...] = (
    ("kernel", "kernel", str),
    *STATIC[1:3],
    ("block", "block", _by),
    ("shape", "shape", str),
    ("arch", "arch", str),
    *STATIC[3:],
    *TIMED[1:-1],
    ("samples", "samples", str),
    ("device.sm_mhz", "SM MHz", str),
    ("device.power", "W", "{:.0f}".format),
    ("regime", "regime", str),
    ("status", "check", str),
)


def table(records: Sequence[Record], columns: Sequence[Column], style: str | None = None) -> str:
    """Records as text, ``-`` where there is no value. A column without any value is left out, except the
    GPU's: they stay and say so.
    """
    shown = [c for c in columns if c in GPU_ONLY or any(_look_up(r, c[0]) not in (None, {}) for r in records)]
    rows = [[_cell(r, c) for c in shown] for r in records]
    return plain_table(rows, [c[1] for c in shown], style)


def plain_table(rows: Sequence[Sequence[str]], headings: Sequence[str], style: str | None = None) -> str:
    """Cells as text; columns of numbers to the right. `style` is None for a terminal, ``md`` or ``csv``."""
    if style == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([headings, *rows])
        return out.getvalue().rstrip("\n")
    numeric = [all(_NUMBER.match(row[i]) for row in rows) for i in range(len(headings))]
    align = ["right" if n else "left" for n in numeric]
    format_ = "github" if style == "md" else "simple"
    with _narrow_columns():
        return tabulate(
            rows, headings, tablefmt=format_, colalign=align if rows else None, disable_numparse=True
        )


@contextmanager
def _narrow_columns() -> Iterator[None]:
    """tabulate pads every heading by two spaces, which costs us the 80th column; a module global says so."""
    before, tabulate_module.MIN_PADDING = tabulate_module.MIN_PADDING, 0
    try:
        yield
    finally:
        tabulate_module.MIN_PADDING = before


_NUMBER = re.compile(rf"-?[\d.,]+( (s|ms|us|ns)|%)?\Z|-\Z|{NO_GPU}\Z")


def csv_table(records: Sequence[Record]) -> str:
    """Everything in one table: plain numbers in base units, a column for each key."""
    rows = [[_plain(_look_up(record, key)) for key, _, _ in FLAT] for record in records]
    return plain_table(rows, [key for key, _, _ in FLAT], "csv")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return _params(value)
    if isinstance(value, list):
        return _by(value)
    return "" if value is None else str(value)


def _cell(record: Record, column: Column) -> str:
    key, _, show = column
    value = _look_up(record, key)
    if value is None:
        return NO_GPU if column in GPU_ONLY else "-"
    return show(value) or "-"


def _look_up(record: Record, key: str) -> Any:
    """``sass.LDS.128`` is record["sass"]["LDS.128"]."""
    if key in record:
        return record[key]
    head, _, tail = key.partition(".")
    inner = record.get(head)
    return inner.get(tail) if isinstance(inner, Mapping) and tail else None
