"""Batches -> samples: warming up, when to stop, and two kernels in turn. Tested without a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.bench.nvml import Reading
from harness.bench.stats import Interval, Summary, paired_ratio, summarize
from harness.bench.stopping import StopRule
from harness.bench.timing import MOST, Batch, Timer, Work
from harness.errors import HarnessError

_BATCH_SECONDS = 0.02
_WARMUP_MOST = 50_000  # runs; kernels of 2 us reach the warm-up's time before
_SETTLED = 0.005  # the SM clock's range over the last _SETTLED_BATCHES batches
_SETTLED_BATCHES = 5
_CLOCKS_APART = 0.01  # of the clock: within it two kernels count as run at the same one


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """`typical` is about the seconds of one run; `settled` is None where the clock cannot be measured."""

    typical: float
    seconds: float
    settled: bool | None


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Batches in the order taken. `discarded` says of each batch that does not count why not."""

    batches: tuple[Batch, ...] = field(repr=False)
    stopped: str
    discarded: tuple[str, ...] = ()

    @property
    def times(self) -> tuple[float, ...]:
        """GPU seconds."""
        return tuple(t for b in self.batches for t in b.times)

    @property
    def summary(self) -> Summary:
        return summarize(self.times)

    @property
    def wall(self) -> float | None:
        """Seconds a run on the host's clock."""
        walls = [b.wall for b in self.batches if b.wall is not None]
        return float(np.median(walls)) if walls else None

    @property
    def sm_hz(self) -> float | None:
        clocks = [b.sm_hz for b in self.batches if b.sm_hz]
        return float(np.median(clocks)) if clocks else None

    @property
    def cycles(self) -> float | None:
        """SM cycles a run, each batch by its own clock."""
        cycles = [b.median * b.sm_hz for b in self.batches if b.sm_hz]
        return float(np.median(cycles)) if cycles else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What must be known with the times: how many batches do not count."""
        if not self.discarded:
            return ()
        n, batches = len(self.discarded), len(self.discarded) + len(self.batches)
        return (f"{n} of {batches} batches discarded, the last for: {self.discarded[-1]}",)

    @property
    def readings(self) -> tuple[Reading, ...]:
        return tuple(b.reading for b in self.batches if b.reading)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Candidate and baseline in turn: block i of `order` is ``ABBA`` or ``BAAB`` (A the candidate), and took
    the i-th two batches of either.
    """

    candidate: Samples
    baseline: Samples
    order: tuple[str, ...]

    def ratio(self, seed: int) -> Interval | None:
        """Of the times, candidate / baseline, block by block; None of a single block."""
        return paired_ratio(_block_times(self.candidate), _block_times(self.baseline), seed=seed)

    def remarks(self, against: str) -> tuple[str, ...]:
        """Where power moves the clock of one side, a ratio of times is not one of cycles."""
        a, b = self.candidate.sm_hz, self.baseline.sm_hz
        if not a or not b or abs(a - b) <= _CLOCKS_APART * max(a, b):
            return ()
        return (f"the SM clock was {a / 1e6:.0f} MHz in its turns, {b / 1e6:.0f} MHz in {against}'s",)


def warm_up(work: Work, timer: Timer, rule: StopRule) -> WarmUp:
    """Run for `rule.warmup` seconds of GPU time and until the clock has settled, at most `rule.settle`."""
    spent, runs, count = 0.0, 0, 1
    clocks: list[float | None] = []
    while True:
        batch = timer.batch(work, count)
        taken = math.fsum(batch.times) * work.repeats
        spent, runs, typical = spent + taken, runs + count, batch.median
        clocks.append(batch.sm_hz)
        settled = _settled(clocks)
        enough = spent >= rule.warmup and (settled is not False or spent >= rule.settle)
        if enough or runs >= _WARMUP_MOST or typical <= 0:
            return WarmUp(typical=typical, seconds=spent, settled=settled)
        left = max(rule.warmup - spent, _BATCH_SECONDS)
        count = _count(typical * work.repeats, min(left, 5 * _BATCH_SECONDS))


def _settled(clocks: Sequence[float | None]) -> bool | None:
    """None where there is no clock to go by: the first batches are short, and may have none."""
    known = [c for c in clocks if c is not None][-_SETTLED_BATCHES:]
    if not known:
        return None
    return len(known) == _SETTLED_BATCHES and max(known) - min(known) <= _SETTLED * min(known)


