"""Kernels and sizes -> rows. This composes the stations below it and decides what an error costs: a row, a
size, or everything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np

from harness.bench import ceilings, nvml
from harness.bench.measure import COLD, ERROR, HOT, REPEATABLE, Measurement, Method, measure, repeated
from harness.bench.rounds import Rounds, unsettle
from harness.bench.stopping import StopRule
from harness.bench.timing import EventTimer
from harness.dispatch import prepared
from harness.driver import Context, Stream
from harness.errors import ContextLost, HarnessError, OutOfMemory, UsageError
from harness.launch import cublas, cublaslt, kernel
from harness.launch.cublas import CuBlas
from harness.launch.cublaslt import CuBlasLt
from harness.launch.kernel import Launch
from harness.launch.operands import Data, Operands, Twin, rotation_sets
from harness.problems import checks
from harness.problems.gemm import Gemm
from harness.problems.protocol import Axes, Problem
from harness.problems.registry import blamed, resolve
from harness.problems.verify import Repeats
from harness.sass.builds import Built, Progress
from harness.support.cache import default as default_cache
from harness.support.resources import Closing


class Bench(Closing):
    """A GPU ready to measure: stream, timer and sensor in one context.

    `rule` None verifies only. `baseline` is what every kernel is timed in turn with: cuBLAS, which is
    borrowed, or another kernel. With `alone` each is timed by itself instead, at a clock and power of its
    own. `fastest`, borrowed too, has a row beside the kernels. With several `rounds` everything is done that
    often, from the operands on. `method` says how, with what was found out about this card.
    """

    def __init__(
        self,
        context: Context,
        *,
        rule: StopRule | None,
        regime: str = COLD,
        baseline: CuBlas | Built | None = None,
        fastest: CuBlasLt | None = None,
        seed: int = 1,
        limits: bool = False,
        alone: bool = False,
        rounds: int = 1,
    ) -> None:
        """`limits`: find the card's ceilings, from the cache or by a second of measuring."""
        self.context, self.baseline, self.seed, self.alone = context, baseline, seed, alone
        self.fastest, self.rounds = fastest, rounds
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
        """Every kernel on every point of its problem, the baseline first; each row as it is done."""
        for cls, axes_list in points.items():
            for axes in axes_list:
                problem = checks.instance(cls, axes)
                yield from self._point(problem, [b for b in built if b.serves(problem)], progress)

    def _point(self, problem: Problem, kernels: Sequence[Built], progress: Progress) -> Iterator[Measurement]:
        """One size. What cannot be launched at all is told before minutes go into its inputs."""
        fitting, refused = [], []
        for one in kernels:
            try:
                with blamed(type(problem)):
                    kernel.grid(one.variant, problem, sms=self.context.device.sms)
                fitting.append(one)
            except UsageError as e:
                refused.append(_error(one.label, one, problem, e))
        yield from self._in_rounds(problem, fitting, progress) if fitting else ()
        yield from refused

    def _in_rounds(
        self, problem: Problem, kernels: Sequence[Built], progress: Progress
    ) -> Iterator[Measurement]:
        """Each row as it is done, or of several rounds all at the end."""
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
        except (Exception, KeyboardInterrupt) as e:  # what was measured before is kept
            over = e
        yield from rounds.merged()
        if over is not None:
            raise over

    def _on_operands(
        self, problem: Problem, kernels: Sequence[Built], progress: Progress, data: Callable[[], Data]
    ) -> Iterator[Measurement]:
        progress(f"inputs {problem.label}")
        try:
            with blamed(type(problem)):
                hot = self.method is None or self.method.regime == HOT
                sets = 1 if hot else rotation_sets(self.context, problem)
                operands = Operands(self.context, problem, self.stream, seed=self.seed, sets=sets, data=data)
        except ContextLost:
            raise
        except HarnessError as e:
            for one in kernels:
                yield _error(one.label, one, problem, e)
        else:
            with operands:
                yield from self._rows(operands, kernels, progress)

    def _rows(
        self, operands: Operands, kernels: Sequence[Built], progress: Progress
    ) -> Iterator[Measurement]:
        baseline, problem = self.baseline, operands.problem
        if not _computes(baseline, problem):
            baseline = None
        with ExitStack() as owned:
            against: Launch | None = None
            if baseline is not None:
                built = baseline if isinstance(baseline, Built) else None
                prepare = functools.partial(_prepare, baseline)
                label = _label(baseline)
                row = yield from self._row(label, built, prepare, operands, None, progress, baseline=True)
                if row.right and self.method is not None and not self.alone:
                    with suppress(OutOfMemory):  # then there is no room for a second output: no ratio
                        twin = owned.enter_context(Twin(operands, self.stream))
                        against = owned.enter_context(_prepare(baseline, twin))
            if self.fastest is not None and isinstance(problem, Gemm):
                prepare = functools.partial(_prepare, self.fastest)
                yield from self._row(cublaslt.LABEL, None, prepare, operands, against, progress)
            for one in kernels:
                prepare = functools.partial(_prepare, one)
                yield from self._row(one.label, one, prepare, operands, against, progress)

    def _row(
        self,
        label: str,
        built: Built | None,
        prepare: Callable[[Operands], Launch],
        operands: Operands,
        against: Launch | None,
        progress: Progress,
        *,
        baseline: bool = False,
    ) -> Generator[Measurement, None, Measurement]:
        """One row, yielded and returned. After a fault the row says so, and then the fault is raised."""
        progress(f"{label} {operands.problem.label}")
        row, lost = self.attempt(label, built, prepare, operands, against, self.method)
        row = replace(row, baseline=baseline)
        yield row
        if lost is not None:
            raise lost
        return row

    def attempt(
        self,
        label: str,
        built: Built | None,
        prepare: Callable[[Operands], Launch],
        operands: Operands,
        against: Launch | None,
        method: Method | None,
    ) -> tuple[Measurement, ContextLost | None]:
        """One launch measured, whatever happens: an error is a row too. After a fault nothing more can be
        done in this context, which is what the second value says.
        """
        try:
            with blamed(type(operands.problem)), prepare(operands) as run:
                row = self.measured(run, method, built, against)
            same = against is not None and _same_code(built, self.baseline)
            return replace(row, label=label, identical=same), None
        except ContextLost as e:
            return _error(label, built, operands.problem, e), e
        except (HarnessError, MemoryError) as e:
            error = e if isinstance(e, HarnessError) else OutOfMemory("host memory is exhausted")
            operands.damaged_inputs(self.stream)  # the next kernel must not be blamed for this one's
            return _error(label, built, operands.problem, error), None

    def measured(
        self, run: Launch, method: Method | None, built: Built | None, against: Launch | None
    ) -> Measurement:
        """What becomes of a launch that is prepared; errors are `attempt`'s."""
        return measure(run, self.stream, self.timer, method, built=built, against=against)

    def close(self) -> None:
        self._owned.close()


