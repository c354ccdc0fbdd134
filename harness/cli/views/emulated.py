"""Print the emulator's rows, findings and counts by line."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import running
from harness.support import files, terminal

if TYPE_CHECKING:
    from harness.bench.row import Measurement
    from harness.emulator import Counts, Finding
    from harness.emulator.watch.findings import Source
    from harness.launch.builds import Built

_CODE, _BESIDE = 17, 63  # how many characters of a source line are shown at least, and of what is beside it
_FINDINGS = 12  # that are shown of a kernel
_MOST = 2**24  # bytes of a file whose lines are quoted
_PRINTED = 20  # lines that are shown of what a kernel prints
_MAIN = re.compile(r"^\s*(?:int|auto)\s+main\s*\(", re.MULTILINE)
_CONFLICT, _CONFLICTS = 2, 5  # ways from which a line is named, and how many are
NOTE = (
    "FLOP/B: of bytes asked of global memory; sect: 32-byte sectors a global request;\n"
    "ways: wavefronts of shared requests over the least. Emulated: no time, no cache."
)


def explain(absent: str, given: Mapping[str, Any], *, err: bool) -> None:
    """Print what the columns mean, why there is no GPU (`absent`), and which options given need one."""
    click.echo(f"\n{NOTE}\n{absent}; `harness check` tells more", err=err)
    without = [f"--{name}" for name in ("ref", "cublaslt", "alone", "isolate") if given[name]]
    without += ["--rounds"] if given["rounds"] > 1 else []
    if without:
        click.echo(terminal.fill(f"nothing is timed here: {', '.join(without)} had no effect"), err=err)


def print_rows(rows: Sequence[Measurement], style: str | None) -> None:
    """Print a line for each kernel over all sizes; the ratios are those of the first size."""
    from harness.bench.row import UNVERIFIED
    from harness.problems.protocol import unverified
    from harness.results import tables

    table = []
    for label, group in running.by_kernel(rows):
        run = group[0].emulation
        bad = sorted((r.status for r in group if not r.right), key=lambda status: status == UNVERIFIED)
        table.append(
            [
                label,
                "-"
                if unverified(group[0].problem)
                else f"{sum(r.before is not None and r.before.ok for r in group)}/{len(group)}",
                "-" if run is None else str(sum(not f.benign for f, _ in _distinct(group))),
                *(["-"] * 3 if run is None else ratios(run.total)),
                bad[0] if bad else group[0].status,
            ]
        )
    headings = ["kernel", "right", "findings", "FLOP/B", "sect", "ways", "check"]
    click.echo(tables.plain_table(table, headings, style))


def print_findings(rows: Sequence[Measurement]) -> None:
    """Print each finding once, with its source lines and the first size at which it was seen; then errors of
    runs, and which kernels were launched in a second order.

    Of a kernel with many of them the first ones are shown. A guessed launch has been told already.
    """
    from harness.problems.protocol import unverified
    from harness.results import encode

    for label, group in running.by_kernel(rows):
        found = _distinct(group)
        told = len(group) == 1 and unverified(group[0].problem)
        for finding, row in found[:_FINDINGS]:
            where = label if told else f"{label}, {row.problem.label}"
            print_finding(finding, where, functools.partial(_line, row.built))
        if len(found) > _FINDINGS:
            click.echo(f"\n{label}: {len(found) - _FINDINGS} more findings; --json keeps them all")
    if any(row.error for row in rows):
        click.echo()
        running.explain([encode.emulated_record(row) | {"detail": row.error} for row in rows], [])
    _print_schedules(rows)


def print_finding(finding: Finding, where: str, quote: Callable[[Source], str]) -> None:
    """Print a finding; `quote` returns the text of a source line, "" where it is not known."""
    from harness.emulator.watch.findings import Source

    kind = f"notice: {finding.kind}" if finding.benign else finding.kind
    often = "once" if finding.seen == 1 else f"{finding.seen} times"
    click.echo(terminal.fill(f"\n{where}: {kind}, seen {often}"))
    for source in finding.sources:
        click.echo(terminal.fill(f"  {source}: {quote(source)}".rstrip(": "), " " * 4))
        caller = Source(source.caller, source.file)
        if source.caller and (text := quote(caller)):
            click.echo(terminal.fill(f"    {caller}: {text}", " " * 6))
    click.echo(terminal.fill(f"  {finding.message}", " " * 4))


def print_output(rows: Sequence[Measurement]) -> None:
    """Print what the kernels printed: the first lines of each row, without control characters."""
    for row in rows:
        printed = row.emulation.output if row.emulation is not None else ""
        if not printed:
            continue
        click.echo(terminal.fill(f"\n{row.label}, {row.problem.label} printed:"))
        lines = printed.splitlines()
        for line in lines[:_PRINTED]:
            click.echo("  " + "".join(c if c.isprintable() or c == "\t" else "?" for c in line))
        if len(lines) > _PRINTED:
            click.echo(f"  ... and {len(lines) - _PRINTED:,} lines more; --json keeps them all")


def print_conflicts(rows: Sequence[Measurement]) -> float:
    """Print the source lines whose shared requests have bank conflicts, at the first size of each kernel.

    Return the most ways of a line. A mean over all lines, as in the table, hides one that is executed rarely.
    """
    most, said = 0.0, []
    for label, group in running.by_kernel(rows):
        row = group[0]
        counts = row.emulation.lines if row.emulation is not None else ()
        ways = {c.source: c.ways for c in counts if c.ways is not None}
        most = max([most, *ways.values()])
        worst = sorted((s for s in ways if ways[s] >= _CONFLICT), key=lambda s: -ways[s])[:_CONFLICTS]
        for source in worst:
            quoted = f"{source}: {_line(row.built, source)}".rstrip(": ")
            said.append(f"{label}: {ways[source]:.3g}-way bank conflicts, {quoted}")
    if said:
        click.echo()
    for text in said:
        click.echo(terminal.fill(text, " " * 4))
    return most


def _print_schedules(rows: Sequence[Measurement]) -> None:
    """Print which kernels were launched again: in another order, or in the memory that they left."""
    said = []
    for label, group in running.by_kernel(rows):
        runs = [row.emulation for row in group if row.emulation is not None]
        twice = [run for run in runs if len(run.schedules) > 1]
        first = {run.schedules[0] for run in twice}
        other = dict.fromkeys(s for run in twice for s in run.schedules[1:] if s not in first)
        if other:
            lines = ", ".join(str(source) for source in sorted({s for run in runs for s in run.contended}))
            how = f"with --schedule {', '.join(other)}: who comes first matters to {lines}"
        else:
            how = "with its workspace and variables as they had been left"
        said += [f"{label} was also launched {how}"] if twice else []
    if said:
        click.echo()
    for text in said:
        click.echo(terminal.fill(text, " " * 4))


def print_guesses(rows: Sequence[Measurement]) -> None:
    """Print how kernels without front matter were launched, and that their numbers were not verified."""
    *launched, advice = guesses_of(rows) or ("",)
    for said in launched:
        click.echo("\n" + terminal.fill(said, " " * 4))
    if advice:
        click.echo(terminal.fill(advice))


def guesses_of(rows: Sequence[Measurement]) -> list[str]:
    """Return how each kernel without front matter was launched and, last, what that means; or nothing."""
    from harness.kernels import text
    from harness.kernels.cpp import calls, guesses
    from harness.kernels.cpp.host import launches
    from harness.launch import kernel
    from harness.problems.guessed.arguments import digits
    from harness.problems.protocol import after, aliases, lengthened, unverified

    found = []
    for row in (row for row in rows if row.built is not None and unverified(row.problem)):
        assert row.built is not None
        grid, block = kernel.grid(row.built.variant, row.problem), row.built.variant.block
        shape = f"--grid {','.join(map(str, grid))} --block {','.join(map(str, block))}"
        shape += f" --shared {row.built.variant.shared}" if row.built.variant.shared else ""
        source, name = calls.host(row.built.variant.kernel), row.built.variant.entry
        of = launches.cluster(source, row.built.variant.kernel.entry)
        sizes = " ".join(f"-a {name}={digits(getattr(row.problem, name))}" for name in row.problem.axes)
        said = f"{row.label} was launched as by {shape} {sizes}".rstrip()
        said += f" in clusters of {','.join(map(str, of))}" if of != (1, 1, 1) else ""
        launch = launches.of(source, name)
        if launch is not None and (*launch.block, 1, 1)[:3] == block:
            guess = guesses.of(source, text.find(text.entries(source), name), name)
            too = " and grid" if guess.grid and guess.grid == row.built.variant.kernel.grid else ""
            said += f" (block{too} as in line {launch.line})"
        elif large := launches.too_large(source, name):
            said += f" (line {large.line} has {math.prod(large.block):,} threads a block: no GPU takes that)"
        longer = ", ".join(f"{name} ({old} guessed)" for name, old in lengthened(row.problem).items())
        said += f". As long as the kernel goes: {longer}" * bool(longer)
        said += f", after {', '.join(before)} on the same buffers" if (before := after(row.problem)) else ""
        one = aliases(row.problem).items()
        said += "".join(f"; {other} and {name} are one buffer, as in host code" for name, other in one)
        found.append(said)
    if found:
        found.append(
            "These are guesses: give what your own launch has, since findings are those of this one. "
            "With no reference no number was verified: `harness new` helps"
        )
        kernels = [row.built.variant.kernel for row in rows if row.built is not None]
        programs = dict.fromkeys(k.path.name for k in kernels if k.plain and _MAIN.search(k.source))
        if programs:
            found[-1] += f". {next(iter(programs))} is a program: `harness run` runs it with its own sizes"
        if folders := dict.fromkeys(folder for k in kernels if k.plain for folder in k.include):
            found[-1] += f". Headers are from {', '.join(map(os.path.relpath, folders))}"
    return found


def _distinct(group: Sequence[Measurement]) -> list[tuple[Finding, Measurement]]:
    """Return the different findings, each with the first row that has it: a fault at several sizes is one."""
    found: dict[tuple[object, ...], tuple[Finding, Measurement]] = {}
    for row in group:
        for f in (*row.emulation.findings, *row.emulation.notices) if row.emulation is not None else ():
            found.setdefault((f.kind, f.sources, f.variable, f.benign), (f, row))
    return list(found.values())


def _line(built: Built | None, source: Source) -> str:
    """Return a line of the kernel's source, or of the file that its PTX names; empty if there is none."""
    if built is None:
        return ""
    kernel, lines = built.variant.kernel, list[str]()
    if not source.file:
        lines = kernel.source.splitlines()
    elif kernel.language == "ptx":
        return line_of(kernel.path.parent / source.file, source.line)
    return lines[source.line - 1].strip() if 0 < source.line <= len(lines) else ""


