"""Kernel Tuner's T4 files."""

from __future__ import annotations

import json

import pytest

from fakes import gemm as fake_gemm
from harness.driver import Context
from harness.launch.builds import Built
from harness.tune import search, t4
from shared.tuning import Speeds, t4_faults, tune


@pytest.mark.slow
def test_t4(context: Context, space: list[Built], speeds: Speeds, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds.execute[7] = fake_gemm.zeros
    monkeypatch.setattr(search, "unfit", lambda b, _d: "no" if b.variant.params["TILE"] == 2 else "")
    ((result,), tuner) = tune(context, space)
    content = json.loads(json.dumps(t4.document(result.ranking, tuner.unfit, "2026-11-21T00:00:00+00:00")))
    assert t4_faults(content) == []
    by_tile = {r["configuration"]["TILE"]: r for r in content["results"]}
    assert {t: r["invalidity"] for t, r in by_tile.items() if r["invalidity"] != "correct"} == {
        7: "correctness", 2: "constraints",
    }  # fmt: skip
    (time,) = [m for m in by_tile[5]["measurements"] if m["name"] == "time"]
    assert time["unit"] == "ms" and time["value"] == pytest.approx(1.0, rel=0.02)
    assert by_tile[5]["times"]["runtimes"][0] == pytest.approx(1.0, rel=0.05)
    content["results"][0]["invalidity"] = "fine"
    assert t4_faults(content) == ["invalidity fine"]
