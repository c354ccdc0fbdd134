"""Promises of the statistics, held against streams whose truth is known: drift, autocorrelation, outliers,
throttling steps. Every rate here is asserted from both sides: a test that never finds anything fails too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.bench import sampling, selftest, stats
from harness.bench.stats import FAST, INCONCLUSIVE, SAME, SLOW, Interval, decide
from harness.bench.stopping import StopRule
from harness.bench.timing import Batch, Timer, Work
from shared.sweeps import sweep

THRESHOLD = 0.005
RUNS = 150
RULE = StopRule(warmup=0, settle=0)


class Machine(Timer):
    """A GPU whose speed wanders as `kind` says while time goes by, whoever is running.

    A and B are told apart by the callable that is run; A takes `ratio` times as long as B.
    """

    def __init__(self, kind: str, ratio: float, seed: int) -> None:
        self.kind, self.ratio = kind, ratio
        self.rng = np.random.default_rng(seed)
        self.clock, self.wander, self.throttled = 0.0, 0.0, False
        self.a, self.b = Work(lambda _: None), Work(lambda _: None)

    def batch(self, work: Work, count: int) -> Batch:
        base = 1e-3 * (self.ratio if work is self.a else 1.0)
        if "throttle" in self.kind and self.rng.random() < 0.03:
            self.throttled = not self.throttled
        times = []
        for _ in range(count):
            factor = 1.08 if self.throttled else 1.0
            if "drift" in self.kind:
                factor *= 1 + 0.1 * self.clock  # 10% a second
            if "autocorrelation" in self.kind:
                self.wander = 0.98 * self.wander + 0.002 * self.rng.normal()
                factor *= math.exp(self.wander)
            factor *= math.exp(0.01 * self.rng.normal())
            if "outliers" in self.kind and self.rng.random() < 0.03:
                factor *= self.rng.uniform(1.2, 3)
            times.append(base * factor)
            self.clock += times[-1]
        return Batch(times=tuple(times), wall=times[-1])

    def compare(self, seed: int) -> Interval:
        pair = sampling.interleave(self.a, self.b, self, RULE, typical=(1e-3, 1e-3), seed=seed)
        ratio = pair.ratio(seed)
        assert ratio is not None
        return ratio


KINDS = ["quiet", "drift", "autocorrelation", "outliers", "throttle"]
KINDS += ["drift autocorrelation outliers throttle"]
SWEPT = sweep(KINDS, lambda kind: kind in (KINDS[0], KINDS[-1]))


@functools.cache
def intervals(kind: str, ratio: float) -> list[Interval]:
    return [Machine(kind, ratio, seed).compare(seed) for seed in range(RUNS)]


def rate(kind: str, ratio: float, wanted: Callable[[Interval], bool]) -> float:
    return sum(map(wanted, intervals(kind, ratio))) / RUNS


@pytest.mark.slow
@pytest.mark.parametrize("kind", SWEPT)
def test_a_kernel_against_itself(kind: str) -> None:
    """The interval misses the truth in about 5% of runs, and no difference is called at the threshold."""
    missed = rate(kind, 1.0, lambda i: not i.low <= 1 <= i.high)
    assert missed <= 0.09  # 5% and two standard deviations of 150 runs
    assert rate(kind, 1.0, lambda i: decide(i, THRESHOLD) in (FAST, SLOW)) <= 0.01
    assert rate(kind, 1.0, lambda i: decide(i, 0.0) == SAME) == 0  # nothing is ever shown to be exactly equal


@pytest.mark.slow
@pytest.mark.parametrize("kind", SWEPT)
@pytest.mark.parametrize("slowdown", [0.01, pytest.param(0.03, marks=pytest.mark.slow)])
def test_slower_kernels_are_found(kind: str, slowdown: float) -> None:
    found = rate(kind, 1 + slowdown, lambda i: decide(i, THRESHOLD) == SLOW)
    assert found >= (0.95 if slowdown == 0.03 or kind == "quiet" else 0.6)


def test_taking_turns_is_what_makes_it_hold() -> None:
    """The control: the same drift, one kernel after the other, is called a difference."""

    def apart(seed: int) -> Interval:
        machine = Machine("drift", 1.0, seed)
        first = sampling.sample(machine.a, machine, RULE, typical=1e-3)
        second = sampling.sample(machine.b, machine, RULE, typical=1e-3)
        ratio = stats.unpaired_ratio(second.times, first.times, seed=seed)
        assert ratio is not None
        return ratio

    assert all(decide(apart(seed), THRESHOLD) == SLOW for seed in range(20))


@pytest.mark.slow
def test_counting_every_sample_as_independent_would_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the block bootstrap: an autocorrelated stream, cut into blocks of one."""

    def series(seed: int) -> Any:
        rng, x = np.random.default_rng(seed), np.zeros(400)
        for i in range(1, len(x)):
            x[i] = 0.9 * x[i - 1] + 0.01 * rng.normal()
        return np.exp(x)

    def missed() -> float:
        ratios = [stats.paired_ratio(series(s), np.ones(400), seed=s) for s in range(100)]
        return sum(r is not None and not r.low <= 1 <= r.high for r in ratios) / 100

    with_blocks = missed()
    monkeypatch.setattr(stats, "block_length", lambda _series: 1)
    assert missed() > 0.5 > 3 * with_blocks


