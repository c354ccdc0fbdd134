"""Print what ``harness sass`` found."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import click

from harness.cli import streams
from harness.results import tables
from harness.sass import listing
from harness.sass.code import Code
from harness.sass.contract import Finding
from harness.sass.diff import compare
from harness.sass.instructions import Instruction
from harness.sass.loops import MATRIX, Loop, is_arithmetic
from harness.sass.occupancy import limits_of
from harness.support import terminal

# Columns of the summary, a heading and the opcodes that it counts: arithmetic, global, shared, barrier,
# local memory.
_COUNTED = (
    ("FFMA", ("FFMA",)),
    ("LDG", ("LDG",)),
    (".128", ("LDG.128",)),
    ("LDS", ("LDS",)),
    (".128", ("LDS.128",)),
    ("STS", ("STS",)),
    ("BAR", ("BAR",)),
    ("local", ("LDL", "STL")),
)
_NAME = 36  # how many characters of a function's name a table shows
_COLOURS = {
    "source": {"fg": "bright_black"},
    "control": {"fg": "bright_black"},
    "arithmetic": {"fg": "green"},
    "shared": {"fg": "cyan"},
    "global": {"fg": "yellow"},
    "local": {"fg": "red", "bold": True},
    "barrier": {"fg": "magenta"},
    "branch": {"fg": "blue"},
}


def print_summary(codes: Sequence[Code], style: str | None) -> None:
    """Print a line of counts for each code; grouped by kernel if one has several parameter sets or
    functions.
    """
    groups = [(name, list(group)) for name, group in groupby(codes, key=lambda c: c.origin)]
    if all(len({c.variant for c in group}) == 1 for _, group in groups) and not codes[0].foreign:
        _counts(codes, "kernel", [c.origin for c in codes], style)
        return
    for n, (name, group) in enumerate(groups):
        click.echo(f"{chr(10) if n else ''}{name}")
        _counts(group, "", [_short(c.variant) or "-" for c in group], style)


def _short(name: str) -> str:
    """Shorten a function's name in the middle: the ends of C++ names, whole signatures, tell them apart."""
    half = _NAME // 2
    return name if len(name) <= _NAME else f"{name[: half - 1]}~{name[-half:]}"


def _counts(codes: Sequence[Code], heading: str, names: Sequence[str], style: str | None) -> None:
    """Print the counts of each code under the given names."""
    several = len({c.arch for c in codes}) > 1
    found = {i.opcode.split(".")[0] for c in codes for i in c.sass.instructions}
    counted = (*((name, (name,)) for name in sorted(found & MATRIX)), *_COUNTED)
    rows = [
        [
            name,
            *([c.arch] if several else []),
            *(str(sum(map(c.sass.count, patterns))) for _, patterns in counted),
        ]
        for name, c in zip(names, codes, strict=True)
    ]
    headings = [heading, *(["arch"] if several else []), *(heading for heading, _ in counted)]
    click.echo(tables.plain_table(rows, headings, style))


def print_code(code: Code, findings: Sequence[Finding], style: str | None, *, brief: bool) -> None:
    """Print what one kernel takes, its loops, and every expectation with its evidence.

    With `brief` resources and loops are left out.
    """
    name = ", ".join(filter(None, (code.name, code.compiler)))
    click.echo(terminal.fill(f"\n{name}\n  {_shared_loads(code)}"))
    if not brief:
        click.echo(_resources(code))
        click.echo(tables.plain_table([_all(code), *(_loop(code, x) for x in code.loops)], _HEADINGS, style))
        if code.banks is not None:
            p = code.banks
            click.echo(
                f"  register banks of its FFMA: {p.even} even reads, {p.odd} odd, {p.reused} reused\n"
                f"  (a model measured on sm_90: {p.ffma_per_cycle:.2f} FFMA a cycle and scheduler at most)"
            )
    for f in findings:
        verdict = f"  {'holds ' if f.holds else 'FAILED'}  {f.expectation}: {_evidence(f)}"
        click.echo(terminal.fill(verdict, " " * 12))
        if f.note and f.actual is not None:
            click.echo(f"          warning: {f.note}")


