"""Find out which differences this machine can detect.

Kernels are compared with themselves and with versions that are slower by a known amount. A comparison is
worth as much as its answer for two things that are equal. The trials here run the same code that compares a
kernel with cuBLAS.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from harness.bench import sampling
from harness.bench.measure import Method, check, launches
from harness.bench.nvml import Telemetry
from harness.bench.sampling import WarmUp
from harness.bench.stats import FAST, SLOW, Interval, decide
from harness.bench.stopping import StopRule
from harness.bench.timing import EventTimer, Timer, Work
from harness.driver import Context, Stream
from harness.errors import HarnessError
from harness.kernels.compiler import Cubin
from harness.launch import kernel
from harness.launch.fresh.code import derive
from harness.launch.fresh.datasets import DataSets
from harness.launch.fresh.source import Source, source
from harness.launch.fresh.visits import Visits
from harness.launch.kernel import Launch
from harness.launch.operands import Operands, rotation_sets
from harness.problems.protocol import Problem
from harness.support.resources import Closing

_QUANTILE = 0.95
_SETTLE_MOST = 10.0  # seconds of GPU time to wait for the SM clock


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The outcomes of one comparison that was repeated many times.

    `slowdown` is the known answer, 0.01 for 1% slower. `threshold` is the difference that counts, as a
    fraction.
    """

    slowdown: float
    threshold: float
    intervals: tuple[Interval, ...]

    def rate(self, *statuses: str) -> float:
        """Return the fraction of trials that were decided as one of `statuses`."""
        return float(np.mean([decide(i, self.threshold) in statuses for i in self.intervals]))

    @property
    def called(self) -> float:
        """The fraction of trials decided FAST or SLOW: false positives where a kernel is compared with
        itself.
        """
        return self.rate(FAST, SLOW)

    @property
    def excluded(self) -> float:
        """The fraction of trials whose interval does not contain the known ratio: 5% for correct 95%
        intervals.
        """
        return float(np.mean([not i.low <= 1 + self.slowdown <= i.high for i in self.intervals]))

    @property
    def estimate(self) -> float:
        """The median of the estimated ratios, minus 1."""
        return float(np.median([i.estimate for i in self.intervals])) - 1

    @property
    def half_width(self) -> float:
        """The median half width of the intervals."""
        return float(np.median([i.half_width for i in self.intervals]))

    @property
    def detectable(self) -> float:
        """The smallest slowdown whose interval would lie above 1 in 95% of such trials.

        It is estimated from trials of a kernel against itself, on the assumption that a slowdown shifts every
        interval as a whole.
        """
        return float(np.quantile([i.half_width - (i.estimate - 1) for i in self.intervals], _QUANTILE))


@dataclass(frozen=True, kw_only=True)
class DataTrials:
    """The effect of new data in every launch on times, and its cost.

    `trials` compare launches on new data with launches on the same data, both drained and verified alike. The
    others are seconds on the host's clock to sample once: on new data, on the same data, and without anything
    between launches.
    """

    trials: Trials
    fresh: float
    same: float
    bare: float


