"""`harness bench` and `verify` on a fake GPU: rows and records, and runs that fail or end early."""

from __future__ import annotations

import csv
import errno
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes import gemm as fake_gemm
from harness.results import record
from shared.command import FAST, fake, harness  # noqa: F401  (fixtures)


def test_bench(fake: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    result = harness("bench", "coalesced", "tiled", "-a", "N=[16,32]", "--json", str(path), *FAST)
    assert result.exit_code == 0, result.output
    assert "Fake GPU, sm_90a" in result.stdout
    assert result.stdout.count("gemm 16: cold") == result.stdout.count("gemm 32: cold") == 1
    content = record.load(path)
    assert [(r["kernel"], r["shape"], r["status"]) for r in content["rows"]] == [
        (kernel, shape, "ok") for shape in ("16", "32") for kernel in ("02_coalesced", "03_tiled")
    ]
    row = content["rows"][-1]
    assert row["flops_rate"] == pytest.approx(2 * 32**3 / 1.5e-3) and len(row["times"]) == row["samples"]
    assert row["protections"][0].startswith("new random data for each launch") and len(row["data_key"]) == 16
    assert content["meta"]["gpu"]["uuid"].startswith("GPU-a0")
    assert content["meta"]["seed"] == 1 and len(content["meta"]["code_sha256"]) == 64


def test_bench_csv_is_one_table_of_plain_numbers(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=16", "--csv", *FAST)
    (row,) = csv.DictReader(io.StringIO(result.stdout))
    broken = harness("bench", "tiled_no_sync", "-a", "N=16", "--csv", *FAST)
    assert len(broken.stdout.splitlines()) == 2 and "05_tiled_no_sync" in broken.stderr
    assert (
        float(row["seconds"]) == pytest.approx(1.5e-3) and row["status"] == "ok" and row["block"] == "16x16x1"
    )


def test_bench_markdown(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=16", "--md", *FAST)
    assert "| 03_tiled |" in result.stdout


def test_verify_counts_shapes(fake: Any) -> None:
    result = harness("verify", "tiled")
    assert result.exit_code == 0
    (row,) = [s for s in result.stdout.splitlines() if s.startswith("03_tiled")]
    assert "5/5" in row and row.endswith("ok")


def test_missing_cublas_is_said(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=16", *FAST)
    assert result.exit_code == 0 and "cublas cannot be loaded: none here" in result.stdout


def test_a_wrong_kernel_fails_the_run(fake: Any) -> None:
    fake.execute = fake_gemm.zeros
    for verb in (["bench", *FAST], ["verify"]):
        result = harness(*verb, "tiled", "-a", "N=16")
        assert result.exit_code == 1
        assert "03_tiled TILE=16, 16: FAILED: 256 of 256 elements wrong, first at [0,0]" in result.stdout


def test_a_kernel_marked_broken_does_not(fake: Any) -> None:
    fake.execute = fake_gemm.zeros
    for verb in (["bench", *FAST], ["verify"]):
        result = harness(*verb, "tiled_no_sync", "-a", "N=16")
        assert result.exit_code == 0
        assert re.search(r"05_tiled_no_sync.* (broken|FAILED as marked)\n", result.stdout)


def test_a_fault_in_the_last_row_shows_those_before_it_and_fails(fake: Any, tmp_path: Path) -> None:
    def fault_in_third_kernel(run: Any) -> None:
        fake_gemm.gemm(run)
        if len(run.args) and run.block == (256, 1, 1):  # 08_tiled_v4
            fake.sticky = 700

    fake.execute = fault_in_third_kernel
    path = tmp_path / "r.json"
    result = harness("bench", "coalesced", "tiled", "tiled_v4", "-a", "N=16", "--json", str(path), *FAST)
    assert result.exit_code == 1
    assert "03_tiled" in result.stdout and not result.stderr, "no other process is needed"
    content = record.load(path)
    assert [r["status"] for r in content["rows"]] == ["ok", "ok", "error"]  # the culprit is named
    assert "context is lost" in content["rows"][2]["detail"] and content["meta"]["ended"] == "complete"


def test_ctrl_c_keeps_what_was_measured(fake: Any, tmp_path: Path) -> None:
    def interrupt(run: Any) -> None:
        if run.block == (256, 1, 1):  # 08_tiled_v4
            raise KeyboardInterrupt
        fake_gemm.gemm(run)

    fake.execute = interrupt
    path = tmp_path / "r.json"
    result = harness("bench", "tiled", "tiled_v4", "-a", "N=16", "--json", str(path), *FAST)
    assert result.exit_code == 130 and "interrupted" in result.stderr and "03_tiled" in result.stdout
    content = record.load(path)
    assert [r["kernel"] for r in content["rows"]] == ["03_tiled"] and "interrupted" in content["meta"][
        "ended"
    ]
    result = harness("verify", "tiled", "tiled_v4", "-a", "N=16")
    assert result.exit_code == 130 and "03_tiled" in result.stdout


def test_a_full_standard_output_does_not_cost_the_record(fake: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    args = ["bench", "tiled", "-a", "N=16", "--json", str(path), *FAST]

    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.results.tables.table", full)
        result = harness(*args)
    assert result.exit_code == 1 and "No space left" in result.stderr
    assert record.load(path)["rows"][0]["kernel"] == "03_tiled"


def test_the_record_says_what_is_missing_from_it(fake: Any, tmp_path: Path, kernel_file: Any) -> None:
    path = tmp_path / "r.json"
    bad = str(kernel_file("bad.cu", body="int x = ;"))
    assert harness("bench", "tiled", bad, "-a", "N=16", "--json", str(path), *FAST).exit_code == 1
    meta = json.loads(path.read_text())["meta"]
    assert meta["ended"] == "complete" and meta["skipped"][0].startswith("bad TILE=16, sm_90a")


def test_records_hold_no_folders(
    fake: Any, tmp_path: Path, kernel_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    bad = str(kernel_file("bad.cu", body="int x = ;"))
    args = ["bench", "tiled", bad, "-a", "N=16", f"--json={path}", *FAST]
    monkeypatch.setattr(sys, "argv", ["harness", *args, str(tmp_path)])
    assert harness(*args).exit_code == 1
    assert str(tmp_path.parent) not in path.read_text()
    assert "--json=r.json" in json.loads(path.read_text())["meta"]["argv"]
