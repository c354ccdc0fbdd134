"""``harness bench --isolate``: the rows of each kernel from a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from harness.cli import options
from harness.kernels import catalog

if TYPE_CHECKING:
    from harness.cli.session import Points, Request
    from harness.driver import Device
    from harness.results.record import Record
    from harness.sass.builds import Built

# What a child is told as its parent was.
_FORWARDED = (
    "seed", "min_samples", "min_time", "timeout", "stopping_criterion", "regime", "ref", "rounds",
)  # fmt: skip
_FLAGS = ("alone", "cublaslt")
_FORWARDED_PERCENT = ("max_noise", "throttle_threshold", "threshold")


def rows(
    ctx: click.Context,
    what: Request,
    built: Sequence[Built],
    points: Points,
    meta: Record,
    timeout: float,
) -> Iterator[Record]:
    """Each kernel's rows from a process of its own, which prepares and times everything anew."""
    from harness.bench.measure import ERROR, Measurement
    from harness.cli import isolate
    from harness.driver import driver_version
    from harness.problems.registry import resolve

    meta["gpu"] = {**asdict(what.gpu), "driver": "{}.{}".format(*driver_version())}
    seen: set[tuple[str, str]] = set()  # the baseline is measured beside every kernel; one row will do
    for one in built:
        outcome = isolate.run_child(_command(ctx, what.gpu, one), timeout)
        meta["gpu"] |= outcome.about
        label = one.variant.label
        mine = [r for r in outcome.rows if options.row_label(r) == label]
        for row in outcome.rows:
            key = (options.row_label(row), row["shape"])
            if key not in seen:
                seen.add(key)
                yield row
        if outcome.interrupted:
            raise KeyboardInterrupt  # what it had measured is kept
        cls = resolve(one.variant.kernel)
        for axes in points[cls][len(mine) :]:
            error = outcome.error or "its process ended without this row"
            problem = cls.from_axes(axes)
            yield what.record(Measurement(label=label, built=one, problem=problem, status=ERROR, error=error))


def _command(ctx: click.Context, gpu: Device, one: Built) -> list[str]:
    variant, given = one.variant, ctx.params
    command = [sys.executable, "-m", "harness", "bench", *catalog.arguments(variant.kernel)]
    command += [f"--param={name}={value}" for name, value in variant.params.items()]
    command += [f"--axis={text}" for text in given["axis"]]
    command += [f"--device={gpu.uuid}", f"--arch={one.cubin.arch}", "--require-gpu"]
    command += [f"--{name}" for name in _FLAGS if given[name]]
    for name in _FORWARDED:
        if given[name] is not None:
            command.append(f"--{name.replace('_', '-')}={given[name]}")
    return command + [f"--{name.replace('_', '-')}={100 * given[name]!r}" for name in _FORWARDED_PERCENT]


def in_order(records: Iterable[Record], points: Points) -> list[Record]:
    """By size, as without --isolate; within a size as they came."""
    shapes = [cls.from_axes(axes).label for cls, listed in points.items() for axes in listed]
    return sorted(records, key=lambda r: shapes.index(r["shape"]))
