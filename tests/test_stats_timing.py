from collections.abc import Callable

import numpy as np
import pytest

from harness import timing
from harness.stats import summarize
from harness.telemetry import Reading
from harness.telemetry import summarize as summarize_readings
from harness.timing import Run, Samples, StopRule, Timer


class FakeTimer:
    """Times from a function of the run's index; counts what was really run."""

    def __init__(self, time_of: Callable[[int], float]) -> None:
        self.time_of, self.runs, self.batches = time_of, 0, []
        self.readings: list[Reading] = []

    def batch(self, run, count):  # type: ignore[no-untyped-def]
        times = []
        for _ in range(count):
            run(None)
            times.append(self.time_of(self.runs))
            self.runs += 1
        self.batches.append(count)
        self.readings.append(Reading(sm_mhz=1980, power=600.0 + self.runs, temperature=40, throttle=()))
        return times


def run(_stream: object) -> None:
    pass


def sample(run: Run, timer: Timer, rule: StopRule, *, at_least: int = 1) -> Samples:
    typical = timing.warm_up(run, timer, rule)
    return timing.sample(run, timer, rule, typical=typical, at_least=at_least)


def test_summary() -> None:
    s = summarize([3.0, 1.0, 2.0, 4.0, 100.0])
    assert (s.samples, s.median, s.minimum, s.maximum) == (5, 3.0, 1.0, 100.0)
    assert s.noise == pytest.approx(2 / 3)  # (4 - 2) / 3: the outlier does not count
    with pytest.raises(ValueError):
        summarize([])


def test_quiet_kernel_stops_at_the_minimum_time() -> None:
    timer = FakeTimer(lambda i: 1e-3)
    samples = sample(run, timer, StopRule(min_time=0.2, warmup=0.1))
    assert samples.stopped == "noise reached"
    assert sum(samples.times) == pytest.approx(0.2, abs=0.03)
    assert timer.runs == len(samples.times) + 100  # the warm-up, 0.1 s, is left out


def test_noisy_kernel_stops_at_the_timeout() -> None:
    rng = np.random.default_rng(0)
    samples = sample(run, FakeTimer(lambda i: 1e-3 * rng.uniform(0.5, 1.5)), StopRule(timeout=0.5))
    assert samples.stopped == "timeout" and sum(samples.times) >= 0.5


def test_slow_kernel_still_gives_the_least_samples() -> None:
    samples = sample(run, FakeTimer(lambda i: 3.0), StopRule(min_samples=10))
    assert len(samples.times) == 10


def test_warm_up_is_not_sampled() -> None:
    """A clock that rises during the warm-up must not show in the samples."""
    samples = sample(run, FakeTimer(lambda i: 5e-3 if i < 20 else 1e-3), StopRule(warmup=0.1))
    assert set(samples.times) == {1e-3}


def test_every_set_of_operands_is_visited() -> None:
    samples = sample(run, FakeTimer(lambda i: 0.05), StopRule(min_samples=2, min_time=0.1), at_least=40)
    assert len(samples.times) >= 40


def test_batches_fit_the_launch_queue() -> None:
    timer = FakeTimer(lambda i: 1e-6)
    sample(run, timer, StopRule())
    assert max(timer.batches) == 100


@pytest.mark.parametrize("seconds", [0.0, 1e-12])
def test_an_absurd_timer_ends_all_the_same(seconds: float) -> None:
    timer = FakeTimer(lambda i: seconds)
    samples = sample(run, timer, StopRule(max_samples=1000))
    assert samples.stopped == "most samples" and len(samples.times) < 1200 and timer.runs < 52_000


def test_readings_belong_to_the_samples() -> None:
    timer = FakeTimer(lambda i: 1e-3)
    samples = sample(run, timer, StopRule())
    assert samples.readings == tuple(timer.readings[-len(samples.readings) :])
    assert len(samples.readings) < len(timer.readings)  # those of the warm-up are left out


def test_reading_summary() -> None:
    make = lambda mhz, w, t, why: Reading(sm_mhz=mhz, power=w, temperature=t, throttle=why)  # noqa: E731
    s = summarize_readings(
        [make(1980, 500, 40, ()), make(1500, 690, 60, ("power cap",)), make(1965, 600, 50, ())]
    )
    assert s == make(1965, 600, 60, ("power cap",))
    assert summarize_readings([]) is None
