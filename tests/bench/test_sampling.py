"""Sampling without a GPU: warming up, stopping, rotating, discarding; what a summary says."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from harness.bench import sampling
from harness.bench.nvml import Reading
from harness.bench.nvml import summarize as summarize_readings
from harness.bench.sampling import Samples
from harness.bench.stats import summarize
from harness.bench.stopping import StopRule, entropy, stdrel
from harness.bench.timing import Batch, Timer, Work
from harness.errors import HarnessError, UsageError

READING = Reading(sm_mhz=1980, power=600.0, temperature=40, throttle=())


class FakeTimer:
    """Times from a function of the run's index; counts what was really run. `clock` likewise, in Hz."""

    def __init__(
        self, time_of: Callable[[int], float], clock: Callable[[int], float] | None = lambda i: 1.98e9
    ) -> None:
        self.time_of, self.clock, self.runs, self.batches = time_of, clock, 0, []

    def batch(self, work: Work, count: int) -> Batch:
        times = []
        for _ in range(count):
            work.run(None)  # type: ignore[arg-type]
            times.append(self.time_of(self.runs))
            self.runs += 1
        self.batches.append(count)
        clock = self.clock(self.runs) if self.clock else None
        reading = replace(READING, power=600.0 + self.runs)
        return Batch(
            times=tuple(times), wall=max(times) + 2e-6, sm_hz=clock, rated_hz=1.98e9, reading=reading
        )


WORK = Work(lambda _stream: None)


def sample(timer: Timer, rule: StopRule) -> Samples:
    typical = sampling.warm_up(WORK, timer, rule).typical
    return sampling.sample(WORK, timer, rule, typical=typical)


def test_summary() -> None:
    s = summarize([3.0, 1.0, 2.0, 4.0, 100.0])
    assert (s.samples, s.median, s.mean, s.minimum, s.maximum) == (5, 3.0, 22.0, 1.0, 100.0)
    assert s.noise == pytest.approx(2 / 3)  # (4 - 2) / 3: the outlier does not count
    assert s.stdev == pytest.approx(np.std([3, 1, 2, 4, 100], ddof=1) / 22)
    with pytest.raises(ValueError):
        summarize([])


@pytest.mark.parametrize(
    ("batches", "unevenness"),
    [
        ([(1.0,) * 100] * 5, 1.0),
        ([(100.0, *[1e-3] * 99)] * 5, 1000.99),  # one launch of each batch does everything
        ([(50.0, *[1.0] * 99), *[(1.0,) * 100] * 4], 1.0),  # something else held one of them up
        ([(9.0, 1.0)] * 5, 1.0),  # the median of two is their mean
    ],
)
def test_unevenness(batches: list[tuple[float, ...]], unevenness: float) -> None:
    samples = Samples(batches=tuple(Batch(times=t, wall=None) for t in batches), stopped="")
    assert samples.unevenness == pytest.approx(unevenness)


def test_quiet_kernel_stops_at_the_minimum_time() -> None:
    timer = FakeTimer(lambda i: 1e-3)
    samples = sample(timer, StopRule(min_time=0.2, warmup=0.1))
    assert samples.stopped == "noise reached"
    assert sum(samples.times) == pytest.approx(0.2, abs=0.03)
    assert samples.cycles == pytest.approx(1e-3 * 1.98e9) and samples.wall == pytest.approx(1.002e-3)


def test_noisy_kernel_stops_when_its_noise_no_longer_changes() -> None:
    rng = np.random.default_rng(0)
    timer = FakeTimer(lambda i: 1e-3 * rng.uniform(0.5, 1.5))
    samples = sample(timer, StopRule(timeout=100, max_samples=10**6))
    assert samples.stopped == "noise stable" and len(samples.times) < 3000


def test_a_kernel_that_never_calms_down_stops_at_the_timeout() -> None:
    samples = sample(FakeTimer(lambda i: 1e-3 * 1.02**i), StopRule(timeout=0.5))
    assert samples.stopped == "timeout" and sum(samples.times) >= 0.5


def test_slow_kernel_still_gives_the_least_samples() -> None:
    samples = sample(FakeTimer(lambda i: 3.0), StopRule(min_samples=10))
    assert len(samples.times) == 10


def test_warm_up_is_not_sampled() -> None:
    """A clock that rises during the warm-up must not show in the samples."""
    samples = sample(FakeTimer(lambda i: 5e-3 if i < 20 else 1e-3), StopRule(warmup=0.1))
    assert set(samples.times) == {1e-3}


