"""Measure kernels at sizes in child processes, for ``harness bench`` and ``harness verify``.

With ``--isolate`` from the beginning, without it for what is left after a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from harness.cli import running
from harness.cli.children import isolation
from harness.errors import ContextLost, HarnessError, SpecError
from harness.support import terminal

if TYPE_CHECKING:
    from harness.bench.row import Measurement
    from harness.cli.session import Points
    from harness.driver import Device
    from harness.launch.builds import Built, Progress
    from harness.problems.protocol import Axes, Problem
    from harness.results.record import Document
    from harness.results.rows import Row

    Sized = tuple[Axes, Problem]
    LeftOut = dict[str, list[str]] | None  # labels of sizes by the reason for it; None: none is left out

# What a child's command is not told: what to measure is its own, where and what to show is not its concern.
WITHOUT = ("sweep", "isolate", "kernel_timeout", "rows", "gpus", "scheduler", "style", "json_file", "wide")
_SILENT = "its process ended without this row"
_LOST = (
    "a kernel faulted, after which its process can do no more: each row that is left has a process of its own"
)


@dataclass(frozen=True, kw_only=True)
class Children:
    """Processes that measure on `gpu` for the command of `ctx`, one after the other, each running it again.

    Each has `timeout` seconds. `record` encodes the row of a size that none of them wrote. What they write
    about the GPU goes into `about`. Iterating raises KeyboardInterrupt after Ctrl-C.
    """

    ctx: click.Context
    gpu: Device
    record: Callable[[Measurement], Row]
    about: Document
    timeout: float
    _seen: set[tuple[Any, ...]] = field(default_factory=set)

    def each(self, built: Sequence[Built], points: Points, left_out: LeftOut) -> Iterator[Row]:
        """Yield each kernel's rows from a process of its own, which prepares and times everything anew.

        After a fault each of its other sizes has a process, too. A size without a row becomes an error row.
        """
        from harness.bench.row import ERROR

        for one in built:
            sizes = taken(one, points, left_out)
            mine, outcome = yield from self._child(one, None)
            done = {row["shape"] for row in mine}
            left = [(axes, problem) for axes, problem in sizes if problem.label not in done]
            # After a fault, which its row tells, even if it is one of --ref.
            again = outcome.error and not outcome.hung and any(r["status"] == ERROR for r in outcome.rows)
            yield from self._singly(one, left, "" if again else outcome.error or _SILENT)

    def rest(
        self, built: Sequence[Built], points: Points, rows: Sequence[Row], left_out: LeftOut
    ) -> Iterator[Row]:
        """Yield the rows that are missing in `rows`, each from a process of its own.

        `left_out` is found anew, for all sizes.
        """
        self._seen.update(map(_key, rows))
        if left_out is not None:
            left_out.clear()
        missing = [
            (one, [size for size in taken(one, points, left_out) if self._is_missing(one, size[1])])
            for one in built
        ]
        if count := sum(len(sizes) for _, sizes in missing):
            click.echo(terminal.fill(_LOST), err=True)
        with running.progress(count) as step:
            for one, sizes in missing:
                yield from self._singly(one, sizes, "", step)

    def _is_missing(self, one: Built, problem: Problem) -> bool:
        from harness.results import encode

        return _key({**encode.static_record(one), "shape": problem.label}) not in self._seen

    def _singly(
        self, one: Built, sizes: Sequence[Sized], why: str, step: Progress = lambda _: None
    ) -> Iterator[Row]:
        """Yield a row for each size, from a process of its own.

        After one that hung, or that could not begin and wrote nothing, there are no others, and their rows
        say `why`. So do all if that is given.
        """
        from harness.bench.row import Measurement

        for axes, problem in sizes:
            error = why
            if not why:
                step(f"{one.label} {problem.label}")
                mine, outcome = yield from self._child(one, (axes, problem))
                error = "" if mine else outcome.error or _SILENT
                why = error if outcome.hung or not outcome.rows else ""
            if error:
                yield self.record(Measurement.failed_with(one, problem, error))

    def _child(
        self, one: Built, size: Sized | None
    ) -> Generator[Row, None, tuple[list[Row], isolation.Outcome]]:
        """Yield the rows of one process; return those of the kernel, and what became of the process.

        What is measured beside every kernel is the same row again, and left out.
        """
        from harness.results import rows

        outcome = isolation.run_child(_command(self.ctx, self.gpu, one, size), self.timeout)
        self.about.update(outcome.about)
        mine: list[Row] = []
        for row in outcome.rows:
            own = rows.name(row, params=True) == one.label and not row.get("baseline")
            if own or _key(row) not in self._seen:
                self._seen.add(_key(row))
                yield row
            mine += [row] if own else []
        if outcome.interrupted:
            raise KeyboardInterrupt  # the rows before it are kept
        if "kernel_timeout" not in self.ctx.params:
            outcome = replace(outcome, error=outcome.error.partition(", or needs")[0])
        return mine, outcome


def taken(one: Built, points: Points, left_out: LeftOut) -> list[Sized]:
    """Return the sizes of a kernel; with a `left_out`, where its ``requires`` excludes some, the others.

    Those go into `left_out` by reason. If it takes none, the first is returned, which is an error.
    """
    from harness.launch.kernel import unmet

    every = [(axes, cls.from_axes(axes)) for cls, listed in points.items() for axes in listed]
    sizes = [(axes, problem) for axes, problem in every if one.serves(problem)]
    if left_out is None:
        return sizes
    able = []
    for axes, problem in sizes:
        condition = ""
        with suppress(SpecError):  # of `requires` itself: its row tells it
            condition = unmet(one.variant, problem)
        if condition:
            left_out.setdefault(f"{one.label} requires {condition}", []).append(problem.label)
        else:
            able.append((axes, problem))
    return able or sizes[:1]


def go_on(
    children: Children,
    built: Sequence[Built],
    points: Points,
    rows: Sequence[Row],
    left_out: LeftOut,
    fault: ContextLost,
) -> tuple[list[Row], HarnessError | None]:
    """Measure the rows that are missing in `rows` since a `fault` ended what this process can do.

    Returns all rows, and what ended this early. That is the fault itself if no row tells it.
    """
    from harness.bench.row import ERROR

    more, ended = running.collect(children.rest(built, points, rows, left_out))
    told = any(row["status"] == ERROR and str(fault) in row["detail"] for row in rows)
    return isolation.in_order([*rows, *more], points), ended or (None if told else fault)


def by_kernel(records: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Group rows by kernel, and return each group with its label. Two files may have the same name."""
    from harness.results import rows

    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in records:
        groups.setdefault(_whose(row), []).append(row)
    return [(rows.name(group[0], params=True), group) for group in groups.values()]


