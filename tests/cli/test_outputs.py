"""Files that a command line names: written whole or not at all, and nothing is overwritten by a slip."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

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


@pytest.mark.usefixtures("no_gpu")
def test_json_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.json"
    assert harness("bench", "tiled", "--json", str(path)).exit_code == 0
    content = json.loads(path.read_text())
    assert (content["schema"], content["kind"], content["rows"][0]["kernel"]) == (2, "bench", "03_tiled")
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]
    (tmp_path / "file").write_text("")
    result = harness("bench", "tiled", "--json", str(tmp_path / "file" / "r.json"))
    assert result.exit_code == 1 and "cannot write" in result.stderr


@pytest.mark.usefixtures("no_gpu")
def test_json_never_replaces_a_device_a_link_or_a_kernel(tmp_path: Path, kernel_file: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = harness("bench", "tiled", "--json", str(tmp_path / "pipe"))
    assert result.exit_code == 1 and "not a regular file" in result.stderr
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "real.json").write_text('{"old": 1}')
    (tmp_path / "real.json").chmod(0o600)
    (tmp_path / "link.json").symlink_to("real.json")
    assert harness("bench", "tiled", "--json", str(tmp_path / "link.json")).exit_code == 0
    assert (tmp_path / "link.json").is_symlink() and "schema" in (tmp_path / "real.json").read_text()
    assert (tmp_path / "real.json").stat().st_mode & 0o777 == 0o600
    kernel = kernel_file()
    before = kernel.read_text()
    assert harness("sass", str(kernel), "--json", str(kernel)).exit_code == 2
    assert kernel.read_text() == before


@pytest.mark.usefixtures("no_gpu")
def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    result = harness("bench", "tiled", "--json", str(tmp_path / ("n" * 300)))
    assert result.exit_code == 1 and "cannot write" in result.stderr


__all__ = ["no_gpu"]
