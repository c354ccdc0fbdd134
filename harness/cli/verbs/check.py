"""``harness check``: run kernels in the emulator, or on a GPU under compute-sanitizer, and print findings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import options, publishing, running
from harness.cli.patience import BUILT, COUNTED, ENDED, Patience
from harness.errors import INCONCLUSIVE_EXIT, UsageError
from harness.kernels.expr import Expr
from harness.kernels.spec import Kernel, Variant
from harness.support import terminal

if TYPE_CHECKING:
    from harness.bench.emulation import Options
    from harness.bench.row import Measurement
    from harness.launch.builds import Built, Progress, Skipped
    from harness.problems.protocol import Axes, Problem


@click.command(name="check")
@options.kernels
@options.params
@options.sweep
@options.axis
@options.dtype
@options.entry
@options.include
@click.option("--block", metavar="X[,Y[,Z]]", help="Threads of a block, of a kernel without front matter.")
@click.option("--grid", metavar="X[,Y[,Z]]", help="Blocks of the grid, likewise.")
@click.option(
    "--shared", type=click.IntRange(0), metavar="BYTES", help="Dynamic shared memory of a block, likewise."
)
@options.arch
@options.seed
@click.option(
    "--schedule",
    type=click.Choice(["lockstep", "warp-serial", "backward", "random", "delayed", "held", "early", "late"]),
    default="lockstep",
    show_default=True,
    help="Of warps: all at once, each to its next barrier before the next one starts, the last blocks and "
    "branches first, or any order, drawn from --seed; of strong stores: as late as can be, or those of the "
    "first blocks' last warp when nobody else can go on (held); of asynchronous operations: at once, or as "
    "late as can be.",
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
@click.option(
    "--max-ways",
    type=options.Finite(min=1),
    metavar="N",
    help="Fail if a line's shared requests take over N times the least wavefronts; from 2 on, it is said.",
)
@options.strict
@options.sms
@options.budget
@click.option(
    "--seconds",
    type=options.Finite(min=1, max=10**6),
    default=40,
    show_default=True,
    metavar="N",
    help="Begin no kernel without front matter later than that, and give up one that goes on for a quarter "
    "longer; those not run to their end are named.",
)
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
    entry: str | None,
    include: tuple[str, ...],
    block: str | None,
    grid: str | None,
    shared: int | None,
    arch: str | None,
    seed: int,
    schedule: str,
    device: str,
    tools: str | None,
    lines: bool,
    max_ways: float | None,
    strict: bool,
    sms: int | None,
    budget: int | None,
    seconds: float,
    allow_refused: bool,
    style: str | None,
    json_file: Path | None,
    wanted: publishing.Wanted,
) -> None:
    """Run kernels in the emulator: numbers, races, memory faults and memory behaviour. No GPU, no times. With
    --device gpu they run under NVIDIA's compute-sanitizer, whose findings come with their source lines.

    Found are shared-memory hazards, races between blocks, barriers in divergent code, missing cp.async waits,
    accesses out of bounds or misaligned, reads of what nothing wrote. Stores of the same value by several
    threads are notices, which fail with --strict. Exit code 1 on a finding or a wrong number, except in a
    kernel that its file marks as broken; 3 if the emulator refused a kernel, which was then not checked, or
    had no time for it, if one without front matter does not compile, and others do, or if how long its
    buffers are is in doubt.

    A .cu file without front matter is run with guessed arguments. Its numbers are compared with nothing,
    which with --strict, or where the variable CI is set, is exit code 3.
    """
    from dataclasses import replace

    from harness.bench import emulation
    from harness.cli.children import sanitized
    from harness.cli.views import emulated
    from harness.launch import builds
    from harness.results import encode, record

    patience = Patience(seconds)
    wanted.check(json_file)
    selected, variants = options.variants(
        kernels, params, sweep=sweep, dtypes=dtypes, entry=entry, include=include
    )
    selected, variants = _launched(selected, variants, patience, block, grid, shared, sized=bool(axis))
    points = options.points(selected, axis, "verify_axes")
    if device != options.EMULATOR:
        if arch or lines or strict or sms or budget or max_ways or schedule != "lockstep":
            raise UsageError(
                "--arch, --schedule, --lines, --max-ways, --strict, --sms and --budget are the emulator's"
            )
        if wanted:
            raise UsageError("--html, --sarif, --junit and --github are the emulator's")
        sanitized.run(variants, points, sanitized.named(tools), device, seed, style, json_file)
        return
    if tools is not None:
        raise UsageError("--tool is compute-sanitizer's: add --device gpu")
    cache, ordered = options.open_cache(), patience.ordered(variants)
    how = emulation.Options(
        seed=seed,
        schedule=schedule,
        cache=cache,
        strict=strict,
        sms=sms or emulation.SMS,
        budget=budget or emulation.BUDGET,
        until=patience.until(ENDED),
        doubts=True,
    )
    twice = lines or wanted.html_file is not None  # again in the machine code's widths
    with running.progress(running.steps(variants, points, 1 + twice, baseline=False)) as step:
        built, skipped = builds.build_all(
            ordered,
            [options.one_arch(arch, None)],
            cache,
            step,
            some=not wanted,
            until=patience.until(BUILT),
            end=patience.end(),
            depth="live" if wanted.html_file else "sass" if lines or json_file else "cubin",
        )
        left_out: dict[str, list[str]] = {}
        rows, fault = running.collect(
            patience.kept(_emulated(built, points, how, step, None if axis else left_out))
        )
        built, points, late = patience.reached(rows, built, skipped, points)
        compiled: list[Measurement] = []
        if twice:
            again = replace(how, check=False, as_compiled=True, until=patience.until(COUNTED))
            counted = points if lines else {cls: listed[:1] for cls, listed in points.items()}
            compiled, fault = running.collect(_emulated(built, counted, again, step, None if axis else {}))
    records = [encode.emulated_record(row) for row in rows]
    meta = record.provenance(seed=seed) if json_file is not None else {}
    meta |= {"schedule": schedule, "budget": how.budget, "ended": str(fault) if fault else late or "complete"}
    unwritten = running.keep(json_file, "check", records, meta)
    unwritten = wanted.write(rows, compiled, skipped) or unwritten
    _refuse_unbuilt(built, skipped)
    emulated.print_rows(rows, style)
    running.name_shapes(points, rows)
    running.tell(left_out)
    click.echo(emulated.NOTE)
    most = _tell(rows)
    if lines:
        for row, other in zip(rows, compiled, strict=False):
            emulated.print_lines(row, other, style)
    running.explain([], skipped)
    running.warn(built)
    running.finish(
        records,
        [one for one in skipped if not one.variant.kernel.plain],  # others are in the remark
        fault or unwritten,
        late,
        allow_refused=allow_refused,
    )
    _conclude(rows, most, max_ways, strict)


def _refuse_unbuilt(built: Sequence[Built], skipped: Sequence[Skipped]) -> None:
    """Raise the first error of a build if nothing was built."""
    if skipped and not built:
        raise skipped[0].error


def _emulated(
    built: Sequence[Built],
    points: Mapping[type[Problem], Sequence[Axes]],
    how: Options,
    step: Progress,
    left_out: dict[str, list[str]] | None,
) -> Iterator[Measurement]:
    """Yield each row as it is done, without those of sizes that go to `left_out`, if there is one."""
    from harness.bench import emulation

    return running.of_sizes_taken(emulation.rows(built, points, how, step), left_out)


def _tell(rows: Sequence[Measurement]) -> float:
    """Print guesses, findings and what kernels printed, then conflicts; return the most ways of a line."""
    from harness.cli.views import emulated

    emulated.print_guesses(rows)
    emulated.print_findings(rows)
    emulated.print_output(rows)
    return emulated.print_conflicts(rows)


def _conclude(rows: Sequence[Measurement], most: float, max_ways: float | None, strict: bool) -> None:
    """Exit with code 1 if a line has more than `max_ways`; `most` are the most ways of a line.

    Exit with code 3 if numbers were not verified, with `strict` and in CI.
    """
    from harness.bench.row import UNVERIFIED

    if max_ways is not None and most > max_ways:
        click.echo(f"a line takes {most:.3g} ways, more than --max-ways {max_ways:g}", err=True)
        raise SystemExit(1)
    if any(row.status == UNVERIFIED for row in rows) and (strict or os.environ.get("CI")):
        raise SystemExit(INCONCLUSIVE_EXIT)


def _launched(
    kernels: list[Kernel],
    variants: list[Variant],
    patience: Patience,
    block: str | None,
    grid: str | None,
    shared: int | None,
    *,
    sized: bool,
) -> tuple[list[Kernel], list[Variant]]:
    """Return kernels and variants, those without front matter with another block, grid and shared memory.

    Where sizes are given, `sized`, shared memory that follows from sizes is as much as most kernels need.
    Of several such kernels those are left out, with a word, whose arguments cannot be guessed. Raises
    UsageError where none is left, and where front matter says what block and grid are.
    """
    known = [k.name for k in kernels if not k.plain]
    if known and any(given is not None for given in (block, grid, shared)):
        raise UsageError(
            f"--block, --grid and --shared are for kernels without front matter; {known[0]} has it"
        )
    found: dict[str, Kernel] = {}
    for kernel in patience.read(kernels):
        try:
            guess = _guessed(kernel, block, grid, shared, sized=sized) if kernel.plain else kernel
            found[kernel.name] = guess
        except UsageError as e:
            if len(kernels) == 1:
                raise
            how = f"; {e.hint}" if "--entry" in e.hint or "--block" in e.hint else ""
            click.echo(terminal.fill(f"left out: {e.what}{how}"), err=True)
    if not found:
        raise UsageError(
            "there is no kernel left whose arguments can be guessed",
            hint=patience.unread()
            or "name an instance of a template with --entry, or write front matter: `harness new` helps",
        )
    kept = [v for v in variants if not v.kernel.plain]
    return list(found.values()), [*kept, *(k.variant() for k in found.values() if k.plain)]


def _guessed(
    kernel: Kernel, block: str | None, grid: str | None, shared: int | None, *, sized: bool
) -> Kernel:
    """Return a kernel without front matter as it is launched. Raises UsageError if that cannot be guessed."""
    from dataclasses import replace

    from harness.kernels import text
    from harness.kernels.cpp import calls
    from harness.problems.guessed import allocated
    from harness.problems.registry import resolve

    entry = text.find(calls.entries(kernel), kernel.entry)
    unsaid = block is None and kernel.language == "ptx" and entry is not None and entry.bounds is None
    if unsaid and entry is not None and "__syncthreads" in entry.body:
        raise UsageError(
            f"how many threads a block of {kernel.name} has is not in its PTX: no .reqntid, no .maxntid",
            where=str(kernel.path),
            hint="say so: --block 128",
        )
    if block is not None:
        threads = _dimensions("--block", block)
        tile = entry.tile(threads) if entry is not None else threads[::-1]
        own = kernel.grid if all(str(blocks) == "1" for blocks in kernel.grid) else ()  # else of its block
        kernel = replace(
            kernel, block=tuple(map(Expr.parse, threads)), tile=tuple(map(Expr.parse, tile)), grid=own
        )
    if grid is not None:
        kernel = replace(kernel, grid=tuple(map(Expr.parse, _dimensions("--grid", grid))))
    kernel = replace(kernel, shared=Expr.parse(shared)) if shared is not None else calls.launchable(kernel)
    problem = resolve(kernel)
    return kernel if shared is not None or sized else allocated.shared(kernel, problem)


def _dimensions(option: str, text: str) -> tuple[int, ...]:
    """Return one to three positive numbers. Raises UsageError for any other text."""
    parts = text.replace("x", ",").split(",")
    if len(parts) > 3 or not all(p.strip().isascii() and p.strip().isdigit() and int(p) for p in parts):
        raise UsageError(f"{option} {text} is not one to three numbers from 1 on", hint=f"{option} 32,8")
    return tuple(map(int, parts))
