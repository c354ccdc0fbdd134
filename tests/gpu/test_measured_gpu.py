"""Measure on a real GPU: shapes that are drawn, and variants at the first call of a shape."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_matmul_gpu import Ours

import harness
from harness.dispatch import choose
from harness.dispatch.call import gpus
from harness.driver import Context, Stream
from harness.errors import MissingDependency
from harness.launch import cublas_bindings
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.verify import compare
from harness.results import record

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import shapes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", list(GEMMS))
def test_a_sample_is_right_and_timed(tmp_path: Path, dtype: str) -> None:
    """Whatever is drawn: no draw may be wrong or fail, on either side."""
    try:
        cublas_bindings.Functions("cuBLAS")
    except MissingDependency as e:
        pytest.skip(e.what)
    path = tmp_path / "shapes.json"
    options = ["--draws", "12", "--regret", "3", "--events", "--json", str(path), "--seconds", "60"]
    assert shapes.main(["--dtype", dtype, *options]) == 0
    rows = record.load(path)["rows"]
    assert [(row["status"], row["failures"]) for row in rows] == [("ok", {})] * 12
    assert all(0.01 < row["ratio"] < 100 and row["event_ratio"] > 0.01 for row in rows)
    assert all(1e-6 < seconds < 1 for row in rows for seconds in row["seconds"].values())
    assert all(row["regret"] >= 0 for row in rows[:3])


def test_the_first_call_measures(gpu: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "matmul.json"
    monkeypatch.setenv("HARNESS_TABLE", str(table))
    monkeypatch.setenv("HARNESS_MATMUL", "measure")
    monkeypatch.setattr(gpus, "_gpus", {})
    choose.reread()
    problem = Gemm(M=333, N=777, K=1111)
    try:
        with Stream(gpu) as stream:
            ours = Ours(gpu, stream, problem)
            for _ in range(2):
                harness.matmul(ours.view("A"), ours.view("B"), ours.view("C"), stream=stream)
            verdict = compare(ours.result(), problem.reference(ours.host), ours.host["C"])
            assert verdict.ok, str(verdict)
        # Operands whose rows are no multiple of 16 bytes apart have no tensor map: nothing is remembered.
        assert not table.exists()
        problem = Gemm(M=384, N=768, K=1152)
        with Stream(gpu) as stream:
            ours = Ours(gpu, stream, problem)
            harness.matmul(ours.view("A"), ours.view("B"), ours.view("C"), stream=stream)
            verdict = compare(ours.result(), problem.reference(ours.host), ours.host["C"])
            assert verdict.ok, str(verdict)
        (entry,) = json.loads(table.read_text())["tuned"]
        about: dict[str, Any] = {"sms": gpu.device.sms, "arch": "sm_90a", "gpu": gpu.device.name}
        assert choose.choose(384, 768, 1152, **about).kernel.name == entry["kernel"]
    finally:
        for one in gpus._gpus.values():
            one.context.close()
        monkeypatch.undo()
        choose.reread()
