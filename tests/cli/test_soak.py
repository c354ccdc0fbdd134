"""Builds and checks by several processes on one cache and one result file, killed at random times."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.results import record
from harness.support import cache, tools
from harness.support.cache import Cache


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


def still_alive(folder: Path) -> list[str]:
    """Return the command lines of processes that were started with this folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.mark.parametrize(
    ("processes", "runs", "least"),
    [pytest.param(4, 10, 0, marks=pytest.mark.slow), pytest.param(8, 500, 20, marks=pytest.mark.exhaustive)],
)
def test_nothing_is_lost_or_left(tmp_path: Path, processes: int, runs: int, least: int) -> None:
    """More than `least` of 500 runs end by themselves, are told to end, and are killed."""
    seed = random.SystemRandom().randrange(2**32)
    ended = soak(tmp_path, processes, runs, seed)
    assert sum(ended.values()) == runs and min(ended.values()) >= least, (seed, ended)
    assert left_behind(tmp_path) == []
    if runs > 100:
        assert record.load(tmp_path / "r.json")["rows"]
    temporary = [p.name for p in (tmp_path / "tmp").iterdir()]
    assert len(temporary) <= ended["killed"], temporary  # SIGKILL alone leaves a temporary folder
    limit = time.monotonic() + 30
    while (alive := still_alive(tmp_path)) and time.monotonic() < limit:
        time.sleep(0.2)  # a compiler's thread whose process was told to end
    assert alive == []


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_process_that_is_left_is_seen(tmp_path: Path) -> None:
    """The control."""
    with subprocess.Popen(["sleep", "60"], env={"HARNESS_CACHE_DIR": str(tmp_path)}) as left:
        try:
            limit = time.monotonic() + 10  # until its start is complete
            while (found := still_alive(tmp_path)) != ["sleep 60 "] and time.monotonic() < limit:
                time.sleep(0.01)
            assert found == ["sleep 60 "]
        finally:
            left.kill()
    assert still_alive(tmp_path) == []
