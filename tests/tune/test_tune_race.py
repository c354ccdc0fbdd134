"""The race, by itself."""

from __future__ import annotations

import numpy as np
import pytest

from harness.bench.stats import Interval
from harness.tune import race as halving


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, estimate=(low + high) / 2, high=high)


def test_nobody_is_dropped_whose_interval_overlaps_the_bests() -> None:
    standings = {"a": interval(0.98, 1.02), "b": interval(1.019, 1.2), "c": interval(1.03, 1.04)}
    assert halving.survivors(standings, 0.0) == ["a", "b"]
    assert halving.survivors(standings, 0.01) == ["a", "b", "c"]
    assert halving.survivors({}, 0.0) == []


def test_settled_means_all_within_the_threshold() -> None:
    assert halving.settled({"a": interval(0.999, 1.001), "b": interval(1.0, 1.002)}, 0.005)
    assert not halving.settled({"a": interval(0.99, 1.01), "b": interval(1.0, 1.002)}, 0.005)
    assert halving.settled({"a": interval(0.5, 2)}, 0.005)


def test_a_single_block_drops_only_who_is_far_behind() -> None:
    """By its own 5% and the other's; several blocks go by their scatter, as 1% shows."""
    race = halving.Race(seed=1)
    for entrant, time in enumerate((1.0, 1.09, 1.12)):
        race.add(entrant, [time], [1.0])
    assert halving.survivors(race.standings, 0.0) == [0, 1]
    race.add(1, [1.09, 1.09], [1.0, 1.0])
    race.add(0, [1.0, 1.0], [1.0, 1.0])
    assert halving.survivors(race.standings, 0.0) == [0]
    race.remove(0)
    assert list(race.standings) == [1, 2]


@pytest.mark.parametrize("gap", [0.0, 0.02])
def test_the_best_is_hardly_ever_dropped(gap: float) -> None:
    """Forty candidates with 1% noise a block, over all rungs: the best survives, the hopeless do not."""
    lost, left = 0, []
    for trial in range(20):
        rng = np.random.default_rng(trial)
        race, alive = halving.Race(seed=trial), list(range(40))
        for blocks in halving.RUNGS:
            for e in alive:
                times = (1.0 + (gap if e else 0.0)) * np.exp(rng.normal(0, 0.01, blocks))
                race.add(e, list(times), list(np.exp(rng.normal(0, 0.002, blocks))))
            alive = halving.survivors(race.standings, 0.0)
        lost += 0 not in alive
        left.append(len(alive))
    assert lost <= 2 if gap == 0 else lost == 0
    assert np.mean(left) > 20 if gap == 0 else np.mean(left) < 10