def _whose(row: Row) -> tuple[Any, ...]:
    """Return what identifies the kernel of a row among those of a command."""
    from harness.results import rows

    which = (row.get("source_sha256"), bool(row.get("baseline")))
    return (rows.name(row, params=True), *which, row["problem"], row.get("dtype"))


def _key(row: Row) -> tuple[Any, ...]:
    """Return what identifies a row among those of a command."""
    return (*_whose(row), row["shape"])


def _command(ctx: click.Context, gpu: Device, one: Built, size: Sized | None) -> list[str]:
    """Return the command that measures one kernel in a child, at one size or at all that are asked for."""
    from harness.dispatch import choose
    from harness.dispatch.chosen import Chosen
    from harness.problems.gemm import Gemm

    word, changes = str(one.variant.kernel.path.absolute()), isolation.of_kernel(one) | {"device": gpu.uuid}
    if isinstance(one, Chosen):
        types = sorted({problem.dtype.name for problem in one.parts if isinstance(problem, Gemm)})
        word, changes = choose.NAME, changes | {"entry": None, "params": [], "dtypes": types}
    if size is not None:
        changes["axis"] = values(size[0])
    return isolation.command_line(ctx, word, changes, without=WITHOUT)


def values(axes: Axes) -> list[str]:
    """Return one size as values of --axis."""
    return [f"{name}={value!r}" for name, value in axes.items()]
