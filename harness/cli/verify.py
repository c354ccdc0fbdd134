from __future__ import annotations

import math
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
    cells = [_row(label, list(group)) for label, group in _by_kernel(rows).items()]
    click.echo(report.plain_table(cells, ["kernel", "shapes ok", "error/bound", "check"], style))
    for cls, axes_list in points.items():
        click.echo(f"shapes: {', '.join(cls.from_axes(a).label for a in axes_list)}")
    options.explain(rows, skipped)
    if fault is not None:
        raise fault
    if any(r.failed for r in rows) or any(s.failed for s in skipped):
        raise SystemExit(1)


def _by_kernel(rows: list[Measurement]) -> dict[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(row.label, []).append(row)
    return groups


def _row(label: str, rows: list[Measurement]) -> list[str]:
    """One kernel over all shapes; its status is the first that is not simply right."""
    passed = sum(r.before is not None and r.before.ok for r in rows)
    worst = max((r.before.worst for r in rows if r.before is not None), default=math.inf)
    bad = [r.status for r in rows if r.before is None or not r.before.ok]
    status = bad[0] if bad else rows[0].status
    return [label, f"{passed}/{len(rows)}", f"{worst:.2f}" if worst < 100 else "> 100", status]