def _resources(code: Code) -> str:
    """Return two lines: what a thread and a block take, and how many blocks fit on an SM."""
    if code.registers is None:
        first = "  a device function: registers and shared memory are its callers'"
    else:
        peak = code.sass.peak
        where = "" if peak is None else f" (peak {peak.live} at {peak.address:#x}{_line(peak)})"
        kind = "static shared" if code.foreign and code.threads is None else "shared"
        first = f"  {code.registers} registers{where}, {code.shared} B {kind}"
        if code.spills is not None:
            first += f", {code.spills or 'no'} spill{'' if code.spills == 1 else 's'}"
    found = code.occupancy
    if found is None:
        return first
    verified = "" if limits_of(code.arch).verified else " (unverified limits)"
    blocks = f"{found.blocks} block{'s' * (found.blocks != 1)}"
    per_sm = f"{blocks}, {found.warps} warps an SM"
    return f"{first}\n  occupancy {found.fraction:.0%}: {per_sm}, limited by {found.limiter}{verified}"


def print_occupancy(codes: Sequence[Code], style: str | None) -> None:
    """Print a line for each code: what a thread and a block take, and how much of an SM they fill."""
    rows = []
    for code in codes:
        found = code.occupancy
        filled = ["-"] * 3 if found is None else [f"{found.fraction:.0%}", str(found.warps), found.limiter]
        rows.append([code.label, *map(str, (code.registers, code.shared, code.spills)), *filled])
    headings = ["kernel", "registers", "shared B", "spills", "occupancy", "warps an SM", "limited by"]
    click.echo(tables.plain_table(rows, headings, style))


_HEADINGS = ["", "lines", "instr", "FFMA", "LDG32/64/128", "LDS32/64/128", "STS", "BAR", "local", "bytes"]


def _all(code: Code) -> list[str]:
    """Return the table row of the whole code."""
    return _row("all", code.sass.instructions)


def _loop(code: Code, loop: Loop) -> list[str]:
    """Return the table row of a loop, indented by its depth and marked if it is the hot loop."""
    hot = code.hot_loop is not None and loop.header == code.hot_loop.header
    return _row(f"{'  ' * (loop.depth - 1)}{loop.header:#x}{' *' if hot else ''}", loop.instructions)


def _row(name: str, instructions: Sequence[Instruction]) -> list[str]:
    """Return the counts of some instructions as a table row."""

    def count(*patterns: str) -> int:
        return sum(any(i.matches(p) for p in patterns) for i in instructions)

    def widths(*patterns: str) -> str:
        """Return how many access up to 32 bits, 64, and 128 or more, ``0/4/16``; ``-`` for none."""
        by_width = Counter(
            min(128, max(32, i.width)) for i in instructions if any(i.matches(p) for p in patterns)
        )
        return "/".join(str(by_width[w]) for w in (32, 64, 128)) if by_width else "-"

    lines = [i.line for i in instructions if i.line]
    done = Counter(i.opcode.split(".")[0] for i in instructions if is_arithmetic(i))
    matrix = Counter({name: n for name, n in done.items() if name in MATRIX})
    name_of, number = ("FFMA", done["FFMA"]) if done["FFMA"] or not done else done.most_common(1)[0]
    if matrix:
        ((name_of, number),) = matrix.most_common(1)
    share = number / len(instructions) if instructions else 0
    return [
        name,
        f"{min(lines)}-{max(lines)}" if lines else "-",
        str(len(instructions)),
        f"{share:.0%}" if name_of == "FFMA" else f"{name_of} {share:.0%}",
        widths("LDG", "LDGSTS"),
        widths("LDS"),
        str(count("STS")),
        str(count("BAR")),
        str(count("LDL", "STL")),
        str(16 * len(instructions)),
    ]


