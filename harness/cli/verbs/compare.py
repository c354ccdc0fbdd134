"""``harness compare``: compare two result files or git revisions, by times or by static figures."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import options, running
from harness.errors import UsageError
from harness.support import terminal

if TYPE_CHECKING:
    from harness.kernels.spec import Kernel
    from harness.problems.protocol import Axes, Problem
    from harness.results.comparison import Difference
    from harness.results.gates.static import Change
    from harness.results.record import Document
    from harness.results.rows import Row


@click.command(name="compare")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="[CMP]", required=False)
@options.threshold("2%", "What difference counts; runs taken apart differ by more than their intervals say.")
@click.option("--force", is_flag=True, help="Compare runs of another GPU, clock, regime or math mode too.")
@click.option(
    "--static", is_flag=True, help="Of files that have times: figures of the code and counts instead."
)
@click.option(
    "-f",
    "--figure",
    "figures",
    multiple=True,
    metavar="NAME",
    help="Static: only this figure, such as registers. May be given again.",
)
@click.option(
    "-k",
    "--kernel",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Of revisions: kernel files by path, name or stem; by default those with front matter, or all "
    "where REF or CMP has none.",
)
@options.axis
@options.arch
@click.option("--all", "every", is_flag=True, help="Static: also print what is the same.")
@options.markdown
@options.comma
def command(
    reference: str,
    candidate: str | None,
    threshold: float,
    force: bool,
    static: bool,
    figures: tuple[str, ...],
    patterns: tuple[str, ...],
    axis: tuple[str, ...],
    arch: str | None,
    every: bool,
    style: str | None,
) -> None:
    """Say what is faster or slower in CMP than in REF, or which kernels take more.

    REF and CMP are files that `harness bench --json` wrote: SAME where the interval of the difference lies
    within the threshold, FAST or SLOW where it lies outside, INCONCLUSIVE where it lies across.

    Files of check, sass and verify, or revisions of a git repository (CMP is the working tree where it is
    left out), are compared without times and without a GPU: registers, spills, shared memory, occupancy,
    instructions, widths of loads, sectors, ways. WORSE where a figure changed for the worse by more than the
    threshold.

    Exit code 0 where nothing is slower or worse, 1 where something is or failed, 2 where the two cannot be
    compared, 3 where some row cannot be told.
    """
    from harness.results import comparison
    from harness.results.gates import static as gate

    file = Path(reference)  # or a pipe or a device, which is told when it is read
    if file.suffix in (".cu", ".ptx") or (file.suffix != ".json" and (file.is_dir() or not file.exists())):
        both = _revisions(reference, candidate, patterns, axis, arch)
    elif candidate is None:
        raise UsageError("one result file is nothing to compare", hint="harness compare REF.json CMP.json")
    else:
        if patterns or axis or arch:
            raise UsageError("--kernel, --axis and --arch are for revisions, not for result files")
        both = (_load(Path(reference)), _load(Path(candidate)))
        timed = all(c["kind"] == "bench" and c["meta"].get("gpu") for c in both)
        if timed and not (static or figures):
            found = comparison.compare(*both, threshold=threshold, force=force)
            print_differences(found, style)
            if any(d.regressed for d in found):
                raise SystemExit(1)
            running.conclude(d.status for d in found if d.unclear)
            return
    changes = gate.compare(*both, threshold=threshold, figures=figures)
    print_changes(changes, style, every=every)
    if any(c.failed for c in changes):
        raise SystemExit(1)


def _revisions(
    reference: str,
    candidate: str | None,
    patterns: Sequence[str],
    axis: Sequence[str],
    arch: str | None,
) -> tuple[Document, Document]:
    """Return the static figures of two revisions' kernels; without `candidate` of the working tree."""
    from harness.results.gates import revisions

    target = options.one_arch(arch, None)
    if candidate is not None and all(Path(word).suffix in (".cu", ".ptx") for word in (reference, candidate)):
        raise UsageError(
            "two kernel files are neither revisions nor result files",
            hint=f"harness sass {reference} --diff {candidate}, or harness explain {reference} {candidate}",
        )
    for revision in (reference, *([candidate] if candidate is not None else [])):
        revisions.commit(revision)  # what names none is told before anything is compiled
    if not patterns:
        found = [revisions.plain(r) for r in (reference, candidate)]
        plain = sorted({path for paths, _ in found for path in paths})
        if all(marked for _, marked in found):
            text = f"left out, having no front matter: {', '.join(plain)}; -k '*.cu' takes every file"
            if plain:
                click.echo(terminal.fill(text), err=True)
        else:
            patterns = list(map(glob.escape, plain))

    def sizes(kernel: Kernel) -> Mapping[type[Problem], Sequence[Axes]]:
        return {cls: found[:1] for cls, found in options.points([kernel], axis, "verify_axes").items()}

    with running.progress(0) as step:
        a, b = (
            revisions.document(r, patterns, sizes, target, options.open_cache(), step)
            for r in (reference, candidate)
        )
    return a, b


def print_changes(found: Sequence[Change], style: str | None, *, every: bool = False) -> None:
    """Print the figures that changed, with `every` all of them, and kernels that only one side has."""
    from harness.results import tables
    from harness.results.gates.static import BROKEN, GONE, NEW, SAME, UNITS

    told = [c for c in found if c.figure and (every or style == "csv" or c.status != SAME)]
    rows = [
        [
            c.label,
            c.shape or c.arch,
            c.figure,
            *map(tables.number, (c.before, c.after)),
            _relative(c),
            c.status,
        ]
        for c in told
    ]
    headings = ["kernel", "at", "figure", "REF", "CMP", "change", "status"]
    if rows:
        click.echo(tables.plain_table(rows, headings, style))
    if style == "csv":
        return
    same = sum(c.status == SAME for c in found)
    kernels = len({(c.label, c.arch) for c in found if c.figure})
    counted = f"{same} figure{'s' * (same != 1)} of {kernels} kernel{'s' * (kernels != 1)}"
    unprinted = "; --all prints them" if same and not every else ""
    click.echo(f"{counted} {'is' if same == 1 else 'are'} the same{unprinted}")
    for status, said in (
        (BROKEN, "cannot be built or is wrong, and was not"),
        (GONE, "only in REF"),
        (NEW, "only in CMP"),
    ):
        if names := [f"{c.label} {c.arch}" for c in found if c.status == status]:
            click.echo(terminal.fill(f"{said}: {', '.join(dict.fromkeys(names))}"))
    for name in dict.fromkeys(c.figure for c in told):
        click.echo(f"{name}: {UNITS[name]}")


def _relative(c: Change) -> str:
    """Return the change in per cent, or as it is from zero."""
    if c.before is None or c.after is None or c.before == c.after:
        return "-"
    return f"{100 * (c.after / c.before - 1):+.1f}%" if c.before else f"{c.after:+g}"


def _load(path: Path) -> Document:
    """Load a result file with times or static figures. Raises UsageError for one that has neither."""
    from harness.results import record
    from harness.results.gates import static as gate

    content = record.load(path)
    kind = content.setdefault("kind", "bench")
    if kind not in gate.KINDS:
        raise UsageError(
            f"what {kind} wrote has neither times nor static figures of kernels to compare",
            where=str(path),
            hint="a --json of bench, check, sass or verify",
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