def test_warm_up_lasts_until_the_clock_settles() -> None:
    rising = FakeTimer(lambda i: 1e-3, clock=lambda i: min(1.98e9, 1.2e9 + 1e6 * i))  # settles at 780 runs
    warm = sampling.warm_up(WORK, rising, StopRule())
    assert warm.settled is True and 0.78 < warm.seconds < 1.2
    restless = FakeTimer(lambda i: 1e-3, clock=lambda i: 1.9e9 if i % 2 else 1.6e9)
    warm = sampling.warm_up(WORK, FakeTimer(lambda i: 1e-3, clock=None), StopRule())
    assert warm.settled is None and warm.seconds < 0.2  # no clock: by time alone
    clocks = iter([1.9e9, 1.6e9] * 1000)
    restless = FakeTimer(lambda i: 1e-3, clock=lambda i: next(clocks))
    warm = sampling.warm_up(WORK, restless, StopRule(settle=0.5))
    assert warm.settled is False and 0.5 <= warm.seconds < 0.7


def test_batches_fit_the_launch_queue() -> None:
    timer = FakeTimer(lambda i: 1e-6)
    sample(timer, StopRule())
    assert max(timer.batches) == 100


@pytest.mark.parametrize("seconds", [0.0, 1e-12])
def test_an_absurd_timer_ends_all_the_same(seconds: float) -> None:
    timer = FakeTimer(lambda i: seconds)
    samples = sample(timer, StopRule(max_samples=1000))
    assert samples.stopped == "most samples" and len(samples.times) < 1200 and timer.runs < 52_000


def test_readings_belong_to_the_samples() -> None:
    timer = FakeTimer(lambda i: 1e-3)
    samples = sample(timer, StopRule())
    assert len(samples.readings) == len(samples.batches) < len(timer.batches)
    assert samples.readings[0].power > 700  # those of the warm-up are left out


def test_throttled_batches_are_discarded_with_their_reason() -> None:
    slow = FakeTimer(lambda i: 1e-3, clock=lambda i: 1.0e9 if 300 < i < 400 else 1.98e9)
    samples = sample(slow, StopRule())
    assert 3 <= len(samples.discarded) <= 6
    assert samples.discarded[0] == "SM clock at 51% of the rated one"
    assert all(b.sm_hz == 1.98e9 for b in samples.batches)
    kept = sample(slow, StopRule(throttle_threshold=0.5))
    assert not kept.discarded


def test_throttling_without_end_is_an_error() -> None:
    with pytest.raises(HarnessError, match="throttled: .* SM clock at 51%") as caught:
        sample(FakeTimer(lambda i: 1e-3, clock=lambda i: 1e9), StopRule())
    assert "--throttle-threshold" in caught.value.hint


def test_a_graphs_runs_are_counted_one_by_one() -> None:
    timer = FakeTimer(lambda i: 1e-5)  # seconds a run; the timer has divided already
    work = Work(lambda _stream: None, repeats=200)
    samples = sampling.sample(work, timer, StopRule(), typical=1e-5)
    assert set(samples.times) == {1e-5}
    assert timer.runs * 200 * 1e-5 == pytest.approx(0.2, abs=0.05)  # min_time is of GPU time


def test_criteria() -> None:
    rng = np.random.default_rng(1)
    quiet = [1.0 + 1e-4 * x for x in rng.normal(size=50)]
    assert stdrel(quiet, 0.005) == "noise reached" and stdrel([1.0], 0.005) == ""
    assert stdrel([1.0, 1.2] * 20, 0.005) == ""  # 40 samples: too few to call a noise stable
    assert stdrel([1.0, 1.2] * 400, 0.005) == "noise stable"
    quantised = [float(x) for x in rng.choice([1.0, 1.5, 2.0], size=2000)]
    assert entropy(quantised, 0) == "entropy stable" or entropy(quantised[:1999], 0) == "entropy stable"
    assert entropy([float(i) for i in range(100)], 0) == ""  # every time a new one: still growing
    assert entropy([1.0], 0) == ""
    with pytest.raises(UsageError, match="no stopping criterion 'magic'"):
        StopRule(criterion="magic")


def test_stdrel_is_the_textbook_formula() -> None:
    """Written for whole arrays at once; the same sample by sample."""
    times = list(np.random.default_rng(2).uniform(1, 1.01, 30))
    noise = np.std(times, ddof=1) / np.mean(times)
    assert stdrel(times, noise * 1.0001) == "noise reached" and stdrel(times, noise * 0.9999) == ""


def test_entropy_is_the_textbook_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(np, "polyfit", lambda x, y, d: seen.extend(y) or (0.0, 0.0))
    entropy([1.0, 2.0, 1.0, 3.0], 0)
    assert seen == pytest.approx([0, 1, 0.9182958340544896, 1.5])


def test_reading_summary() -> None:
    make = lambda mhz, w, t, why: Reading(sm_mhz=mhz, power=w, temperature=t, throttle=why)  # noqa: E731
    s = summarize_readings(
        [make(1980, 500, 40, ()), make(1500, 690, 60, ("power cap",)), make(1965, 600, 50, ())]
    )
    assert s == make(1965, 600, 60, ("power cap",))
    assert summarize_readings([]) is None
