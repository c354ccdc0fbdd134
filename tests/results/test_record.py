"""Result files: written in nvbench's shape, and read back."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fakes import gemm as fake_gemm
from harness.kernels import catalog
from harness.results import record
from harness.support.files import PACKAGE
from shared.command import fake, harness  # noqa: F401  (fixture)
from shared.places import RECORDS, ROOT, record_file
from shared.result_runs import benched


def test_a_result_file_is_one_of_nvbenchs(fake: Any, tmp_path: Path) -> None:
    """Every name and type that its reader (cuda.bench.results) and compare script look up."""
    content = benched(
        tmp_path / "r.json", "coalesced", "tiled", "-a", "M=64", "-a", "N=[16,32]", "-a", "K=40"
    )
    assert content["meta"]["version"]["json"]["string"] == "1.0.0"
    (device,) = content["devices"]
    assert (device["id"], device["name"], device["sm_version"]) == (0, "Fake GPU", 900)
    assert [b["name"] for b in content["benchmarks"]] == ["02_coalesced BX=32 BY=32", "03_tiled TILE=16"]
    for bench in content["benchmarks"]:
        axes = {axis["name"]: axis for axis in bench["axes"]}
        assert axes["N"]["type"] == "int64" and axes["alpha"]["type"] == "float64"
        assert [v["input_string"] for v in axes["N"]["values"]] == ["16", "32"]
        for state in bench["states"]:
            assert state["name"].startswith("Device=0 M=64 N=") and state["device"] in bench["devices"]
            assert {v["name"] for v in state["axis_values"]} == set(axes) and not state["is_skipped"]
            tags = {s["tag"]: s for s in state["summaries"]}
            mean = tags["nv/cold/time/gpu/mean"]["data"][0]
            assert mean["name"] == "value" and mean["type"] == "float64" and isinstance(mean["value"], str)
            assert float(mean["value"]) == pytest.approx(1.5e-3)
            assert tags["nv/cold/sample_size"]["data"][0]["type"] == "int64"


@pytest.mark.parametrize("regime", ["hot", "graph"])
def test_other_regimes_do_not_call_themselves_cold(fake: Any, tmp_path: Path, regime: str) -> None:
    content = benched(tmp_path / "r.json", "tiled", "-a", "N=16", "--regime", regime)
    (state,) = content["benchmarks"][0]["states"]
    tags = [s["tag"] for s in state["summaries"]]
    assert f"harness/{regime}/time/gpu/mean" in tags and not [t for t in tags if t.startswith("nv/")]


def test_a_failed_row_is_skipped_with_its_reason(fake: Any, tmp_path: Path) -> None:
    fake.execute = fake_gemm.zeros
    (state,) = benched(tmp_path / "r.json", "tiled", "-a", "N=16")["benchmarks"][0]["states"]
    assert state["is_skipped"] and "256 of 256 elements wrong" in state["skip_reason"]


def test_nvbenchs_own_reader_opens_it(fake: Any, tmp_path: Path) -> None:
    results = pytest.importorskip("cuda.bench.results")
    benched(tmp_path / "r.json", "tiled", "-a", "N=[16,32]")
    (bench,) = results.BenchmarkResult.from_json(tmp_path / "r.json").values()
    assert len(bench) == 2


def test_rows_come_back_as_they_were(fake: Any, tmp_path: Path) -> None:
    content = benched(tmp_path / "r.json", "coalesced", "tiled", "-a", "N=[16,32]")
    rows = record.load(tmp_path / "r.json")["rows"]
    assert [(r["kernel"], r["shape"]) for r in rows] == [
        ("02_coalesced", "16"), ("03_tiled", "16"), ("02_coalesced", "32"), ("03_tiled", "32"),
    ]  # fmt: skip
    row, meta = rows[0], content["meta"]
    assert len(row["times"]) == row["samples"] == sum(b["n"] for b in row["batches"])
    assert row["sm_hz"] == pytest.approx(1.98e9) and row["cycles"] == pytest.approx(1.5e-3 * 1.98e9)
    assert {"argv", "utc", "seed", "commit", "dirty", "versions", "rule", "gpu", "code_sha256"} <= meta.keys()
    assert meta["gpu"]["uuid"].startswith("GPU-") and "event_overhead" in meta["gpu"]
    assert all(len(row[f"{what}_sha256"]) == 64 for what in ("source", "cubin", "sass"))


def test_the_program_that_ran_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = PACKAGE / "__main__.py"
    for started, name in (
        (own, "harness"),
        ("/usr/bin/harness", "harness"),
        ("benchmarks/tuners.py", "tuners.py"),
    ):
        monkeypatch.setattr(sys, "argv", [str(started), "-a", "N=8", "--json", "x/r.json"])
        assert record.provenance()["argv"] == [name, "-a", "N=8", "--json", "r.json"]
    elsewhere = Path(pytest.__file__).with_name("__main__.py")
    monkeypatch.setattr(sys, "argv", [str(elsewhere)])
    assert record.provenance()["argv"] == ["__main__.py"]


def test_a_checkout_knows_its_version_without_being_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_version", lambda name: None)
    checkout = ROOT / "pyproject.toml"
    assert record.own_version(checkout) == tomllib.loads(checkout.read_text())["project"]["version"]
    monkeypatch.setattr(record, "_version", lambda name: f"{name} as installed")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\nversion = "9"\n')
    for file in ("pyproject.toml", "none.toml"):
        assert record.own_version(tmp_path / file) == "cuda-harness as installed"


def test_what_differs_from_the_commit_is_named(tmp_path: Path) -> None:
    def git(*args: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *who, *args], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    package = tmp_path / "harness"
    (tmp_path / "cu").mkdir()
    package.mkdir()
    (package / "a.py").write_text("a = 1\n")
    (tmp_path / "README.md").write_text("words\n")
    assert record._commit(package) == (None, None)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    (tmp_path / "README.md").write_text("other words\n")  # which nothing measured depends on
    assert record._commit(package) == (git("rev-parse", "HEAD"), [])
    (package / "a.py").write_text("a = 2\n")
    (package / "new.py").write_text("")  # a working tree that was copied without its commits has such files
    (tmp_path / "cu" / "my kernel.cu").write_text("")
    assert record._commit(package)[1] == ["cu/my kernel.cu", "harness/a.py", "harness/new.py"]
    (tmp_path / "inner").mkdir()
    assert record._commit(tmp_path / "inner" / "harness") == (None, None)


def test_files_of_the_first_schema_are_read() -> None:
    old = record.load(record_file("h200/bench/tiles"))
    assert old["schema"] in (1, record.SCHEMA) and len(old["rows"]) == 27


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 99, "meta": {}}', "written by a newer harness: schema 99"),
        ("{", "not JSON"),
        ("[]", "not a result file"),
        ('{"schema": "2", "meta": {}}', "not a result file"),
        ('{"schema": 2, "meta": {}}', "a damaged result file"),
        ('{"schema": 2, "meta": {}, "benchmarks": [{}]}', "a damaged result file"),
        ('{"schema": 2, "kind": "bench", "meta": {}, "rows": null}', "no list of objects"),
        ('{"schema": 2, "kind": "bench", "meta": {"gpu": "x"}, "rows": []}', "meta.gpu is a text, not an"),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": '
            '[{"kernel": "a", "params": {}, "shape": "8"}]}',
            "row 0 has no 'status'",
        ),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": '
            '[{"kernel": "a", "params": {}, "status": "ok", "seconds": 1}]}',
            "row 0 has no 'shape'",
        ),
        ('{"schema": 2, "kind": "profile", "meta": {}, "rows": [{"kernel": "a"}]}', "no 'counters'"),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": '
            '[{"kernel": 1, "params": {}, "shape": "8", "status": ""}]}',
            "row 0: kernel is 1, not a text",
        ),
        ('{"schema": 2, "kind": "tune", "meta": {}, "rows": [{}]}', "row 0 has no 'kernel'"),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": [{"kernel": "a", "status": "ok"}]}',
            "no 'params'",
        ),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": '
            '[{"kernel": "a", "status": "ok", "params": {}, "shape": "8", "seconds": -1}]}',
            "row 0: seconds is -1, not more than 0",
        ),
        ('{"schema": 2, "kind": "bench", "meta": {}, "rows": [{"seconds": NaN}]}', "not JSON: NaN"),
        ('{"schema": true, "kind": "bench", "meta": {}, "rows": []}', "not a result file"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.json").write_text(text)
    result = harness("compare", str(tmp_path / "r.json"), str(tmp_path / "r.json"))
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output
    assert "with --json" in result.stderr or not message.startswith("not ")
    assert harness("compare", str(tmp_path / "r.json"), str(tmp_path / "none.json")).exit_code == 2


FILES = sorted(RECORDS.rglob("*.json*")) if RECORDS.is_dir() else []


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(RECORDS)))
def test_every_record_there_is_can_be_read(file: Path) -> None:
    """They were written by harness of many days, with names of kernels that have others today."""
    if file.parent.name in ("benchmarks", "scripts"):
        pytest.skip("written by a script, in a form of its own")
    rows_ = record.load(file)["rows"]
    assert rows_
    named = {row["kernel"] for row in rows_ if "kernel" in row} - {"cuBLAS", "cuBLASLt", "matmul"}
    assert {catalog.kernel(name.split()[0]).name for name in named if name[:2].isdigit()} == {
        name for name in named if name[:2].isdigit()
    }
