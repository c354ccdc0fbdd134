"""Decide when there are enough samples: nvbench's two criteria, and the limits around them.

Both criteria look at how a statistic developed while samples came in. They are pure functions: the history is
computed from all samples at each call, and nothing is kept between calls.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.errors import UsageError

_NOISE_WINDOW, _NOISE_LEAST, _NOISE_STABLE = 512, 64, 0.05
_ENTROPY_WINDOW, _ENTROPY_ANGLE, _ENTROPY_R2 = 299, 0.048, 0.36


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When to stop sampling: with `min_samples`, `min_time` seconds of them, and `criterion` met.

    * ``stdrel``: the relative standard deviation is at most `max_noise`, or no longer changes.
    * ``entropy``: the entropy of the set of times no longer grows.

    With `min_samples`, sampling also ends after `timeout` seconds of samples, or with `max_samples`, whether
    the criterion is met or not. A comparison takes at least `min_blocks` ABBA blocks, unless `timeout` is
    reached; each of a block's four turns takes up to `turn` seconds, or one run: short, so that little drifts
    within a block.

    Warming up takes `warmup` seconds, and up to `settle` seconds until the SM clock has settled. Samples
    taken below `throttle_threshold`, a fraction of the rated clock, are discarded.

    The names are those of nvbench's options; the criteria and their constants are those of its
    detail/stdrel_criterion.cxx and detail/entropy_criterion.cxx. Raises UsageError for an unknown criterion.
    """

    criterion: str = "stdrel"
    min_samples: int = 10
    min_time: float = 0.2
    max_noise: float = 0.005
    timeout: float = 2.0
    max_samples: int = 4_000
    min_blocks: int = 20
    turn: float = 0.005
    warmup: float = 0.1
    settle: float = 2.0
    throttle_threshold: float = 0.6  # at their power cap tensor cores run at 0.7 of it (H200)

    def __post_init__(self) -> None:
        if self.criterion not in CRITERIA:
            raise UsageError(f"no stopping criterion {self.criterion!r}", hint=" or ".join(CRITERIA))

    def decide(self, times: Sequence[float], *, enough: bool = True) -> str:
        """Return why to stop after the samples `times` (seconds), in a few words; empty to go on.

        Unless `enough` is True, only the timeout stops: the caller has a condition of its own that does not
        hold yet.
        """
        total = math.fsum(times)
        if len(times) >= self.min_samples:
            if total >= self.timeout:
                return "timeout"
            if not enough:
                return ""
            if total >= self.min_time and (reason := CRITERIA[self.criterion](times, self.max_noise)):
                return reason
        return "most samples" if enough and len(times) >= max(self.max_samples, self.min_samples) else ""


def stdrel(times: Sequence[float], max_noise: float) -> str:
    """Return why the relative standard deviation says to stop; empty to go on.

    It does if the standard deviation of all samples is at most `max_noise` of their mean, or, with more than
    64 samples, if its values after each of the last 512 differ from the latest one by less than 5% of it
    (root mean square).
    """
    array = np.asarray(times, dtype=np.float64)
    n = np.arange(1, len(array) + 1)
    # Sums of differences from the first sample: times differ in their last digits only, and sums of their
    # squares would cancel.
    shifted = array - array[0]
    mean = np.cumsum(shifted) / n
    squares = np.maximum(np.cumsum(shifted**2) - n * mean**2, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = np.sqrt(squares / (n - 1)) / (array[0] + mean)
    noise = noise[np.isfinite(noise)][-_NOISE_WINDOW:]
    if not len(noise):
        return ""
    if noise[-1] <= max_noise:
        return "noise reached"
    if len(noise) > _NOISE_LEAST:
        change = float(np.sqrt(np.mean((noise - noise[-1]) ** 2)) / noise[-1])
        if change < _NOISE_STABLE:
            return "noise stable"
    return ""


def entropy(times: Sequence[float], _max_noise: float) -> str:
    """Return why the entropy of the set of times says to stop; empty to go on.

    The entropy in bits is computed after each sample. It says to stop if a line fitted to its last 299
    values, one sample apart, rises at an angle of at most 0.048 degrees and fits with an R squared of at
    least 0.36.
    """
    tracked: deque[float] = deque(maxlen=_ENTROPY_WINDOW)
    counts: Counter[float] = Counter()
    weighted = 0.0  # the sum of c log2 c over the counts c, one of which changes with each sample
    for n, time in enumerate(times, 1):
        c = counts[time]
        weighted += (c + 1) * math.log2(c + 1) - (c * math.log2(c) if c else 0.0)
        counts[time] += 1
        tracked.append(math.log2(n) - weighted / n)
    y = np.array(tracked)
    if len(y) < 2:
        return ""
    x = np.arange(len(y), dtype=np.float64)
    slope, intercept = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    r2 = 1.0 if spread < 1e-12 else 1 - float(((y - slope * x - intercept) ** 2).sum()) / spread
    flat = math.degrees(math.atan(slope)) <= _ENTROPY_ANGLE
    return "entropy stable" if flat and r2 >= _ENTROPY_R2 else ""


CRITERIA: dict[str, Callable[[Sequence[float], float], str]] = {"stdrel": stdrel, "entropy": entropy}
