"""Threads for jobs that cannot be stopped: results, errors, time limits, and an end that waits for none."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.support.daemons import Daemons, Overdue, abandoned
from harness.support.tools import environment


def test_results_and_errors_come_back_in_any_order() -> None:
    def fail() -> int:
        raise TimeoutError("the job's own")

    with Daemons(2) as pool:
        jobs = [pool.submit(lambda i=i: i * i) for i in range(20)]
        assert [pool.result(job, 10) for job in reversed(jobs)] == [i * i for i in reversed(range(20))]
        with pytest.raises(TimeoutError, match="own"):
            pool.result(pool.submit(fail), 10)


def test_a_job_past_its_time_costs_no_other() -> None:
    over = threading.Event()
    with Daemons(1) as pool:
        stuck, later = pool.submit(over.wait), pool.submit(lambda: 7)
        began = time.monotonic()
        with pytest.raises(Overdue):
            pool.result(stuck, 0.3)
        assert pool.result(later, 0.3) == 7  # its time begins when it begins, in a thread of its own
        assert time.monotonic() - began < 5 and abandoned()
    over.set()
    until = time.monotonic() + 10
    while abandoned():  # the control: without work no thread is left
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_has_not_begun_is_dropped_at_the_end() -> None:
    done: list[int] = []
    over = threading.Event()
    with pytest.raises(KeyboardInterrupt), Daemons(1) as pool:
        pool.submit(over.wait)
        pool.submit(lambda: done.append(1))
        raise KeyboardInterrupt
    over.set()
    time.sleep(0.3)
    assert done == []


BOMB = """// A macro bomb
//
// /// kernel
// entry = "f"
// problem = "copy"
// block = 32
// tile = 32
// ///
#define A(x) x x x x x x x x x x x x x x x x
#define B(x) A(A(A(x)))
extern "C" __global__ void f(float* C) { float x = C[0]; B(B(B(x = x * x + 1;))) C[0] = x; }
"""


@pytest.mark.slow
def test_a_macro_bomb_is_given_up(tmp_path: Path) -> None:
    """NVRTC is at it for years; the other kernel is built, and the process ends."""
    path = tmp_path / "bomb.cu"
    path.write_text(BOMB)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "harness", "build", str(path), "tiled"],
        env={**environment(), "HARNESS_COMPILE_SECONDS": "4"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1 and "03_tiled" in done.stdout
    assert "is not compiled for sm_90a after 4 s" in done.stderr and "HARNESS_COMPILE_SECONDS" in done.stderr
    assert time.monotonic() - began < 30