def test_block_length() -> None:
    rng = np.random.default_rng(0)
    white = rng.normal(size=500)
    slow = np.convolve(rng.normal(size=520), np.ones(20), mode="valid")[:500]
    assert stats.block_length(white) <= 3 and 10 < stats.block_length(slow) <= 125
    assert stats.block_length(np.ones(50)) == 1 and stats.block_length(white[:5]) == 1


def test_decisions() -> None:
    def status(low: float, high: float, threshold: float = 0.02) -> str:
        return decide(Interval(low=low, estimate=(low + high) / 2, high=high), threshold)

    assert status(0.99, 1.01) == SAME and status(0.999, 1.001, 0.0) == INCONCLUSIVE
    assert status(1.03, 1.05) == SLOW and status(0.93, 0.95) == FAST
    assert status(1.01, 1.03) == status(0.5, 2.0) == status(0.97, 0.99) == INCONCLUSIVE
    assert status(1.0, 1.0, 0.0) == SAME


def test_swapping_the_sides_swaps_the_verdict() -> None:
    rng = np.random.default_rng(3)
    a, b = np.exp(0.01 * rng.normal(size=40)) * 1.05, np.exp(0.01 * rng.normal(size=40))
    one, other = stats.paired_ratio(a, b, seed=1), stats.paired_ratio(b, a, seed=1)
    assert one is not None and other is not None
    assert decide(one, 0.01) == SLOW and decide(other, 0.01) == FAST
    assert one.inverse.estimate == pytest.approx(other.estimate)
    assert one.inverse.low == pytest.approx(other.low, rel=2e-3)


def test_too_little_to_go_by() -> None:
    assert (
        stats.paired_ratio([1.0], [1.0], seed=0) is None
        and stats.unpaired_ratio([1.0], [1.0], seed=0) is None
    )
    two = stats.paired_ratio([1.0, 1.1], [1.0, 1.0], seed=0)
    assert two is not None and two.high - two.low > 0.5  # a t quantile of 12.7


def test_the_same_seed_gives_the_same_interval() -> None:
    a, b = np.random.default_rng(5).uniform(1, 1.1, (2, 30))
    assert stats.paired_ratio(a, b, seed=1) == stats.paired_ratio(a, b, seed=1)
    assert stats.paired_ratio(a, b, seed=1) != stats.paired_ratio(a, b, seed=2)


def test_student_t() -> None:
    """Against the printed tables, 95% two-sided."""
    for freedom, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045)):
        assert stats.student_t(freedom) == pytest.approx(expected, rel=0.01)


# ---- taking turns ----------------------------------------------------------------------------------


