"""Samples -> summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Times in seconds. `noise` is the interquartile range over the median (0.01 is one percent)."""

    samples: int
    median: float
    minimum: float
    maximum: float
    noise: float


def summarize(samples: Sequence[float]) -> Summary:
    """Median and spread of at least one sample; robust against a few outliers, unlike mean and sigma."""
    if not len(samples):
        raise ValueError("no samples to summarize")
    low, median, high = np.percentile(np.asarray(samples, dtype=np.float64), (25, 50, 75))
    return Summary(
        samples=len(samples),
        median=float(median),
        minimum=float(min(samples)),
        maximum=float(max(samples)),
        noise=float((high - low) / median) if median > 0 else 0.0,
    )
