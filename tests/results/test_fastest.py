"""Result files that become what harness.matmul runs: on this GPU by a table of one's own, and as shipped."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import harness
from harness.cli import main
from harness.dispatch import choose, shipped_table, user_table
from harness.errors import UsageError
from harness.results import fastest, record
from shared.places import ROOT, record_file

GPU = {"name": "A GPU", "sms": 132}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HARNESS_TABLE", str(tmp_path / "own" / "matmul.json"))
    choose.reread()
    yield
    choose.reread()


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["choose", *map(str, args)], env={"COLUMNS": None})


def chosen(n: int, dtype: str = "fp32", gpu: str = "A GPU") -> str:
    return harness.choose(n, n, n, sms=132, arch="sm_90a", gpu=gpu, dtype=dtype).label


def row(kernel: str, params: dict[str, int], seconds: float, n: int, **changes: Any) -> dict[str, Any]:
    axes = {"M": n, "N": n, "K": n, "lda": n, "ldb": n, "ldc": n, "alpha": 1.0, "beta": 0.0}
    variant = harness.kernel(kernel).variant(**params)
    return {
        "kernel": kernel, "params": dict(variant.params), "tile": list(variant.tile), "seconds": seconds,
        "axes": axes, "shape": str(n), "status": "ok", "baseline": False, "arch": "sm_90a", **changes,
    }  # fmt: skip


def written(folder: Path, *rows: dict[str, Any], name: str = "run.json", kind: str = "bench") -> Path:
    file = folder / name
    file.write_text(json.dumps({"schema": 2, "kind": kind, "meta": {"gpu": GPU}, "rows": list(rows)}))
    return file


@pytest.mark.parametrize("size", [0, -1, True, 512.0, 2**31, None])
def test_sizes_that_are_none_are_left_out(size: Any, tmp_path: Path) -> None:
    odd = row("15_split_k", {"SPLIT": 2}, 3e-5, 512)
    odd["axes"]["M"] = size
    result = run(written(tmp_path, odd))
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.exception


def test_records_of_several_models_make_a_table_for_each(tmp_path: Path) -> None:
    """As a fleet leaves them. One model needs no column."""
    today = harness.choose(512, 512, 512, sms=132, arch="sm_90a", gpu="A GPU")
    now = row(today.kernel.name, dict(today.params), 1e-3, 512)
    first = written(tmp_path, now, row("15_split_k", {"SPLIT": 2}, 1e-5, 512), name="r-A.json")
    second = written(tmp_path, now, row("13_cp_async", {}, 1e-5, 512), name="r-B.json")
    content = json.loads(second.read_text())
    second.write_text(json.dumps({**content, "meta": {"gpu": {**GPU, "name": "B GPU"}}}))
    assert "GPU" not in run(first).output
    result = run(first, second, "--write")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("GPU ") and {"A GPU,", "B GPU,"} <= {line[:6] for line in lines[2:]}
    assert max(map(len, lines[:-1])) <= 80
    assert chosen(512).startswith("15_split_k") and chosen(512, gpu="B GPU").startswith("13_cp_async")


def test_the_fastest_that_is_right_is_taken(tmp_path: Path) -> None:
    rows = [
        row("15_split_k", {"SPLIT": 2}, 3e-5, 512),
        row("15_split_k", {"SPLIT": 4}, 2e-5, 512),
        row("13_cp_async", {}, 1e-5, 512, status="FAILED"),  # wrong: it has no time
        row("13_cp_async", {}, 1e-5, 512, baseline=True),
        row("13_cp_async", {}, 4e-5, 1024),
        row("25_wgmma_tf32", {}, 1e-6, 512, dtype="tf32"),  # faster, and of another type
        {**row("13_cp_async", {}, 1e-6, 512), "kernel": "of_my_own"},
    ]
    rows.append(row("12_prefetch", {}, 1e-6, 1024))
    rows[-1]["axes"] = {**rows[-1]["axes"], "lda": 1025}  # padded: another question
    rows.append(row("16_pipeline", {"TRANSB": 1}, 1e-6, 1024))
    rows[-1]["axes"] |= {"transb": 1}  # another layout: another one, too
    today = harness.choose(512, 512, 512, sms=132, arch="sm_90a", gpu="A GPU", dtype="tf32")
    rows.append(row(today.kernel.name, dict(today.params), 1e-3, 512, dtype="tf32"))
    today = harness.choose(1024, 1024, 1024, sms=132, arch="sm_90a", gpu="A GPU")
    mine = {"kernel": today.kernel.name, "params": dict(today.params), "label": today.label}
    rows.append({**row("13_cp_async", {}, 1e-3, 1024), "kernel": "matmul", "params": {}, "chosen": mine})
    today = harness.choose(512, 512, 512, sms=132, arch="sm_90a", gpu="A GPU")
    rows.append(row(today.kernel.name, dict(today.params), 1e-3, 512))
    rows.append(row("13_cp_async", {}, 1e-9, 300))  # and what is taken there now was not timed
    file = written(tmp_path, *rows)
    before = {n: chosen(n) for n in (512, 1024, 300)}
    assert not before[512].endswith("SPLIT=4") and not before[1024].startswith("13_cp_async")
    told = run(file)
    assert told.exit_code == 0, told.output
    (line,) = [s for s in told.output.splitlines() if s.split()[:2] == ["512", "fp32"]]
    assert max(map(len, told.output.splitlines())) <= 80
    assert "15_split_k" in line and "20.00 us" in line
    assert {n: chosen(n) for n in before} == before  # told, and nothing else
    result = run(file, "--write")
    assert result.exit_code == 0 and "own/matmul.json" in result.output.replace("\n", "")
    assert "1 left out: what is taken now was not timed there" in result.output
    assert chosen(512).endswith("SPLIT=4") and chosen(1024).startswith("13_cp_async")
    assert chosen(500) == chosen(512) and chosen(300) == before[300]
    assert chosen(512, "tf32").startswith("25_wgmma_tf32")
    assert chosen(512, gpu="another") == before[512]
    better = row("15_split_k", {"SPLIT": 8}, 1e-5, 512), row("15_split_k", {"SPLIT": 4}, 2e-5, 512)
    again = run(written(tmp_path, *better, name="b.json"), "--write")
    assert again.exit_code == 0
    assert chosen(512).endswith("SPLIT=8") and chosen(1024).startswith(
        "13_cp_async"
    )  # one replaced, one kept
    assert len(json.loads(user_table.path().read_text())["tuned"]) == 3
    gone = run("--forget")
    assert gone.exit_code == 0 and "removed" in gone.output and not user_table.path().exists()
    assert {n: chosen(n) for n in before} == before
    assert "no table of your own" in run("--forget").output


def test_what_todays_choice_loses(tmp_path: Path) -> None:
    (now,) = [harness.choose(512, 512, 512, sms=132, arch="sm_90a", gpu="A GPU")]
    rows = [row(now.kernel.name, dict(now.params), 3e-5, 512), row("13_cp_async", {}, 2e-5, 512)]
    (found,) = fastest.judged(fastest.measured([written(tmp_path, *rows)]))
    assert found.today.label == now.label and found.regret == pytest.approx(0.5)
    assert found.fastest.kernel.name == "13_cp_async"
    assert "50.0%" in run(tmp_path / "run.json").output
    (found,) = fastest.judged(fastest.measured([written(tmp_path, rows[1])]))
    assert found.regret is None


def test_of_a_variant_timed_more_than_once_the_longest_counts(tmp_path: Path) -> None:
    """Rungs of harness tune have few samples, which may be lucky; its finals have more."""
    rows = [
        row("13_cp_async", {}, 1e-5, 512, samples=6),
        row("13_cp_async", {}, 3e-5, 512, samples=400),
        row("15_split_k", {}, 2e-5, 512, samples=400),
    ]
    for order in (rows, rows[::-1]):
        (found,) = fastest.judged(fastest.measured([written(tmp_path, *order, kind="tune")]))
        assert found.fastest.kernel.name == "15_split_k" and found.seconds == 2e-5


def test_recorded_tuning_names_its_winner() -> None:
    file = record_file("h200/tune/vectorized")
    wanted = {r["shape"]: r["winners"][0] for r in record.load(file)["meta"]["results"]}
    found = {str(f.point[3]): f for f in fastest.judged(fastest.measured([file]))}
    assert found.keys() == wanted.keys()
    for shape, winner in wanted.items():
        assert found[shape].fastest.params == winner


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"tuned": 3}', '{"other": []}', "\x00"],
)
def test_a_damaged_table_is_said_and_not_used(text: str) -> None:
    plain = chosen(512)
    user_table.path().parent.mkdir()
    user_table.path().write_text(text)
    choose.reread()
    with pytest.warns(UserWarning, match=r"is not used: .*choose --forget"):
        assert chosen(512) == plain
    assert run("--forget").exit_code == 0


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "99_gone"},
        {"kernel": "23_wgmma_pipeline"},  # of another type
        {"params": {"NOPE": 1}},
        {"params": {"SPLIT": "x"}},
        {"params": None},
        {"M": [1]},
        {"M": ["1", "9"]},
        {"K": None},
    ],
    ids=str,
)
def test_entries_that_no_kernel_serves_are_left_out(change: dict[str, Any]) -> None:
    good = {"gpu": "A GPU", "sms": 132, "M": [1, 600], "N": [1, 600], "K": [1, 600], "kernel": "15_split_k"}
    good["params"] = {"SPLIT": 8}
    user_table.path().parent.mkdir()
    user_table.path().write_text(json.dumps({"tuned": [{**good, **change}, good, 3]}))
    choose.reread()
    with pytest.warns(UserWarning, match="2 entries name no kernel"):
        assert chosen(512).endswith("SPLIT=8")


def test_where_the_table_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_TABLE", "~/mine.json")
    assert user_table.path() == Path.home() / "mine.json"
    monkeypatch.delenv("HARNESS_TABLE")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/a/b")
    assert user_table.path() == Path("/a/b/harness/matmul.json")


def test_what_cannot_be_chosen_from_is_refused(tmp_path: Path) -> None:
    for args, said in (
        ((), "no result files"),
        ((record_file("h200/profile/ladder"),), "no times of variants"),
        ((written(tmp_path, row("13_cp_async", {}, 1e-5, 512, status="FAILED")),), "nothing to choose from"),
        ((tmp_path / "none.json",), "none.json"),
        (("--forget", "--write"), "by itself"),
    ):
        result = run(*args)
        assert result.exit_code == 2 and said in result.output and "Traceback" not in result.output, args
    with pytest.raises(UsageError):
        fastest.measured([record_file("h200/selftest/noise")])


# The script that writes the shipped table


def test_the_shipped_table_takes_the_place_of_its_own_kind(tmp_path: Path) -> None:
    path = ROOT / "scripts" / "tune_matmul.py"
    spec = importlib.util.spec_from_file_location("tune_matmul", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = fastest.entries(fastest.measured([written(tmp_path, row("15_split_k", {}, 1e-5, 512))]))
    old = {**made[0], "M": [1, 2]}
    kept = [{**old, "gpu": "other"}, {**old, "dtype": "bf16"}]
    table = json.loads(script.written({"candidates": [], "tuned": [*kept, old]}, made))
    assert table["tuned"] == [*kept, *made]
    assert made[0]["M"] == [449, 512] and made[0]["file"] == "run.json"
    shipped = shipped_table.FILE.read_text()
    assert script.written(json.loads(shipped), json.loads(shipped)["tuned"]) == shipped


@pytest.mark.parametrize("gpu", [None, {}, {"name": "A GPU"}])
def test_what_no_gpu_has_timed_is_refused(tmp_path: Path, gpu: Any) -> None:
    file = tmp_path / "run.json"
    rows = [row("15_split_k", {}, 1.0, 512)]
    file.write_text(json.dumps({"schema": 2, "kind": "bench", "meta": {"gpu": gpu}, "rows": rows}))
    result = run(file)
    assert result.exit_code == 2 and "not measured on a GPU" in result.output


def test_rows_that_do_not_say_enough_are_passed_over(tmp_path: Path) -> None:
    """Files of the first schema have no baseline and no architecture; others have no size."""
    bare = {"kernel": "15_split_k", "shape": "512", "status": "ok", "params": {}, "seconds": 1e-9}
    old = {k: v for k, v in row("13_cp_async", {}, 1e-9, 512).items() if k not in ("arch", "baseline")}
    assert run(written(tmp_path, bare, old)).exit_code == 2
    result = run(written(tmp_path, bare, old, row("14_warp_tiles", {}, 1.0, 512)))
    assert result.exit_code == 0 and "14_warp_tiles" in result.output
    assert run(record_file("h200/bench/tiles")).exit_code == 0
