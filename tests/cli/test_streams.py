"""The command line's streams: controls as text, any encoding, pipes, full disks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import running, streams
from harness.errors import HarnessError
from harness.support import files, tools
from shared.command import harness, no_gpu

TITLE = "\x1b]0;owned\x07\x1b[31mred\x9b2K\u202eback"


def run(*args: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "harness", *args]
    env = {**tools.environment(), **more.pop("env", {})}
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.run(command, env=env, check=False, timeout=60, **more)


def test_a_title_sends_nothing_to_the_terminal(kernel_file: Any) -> None:
    path = kernel_file(title=TITLE)
    result = harness("list", str(path))
    assert result.exit_code == 0 and r"\x1b]0;owned\x07" in result.output and r"\u202eback" in result.output
    assert not set(result.output) & {chr(c) for c in streams._VISIBLE}


def test_without_the_filter_it_would(kernel_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_VISIBLE", {})
    assert "\x1b]0;owned" in harness("list", str(kernel_file(title=TITLE))).output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's device without room")
@pytest.mark.parametrize("args", [["--help"], ["list"], ["list", "--help"], ["--version"]])
def test_a_full_disk_behind_stdout(args: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(*args, stdout=full)
    assert (done.returncode, done.stderr) == (1, b"error: cannot write the output: No space left on device\n")


def test_a_reader_that_has_gone() -> None:
    read, write = os.pipe()
    os.close(read)
    done = run("list", stdout=write)
    os.close(write)
    assert done.returncode in (141, 1) and done.stderr == b""


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-8"])
def test_characters_that_the_terminal_lacks(encoding: str, kernel_file: Any) -> None:
    path = kernel_file(title="\u4e2d \u20ac \u00e9")
    done = run("list", str(path), env={"PYTHONIOENCODING": encoding})
    assert done.returncode == 0 and b"Traceback" not in done.stderr


@pytest.mark.parametrize("width", ["99999999999", "0", "-3", "abc", "1", "9" * 40])
def test_odd_widths(width: str) -> None:
    done = run("list", "0*", env={"COLUMNS": width})
    assert done.returncode == 0 and b"03_tiled" in done.stdout.replace(b"\n", b"") and not done.stderr


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -P -m harness list"
    done = subprocess.run(
        ["sh", "-c", command], env=tools.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith("error: no working directory")


@pytest.mark.parametrize(
    "verb", ["report", "compare", "choose", "replay", "profile", "explain", "sass", "list"]
)
def test_pipes_and_devices_are_not_waited_for(verb: str, tmp_path: Path) -> None:
    pipe = tmp_path / "r.cubin" if verb == "sass" else tmp_path / "r.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        args = {
            "compare": [str(path), str(path)], "profile": ["--from", str(path)],
            "explain": ["--claims", "tiled", "--record", str(path)],
        }.get(verb, [str(path)])  # fmt: skip
        result = harness(verb, *args)
        assert result.exit_code == 2 and len(result.output.splitlines()) < 6
        assert "not a regular file" in result.output or "kernel" in result.output


def test_an_included_pipe_is_told_of(kernel_file: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.h")
    path = kernel_file(body='#include "p.h"\n')
    result = harness("build", str(path))
    assert result.exit_code == 2 and "not a regular file" in result.output


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(b" " * 100)
    assert files.read(path, most=100)
    with pytest.raises(HarnessError, match="more than the 99 bytes"):
        files.read(path, most=99)


@pytest.mark.usefixtures("no_gpu")
def test_the_record_on_stdout(tmp_path: Path) -> None:
    done = run("check", "tiled", "-a", "N=8", "--json", "-")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["kind"] == "check" and b"03_tiled" in done.stderr
    assert not Path("-").exists()


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "args",
    [
        ["check", "tiled", "-a", "N=8"],
        ["verify", "tiled", "-a", "N=8"],
        ["sass", "tiled"],
        ["sass", "tiled", "--diff", "coalesced"],
    ],
)
def test_the_table_first_then_the_disk_that_is_full(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise HarnessError("cannot write: No space left on device", where=str(path))

    monkeypatch.setattr(files, "write_file", full)
    result = harness(*args, "--json", str(tmp_path / "r.json"))
    assert result.exit_code == 1 and "No space left on device" in result.output
    assert ("03_tiled" in result.output or "FFMA" in result.output) and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a$HOME.cu", "a{b}.cu", "a;b.cu", "a b.cu", "a\\b.cu", "a'b.cu", "a%s.cu", "-a.cu"]
)
def test_names_that_a_shell_would_mind(name: str, kernel_file: Any, tmp_path: Path) -> None:
    path = kernel_file(name)
    result = harness("check", "-a", "N=8", str(path))
    assert result.exit_code == 0, result.output
    result = harness("build", str(path), "-o", str(tmp_path / "out"))
    assert result.exit_code == 0 and len(list((tmp_path / "out").iterdir())) == 3


@pytest.mark.parametrize(
    "args", [["list"], ["sass", "tiled"], ["--help"], ["bench", "--help"], ["--version"]]
)
def test_a_reader_that_has_enough(args: list[str]) -> None:
    """`harness sass tiled | head -1` has not failed, and says nothing of it."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "harness", *args]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, check=False, env=tools.environment()
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.usefixtures("no_gpu")
def test_closed_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(sys, "stderr", None)
    with running.progress(3) as step:
        step("goes nowhere, and does not fail")


__all__ = ["no_gpu"]
