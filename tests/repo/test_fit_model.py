"""scripts/fit_model.py on times that the model itself makes, with other constants and with noise."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import fit_model
from fit_model import Key, Time

from harness.dispatch import choose, shipped_table
from harness.dispatch.model.cost import Candidate
from harness.dispatch.model.traffic import Pitches
from harness.errors import UsageError
from harness.problems.gemm import GEMMS
from harness.results import record
from shared.places import ROOT

CLOCK, SMS, NOISE = 1_980_000_000, 132, 0.03


def shapes(count: int) -> list[tuple[int, int, int]]:
    rng = random.Random(3)
    return [tuple(16 * round(2 ** rng.uniform(2, 9)) for _ in range(3)) for _ in range(count)]  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _weak_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the constants of today count for little: these times obey the model, those of a card do not."""
    monkeypatch.setattr(fit_model, "_PRIOR", 0.1)


@pytest.fixture(scope="module")
def truth() -> dict[Key, Candidate]:
    """Other constants than the table's: what a card might really have."""
    found = {}
    own = {c.variant.label for c in choose.candidates()}  # without trials
    candidates = [(k, c) for k, c in fit_model.candidates().items() if c.variant.label in own]
    for i, (key, one) in enumerate(candidates):
        slower = replace(one, step=one.step * (0.7, 0.85, 1.3)[i % 3], start=one.start * (0.6, 0.9)[i % 2])
        found[key] = replace(slower, tile=one.tile * 1.5, sharing=one.sharing * 0.5, memory=1.2, unmapped=3.0)
        found[key] = replace(found[key], fed=25.0, ragged=one.ragged * 1.5)
    return found


def timed(
    truth: Mapping[Key, Candidate], *, noise: float, dtype: str = "bf16", count: int = 60, unmapped: str = ""
) -> list[Time]:
    rng = np.random.default_rng(1)
    found = []
    laid_out = {key: choose.laid_out(one.variant, "NT", "A") for key, one in truth.items() if key[0] == dtype}
    for number, shape in enumerate(shapes(count)):
        for key, one in truth.items():
            if key[0] == dtype and one.serves(*shape[:2], "sm_90a"):
                where = {"shape": shape, "layout": "NT", "sms": SMS}
                pitches = Pitches(straddled="" if number % 4 else "AB", unmapped=unmapped)
                variant = laid_out[key]
                time = Time(
                    draw=("0", number),
                    dram=15.5,
                    key=key,
                    variant=variant,
                    pitches=pitches,
                    cycles=1.0,
                    **where,
                )
                exact = fit_model.predicted(one, time)
                found.append(replace(time, cycles=exact * float(np.exp(rng.normal(0, noise)))))
    return found


@pytest.mark.slow
def test_constants_are_recovered(truth: Mapping[Key, Candidate]) -> None:
    measured = timed(truth, noise=NOISE, count=40)
    fit, test = fit_model.parted(measured, 0.3, 1)
    assert {t.draw for t in fit}.isdisjoint({t.draw for t in test})
    assert len({t.draw for t in test}) == 12
    known = fit_model.candidates()
    found = fit_model.fitted(known, fit)
    keys = {t.key for t in fit}
    assert len(keys) >= 10

    constants = {
        # All draws are of the layout NT, so that times do not tell the layout's factor from the step.
        "step where all SMs are busy": lambda one: one.step * one.crowded * one.turned_b,
        # Where blocks share tiles, times hardly tell one from the other; see test_sharing_is_fitted_too.
        "start and a tile": lambda one: one.start + one.tile,
    }
    for constant, of in constants.items():

        def apart(some: Mapping[Key, Candidate], of: Any = of) -> Any:
            return np.array([abs(of(some[k]) / of(truth[k]) - 1) for k in keys])

        off = apart(found)
        assert np.median(off) < 0.06 and np.median(off) < np.median(apart(known)) / 2, constant
    before, after, least = (fit_model.regrets(some, test) for some in (known, found, truth))
    assert np.mean(after) < np.mean(before) / 2
    assert np.mean(after) < np.mean(least) + 0.01, "the truth loses that, too: the fastest is so by noise"
    alone = {time.draw: time for time in test}
    assert len(fit_model.regrets(known, list(alone.values()))) == 0 < len(before), "nothing is lost"
    assert found.keys() == known.keys()
    timed_too = {fit_model.code_of(key) for key in keys}  # fp16's kernels are bf16's
    assert all(found[k] == one for k, one in known.items() if fit_model.code_of(k) not in timed_too)


