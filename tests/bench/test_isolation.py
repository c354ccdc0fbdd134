"""Rows that are measured in child processes: `bench --isolate`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli.children import isolation
from harness.results import record
from shared.command import FAST, fake, harness  # noqa: F401  (fixture)
from shared.result_runs import benched

CHILD = """\
import json, os, signal, sys, time
rows = open(sys.argv[-1], "a")
def row(**r): print(json.dumps(r), file=rows, flush=True)
"""


def child(code: str, timeout: float = 20) -> isolation.Outcome:
    return isolation.run_child([sys.executable, "-c", CHILD + code], timeout)


def test_a_child_that_finishes() -> None:
    found = child("row(gpu=1); row(kernel='a'); sys.exit(1)")  # 1: a kernel failed, which its row says
    assert (found.about, found.rows, found.error) == ({"gpu": 1}, ({"kernel": "a"},), "")


def test_a_child_that_hangs_is_killed_and_its_rows_kept() -> None:
    found = child(
        "row(gpu=1); row(kernel='a'); rows.write('{\"torn'); rows.flush(); time.sleep(60)", timeout=1.5
    )
    assert found.rows == ({"kernel": "a"},)
    assert found.error.startswith("not done after 1.5 s, and killed: it hangs")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process was ended by SIGSEGV"),
        (
            "print('error: cuEventSynchronize failed: 700', file=sys.stderr); sys.exit(1)",
            "cuEventSynchronize failed: 700",
        ),
        ("raise RuntimeError('bug')", "its process ended with code 1: RuntimeError: bug"),
        ("sys.exit(7)", "its process ended with code 7: silently"),
    ],
)
def test_a_child_that_dies(code: str, error: str) -> None:
    assert child(f"row(gpu=1)\n{code}").error == error


def test_ctrl_c_keeps_what_the_child_had_measured() -> None:
    """In a process of its own, which its child interrupts as a terminal would. Begun in the background, as
    this one may have been, it would ignore that.
    """
    inner = f"{CHILD}row(gpu=1); row(kernel='a'); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    call = f"isolation.run_child([sys.executable, '-c', {inner!r}], 50)"
    listens = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", f"{listens}from harness.cli.children import isolation\nprint({call})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
    assert "{'kernel': 'a'}" in done.stdout and "interrupted=True" in done.stdout


def test_a_fault_in_one_kernel_leaves_the_others(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent's part: what each child is told to do, and what becomes of their rows."""
    told, interrupted = [], False

    def run_child(command: list[str], timeout: float) -> isolation.Outcome:
        told.append(command)
        rows = tmp_path / "rows"
        rows.unlink(missing_ok=True)
        result = harness(*command[3:], "--rows", str(rows))
        assert "Traceback" not in result.output
        about, *lines = [json.loads(s) for s in rows.read_text().splitlines()]
        if interrupted:
            return isolation.Outcome(rows=tuple(lines[:1]), about=about, error="", interrupted=True)
        if "02_coalesced.cu" in command[4]:  # it faults in its second size
            return isolation.Outcome(rows=tuple(lines[:1]), about=about, error="the context is lost")
        return isolation.Outcome(rows=tuple(lines), about=about, error="")

    monkeypatch.setattr(isolation, "run_child", run_child)
    content = benched(
        tmp_path / "r.json",
        "coalesced",
        "tiled",
        "-a",
        "N=[16,32]",
        "--isolate",
        "--kernel-timeout",
        "9",
        "--alone",
        "--regime",
        "hot",
    )
    assert len(told) == 2 and told[0][:4] == [sys.executable, "-m", "harness", "bench"]
    assert "--regime=hot" in told[0] and "--param=BX=32" in told[0] and "--axis=N=[16,32]" in told[0]
    assert "--alone" in told[0]
    assert "--max-noise=0.5" in told[0] and "--throttle-threshold=60.0" in told[0]
    rows = record.load(tmp_path / "r.json")["rows"]
    assert [(r["kernel"], r["shape"], r["status"]) for r in rows] == [
        ("02_coalesced", "16", "ok"), ("03_tiled", "16", "ok"),
        ("02_coalesced", "32", "error"), ("03_tiled", "32", "ok"),
    ]  # fmt: skip
    interrupted = True
    result = harness(
        "bench", "tiled", "-a", "N=[16,32]", "--isolate", *FAST, "--json", str(tmp_path / "i.json")
    )
    assert result.exit_code == 130 and "interrupted" in result.stderr
    assert [r["shape"] for r in record.load(tmp_path / "i.json")["rows"]] == ["16"]
    assert rows[2]["detail"] == "the context is lost" and content["meta"]["ended"] == "complete"
