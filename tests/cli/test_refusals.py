"""Words, numbers, names and kernel files that are no good: refused in words, with an exit code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.errors import UsageError
from harness.kernels import catalog
from shared.command import fake, harness, no_gpu  # noqa: F401  (fixtures)
from shared.places import record_file

BAD = [
    (["bench", "nothing.cu"], 2, "no such file"),
    (["bench", "tilde"], 2, "did you mean"),
    (["bench", "kernel.txt/"], 2, "kernels end in .cu or .ptx"),
    (["check", "matmul"], 2, "`harness bench matmul`"),
    (["judge", "mine.cu", "--problem", "mine.py:p"], 2, "problems of your own: `harness check`"),
    (["bench", "tiled", "-p", "TIEL=16"], 2, "parameter TIEL"),
    (["bench", "tiled", "-p", "TILE=x"], 2, "'x' in 'TILE=x' is not a number"),
    (["bench", "tiled", "-p", "TILE=64"], 2, "64 x 64 x 1 threads"),
    (["bench", "tiled", "-p", "TILE=0"], 2, "0; 1 is the least"),
    (["bench", "04*", "-p", "COARSE=3"], 2, "satisfies where"),
    (["bench", "-a", "N=0"], 2, "N=0 is out of range"),
    (["bench", "-a", "N=-5"], 2, "out of range"),
    (["bench", "-a", "N=99999999999"], 2, "out of range"),
    (["bench", "-a", "Q=1"], 2, "no axis 'Q'"),
    (["bench", "-a", "N=[1:2:0]"], 2, "is empty"),
    (["bench", "--arch", "sm_75,sm_80"], 2, "one architecture at a time"),
    (["sass", "--arch", "hopper"], 2, "not an architecture"),
    (["sass", "--arch", "sm_91"], 2, "does not know sm_91"),
    (["sass", "--arch", ","], 2, "names no architecture"),
    (["bench", "--min-samples", "0"], 2, "--min-samples"),
    (["bench", "--json", "/"], 2, "directory"),
    (["frobnicate"], 2, "No such command"),
]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("args", "code", "message"), BAD, ids=[" ".join(a) for a, _, _ in BAD])
def test_bad_input(args: list[str], code: int, message: str) -> None:
    result = harness(*args)
    assert result.exit_code == code
    assert message in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize(
    "args", [["--seed", "-1"], ["--min-time", "nan"], ["--timeout", "inf"], ["--max-noise", "-1"]]
)
@pytest.mark.usefixtures("no_gpu")
def test_numbers_that_make_no_sense(args: list[str]) -> None:
    assert harness("bench", "tiled", *args).exit_code == 2


def test_a_parameter_that_cannot_be_read_is_not_called_an_axis() -> None:
    result = harness("bench", "tiled", "-p", "TILE=")
    assert result.exit_code == 2 and "cannot read the parameter 'TILE='" in result.stderr
    assert "-p TILE=[8,16]" in result.stderr


@pytest.mark.parametrize("word", ["03_tiled", "tiled", "03"])
def test_a_rung_by_name_and_number(word: str) -> None:
    assert [k.name for k in catalog.find(word)] == ["03_tiled"]


@pytest.mark.parametrize("word", ["3", "0", "", "003"])
def test_parts_of_a_number_name_nothing(word: str) -> None:
    with pytest.raises(UsageError):
        catalog.find(word)


def test_unknown_gpu(fake: Any) -> None:
    result = harness("verify", "tiled", "-d", "7")
    assert result.exit_code == 2 and "no GPU matches '7'" in result.stderr
    assert harness("bench", "tiled", "-d", "").exit_code == 2  # not "no GPU", which would be exit 0


@pytest.mark.parametrize(("verb", "others"), [("verify", True), ("bench", True), ("tune", False)])
def test_what_is_no_name_of_a_gpu(verb: str, others: bool) -> None:
    """Told so before any driver is asked, which may not be there."""
    result = harness(verb, "tiled", "-d", "emu")
    assert result.exit_code == 2 and "error: no GPU is called 'emu'\n" in result.stderr
    assert "GPU-5a" in result.stderr and ("or emulator" in result.stderr) == others
    if not others:
        result = harness(verb, "tiled", "-d", "emulator")
        assert result.exit_code == 2 and "the emulator is no GPU" in result.stderr


def test_absurd_sizes_end_before_any_launch(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=1000000")
    assert result.exit_code == 1 and "GiB of device memory" in result.stdout
    assert not fake.launches


@pytest.mark.usefixtures("no_gpu")
def test_bad_kernel_files(kernel_file: Any, tmp_path: Path) -> None:
    result = harness("bench", str(kernel_file("a.cu", body="int x = ;")))
    assert result.exit_code == 1 and f"{tmp_path}/a.cu(11): error" in result.stderr
    result = harness("bench", str(kernel_file("b.cu", extra="blok = 3")))
    assert result.exit_code == 2 and "b.cu:7: unknown key 'blok'" in result.stderr
    result = harness("bench", "tiled", str(kernel_file("c.cu", body="int x = ;")))
    assert result.exit_code == 1 and "03_tiled" in result.stdout and "skipped c TILE=16" in result.stdout


@pytest.mark.usefixtures("no_gpu")
def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.cu"))
    path.write_text(catalog.find("tiled")[0].source)
    for args in (["bench"], ["sass"], ["sass", "tiled", "--diff"]):
        result = harness(*args, str(path))
        assert result.exit_code == 2 and "its name is not UTF-8\n  -> rename it" in result.stderr
    ladder = record_file("h200/bench/tiles")
    copy, page = path.with_suffix(".json"), tmp_path / "page.html"
    copy.write_bytes(ladder.read_bytes())
    assert harness("report", str(copy), "-o", str(page)).exit_code == 0
    assert r"<h3>caf\udce9.json</h3>" in page.read_text(encoding="utf-8")


def test_errors_and_hints_fit_the_terminal(tmp_path: Path) -> None:
    """Broken at spaces; in a pipe, where others read them, not at all."""
    args = ["verify", str(tmp_path / "nothing here.cu")]
    long = harness(*args).stderr
    assert max(map(len, long.splitlines())) > 60
    short = CliRunner().invoke(main, args, env={"COLUMNS": "60"}).stderr
    words = [w for line in short.splitlines() if len(line) > 60 for w in line.split() if len(w) > 40]
    assert len(short.splitlines()) > len(long.splitlines()) and short.split() == long.split()
    assert all(len(line) <= 60 or any(w in line for w in words) for line in short.splitlines())