def test_kernels_of_both_16_bit_types_are_fitted_together() -> None:
    """Names with a suffix for both types or for fp16 alone are one kernel; fp32's is another."""
    known = fit_model.candidates()
    by_type = {
        name: {fit_model.code_of(key) for key in known if key[0] == name} for name in ("fp32", "bf16", "fp16")
    }
    assert {code[1] for code in by_type["bf16"] - by_type["fp16"]} <= {"21_mma_sync"}  # of bf16 alone
    assert by_type["fp16"] <= by_type["bf16"] and not by_type["bf16"] & by_type["fp32"]
    assert ("16 bits", "40_skinny_dots") in {code[:2] for code in by_type["fp16"]}


@pytest.mark.slow
def test_nothing_is_recovered_from_other_times(truth: Mapping[Key, Candidate]) -> None:
    """The control: by the same times, each given to another row, the choice is worse than without them."""
    measured = timed(truth, noise=NOISE, count=10)
    cycles = [t.cycles for t in measured]
    random.Random(1).shuffle(cycles)
    wrong = [replace(t, cycles=c) for t, c in zip(measured, cycles, strict=True)]
    known = fit_model.candidates()
    found = fit_model.fitted(known, wrong)
    least, before, after = (np.mean(fit_model.regrets(some, measured)) for some in (truth, known, found))
    assert 10 * least < before < after


@pytest.mark.parametrize("shares", ["stream", "grid"])
@pytest.mark.slow
def test_sharing_is_fitted_too(truth: Mapping[Key, Candidate], shares: str) -> None:
    """The fit finds what 20_stream_k and 29_wgmma_grid_split take for partial sums of shared tiles."""
    key = next(k for k, one in truth.items() if one.shares == shares and k[0] in ("fp32", "bf16"))
    measured = [t for t in timed(truth, noise=0.01, dtype=key[0], count=80) if t.key == key]
    _, one = fit_model.of_one(fit_model.candidates()[key], measured)
    fullest = [one.step * one.crowded, truth[key].step * truth[key].crowded]  # a step where all SMs are busy
    assert fullest[0] == pytest.approx(fullest[1], rel=0.1)
    together = sum(getattr(truth[key], name) for name in ("sharing", "start", "tile"))
    assert sum(getattr(one, name) for name in ("sharing", "start", "tile")) == pytest.approx(
        together, rel=0.15
    )


@pytest.mark.slow
def test_draws_without_maps_say_how_slow_that_is_and_nothing_else(truth: Mapping[Key, Candidate]) -> None:
    """Fit two constants to them: the others are those of the other draws alone."""
    mapped = timed(truth, noise=0.01)
    bare = timed(truth, noise=0.01, unmapped="AB")
    with_maps = next(k for k, one in truth.items() if k[0] == "bf16" and one.variant.boxes)
    shifting = next(k for k in truth if k[1] == "37_small_tiles_16_bits")
    for key in (with_maps, shifting):
        one = fit_model.candidates()[key]
        alone = fit_model.of_one(one, [t for t in mapped if t.key == key])[1]
        both = fit_model.of_one(one, [t for t in (*mapped, *bare) if t.key == key])[1]
        name, told = ("fed", 25.0) if one.variant.boxes else ("unmapped", 3.0)
        apart: dict[str, Any] = dict.fromkeys((*fit_model.apart_of(one), "ragged"), 1.0)
        assert replace(both, **apart) == replace(alone, **apart)
        assert getattr(alone, name) == getattr(one, name) and getattr(both, name) == pytest.approx(
            told, rel=0.1
        )


def test_least_squares_of_a_curve() -> None:
    x = np.linspace(0, 1, 20)
    found = fit_model.least_squares(
        lambda p: p[0] * np.exp(p[1] * x) - 2 * np.exp(-3 * x), np.array([1.0, 0.0])
    )
    np.testing.assert_allclose(found, [2, -3], rtol=1e-4)


