"""Summarize samples, and turn pairs of series into a ratio with an interval and a decision.

GPU times are autocorrelated (clocks wander, caches and power carry over), so tests that count every sample as
independent find differences that do not exist. Here the unit is a block of samples, and the bootstrap draws
runs of neighbouring blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
SAME, FAST, SLOW, INCONCLUSIVE = "SAME", "FAST", "SLOW", "INCONCLUSIVE"
_RESAMPLES = 2000
_TRIM = 0.2  # fraction cut off at either end: one block in five may be an outlier
_CHUNKS = 64  # samples that were not taken in blocks are cut into this many


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Location and spread of times in seconds.

    `noise` is the interquartile range over the median (0.01 is one percent). `stdev` is the standard
    deviation over the mean, which outliers swell; it is nvbench's noise.
    """

    samples: int
    median: float
    mean: float
    minimum: float
    maximum: float
    noise: float
    stdev: float


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A ratio of times and its 95% confidence interval: 1.03 is 3% slower than what it is compared with."""

    low: float
    estimate: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2

    @property
    def inverse(self) -> Interval:
        """The interval of the inverse ratio: of speeds, where this one is of times."""
        return Interval(low=1 / self.high, estimate=1 / self.estimate, high=1 / self.low)


def summarize(samples: Sequence[float]) -> Summary:
    """Return the summary of at least one sample, in seconds. Raises ValueError if there is none."""
    if not len(samples):
        raise ValueError("no samples to summarize")
    array = np.asarray(samples, dtype=np.float64)
    low, median, high = np.percentile(array, (25, 50, 75))
    mean = float(array.mean())
    return Summary(
        samples=len(samples),
        median=float(median),
        mean=mean,
        minimum=float(array.min()),
        maximum=float(array.max()),
        noise=float((high - low) / median) if median > 0 else 0.0,
        stdev=float(array.std(ddof=1) / mean) if len(array) > 1 and mean > 0 else 0.0,
    )


def paired_ratio(candidate: Sequence[float], baseline: Sequence[float], *, seed: int) -> Interval | None:
    """Return the ratio candidate / baseline of two equally long series whose i-th values were taken together.

    Each value is the time of one block; drift from block to block is common to both series and cancels. The
    estimate is the exponential of the trimmed mean (20% at either end) of the log ratios, the interval a
    circular block bootstrap of it; see `block_length`. None for fewer than two blocks, which do not show how
    far off it may be.
    """
    if len(candidate) < 2:
        return None
    logs = np.log(np.asarray(candidate, dtype=np.float64) / np.asarray(baseline, dtype=np.float64))
    return _interval(float(_location(logs)), _deviations(logs, seed))


def unpaired_ratio(candidate: Sequence[float], baseline: Sequence[float], *, seed: int) -> Interval | None:
    """Return the ratio candidate / baseline of two series of samples that were taken apart.

    Each series is cut into up to 64 blocks of neighbouring samples, and their medians are compared as in
    `paired_ratio`. The interval contains what varied within either series, but not what changed between the
    two runs (clocks, placement in memory). None if either series has fewer than two samples.
    """
    if min(len(candidate), len(baseline)) < 2:
        return None
    a, b = np.log(_chunk_medians(candidate)), np.log(_chunk_medians(baseline))
    estimate = float(_location(a) - _location(b))
    return _interval(estimate, _deviations(a, seed) - _deviations(b, seed + 1))


def pooled_ratio(rounds: Sequence[Interval]) -> Interval | None:
    """Combine the ratios of independent measurements into one.

    The estimate is their geometric mean, and the interval Student's t on their logarithms, so that it
    includes what varied only from one measurement to the next. It is no narrower than the widest of theirs,
    as the estimates may agree by chance. None for fewer than two.
    """
    if len(rounds) < 2:
        return None
    logs = np.log([r.estimate for r in rounds])
    estimate = float(logs.mean())
    within = max(math.log(r.high / r.low) / 2 for r in rounds)
    half = max(within, student_t(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs)))
    return Interval(low=power(estimate - half), estimate=power(estimate), high=power(estimate + half))


def decide(interval: Interval, threshold: float) -> str:
    """Return whether the candidate is as fast as the baseline to within `threshold` (0.02 is 2%).

    SAME if the whole interval lies within the threshold, FAST or SLOW if all of it lies outside on one side,
    and INCONCLUSIVE if it lies across: an interval too wide to tell is no evidence that nothing changed.
    """
    if interval.low > 1 + threshold:
        return SLOW
    if interval.high < 1 / (1 + threshold):
        return FAST
    if interval.low >= 1 / (1 + threshold) and interval.high <= 1 + threshold:
        return SAME
    return INCONCLUSIVE


def block_length(series: NDArray[np.float64]) -> int:
    """Return how many neighbouring values the block bootstrap should draw together, at most a quarter of the
    series.

    This is the automatic choice of Politis and White for the circular block bootstrap (Econometric Reviews
    23, 2004; corrected with Patton, 28, 2009). It is 1 for fewer than eight values.
    """
    n = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred) / n
    if n < 8 or variance <= 0:
        return 1
    most = min(n - 1, math.ceil(math.sqrt(n)) + 5)
    covariance = np.array([float(centred[: n - k] @ centred[k:]) / n for k in range(most + 1)])
    correlated = np.abs(covariance[1:] / variance) > 2 * math.sqrt(math.log10(n) / n)
    # The lag after which a run of autocorrelations is indistinguishable from none.
    quiet = max(5, math.ceil(math.sqrt(math.log10(n))))
    last = most
    for lag in range(most):
        if not correlated[lag : lag + quiet].any():
            last = lag
            break
    if last == 0:
        return 1
    lags = np.arange(1, min(2 * last, most) + 1)
    flat_top = np.clip(2 * (1 - lags / (2 * last)), 0, 1)
    weighted = flat_top * covariance[lags]
    g = 2 * float(weighted @ lags)
    spectrum = variance + 2 * float(weighted.sum())
    if spectrum <= 0:
        return 1
    length = math.ceil(math.cbrt(2 * g**2 / (4 / 3 * spectrum**2) * n))
    return max(1, min(length, n // 4))


def _location(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the trimmed mean along the last axis."""
    n = values.shape[-1]
    cut = int(_TRIM * n)
    ordered = np.sort(values, axis=-1)[..., cut : n - cut]
    middle: NDArray[np.float64] = ordered.mean(axis=-1)
    return middle


