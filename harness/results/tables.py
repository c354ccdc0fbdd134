"""Lay out records as tables for a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tabulate as tabulate_module
from tabulate import tabulate

from harness.results.rows import Row, params_text
from harness.support import terminal

Column = tuple[str, str, Callable[[Any], str]]  # key in the record, heading, how to print the value


def _by(value: Sequence[int]) -> str:
    """Return sizes as text, ``16x16``."""
    return "x".join(map(str, value))


def _share(value: float) -> str:
    """Return a fraction as a percentage without its sign, ``12.3``."""
    return f"{100 * value:.1f}"


def _percent(value: Mapping[str, float]) -> str:
    """Return an interval of fractions in percent, ``106.8 +-0.3``."""
    half = (
        math.ceil(500 * (value["high"] - value["low"])) / 10
    )  # rounded up: never narrower than the interval
    return f"{100 * value['estimate']:.1f} +-{half:.1f}"


def _giga(value: float) -> str:
    """Return a value in units of 1e9."""
    return f"{value / 1e9:.0f}" if value >= 1e10 else f"{value / 1e9:.2f}"


def _mega(value: float) -> str:
    """Return a value in units of 1e6."""
    return f"{value / 1e6:.0f}"


def _short(status: str) -> str:
    """Return a status in one or two words, to fit its column."""
    return {"FAILED as marked": "broken", "needs a GPU": "GPU only"}.get(status, status)


def number(value: float | None) -> str:
    """Return a number as text, ``1,050,624`` or ``0.0643``; ``-`` if it is None or not finite."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1e3 else f"{value:.3g}"


def ratio(value: float | None) -> str:
    """Return a ratio of counts as text with three digits, ``-`` for None."""
    return "-" if value is None else f"{value:.3g}"


def si(value: float) -> str:
    """Return a number with a prefix of its magnitude, ``1.05M``."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g}{prefix}"
    return f"{value:g}"


def seconds(value: float) -> str:
    """Return a time in seconds as text with a unit, ``12.34 us``."""
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1e-9:.0f} ns"


def starred_time(record: Row) -> str | None:
    """Return the median time as text, with a star if there are notes on it; None if it was not timed."""
    median = record.get("seconds")
    if median is None:
        return None
    return seconds(median) + ("*" if record.get("notes") else "")


STATIC: tuple[Column, ...] = (
    ("name", "kernel", str),
    ("params", "params", params_text),
    ("tile", "tile", _by),
    ("registers", "regs", str),
    ("shared", "smem", str),
    ("intensity", "FLOP/B", "{:.3g}".format),
    ("sass.LDS.128", "LDS.128", str),
    ("occupancy", "occ", "{:.0%}".format),
)
TIMED: tuple[Column, ...] = (
    ("name", "kernel", str),
    ("time", "time", str),
    ("noise", "+-%", _share),
    ("flops_rate", "GFLOP/s", _giga),
    ("bandwidth", "GB/s", _giga),
    ("speedup", "%cuBLAS", _percent),
    ("of_ceiling", "%ceil", _share),
    ("sm_hz", "MHz", _mega),
    ("status", "check", _short),
    ("decision", "verdict", str),
)
EMULATED: tuple[Column, ...] = (
    *(c for c in STATIC if c[0] not in ("params", "intensity", "tile")),
    ("emulated.intensity", "FLOP/B", "{:.3g}".format),
    ("emulated.sectors_per_request", "sect", "{:.3g}".format),
    ("emulated.ways", "ways", "{:.3g}".format),
    ("status", "emulated", _short),
)
MACHINE: tuple[Column, ...] = (
    ("name", "kernel", str),
    ("samples", "samples", str),
    ("wall", "CPU time", seconds),
    ("seconds", "GPU time", seconds),
    ("cycles", "cycles", "{:,.0f}".format),
    ("sm_hz", "MHz", _mega),
    ("device.power", "W", "{:.0f}".format),
    ("device.temperature", "C", str),
    ("device.throttle", "throttled by", ", ".join),
)
FLAT: tuple[Column, ...] = (
    ("kernel", "kernel", str),
    *STATIC[1:3],
    ("block", "block", _by),
    ("shape", "shape", str),
    ("arch", "arch", str),
    *STATIC[3:],
    ("regime", "regime", str),
    *((key, key, str) for key in ("seconds", "noise", "stdev", "samples", "wall", "cycles", "sm_hz")),
    *((key, key, str) for key in ("flops_rate", "bandwidth", "vs_peak", "of_ceiling", "against")),
    *((f"speedup.{key}", key, str) for key in ("low", "estimate", "high")),
    *((f"device.{key}", key, str) for key in ("sm_mhz", "power", "temperature", "throttle")),
    ("status", "check", str),
    ("chosen.label", "chosen", str),
)
FLAT_EMULATED: tuple[Column, ...] = (*FLAT, *(c for c in EMULATED if c[0].startswith("emulated.")))


def with_matrix(columns: Sequence[Column], records: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns, with one for the matrix instructions that some code has.

    It is headed by their kind (HMMA, HGMMA), or says it in its cells where there are several kinds. It takes
    the place of LDS.128 where no code has any, or there are several kinds: 80 columns have no more room.
    """
    found = sorted({o for r in records for o in r.get("sass") or () if o.endswith("MMA")})
    matrix: list[Column] = [(f"sass.{opcode}", opcode, str) for opcode in found]
    if len(found) > 1:
        matrix = [("sass", "MMA", _matrix)]
    at = next((n for n, column in enumerate(columns) if column[0].startswith("sass.")), len(columns))
    replaced = matrix and (len(found) > 1 or not any(_look_up(r, "sass.LDS.128") for r in records))
    return [c for c in (*columns[:at], *matrix, *columns[at:]) if c[0] != "sass.LDS.128" or not replaced]


