"""Turn batches of runs into samples: warm up, decide when to stop, and time two kernels in turn.

Nothing here needs a GPU: the clock is the `Timer` that is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.bench.nvml import Reading
from harness.bench.stats import Interval, Summary, paired_ratio, summarize
from harness.bench.stopping import StopRule
from harness.bench.timing import Batch, Timer, Work
from harness.errors import HarnessError

BATCH_SECONDS = 0.02
_WARMUP_MOST = 50_000  # runs; even a kernel of 2 us takes 0.1 s for them, the default warm-up
_SETTLED = 0.005  # relative range of the SM clock over the last _SETTLED_BATCHES batches
_SETTLED_BATCHES = 5
_CLOCKS_APART = 0.01  # relative difference up to which two SM clocks count as the same


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """The result of warming up.

    `typical` is the median time in seconds of a run in the last batch, `seconds` the GPU time spent.
    `settled` says whether the SM clock had settled, None where it cannot be measured.
    """

    typical: float
    seconds: float
    settled: bool | None


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Batches in the order taken.

    `stopped` is the reason why sampling ended. `discarded` has one reason for each batch that was discarded,
    of which nothing else is kept.
    """

    batches: tuple[Batch, ...] = field(repr=False)
    stopped: str
    discarded: tuple[str, ...] = ()

    @property
    def times(self) -> tuple[float, ...]:
        """GPU seconds of each sample, in the order taken."""
        return tuple(t for b in self.batches for t in b.times)

    @property
    def summary(self) -> Summary:
        """Median, mean and spread of the times."""
        return summarize(self.times)

    @property
    def wall(self) -> float | None:
        """The median over the batches of the wall time per run, in seconds on the host's clock.

        None if no batch has one.
        """
        walls = [b.wall for b in self.batches if b.wall is not None]
        return float(np.median(walls)) if walls else None

    @property
    def sm_hz(self) -> float | None:
        """The median over the batches of the measured SM clock in Hz; None if no batch has one."""
        clocks = [b.sm_hz for b in self.batches if b.sm_hz]
        return float(np.median(clocks)) if clocks else None

    @property
    def cycles(self) -> float | None:
        """The median over the batches of the SM cycles per run; each batch counts with its own clock.

        None if no clock was measured.
        """
        cycles = [b.median * b.sm_hz for b in self.batches if b.sm_hz]
        return float(np.median(cycles)) if cycles else None

    @property
    def unevenness(self) -> float:
        """The median over the batches of the mean time over the median time of a batch's launches.

        It is about 1 where all launches take equally long. Batches of fewer than three launches tell nothing
        and do not count; 1 if there are no others.
        """
        telling = [b for b in self.batches if len(b.times) > 2 and b.median > 0]
        return float(np.median([np.mean(b.times) / b.median for b in telling])) if telling else 1.0

    @property
    def remarks(self) -> tuple[str, ...]:
        """A note on how many batches were discarded, and why the last one was; empty if none was."""
        if not self.discarded:
            return ()
        n, batches = len(self.discarded), len(self.discarded) + len(self.batches)
        return (f"{n} of {batches} batches discarded, the last for: {self.discarded[-1]}",)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """NVML's readings that were taken during the batches."""
        return tuple(b.reading for b in self.batches if b.reading)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Samples of a candidate and a baseline that were timed in turn.

    Block i of `order` is ``ABBA`` or ``BAAB`` (A is the candidate), and took batches 2i and 2i + 1 of either
    side.
    """

    candidate: Samples
    baseline: Samples
    order: tuple[str, ...]

    def ratio(self, seed: int) -> Interval | None:
        """Return the ratio of times, candidate over baseline, from the blocks; None if there are fewer than
        two.
        """
        return paired_ratio(_block_times(self.candidate), _block_times(self.baseline), seed=seed)

    def remarks(self, against: str) -> tuple[str, ...]:
        """Return a note if the SM clocks of the two sides differ by more than 1%, else nothing.

        Where power lowers the clock of one side, a ratio of times is not a ratio of cycles. `against` is the
        baseline's name in the note.
        """
        a, b = self.candidate.sm_hz, self.baseline.sm_hz
        if not a or not b or abs(a - b) <= _CLOCKS_APART * max(a, b):
            return ()
        return (f"the SM clock was {a / 1e6:.0f} MHz in its turns, {b / 1e6:.0f} MHz in {against}'s",)


def warm_up(work: Work, timer: Timer, rule: StopRule) -> WarmUp:
    """Run for `rule.warmup` seconds of GPU time, then on until the SM clock has settled.

    If it does not settle, stop when `rule.settle` seconds of GPU time have passed in all. If the clock cannot
    be measured, stop after `rule.warmup`. No batch begins after 50,000 runs.
    """
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
        left = max(rule.warmup - spent, BATCH_SECONDS)
        count = _count(work, typical, min(left, 5 * BATCH_SECONDS))


def _settled(clocks: Sequence[float | None]) -> bool | None:
    """Return True if the last clocks lie close together; None if no clock is known.

    The first batches may be too short to measure a clock.
    """
    known = [c for c in clocks if c is not None][-_SETTLED_BATCHES:]
    if not known:
        return None
    return len(known) == _SETTLED_BATCHES and max(known) - min(known) <= _SETTLED * min(known)


def sample(work: Work, timer: Timer, rule: StopRule, *, typical: float) -> Samples:
    """Take batches until `rule` says to stop, and return them.

    `typical` is about the time in seconds of one run, from `warm_up`. Raises HarnessError if too many batches
    were below `rule.throttle_threshold`.
    """
    size = _count(work, typical, BATCH_SECONDS)
    kept: list[Batch] = []
    discarded: list[str] = []
    times: list[float] = []
    lost = 0.0
    while not (stopped := rule.decide(times)):
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
) -> Pair:
    """Time two kernels in turn, in blocks of two batches of each, until `rule` says to stop for the
    candidate.

    `typical` is about the time in seconds of one run of the candidate and of the baseline, and `seed`
    determines the order within blocks. A slow clock in one batch discards the whole block: halves cannot be
    compared. Raises HarnessError if too many blocks were below `rule.throttle_threshold`.
    """
    works = {"A": candidate, "B": baseline}
    sizes = {s: _count(works[s], t, rule.turn) for s, t in zip("AB", typical, strict=True)}
    kept: dict[str, list[Batch]] = {"A": [], "B": []}
    order: list[str] = []
    discarded: list[str] = []
    times: list[float] = []
    lost = 0.0
    for block in orders(seed):
        enough = len(order) >= rule.min_blocks
        if stopped := rule.decide(times, enough=enough):
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
    """Yield the orders of blocks without end, ``ABBA`` or ``BAAB`` at random.

    Either order cancels a drift that is linear within the block; the random choice cancels disturbances that
    keep step with the blocks.
    """
    rng = np.random.default_rng(seed)
    while True:
        yield "ABBA" if rng.integers(2) else "BAAB"


def _count(work: Work, typical: float, seconds: float) -> int:
    """Return how many calls of `work.run` take about `seconds`, between 1 and the most that a batch holds.

    `typical` is about the time of a run in seconds.
    """
    each = typical * work.repeats
    return max(1, min(work.most, int(seconds / each) if each > 0 else work.most))


def _too_slow(batches: Sequence[Batch], rule: StopRule) -> str:
    """Return why these batches are discarded; empty if they are kept."""
    shares = [b.clock_share for b in batches if b.clock_share is not None]
    if shares and min(shares) < rule.throttle_threshold:
        reasons = sorted({name for b in batches if b.reading for name in b.reading.throttle})
        why = f" ({', '.join(reasons)})" if reasons else ""
        return f"SM clock at {min(shares):.0%} of the rated one{why}"
    return ""


def _give_up(kept: Sequence[object], discarded: Sequence[str], lost: float, rule: StopRule) -> None:
    """Raise HarnessError if most batches are discarded and more time than the rule allows was lost on
    them.
    """
    if lost > max(rule.timeout, rule.min_time) and len(discarded) > 2 * len(kept):
        raise HarnessError(
            f"throttled: {len(discarded)} of {len(kept) + len(discarded)} batches discarded, the last "
            f"for: {discarded[-1]}",
            hint="let the GPU cool, lock its clock, or lower --throttle-threshold",
        )


def _block_times(samples: Samples) -> list[float]:
    """Return the time of each block: the geometric mean of the medians of its two batches."""
    medians = np.array([b.median for b in samples.batches])
    return [float(t) for t in np.sqrt(medians[0::2] * medians[1::2])]
