"""Kernels and sizes -> rows. This composes the stations below it and decides what an error costs: a row, a
size, or everything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from harness import launch, telemetry
from harness.builds import Built, Progress
from harness.closing import Closing
from harness.cublas import LABEL, CuBlas
from harness.driver import Context, Stream
from harness.errors import ContextLost, HarnessError, OutOfMemory, UsageError
from harness.gemm import Gemm
from harness.launch import Launch, Operands
from harness.measure import ERROR, Measurement, measure
from harness.problem import Axes, Problem
from harness.problems import blamed, resolve
from harness.timing import EventTimer, StopRule, Timer


class Bench(Closing):
    """A GPU ready to measure: stream, timer and sensor in one context.

    `rule` None verifies only. `baseline` is borrowed.
    """

    def __init__(
        self, context: Context, *, rule: StopRule | None, baseline: CuBlas | None = None, seed: int = 1
    ) -> None:
        self.context, self.baseline, self.rule, self.seed = context, baseline, rule, seed
        with ExitStack() as owned:
            self.stream = owned.enter_context(Stream(context))
            self.sensor = owned.enter_context(telemetry.Telemetry(context.device.uuid))
            self.timer: Timer = owned.enter_context(EventTimer(context, self.stream, self.sensor))
            self._owned = owned.pop_all()

    def rows(
        self, built: Sequence[Built], points: Mapping[type[Problem], Sequence[Axes]], progress: Progress
    ) -> Iterator[Measurement]:
        """Every kernel on every point of its problem, the baseline first; each row as it is done."""
        for cls, axes_list in points.items():
            kernels = [b for b in built if resolve(b.variant.kernel) is cls]
            for axes in axes_list:
                with blamed(cls):
                    problem = cls.from_axes(axes)
                yield from self._point(problem, kernels, progress)

    def _point(self, problem: Problem, kernels: Sequence[Built], progress: Progress) -> Iterator[Measurement]:
        """One size. What cannot be launched at all is told before minutes go into its inputs."""
        fitting, refused = [], []
        for one in kernels:
            try:
                with blamed(type(problem)):
                    launch.grid(one.variant, problem, sms=self.context.device.sms)
                fitting.append(one)
            except UsageError as e:
                refused.append(_error(one.variant.label, one, problem, e))
        if fitting:
            progress(f"inputs {problem.label}")
            try:
                with blamed(type(problem)):
                    sets = launch.rotation_sets(self.context, problem) if self.rule else 1
                    operands = Operands(self.context, problem, self.stream, seed=self.seed, sets=sets)
            except ContextLost:
                raise
            except HarnessError as e:
                refused += [_error(one.variant.label, one, problem, e) for one in fitting]
            else:
                with operands:
                    yield from self._rows(operands, fitting, progress)
        yield from refused

    def _rows(
        self, operands: Operands, kernels: Sequence[Built], progress: Progress
    ) -> Iterator[Measurement]:
        problem, reference = operands.problem, None
        baseline = self.baseline
        if baseline is not None and isinstance(problem, Gemm):
            row = yield from self._row(
                LABEL, None, lambda: baseline.prepare(problem, operands), operands, None, progress
            )
            reference = row.seconds
        for one in kernels:
            yield from self._row(
                one.variant.label,
                one,
                lambda one=one: launch.prepare(one.cubin, operands),  # type: ignore[misc]
                operands,
                reference,
                progress,
            )

    def _row(
        self,
        label: str,
        built: Built | None,
        prepare: Callable[[], Launch],
        operands: Operands,
        baseline: float | None,
        progress: Progress,
    ) -> Generator[Measurement, None, Measurement]:
        """One row, yielded and returned. After a fault the row says so, and then the fault is raised."""
        progress(f"{label} {operands.problem.label}")
        try:
            with blamed(type(operands.problem)), prepare() as run:
                row = measure(run, self.stream, self.timer, self.rule, built=built)
            row = replace(row, baseline=baseline)
        except ContextLost as e:
            yield _error(label, built, operands.problem, e)
            raise
        except (HarnessError, MemoryError) as e:
            error = e if isinstance(e, HarnessError) else OutOfMemory("host memory is exhausted")
            row = _error(label, built, operands.problem, error)
            operands.damaged_inputs(self.stream)  # the next kernel must not be blamed for this one's
        yield row
        return row

    def close(self) -> None:
        self._owned.close()


def _error(label: str, built: Built | None, problem: Problem, error: HarnessError) -> Measurement:
    return Measurement(label=label, built=built, problem=problem, status=ERROR, error=str(error))
