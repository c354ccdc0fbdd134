"""Print what ``harness bench`` measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from harness.support import terminal

if TYPE_CHECKING:
    from harness.results.rows import Row


def bench(
    static: Sequence[Row],
    timed: Sequence[Row],
    meta: Mapping[str, Any],
    style: str | None,
    *,
    wide: bool,
) -> None:
    """Print a table of what the kernels are, and one for each size with their times.

    `static` has records of the builds, `timed` those of the rows, `meta` the record's. As CSV it is one
    table; without a GPU there is one table of the emulator's counts for each problem. `wide` adds clocks,
    power and cycles.
    """
    from harness.results import tables
    from harness.results.rows import params_text

    about = meta.get("gpu")
    if style == "csv":
        click.echo(tables.csv_table(timed, tables.FLAT if about else tables.FLAT_EMULATED))
        return
    plain = [r["kernel"] for r in static if not r["chosen"]]
    several = len(set(plain)) < len(plain)
    kernels, measured = ([_shown(row, several) for row in rows] for rows in (static, timed))
    if about is None:
        for _, group in itertools.groupby(measured, key=lambda r: r["problem"]):
            rows = list(group)
            shapes = ", ".join(dict.fromkeys(r["shape"] for r in rows))
            head = f"{rows[0]['problem']} {shapes}, {rows[0]['arch']}, {rows[0]['compiler']}"
            click.echo(terminal.fill(head) + "\n")
            click.echo(tables.table(rows, tables.with_matrix(tables.EMULATED, rows), style))
        return
    _machine(about, static[0])
    click.echo()
    columns = [c for c in tables.STATIC if c[0] != "params"]
    click.echo(tables.table(kernels, tables.with_matrix(columns, kernels), style))
    if not several:
        for row in static:
            if row["params"]:
                click.echo(f"{row['kernel']}: {params_text(row['params'])}")
    for (_, shape), group in itertools.groupby(measured, key=lambda r: (r["problem"], r["shape"])):
        rows = list(group)
        click.echo(terminal.fill(f"\n{_headline(shape, rows)}\n"))
        click.echo(tables.table(rows, tables.timed_columns(rows), style))
        if wide:
            click.echo(f"\n{tables.table(rows, tables.MACHINE, style)}")
        _remarks(rows)


def _remarks(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what a table of times has no column for: notes, algorithms, identical machine code."""
    for note in dict.fromkeys(note for row in rows for note in row["notes"]):
        noted = ", ".join(row["name"] for row in rows if note in row["notes"])
        click.echo(terminal.fill(f"* {note}: {noted}"))
    for row in rows:
        if row["algorithm"]:
            click.echo(terminal.fill(f"{row['name']}: {row['algorithm']}"))
    if same := [row["name"] for row in rows if row["identical_sass"]]:
        click.echo(terminal.fill(f"identical SASS on both sides: machine noise: {', '.join(same)}"))


def _shown(row: Row, params: bool) -> dict[str, Any]:
    """Return the row with two more columns: its name, with its parameters if asked for, and its time."""
    from harness.results import rows, tables

    return {**row, "name": rows.name(row, params=params), "time": tables.starred_time(row)}


def _machine(about: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """Print the GPU, the compiler, cuBLAS, and the card's ceilings."""
    click.echo(f"{about['name']}, {row['arch']}, {row['compiler']}, driver {about['driver']}")
    if "cublas" in about:
        click.echo(terminal.fill(f"cuBLAS {about['cublas']}, {about['math_mode']}"))
    if about.get("ceilings"):
        found = about["ceilings"]
        units = {"FFMA": found["flops"], **found.get("matrix", {})}
        rates = ", ".join(f"{unit} {ceiling['rate'] / 1e12:.4g}" for unit, ceiling in units.items())
        said = f"ceilings of this card: {rates} TFLOP/s; copy {found['bandwidth']['rate'] / 1e9:.0f} GB/s"
        click.echo(terminal.fill(said))
    if about.get("event_overhead") is not None:
        click.echo(f"an empty pair of events takes {about['event_overhead'] * 1e6:.2f} us")
    for note in ("no_cublas", "no_telemetry", "no_ceilings"):
        if about.get(note):
            click.echo(terminal.fill(about[note]))


def _headline(shape: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the line above a table, ``gemm 2048: cold (3 sets of operands, 151 MB), 1980 MHz, 310-640
    W``.
    """
    text = f"{rows[0]['problem']} {shape}"
    measured = [r for r in rows if r["sets"]]
    if measured:
        sets, touched = measured[0]["sets"], measured[0]["bytes_touched"]
        count = f"{sets} sets" if sets > 1 else "1 set"
        text += f": {measured[0]['regime']} ({count} of operands, {touched / 1e6:.0f} MB)"
    if rounds := max(len(r.get("rounds") or ()) for r in rows):
        text += f", {rounds} rounds"
    for key, unit in (("sm_mhz", "MHz"), ("power", "W")):
        seen = [round(r["device"][key]) for r in rows if r["device"]]
        if seen:
            low, high = min(seen), max(seen)
            text += f", {low} {unit}" if low == high else f", {low}-{high} {unit}"
    return text
