"""What ``harness profile`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from harness import counters, diagnosis, tables

if TYPE_CHECKING:
    from harness.hotspots import Hotspots
    from harness.ncu_reports import Profile

_STALLS = 8  # of the reasons, those that are longest for some kernel
_LINES, _INSTRUCTIONS = 5, 3  # with the most samples
_WIDEST = 60  # characters of a line of source


def print_profiles(found: Sequence[Profile], more: Sequence[str], style: str | None) -> None:
    """Every section, a column for each launch; then what each is held back by. `more`: the user's metrics."""
    sections = dict(counters.SECTIONS)
    if more:
        sections["Asked for"] = tuple(counters.Row(name=name, show="{:,.6g}") for name in more)
    rows = [
        [section if i == 0 else "", row.name, *(row.text(p.counters) for p in found)]
        for section, listed in sections.items()
        for i, row in enumerate(r for r in listed if not _idle(r, found))
    ]
    rows += _stall_rows(found)
    if style == "csv":
        rows = [[_fill(rows, i), *row[1:]] for i, row in enumerate(rows)]
    headings = ["", "metric", *(p.label.split()[0] for p in found)]
    click.echo(tables.plain_table(rows, headings, style))
    if style == "csv":
        return
    for p in found:
        print_diagnosis(p)
        if p.hotspots is not None:
            print_hotspots(p.hotspots, style)


def _idle(row: counters.Row, found: Sequence[Profile]) -> bool:
    """A pipe that none of them uses."""
    return row.name in counters.PIPES.values() and all(row.text(p.counters) in ("0.0", "-") for p in found)


def _fill(rows: Sequence[Sequence[str]], at: int) -> str:
    return next(row[0] for row in reversed(rows[: at + 1]) if row[0])


def _stall_rows(found: Sequence[Profile]) -> list[list[str]]:
    """``12.76 (34%)``: cycles of a warp's time for each instruction, and their share of it."""
    by_launch = [counters.stalls(p.counters) for p in found]
    worst = {reason: max(s.get(reason, (0, 0))[1] for s in by_launch) for reason in counters.STALLS}
    shown = sorted((r for r in worst if worst[r] > 0), key=lambda r: -worst[r])[:_STALLS]
    rows = []
    for i, reason in enumerate(shown):
        cells = [f"{s[reason][0]:.2f} ({s[reason][1]:.0%})" if reason in s else "-" for s in by_launch]
        rows.append(["Warp stalls, cycles" if i == 0 else "", counters.stall(reason), *cells])
    return rows


def print_diagnosis(p: Profile) -> None:
    limited = counters.limiters(p.counters)
    by = f", occupancy limited by {limited}" if limited else ""
    click.echo(f"\n{p.label}, grid {p.grid}, block {p.block}{by}")
    said = diagnosis.diagnose(p.counters)
    for d in said:
        click.echo(f"  {d.kind}: {d.says}\n    -> {d.cure}")
    missing = diagnosis.unjudged(p.counters)
    if missing:
        names = ", ".join(rule.kind for rule in missing)
        click.echo(f"  not judged, for want of counters: {names}")
    elif not said:
        click.echo("  no rule speaks: see the table")


def print_hotspots(found: Hotspots, style: str | None) -> None:
    """Where its warps stand, by source line and by instruction: shares of all samples."""
    rows = []
    for spot in (*found.lines[:_LINES], *found.instructions[:_INSTRUCTIONS]):
        text = spot.text if len(spot.text) <= _WIDEST else spot.text[: _WIDEST - 1] + "~"
        reason = f"{spot.reason} {spot.because / spot.samples:.0%}"
        rows.append([spot.place, f"{spot.samples / found.samples:.0%}", reason, text])
    headings = [f"of {found.samples:,} samples", "share", "mostly", ""]
    click.echo("\n" + tables.plain_table(rows, headings, style))
