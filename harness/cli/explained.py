"""What ``harness explain`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from harness import counters, diff, explanation, tables
from harness.predict import FIGURES

if TYPE_CHECKING:
    from harness.code import Code
    from harness.explanation import Outcome
    from harness.measure import Measurement
    from harness.predict import Figures
    from harness.spec import Variant

_OPCODES = 10  # of those whose number changed, the largest changes


def print_head(a: Variant, b: Variant) -> None:
    for side, variant in (("A", a), ("B", b)):
        click.echo(f"{side}  {variant.label}: {variant.kernel.title}")
    if b.kernel.claim:
        click.echo(f"   {b.kernel.claim}")


def print_times(a: Variant, b: Variant, files: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    for name, content in files:
        if content["kind"] != "bench":
            continue
        found = explanation.recorded(a, b, content, name)
        if found is None:
            click.echo(f"\n{name} has no size with times of both")
            continue
        first, second = map(tables.seconds, found.seconds)
        gpu = (content["meta"].get("gpu") or {}).get("name", "a GPU")
        speed = (
            _interval(found.ratio.inverse) if found.ratio else f"{found.seconds[0] / found.seconds[1]:.2f}"
        )
        how = f"{first}, {second}; {name}, not timed in turn"
        click.echo(f"\n{speed} times as fast at {found.shape} on {gpu} ({how})")


def print_paired(row: Measurement) -> None:
    if row.speedup is None:
        click.echo(f"\nnot timed: {row.detail}")
        return
    same = "; identical code: machine noise" if row.identical else ""
    click.echo(f"\n{_interval(row.speedup)} times as fast at {row.problem.label}, timed in turn{same}")


def _interval(ratio: Any) -> str:
    return f"{ratio.estimate:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def print_code(a: Code, b: Code, style: str | None) -> None:
    found = diff.compare(a, b)
    if found.identical:
        click.echo("\nidentical machine code")
        return
    changed = [[name, _text(x), _text(y)] for name, (x, y) in found.figures.items() if x != y]
    click.echo("\n" + tables.plain_table(changed, ["machine code", "A", "B"], style))
    opcodes = [[name, str(x), str(y)] for name, (x, y) in list(found.loop.items())[:_OPCODES]]
    if opcodes:
        where = "in the hot loop" if a.hot_loop and b.hot_loop else "in all the code"
        click.echo("\n" + tables.plain_table(opcodes, [where, "A", "B"], style))


def print_figures(a: Figures, b: Figures, style: str | None) -> None:
    """What the emulator counted, a line each, and B's share of A's."""
    names = [n for n in FIGURES if (n in a or n in b) and n not in ("registers", "shared", "occupancy")]
    rows = [
        [
            n,
            _text(a.get(n)),
            _text(b.get(n)),
            f"{b[n] / a[n]:.3g}" if a.get(n) and n in b else "-",
            FIGURES[n],
        ]
        for n in names
    ]
    click.echo("\n" + tables.plain_table(rows, ["counted", "A", "B", "B / A", ""], style))


_COUNTERS = (
    counters.TIME,
    counters.L1,
    counters.L2,
    counters.DRAM,
    counters.ISSUED,
    counters.L1_HIT,
    counters.SHARED_STAGE,
    counters.ELIGIBLE,
    counters.ACHIEVED,
)


def print_counters(a: Variant, b: Variant, contents: Sequence[Mapping[str, Any]], style: str | None) -> None:
    """ncu's counters of both, where a record has them, their longest stalls, and what each is bound by."""
    rows = [explanation.profiled(v, contents) for v in (a, b)]
    if any(c["kind"] == "profile" for c in contents) and not all(rows):
        missing = ", ".join(v.label for v, row in zip((a, b), rows, strict=True) if row is None)
        click.echo(f"\nno counters of {missing} in the records")
    if rows[0] is None or rows[1] is None:
        return
    values = [row["counters"] for row in rows if row]
    shares = [counters.stalls(v) for v in values]
    worst = {r: max(s[r][1] for s in shares if r in s) for r in shares[0] | shares[1]}
    shown = [r for r in sorted(worst, key=lambda r: -worst[r]) if worst[r] >= 0.05]
    cells = [[m, *(_text(v.get(m)) for v in values)] for m in _COUNTERS]
    cells += [
        [counters.stall(r), *(f"{s[r][0]:.2f} ({s[r][1]:.0%})" if r in s else "-" for s in shares)]
        for r in shown
    ]
    click.echo("\n" + tables.plain_table(cells, ["ncu", "A", "B"], style))
    for side, row in zip("AB", rows, strict=True):
        for d in row["diagnoses"] if row else ():
            click.echo(f"{side} is {d['kind']}: {d['says']}")


def print_outcomes(variant: Variant, found: Sequence[Outcome], style: str | None) -> None:
    if not found:
        click.echo(f"\n{variant.kernel.name} predicts nothing that can be checked here")
        return
    click.echo("\n" + tables.plain_table([_outcome(o) for o in found], _HEADINGS, style))


_HEADINGS = ["prediction of B's file", "is", "limit", ""]


def _outcome(o: Outcome) -> list[str]:
    verdict = {True: "held", False: "NOT HELD", None: "not known"}[o.holds]
    return [o.prediction.text, _text(o.value), _text(o.limit), verdict]


def print_claims(found: Sequence[tuple[Variant, Sequence[Outcome]]], style: str | None) -> None:
    """Every kernel's claim; below it what of it can be checked."""
    rows = [[v.kernel.name, *_outcome(o)] for v, listed in found for o in listed]
    click.echo(tables.plain_table(rows, ["kernel", "prediction", "is", "limit", ""], style))
    bare = [v.kernel.name for v, listed in found if not listed]
    if bare:
        click.echo(f"claims in prose only: {', '.join(bare)}")


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.3g}"