def _deviations(series: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return, for each circular-block resample of the series, its location minus that of the series.

    The deviations are widened for short series, whose bootstrap distribution is too narrow (Hesterberg, The
    American Statistician 69, 2015, section 5.3): by Student's t over the normal quantile, and by sqrt(m / (m
    - 1)), where m is the number of independent blocks.
    """
    n = len(series)
    length = block_length(series)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, n, size=(_RESAMPLES, -(-n // length)))
    picks = (starts[:, :, None] + np.arange(length)) % n
    draws = _location(series[picks.reshape(_RESAMPLES, -1)[:, :n]])
    m = max(2.0, n / length)
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    widen = student_t(m - 1) / z * math.sqrt(m / (m - 1))
    return (draws - _location(series)) * widen


def student_t(freedom: float) -> float:
    """Return the two-sided quantile of Student's t at CONFIDENCE for `freedom` degrees of freedom.

    Abramowitz and Stegun, 26.7.5; exact for 1 and 2 degrees of freedom, where that expansion fails.
    """
    p = (1 + CONFIDENCE) / 2
    if freedom <= 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom <= 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z, v = NormalDist().inv_cdf(p), freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def power(logarithm: float) -> float:
    """Return e to this power, within what a float holds: times of a damaged file may be absurd."""
    return math.exp(max(-700.0, min(logarithm, 700.0)))


def _interval(estimate: float, deviations: NDArray[np.float64]) -> Interval:
    """Return the interval around exp(`estimate`) from bootstrap deviations of the logarithm."""
    low, high = np.quantile(deviations, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    return Interval(low=power(estimate + low), estimate=power(estimate), high=power(estimate + high))


def _chunk_medians(samples: Sequence[float]) -> NDArray[np.float64]:
    """Cut samples into up to 64 blocks of neighbours, and return the median of each."""
    array = np.asarray(samples, dtype=np.float64)
    return np.array([np.median(chunk) for chunk in np.array_split(array, min(len(array), _CHUNKS))])