def line_of(path: Path, number: int) -> str:
    """Return a line of a file; empty if it cannot be read, or has no such line."""
    with contextlib.suppress(OSError, ValueError):
        lines = _lines(path, path.stat().st_mtime_ns)
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return ""


@functools.lru_cache(maxsize=4)
def _lines(path: Path, _changed: int) -> list[str]:
    return files.text(path, most=_MOST, errors="replace").splitlines()


def ratios(total: Counts) -> list[str]:
    """Return FLOP/B, sectors per request and ways as text."""
    from harness.results import tables

    return [tables.ratio(total.intensity), tables.ratio(total.sectors_per_request), tables.ratio(total.ways)]


def print_lines(row: Measurement, compiled: Measurement, style: str | None) -> None:
    """Print counts of one row by source line, with those of `compiled`, the row in the machine code's
    widths.
    """
    from harness.problems.protocol import unverified
    from harness.results import tables

    if row.emulation is None or row.built is None:
        return
    room = max(_CODE, (terminal.columns() or 0) - _BESIDE)
    other = {c.source: c for c in compiled.emulation.lines} if compiled.emulation is not None else {}
    table = []
    for counts in row.emulation.lines:
        line = counts.source.line
        text = _line(row.built, counts.source) or ("(another file)" if counts.source.file else "")
        table.append(
            [
                str(line) if not counts.source.file else str(counts.source),
                text if len(text) <= room else text[: room - 1] + "~",
                tables.si(counts.executions),
                tables.si(counts.flops),
                *_pair(counts.global_requests, counts.sectors_per_request),
                *_pair(counts.shared_requests, counts.ways),
                *(_compiled(other.get(counts.source)) if other else []),
            ]
        )
    headings = ["line", "source", "threads", "FLOP", "global", "sect", "shared", "ways"]
    headings += ["SASS", "ways"] if other else []
    click.echo(f"\n{row.label}, {row.problem.label}\n{tables.plain_table(table, headings, style)}")
    if compiled.emulation is None:
        click.echo(f"as compiled: {compiled.detail}")
    total = row.emulation.total
    least = f"; the least for this problem is {tables.si(row.problem.bytes)}B"
    said = (
        f"global: {tables.si(total.global_bytes)}B asked for in {tables.si(32 * total.sectors)}B of sectors, "
        f"{tables.ratio(total.intensity)} FLOP/B{least * (not unverified(row.problem))}\n"
        f"shared: {tables.si(total.shared_bytes)}B, "
        f"{tables.ratio(total.flops / total.shared_bytes if total.shared_bytes else None)} FLOP/B"
    )
    click.echo(terminal.fill(said))
    if total.boxes:
        copied = f"{tables.si(total.box_bytes)}B in {tables.si(total.box_sectors)} sectors"
        click.echo(f"TMA: {tables.si(total.boxes)} copies of {copied}")
    if total.products:
        click.echo(f"matrix instructions of warps: {tables.si(total.products)}")


def _pair(requests: int, ratio: float | None) -> list[str]:
    """Return requests and their ratio as text; empty without requests."""
    from harness.results import tables

    return [tables.si(requests), tables.ratio(ratio)] if requests else ["", ""]


def _compiled(counts: Counts | None) -> list[str]:
    """Return shared requests and ways of the machine code as text."""
    return ["", ""] if counts is None else _pair(counts.shared_requests, counts.ways)
