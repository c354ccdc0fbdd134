"""Records that grow by a row: scripts/card_bits.py and scripts/calibrate_emulator.py on a fake GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import calibrate_emulator
import card_bits as script

import growing
from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.errors import HarnessError, UnknownMetrics, UsageError
from harness.instruments import ncu
from harness.results import record
from shared import card_bits

RUNGS = ("01_naive", "02_coalesced")
SMALL = ({"M": 5, "N": 33, "K": 9, "beta": 0.5}, {"M": 3, "N": 7, "K": 5, "ldb": 11})


class Clock:
    """A clock that each row moves on by the next of some seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self.now, self.left = 0.0, list(seconds)
        monkeypatch.setattr(growing, "time", SimpleNamespace(monotonic=lambda: self.now))

    def row(self) -> dict[str, Any]:
        self.now += self.left.pop(0)
        return {"at": self.now}


def given(file: Path, *, seconds: float = 100.0, resume: bool = False) -> Any:
    return SimpleNamespace(file=file, seconds=seconds, resume=resume)


def fill(clock: Clock, asked: Any, names: str = "abcd", **meta: Any) -> int:
    return growing.fill(asked, "some", meta, dict.fromkeys(names, clock.row), str)


def test_no_row_begins_that_would_end_too_late_and_the_record_names_those_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    clock = Clock(monkeypatch, 10, 40, 10, 10)
    assert fill(clock, given(file, seconds=99)) == 1 and clock.now == 60
    content = record.load(file)
    assert [row["step"] for row in content["rows"]] == ["a", "b", "c"] and content["meta"]["left"] == ["d"]
    assert "no time is left for 1 of 4 rows: go on with --resume" in capsys.readouterr().err
    assert fill(clock, given(file, resume=True)) == 0
    content = record.load(file)
    assert [row["step"] for row in content["rows"]] == ["a", "b", "c", "d"] and content["meta"]["left"] == []
    assert fill(clock, given(file, resume=True)) == 0 and clock.left == []


def test_each_row_is_in_the_file_when_the_next_begins(tmp_path: Path) -> None:
    file, seen = tmp_path / "r.json", []

    def row() -> dict[str, Any]:
        seen.append(len(record.load(file)["rows"]) if file.exists() else 0)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        growing.fill(given(file), "some", {}, dict.fromkeys("abc", row), str)
    assert seen == [0, 1, 2] and record.load(file)["meta"]["left"] == ["c"]
    assert list(tmp_path.iterdir()) == [file]


def test_an_error_is_a_row_and_the_others_are_made(tmp_path: Path) -> None:
    def bad() -> dict[str, Any]:
        raise HarnessError("no such luck", where="here")

    file = tmp_path / "r.json"
    assert growing.fill(given(file), "some", {}, {"a": bad, "b": dict}, str) == 1
    assert record.load(file)["rows"] == [{"step": "a", "error": "here: no such luck"}, {"step": "b"}]


@pytest.mark.parametrize(
    ("kind", "meta", "said"),
    [
        ("other", {"gpu": "x"}, "not a record of this script"),
        ("some", {"gpu": "y"}, "its gpu is x, here it is y"),
    ],
)
def test_only_a_record_of_the_same_script_and_gpu_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, meta: dict[str, Any], said: str
) -> None:
    file = tmp_path / "r.json"
    record.write_json(file, record.document(kind, [], {"gpu": "x"}))
    before = file.read_text()
    with pytest.raises(UsageError, match=said):
        fill(Clock(monkeypatch), given(file, resume=True), **meta)
    assert file.read_text() == before


def run(module: Any, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    status: int = module.main()
    return status


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    return fake_gemm.gpu(monkeypatch)


def test_card_bits_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: fake_driver.FakeDriver
) -> None:
    monkeypatch.setattr(card_bits, "SHAPES", SMALL)
    file = tmp_path / "r.json"
    assert run(script, monkeypatch, file, *RUNGS, "--seconds", "0.01") == 1
    content = record.load(file)
    assert len(content["rows"]) == 1 and len(content["meta"]["left"]) == 3
    launched = len(fake.launches)
    assert run(script, monkeypatch, file, *RUNGS, "--resume") == 0
    rows = record.load(file)["rows"]
    assert [(row["kernel"], row["axes"]) for row in rows] == [(k, axes) for k in RUNGS for axes in SMALL]
    assert all(row["distance"] <= 1 for row in rows) and len(fake.launches) == 4 * launched


def test_a_fault_ends_card_bits_and_what_it_has_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: fake_driver.FakeDriver
) -> None:
    monkeypatch.setattr(card_bits, "SHAPES", SMALL)
    fake.execute = fake_gemm.Faulting(fake, {(32, 7)})
    file = tmp_path / "r.json"
    assert run(script, monkeypatch, file, *RUNGS) == 1
    content = record.load(file)
    assert ["error" in row for row in content["rows"]] == [False, True] and len(content["meta"]["left"]) == 2


def test_a_metric_that_ncu_does_not_know_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: fake_driver.FakeDriver
) -> None:
    asked = []

    def counters(variant: Any, axes: Mapping[str, float], metrics: Sequence[str]) -> dict[str, float]:
        asked.append(len(metrics))
        if calibrate_emulator.FETCHED in metrics:
            raise UnknownMetrics((calibrate_emulator.FETCHED,))
        return dict.fromkeys(metrics, 1.0)

    monkeypatch.setattr(ncu, "counters", counters)
    monkeypatch.setattr(calibrate_emulator, "SHAPES", SMALL)
    monkeypatch.setattr(calibrate_emulator, "UNKNOWN", set())
    file = tmp_path / "r.json"
    assert run(calibrate_emulator, monkeypatch, file, "coalesced BX=16 BY=16") == 1
    rows = json.loads(file.read_text())["rows"]
    every = len(calibrate_emulator.METRICS)
    assert asked == [every, every - 1, every - 1] and len(rows) == 2
    for row in rows:
        assert row["error"] == f"ncu has no {calibrate_emulator.FETCHED}" and row["findings"] == 0
        assert len(row["measured"]) == every - 1 and row["compiled"].keys() == set(calibrate_emulator.METRICS)
