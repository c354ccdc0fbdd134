"""Successive halving by evidence: who goes on from rung to rung. Pure.

Successive halving (Jamieson and Talwalkar, AISTATS 2016) gives every candidate a few samples, drops the worse
half and doubles the samples of the rest. A fixed half drops by luck where many are alike and keeps too many
where few are good, so here the intervals decide, as in racing (Maron and Moore, NIPS 1993): who is slower
beyond doubt is dropped, and nobody else. Every candidate is timed in turn with one reference, so that
what drifts between two candidates' turns cancels from either's ratio.

Why not Kernel Tuner, Optuna or another search library: they search spaces too large to visit, by one number
a visit, and take each number for the truth. The spaces of kernel files have tens to hundreds of candidates,
all of which can be visited, and the question is which of the fastest few differ at all: one of statistics,
which none of them asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from harness.bench.stats import Interval, paired_ratio

RUNGS = (1, 2, 4, 8)  # ABBA blocks of each rung: a look at everybody, then the total about doubles
# A single block has no scatter to go by. Its ratio counts as known to within this factor, so that two must
# be off by a tenth in all before the faster is dropped. On an H200 the worst of 130 with turns of 1 ms was
# 3.7% off 20 with turns of 5 ms; root mean square 0.4% at n = 2048, 0.8% at 512.
_SINGLE = 1.05

T = TypeVar("T")


class Race:
    """The block times so far, of each entrant and of the reference in turn with it."""

    def __init__(self, *, seed: int) -> None:
        self._seed = seed
        self._blocks: dict[int, tuple[list[float], list[float]]] = {}
        self._ratios: dict[int, Interval] = {}

    def add(self, entrant: int, candidate: Sequence[float], reference: Sequence[float]) -> Interval:
        """One more rung, as many block times of either, in seconds -> its ratio from all of its rungs."""
        times = self._blocks.setdefault(entrant, ([], []))
        times[0].extend(candidate)
        times[1].extend(reference)
        ratio = paired_ratio(*times, seed=self._seed)
        if ratio is None:
            only = times[0][0] / times[1][0]
            ratio = Interval(low=only / _SINGLE, estimate=only, high=only * _SINGLE)
        self._ratios[entrant] = ratio
        return ratio

    def remove(self, entrant: int) -> None:
        """It turned out to be wrong: it has no time, and nobody is dropped because of it."""
        self._blocks.pop(entrant, None)
        self._ratios.pop(entrant, None)

    @property
    def standings(self) -> dict[int, Interval]:
        """The ratio to the reference of each entrant, from all of its rungs, the fastest first."""
        return dict(sorted(self._ratios.items(), key=lambda item: item[1].estimate))


def survivors(standings: Mapping[T, Interval], threshold: float) -> list[T]:
    """Those whose interval overlaps the best's, or lies apart from it by less than `threshold` (0.005 is half
    a percent). The fastest first, as in `standings`.
    """
    if not standings:
        return []
    best = min(standings.values(), key=lambda i: i.estimate)
    return [e for e, i in standings.items() if i.low <= best.high * (1 + threshold)]


def settled(standings: Mapping[T, Interval], threshold: float) -> bool:
    """Whether more samples would change nothing: all that are left are as fast to within `threshold`."""
    if len(standings) < 2:
        return True
    return max(i.high for i in standings.values()) <= min(i.low for i in standings.values()) * (1 + threshold)
