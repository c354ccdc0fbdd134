"""What this machine can tell apart: kernels against themselves, and against some that are known to be slower.

A comparison is worth what it says of two things that are the same. The trials here go through the very code
that compares a kernel with cuBLAS.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from harness.bench import sampling
from harness.bench.measure import check
from harness.bench.nvml import Telemetry
from harness.bench.sampling import WarmUp
from harness.bench.stats import FAST, SLOW, Interval, decide
from harness.bench.stopping import StopRule
from harness.bench.timing import EventTimer, Timer, Work
from harness.driver import Context, Stream
from harness.errors import HarnessError
from harness.kernels.compiler import Cubin
from harness.launch import kernel
from harness.launch.operands import Operands, Twin, rotation_sets
from harness.problems.protocol import Problem
from harness.support.resources import Closing

_QUANTILE = 0.95
_SETTLE_MOST = 10.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Trials:
    """One comparison, many times over. `slowdown` is what it should say: 0.01 for 1% slower."""

    slowdown: float
    threshold: float
    intervals: tuple[Interval, ...]

    def rate(self, *statuses: str) -> float:
        """The fraction of trials decided so."""
        return float(np.mean([decide(i, self.threshold) in statuses for i in self.intervals]))

    @property
    def called(self) -> float:
        """The fraction that said FAST or SLOW: of a kernel against itself, false positives."""
        return self.rate(FAST, SLOW)

    @property
    def excluded(self) -> float:
        """The fraction whose interval does not hold `slowdown`: 5% of honest 95% intervals."""
        return float(np.mean([not i.low <= 1 + self.slowdown <= i.high for i in self.intervals]))

    @property
    def estimate(self) -> float:
        """The median ratio less 1."""
        return float(np.median([i.estimate for i in self.intervals])) - 1

    @property
    def half_width(self) -> float:
        return float(np.median([i.half_width for i in self.intervals]))

    @property
    def detectable(self) -> float:
        """The least slowdown whose interval would lie above 1 in 95% of such trials, going by these of a
        kernel against itself: each would move by the slowdown as a whole.
        """
        return float(np.quantile([i.half_width - (i.estimate - 1) for i in self.intervals], _QUANTILE))


class SelfTest(Closing):
    """Kernels on one problem, in turn with `reference`, on this GPU."""

    def __init__(
        self, context: Context, reference: Cubin, problem: Problem, *, rule: StopRule, seed: int
    ) -> None:
        self.rule, self.seed = rule, seed
        with ExitStack() as owned:
            self.stream = owned.enter_context(Stream(context))
            self.timer = owned.enter_context(
                EventTimer(context, self.stream, owned.enter_context(Telemetry(context.device.uuid)))
            )
            sets = rotation_sets(context, problem)
            self.operands = owned.enter_context(Operands(context, problem, self.stream, seed=seed, sets=sets))
            twin = owned.enter_context(Twin(self.operands, self.stream))
            self.reference = Work(owned.enter_context(kernel.prepare(reference, twin)))
            self._owned = owned.pop_all()

    def settling(self, idle: float) -> WarmUp:
        """How long the clock takes to settle, in seconds of GPU time, after `idle` seconds without work."""
        time.sleep(idle)
        return sampling.warm_up(self.reference, self.timer, replace(self.rule, warmup=0, settle=_SETTLE_MOST))

    def trials(self, candidate: Cubin, runs: int, *, slowdown: float, threshold: float) -> Trials:
        """Compare `candidate` with the reference `runs` times. A kernel that is wrong raises HarnessError."""
        with kernel.prepare(candidate, self.operands) as run:
            verdict = check(run, self.stream, sets=run.sets)
            if not verdict.ok:
                raise HarnessError(f"{run.label} is wrong: {verdict}")
            found = compared(Work(run), self.reference, self.timer, self.rule, runs=runs, seed=self.seed)
            return Trials(slowdown=slowdown, threshold=threshold, intervals=tuple(found))

    def close(self) -> None:
        self._owned.close()


def compared(
    candidate: Work, reference: Work, timer: Timer, rule: StopRule, *, runs: int, seed: int
) -> Iterator[Interval]:
    """The ratio of their times, `runs` times over, each with a schedule and a bootstrap of its own."""
    typical = tuple(sampling.warm_up(work, timer, rule).typical for work in (candidate, reference))
    for run in range(runs):
        pair = sampling.interleave(
            candidate, reference, timer, rule, typical=(typical[0], typical[1]), seed=seed + run
        )
        ratio = pair.ratio(seed + run)
        if ratio is not None:
            yield ratio


def worst(trials: Sequence[Trials]) -> list[str]:
    """What the trials show that they should not, in words: nothing, on a machine to be trusted."""
    wrong = []
    for t in trials:
        if not t.slowdown and t.called > 1 - _QUANTILE:
            wrong.append(f"{t.called:.0%} of comparisons of a kernel with itself call a difference")
        # The positive control: well above the threshold, a slower kernel has to be called so.
        if t.slowdown > 2 * t.threshold and t.rate(SLOW) < _QUANTILE:
            wrong.append(f"a kernel slowed by {t.slowdown:.0%} is called SLOW in {t.rate(SLOW):.0%} only")
    return wrong
