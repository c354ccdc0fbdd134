"""``harness verify``: compare outputs with float64, on a GPU or in the emulator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import matmul_option, options, running
from harness.cli.children import apart, fleet, fleet_verdicts, isolation
from harness.cli.views import verified
from harness.errors import INCONCLUSIVE_EXIT, ContextLost

if TYPE_CHECKING:
    from harness.bench.row import Measurement


@click.command(name="verify")
@options.kernels
@options.params
@options.sweep
@options.axis
@options.dtype
@options.entry
@options.include
@options.device
@options.arch
@options.seed
@click.option(
    "--repeat",
    "repeats",
    type=click.IntRange(min=0, max=1_000_000),
    default=0,
    metavar="N",
    help="Then launch each N times more on the same inputs: every output must have the same bits.",
)
@options.strict
@options.sms
@options.budget
@options.allow_refused
@fleet.options
@options.markdown
@options.json_file
@click.option("--rows", type=click.Path(path_type=Path), hidden=True)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    axis: tuple[str, ...],
    dtypes: tuple[str, ...],
    entry: str | None,
    include: tuple[str, ...],
    device: str | None,
    arch: str | None,
    seed: int,
    repeats: int,
    strict: bool,
    sms: int | None,
    budget: int | None,
    allow_refused: bool,
    gpus: str | None,
    scheduler: str | None,
    style: str | None,
    json_file: Path | None,
    rows: Path | None,
) -> None:
    """Compare outputs with float64, element by element, on square, ragged and padded shapes; with --repeat
    also with themselves, bit by bit, launch after launch.

    Without a GPU it is the emulator that runs them, and a race or memory fault is as wrong as a number (see
    `harness check`). Exit code 1 where a kernel is wrong, except one that its file marks as broken; 3 if the
    emulator refused a kernel, which was then not verified.
    """
    from harness.bench import emulation
    from harness.bench.session import Bench
    from harness.cli.views import emulated
    from harness.driver import Context
    from harness.problems.protocol import unverified
    from harness.results import encode, record

    if json_file is not None:
        record.check_writable(json_file)
    variants, points = matmul_option.select(
        kernels, params, axis, "verify_axes", dtypes, sweep=sweep, entry=entry, include=include
    )
    if fleet.wanted(gpus, scheduler, device):
        fleet_verdicts.verify(ctx, variants, points)
        return
    gpu, absent = options.open_device(device)
    with ExitStack() as owned:
        count = running.steps(variants, points, baseline=gpu is not None)
        step = owned.enter_context(running.progress(count))
        built, skipped = matmul_option.build(
            variants,
            matmul_option.named(kernels),
            dtypes,
            points,
            options.one_arch(arch, gpu),
            gpu,
            options.open_cache(),
            step,
        )
        if gpu is None:
            wanted = emulation.Options(
                seed=seed,
                count=False,
                repeats=repeats,
                strict=strict,
                sms=sms or emulation.SMS,
                budget=budget or emulation.BUDGET,
            )
            found = emulation.rows(built, points, wanted, step)
        else:
            context = owned.enter_context(Context(gpu))
            session = owned.enter_context(Bench(context, rule=None, repeats=repeats, seed=seed))
            found = session.rows(built, points, step)
        left_out: dict[str, list[str]] | None = None if axis else {}
        measured, fault = running.collect(_kept(running.of_sizes_taken(found, left_out), rows))
    records = [encode.verified_record(r) for r in measured]
    meta = record.provenance(seed=seed) if json_file is not None else {}
    meta |= {"gpu": gpu and options.about(gpu), "repeats": repeats}
    if isinstance(fault, ContextLost) and gpu is not None and rows is None:
        again = apart.Children(
            ctx=ctx,
            gpu=gpu,
            record=encode.verified_record,
            about=meta["gpu"],
            timeout=fleet_verdicts.limit(repeats, 1),
        )
        records, fault = apart.go_on(again, built, points, records, left_out, fault)
    meta["ended"] = str(fault) if fault else "complete"
    meta["skipped"] = [f"{s.variant.label}, {s.arch}: {s.error}" for s in skipped]
    unwritten = running.keep(json_file, "verify", records, meta)
    verified.show(apart.by_kernel(records), repeats, style)
    running.name_shapes(points)
    running.tell(left_out or {})
    if gpu is None:
        click.echo(absent)
        emulated.print_findings(measured)
        emulated.print_output(measured)
    running.explain(records if gpu is not None else [], skipped)
    running.warn(built)
    running.finish(records, skipped, fault or unwritten, allow_refused=allow_refused)
    if any(unverified(row.problem) for row in measured):
        raise SystemExit(INCONCLUSIVE_EXIT)


def _kept(found: Iterable[Measurement], file: Path | None) -> Iterator[Measurement]:
    """Yield each row, as it is done, and append it to `file`, whose first line has nothing to say here."""
    from harness.results import encode

    if file is not None:
        isolation.append(file, {})
    for row in found:
        if file is not None:
            isolation.append(file, encode.verified_record(row))
        yield row
