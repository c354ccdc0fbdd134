"""Files that a command line names by a slip: nothing that is there is overwritten with something else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.kernels import catalog
from shared import damaged
from shared.command import harness, no_gpu

LINES = (
    "report -o a.json b.json",  # where -o report.html a.json b.json was meant
    "report a.json -o a.json",
    "report a.json -o link",
    "report a.json -o k.cu",
    "history a.json b.json --json b.json",
    "history a.json --html a.json",
    "history a.json --html new.html --json new.html",
    "history a.json --export bencher a.json",
    "history a.json --json new.json --export bencher ./new.json",
    "profile --from p.json --json p.json",
    "profile --from p.json --html p.json",
    "explain --claims naive --record p.json --json p.json",
    "sass k.cu --json k.cu",
    "sass lib.so --json lib.so",
    "sass lib.so --html lib.so",
    "sass lib.so --diff k.cu --json lib.so",
    "check k.cu --html a.json",
    "check k.cu --json new.json --sarif new.json",
    "check k.cu --junit new.xml --html new.xml",
    "tune k.cu --json new.json --t4 new.json",
    "judge k.cu --scores new.jsonl --json new.jsonl",
)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("line", LINES)
def test_nothing_is_overwritten_by_a_slip(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "b.json"):
        Path(name).write_text(json.dumps(damaged.sound("bench")))
    Path("p.json").write_text(json.dumps(damaged.sound("profile")))
    Path("link").symlink_to("a.json")
    shutil.copy(catalog.kernel("tiled").path, "k.cu")
    Path("lib.so").write_bytes(b"\x7fELF and more")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    result = harness(*line.split())
    assert result.exit_code == 2
    assert "or writes it twice" in result.output or "'s name, not a" in result.output
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names_of_their_own_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control; a second run replaces what the first has written."""
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(json.dumps(damaged.sound("bench")))
    for _ in range(2):
        assert harness("history", "a.json", "--json", "new.json", "--html", "new.html").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "new.json", "new.html"}


__all__ = ["no_gpu"]
