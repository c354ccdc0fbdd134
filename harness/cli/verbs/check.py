"""``harness check``: run kernels in the emulator, or on a GPU under compute-sanitizer, and print findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import options, publishing, running
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.bench.row import Measurement


@click.command(name="check")
@options.kernels
@options.params
@options.sweep
@options.axis
@options.dtype
@options.arch
@options.seed
@click.option(
    "--schedule",
    type=click.Choice(["lockstep", "warp-serial", "early", "late"]),
    default="lockstep",
    show_default=True,
    help="Of warps: all at once, or each to its next barrier before the next one starts; of asynchronous "
    "operations: at once, or as late as can be.",
)
@click.option(
    "-d",
    "--device",
    default=options.EMULATOR,
    show_default=True,
    metavar="gpu|N|UUID",
    help="A GPU: compute-sanitizer runs them there.",
)
@click.option(
    "--tool",
    "tools",
    metavar="TOOL[,TOOL]...",
    help="Of compute-sanitizer: memcheck, racecheck, initcheck, synccheck; racecheck by default.",
)
@click.option("--lines", is_flag=True, help="Count executions, FLOP and memory requests by source line.")
@options.strict
@options.sms
@options.allow_refused
@options.markdown
@options.json_file
@publishing.options
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    axis: tuple[str, ...],
    dtypes: tuple[str, ...],
    arch: str | None,
    seed: int,
    schedule: str,
    device: str,
    tools: str | None,
    lines: bool,
    strict: bool,
    sms: int | None,
    allow_refused: bool,
    style: str | None,
    json_file: Path | None,
    wanted: publishing.Wanted,
) -> None:
    """Run kernels in the emulator: numbers, races, memory faults and memory behaviour. No GPU, no times. With
    --device gpu they run under NVIDIA's compute-sanitizer, whose findings come with their source lines.

    Found are shared-memory hazards, races between blocks, barriers in divergent code, missing cp.async waits,
    accesses out of bounds or misaligned, reads of what nothing wrote. Stores of the same value by several
    threads are notices, which fail with --strict. Exit code 1 on a finding or a wrong
    number, except in a kernel that its file marks as broken; 3 if the emulator refused a kernel, which was
    then not checked.
    """
    from dataclasses import replace

    from harness.bench import emulation
    from harness.cli import sanitized
    from harness.cli.views import emulated
    from harness.launch import builds
    from harness.results import encode, record

    if json_file is not None:
        record.check_writable(json_file)
    wanted.check()
    selected, variants = options.variants(kernels, params, sweep=sweep, dtypes=dtypes)
    points = options.points(selected, axis, "verify_axes")
    if device != options.EMULATOR:
        if arch or lines or strict or sms or schedule != "lockstep":
            raise UsageError("--arch, --schedule, --lines, --strict and --sms are the emulator's")
        if wanted:
            raise UsageError("--html, --sarif, --junit and --github are the emulator's")
        sanitized.run(variants, points, sanitized.named(tools), device, seed, style, json_file)
        return
    if tools is not None:
        raise UsageError("--tool is compute-sanitizer's: add --device gpu")
    target = options.one_arch(arch, None)
    cache = options.open_cache()
    how = emulation.Options(
        seed=seed, schedule=schedule, cache=cache, strict=strict, sms=sms or emulation.SMS
    )
    with running.progress(running.steps(variants, points)) as step:
        built, skipped = builds.build_all(variants, [target], cache, step)
        rows, fault = running.collect(emulation.rows(built, points, how, step))
        compiled: list[Measurement] = []
        if lines or wanted.html_file is not None:
            again = replace(how, check=False, as_compiled=True)
            counted = points if lines else {cls: listed[:1] for cls, listed in points.items()}
            compiled, fault = running.collect(emulation.rows(built, counted, again, step))
    records = [encode.emulated_record(row) for row in rows]
    meta = record.provenance(seed=seed) if json_file is not None else {}
    meta["ended"] = str(fault) if fault else "complete"
    unwritten = running.keep(json_file, "check", records, meta)
    unwritten = wanted.write(rows, compiled, skipped) or unwritten
    emulated.print_rows(rows, style)
    running.name_shapes(points)
    click.echo(emulated.NOTE)
    emulated.print_findings(rows)
    emulated.print_output(rows)
    if lines:
        for row, other in zip(rows, compiled, strict=False):
            emulated.print_lines(row, other, style)
    running.explain([], skipped)
    running.warn(built)
    running.finish(records, skipped, fault or unwritten, allow_refused=allow_refused)
