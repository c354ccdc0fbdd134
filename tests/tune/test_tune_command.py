"""``harness tune``."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fakes import gemm as fake_gemm
from harness.bench.session import Bench
from harness.cli.children import isolation
from harness.cli.verbs import tune
from harness.cli.views import tuned
from harness.driver import api
from harness.errors import HarnessError, NoDriver
from harness.launch.operands import Data
from harness.results import record
from harness.support.children import Ended
from harness.tune.journal import Journal
from harness.tune.search import Result as Tuned
from shared.places import record_file
from shared.tuning import SPACE, TILES, Speeds, harness, t4_faults

# ---- the command -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command(speeds: Speeds, kernel: str, tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "r.json"), "--t4", str(tmp_path / "t.json")]
    result = harness("tune", kernel, "-p", SPACE, "-a", "N=[24,32]", "--regime", "hot", "--fresh", *files)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("fastest: TILE=5") == 2
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["kind"] == "tune" and content["meta"]["tune_params"] == {"TILE": list(TILES)}
    assert [r["winners"] for r in content["meta"]["results"]] == [[{"TILE": 5}], [{"TILE": 5}]]
    assert {r["stage"] for r in content["rows"]} >= {"rung 1", "final"}
    for shape in ("24", "32"):
        assert t4_faults(json.loads((tmp_path / f"t-{shape}.json").read_text())) == []
    again = harness("tune", kernel, "-p", SPACE, "-a", "N=[24,32]", "--regime", "hot")
    assert "0 measurements" in again.stdout and "kept from before" in again.stdout
    fresh = harness("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot", "--fresh", "--csv")
    assert fresh.exit_code == 0 and fresh.stdout.startswith("kernel,")


@pytest.mark.slow
def test_data_are_made_while_the_session_opens(
    speeds: Speeds, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first size's, each once, in a thread beside; the session waits here until they are there."""
    begun, ready, real_data, real_open = list[tuple[int, bool]](), threading.Event(), Data.of, Bench.__init__

    def of(problem: Any, seed: int) -> Data:
        begun.append((seed, threading.current_thread() is threading.main_thread()))
        data = real_data(problem, seed)
        if len(begun) == 2:
            ready.set()
        return data

    def opened(self: Bench, *args: Any, **more: Any) -> None:
        assert ready.wait(10)
        real_open(self, *args, **more)

    monkeypatch.setattr(Data, "of", of)
    monkeypatch.setattr(Bench, "__init__", opened)
    result = harness("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot", "--fresh", "--seed", "7")
    assert result.exit_code == 0 and begun == [(7, False), (8, False)]


@pytest.mark.slow
def test_a_wrong_candidate_is_a_finding(speeds: Speeds, kernel: str) -> None:
    speeds.execute[7] = fake_gemm.zeros
    result = harness("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot", "--fresh")
    assert result.exit_code == 1 and "fastest: TILE=5" in result.stdout
    assert "TILE=7, 24: FAILED" in result.stdout


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(speeds: Speeds, kernel: str) -> None:
    def interrupt(launch: Any) -> None:
        raise KeyboardInterrupt

    speeds.execute[7] = interrupt
    command = ("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot")
    result = harness(*command, "--fresh")
    assert result.exit_code == 130 and "so far: TILE=5" in result.stdout
    del speeds.execute[7]
    result = harness(*command)
    assert result.exit_code == 0 and "6 kept from before" in result.stdout


@pytest.fixture
def faulting(fake: Any, speeds: Speeds) -> None:
    """Plant a candidate that faults."""

    def fault(launch: Any) -> None:
        fake.sticky = 700

    speeds.execute[7] = fault


@pytest.mark.slow
@pytest.mark.usefixtures("faulting")
def test_after_a_fault_another_process_goes_on(
    fake: Any, speeds: Speeds, kernel: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the candidate that faulted, and with what was measured before. The control is the next test."""
    told: list[list[str]] = []
    shown: list[str] = []

    def watch(command: list[str], *_: Any, **__: Any) -> Ended:
        told.append(command)
        fake.sticky = 0
        result = harness(*command[3:])
        shown.append(result.stdout)
        return Ended(code=result.exit_code)

    monkeypatch.setattr(isolation, "watch", watch)
    out = tmp_path / "r.json"
    command = ("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot", "--budget", "1h", "--fresh")
    result = harness(*command, "--json", str(out))
    assert result.exit_code == 1 and "another one goes on without it" in " ".join(result.stderr.split())
    assert speeds.runs[7] <= 2, "once as the reference, once as a candidate"
    assert "fastest: TILE=5" in shown[-1]
    assert all(isolation.SUPERVISED in c and "--fresh" not in c for c in told)
    (budget,) = [c for c in told[0] if c.startswith("--budget=")]
    assert 3000 < float(budget.removeprefix("--budget=")) < 3600
    statuses = {r["params"]["TILE"]: r["status"] for r in record.load(out)["rows"]}
    assert statuses.pop(7) == "error" and set(statuses.values()) == {"ok"} and len(statuses) > 3


@pytest.mark.slow
@pytest.mark.usefixtures("faulting")
def test_where_no_process_can_go_on_the_rows_are_shown(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "watch", lambda *_, **__: Ended(code=2, why="its process was ended"))
    result = harness("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot", "--fresh")
    assert result.exit_code == 1 and "the tuning's process: its process was ended" in result.stderr
    assert "TILE=7" in result.stdout and "ILLEGAL_ADDRESS" in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("faulting")
def test_a_fault_says_how_to_go_on(fake: Any, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune where nothing is kept from process to process."""
    monkeypatch.setattr(tune, "_journal", lambda *_: Journal(None))
    result = harness("tune", kernel, "-p", SPACE, "-a", "N=24", "--regime", "hot", "--fresh")
    assert result.exit_code == 1 and "goes on without that candidate" in result.stderr


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NoDriver("libcuda was not found", hint="install it")

    monkeypatch.setattr(api, "init", refuse)
    result = harness("tune", "tiled")
    assert result.exit_code == 1 and "it needs a GPU (libcuda was not found)" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0[1-3]*"], "names several kernels"),
        (["tiled_no_sync"], "wrong on purpose"),
        (["tiled", "-p", "NOPE=1"], "no kernel here has a parameter NOPE"),
        (["tiled", "--strategy", "exhaustive", "--max-fevals", "2"], "every candidate"),
        (["tiled", "--budget", "soon"], "soon"),
        (["tiled", "--budget", "0s"], "0"),
    ],
)
def test_what_makes_no_sense(fake: Any, arguments: list[str], message: str) -> None:
    result = harness("tune", *arguments)
    assert result.exit_code == 2 and message in result.stderr


