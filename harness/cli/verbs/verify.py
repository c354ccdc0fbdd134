"""``harness verify``: compare outputs with float64, on a GPU or in the emulator."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import matmul_option, options, running
from harness.errors import INCONCLUSIVE_EXIT

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
@options.markdown
@options.json_file
def command(
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
    style: str | None,
    json_file: Path | None,
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
    from harness.results import encode, record, tables

    if json_file is not None:
        record.check_writable(json_file)
    variants, points = matmul_option.select(
        kernels, params, axis, "verify_axes", dtypes, sweep=sweep, entry=entry, include=include
    )
    gpu, absent = options.open_device(device)
    with ExitStack() as owned:
        step = owned.enter_context(running.progress(running.steps(variants, points)))
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
        left_out: dict[str, list[str]] = {}
        rows, fault = running.collect(found if axis else running.of_sizes_taken(found, left_out))
    records = [encode.verified_record(r) for r in rows]
    meta = record.provenance(seed=seed) if json_file is not None else {}
    meta |= {"gpu": gpu and options.about(gpu), "repeats": repeats}
    meta["ended"] = str(fault) if fault else "complete"
    meta["skipped"] = [f"{s.variant.label}, {s.arch}: {s.error}" for s in skipped]
    unwritten = running.keep(json_file, "verify", records, meta)
    cells = [_row(label, group, repeats) for label, group in running.by_kernel(rows)]
    headings = ["kernel", "shapes ok", "error/bound", *(["repeats"] if repeats else []), "check"]
    click.echo(tables.plain_table(cells, headings, style))
    running.name_shapes(points)
    running.tell(left_out)
    if gpu is None:
        click.echo(absent)
        emulated.print_findings(rows)
        emulated.print_output(rows)
    running.explain(records if gpu is not None else [], skipped)
    running.warn(built)
    running.finish(records, skipped, fault or unwritten, allow_refused=allow_refused)
    if any(unverified(row.problem) for row in rows):
        raise SystemExit(INCONCLUSIVE_EXIT)


def _row(label: str, rows: list[Measurement], repeats: int) -> list[str]:
    """Return the table row of one kernel over all shapes.

    The status is the first that is neither right nor a pass of a kernel marked as broken, else that of the
    first shape. The repeats are those of the shape at which the fewest were equal.
    """
    from harness.bench.row import UNEXPECTED

    bad = [r.status for r in rows if not r.right and r.status != UNEXPECTED]
    worst = max((r.before.worst for r in rows if r.before is not None), default=None)
    error = "-" if worst is None else f"{worst:.2f}" if worst < 100 else "> 100"
    status = bad[0] if bad else rows[0].status
    told = [label, f"{len(rows) - len(bad)}/{len(rows)}", error]
    if repeats:
        least = min((r.repeats.equal for r in rows if r.repeats is not None), default=None)
        of = "" if least == repeats else f" of {repeats:,}"
        told.append("-" if least is None else f"{least:,}{of} equal")
    return [*told, status]
