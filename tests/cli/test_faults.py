"""Faults in every write and spawn, processes killed at random: an end with words, nothing lost or left."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.results import record
from harness.support import cache, tools
from harness.support.cache import Cache
from shared.command import harness, no_gpu

CODES = (errno.ENOSPC, errno.EIO, errno.EINTR, errno.ENOMEM)
# What writes files and starts processes, wherever it is called from.
CALLS: dict[str, tuple[Any, str]] = {
    "mkdir": (Path, "mkdir"),
    "mkdtemp": (tempfile, "mkdtemp"),
    "mkstemp": (tempfile, "mkstemp"),
    "write_bytes": (Path, "write_bytes"),
    "write_text": (Path, "write_text"),
    "rename": (Path, "rename"),
    "replace": (Path, "replace"),
    "fdopen": (os, "fdopen"),
    "spawn": (subprocess, "Popen"),
}


def failing(real: Callable[..., Any], code: int, first: int, count: int) -> Callable[..., Any]:
    """Return `real`, of which `count` calls fail, from call `first` on."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if first < calls <= first + count:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    return call


def run_with(
    name: str, code: int, first: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str, Path]:
    """Run check with such faults; return exit code, output and the record's path."""
    file = tmp_path / "r.json"
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    owner, attribute = CALLS[name]
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, failing(getattr(owner, attribute), code, first, count))
        result = harness("check", "tiled", "-a", "N=8", "--json", str(file))  # raises what is no exit
    return result.exit_code, result.output, file


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", CALLS)
def test_a_fault_in_any_write_or_spawn_costs_no_table(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = CODES[list(CALLS).index(name) % len(CODES)]
    exit_code, output, file = run_with(name, code, 0, 10**6, tmp_path, monkeypatch)
    assert exit_code in (0, 1, 2) and output.strip()  # 2: the kernel itself cannot be read
    if exit_code == 0:
        assert json.loads(file.read_text())["rows"]
    else:
        assert os.strerror(code) in output or "cannot" in output, output
    assert not list(tmp_path.glob(".r.json*"))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_every_fault_in_every_call(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(6):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        exit_code, output, _ = run_with(name, code, first, 1, tmp_path, monkeypatch)
        assert exit_code in (0, 1, 2) and output.strip(), (first, output)


def test_the_faults_are_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a write that nobody guards shows the fault."""
    monkeypatch.setattr(Path, "write_text", failing(Path.write_text, errno.EIO, 1, 1))
    (tmp_path / "a").write_text("x")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        (tmp_path / "a").write_text("x")
    (tmp_path / "a").write_text("x")


def soak(folder: Path, processes: int, runs: int, seed: int) -> dict[str, int]:
    """Run `runs` builds and checks, `processes` at a time, on one cache and one result file.

    Half of them get a signal at a random time. Returns how many ended how.
    """
    draw = random.Random(seed)
    (folder / "tmp").mkdir()
    env = tools.environment() | {"HARNESS_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    file, ended = folder / "r.json", {"done": 0, "told": 0, "killed": 0}
    alive: list[tuple[subprocess.Popen[str], float, int]] = []
    begun = 0
    while begun < runs or alive:
        while begun < runs and len(alive) < processes:
            kernel = draw.choice(["naive", "coalesced", "tiled", "copy"])
            size = "N=64" if kernel == "copy" else f"N={draw.choice([8, 16])}"
            args = draw.choice(
                [["build", kernel, "--arch", draw.choice(["sm_80", "sm_90a"])], ["check", kernel, "-a", size]]
            )
            args += ["--json", str(file)] if args[0] == "check" else []
            number = draw.choice([0, 0, signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
            run = subprocess.Popen(
                [sys.executable, "-m", "harness", *args],
                env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            alive.append((run, time.monotonic() + draw.uniform(0.2, 12), number))
            begun += 1
        for one in list(alive):
            run, at, number = one
            if run.poll() is None:
                if number and time.monotonic() > at:
                    run.send_signal(number)
                    alive[alive.index(one)] = (run, float("inf"), number)
                continue
            alive.remove(one)
            error = run.stderr.read() if run.stderr else ""
            code = run.returncode
            ours = "import_site" not in error and (code >= 0 or number == signal.SIGKILL)
            if ours:  # else the signal came before Python ran our first line
                assert code in (0, 130, 143, -signal.SIGKILL), (code, error)
                assert 'File "' not in error, error
            ended["done" if code == 0 else "killed" if code == -signal.SIGKILL else "told"] += 1
        if file.exists():
            assert record.load(file)["rows"] is not None  # whole at any time
        time.sleep(0.05)
    return ended


def left_behind(folder: Path) -> list[str]:
    """Return what is neither an entry of the cache nor a file that was asked for."""
    store = Cache(folder / "cache")
    assert store.root is not None
    for entry in store.entries():
        assert store.get(entry.folder.name) is not None, "a damaged entry"
    for place in store._folders(cache._BEGUN):
        os.utime(place, (1000, 1000))  # an hour later
    store.trim(2**40)
    odd = [p for p in store.root.rglob(".*") if p.name != ".trimmed"]
    return [str(p.relative_to(folder)) for p in odd]


@pytest.mark.exhaustive
def test_a_soak(tmp_path: Path) -> None:
    ended = soak(tmp_path, 8, 500, random.SystemRandom().randrange(2**32))
    assert sum(ended.values()) == 500 and min(ended.values()) > 20, ended
    assert left_behind(tmp_path) == []
    assert record.load(tmp_path / "r.json")["rows"]
    temporary = [p.name for p in (tmp_path / "tmp").iterdir()]
    assert len(temporary) <= ended["killed"], temporary  # SIGKILL alone leaves a temporary folder


__all__ = ["no_gpu"]