def test_blocks_are_abba_or_baab_as_a_coin_falls() -> None:
    order = [next(o) for o in [sampling.orders(1)] for _ in range(200)]
    assert set(order) == {"ABBA", "BAAB"} and 70 < order.count("ABBA") < 130
    again = sampling.orders(1)
    assert [next(again) for _ in range(200)] == order


def test_the_turns_are_taken_in_that_order() -> None:
    machine = Machine("quiet", 1.0, 1)
    ran = []
    real = machine.batch
    machine.batch = lambda work, n: ran.append("A" if work is machine.a else "B") or real(work, n)  # type: ignore
    pair = sampling.interleave(machine.a, machine.b, machine, RULE, typical=(1e-3, 1e-3), seed=7)
    assert "".join(ran) == "".join(pair.order)
    assert len(pair.candidate.batches) == len(pair.baseline.batches) == 2 * len(pair.order)
    assert len(pair.order) >= RULE.min_blocks


def test_slow_kernels_take_fewer_turns_and_say_so_by_a_wider_interval() -> None:
    machine = Machine("quiet", 1.0, 1)
    rule = StopRule(timeout=0.02, min_samples=10, warmup=0, settle=0)
    pair = sampling.interleave(machine.a, machine.b, machine, rule, typical=(1.0, 1.0), seed=1)
    assert len(pair.order) < 15 and pair.candidate.stopped == "timeout"
    few, many = pair.ratio(1), machine.compare(1)
    assert few is not None and few.half_width > 2 * many.half_width


def test_a_throttled_turn_takes_its_block_with_it() -> None:
    class Throttling(Machine):
        turns = 0

        def batch(self, work: Work, count: int) -> Batch:
            self.turns += 1
            found = super().batch(work, count)
            hertz = 1e9 if self.turns == 6 else 1.9e9  # the second turn of the second block
            return Batch(times=found.times, wall=found.wall, sm_hz=hertz, rated_hz=1.98e9)

    machine = Throttling("quiet", 1.0, 1)
    pair = sampling.interleave(machine.a, machine.b, machine, RULE, typical=(1e-3, 1e-3), seed=1)
    assert len(pair.candidate.discarded) == 1 and machine.turns == 4 * (len(pair.order) + 1)
    assert min(b.sm_hz or 0 for b in (*pair.candidate.batches, *pair.baseline.batches)) == 1.9e9


# ---- the self-test's own numbers -------------------------------------------------------------------


def trials(slowdown: float, kind: str = "quiet", runs: int = 60) -> selftest.Trials:
    machine = Machine(kind, 1 + slowdown, 11)
    found = selftest.compared(machine.a, machine.b, machine, RULE, runs=runs, seed=1)
    return selftest.Trials(slowdown=slowdown, threshold=THRESHOLD, intervals=tuple(found))


@pytest.mark.slow
def test_selftest_on_an_honest_machine() -> None:
    itself, slower = trials(0.0), trials(0.03)
    assert itself.called == 0 and itself.excluded <= 0.15 and slower.rate(SLOW) == 1
    assert slower.estimate == pytest.approx(0.03, abs=0.002)
    assert selftest.worst([itself, slower]) == []
    # What it calls detectable is, and half of it is not.
    seen = [trials(share * itself.detectable).intervals for share in (1.3, 0.3)]
    found = [sum(i.low > 1 for i in intervals) / len(intervals) for intervals in seen]
    assert found[0] >= 0.9 and found[1] <= 0.5


def test_selftest_on_a_machine_that_lies() -> None:
    """One side is always 2% faster, whatever runs there; and one where nothing can be told."""
    biased = trials(0.02)
    lying = selftest.Trials(slowdown=0.0, threshold=THRESHOLD, intervals=biased.intervals)
    (wrong,) = selftest.worst([lying])
    assert wrong == "100% of comparisons of a kernel with itself call a difference"
    wide = tuple(Interval(low=0.9, estimate=1.03, high=1.2) for _ in range(10))
    (wrong,) = selftest.worst([selftest.Trials(slowdown=0.03, threshold=THRESHOLD, intervals=wide)])
    assert wrong == "a kernel slowed by 3% is called SLOW in 0% only"
