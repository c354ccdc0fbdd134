"""Print what ``harness verify`` found: a line for each kernel, over all shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.results.rows import Row


def show(kernels: Sequence[tuple[str, Sequence[Row]]], repeats: int, style: str | None) -> None:
    """Print the table: each kernel by its label, with its records."""
    from harness.results import tables

    cells = [_cells(label, rows, repeats) for label, rows in kernels]
    headings = ["kernel", "shapes ok", "error/bound", *(["repeats"] if repeats else []), "check"]
    click.echo(tables.plain_table(cells, headings, style))


def _cells(label: str, rows: Sequence[Row], repeats: int) -> list[str]:
    """Return the table row of one kernel over all shapes.

    The status is the first that is neither right nor a pass of a kernel marked as broken, else that of the
    first shape. The repeats are those of the shape at which the fewest were equal.
    """
    from harness.bench.row import OK, UNEXPECTED

    bad = [r["status"] for r in rows if r["status"] not in (OK, UNEXPECTED)]
    told = [label, f"{len(rows) - len(bad)}/{len(rows)}", _error(rows), bad[0] if bad else rows[0]["status"]]
    if repeats:
        least = min((r["repeats"]["equal"] for r in rows if r["repeats"]), default=None)
        of = "" if least == repeats else f" of {repeats:,}"
        told.insert(3, "-" if least is None else f"{least:,}{of} equal")
    return told


def _error(rows: Sequence[Row]) -> str:
    """Return the largest error over its bound of all shapes."""
    errors = [v["worst"]["error_over_bound"] for v in (r["verdict"] for r in rows) if v]
    if not errors:
        return "-"
    worst = max(math.inf if e is None else float(e) for e in errors)  # JSON has no infinity
    return f"{worst:.2f}" if worst < 100 else "> 100"