def print_listing(code: Code, *, beside: bool, controls: bool) -> None:
    """Print the instructions, with the source beside them if `beside` is set and the source is at hand.

    Colours are left out under NO_COLOR, and by click if the output is no terminal.
    """
    click.echo(f"{code.name}, {code.compiler}; * the hot loop")
    if controls:
        click.echo(listing.LEGEND)
    if beside and not code.source:
        beside = False  # there is no source to print beside the instructions
        click.echo("the source is not at hand: by address")
    width = shutil.get_terminal_size((120, 24)).columns
    rows = (
        listing.by_source(code, width=width, controls=controls, paint=_paint)
        if beside
        else listing.by_address(code, controls=controls, paint=_paint)
    )
    for row in rows:  # what is in them of the file is visible already: the other controls are colours
        click.echo(row, file=streams.unfiltered(sys.stdout))


def _paint(text: str, kind: str) -> str:
    """Colour a text by its kind, unless NO_COLOR is set."""
    text = streams.visible(text)
    style = None if os.environ.get("NO_COLOR") else _COLOURS.get(kind)
    return click.style(text, **style) if style else text  # type: ignore[arg-type]


def print_difference(a: Code, b: Code, style: str | None) -> None:
    """Print how two codes differ: figures, then the number of each opcode that changed."""
    found = compare(a, b)
    click.echo(f"a  {a.name}, {a.compiler}\nb  {b.name}, {b.compiler}")
    if found.identical:
        noise = ": a difference in speed would be noise" if found.noise else ""
        click.echo(f"identical code (sha256 {a.sass.sha256[:16]}){noise}")
        if found.noise:
            return
    rows = [[name, _text(x), _text(y), _change(x, y)] for name, (x, y) in found.figures.items()]
    click.echo("\n" + tables.plain_table(rows, ["", "a", "b", "change"], style))
    looped = a.hot_loop is not None and b.hot_loop is not None
    names = [*found.loop, *(name for name in found.kernel if name not in found.loop)]
    rows = [
        [
            name,
            *(map(str, found.loop.get(name, ("", ""))) if looped else ()),
            *map(str, found.kernel.get(name, ("", ""))),
        ]
        for name in names
    ]
    if not rows:
        if not found.identical:
            click.echo("\nthe same opcodes, as often: operands, order or scheduling differ")
        return
    headings = ["opcode", *(["hot loop: a", "b"] if looped else []), "all code: a", "b"]
    click.echo("\n" + tables.plain_table(rows, headings, style))


def _text(value: float | None) -> str:
    """Return a number as text, ``-`` for None."""
    return "-" if value is None else f"{value:g}"


def _change(a: float | None, b: float | None) -> str:
    """Return the signed change as text; empty if there is none."""
    return "" if a is None or b is None or a == b else f"{b - a:+g}"


def _evidence(finding: Finding) -> str:
    """Return what was found for an expectation, ``4, first LDS.U.128 at 0x310, line 41``."""
    text = finding.amount
    if finding.evidence and finding.expectation.kind != "share":
        first = finding.evidence[0]
        text += f", first {first.opcode} at {first.address:#x}{_line(first)}"
    return text


def _line(i: Instruction) -> str:
    """Return the source line of an instruction as ``, line 41``; empty if it has none."""
    return f", line {i.line}" if i.line else ""


def _shared_loads(code: Code) -> str:
    """Return which shared loads are vectorised, ``vectorised shared loads: 4 LDS.U.128 beside 16 LDS.U``."""
    loads = [(opcode, n) for opcode, n in code.sass.mix.items() if opcode.split(".")[0] == "LDS"]
    if not loads:
        return "no shared loads"
    wide = " and ".join(f"{n} {opcode}" for opcode, n in loads if "128" in opcode.split("."))
    other = " and ".join(f"{n} {opcode}" for opcode, n in loads if "128" not in opcode.split("."))
    if not wide:
        return f"no vectorised shared loads: {other}"
    return f"vectorised shared loads: {wide}" + (f" beside {other}" if other else ", no narrower ones")
