"""Print a verdict: which checks were made where, why some did not pass, the times, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness.support import terminal

if TYPE_CHECKING:
    from harness.judging.verdict import Check, Timed, Verdict


def show(verdict: Verdict, style: str | None) -> None:
    """Print a verdict whole; the verdict itself is the last line."""
    from harness.judging.verdict import CHECKS, EMULATOR, GPU, PASSED, SKIPPED, STATIC
    from harness.results import tables

    made = {(c.name, c.where): c for c in verdict.checks}
    cells = []
    for name in CHECKS:
        row = [_outcome(made.get((name, where))) for where in (STATIC, EMULATOR, GPU)]
        if any(row):
            cells.append([name, *row])
    click.echo(tables.plain_table(cells, ["check", STATIC, EMULATOR, GPU], style))
    said: dict[str, list[Check]] = {}
    for check in verdict.checks:
        if check.outcome != PASSED:
            said.setdefault(check.reason, []).append(check)
    for reason, group in said.items():
        if group[0].outcome == SKIPPED:
            places = ", ".join(dict.fromkeys(c.where for c in group))
            click.echo(terminal.fill(f"- ({places}): {reason}"))
        else:
            click.echo(terminal.fill(f"{group[0].name} ({group[0].where}) {group[0].outcome}: {reason}"))
    if verdict.times:
        rows = [_time(t) for t in verdict.times]
        click.echo()
        click.echo(
            tables.plain_table(rows, ["size", "regime", "time", "speed", "interval", "against"], style)
        )
        for timed in verdict.times:
            if timed.detail:
                click.echo(terminal.fill(f"{timed.shape}: {timed.detail}"))
    if verdict.requires:
        click.echo(
            terminal.fill(f"judged only where {' and '.join(verdict.requires)}: it takes no other sizes")
        )
    if verdict.shapes:
        click.echo(terminal.fill(f"sizes drawn with --seed {verdict.seed}: {', '.join(verdict.shapes)}"))
    why = "; ".join(f"{c.name} ({c.where})" for c in verdict.failed)
    missing = ", ".join(verdict.missing) if verdict.status not in ("accepted", "rejected") else ""
    click.echo(
        terminal.fill(
            f"{verdict.kernel}: {verdict.status}" + (f": {why or missing}" if why or missing else "")
        )
    )


def _outcome(check: Check | None) -> str:
    """Return the outcome of a check for the table; "" where it is not made in that place."""
    return "" if check is None else "-" if check.outcome == "not possible here" else check.outcome


def _time(timed: Timed) -> list[str]:
    """Return the table row of one size: the speed as a multiple of the reference's."""
    from harness.results import tables

    seconds = "-" if timed.seconds is None else tables.seconds(timed.seconds)
    if timed.ratio is None:
        return [timed.shape, timed.regime, seconds, "-", "-", timed.against or "-"]
    low, estimate, high = timed.ratio
    return [timed.shape, timed.regime, seconds, f"{estimate:.3f}", f"{low:.3f} to {high:.3f}", timed.against]
