"""Tests of rung 42 where a tile spans 4 GB in memory, more than its offsets of 32 bits reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bench.emulation import Options
from harness.bench.row import OK, Measurement
from harness.kernels import catalog
from shared.hopper_rungs import Axes, compiled, launched

RUNG = catalog.kernel("42_single_floats")
NEAR = "(long long)ldb) < 1 << 30;"
PARAMETERS = {"BM": 32, "BN": 64, "WARPS_M": 1}


def edited(folder: Path, edits: dict[str, str], axes: Axes) -> Measurement:
    """Run the rung in the emulator, with its text edited."""
    text = RUNG.source
    for old, new in edits.items():
        assert text.count(old) == 1, f"{RUNG.path.name} has changed: {old}"
        text = text.replace(old, new)
    path = folder / RUNG.path.name
    path.write_text(text, encoding="utf-8")
    layout = {"TRANSA": int(axes.get("transa", 0)), "TRANSB": int(axes.get("transb", 0))}
    return launched(compiled(catalog.kernel(str(path)).variant(**PARAMETERS, **layout)), axes, Options())


@pytest.mark.slow
@pytest.mark.parametrize("transb", [0, 1])
@pytest.mark.parametrize("transa", [0, 1])
def test_all_layouts_if_every_tile_is_far(tmp_path: Path, transa: int, transb: int) -> None:
    axes: Axes = {"M": 70, "N": 67, "K": 53, "transa": transa, "transb": transb}
    found = edited(tmp_path, {NEAR: "(long long)ldb) < 0;"}, axes)
    assert found.status == OK, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k < left && x < extent", "x < extent"),
        ("k < left && x < extent", "k < left"),
        ("        __syncthreads();  // everyone has read them\n", ""),
        ("        __syncthreads();  // everyone's copies have landed\n", ""),
        (
            "        cp_async_wait_group<0>();\n        __syncthreads();  // everyone's",
            "        __syncthreads();  // everyone's",
        ),
        ("b_first += TRANSB ? BK : BK * (long long)ldb", "b_first += TRANSB ? BK : BK"),
        ("a_first += TRANSA ? BK * (long long)lda : BK", "a_first += TRANSA ? BK * (long long)lda : 0"),
    ],
    ids=[
        "k beyond the end",
        "rows beyond the edge",
        "stage overwritten",
        "stage of others",
        "not waited for",
        "b stays",
        "a stays",
    ],
)
def test_faults_planted_in_far_tiles_are_found(tmp_path: Path, old: str, new: str) -> None:
    edits = {NEAR: "(long long)ldb) < 0;", old: new}
    assert edited(tmp_path, edits, {"M": 70, "N": 67, "K": 53}).status != OK


@pytest.mark.slow
@pytest.mark.parametrize("pitch", [{"lda": 2**25}, {"ldb": 2**24, "transb": 1}], ids=str)
def test_rows_so_long_that_a_tile_spans_4_gb(tmp_path: Path, pitch: dict[str, int]) -> None:
    """Three rows exist of the 32 of A, or the 64 of B, that a tile has: they fit into memory."""
    axes: Axes = {"M": 3, "N": 3, "K": 20, **pitch}
    found = edited(tmp_path, {}, axes)
    assert found.status == OK, found
    edits = {"copy_far(stage.a, a_first, lda, rows, left);": ""}
    assert edited(tmp_path, edits, axes).status != OK, "it was not far"
