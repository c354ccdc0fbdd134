"""Launches -> samples: how a GPU time is taken, how long to warm up, and when there are enough.

The clock is injected (`Timer`), the stopping rule is pure, so everything here but `EventTimer` is tested
without a GPU. A sample that is not there has a reason: `Samples.stopped` says why sampling ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from harness.closing import Closing
from harness.driver import Context, Event, Gate, Stream
from harness.stats import Summary, summarize
from harness.telemetry import Reading, Telemetry

Run = Callable[[Stream], object]

_BATCH_SECONDS = 0.02
# Launches and their events wait behind a gate in the driver's queue, about 1024 entries deep; a full queue
# would block the host that is to open the gate.
_BATCH_MOST = 100
_WARMUP_MOST = 50_000  # runs; kernels of 2 us reach the warm-up's time before


class Timer(Protocol):
    """`batch` runs a callable `count` times and returns that many GPU times in seconds; what a sensor saw
    meanwhile goes to the end of `readings`.
    """

    readings: list[Reading]

    def batch(self, run: Run, count: int) -> list[float]: ...


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """Sampling ends when there are `min_samples`, `min_time` seconds of them and the noise (interquartile
    range over median) is at most `max_noise`. With `timeout` seconds of samples the noise no longer matters,
    with `max_samples` (or `min_samples`, if more) nothing does.

    The names are nvbench's options; its noise is a relative standard deviation, which outliers swell.
    """

    min_samples: int = 10
    min_time: float = 0.2
    max_noise: float = 0.005
    timeout: float = 2.0
    max_samples: int = 4_000
    warmup: float = 0.1

    def decide(self, times: Sequence[float]) -> str:
        """Why to stop now, in a few words; empty to go on."""
        total = math.fsum(times)
        if len(times) >= max(self.max_samples, self.min_samples):
            return "most samples"
        if len(times) >= self.min_samples:
            if total >= self.min_time and summarize(times).noise <= self.max_noise:
                return "noise reached"
            if total >= self.timeout:
                return "timeout"
        return ""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """GPU times in seconds, in the order taken; `readings` is what NVML said meanwhile."""

    times: tuple[float, ...]
    stopped: str
    readings: tuple[Reading, ...] = field(default=(), repr=False)

    @property
    def summary(self) -> Summary:
        return summarize(self.times)


def sample(run: Run, timer: Timer, rule: StopRule, *, typical: float, at_least: int = 1) -> Samples:
    """Take batches until `rule` says why to stop; `typical` is about what one run takes (`warm_up`).

    `at_least` runs happen in any case, so that a launch which rotates its operands visits all of them.
    """
    seen = len(timer.readings)
    size = max(1, min(_BATCH_MOST, int(_BATCH_SECONDS / typical) if typical > 0 else _BATCH_MOST))
    times: list[float] = []
    while not (stopped := rule.decide(times)) or len(times) < at_least:
        times += timer.batch(run, size)
    return Samples(times=tuple(times), stopped=stopped, readings=tuple(timer.readings[seen:]))


def warm_up(run: Run, timer: Timer, rule: StopRule) -> float:
    """Run for `rule.warmup` seconds of GPU time, or _WARMUP_MOST times; a typical time of one run."""
    spent, runs, count = 0.0, 0, 1
    while True:
        times = timer.batch(run, count)
        spent, runs = spent + math.fsum(times), runs + count
        typical = summarize(times).median
        if spent >= rule.warmup or runs >= _WARMUP_MOST or typical <= 0:
            return typical
        count = max(1, min(_BATCH_MOST, math.ceil((rule.warmup - spent) / typical)))


class EventTimer(Closing):
    """A CUDA event before and after each run, all of a batch queued behind a gate.

    The gate opens when the whole batch is enqueued: the GPU then goes from event to kernel to event
    without waiting for the host, and launch latency stays out of the times. What remains is the cost of
    the events themselves, a microsecond or two.
    """

    def __init__(self, context: Context, stream: Stream, telemetry: Telemetry) -> None:
        self._stream, self._telemetry = stream, telemetry
        self.readings: list[Reading] = []
        with ExitStack() as owned:
            self._gate = owned.enter_context(Gate(context))
            self._events = [
                (owned.enter_context(Event(context)), owned.enter_context(Event(context)))
                for _ in range(_BATCH_MOST)
            ]
            self._owned = owned.pop_all()

    def batch(self, run: Run, count: int) -> list[float]:
        events, stream = self._events[:count], self._stream
        with self._gate.holding(stream):
            for start, end in events:
                start.record(stream)
                run(stream)
                end.record(stream)
        reading = self._telemetry.read()  # the clock that counts is the one while the batch runs
        if reading is not None and not events[-1][1].done:
            self.readings.append(reading)
        events[-1][1].synchronize()
        return [end.seconds_since(start) for start, end in events]

    def close(self) -> None:
        self._owned.close()
