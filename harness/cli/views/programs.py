"""Print what a program did on the emulator: its kernels, their findings, and calls that were refused."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.views import emulated
from harness.support import terminal

if TYPE_CHECKING:
    from harness.emulator.watch.findings import Finding, Source
    from harness.programs import Run
    from harness.programs.events import Said
    from harness.programs.places import Place
    from harness.results.gates.findings import Reported

_FINDINGS, _CALLS = 12, 12  # that are shown of a kernel, and of the program


def print_run(run: Run, style: str | None) -> None:
    """Print a line for each kernel, then findings, refused calls, and how the program ended."""
    from harness.results import tables

    names = run.names
    table = [
        [
            names[one.kernel],
            str(one.launches),
            tables.si(one.threads),
            str(sum(not f.benign for f, *_ in one.findings.values())),
            *emulated.ratios(one.counts),
            one.status,
        ]
        for one in run.kernels.values()
    ]
    headings = ["kernel", "launches", "threads", "findings", "FLOP/B", "sect", "ways", "check"]
    if table:
        click.echo(tables.plain_table(table, headings, style))
        click.echo(emulated.NOTE)
    else:
        click.echo("the program launched no kernel")
    for one in run.kernels.values():
        for finding, number, first in [*one.findings.values()][:_FINDINGS]:
            where = f"{names[one.kernel]}, {of_many(number, one.launches)}{_at(first.place)}"
            emulated.print_finding(_nearby(finding), where, quote)
        if len(one.findings) > _FINDINGS:
            click.echo(
                f"\n{names[one.kernel]}: {len(one.findings) - _FINDINGS} more findings; --json has all"
            )
        for error in one.errors:
            click.echo(terminal.fill(f"\n{names[one.kernel]}: {error}"))
    _print_calls(run.misuses, "calls that a GPU's runtime refuses, too", names)
    _print_calls(run.unwaited, "host code that does not wait for the device", names)
    _print_calls(run.races, "races between streams", names)
    _print_calls(run.refusals, "calls that only the emulator refuses", names)
    _print_end(run, names)


def of_many(number: int, launches: int) -> str:
    """Return which launch it was, where there were several."""
    return f"launch {number} of {launches}" if launches > 1 else "launched"


def _at(place: Place) -> str:
    return f" in {_near(place.file)}:{place.line}" if place.line else ""


def _near(file: str) -> str:
    """Return a file's path from here, if that is shorter."""
    return min((os.path.relpath(file), file), key=len) if file else ""


def _nearby(finding: Finding) -> Finding:
    """Return a finding whose files are named from here."""
    from dataclasses import replace

    return replace(finding, sources=tuple(_source(one) for one in finding.sources))


def _source(source: Source) -> Source:
    return type(source)(source.line, _near(source.file), source.caller, source.headers)


def quote(source: Source) -> str:
    """Return the text of a source line; empty where it cannot be read."""
    return emulated.line_of(Path(source.file), source.line) if source.file else ""


def _print_calls(
    calls: Mapping[Said, int],
    why: str,
    names: Mapping[str, str],
) -> None:
    """Print what host code does wrong, a line each."""
    if calls:
        click.echo(f"\n{why}:")
    for event, times in [*calls.items()][:_CALLS]:
        where = f"{_near(event.place.file)}:{event.place.line}: " if event.place.line else ""
        often = "" if times == 1 else f", {times} times"
        click.echo(terminal.fill(f"  {where}{_readable(event.what, names)}{often}", " " * 4))
    if len(calls) > _CALLS:
        click.echo(f"  ... and {len(calls) - _CALLS} more; --json has all")


def _readable(what: str, names: Mapping[str, str]) -> str:
    """Return what is said with the names that kernels have in the source."""
    return re.sub(r"\b_Z\w+", lambda m: names.get(m[0], m[0]), what)


def reported(run: Run) -> list[Reported]:
    """Return what is wrong as CI servers show it: findings by line, and calls that were refused."""
    from harness.results.gates.findings import Reported, relative

    found = []
    for one in run.kernels.values():
        for f, number, launch in one.findings.values():
            lines = [(relative(Path(s.file)), max(1, s.line)) for s in f.sources if s.file]
            (path, line), *others = lines or [_first(launch.place)]
            where = f"{run.names[one.kernel]}, {of_many(number, one.launches)}{_at(launch.place)}"
            found.append(
                Reported(
                    kind=f.kind,
                    level="note" if f.benign else "error",
                    message=f"{f.message} ({where}, seen {f.seen} times)",
                    path=path,
                    line=line,
                    text=quote(f.sources[0]) if f.sources else "",
                    others=tuple(others),
                )
            )
    kinds = {
        "refused call": run.misuses,
        "missing synchronization": run.unwaited,
        "race between streams": run.races,
    }
    for kind, calls in kinds.items():
        for call in (one for one in calls if one.place.line):
            path, line = _first(call.place)
            found.append(
                Reported(
                    kind=kind,
                    level="error",
                    message=_readable(call.what, run.names),
                    path=path,
                    line=line,
                    text=emulated.line_of(Path(call.place.file), line),
                    others=tuple(_first(other) for other in call.others if other.line),
                )
            )
    return found


def _first(place: Place) -> tuple[str, int]:
    """Return a place as CI servers name it."""
    from harness.results.gates.findings import relative

    return relative(Path(place.file)), max(1, place.line)


def _print_end(run: Run, names: Mapping[str, str]) -> None:
    """Print why the program did not do all that it does on a GPU."""
    some = [one for one in run.kernels.values() if one.ran < one.blocks and not one.errors]
    if some:
        said = ", ".join(f"{one.ran:,} of {one.blocks:,} blocks of {names[one.kernel]}" for one in some)
        click.echo(terminal.fill(f"\n{said} ran: what the others compute is missing"))
    if run.stopped is not None:
        name = names.get(run.stopped.kernel, run.stopped.kernel)
        grid, block = ("x".join(map(str, extents)) for extents in (run.stopped.grid, run.stopped.block))
        said = (
            f"time was over in a launch of {name}, {grid} blocks of {block} threads{_at(run.stopped.place)}: "
        )
        click.echo(terminal.fill(f"\n{said}nothing after it ran. Take smaller sizes, --seconds or --sample"))
    if run.timed_out:
        click.echo(terminal.fill("\nhost code had not ended when time was over, and was killed"))
    elif run.code < 0:
        name = (
            signal.Signals(-run.code).name
            if -run.code in {s.value for s in signal.Signals}
            else str(-run.code)
        )
        said = f"\nthe program ended by {name}"
        if name in ("SIGSEGV", "SIGBUS"):
            said += ". Host code that reads or writes memory of the device ends so"
        click.echo(terminal.fill(said))
    elif run.code:
        click.echo(f"\nthe program ended with exit code {run.code}")