def _error(label: str, built: Built | None, problem: Problem, error: HarnessError) -> Measurement:
    return Measurement(label=label, built=built, problem=problem, status=ERROR, error=str(error))


def _computes(baseline: CuBlas | Built | None, problem: Problem) -> bool:
    if isinstance(baseline, Built):
        return resolve(baseline.variant.kernel) is type(problem)
    return isinstance(problem, Gemm)


def _label(baseline: CuBlas | Built) -> str:
    return baseline.label if isinstance(baseline, Built) else cublas.LABEL


def _prepare(what: CuBlas | CuBlasLt | Built, operands: Operands) -> Launch:
    if isinstance(what, Built) and what.chosen_for is not None:
        cubins = what.cubin, *what.others
        return prepared.prepare(list(zip(cubins, what.chosen_for[operands.problem], strict=True)), operands)
    if isinstance(what, Built):
        return kernel.prepare(what.cubin, operands)
    if not isinstance(operands.problem, Gemm):
        raise UsageError(f"{what.label} does not compute {operands.problem.label}")
    return what.prepare(operands.problem, operands)


def _same_code(one: Built | None, other: CuBlas | Built | None) -> bool:
    """Whether both are the same instructions, launched alike: what differs between them is noise."""
    if one is None or not isinstance(other, Built) or one.tally is None or other.tally is None:
        return False
    if one.others or other.others:  # the dispatcher's: what they leave to other kernels may differ
        return False
    a, b = one.variant, other.variant
    launched = (a.block, a.tile, a.shared) == (b.block, b.tile, b.shared)
    return launched and one.tally.sha256 == other.tally.sha256


class Repetition(Bench):
    """A `Bench` that times nothing: what it has verified it launches `repeats` times more, on outputs filled
    anew each time. What a launch writes is known by the fingerprint of its bits.
    """

    def __init__(self, context: Context, *, repeats: int, seed: int = 1) -> None:
        super().__init__(context, rule=None, seed=seed)
        self._repeats = repeats

    def measured(
        self, run: Launch, method: Method | None, built: Built | None, against: Launch | None
    ) -> Measurement:
        """What the verified launch wrote is still there when the repeats begin."""
        row = super().measured(run, method, built, against)
        if not self._repeats or row.status not in REPEATABLE:
            return row
        prints = run.operands.repeated(run.calls[0], self.stream, self._repeats)
        repeats = Repeats.of(next(prints), prints)
        return repeated(row, repeats, run.operands.damaged_inputs(self.stream))
