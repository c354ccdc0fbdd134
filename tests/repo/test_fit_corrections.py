"""scripts/fit_corrections.py: trees learn errors that depend on the shape, and the shipped ones did."""

from __future__ import annotations

import sys
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
    return Sample(rows, np.arange(draws).repeat(each), modelled, modelled * wrong)


def forest_of(arrays: dict[str, Any]) -> Forest:
    """Return the trees whose arrays these are."""
    return corrections.unpacked({f"x {name}": array for name, array in arrays.items()}, "x")


def test_errors_that_depend_on_a_feature_are_learnt_and_no_others() -> None:
    sample = made()
    forest = forest_of(fit_corrections.grown(sample, 30))
    fresh = made(2)
    left = np.log(fresh.measured / (fresh.modelled * np.exp(forest.predict(fresh.rows))))
    assert np.std(left) < 0.03
    assert np.std(fresh.errors) > 0.15
    before, after = fit_corrections.tested(sample, 30)
    assert len(before) == len(after) == 400
    assert after.mean() < 0.01
    assert before.mean() > 0.05
    shuffled = Sample(sample.rows[::-1], sample.draws, sample.modelled, sample.measured)
    before, after = fit_corrections.tested(shuffled, 30)  # nothing can be learnt of it
    assert after.mean() > 0.8 * before.mean()


def test_what_is_stored_is_what_lightgbm_predicts() -> None:
    sample = made(3)
    booster = fit_corrections.boosted(sample, 20)
    forest = forest_of(fit_corrections.grown(sample, 20))
    assert np.abs(forest.predict(sample.rows) - booster.predict(sample.rows)).max() < 2e-3


def test_regrets_and_weights_by_hand() -> None:
    rows = np.zeros((4, len(FEATURES)))
    sample = Sample(rows, np.array([0, 0, 1, 1]), np.array([1.0, 2, 3, 3]), np.array([20.0, 10, 5, 6]))
    assert sample.regrets(sample.modelled).tolist() == [1, 0]
    assert sample.regrets(np.array([3.0, 2, 3, 1])).tolist() == pytest.approx([0, 0.2])
    assert sample.weights.tolist() == pytest.approx([2**-4, 1, 1, 1.2**-4])


@pytest.mark.skipif(not RECORDS.exists(), reason="an sdist has no records")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32", "tf32"])
def test_the_shipped_trees_are_of_the_shipped_records(name: str) -> None:
    """On draws that were fitted they take most of the regret away; of other constants they would not."""
    times = fit_model.times([RECORDS / "regret-31.json.gz"], fit_model.candidates())
    sample = fit_corrections.sampled(times, fit_corrections.TYPES[name])
    forest = corrections.shipped()[name]
    before = sample.regrets(sample.modelled)
    after = sample.regrets(sample.modelled * np.exp(forest.predict(sample.rows)))
    assert len(before) >= 260 and after.mean() < before.mean() / 2
    turned = sample.regrets(sample.modelled * np.exp(-forest.predict(sample.rows)))
    assert turned.mean() > before.mean()
