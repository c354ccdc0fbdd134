"""Corrections of the cost model: trees by hand, where they hold, and what the choice gains by them."""

from __future__ import annotations

import copy
import math
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.dispatch import choose, shipped_table
from harness.dispatch.model import corrections, cost
from harness.dispatch.model.corrections import Forest
from harness.dispatch.model.features import FEATURES, described
from harness.dispatch.model.traffic import ALIGNED, DRAM_BYTES, Pitches
from harness.errors import UsageError
from harness.kernels import catalog
from harness.kernels.epilogue import PLAIN
from shared.sweeps import sweep

CARD: dict[str, Any] = {"sms": 132, "arch": "sm_90a"}


def by_hand() -> dict[str, Any]:
    """Two trees: ``x[1] <= 3 ? (x[0] <= 0.5 ? 1 : 2) : 4`` and a leaf of 10."""
    return {
        "x sizes": np.array([5, 1], np.uint16),
        "x feature": np.array([1, 0, *[corrections.LEAF] * 4], np.uint8),
        "x threshold": np.array([3, 0.5], np.float32),
        "x value": np.array([4, 1, 2, 10], np.float16),
        "x depth": np.array(2),
    }


def test_trees_by_hand() -> None:
    forest = corrections.unpacked(by_hand(), "x")
    rows = np.array([[0.0, 3.0], [0.5, 2.0], [0.75, 3.0], [0.0, 3.5]])
    assert forest.predict(rows).tolist() == [11, 11, 12, 14]
    assert forest.predict(rows[:0]).tolist() == []


@pytest.mark.slow
def test_each_leaf_of_the_shipped_trees_is_reached_and_stays() -> None:
    for forest in corrections.shipped().values():
        leaves = forest.left == forest.right
        assert (forest.left[leaves] == np.flatnonzero(leaves)).all(), "a leaf leads to itself"
        assert forest.feature.max() < len(FEATURES) and np.isfinite(forest.threshold).all()
        assert np.abs(forest.value).max() < 3
        at, seen = forest.roots, set(forest.roots.tolist())
        while (
            len(at := np.unique(np.concatenate([forest.left[at], forest.right[at]])))
            and set(at.tolist()) - seen
        ):
            seen |= set(at.tolist())
        assert len(seen) == len(forest.feature), "no node is lost"
        # As deep as it says: one step less, and some row would end between a root and a leaf.
        reached = forest.roots
        for _ in range(forest.depth):
            reached = np.unique(np.concatenate([forest.left[reached], forest.right[reached]]))
        assert leaves[reached].all()


@pytest.mark.parametrize("dtype", sweep(["bf16", "fp16", "tf32", "fp32"], lambda dtype: dtype == "fp32"))
@pytest.mark.parametrize("pitches", [ALIGNED, Pitches(straddled="A", unmapped="B", uneven=True)])
def test_every_candidate_can_be_described(dtype: str, pitches: Pitches) -> None:
    draw = random.SystemRandom()
    for layout in ("NN", "NT", "TN", "TT"):
        shape = *(round(2 ** draw.uniform(0, 14)) for _ in range(3)), 132
        able = choose.able(*shape, "sm_90a", dtype, layout, PLAIN, "")
        found = cost.ranked(able, shape, layout=layout, pitches=pitches)
        assert len(found) > 20
        for one, cycles in found:
            row = described(one, shape, layout=layout, pitches=pitches, cycles=cycles)
            assert len(row) == len(FEATURES) and np.isfinite(row).all(), (one.variant.label, shape)


