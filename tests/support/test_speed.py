"""Bounds in seconds: a slow machine does not break them, and slow code does."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from shared import speed
from shared.speed import Stopwatch

WORK = f"for n in range({4 * speed.ADDITIONS}): n += n"


def test_work_counts_and_waiting_does_not() -> None:
    with Stopwatch() as worked:
        exec(WORK)
    with Stopwatch() as waited:
        time.sleep(0.2)
    assert waited.seconds < speed.REFERENCE < worked.seconds < 40 * speed.REFERENCE


def test_the_work_of_a_child_counts() -> None:
    with Stopwatch() as watch:
        subprocess.run([sys.executable, "-c", WORK], check=True)
    assert watch.seconds > speed.REFERENCE


def test_on_a_slow_machine_a_second_is_worth_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same work beside a reference that would be a hundred times as fast."""
    monkeypatch.setattr(speed, "REFERENCE", speed.REFERENCE / 100)
    assert speed.slowness() > 30
    with Stopwatch() as watch:
        exec(WORK)
    assert watch.seconds < 40 * speed.REFERENCE
