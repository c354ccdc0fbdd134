"""Print what ``harness profile`` counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from harness.instruments import counters, diagnosis
from harness.results import tables
from harness.support import terminal

if TYPE_CHECKING:
    from harness.instruments.hotspots import Hotspots
    from harness.instruments.ncu_reports import Profile

_STALLS = 8  # how many stall reasons are shown, those that are longest for some kernel
_LINES, _INSTRUCTIONS = 5, 3  # how many are shown, those with the most samples
_LEAST, _WIDEST = 20, 60  # characters of a line of source that are shown, at least and at most


def print_profiles(found: Sequence[Profile], more: Sequence[str], style: str | None) -> None:
    """Print every section of counters, with a column for each launch, then what holds each launch back.

    `more` names metrics that the user asked for.
    """
    sections = dict(counters.SECTIONS)
    if more:
        sections["Asked for"] = tuple(counters.Row(name=name, show="{:,.6g}") for name in more)
    listed = {
        section: [
            [row.name, *(row.text(p.counters) for p in found)] for row in metrics if not _idle(row, found)
        ]
        for section, metrics in sections.items()
    }
    listed["Warp stalls, cycles"] = _stall_rows(found)
    names = [p.label.split()[0] for p in found]
    if style is None:  # one table per section: the names of all would leave no room for the values
        parts = [tables.plain_table(rows, [section, *names]) for section, rows in listed.items() if rows]
        click.echo("\n\n".join(parts))
    else:
        rows = [[section, *row] for section, rows in listed.items() for row in rows]
        click.echo(tables.plain_table(rows, ["", "metric", *names], style))
    if style == "csv":
        return
    for p in found:
        print_diagnosis(p)
        if p.hotspots is not None:
            print_hotspots(p.hotspots, style)


def _idle(row: counters.Row, found: Sequence[Profile]) -> bool:
    """Return True for a pipe that none of the launches uses."""
    return row.name in counters.PIPES.values() and all(row.text(p.counters) in ("0.0", "-") for p in found)


def _stall_rows(found: Sequence[Profile]) -> list[list[str]]:
    """Return a row for each shown stall reason, with cells such as ``12.76 (34%)``.

    A cell has the cycles that a warp stalls per instruction, and their share of its time.
    """
    by_launch = [counters.stalls(p.counters) for p in found]
    worst = {reason: max(s.get(reason, (0, 0))[1] for s in by_launch) for reason in counters.STALLS}
    shown = sorted((r for r in worst if worst[r] > 0), key=lambda r: -worst[r])[:_STALLS]
    rows = []
    for reason in shown:
        cells = [f"{s[reason][0]:.2f} ({s[reason][1]:.0%})" if reason in s else "-" for s in by_launch]
        rows.append([counters.stall(reason), *cells])
    return rows


def print_diagnosis(p: Profile) -> None:
    """Print what holds a launch back, with the cures, and which rules lack counters."""
    limited = counters.limiters(p.counters)
    by = f", occupancy limited by {limited}" if limited else ""
    click.echo(terminal.fill(f"\n{p.label}, grid {p.grid}, block {p.block}{by}"))
    said = diagnosis.diagnose(p.counters)
    for d in said:
        click.echo(terminal.fill(f"  {d.kind}: {d.says}", " " * 4))
        click.echo(terminal.fill(f"    -> {d.cure}", " " * 7))
    missing = diagnosis.unjudged(p.counters)
    if missing:
        names = ", ".join(rule.kind for rule in missing)
        click.echo(terminal.fill(f"  not judged, for want of counters: {names}", " " * 4))
    elif not said:
        click.echo("  no rule speaks: see the table")


def print_hotspots(found: Hotspots, style: str | None) -> None:
    """Print the source lines and instructions with the most samples, as shares of all samples."""
    headings = [f"of {found.samples:,} samples", "share", "mostly", ""]
    spots = [*found.lines[:_LINES], *found.instructions[:_INSTRUCTIONS]]
    rows = [
        [s.place, f"{s.samples / found.samples:.0%}", f"{s.reason} {s.because / s.samples:.0%}", s.text]
        for s in spots
    ]
    taken = sum(2 + max(len(row[i]) for row in (headings, *rows)) for i in range(3))
    room = min(_WIDEST, max(_LEAST, (terminal.columns() or taken + _WIDEST) - taken))
    for row in rows:
        row[3] = row[3] if len(row[3]) <= room else row[3][: room - 1] + "~"
    click.echo("\n" + tables.plain_table(rows, headings, style))
