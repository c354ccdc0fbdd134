"""Successive halving by confidence intervals: decide which candidates go on from rung to rung.

Successive halving (Jamieson and Talwalkar, AISTATS 2016) gives every candidate a few samples, drops the
slower half and doubles the samples of the rest. A fixed half drops by chance if many candidates are alike,
and keeps too many if few are good. So here intervals decide, as in racing (Maron and Moore, NIPS 1993): a
candidate is dropped only if it is slower beyond doubt. Every candidate is timed in turn with the same
reference, so that drift between two candidates' turns cancels from the ratio of each to the reference.

Why not Kernel Tuner, Optuna or another search library? They search spaces too large to visit completely, by
one number per visit, and take that number as exact. The spaces of kernel files have tens to hundreds of
candidates, and all can be visited. The question is which of the fastest few differ at all: a question of
statistics, which none of these libraries asks.

Nothing here runs on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from harness.bench.stats import Interval, paired_ratio

RUNGS = (1, 2, 4, 8)  # ABBA blocks added at each rung; each rung after the first about doubles the total
# A single block gives no estimate of scatter. Its ratio is taken to be known within this factor, so that two
# ratios must be wrong by a tenth together before the faster candidate is dropped. On an H200 the worst of 130
# single blocks with turns of 1 ms differed by 3.7% from 20 blocks with turns of 5 ms; the root mean square of
# the differences was 0.4% at n = 2048 and 0.8% at 512.
_SINGLE = 1.05

T = TypeVar("T")


class Race:
    """The times of all ABBA blocks so far, of each entrant and of the reference timed in turn with it.

    A block has two turns of either (see `harness.bench.sampling.Pair`). Entrants are numbers that the caller
    assigns. `seed` is for the bootstrap of the intervals.
    """

    def __init__(self, *, seed: int) -> None:
        self._seed = seed
        self._blocks: dict[int, tuple[list[float], list[float]]] = {}
        self._ratios: dict[int, Interval] = {}

    def add(self, entrant: int, candidate: Sequence[float], reference: Sequence[float]) -> Interval:
        """Add a rung's block times, and return the entrant's ratio to the reference from all of its rungs.

        `candidate` and `reference` have one time in seconds for each block. The ratio is candidate /
        reference, with its 95% interval; that of a single block is taken as exact to within 5%.
        """
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
        """Forget an entrant whose result is wrong or that failed.

        Entrants that were behind only because of it are in the running again.
        """
        self._blocks.pop(entrant, None)
        self._ratios.pop(entrant, None)

    @property
    def standings(self) -> dict[int, Interval]:
        """Each entrant's ratio to the reference, from all of its rungs, the fastest first."""
        return dict(sorted(self._ratios.items(), key=lambda item: item[1].estimate))


def survivors(standings: Mapping[T, Interval], threshold: float) -> list[T]:
    """Return the entrants that may still be the fastest, in the order of `standings`.

    These are the ones whose interval overlaps that of the best or lies apart from it by at most the fraction
    `threshold` (0.005 is half a percent).
    """
    if not standings:
        return []
    best = min(standings.values(), key=lambda i: i.estimate)
    return [e for e, i in standings.items() if i.low <= best.high * (1 + threshold)]


def settled(standings: Mapping[T, Interval], threshold: float) -> bool:
    """Return True if all entrants are equally fast within the fraction `threshold`, by their whole intervals.

    More samples would then drop none of them. Also True for fewer than two.
    """
    if len(standings) < 2:
        return True
    return max(i.high for i in standings.values()) <= min(i.low for i in standings.values()) * (1 + threshold)
