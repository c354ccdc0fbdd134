"""benchmarks/batches.py without a GPU: its draws, and what it says of wrong results."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from shared.places import ROOT

CARD = {"sms": 132, "arch": "sm_90a", "dram": 15.5}


@pytest.fixture
def batches(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("batches", ROOT / "benchmarks" / "batches.py")
    assert spec and spec.loader
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "batches", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DEVICE", "cpu")
    return module


def test_draws_are_of_the_seed_and_within_limits(batches: Any) -> None:
    first = list(itertools.islice(batches.draws(7, ["fp16", "tf32"]), 80))
    alone = list(itertools.islice(batches.draws(7, ["tf32"]), 40))
    assert [draw for draw in first if draw.dtype == "tf32"] == alone
    assert first != list(itertools.islice(batches.draws(8, ["fp16", "tf32"]), 80))
    assert {draw.layout for draw in first} == {"NN", "NT", "TN", "TT"}
    assert {draw.kind for draw in first} == set(batches.KINDS)
    limits = sys.modules["sampler.batches"]
    for draw in first:
        assert limits.LEAST <= draw.size * draw.M * draw.N * draw.K <= limits.MOST
        assert draw.chosen(CARD)[0].kernel.dtype == draw.dtype


def test_operands_lie_as_drawn(batches: Any, torch: Any) -> None:
    x = batches.operand(3, 5, 7, True, 2, torch.bfloat16)
    assert x.shape == (3, 5, 7) and x.stride() == (37, 1, 5)
    assert set(x.flatten().tolist()) <= {-2, -1, 0, 1, 2}


@pytest.mark.parametrize("fault", ["", "before", "after"])
def test_a_wrong_result_is_an_error(
    batches: Any, torch: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    draw = batches.Draw(kind="small", dtype="bf16", size=3, M=5, N=7, K=9, layout="NT", gaps=(1, 0))

    def multiply(a: Any, b: Any, out: Any, *, precision: str) -> None:
        torch.bmm(a, b, out=out)
        out[2, 4, 6] += fault == "before"

    def seconds(contest: Any, during: Any) -> dict[str, float]:
        during()
        contest.ours[2, 4, 6] += fault == "after"
        return {"harness": 2e-6, "torch": 3e-6}

    monkeypatch.setattr(batches.harness, "matmul", multiply)
    monkeypatch.setattr(batches.Contest, "seconds", seconds)
    sensor = SimpleNamespace(read=lambda: SimpleNamespace(sm_mhz=1980, power=300.0))
    row = batches.measured(draw, sensor, CARD)
    said = batches.summary([row])
    if fault:
        assert row["error"] == f"wrong, {fault} timing" and "error: bf16 3 of 5x7x9 NT" in said
    else:
        assert row["ratio"] == pytest.approx(1.5) and "1.500" in said and row["watts"] == 300
