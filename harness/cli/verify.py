from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from harness.cli import options
from harness.errors import ContextLost

if TYPE_CHECKING:
    from harness.bench import Measurement


@click.command(name="verify")
@options.kernels
@options.params
@options.sweep
@options.axis
@options.device
@options.arch
@options.seed
@options.markdown
def command(
    kernels: tuple[str, ...],
    params: tuple[str, ...],
    sweep: bool,
    axis: tuple[str, ...],
    device: str,
    arch: str | None,
    seed: int,
    style: str | None,
) -> None:
    """Compare outputs with float64, element by element, on square, ragged and padded shapes.

    Needs a GPU. Exit code 1 where a kernel is wrong, except one that its file marks as broken.
    """
    from harness import bench, report
    from harness.driver import Context, Device

    selected, variants = options.variants(kernels, params, sweep=sweep)
    points = options.points(selected, axis, "verify_axes")
    gpu = Device.open(device)
    rows: list[Measurement] = []
    fault: ContextLost | None = None
    with ExitStack() as owned:
        step = owned.enter_context(options.progress(options.steps(variants, points)))
        built, skipped = bench.build_all(variants, options.one_arch(arch, gpu), options.open_cache(), step)
        context = owned.enter_context(Context(gpu))
        try:
            with bench.Bench(context, rule=None, seed=seed) as session:
                rows += session.rows(built, points, step)
        except ContextLost as e:
            fault = e  # after the rows that there are
    cells = [[r.label, r.problem.label, r.status] for r in rows]
    click.echo(report.plain_table(cells, ["kernel", "shape", "check"], style))
    options.explain(rows, skipped)
    if fault is not None:
        raise fault
    if any(r.failed for r in rows) or any(s.failed for s in skipped):
        raise SystemExit(1)