# -- files


def write(path: Path, measured: list[Time], **row: Any) -> Path:
    """A record as benchmarks/shapes.py writes it, in layout NT."""
    rows = []
    for draw in dict.fromkeys(t.draw for t in measured):
        some = [t for t in measured if t.draw == draw]
        M, N, K = some[0].shape
        lda, ldb = (K + 8 * (x in some[0].pitches.straddled) for x in "AB")
        pitches = {"lda": lda, "ldb": ldb, "ldc": N}
        axes = {"M": M, "N": N, "K": K, **pitches, "transa": 0, "transb": 1}
        listed = [
            {
                "kernel": t.key[1],
                "params": t.variant.params,
                "seconds": t.cycles / CLOCK,
            }
            for t in some
        ]
        about = {"dtype": some[0].key[0], "index": draw[1], "status": "ok", "classes": ["square"]}
        rows.append({**about, **axes, "candidates": listed, **row})
    gpu = {"name": "NVIDIA H200", "sms": SMS, "clock_hz": CLOCK}
    record.write_json(path, record.document("shapes", rows, {"gpu": gpu}))
    return path


@pytest.mark.slow
def test_from_records_to_the_table(
    truth: Mapping[Key, Candidate],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = timed(truth, noise=NOISE, count=30)
    trials = [c for c in choose.candidates("trials") if c.dtype.name == "bf16"][:2]
    for one, count in zip(trials, (30, 29), strict=True):
        key = fit_model.key_of("bf16", one.variant.kernel.name, one.variant.params)
        draws = {t.draw: t for t in measured}
        some = [replace(t, key=key, variant=choose.laid_out(one.variant, "NT", "A")) for t in draws.values()]
        measured += [replace(t, cycles=2 * fit_model.predicted(one, t)) for t in some[:count]]
    path = write(tmp_path / "s.json", measured)
    table = tmp_path / "table.json"
    monkeypatch.setattr(fit_model, "TABLE", table)
    fit_model.main([str(path), "--write"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("bf16") == 4
    new, old = json.loads(table.read_text()), shipped_table.contents()
    assert new["tuned"] == old["tuned"]
    count = len(old["candidates"])
    added = new["candidates"][count:]  # what was timed often enough, for both types of 16 bits
    assert [one["dtype"] for one in added] == ["bf16", "fp16"]
    assert all(trials[0].variant.params.items() >= one["params"].items() for one in added)
    assert added[0] not in old["trials"] and len(new["trials"]) == len(old["trials"]) - 2
    assert [one["params"] for one in new["candidates"][:count]] == [
        one["params"] for one in old["candidates"]
    ]
    changed = [a for a, b in zip(new["candidates"][:count], old["candidates"], strict=True) if a != b]
    assert {"bf16"} <= {one.get("dtype", "fp32") for one in changed}


def test_records_that_say_nothing(truth: Mapping[Key, Candidate], tmp_path: Path) -> None:
    measured = timed(truth, noise=0, count=3)
    with pytest.raises(UsageError, match="no times of candidates"):
        fit_model.main([str(write(tmp_path / "wrong.json", measured, status="error"))])
    other = tmp_path / "other.json"
    record.write_json(other, record.document("verify", [], {}))
    with pytest.raises(UsageError, match="not a record of draws"):
        fit_model.main([str(other)])
    with pytest.raises(UsageError, match="too few draws"):
        fit_model.main([str(write(tmp_path / "one.json", measured[:2]))])


def test_what_was_chosen_is_a_time_too(truth: Mapping[Key, Candidate], tmp_path: Path) -> None:
    """Of one launch, by whatever name the record's parameters have; not of several, and not of a batch."""
    measured = timed(truth, noise=0, count=3)
    label = "23_wgmma_pipeline BM=64 BN=128 STAGES=8"
    (own,) = [
        key
        for key in truth
        if key[0] == "bf16"
        and key[1] == "23_wgmma_pipeline"
        and '"BM": 64, "BN": 128' in key[2]
        and '"CLUSTER": 1' in key[2]
        and '"PINGPONG": 0' in key[2]
    ]

    def times(chosen: str, seconds: dict[str, float]) -> list[Time]:
        path = write(tmp_path / "s.json", measured, chosen=chosen, seconds=seconds)
        return fit_model.times([path], fit_model.candidates())

    listed = len(times("", {}))
    found = times(label, {"matmul": 1e-5, "cuBLAS": 2e-5})
    more = [t for t in found if t.key == own and t.cycles == pytest.approx(1e-5 * CLOCK)]
    assert len(found) == listed + 3 and len(more) == 3
    assert len(times(f"{label} + {label}", {"matmul": 1e-5})) == listed
    assert len(times(label, {"harness": 1e-5})) == listed


RECORD = "2026-11-27T12:30"  # when regret-36 was begun, to the minute


@pytest.mark.slow
def test_times_from_before_a_kernel_changed_are_earlier_ones() -> None:
    folder = ROOT / "records" / "h200" / "benchmarks"
    path, newer = folder / "regret-36.json.xz", folder / "regret-37.json.xz"
    known, name = fit_model.candidates(), "42_single_floats"
    everything = fit_model.times([path, newer], known)
    found = fit_model.times([path, newer], known, since=[["2026-11-27T20:00", name]])
    expected = [t.earlier or (t.key[1] == name and t.draw[0].startswith("0 ")) for t in everything]
    assert [t.earlier for t in found] == expected
    assert any(expected) and any(t.key[1] == name and not t.earlier for t in found)
    for moment, kernel in ((RECORD, name), ("2026-11-27T20:00", "42_single_flaots")):
        with pytest.raises(UsageError, match=f"no times of {kernel} from before {moment}"):
            fit_model.times([path, newer], known, since=[[moment, kernel]])


@pytest.mark.parametrize(
    ("since", "message"),
    [
        ([["yesterday", "42_single_floats"]], "--since yesterday: not a moment"),
        ([["28.11.2026", "42_single_floats"]], "--since 28.11.2026: not a moment"),
        ([["2026-11-27T20:00"]], "--since 2026-11-27T20:00 names no kernel"),
        ([["2026-11-27", "x"], ["2026-11-28", "y", "x"]], "--since names x twice"),
    ],
)
def test_changes_that_are_none(since: list[list[str]], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        fit_model.changes(since)


def test_times_of_results_with_rows_anywhere_are_earlier_alone() -> None:
    """All of the kernel whose C has a pitch of no multiple of 16 bytes, and no others."""
    path, name = ROOT / "records" / "h200" / "benchmarks" / "regret-41.json.xz", "34_small_tiles_tf32"
    known, after = fit_model.candidates(), "2026-11-28T07:36"
    odd = {
        (f"0 {row['dtype']}", row["index"])
        for row in record.load(path)["rows"]
        if row["ldc"] * (2 if row["dtype"] in ("bf16", "fp16") else 4) % 16
    }
    everything = fit_model.times([path], known)
    found = fit_model.times([path], known, since=[[after, f"{name}:odd"]])
    changed = [time.key[1] == name and time.draw in odd for time in everything]
    assert [t.earlier for t in found] == [t.earlier or c for t, c in zip(everything, changed, strict=True)]
    assert any(time.key[1] == name and not time.earlier for time in found) and any(changed)
    with pytest.raises(UsageError, match="no times of 23_wgmma_pipeline:even from before"):
        fit_model.times([path], known, since=[[after, "23_wgmma_pipeline:even"]])


def test_times_of_operands_with_rows_anywhere_are_earlier_alone() -> None:
    """All of the kernel where rows of A or B are no multiple of 16 bytes apart, and no others."""
    path, name = ROOT / "records" / "h200" / "benchmarks" / "regret-41.json.xz", "42_single_floats"
    known = fit_model.candidates()
    unmapped = {
        (f"0 {row['dtype']}", row["index"])
        for row in record.load(path)["rows"]
        if any(row[ld] * (2 if row["dtype"] in ("bf16", "fp16") else 4) % 16 for ld in ("lda", "ldb"))
    }
    everything = fit_model.times([path], known)
    found = fit_model.times([path], known, since=[["2026-11-30T23:40", f"{name}:unmapped"]])
    changed = [time.key[1] == name and time.draw in unmapped for time in everything]
    assert [t.earlier for t in found] == [t.earlier or c for t, c in zip(everything, changed, strict=True)]
    assert any(time.key[1] == name and not time.earlier for time in found) and any(changed)


def test_times_with_a_parameter_are_earlier_alone() -> None:
    """All of the kernel in tiles of 96 columns, in records from before, and no others."""
    folder, name = ROOT / "records" / "h200" / "benchmarks", "23_wgmma_pipeline"
    paths, known = [folder / f"regret-{number}.json.xz" for number in (61, 63)], fit_model.candidates()
    everything = fit_model.times(paths, known)
    found = fit_model.times(paths, known, since=[["2026-11-28T22:40", f"{name}:BN=96"]])
    changed = [
        time.key[1] == name and time.variant.params["BN"] == 96 and time.draw[0].startswith("0 ")
        for time in everything
    ]
    assert [t.earlier for t in found] == [t.earlier or c for t, c in zip(everything, changed, strict=True)]
    assert any(changed) and any(time.key[1] == name and not time.earlier for time in found)
    with pytest.raises(UsageError, match="no times of 23_wgmma_pipeline:BN=97 from before"):
        fit_model.times(paths, known, since=[["2026-11-28T22:40", f"{name}:BN=97"]])


def test_times_of_launches_that_the_next_one_waits_for_are_earlier_alone() -> None:
    folder, name = ROOT / "records" / "h200" / "benchmarks", "23_wgmma_pipeline"
    path, known = folder / "regret-63.json.xz", fit_model.candidates()
    everything = fit_model.times([path], known)
    found = fit_model.times([path], known, since=[["2026-11-29T01:20", f"{name}:late"]])
    late = [now.earlier and not before.earlier for now, before in zip(found, everything, strict=True)]
    assert any(late) and not any(b.earlier and not a.earlier for a, b in zip(found, everything, strict=True))
    for time, changed in zip(everything, late, strict=True):
        if changed:  # more than half of the places are busy at the end
            M, N, _ = time.shape
            blocks = known[time.key].count(M, N)
            places = 120 if time.variant.params["CLUSTER"] in (4, 8) else 132
            assert time.key[1] == name and (blocks - 1) % places + 1 > places / 2


@pytest.mark.parametrize(
    ("shape", "cluster", "late"),
    [
        ((9824, 96, 2720), 4, True),  # 20 of 30 clusters
        ((7680, 96, 2720), 4, False),  # 15: all of the next launch's find room
        ((12288, 96, 2720), 4, True),  # 24: a fifth of the places stays free
        ((12800, 96, 2720), 4, False),  # 25
        ((15360 + 9824, 96, 2720), 4, False),  # 30, then 20
        ((16896 + 9824, 96, 2720), 1, True),  # 132, then 77
        ((16896 + 512, 96, 2720), 1, False),  # 132, then 4
        ((9824, 96, 800), 4, False),  # reads little
        ((9824, 96, 2720), 1, True),  # 77 of 132
        ((8448, 96, 2720), 1, False),  # 66
    ],
    ids=str,
)
def test_launches_that_the_next_one_waits_for(shape: tuple[int, int, int], cluster: int, late: bool) -> None:
    """Compare with what cu/include/dependent_launch.cuh says: its limit is counted in elements of 16 bits."""
    found = [
        c
        for key, c in fit_model.candidates().items()
        if key[:2] == ("bf16", "23_wgmma_pipeline")
        and [c.variant.params[name] for name in ("BM", "BN", "CLUSTER", "ALONG_N")] == [128, 96, cluster, 0]
    ]
    M, N, K = shape
    assert fit_model.dependents_wait(found[0], GEMMS["bf16"](M=M, N=N, K=K), 132) is late
    batch = replace(found[0], batch=20)  # each a tile, or a cluster's
    assert fit_model.dependents_wait(batch, GEMMS["bf16"](M=128, N=96, K=2720), 132) is (cluster == 4)
    header = (ROOT / "cu" / "include" / "dependent_launch.cuh").read_text()
    assert f"2 * busy > places && elements > {fit_model._MUCH >> 21} << 20" in header
    assert "(TOGETHER < 4 || 5 * work <= 4 * places);" in header


@pytest.mark.parametrize(
    ("kernel", "params", "layout", "shape", "late"),
    [
        ("35_wgmma_stream_k", {"BM": 128, "BN": 32, "SHARE": 0, "CLUSTER": 1}, "NN", (10624, 32, 2496), True),
        (
            "35_wgmma_stream_k",
            {"BM": 128, "BN": 32, "SHARE": 0, "CLUSTER": 1},
            "NN",
            (27000, 32, 2496),
            True,
        ),
        (
            "35_wgmma_stream_k",
            {"BM": 128, "BN": 32, "SHARE": 1, "CLUSTER": 1},
            "NN",
            (5312, 32, 4992),
            True,
        ),
        ("25_wgmma_tf32", {"BM": 64, "BN": 128, "SPLIT": 1, "CLUSTER": 1}, "NN", (6400, 128, 2048), True),
        ("25_wgmma_tf32", {"BM": 64, "BN": 128, "SPLIT": 1, "CLUSTER": 1}, "TT", (6400, 128, 2048), True),
        ("25_wgmma_tf32", {"BM": 64, "BN": 128, "SPLIT": 1, "CLUSTER": 1}, "TT", (6400, 64, 2048), False),
        ("25_wgmma_tf32", {"BM": 64, "BN": 128, "SPLIT": 2, "SHARE": 0}, "NN", (3200, 128, 2048), True),
        ("25_wgmma_tf32", {"BM": 64, "BN": 128, "SPLIT": 2, "SHARE": 0}, "NN", (1600, 128, 4096), False),
        ("25_wgmma_tf32", {"BM": 128, "BN": 128, "SPLIT": 2, "SHARE": 1}, "NN", (6400, 128, 2048), False),
        ("25_wgmma_tf32", {"BM": 64, "BN": 64, "SPLIT": 4, "SHARE": 0}, "NN", (1536, 64, 8192), True),
        ("25_wgmma_tf32", {"BM": 64, "BN": 64, "SPLIT": 4, "SHARE": 0}, "NN", (1600, 64, 8192), False),
        ("26_wgmma_split", {"BM": 64, "BN": 64, "SPLIT": 2}, "NN", (64, 3328, 6400), True),
    ],
    ids=str,
)
def test_which_launches_of_other_rungs_are_late(
    kernel: str, params: dict[str, int], layout: str, shape: tuple[int, int, int], late: bool
) -> None:
    """Count as the kernels do; 25 computes a product of transposed operands from its other side."""
    dtype, trans = fit_model.kernel_of(kernel).dtype, layout == "TT"
    found = next(
        c
        for key, c in fit_model.candidates().items()
        if key[:2] == (dtype, kernel) and params.items() <= c.variant.params.items()
    )
    turned = {**found.variant.params, "TRANSA": int(trans), "TRANSB": int(trans)}
    found = replace(found, variant=replace(found.variant, params=turned))
    M, N, K = shape
    assert fit_model.dependents_wait(found, GEMMS[dtype](M=M, N=N, K=K), 132) is late


def test_draws_of_which_one_time_is_known_have_no_regret_to_report() -> None:
    path, known = ROOT / "records" / "h200" / "benchmarks" / "chosen-4.json.xz", fit_model.candidates()
    once = fit_model.times([path], known)
    table = fit_model.report(known, known, {"fitted": once, "test": once})
    assert table.splitlines()[0].startswith("type") and "fitted" not in table


def test_times_with_other_stages_count_as_earlier_ones_of_as_many_as_fit() -> None:
    """Rung 23's candidates take as many stages as fit; the records from before that name numbers of them."""
    path, known = ROOT / "records" / "h200" / "benchmarks" / "regret-44.json.xz", fit_model.candidates()
    found = [t for t in fit_model.times([path], known) if t.key[1] == "23_wgmma_pipeline"]
    assert found and all(t.earlier and t.variant.params["STAGES"] > 0 and t.key in known for t in found)
    fixed = {t.key: t.variant.params["STAGES"] for t in found}
    assert len(set(fixed.values())) > 2 and all('"STAGES": 0' in params for _, _, params in fixed)


def test_the_shipped_table_is_as_it_is_written() -> None:
    before = shipped_table.contents()
    assert fit_model.text(before) == fit_model.TABLE.read_text()