def sample(work: Work, timer: Timer, rule: StopRule, *, typical: float, at_least: int = 1) -> Samples:
    """Take batches until `rule` says why to stop; `typical` is about what one run takes (`warm_up`).

    `at_least` runs happen in any case: of a launch that rotates its operands, on as many sets of them.
    Raises HarnessError where nothing was left because of `rule.throttle_threshold`.
    """
    size = _count(typical * work.repeats, _BATCH_SECONDS)
    kept: list[Batch] = []
    discarded: list[str] = []
    times: list[float] = []
    lost = 0.0
    while not (stopped := rule.decide(times)) or len(times) * work.repeats < at_least:
        batch = timer.batch(work, size)
        if reason := _too_slow([batch], rule):
            discarded.append(reason)
            lost += math.fsum(batch.times) * work.repeats
            _give_up(kept, discarded, lost, rule)
            continue
        kept.append(batch)
        times += [t * work.repeats for t in batch.times]
    return Samples(batches=tuple(kept), stopped=stopped, discarded=tuple(discarded))


def interleave(
    candidate: Work,
    baseline: Work,
    timer: Timer,
    rule: StopRule,
    *,
    typical: tuple[float, float],
    seed: int,
    at_least: int = 1,
) -> Pair:
    """The same for two kernels in turn, in blocks of two batches of each; `rule` goes by the candidate.

    A discarded batch takes its whole block with it: halves cannot be compared.
    """
    works = {"A": candidate, "B": baseline}
    sizes = {s: _count(t * works[s].repeats, rule.turn) for s, t in zip("AB", typical, strict=True)}
    kept: dict[str, list[Batch]] = {"A": [], "B": []}
    order: list[str] = []
    discarded: list[str] = []
    times: list[float] = []
    lost = 0.0
    for block in orders(seed):
        enough = len(order) >= rule.min_blocks
        if (stopped := rule.decide(times, enough=enough)) and len(times) * candidate.repeats >= at_least:
            break
        turns = [(side, timer.batch(works[side], sizes[side])) for side in block]
        if reason := _too_slow([batch for _, batch in turns], rule):
            discarded.append(reason)
            lost += sum(math.fsum(batch.times) * works[side].repeats for side, batch in turns)
            _give_up(order, discarded, lost, rule)
            continue
        order.append(block)
        for side, batch in turns:
            kept[side].append(batch)
        times += [t * candidate.repeats for side, batch in turns if side == "A" for t in batch.times]
    a, b = (Samples(batches=tuple(kept[side]), stopped=stopped, discarded=tuple(discarded)) for side in "AB")
    return Pair(candidate=a, baseline=b, order=tuple(order))


def orders(seed: int) -> Iterator[str]:
    """``ABBA`` or ``BAAB``, as a coin falls: either cancels a linear drift within the block, and the coin
    whatever would keep step with the blocks.
    """
    rng = np.random.default_rng(seed)
    while True:
        yield "ABBA" if rng.integers(2) else "BAAB"


def _count(seconds_a_run: float, seconds: float) -> int:
    return max(1, min(MOST, int(seconds / seconds_a_run) if seconds_a_run > 0 else MOST))


def _too_slow(batches: Sequence[Batch], rule: StopRule) -> str:
    """Why these do not count; empty where they do."""
    shares = [b.clock_share for b in batches if b.clock_share is not None]
    if shares and min(shares) < rule.throttle_threshold:
        reasons = sorted({name for b in batches if b.reading for name in b.reading.throttle})
        why = f" ({', '.join(reasons)})" if reasons else ""
        return f"SM clock at {min(shares):.0%} of the rated one{why}"
    return ""


def _give_up(kept: Sequence[object], discarded: Sequence[str], lost: float, rule: StopRule) -> None:
    """Throttling that does not end must not go on for ever."""
    if lost > max(rule.timeout, rule.min_time) and len(discarded) > 2 * len(kept):
        raise HarnessError(
            f"throttled: {len(discarded)} of {len(kept) + len(discarded)} batches discarded, the last "
            f"for: {discarded[-1]}",
            hint="let the GPU cool, lock its clock, or lower --throttle-threshold",
        )


def _block_times(samples: Samples) -> list[float]:
    """The time of each block: the geometric mean of its two batches' medians."""
    medians = np.array([b.median for b in samples.batches])
    return [float(t) for t in np.sqrt(medians[0::2] * medians[1::2])]
