"""Print what ``harness explain`` found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from harness.kernels.prediction import SECONDS
from harness.results import claims, explanation, tables
from harness.sass import diff
from harness.support import terminal

if TYPE_CHECKING:
    from harness.bench.row import Measurement
    from harness.kernels.prediction import Figures
    from harness.kernels.spec import Variant
    from harness.results.claims import Outcome, Runs
    from harness.sass.code import Code

_OPCODES = 10  # how many opcodes are shown, those with the largest changes


def print_head(a: Variant, b: Variant) -> None:
    """Print both kernels' titles, and B's claim."""
    for side, variant in (("A", a), ("B", b)):
        click.echo(terminal.fill(f"{side}  {variant.label}: {variant.kernel.title}".rstrip(": "), "   "))
    if b.kernel.claim:
        click.echo(terminal.fill(f"   {b.kernel.claim}", "   "))


def print_times(a: Variant, b: Variant, files: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Print how much faster B is in each record of bench; return it in short, for the conclusion."""
    told = []
    for name, content in files:
        if content["kind"] != "bench":
            continue
        found = explanation.recorded(a, b, content["rows"])
        if found is None:
            click.echo(f"\n{name} has no size with times of both")
            continue
        first, second = map(tables.seconds, found.seconds)
        gpu = (content["meta"].get("gpu") or {}).get("name", "a GPU")
        how = f"{first}, {second}; {name}, not timed in turn"
        told.append(f"{found.speed} times as fast at {found.shape} on {gpu}")
        click.echo(terminal.fill(f"\n{told[-1]} ({how})"))
    return told


def print_paired(row: Measurement) -> list[str]:
    """Print how much faster B is, timed in turn with A; return it in short, for the conclusion."""
    if row.speedup is None:
        click.echo(f"\nnot timed: {row.detail}")
        return []
    same = "; identical code: machine noise" if row.identical else ""
    ratio = explanation.interval(row.speedup)
    told = f"{ratio} times as fast at {row.problem.label}, timed in turn{same}"
    click.echo(f"\n{told}")
    return [told]


def print_code(a: Code, b: Code, style: str | None) -> None:
    """Print which resources and opcodes of the machine code differ."""
    found = diff.compare(a, b)
    if found.identical:
        click.echo("\nidentical machine code")
        return
    changed = [[name, tables.number(x), tables.number(y)] for name, (x, y) in found.figures.items() if x != y]
    if changed:
        click.echo("\n" + tables.plain_table(changed, ["machine code", "A", "B"], style))
    else:
        click.echo("\nmachine code: as many registers, instructions and bytes in both")
    opcodes = [[name, str(x), str(y)] for name, (x, y) in list(found.loop.items())[:_OPCODES]]
    if opcodes:
        where = "in the hot loop" if a.hot_loop and b.hot_loop else "in all the code"
        click.echo("\n" + tables.plain_table(opcodes, [where, "A", "B"], style))


def print_figures(a: Figures, b: Figures, style: str | None) -> None:
    """Print what the emulator counted of both, one figure a line, and B's over A's."""
    click.echo(
        "\n" + tables.plain_table(explanation.counted(a, b), ["counted", "A", "B", "B / A", ""], style)
    )


def print_counters(
    a: Variant, b: Variant, contents: Sequence[Mapping[str, Any]], style: str | None
) -> list[str]:
    """Print ncu's counters and longest stalls of both, and what each is bound by, if a record has both
    profiles.

    Returns what B is bound by, in words.
    """
    rows = [row for c in contents if c["kind"] == "profile" for row in c["rows"]]
    first, second = (explanation.find(v, rows) for v in (a, b))
    if rows and not (first and second):
        missing = ", ".join(v.label for v, row in ((a, first), (b, second)) if row is None)
        click.echo(f"\nno counters of {missing} in the records")
    if first is None or second is None:
        return []
    click.echo("\n" + tables.plain_table(explanation.compared(first, second), ["ncu", "A", "B"], style))
    for side, row in (("A", first), ("B", second)):
        for d in row["diagnoses"]:
            click.echo(terminal.fill(f"{side} is {d['kind']}: {d['says']}"))
    return [f"{d['kind']} ({d['says']})" for d in second["diagnoses"]]


def print_conclusion(
    codes: tuple[Code, Code], figures: tuple[Figures, Figures], times: Sequence[str], bound: Sequence[str]
) -> None:
    """Print the sentence that ends an explanation, made of the numbers above it."""
    a, b = codes
    changed = diff.compare(a, b).figures
    said = explanation.conclusion(a.label, b.label, changed, figures, times, bound)
    click.echo(terminal.fill(f"\n{said}"))


def print_outcomes(variant: Variant, found: Sequence[Outcome], style: str | None) -> None:
    """Print the outcomes of B's predictions."""
    if not found:
        click.echo(f"\n{variant.kernel.name} predicts nothing that can be checked here")
        return
    click.echo("\n" + tables.plain_table([_outcome(o) for o in found], _HEADINGS, style))
    _print_unknown(found)


_HEADINGS = ["prediction of B's file", "is", "limit", ""]


def _outcome(o: Outcome) -> list[str]:
    """Return the table row of one outcome."""
    return [
        o.prediction.text,
        tables.number(o.value),
        tables.number(o.limit),
        claims.VERDICTS[o.holds],
    ]


def _print_unknown(found: Sequence[Outcome]) -> None:
    """Print why outcomes are not known."""
    for o in found:
        if o.reason:
            said = f"not known: {o.prediction.figure} of {o.kernel.split()[0]}: {o.reason}"
            click.echo(terminal.fill(said))


def print_claims(
    found: Sequence[tuple[Variant, Sequence[Outcome], Sequence[Outcome]]], runs: Runs, style: str | None
) -> None:
    """Print every kernel's predictions as counted or timed, and as ncu measured them if records have that.

    `found` has each kernel with its outcomes by counts and times, and those by ncu. Below the table stand the
    kernels whose claim is prose only, why outcomes are not known, and which records the times are from.
    """
    rows = []
    for v, listed, measured in found:
        for ours, theirs in zip(listed, measured, strict=True):
            text, *said = _outcome(ours)
            by = "times" if ours.prediction.figure == SECONDS else "counts"
            rows.append([f"{v.kernel.name}: {text}", by, *said])
            if theirs.value is not None and theirs.prediction.figure != SECONDS:
                rows.append(["", "ncu", *_outcome(theirs)[1:]])
    click.echo(tables.plain_table(rows, ["prediction", "by", "is", "limit", ""], style))
    bare = [v.kernel.name for v, listed, _ in found if not listed]
    if bare:
        click.echo(terminal.fill(f"claims in prose only: {', '.join(bare)}"))
    if runs:
        _print_unknown([o for _, listed, _ in found for o in listed])
    elif any(o.prediction.figure == SECONDS for _, listed, _ in found for o in listed):
        click.echo("times are in result files: --record with a --json of bench")
    for name in dict.fromkeys(o.record for _, listed, _ in found for o in listed if o.record):
        gpu = (runs[name]["meta"].get("gpu") or {}).get("name", "a GPU")
        click.echo(terminal.fill(f"times are ratios, from {name} ({gpu})"))