def ranks(dtype: str = "bf16", **card: Any) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Return labels and cycles of the candidates for a product: as chosen from, and by the model alone."""
    shape = 667, 4096, 4096
    where = {**CARD, **card}
    chosen = choose.ranked(*shape, **where, dtype=dtype, layout="NT")
    dram = where.get("dram", DRAM_BYTES)
    able = choose.able(*shape, where["sms"], where["arch"], dtype, "NT", PLAIN, "", dram)
    model = cost.ranked(able, (*shape, where["sms"]), layout="NT", pitches=ALIGNED)
    return [(v.label, c) for v, c in chosen], [(one.variant.label, c) for one, c in model]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32", "fp32"])
def test_the_models_first_are_corrected_and_the_others_are_as_they_were(dtype: str) -> None:
    chosen, model = ranks(dtype)
    most = corrections.MOST
    assert chosen[most:] == model[most:] and len(chosen) > most
    assert {name for name, _ in chosen[:most]} == {name for name, _ in model[:most]}
    assert chosen[:most] != model[:most]
    cycles = [c for _, c in chosen[:most]]
    assert cycles == sorted(cycles)
    assert all(1 / 3 < c / dict(model)[name] < 3 for name, c in chosen)


@pytest.mark.parametrize(
    ("dtype", "card"), [("bf16", {"sms": 114}), ("fp32", {"arch": "sm_80"}), ("tf32", {"dram": 3.1})]
)
def test_elsewhere_the_model_is_all_there_is(dtype: str, card: dict[str, Any]) -> None:
    chosen, model = ranks(dtype, **card)
    assert chosen == model


def test_they_hold_for_the_gpus_that_were_timed() -> None:
    with np.load(corrections.FILE) as arrays:
        slowest, fastest = arrays["dram"].tolist()
    assert slowest < DRAM_BYTES == fastest  # an H100's, an H200's
    for dram, held in (
        (slowest / 1.01, True),
        (DRAM_BYTES * 1.01, True),
        (slowest / 1.1, False),
        (17.1, False),
    ):
        assert corrections.holds(132, "sm_90a", dram) == held, dram
    assert not corrections.holds(132, "sm_100a", DRAM_BYTES) and not corrections.holds(
        78, "sm_90a", DRAM_BYTES
    )


@pytest.mark.parametrize("name", ["fp32", "tf32", "16 bits"])
def test_corrections_of_other_constants_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(corrections.FILE) as arrays:
        others = {**arrays, f"{name} constants": np.array("0" * 64)}
    np.savez_compressed(file := tmp_path / "corrections.npz", **others)
    monkeypatch.setattr(corrections, "FILE", file)
    corrections.shipped.cache_clear()
    try:
        with pytest.raises(UsageError, match=f"corrections of {name} for other constants") as e:
            corrections.shipped()
        assert "fit_corrections.py" in str(e.value)
    finally:
        corrections.shipped.cache_clear()


def test_constants_are_told_by_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another constant of one candidate is another fit for its type, and for no other."""
    before = {name: corrections.constants(name) for name in ("fp32", "tf32", "16 bits")}
    assert len(set(before.values())) == 3
    listed = copy.deepcopy(shipped_table.contents())
    changed = next(c for c in listed["candidates"] if c.get("dtype") == "fp16")
    changed["start"] += 1
    monkeypatch.setattr(shipped_table, "contents", lambda: listed)
    after = {name: corrections.constants(name) for name in before}
    assert [name for name in before if before[name] != after[name]] == ["16 bits"]


def test_the_number_of_stages_is_told_where_a_candidate_takes_as_many_as_fit() -> None:
    """For 128 x 256 of 16 bits that is four, with STAGES = 0 as with STAGES = 4."""
    at = FEATURES.index("STAGES")
    found = set()
    for variant in (catalog.kernel("23_wgmma_pipeline").variant(STAGES=stages) for stages in (0, 4)):
        one = next(c for c in choose.candidates() if c.variant.kernel.name == "23_wgmma_pipeline")
        about = {"layout": "NN", "pitches": ALIGNED, "cycles": 1e4}
        found.add(described(replace(one, variant=variant), (512, 512, 512, 132), **about)[at])
    assert found == {4}


def test_the_shipped_file_is_small() -> None:
    """It goes into the wheel, and is read before the first product."""
    assert corrections.FILE.stat().st_size < 1_500_000
    assert zipfile.is_zipfile(corrections.FILE)


def test_a_choice_takes_milliseconds() -> None:
    """Hold the trees to fewer steps than take as long as the model does."""
    forest = corrections.shipped()["16 bits"]
    assert isinstance(forest, Forest) and forest.depth < 64
    assert math.prod((corrections.MOST, len(forest.roots), forest.depth)) < 1_000_000  # nodes


def test_what_reads_least_comes_first_of_those_alike_beyond_what_was_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = 4096, 4096, 4096
    known = {one.variant.label: one for one in choose.candidates()}
    before = choose.ranked(*shape, **CARD, dtype="bf16")
    monkeypatch.setattr(corrections, "_ALIKE_TIMES", 1.1)
    monkeypatch.setattr(corrections, "_TIMED", math.prod(shape))
    assert choose.ranked(*shape, **CARD, dtype="bf16") == before
    monkeypatch.setattr(corrections, "_TIMED", math.prod(shape) - 1)
    after = choose.ranked(*shape, **CARD, dtype="bf16")
    alike = sum(cycles <= 1.1 * before[0][1] for _, cycles in before[: corrections.MOST])
    read = [known[variant.label].l2_bytes(*shape) for variant, _ in after[:alike]]
    assert alike > 1 and read == sorted(read) and after[:alike] != before[:alike]
    assert after[alike:] == before[alike:] and {v.label for v, _ in after} == {v.label for v, _ in before}
