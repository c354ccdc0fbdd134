"""A unit of work in its process: what it is given, what it may take, and how it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.fleet import units
from harness.fleet.units import FOLDER, Outcome, Unit
from harness.support.cache import Cache


def unit(code: str, *, timeout: float = 20, **other: Any) -> Unit:
    return Unit(words=("-c", code, f"{FOLDER}/result"), label="u", timeout=timeout, **other)


def done(code: str, **other: Any) -> Outcome:
    return units.perform(unit(code, **other))


WRITES = "import sys; file = open(sys.argv[1], 'a', buffering=1)\n"


def test_it_finds_its_files_and_returns_what_it_wrote() -> None:
    code = WRITES + "here = sys.argv[1].removesuffix('result')\nfile.write(open(here + 'a/b.txt').read())"
    found = done(code, files={"a/b.txt": b"held"})
    assert (found.content, found.error, found.fault) == ("held", "", False) and found.seconds > 0


def test_its_folder_is_gone_afterwards() -> None:
    found = done(WRITES + "file.write(sys.argv[1])")
    assert found.content.endswith("result") and not Path(found.content).parent.exists()


@pytest.mark.parametrize(
    ("code", "error", "fault"),
    [
        ("sys.exit(0)", "", False),
        ("sys.exit(3)", "", False),  # nothing decided, which the result says
        ("print('error: no such kernel', file=sys.stderr); sys.exit(2)", "no such kernel", False),
        ("print('error: 700', file=sys.stderr); sys.exit(1)", "700", True),
        ("import os; os.kill(os.getpid(), 11)", "its process was ended by SIGSEGV", True),
    ],
)
def test_how_it_ended(code: str, error: str, fault: bool) -> None:
    found = done(WRITES + "file.write('some\\n')\n" + code)
    assert (found.content, found.error, found.fault) == ("some\n", error, fault)


@pytest.mark.slow
def test_one_that_writes_goes_on_and_one_that_does_not_hangs() -> None:
    busy = "import time\nfor i in range(6): time.sleep(0.8); file.write('x\\n')\n"
    assert done(WRITES + busy, timeout=4.0).content == "x\n" * 6
    found = done(WRITES + "import time\nfile.write('x\\n'); time.sleep(60)", timeout=4.0)
    assert found.hung and found.fault and found.content == "x\n" and found.seconds < 20


def test_one_that_nobody_waits_for_is_stopped() -> None:
    began = time.monotonic()
    found = units.perform(unit("import time; time.sleep(60)"), lambda: time.monotonic() - began > 0.5)
    assert "interrupted" in found.error and time.monotonic() - began < 10


def test_builds_go_into_the_cache_of_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    monkeypatch.setattr(units, "default_cache", lambda: cache)
    key, entry = "ab" * 32, {"kernel.cubin": b"code"}
    done("pass", cubins={key: entry})
    assert cache.get(key) == entry
    mine: Mapping[str, bytes] = {"kernel.cubin": b"other"}
    done("pass", cubins={key: mine})
    assert cache.get(key) == entry, "what is there is kept"


def test_no_room_for_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    found = done("pass")
    assert found.fault and "nowhere" in found.error


def test_what_a_worker_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from fakes import driver

    driver.install(monkeypatch, devices=2)
    about = units.describe()
    assert about["gpu"]["uuid"].startswith("GPU-a0") and about["gpu"]["driver"] == "13.0"
    assert about["error"] == "" and len(about["code"]) == 64 and about["host"] == os.uname().nodename
    fake = driver.install(monkeypatch, devices=0)
    assert fake.devices == 0 and units.describe()["gpu"] is None
    assert "no device" in units.describe()["error"]