class SelfTest(Closing):
    """A GPU, a problem and the kernel `reference` on it, ready to be compared with others."""

    def __init__(
        self, context: Context, reference: Cubin, problem: Problem, *, rule: StopRule, seed: int
    ) -> None:
        self.rule, self.seed = rule, seed
        with ExitStack() as owned:
            self.stream = owned.enter_context(Stream(context))
            self.timer = owned.enter_context(
                EventTimer(context, self.stream, owned.enter_context(Telemetry(context.device.uuid)))
            )
            most = launches(problem, context.device, Method(rule=rule))
            sets = rotation_sets(context, problem, most=most)
            self.operands = owned.enter_context(Operands(context, problem, self.stream, seed=seed, sets=sets))
            self._twin = owned.enter_context(self.operands.twin(self.stream))
            run = owned.enter_context(kernel.prepare(reference, self._twin))
            self.reference = self._work(run, owned)
            self._owned = owned.pop_all()

    def _work(self, run: Launch, owned: ExitStack, *, fresh: bool = True) -> Work:
        """Return the launch as `measure` times it, or with the same data in every launch."""
        operands, seed = run.operands, derive(self.seed, "selftest", run.label)
        data: Source = (
            source(operands, self.stream, seed=seed)
            if fresh
            else DataSets(operands, operands.data_sets(1), self.stream, seed=seed)
        )
        owned.callback(data.close)
        return Work(run, visits=Visits(run, data, hot=False, seed=seed, by_element=False))

    def settling(self, idle: float) -> WarmUp:
        """Sleep for `idle` seconds, then warm up until the clock settles, for at most 10 s of GPU time."""
        time.sleep(idle)
        return sampling.warm_up(self.reference, self.timer, replace(self.rule, warmup=0, settle=_SETTLE_MOST))

    def trials(self, candidate: Cubin, runs: int, *, slowdown: float, threshold: float) -> Trials:
        """Compare `candidate` with the reference `runs` times.

        `slowdown` is the known answer, `threshold` the difference that counts. Raises HarnessError if the
        candidate computes a wrong result.
        """
        with ExitStack() as owned:
            run = owned.enter_context(kernel.prepare(candidate, self.operands))
            self.operands.restore(self.stream)
            verdict = check(run, self.stream, sets=1)
            if not verdict.ok:
                raise HarnessError(f"{run.label} is wrong: {verdict}")
            work = self._work(run, owned)
            found = compared(work, self.reference, self.timer, self.rule, runs=runs, seed=self.seed)
            return Trials(slowdown=slowdown, threshold=threshold, intervals=tuple(found))

    def data(self, candidate: Cubin, runs: int, *, threshold: float) -> DataTrials:
        """Compare the code of `candidate` on new data in every launch with the same on the same data.

        Both are timed in turn, `runs` times, and then each by itself for what it takes on the host's clock.
        """
        with ExitStack() as owned:
            same, fresh = (
                self._work(owned.enter_context(kernel.prepare(candidate, operands)), owned, fresh=new)
                for operands, new in ((self._twin, False), (self.operands, True))
            )
            found = tuple(compared(fresh, same, self.timer, self.rule, runs=runs, seed=self.seed))
            walls = []
            for work in (fresh, same, Work(same.run)):
                typical = sampling.warm_up(work, self.timer, self.rule).typical
                began = time.perf_counter()
                sampling.sample(work, self.timer, self.rule, typical=typical)
                walls.append(time.perf_counter() - began)
            trials = Trials(slowdown=0.0, threshold=threshold, intervals=found)
            return DataTrials(trials=trials, fresh=walls[0], same=walls[1], bare=walls[2])

    def close(self) -> None:
        self._owned.close()


def compared(
    candidate: Work, reference: Work, timer: Timer, rule: StopRule, *, runs: int, seed: int
) -> Iterator[Interval]:
    """Yield the ratio of times, candidate over reference, `runs` times.

    Each run has its own order of blocks and its own bootstrap, from `seed` + its number. A run of fewer than
    two blocks gives no ratio.
    """
    typical = tuple(sampling.warm_up(work, timer, rule).typical for work in (candidate, reference))
    for run in range(runs):
        pair = sampling.interleave(
            candidate, reference, timer, rule, typical=(typical[0], typical[1]), seed=seed + run
        )
        ratio = pair.ratio(seed + run)
        if ratio is not None:
            yield ratio


def worst(trials: Sequence[Trials]) -> list[str]:
    """Return a sentence for each thing that the trials show and should not; empty on a machine to be trusted.

    More than 5% of the comparisons of a kernel with itself may not find a difference, and a kernel that is
    slower by more than twice the threshold must be called SLOW in 95% of its trials.
    """
    wrong = []
    for t in trials:
        if not t.slowdown and t.called > 1 - _QUANTILE:
            wrong.append(f"{t.called:.0%} of comparisons of a kernel with itself call a difference")
        # The positive control: a slowdown well above the threshold has to be found.
        if t.slowdown > 2 * t.threshold and t.rate(SLOW) < _QUANTILE:
            wrong.append(f"a kernel slowed by {t.slowdown:.0%} is called SLOW in {t.rate(SLOW):.0%} only")
    return wrong