def _matrix(opcodes: Mapping[str, int]) -> str:
    """Return the matrix instructions among opcodes as text, ``HGMMA 4``."""
    return ", ".join(f"{opcode} {n}" for opcode, n in sorted(opcodes.items()) if opcode.endswith("MMA"))


def timed_columns(records: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns of TIMED for these rows.

    Of the two rates only that remains which the problem is about, FLOP/s where it has any, and the column of
    ratios is headed by the baseline's name.
    """
    against = next((r["against"] for r in records if r.get("against")), "cuBLAS")
    dropped = "bandwidth" if any(r["flops_rate"] for r in records) else "flops_rate"
    headed = ((key, f"%{against.split()[0]}" if key == "speedup" else h, show) for key, h, show in TIMED)
    return [column for column in headed if column[0] != dropped]


def table(records: Sequence[Mapping[str, Any]], columns: Sequence[Column], style: str | None = None) -> str:
    """Return records as a table, with ``-`` for missing values. Columns without any value are left out.

    `style` is None for a terminal, ``md`` or ``csv``.
    """
    shown = [c for c in columns if any(_look_up(r, c[0]) not in (None, {}) for r in records)]
    rows = [[cell(r, c) for c in shown] for r in records]
    return plain_table(rows, [c[1] for c in shown], style)


def plain_table(
    rows: Sequence[Sequence[str]], headings: Sequence[str], style: str | None = None, keys: int = 1
) -> str:
    """Return cells as a table; columns of numbers are aligned to the right.

    `style` is None for a terminal, ``md`` or ``csv``. On a terminal the table is no wider than that: texts
    are wrapped, and columns that still do not fit go into further tables below, each beginning with the first
    `keys` columns.
    """
    if style == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([headings, *rows])
        return out.getvalue().rstrip("\n")
    whole = [headings, *rows]
    texts = [not all(_NUMBER.match(row[i]) for row in rows) for i in range(len(headings))]
    if style == "md":
        return _tabulated(whole, "github")
    return "\n\n".join(_tabulated(part, "simple") for part in terminal.fit(whole, texts, keys))


def _tabulated(whole: Sequence[Sequence[str]], format_: str) -> str:
    """Lay out rows, of which the first has the headings."""
    headings, *rows = whole
    numeric = [all(_NUMBER.match(row[i]) for row in rows) for i in range(len(headings))]
    align = ["right" if n else "left" for n in numeric]
    with _narrow_columns():
        return tabulate(
            rows,
            headings,
            tablefmt=format_,
            colalign=align if rows else None,
            disable_numparse=True,
            preserve_whitespace=True,
        )


@contextmanager
def _narrow_columns() -> Iterator[None]:
    """Keep tabulate from padding headings by two spaces, which would exceed 80 columns.

    The padding is a global of its module.
    """
    before, tabulate_module.MIN_PADDING = tabulate_module.MIN_PADDING, 0
    try:
        yield
    finally:
        tabulate_module.MIN_PADDING = before


_NUMBER = re.compile(r"[+-]?[\d.,]+( (s|ms|us|ns)\*?|%)?( \+-[\d.?]+| \(\d+%\))?\Z|-\Z")


def csv_table(records: Sequence[Mapping[str, Any]], columns: Sequence[Column] = FLAT) -> str:
    """Return all records as one CSV table: plain numbers in base units, a column for each key."""
    rows = [[_plain(_look_up(record, key)) for key, _, _ in columns] for record in records]
    return plain_table(rows, [key for key, _, _ in columns], "csv")


def _plain(value: Any) -> str:
    """Return a value as text for CSV; empty for None."""
    if isinstance(value, Mapping):
        return params_text(value)
    if isinstance(value, list | tuple):
        return _by(value)
    return "" if value is None else str(value)


def cell(record: Mapping[str, Any], column: Column) -> str:
    """Return one value as text, ``-`` if it is missing."""
    key, _, show = column
    value = _look_up(record, key)
    return "-" if value is None else show(value) or "-"


def _look_up(record: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key: ``sass.LDS.128`` is record["sass"]["LDS.128"]. None if it is
    missing.
    """
    if key in record:
        return record[key]
    head, _, tail = key.partition(".")
    inner = record.get(head)
    return inner.get(tail) if isinstance(inner, Mapping) and tail else None