# ---- --isolate -------------------------------------------------------------------------------------


CHILD = """\
import os, signal, sys, time
from pathlib import Path
from harness.tune.journal import Journal
journal = Journal(Path({path!r}))
for tile in range(4):
    if journal.get(str(tile)) is None:
        journal.begin(str(tile), {{"tile": tile}})
        if tile == 1:
            {end}
        journal.put(str(tile), {{"tile": tile, "detail": "ok"}})
sys.exit(1 if any(journal.get(str(t))["detail"] != "ok" for t in range(4)) else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "why", "hung"),
    [
        ("pass", "ok", None),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV", False),
        ("time.sleep(60)", "it hangs", True),
        ("journal.put('1', {'detail': 'fault'}); sys.exit(75)", "fault", None),
    ],
)
def test_isolation_goes_on_without_whoever_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, why: str, hung: bool | None
) -> None:
    path = tmp_path / "j"
    code = CHILD.format(path=str(path), end=end)
    monkeypatch.setattr(isolation, "tune_command", lambda *_: [sys.executable, "-c", code])
    code = isolation.tune(None, None, path, 1.5)  # type: ignore[arg-type]
    journal = Journal(path)
    assert code == (0 if end == "pass" else 1) and journal.count == 4
    assert why in journal.get("1")["detail"] and journal.get("1").get("hung") is hung


def test_isolation_blames_nobody_for_what_an_earlier_run_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal(tmp_path / "j").begin("innocent", {})
    die = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    monkeypatch.setattr(isolation, "tune_command", lambda *_: die)
    with pytest.raises(HarnessError, match="SIGSEGV"):
        isolation.tune(None, None, tmp_path / "j", 5)  # type: ignore[arg-type]
    assert Journal(tmp_path / "j").count == 0


def test_what_the_isolated_child_is_told(fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[list[str]] = []
    monkeypatch.setattr(isolation, "watch", lambda c, *_, **__: told.append(c) or Ended(code=0))
    options = [
        "-p",
        "TILE=[8,16]",
        "-a",
        "N=64",
        "--seed",
        "5",
        "--budget",
        "2m",
        "--t4",
        str(tmp_path / "t"),
    ]
    result = harness("tune", "tiled", "--isolate", *options, "--threshold", "1%", "--md")
    assert result.exit_code == 0
    (command,) = told
    assert command[:5] == [sys.executable, "-m", "harness", "tune", "tiled"]
    assert isolation.SUPERVISED in command
    for part in ("--param=TILE=[8,16]", "--axis=N=64", "--seed=5", "--threshold=1.0", "--md"):
        assert part in command
    (budget,) = [c for c in command if c.startswith("--budget=")]
    assert 100 < float(budget.removeprefix("--budget=")) < 120
    assert f"--t4={tmp_path / 't'}" in command and "--isolate" not in command
    parsed = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert parsed.returncode == 0


def test_a_long_ranking_is_short_in_text_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded on an H200: 120 sets."""
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest's processes have: 80, where no line fits
    content = record.load(record_file("h200/tune/10_vectorized"))
    (summary,) = (s for s in content["meta"]["results"] if s["shape"] == "4096")
    rows = [r for r in content["rows"] if r["shape"] == "4096" and r["stage"] != "duel"]
    last = {str(r["params"]): r for r in rows}
    winners = tuple(last[str(p)] for p in summary["winners"])
    others = sorted((r for r in last.values() if r not in winners), key=lambda r: r["seconds"])
    ranking = (*winners, *others[:-1], {**others[-1], "status": "FAILED", "seconds": None})
    about = {
        "confirmed": True,
        "note": "",
        "seconds": 1.0,
        "searching": 1.0,
        "measured": len(rows),
        "resumed": 0,
    }
    result = Tuned(shape="4096", winners=winners, ranking=ranking, rows=(), **about)

    def printed(style: str | None) -> str:
        tuned.show([result], [], content["meta"], "sm_90a", style)
        return capsys.readouterr().out

    assert len(ranking) == 120
    short, markdown = printed(None), printed("md")
    assert short.count(" slower, ") == 20 - len(winners) and "\n99 more, up to " in short
    assert "FAILED" in short, "what has no time is never left out"
    assert markdown.count(" slower, ") == 120 - len(winners) - 1 and " more" not in markdown
