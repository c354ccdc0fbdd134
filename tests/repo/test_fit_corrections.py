"""scripts/fit_corrections.py: trees learn errors that depend on the shape, and the shipped ones did."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

pytest.importorskip("lightgbm", reason="pip install '.[fit]'")

import fit_corrections
import fit_model
from fit_corrections import Sample

from harness.dispatch.model import corrections
from harness.dispatch.model.corrections import Forest
from harness.dispatch.model.features import FEATURES
from shared.places import ROOT

RECORDS = ROOT / "records" / "h200" / "benchmarks"


def made(seed: int = 1, draws: int = 400, each: int = 12) -> Sample:
    """Return a sample whose errors depend on one feature, by a factor of up to 1.5 with a step in it."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0, 16, (draws * each, len(FEATURES)))
    modelled = np.exp(rng.uniform(8, 12, draws)).repeat(each) * rng.uniform(1, 1.3, draws * each)
    wrong = np.where(rows[:, 4] > 8, 1.5, 1.0)
    earlier = np.zeros(draws * each, np.bool_)
    return Sample(rows, np.arange(draws).repeat(each), modelled, modelled * wrong, earlier)


def forest_of(arrays: dict[str, Any]) -> Forest:
    """Return the trees whose arrays these are."""
    return corrections.unpacked({f"x {name}": array for name, array in arrays.items()}, "x")


@pytest.mark.slow
def test_errors_that_depend_on_a_feature_are_learnt_and_no_others() -> None:
    sample = made()
    forest = forest_of(fit_corrections.grown(sample, 20, 10))
    fresh = made(2)
    left = np.log(fresh.measured / (fresh.modelled * np.exp(forest.predict(fresh.rows))))
    assert np.std(left) < 0.03
    assert np.std(fresh.errors) > 0.15
    before, after = fit_corrections.tested(sample, 20, 10)
    assert len(before) == len(after) == 400
    assert after.mean() < 0.01
    assert before.mean() > 0.05
    shuffled = replace(sample, rows=sample.rows[::-1])
    before, after = fit_corrections.tested(shuffled, 20, 10)  # nothing can be learnt of it
    assert after.mean() > 0.8 * before.mean()


def test_what_is_stored_is_what_lightgbm_predicts() -> None:
    sample = made(3)
    both = fit_corrections.boosted(sample, 15, 5)
    forest = forest_of(fit_corrections.grown(sample, 15, 5))
    predicted = sum(np.asarray(booster.predict(sample.rows)) for booster in both)
    assert np.abs(forest.predict(sample.rows) - predicted).max() < 2e-3


@pytest.mark.slow
def test_earlier_times_teach_the_shape_and_not_the_time() -> None:
    """Kernels took 1.3 times as long before, and of today there are no draws where they are 1.5 times off."""
    before, fresh = made(1), made(3)
    today = made(2).only(made(2).rows[:, 4] <= 8)
    both = Sample(
        np.concatenate([before.rows, today.rows]),
        np.concatenate([before.draws, today.draws + 1000]),
        np.concatenate([before.modelled, today.modelled]),
        np.concatenate([before.measured * 1.3, today.measured]),
        np.concatenate([~before.earlier, today.earlier]),
    )
    both.rows[:, 5:] = 0  # else they tell the rows of today one by one
    high = fresh.rows[:, 4] > 8

    def predicted(sample: Sample) -> tuple[float, float]:
        """Return the mean error that is predicted where today has draws, and how much more elsewhere."""
        found = forest_of(fit_corrections.grown(sample, 30, 30)).predict(fresh.rows)
        return float(found[~high].mean()), float(found[high].mean() - found[~high].mean())

    at, more = predicted(both)
    unmarked, _ = predicted(replace(both, earlier=np.zeros_like(both.earlier)))
    assert abs(at) < 0.06 and unmarked > 0.1
    # The first trees see both times where today has draws, and 1.95 elsewhere: the last ones move all alike.
    assert np.log(1.5) - 0.12 < more < np.log(1.95) - 0.08
    assert abs(predicted(today)[1]) < 0.02


def test_draws_with_earlier_times_do_not_count() -> None:
    sample = made()
    earlier = sample.draws < 100
    before, after = fit_corrections.tested(replace(sample, earlier=earlier), 20, 10)
    assert len(before) == len(after) == 300


def test_draws_of_which_one_time_is_known_do_not_count() -> None:
    """Samplers time what was chosen alone: such draws teach, but would say that nothing is lost."""
    sample = made()
    alone = sample.draws < 100
    first = np.unique(sample.draws, return_index=True)[1]
    kept = ~alone | np.isin(np.arange(len(alone)), first)
    before, after = fit_corrections.tested(sample.only(kept), 20, 10)
    assert len(before) == len(after) == 300


def test_regrets_and_weights_by_hand() -> None:
    rows = np.zeros((4, len(FEATURES)))
    modelled, measured = np.array([1.0, 2, 3, 3]), np.array([20.0, 10, 5, 6])
    sample = Sample(rows, np.array([0, 0, 1, 1]), modelled, measured, rows[:, 0] > 0)
    assert sample.regrets(sample.modelled).tolist() == [1, 0]
    assert sample.regrets(np.array([3.0, 2, 3, 1])).tolist() == pytest.approx([0, 0.2])
    assert sample.weights.tolist() == pytest.approx([2**-4, 1, 1, 1.2**-4])


@pytest.mark.skipif(not RECORDS.exists(), reason="an sdist has no records")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32", "tf32", "16 bits"])
def test_the_shipped_trees_are_of_the_shipped_records(name: str) -> None:
    """On draws that were fitted they take most of the regret away; of other constants they would not."""
    path = RECORDS / ("regret-31.json.xz" if name == "fp32" else "regret-51.json.xz")
    times = [time for time in fit_model.times([path], fit_model.candidates()) if not time.earlier]
    sample = fit_corrections.sampled(times, fit_corrections.TYPES[name])
    forest = corrections.shipped()[name]
    before = sample.regrets(sample.modelled)
    after = sample.regrets(sample.modelled * np.exp(forest.predict(sample.rows)))
    assert len(before) >= 260 and after.mean() < before.mean() / 2
    turned = sample.regrets(sample.modelled * np.exp(-forest.predict(sample.rows)))
    assert turned.mean() > before.mean()
