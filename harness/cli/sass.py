from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness import arch as archs
from harness.cli import options
from harness.errors import MissingDependency

if TYPE_CHECKING:
    from harness.builds import Built
    from harness.contract import Code, Finding
    from harness.sass import Sass

# What to count, by the heading of its column, in this order: arithmetic, global, shared, barrier, local.
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


@click.command(name="sass")
@options.kernels
@options.params
@options.sweep
@options.arch
@click.option(
    "-e",
    "--expect",
    "extra",
    multiple=True,
    metavar="TEXT",
    help="Also check this: 'LDS.128 in loop', 'no LDL', 'FFMA share in loop >= 0.5', 'registers <= 64'.",
)
@click.option("-l", "--listing", is_flag=True, help="Print the instructions themselves, with source lines.")
@options.markdown
@options.json_file
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    arch: str | None,
    extra: tuple[str, ...],
    listing: bool,
    style: str | None,
    json_file: Path | None,
) -> None:
    """Count machine instructions, show the hot loop, and check what each kernel's file expects of its code.

    Counts are of instructions in the code, not of executions. LDS counts every width; LDS.128 matches
    LDS.U.128 too. The hot loop is the innermost loop with the most arithmetic. Exit code 1 where an
    expectation does not hold.
    """
    from harness import builds, contract, expect, record, report, tools

    wanted = [expect.parse(text) for text in extra]
    tools.require("nvdisasm")
    if json_file is not None:
        record.check_writable(json_file)
    _, variants = options.variants(kernels, params, sweep=sweep)
    targets = options.archs(arch) or [archs.DEFAULT]
    with options.progress(len(variants) * len(targets)) as step:
        built, skipped = builds.build_all(variants, targets, options.open_cache(), step)
    found = []
    for b in built:
        code = contract.Code(cubin=b.cubin, sass=_code(b))
        expected = [*b.variant.kernel.expectations(b.cubin.arch), *wanted]
        found.append((code, contract.check(expected, code)))
    if json_file is not None:
        rows = [
            {**report.static_record(b), **report.contract_record(code, findings)}
            for b, (code, findings) in zip(built, found, strict=True)
        ]
        record.write_json(json_file, record.document("sass", rows, record.provenance()))
    if listing:
        click.echo("\n\n".join(_listing(b) for b in built))
    else:
        _print(built, len(targets) > 1, style)
    for code, findings in found:
        _verdicts(code, findings)
    options.explain([], skipped, err=True)
    options.finish([], skipped)
    if not all(f.holds for _, findings in found for f in findings):
        raise SystemExit(1)


def _print(built: list[Built], several: bool, style: str | None) -> None:
    """A table of counts."""
    from harness import tables

    rows = [
        [
            b.variant.kernel.name,
            b.variant.params_label or "-",
            *([b.cubin.arch] if several else []),
            *(str(sum(map(_code(b).count, patterns))) for _, patterns in _COUNTED),
        ]
        for b in built
    ]
    headings = ["kernel", "params", *(["arch"] if several else []), *(heading for heading, _ in _COUNTED)]
    click.echo(tables.plain_table(rows, headings, style))


def _verdicts(code: Code, findings: list[Finding]) -> None:
    """What was found in one kernel: its shared loads, its hot loop, and every expectation with evidence."""
    cubin = code.cubin
    click.echo(f"\n{cubin.variant.label}, {cubin.arch}: {_shared_loads(code)}")
    loop = code.hot_loop
    if loop is not None:
        lines = [i.line for i in loop.instructions if i.line]
        where = f", lines {min(lines)} to {max(lines)}" if lines else ""
        click.echo(
            f"  hot loop at {loop.header:#x}: {len(loop.instructions)} instructions{where}, "
            f"{loop.count('FFMA') / len(loop.instructions):.0%} FFMA"
        )
    for f in findings:
        click.echo(f"  {'holds ' if f.holds else 'FAILED'}  {f.expectation}: {_evidence(f)}")
        if f.note and f.actual is not None:
            click.echo(f"          warning: {f.note}")


def _evidence(finding: Finding) -> str:
    """``4, first LDS.U.128 at 0x310, line 41``."""
    text = finding.amount
    if finding.evidence and finding.expectation.kind != "share":
        first = finding.evidence[0]
        line = f", line {first.line}" if first.line else ""
        text += f", first {first.opcode} at {first.address:#x}{line}"
    return text


def _code(built: Built) -> Sass:
    if built.sass is None:  # it was there when the command began
        raise MissingDependency("nvdisasm is gone")
    return built.sass


def _shared_loads(code: Code) -> str:
    """``vectorised shared loads: 4 LDS.U.128 beside 16 LDS.U``."""
    loads = [(opcode, n) for opcode, n in code.sass.mix.items() if opcode.split(".")[0] == "LDS"]
    if not loads:
        return "no shared loads"
    wide = " and ".join(f"{n} {opcode}" for opcode, n in loads if "128" in opcode.split("."))
    other = " and ".join(f"{n} {opcode}" for opcode, n in loads if "128" not in opcode.split("."))
    if not wide:
        return f"no vectorised shared loads: {other}"
    return f"vectorised shared loads: {wide}" + (f" beside {other}" if other else ", no narrower ones")


def _listing(built: Built) -> str:
    """The instructions, each run of one source line under that line."""
    kernel = built.variant.kernel
    lines = [f"{built.variant.label} for {built.cubin.arch}, {built.cubin.compiler}"]
    at = None
    for i in _code(built).instructions:
        if i.line != at:
            at = i.line
            lines.append(f"{kernel.path.name}:{at}: {kernel.line(at) or '(not in the source)'}")
        lines.append(f"  /*{i.address:04x}*/ {i.predicate:>5} {i.opcode} {i.operands}".rstrip())
    return "\n".join(lines)
