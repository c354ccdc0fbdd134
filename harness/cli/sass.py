from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness import arch as archs
from harness.cli import options
from harness.errors import MissingDependency, UsageError

if TYPE_CHECKING:
    from harness.builds import Built, Skipped
    from harness.code import Code


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
@click.option("-s", "--source", is_flag=True, help="Print the source with its instructions beside it.")
@click.option(
    "-l", "--listing", is_flag=True, help="Print the instructions in order, under their source lines."
)
@click.option(
    "-c", "--control", "controls", is_flag=True, help="With these: stall counts, barriers, reuse flags."
)
@click.option(
    "--diff", metavar="WHAT", help="What changes with another 'KERNEL NAME=VALUE sm_NN', or part of that."
)
@click.option(
    "-f", "--function", default="", metavar="NAME", help="Of a cubin, library or executable: only this."
)
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Of a block, for the occupancy of code not built here."
)
@options.markdown
@options.json_file
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    arch: str | None,
    extra: tuple[str, ...],
    source: bool,
    listing: bool,
    controls: bool,
    diff: str | None,
    function: str,
    threads: int | None,
    style: str | None,
    json_file: Path | None,
) -> None:
    """Count machine instructions loop by loop, and check what each kernel's file expects of its code.

    KERNEL may also be a cubin, PTX, or an executable or library with code for GPUs in it. Counts are of
    instructions in the code, not of executions. The hot loop, marked *, is the innermost loop with the most
    arithmetic. Exit code 1 where an expectation does not hold.
    """
    from harness import binary, contract, expect, record, report, tools
    from harness.cli import machine_code

    wanted = [expect.parse(text) for text in extra]
    if controls and not (source or listing):
        raise UsageError("--control adds to --listing or --source: give one of them")
    tools.require("nvdisasm")
    if json_file is not None:
        record.check_writable(json_file)
    targets = options.archs(arch)
    if (function or threads is not None) and diff is None and not any(map(binary.is_binary, kernels)):
        raise UsageError("--function and --threads are for machine code that harness did not build")
    codes, built, skipped = _read(kernels, params, sweep, targets, function, threads)
    if diff is not None:
        _diff(codes, _other(codes, built, diff, targets, function, threads), style, json_file)
        return
    found = []
    for code in codes:
        own = built[code.label, code.arch].variant.kernel.expectations(code.arch) if built else ()
        found.append((code, contract.check([*own, *wanted], code)))
    if json_file is not None:
        rows = [
            {
                **(report.static_record(built[code.label, code.arch]) if built else {}),
                **report.code_record(code, findings),
            }
            for code, findings in found
        ]
        record.write_json(json_file, record.document("sass", rows, record.provenance()))
    if source or listing:
        for code in codes:
            machine_code.print_listing(code, beside=source, controls=controls)
    elif len(codes) > 1:
        machine_code.print_summary(codes, style)
    for code, findings in found:
        machine_code.print_code(code, findings, style, brief=source or listing)
    options.explain([], skipped, err=True)
    options.finish([], skipped)
    if not all(f.holds for _, findings in found for f in findings):
        raise SystemExit(1)


_Built = dict[tuple[str, str], "Built"]  # by label and architecture; empty for code not built here


def _read(
    names: Sequence[str],
    params: Sequence[str],
    sweep: bool,
    targets: list[str],
    function: str,
    threads: int | None,
) -> tuple[list[Code], _Built, list[Skipped]]:
    """Kernels of ours, or files of machine code: not both at once, since hardly an option means both."""
    from harness import binary, builds
    from harness.code import Code

    cache = options.open_cache()
    files = [name for name in names if binary.is_binary(name)]
    if files:
        if len(files) < len(names) or params or sweep:
            raise UsageError(
                f"{files[0]} is machine code, which has no parameters and goes without other kernels",
                hint="compare two of them with --diff",
            )
        codes = []
        for name in files:
            codes += binary.read(Path(name), cache, archs=tuple(targets), function=function, threads=threads)
        return codes, {}, []
    _, variants = options.variants(names, params, sweep=sweep)
    targets = targets or [archs.DEFAULT]
    with options.progress(len(variants) * len(targets)) as step:
        built, skipped = builds.build_all(variants, targets, cache, step)
    by_name = {(b.variant.label, b.cubin.arch): b for b in built}
    codes = []
    for b in built:
        if b.sass is None:  # it was there when the command began
            raise MissingDependency("nvdisasm is gone")
        codes.append(Code.of(b.cubin, b.sass))
    return codes, by_name, skipped


def _diff(codes: list[Code], others: list[Code], style: str | None, json_file: Path | None) -> None:
    from harness import record, report
    from harness.cli import machine_code

    (a,), (b,) = codes, others
    if json_file is not None:
        record.write_json(json_file, record.document("diff", [report.diff_record(a, b)], record.provenance()))
    machine_code.print_difference(a, b, style)


def _other(
    codes: list[Code], built: _Built, text: str, targets: list[str], function: str, threads: int | None
) -> list[Code]:
    """What ``--diff`` names: a kernel or file, NAME=VALUE, an architecture; what is left out is as in the
    one code that it is compared with.
    """
    from harness import binary

    if len(codes) != 1:
        raise UsageError(f"--diff compares one kernel with another; {len(codes)} are selected")
    code = codes[0]
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise UsageError(f"--diff {text!r}: {e}") from None
    names = [w for w in words if "=" not in w and not re.fullmatch(r"sm_\w+", w)]
    params = [w for w in words if "=" in w]
    chosen = [w for w in words if w not in names and w not in params]
    if len(names) > 1 or len(chosen) > 1 or not words:
        raise UsageError(
            f"--diff {text!r} does not say one thing to compare with",
            hint="such as --diff coalesced, --diff 'TILE=32', --diff sm_80, --diff old/03_tiled.cubin",
        )
    if not names and not built:
        raise UsageError("--diff needs a file or kernel to compare this code with")
    if not names:
        variant = built[code.label, code.arch].variant
        names = [str(variant.kernel.path)]
        told = {p.partition("=")[0] for p in params}
        params += [f"{name}={value}" for name, value in variant.params.items() if name not in told]
    if not binary.is_binary(names[0]):
        chosen = chosen or targets or [code.arch]
    other, _, skipped = _read(names, params, False, chosen, function, threads)
    if len(other) != 1 or skipped:
        raise UsageError(f"--diff {text!r} selects {len(other)} kernels, not one", hint="name one with -f")
    return other
