"""Write and print what ``harness tune`` found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import running
from harness.errors import ContextLost, HarnessError

if TYPE_CHECKING:
    from harness.results.record import Document
    from harness.tune.search import Result, Unfit

_SHOWN = 20  # how many rows of a long ranking plain text shows; --md and --csv print all


def _summary(result: Result) -> dict[str, Any]:
    """Return a size's entry in the record: winners, and what finding them took."""
    return {
        "shape": result.shape,
        "winners": [row["params"] for row in result.winners],
        "confirmed": result.confirmed,
        "note": result.note,
        "seconds": result.seconds,
        "searching": result.searching,
        "measured": result.measured,
        "resumed": result.resumed,
    }


def write(
    results: Sequence[Result],
    unfit: Sequence[Unfit],
    meta: Document,
    json_file: Path | None,
    t4_file: Path | None,
) -> None:
    """Write the record and the T4 files, one for each size.

    This is done before anything is printed, so that a closed standard output does not cost the files. Raises
    HarnessError if one cannot be written.
    """
    import json

    from harness.results import record
    from harness.support import files
    from harness.tune import t4

    meta["results"] = [_summary(r) for r in results]
    if json_file is not None:
        rows = [row for r in results for row in r.rows]
        record.write_json(json_file, record.document("tune", rows, meta))
    if t4_file is None:
        return
    for result in results:
        one = len(results) == 1
        path = t4_file if one else t4_file.with_stem(f"{t4_file.stem}-{result.shape}")
        content = t4.document(result.ranking, unfit, meta["utc"])
        files.write_file(path, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")


def publish(
    results: Sequence[Result], unfit: Sequence[Unfit], meta: Document, arch: str, given: Mapping[str, Any]
) -> None:
    """Write the files that the command line asks for, and print the tables; `given` are its options."""
    try:
        write(results, unfit, meta, given["json_file"], given["t4_file"])
    finally:  # a full disk does not cost the table
        show(results, unfit, meta, arch, given["style"])


def conclude(results: Sequence[Result], fault: HarnessError | None, *, missing: bool = False) -> None:
    """Raise what ended the tuning early; exit with code 1 if a candidate is wrong or `missing`, or a size has
    no winner.
    """
    if isinstance(fault, ContextLost):
        fault.hint = "the same command again goes on without that candidate; --isolate does so by itself"
    if fault is not None:
        raise fault
    right = all(row["status"] == "ok" for r in results for row in r.ranking)
    if not right or missing or not all(r.winners for r in results):
        raise SystemExit(1)


def show(results: Sequence[Result], unfit: Sequence[Unfit], meta: Any, arch: str, style: str | None) -> None:
    """Print each size: a table of the candidates, the winners, and what was skipped."""
    from harness.results import tables
    from harness.results.rows import params_text

    rows = [row for r in results for row in _named(r)]
    if style == "csv":
        click.echo(tables.csv_table(rows))
    else:
        about = meta["gpu"]
        click.echo(f"{about['name']}, {arch}, driver {about['driver']}")
        click.echo(
            f"cuBLAS {about['cublas']}, {about['math_mode']}" if "cublas" in about else about["no_cublas"]
        )
    for r in results if style != "csv" else ():
        timed = f"{len(r.ranking)} candidates, {r.measured} measurements in {r.seconds:.1f} s"
        kept = f" and {r.resumed} kept from before" if r.resumed else ""
        click.echo(f"\n{r.shape}: {timed}{kept}\n")
        mine = [row for row in rows if row["shape"] == r.shape]
        shown = mine if style else _short(mine)
        if shown:
            columns = [c for c in tables.timed_columns(shown) if c[0] not in ("status", "decision")]
            click.echo(tables.table(shown, [*columns, ("place", "place", str)], style))
        if len(shown) < len(mine):
            slowest = max(row["seconds"] for row in mine if row["seconds"])
            more = f"{len(mine) - len(shown)} more, up to {tables.seconds(slowest)}"
            click.echo(f"{more}: --md and --csv print them, --json keeps them")
        best = ", ".join(params_text(row["params"]) for row in r.winners)
        how = "fastest" if len(r.winners) == 1 else f"tied within {100 * meta['threshold']:g}%"
        click.echo(
            f"\n{how}{'' if r.confirmed and not r.note else ' so far'}: {best}" if best else "\nnone is right"
        )
        if r.note:
            click.echo(r.note)
    err = style == "csv"
    running.explain([row for r in results for row in r.ranking], [], err=err)
    for u in unfit:
        click.echo(f"skipped {u.variant.label}: {u.why}", err=err)


def _short(rows: Sequence[Document]) -> list[Document]:
    """Return the first rows of a long ranking, and all that are not right."""
    if len(rows) <= _SHOWN + 5:
        return list(rows)
    return [row for place, row in enumerate(rows) if place < _SHOWN or row["status"] != "ok"]


def _named(result: Result) -> list[Document]:
    """Return the ranking with the columns that are shown: name, time and place."""
    from harness.results import tables
    from harness.results.rows import params_text

    first = "fastest" if len(result.winners) == 1 else "tied"
    winners = [row["params"] for row in result.winners]
    found = []
    for row in result.ranking:
        place = first if row["params"] in winners else f"slower, {row['stage']}"
        place = place if row["status"] == "ok" else row["status"]
        found.append(
            {
                **row,
                "name": params_text(row["params"]),
                "time": tables.starred_time(row),
                "place": place,
            }
        )
    return found
