"""Measure kernels at sizes: put the stages together, and decide whether an error costs a row, a size, or
all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np

from harness.bench import ceilings, nvml
from harness.bench.measure import Method, launches, measure
from harness.bench.rounds import Rounds, unsettle
from harness.bench.row import COLD, HOT, Measurement
from harness.bench.stopping import StopRule
from harness.bench.timing import EventTimer
from harness.driver import Context, Stream
from harness.errors import ContextLost, HarnessError, OutOfMemory, UsageError
from harness.launch.builds import Built, Progress
from harness.launch.kernel import Launch
from harness.launch.operands import Data, Operands, rotation_sets
from harness.launch.runnable import Runnable
from harness.problems import checks
from harness.problems.protocol import Axes, Problem
from harness.problems.registry import blamed
from harness.support.cache import default as default_cache
from harness.support.resources import Closing


class Bench(Closing):
    """A GPU ready to measure: a context with a stream, a timer and a sensor.

    `method` says how to time, with the card's ceilings; it is None without a `rule`, and kernels are then
    verified only. `baseline` is the code that every kernel is timed in turn with, unless `alone` is set: then
    each is timed by itself, at its own clock and power. `fastest` is a library that gets a row beside the
    kernels. Both are borrowed: their owner closes them. `seed` makes the input data and orders comparisons.
    With several `rounds` everything is repeated that often, from making the operands on. Verified code is
    launched `repeats` times more and must write the same bits each time.
    """

    def __init__(
        self,
        context: Context,
        *,
        rule: StopRule | None,
        regime: str = COLD,
        baseline: Runnable | None = None,
        fastest: Runnable | None = None,
        seed: int = 1,
        limits: bool = False,
        alone: bool = False,
        rounds: int = 1,
        repeats: int = 0,
    ) -> None:
        """Open the stream, sensor and timer in `context`.

        With `limits` the card's ceilings are read from the cache or measured, which takes about a second.
        """
        self.context, self.baseline, self.seed, self.alone = context, baseline, seed, alone
        self.fastest, self.rounds, self.repeats = fastest, rounds, repeats
        self.method: Method | None = None
        self.no_ceilings = ""
        with ExitStack() as owned:
            self.stream = owned.enter_context(Stream(context))
            self.sensor = owned.enter_context(nvml.Telemetry(context.device.uuid))
            self.timer = owned.enter_context(EventTimer(context, self.stream, self.sensor))
            if rule is not None:
                found = self._ceilings() if limits else None
                self.method = Method(
                    rule=rule, regime=regime, seed=seed, overhead=self.timer.overhead(), ceilings=found
                )
            self._owned = owned.pop_all()

    def _ceilings(self) -> ceilings.Ceilings | None:
        """Return the card's ceilings; None, with the reason in `no_ceilings`, where they cannot be
        measured.
        """
        try:
            return ceilings.measured(self.context, self.stream, self.timer, default_cache())
        except ContextLost:
            raise
        except HarnessError as e:
            self.no_ceilings = f"this card's ceilings could not be measured: {e.what}"
            return None

    def rows(
        self, built: Sequence[Built], points: Mapping[type[Problem], Sequence[Axes]], progress: Progress
    ) -> Iterator[Measurement]:
        """Yield a row for each kernel on each point of its problem, the baseline's first, as it is done.

        `points` maps each problem class to its sizes. `progress` is called with a short text before each
        step. Errors of a kernel or size become rows; ContextLost is raised after the row of the kernel that
        faulted.
        """
        for cls, axes_list in points.items():
            for axes in axes_list:
                problem = checks.instance(cls, axes)
                yield from self._point(problem, [b for b in built if b.serves(problem)], progress)

    def _point(self, problem: Problem, kernels: Sequence[Built], progress: Progress) -> Iterator[Measurement]:
        """Measure one size. Kernels that have no grid for it are refused before its inputs are made, which
        takes long.
        """
        fitting, refused = [], []
        for one in kernels:
            try:
                with blamed(type(problem)):
                    one.check(problem, sms=self.context.device.sms)
                fitting.append(one)
            except UsageError as e:
                refused.append(Measurement.failed_with(one, problem, e))
        yield from self._in_rounds(problem, fitting, progress) if fitting else ()
        yield from refused

    def _in_rounds(
        self, problem: Problem, kernels: Sequence[Built], progress: Progress
    ) -> Iterator[Measurement]:
        """Yield the rows of one size: as they are done, or all at the end where there are several rounds."""
        data = functools.cache(lambda: Data.of(problem, self.seed))
        if self.rounds == 1:
            yield from self._on_operands(problem, kernels, progress, data)
            return
        rounds, rng = Rounds(self.rounds), np.random.default_rng(self.seed)
        over: BaseException | None = None
        try:
            with ExitStack() as owned:
                for number in range(self.rounds):
                    left = [one for one in kernels if rounds.timed(one)]
                    if number > 0 and left:
                        unsettle(self.context, self.stream, owned, rng)
                    for row in self._on_operands(problem, left, progress, data) if left else ():
                        rounds.add(row)
        except (Exception, KeyboardInterrupt) as e:  # rows of earlier rounds are kept
            over = e
        yield from rounds.merged()
        if over is not None:
            raise over

    def _on_operands(
        self, problem: Problem, kernels: Sequence[Built], progress: Progress, data: Callable[[], Data]
    ) -> Iterator[Measurement]:
        """Put the operands into device memory, measure the kernels on them, and free them."""
        progress(f"inputs {problem.label}")
        try:
            with blamed(type(problem)):
                sets = self.sets(problem)
                operands = Operands(self.context, problem, self.stream, seed=self.seed, sets=sets, data=data)
        except ContextLost:
            raise
        except HarnessError as e:
            for one in kernels:
                yield Measurement.failed_with(one, problem, e)
        else:
            with operands:
                yield from self._rows(operands, kernels, progress)

    def sets(self, problem: Problem) -> int:
        """Return how many sets of operands to make: one a launch of a batch, one if hot or not timed."""
        if self.method is None or self.method.regime == HOT:
            return 1
        most = launches(problem, self.context.device, self.method)
        return rotation_sets(self.context, problem, most=most)

    def _rows(
        self, operands: Operands, kernels: Sequence[Built], progress: Progress
    ) -> Iterator[Measurement]:
        """Measure the baseline, then the others in turn with it."""
        problem = operands.problem
        with ExitStack() as owned:
            against: Launch | None = None
            if self.baseline is not None and self.baseline.serves(problem):
                row = yield from self._row(self.baseline, operands, None, progress, baseline=True)
                if row.right and self.method is not None and not self.alone:
                    with suppress(OutOfMemory):  # without room for operands of its own there is no ratio
                        twin = owned.enter_context(operands.twin(self.stream))
                        against = owned.enter_context(self.baseline.prepare(twin))
            library = [self.fastest] if self.fastest is not None and self.fastest.serves(problem) else []
            for one in (*library, *kernels):
                yield from self._row(one, operands, against, progress)

    def _row(
        self,
        one: Runnable,
        operands: Operands,
        against: Launch | None,
        progress: Progress,
        *,
        baseline: bool = False,
    ) -> Generator[Measurement, None, Measurement]:
        """Yield one row and return it. After a fault the row says so, and then ContextLost is raised."""
        progress(f"{one.label} {operands.problem.label}")
        row, lost = self.attempt(one, operands, against, self.method)
        row = replace(row, baseline=baseline)
        if row.against_wrong:  # its time is that of something else
            row = replace(row, pair=None, ratio=None)
        yield row
        if lost is not None:
            raise lost
        return row

    def attempt(
        self, one: Runnable, operands: Operands, against: Launch | None, method: Method | None
    ) -> tuple[Measurement, ContextLost | None]:
        """Measure one code, and turn every error into a row.

        The second value is the fault after which nothing more can be done in this context; None if there was
        none.
        """
        problem = operands.problem
        try:
            with blamed(type(problem)):
                row = measure(
                    one,
                    operands,
                    self.stream,
                    self.timer,
                    method,
                    against=against,
                    repeats=self.repeats,
                )
            same = against is not None and self._is_baseline_code(one)
            key = None if method is None else f"{method.key:016x}"
            return replace(row, identical=same, seed=self.seed, data_key=key), None
        except ContextLost as e:
            return Measurement.failed_with(one, problem, e), e
        except (HarnessError, MemoryError) as e:
            operands.restore(self.stream)  # the next kernel must not be blamed for this one's
            operands.stray_writes(self.stream)
            return Measurement.failed_with(one, problem, e), None

    def _is_baseline_code(self, one: Runnable) -> bool:
        """Return True if both sides are the same machine code, so that any difference between them is
        noise.
        """
        other = None if self.baseline is None else self.baseline.built
        if one.built is None or other is None:
            return False
        return one.built.same_code(other) and other.same_code(one.built)

    def close(self) -> None:
        self._owned.close()
