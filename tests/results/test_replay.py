"""`harness replay`: a recorded command runs again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cli.verbs.replay import arguments_of
from harness.errors import UsageError
from shared.command import fake, harness  # noqa: F401  (fixture)
from shared.result_runs import benched, run_file


def test_replay(fake: Any, tmp_path: Path) -> None:
    benched(tmp_path / "r.json", "tiled", "-a", "N=16")
    result = harness("replay", str(tmp_path / "r.json"))
    assert result.exit_code == 0 and "reproduced: all 1 rows within 2%" in result.stdout
    assert "harness bench tiled --axis=N=16 --min-time=0.005 --timeout=0.05" in result.stdout
    fake.milliseconds = 1.6
    result = harness("replay", str(tmp_path / "r.json"))
    assert result.exit_code == 1 and "not reproduced: 1 of 1 rows differ" in result.stdout
    fake.milliseconds, fake.sm_ghz = 1.5, 1.7
    result = harness("replay", str(tmp_path / "r.json"))
    assert result.exit_code == 3 and "incomparable: " in result.stdout and "SM clock" in result.stdout


@pytest.mark.slow
def test_replay_of_a_changed_source(
    fake: Any, tmp_path: Path, kernel_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = kernel_file("mine.cu")
    benched(tmp_path / "r.json", str(path), "-a", "N=16")
    assert harness("replay", "r.json").exit_code == 0
    path.write_text(path.read_text() + "// another line\n")
    result = harness("replay", "r.json")
    assert result.exit_code == 3 and "incomparable: another source of mine" in result.stdout


def test_replay_of_what_was_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"schema": 2, "kind": "sass", "meta": {}, "rows": []}')
    result = harness("replay", str(tmp_path / "r.json"))
    assert result.exit_code == 2 and "nothing was measured in this file" in result.stderr


def test_replay_of_a_file_without_its_command(tmp_path: Path) -> None:
    result = harness("replay", str(run_file(tmp_path / "r.json", 1e-3)))
    assert result.exit_code == 2 and "does not say what was run" in result.stderr


def test_arguments_of_a_recorded_command() -> None:
    argv = [
        "harness",
        "bench",
        "tiled",
        "-a",
        "N=8",
        "--json",
        "x.json",
        "-d",
        "GPU-1",
        "--json=y",
        "--md",
        "--sweep",
    ]
    assert arguments_of(argv) == ["tiled", "--sweep", "--axis=N=8"]
    with pytest.raises(UsageError):
        arguments_of(["harness", "sass"])


@pytest.mark.parametrize(
    "word",
    ["--rows=x", "--no-such-option", "/tmp/k.cu", "../k.cu", "--ref=/k.cu", "--arch", "--json=/x/y --rows=x"],
)
def test_a_result_file_chooses_no_hidden_options_and_no_paths(word: str) -> None:
    with pytest.raises(UsageError):
        arguments_of(["harness", "bench", "tiled", *word.split()])
    if word.startswith("--"):
        with pytest.raises(UsageError):
            arguments_of(["harness", "bench", "--", *word.split()])
