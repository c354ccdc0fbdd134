"""Records that name kernels as they were called are read as of today; cards compare along ``after``."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from harness.kernels import catalog
from harness.problems import checks
from harness.problems.gemm import GEMMS
from harness.results import claims, comparison, explanation, fastest, record
from shared.places import record_file

OLD, NEW = "24_wgmma_fp16", "23_wgmma_pipeline_fp16"
SIZE = {"M": 64, "N": 64, "K": 64}


def row(kernel: str, seconds: float = 1e-3, **more: Any) -> dict[str, Any]:
    params = {} if kernel in ("cuBLAS", "matmul") else catalog.kernel(kernel).variant().stated
    return {
        "kernel": kernel, "params": params, "shape": "64 fp16", "status": "ok", "seconds": seconds,
        "times": [seconds] * 9, "registers": 128, "dtype": "fp16", **more,
    }  # fmt: skip


def written(path: Path, *rows: dict[str, Any], kind: str = "bench") -> Path:
    meta = {"gpu": {"name": "a GPU", "sms": 132}}
    path.write_text(json.dumps({"schema": 2, "kind": kind, "meta": meta, "rows": rows}))
    return path


def test_names_are_those_of_today(tmp_path: Path) -> None:
    chosen = {"kernel": OLD, "label": f"{OLD} BM=64", "params": {}, "others": ["30_grid_split_fp16 BM=64"]}
    path = written(
        tmp_path / "r.json",
        row(OLD, label=f"{OLD} BM=64", detail=f"{OLD} is named here", against=f"{OLD} BM=128"),
        row("matmul", chosen=chosen, label=f"matmul -> {OLD} BM=64"),
        row("cuBLAS", chosen=None),
    )
    one, two, three = record.load(path)["rows"]
    assert (one["kernel"], one["label"], one["against"]) == (NEW, f"{NEW} BM=64", f"{NEW} BM=128")
    assert one["detail"] == f"{OLD} is named here", "what was said is as it was said"
    assert (two["kernel"], two["label"]) == ("matmul", f"matmul -> {NEW} BM=64")
    assert two["chosen"]["kernel"] == NEW and two["chosen"]["label"] == f"{NEW} BM=64"
    assert two["chosen"]["others"] == ["29_wgmma_grid_split_fp16 BM=64"]
    assert three["kernel"] == "cuBLAS" and three["chosen"] is None


def test_other_names_are_kept(tmp_path: Path) -> None:
    for name in (NEW, "24_wgmma", "24_wgmma_fp16x", "24", "mine"):
        (found,) = record.load(written(tmp_path / "r.json", row(NEW, label=name) | {"kernel": name}))["rows"]
        assert (found["kernel"], found["label"]) == (name, name)


def test_a_recorded_file_of_each_shape() -> None:
    """Files in nvbench's shape and plain lists are read alike."""
    for name in ("bench/ladder-fp16", "verify/ladder", "explain/claims", "check/ladder"):
        path = record_file(f"h200/{name}")
        raw = path.read_bytes()
        text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode()
        found = {r["kernel"] for r in record.load(record_file(f"h200/{name}"))["rows"]}
        assert OLD in text and OLD not in found and NEW in found, name


def test_an_old_file_is_compared_with_a_new_one(tmp_path: Path) -> None:
    old, new = (
        record.load(written(tmp_path / f"{name}.json", row(name, seconds)))
        for name, seconds in ((OLD, 1e-3), (NEW, 2e-3))
    )
    (found,) = comparison.compare(old, new, threshold=0.01, force=True)
    assert found.ratio is not None and found.ratio.estimate == pytest.approx(2)
    assert found.label.startswith(NEW)


def test_an_old_file_is_chosen_from(tmp_path: Path) -> None:
    axes = {**SIZE, "alpha": 1.0, "beta": 0.0, "lda": 64, "ldb": 64, "ldc": 64}
    path = written(tmp_path / "r.json", row(OLD, axes=axes, arch="sm_90a"))
    (rows,) = fastest.measured([path]).values()
    (entry,) = fastest.entries(fastest.measured([path]))
    assert rows[0]["kernel"] == NEW == entry["kernel"] and entry["dtype"] == "fp16"


def test_claims_find_old_rows(tmp_path: Path) -> None:
    """A prediction of a file with several types speaks of the same type of the kernel it names."""
    split = catalog.kernel("26_wgmma_split_fp16").variant()
    problem = GEMMS["fp16"](M=512, N=512, K=16384)
    about = {"axes": checks.axes(problem), "shape": problem.label}
    path = written(
        tmp_path / "r.json",
        row(OLD, 1e-3, **about),
        row("27_wgmma_split_fp16", 0.5e-3, **about),
        row("23_wgmma_pipeline", 9.0, **about),
    )
    (found,) = claims.outcomes(split, lambda *_: {}, {"r.json": record.load(path)})
    assert found.value == pytest.approx(0.5) and found.holds is True and found.record == "r.json"


# Cards


def cards(*names: str) -> list[tuple[str, str]]:
    rows = [row(name, 1e-3 / (i + 1)) for i, name in enumerate(names)]
    return [(c.b["kernel"], c.a["kernel"]) for c in explanation.cards(rows, [], [])]


def test_a_card_compares_with_the_predecessor() -> None:
    assert cards("03_tiled", "04_tiled_coarse", "06_bank_conflict", "07_bank_padded") == [
        ("04_tiled_coarse", "03_tiled"),
        ("06_bank_conflict", "03_tiled"),
        ("07_bank_padded", "06_bank_conflict"),
    ]
    assert cards("14_warp_tiles", "15_split_k", "16_pipeline")[1] == ("16_pipeline", "14_warp_tiles")


def test_the_nearest_ancestor_that_was_measured() -> None:
    assert cards("01_naive", "14_warp_tiles", "15_split_k", "19_pipeline_split") == [
        ("14_warp_tiles", "01_naive"),
        ("15_split_k", "14_warp_tiles"),
        ("19_pipeline_split", "14_warp_tiles"),
    ]
    assert cards("23_wgmma_pipeline", NEW, "26_wgmma_split_fp16", "26_wgmma_split")[-2:] == [
        ("26_wgmma_split_fp16", NEW),
        ("26_wgmma_split", "23_wgmma_pipeline"),
    ]


def test_without_an_ancestor_it_is_the_row_before() -> None:
    assert cards("03_tiled", "01_naive") == [("03_tiled", "01_naive"), ("01_naive", "03_tiled")]
    rows = [row("03_tiled"), row("03_tiled") | {"kernel": "mine"}, row("tiled") | {"kernel": "tiled"}]
    found = explanation.cards(rows, [], [])
    assert [(c.b["kernel"], c.a["kernel"]) for c in found] == [("mine", "03_tiled"), ("tiled", "mine")], (
        "kernels of the user's own, even where a word of theirs names a rung"
    )
