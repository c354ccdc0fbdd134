from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from harness.cli import dispatched, options

if TYPE_CHECKING:
    from harness.measure import Measurement


@click.command(name="verify")
@options.kernels
@options.params
@options.sweep
@options.axis
@dispatched.dtype
@options.device
@options.arch
@options.seed
@options.markdown
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    axis: tuple[str, ...],
    dtypes: tuple[str, ...],
    device: str | None,
    arch: str | None,
    seed: int,
    style: str | None,
) -> None:
    """Compare outputs with float64, element by element, on square, ragged and padded shapes.

    Without a GPU it is the emulator that runs them, and a race or memory fault is as wrong as a number (see
    `harness check`). Exit code 1 where a kernel is wrong, except one that its file marks as broken.
    """
    from harness import bench, emulation, report, tables
    from harness.cli import emulated
    from harness.driver import Context

    variants, points = dispatched.select(kernels, params, axis, "verify_axes", dtypes, sweep=sweep)
    gpu, absent = options.open_device(device)
    with ExitStack() as owned:
        step = owned.enter_context(options.progress(options.steps(variants, points)))
        built, skipped = dispatched.build(
            variants,
            dispatched.named(kernels),
            dtypes,
            points,
            options.one_arch(arch, gpu),
            gpu,
            options.open_cache(),
            step,
        )
        if gpu is None:
            found = emulation.rows(built, points, emulation.Options(seed=seed, count=False), step)
        else:
            context = owned.enter_context(Context(gpu))
            session = owned.enter_context(bench.Bench(context, rule=None, seed=seed))
            found = session.rows(built, points, step)
        rows, fault = options.collect(found)
    cells = [_row(label, group) for label, group in options.by_kernel(rows)]
    click.echo(tables.plain_table(cells, ["kernel", "shapes ok", "error/bound", "check"], style))
    options.name_shapes(points)
    if gpu is None:
        click.echo(absent)
        emulated.print_findings(rows)
        records = [report.emulated_record(r) for r in rows]
    else:
        records = [report.timed_record(r, gpu.peak_fp32) for r in rows]
    options.explain(records if gpu is not None else [], skipped)
    options.finish(records, skipped, fault)


def _row(label: str, rows: list[Measurement]) -> list[str]:
    """One kernel over all shapes; its status is the first that is not simply right."""
    from harness.measure import UNEXPECTED

    bad = [r.status for r in rows if not r.right and r.status != UNEXPECTED]
    worst = max((r.before.worst for r in rows if r.before is not None), default=None)
    error = "-" if worst is None else f"{worst:.2f}" if worst < 100 else "> 100"
    status = bad[0] if bad else rows[0].status
    return [label, f"{len(rows) - len(bad)}/{len(rows)}", error, status]
