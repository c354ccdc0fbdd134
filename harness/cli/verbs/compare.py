"""``harness compare``: compare the times of two result files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import options, running
from harness.errors import UsageError
from harness.support import terminal

if TYPE_CHECKING:
    from harness.results.comparison import Difference
    from harness.results.record import Document
    from harness.results.rows import Row

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(name="compare")
@click.argument("reference", metavar="REF.json", type=_FILE)
@click.argument("candidate", metavar="CMP.json", type=_FILE)
@options.threshold("2%", "What difference counts; runs taken apart differ by more than their intervals say.")
@click.option("--force", is_flag=True, help="Compare runs of another GPU, clock, regime or math mode too.")
@options.markdown
@options.comma
def command(reference: Path, candidate: Path, threshold: float, force: bool, style: str | None) -> None:
    """Say what is faster or slower in CMP.json than in REF.json, both written by `harness bench --json`.

    SAME where the interval of the difference lies within the threshold, FAST or SLOW where it lies outside,
    INCONCLUSIVE where it lies across. Exit code 0 where nothing is slower, 1 where something is or failed,
    2 where the runs cannot be compared, 3 where some row cannot be told.
    """
    from harness.results import comparison

    found = comparison.compare(_timed(reference), _timed(candidate), threshold=threshold, force=force)
    print_differences(found, style)
    if any(d.regressed for d in found):
        raise SystemExit(1)
    running.conclude(d.status for d in found if d.unclear)


def _timed(path: Path) -> Document:
    """Load a result file of ``harness bench``. Raises UsageError for one of another verb."""
    from harness.results import record

    content = record.load(path)
    if (kind := content.get("kind", "bench")) != "bench":
        raise UsageError(
            f"what {kind} wrote has no times of kernels to compare", where=str(path), hint="a --json of bench"
        )
    return content


def print_differences(found: Sequence[Difference], style: str | None) -> None:
    """Print the differences in nvbench's columns: one table for each size, or one CSV table.

    The tables leave out the absolute difference, for which 80 columns have no room.
    """
    from harness.results import tables

    if style == "csv":
        headings = ["Kernel", "Shape", *_HEADINGS, "Diff", "%Low", "%High", "Identical SASS"]
        click.echo(tables.plain_table([_plain(d) for d in found], headings, "csv"))
        return
    several = len({d.label for d in found}) > len({d.candidate["kernel"] for d in found})
    for shape, group in itertools.groupby(found, key=lambda d: d.shape):
        rows = list(group)
        cells = [_cells(d, d.label if several else str(d.candidate["kernel"])) for d in rows]
        click.echo(f"\n{rows[0].candidate['problem']} {shape}: {rows[0].candidate['regime']}\n")
        click.echo(tables.plain_table(cells, ["kernel", *_HEADINGS], style))
        for d in rows:
            if d.status == "FAILED":
                click.echo(terminal.fill(f"{d.label}: {d.candidate['detail']}"))
        if same := [str(d.candidate["kernel"]) for d in rows if d.identical]:
            click.echo(terminal.fill(f"identical SASS: machine noise: {', '.join(dict.fromkeys(same))}"))


_HEADINGS = ["Ref Time", "+-%", "Cmp Time", "+-%", "%Diff", "Status"]


def _cells(d: Difference, name: str) -> list[str]:
    """Return the table row of one difference."""
    a, b, ratio = d.reference, d.candidate, d.ratio
    difference = "-"
    if ratio is not None:
        difference = f"{100 * (ratio.estimate - 1):+.1f} +-{100 * ratio.half_width:.1f}"
    times = [_time(r) for r in (a, b)]
    return [name, *times[0], *times[1], difference, d.status]


def _time(row: Row) -> list[str]:
    """Return the time and noise of a row as text."""
    from harness.results import tables

    if not row["seconds"]:
        return ["-", "-"]
    return [tables.seconds(row["seconds"]), f"{100 * (row['noise'] or 0):.1f}"]


def _plain(d: Difference) -> list[str]:
    """Return the CSV row of one difference: seconds, and fractions."""
    from harness.results.rows import seconds

    a, b, ratio = d.reference, d.candidate, d.ratio
    relative = (ratio.estimate - 1, ratio.low - 1, ratio.high - 1) if ratio else (None, None, None)
    difference = seconds(b) - seconds(a) if ratio else None
    numbers = (a["seconds"], a["noise"], b["seconds"], b["noise"], relative[0], difference, *relative[1:])
    text = ["" if n is None else str(n) for n in numbers]
    return [d.label, d.shape, *text[:5], d.status, *text[5:], str(d.identical).lower()]
