from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from harness.cli import options

if TYPE_CHECKING:
    from harness.measure import Measurement


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
    from harness import bench, builds, report, tables
    from harness.driver import Context, Device

    selected, variants = options.variants(kernels, params, sweep=sweep)
    points = options.points(selected, axis, "verify_axes")
    gpu = Device.open(device)
    with ExitStack() as owned:
        step = owned.enter_context(options.progress(options.steps(variants, points)))
        built, skipped = builds.build_all(variants, [options.one_arch(arch, gpu)], options.open_cache(), step)
        context = owned.enter_context(Context(gpu))
        session = owned.enter_context(bench.Bench(context, rule=None, seed=seed))
        rows, fault = options.collect(session.rows(built, points, step))
    cells = [_row(label, group) for label, group in _by_kernel(rows)]
    click.echo(tables.plain_table(cells, ["kernel", "shapes ok", "error/bound", "check"], style))
    for cls, axes_list in points.items():
        click.echo(f"shapes: {', '.join(cls.from_axes(a).label for a in axes_list)}")
    records = [report.timed_record(r, gpu.peak_fp32) for r in rows]
    options.explain(records, skipped)
    options.finish(records, skipped, fault)


def _by_kernel(rows: list[Measurement]) -> list[tuple[str, list[Measurement]]]:
    """By what was built, not by name: two files may share theirs."""
    groups: dict[int, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(id(row.built), []).append(row)
    return [(group[0].label, group) for group in groups.values()]


def _row(label: str, rows: list[Measurement]) -> list[str]:
    """One kernel over all shapes; its status is the first that is not simply right."""
    passed = sum(r.before is not None and r.before.ok for r in rows)
    worst = max((r.before.worst for r in rows if r.before is not None), default=math.inf)
    bad = [r.status for r in rows if r.before is None or not r.before.ok]
    status = bad[0] if bad else rows[0].status
    return [label, f"{passed}/{len(rows)}", f"{worst:.2f}" if worst < 100 else "> 100", status]
