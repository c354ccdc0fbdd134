"""Children that are watched: how they end, what they say, and that none is called hung that has ended."""

from __future__ import annotations

import sys
import time

import pytest

from harness.support.children import watch

PYTHON = [sys.executable, "-c"]


def test_what_is_no_text_is_read_all_the_same() -> None:
    ended = watch([*PYTHON, "import os; os.write(2, b'caf\\xe9'); os._exit(3)"], 20, captured=True)
    assert (ended.code, ended.why, ended.said) == (3, "", "caf\N{REPLACEMENT CHARACTER}")


@pytest.mark.slow
def test_a_child_that_moves_is_not_hung() -> None:
    begun = time.monotonic()
    ended = watch([*PYTHON, "import time; time.sleep(1.2)"], 0.5, progress=lambda: int(4 * time.monotonic()))
    assert (ended.code, ended.hung) == (0, False) and time.monotonic() - begun > 1
    ended = watch([*PYTHON, "import time; time.sleep(60)"], 0.5)
    assert ended.hung and ended.code < 0 and "it hangs" in ended.why


@pytest.mark.slow
def test_a_child_that_waits_for_its_turn_is_not_hung() -> None:
    ended = watch([*PYTHON, "import time; time.sleep(1.2)"], 0.4, hangs=lambda: False)
    assert (ended.code, ended.why) == (0, "")


def test_one_that_ended_is_not_hung_though_its_own_child_lives_on() -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(4)'])"
    ended = watch([*PYTHON, code], 1, captured=True)
    assert (ended.code, ended.hung) == (0, False)


def test_a_signal_is_named() -> None:
    ended = watch([*PYTHON, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"], 20, captured=True)
    assert ended.why == "its process was ended by SIGSEGV"
