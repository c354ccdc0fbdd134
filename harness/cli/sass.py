from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness import arch as archs
from harness.cli import options
from harness.errors import MissingDependency

if TYPE_CHECKING:
    from harness.builds import Built
    from harness.sass import Sass

# What to count, in the order of the columns, and the heading: arithmetic, global, shared, barrier, local.
_COUNTED = {
    "FFMA": "FFMA",
    "LDG": "LDG",
    "LDG.128": ".128",
    "LDS": "LDS",
    "LDS.128": ".128",
    "STS": "STS",
    "BAR": "BAR",
    "LDL": "LDL",
    "STL": "STL",
}


@click.command(name="sass")
@options.kernels
@options.params
@options.sweep
@options.arch
@click.option("-l", "--listing", is_flag=True, help="Print the instructions themselves, with source lines.")
@options.markdown
@options.json_file
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    arch: str | None,
    listing: bool,
    style: str | None,
    json_file: Path | None,
) -> None:
    """Count machine instructions and say whether shared memory is read 128 bits at a time.

    Counts are of instructions in the code, not of executions. LDS counts every width; LDS.128 matches
    LDS.U.128 too.
    """
    from harness import builds, record, report, tools

    tools.require("nvdisasm")
    _, variants = options.variants(kernels, params, sweep=sweep)
    targets = options.archs(arch) or [archs.DEFAULT]
    with options.progress(len(variants) * len(targets)) as step:
        built, skipped = builds.build_all(variants, targets, options.open_cache(), step)
    if json_file is not None:
        rows = [report.static_record(b) for b in built]
        record.write_json(json_file, record.document("sass", rows, record.provenance()))
    if listing:
        click.echo("\n\n".join(_listing(b) for b in built))
    else:
        _print(built, len(targets) > 1, style)
    options.explain([], skipped, err=True)
    options.finish([], skipped)


def _print(built: list[Built], several: bool, style: str | None) -> None:
    """A table of counts, and below it a sentence a kernel."""
    from harness import report

    rows = [
        [
            b.variant.kernel.name,
            b.variant.params_label or "-",
            *([b.cubin.arch] if several else []),
            *(str(_code(b).count(pattern)) for pattern in _COUNTED),
        ]
        for b in built
    ]
    headings = ["kernel", "params", *(["arch"] if several else []), *_COUNTED.values()]
    click.echo(report.plain_table(rows, headings, style))
    click.echo()
    for b in built:
        click.echo(f"{b.variant.label}, {b.cubin.arch}: {_finding(b)}")


def _code(built: Built) -> Sass:
    if built.sass is None:  # it was there when the command began
        raise MissingDependency("nvdisasm is gone")
    return built.sass


def _finding(built: Built) -> str:
    """``vectorised shared loads: 4 LDS.U.128 beside 16 LDS.U``."""
    loads = [(opcode, n) for opcode, n in _code(built).mix.items() if opcode.split(".")[0] == "LDS"]
    if not loads:
        return "no shared loads"
    wide = " and ".join(f"{n} {opcode}" for opcode, n in loads if "128" in opcode.split("."))
    other = " and ".join(f"{n} {opcode}" for opcode, n in loads if "128" not in opcode.split("."))
    if not wide:
        return f"no vectorised shared loads: {other}"
    return f"vectorised shared loads: {wide}" + (f" beside {other}" if other else ", no narrower ones")


def _listing(built: Built) -> str:
    """The instructions, each run of one source line under that line."""
    source = built.variant.kernel.source.splitlines()
    lines = [f"{built.variant.label} for {built.cubin.arch}, {built.cubin.compiler}"]
    at = None
    for i in _code(built).instructions:
        if i.line != at:
            at = i.line
            text = source[at - 1].strip() if 0 < at <= len(source) else "(not in the source)"
            lines.append(f"{built.variant.kernel.path.name}:{at}: {text}")
        lines.append(f"  /*{i.address:04x}*/ {i.predicate:>5} {i.opcode} {i.operands}".rstrip())
    return "\n".join(lines)
