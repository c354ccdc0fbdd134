"""Processes beside this one: what they return is what this one finds, and they end when they should."""

from __future__ import annotations

import _thread
import contextlib
import multiprocessing
import multiprocessing.queues
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from harness.bench import emulation
from harness.bench.emulation import Options
from harness.bench.row import EXPECTED, OK
from harness.errors import HarnessError
from harness.kernels import catalog
from harness.launch import builds
from harness.problems.gemm import GEMMS, Gemm
from harness.support import processes as workers
from harness.support import tools
from harness.support.cache import Cache


def test_work_is_done_elsewhere_and_in_order() -> None:
    with workers.processes(2) as pool:
        assert list(pool.map(abs, [-3, 2, -1])) == [3, 2, 1]
        assert pool.submit(os.getpid).result() != os.getpid()
    assert not multiprocessing.active_children()


def test_an_exception_ends_them_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), workers.processes(2) as pool:
        pool.submit(abs, 1).result()  # they run
        pool.submit(time.sleep, 300)
        time.sleep(0.2)
        raise KeyboardInterrupt
    assert not multiprocessing.active_children() and time.monotonic() - began < 60


def stall() -> bytes:
    """Write the first bytes of what is returned, and no more."""
    from multiprocessing import connection

    def send(self: Any, data: Any, write: Any = os.write) -> None:
        write(self.fileno(), bytes(data)[:2])
        Path(os.environ["STALLED"]).touch()
        time.sleep(300)

    connection.Connection._send = send  # type: ignore[method-assign]
    return b"x"


def test_one_that_ends_in_the_middle_of_its_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads answers would wait for the rest, and Python at its end for that thread."""
    stalled = tmp_path / "stalled"
    monkeypatch.setenv("STALLED", str(stalled))
    with pytest.raises(KeyboardInterrupt), workers.processes(1) as pool:
        pool.submit(stall)
        thread = pool._executor_manager_thread
        while not stalled.exists():
            time.sleep(0.01)
        time.sleep(0.1)
        raise KeyboardInterrupt
    thread.join(10)
    assert not thread.is_alive()


def test_a_pool_whose_thread_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of threads, which the queue needs one more of: Python waits for ever."""

    def refuse(_queue: object) -> None:
        raise RuntimeError("can't start new thread")

    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    monkeypatch.setattr(multiprocessing.queues.Queue, "_start_thread", refuse)
    began = time.monotonic()
    with workers.processes(1) as pool:
        futures = [pool.submit(abs, -1) for _ in range(5)]
        for future in futures:
            with pytest.raises(
                BrokenProcessPool, match="has ended|terminated abruptly"
            ):  # Python 3.12 and later
                workers.outcome(pool, future)
    assert not multiprocessing.active_children() and time.monotonic() - began < 60
    assert shown == [], "a traceback"
    assert threading.excepthook == shown.append


def test_ctrl_c_does_not_end_one_that_still_starts() -> None:
    """It goes to all processes of a terminal; what it means is for the one that was started to say."""
    with workers.processes(1) as pool:
        found = pool.submit(abs, -1)
        (process,) = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        assert found.result() == 1


def rows(cache: Cache, **how: Any) -> list[emulation.Measurement]:
    kernels = [catalog.kernel(name).variant() for name in ("02", "05_tiled_no_sync", "13", "21")]
    built, _ = builds.build_all(kernels, ["sm_90a"], cache, lambda _: None)
    points = {Gemm: [{"N": 64}, {"M": 33, "N": 40, "K": 17}]}
    return list(emulation.rows(built, points, Options(cache=cache, **how), lambda _: None))


@pytest.mark.slow
@pytest.mark.parametrize("as_compiled", [False, True])
def test_rows_are_the_same_from_other_processes(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, as_compiled: bool
) -> None:
    monkeypatch.setattr(emulation, "cores", lambda: 1)
    here = rows(cache, as_compiled=as_compiled)
    monkeypatch.setattr(emulation, "cores", lambda: 2)
    monkeypatch.setattr(emulation, "_MANY", 1)
    away: list[int] = []
    apart = emulation._apart
    monkeypatch.setattr(emulation, "_apart", lambda *a: away.append(1) or apart(*a))
    there = rows(cache, as_compiled=as_compiled)
    assert len(away) == 2, "a problem each"
    assert [r.status for r in here] == [OK, EXPECTED, OK] * 2  # 21 is of another type: no row
    assert len(here) == len(there)
    for a, b in zip(here, there, strict=True):
        assert (a.label, a.problem, a.status, a.error, a.before) == (
            b.label,
            b.problem,
            b.status,
            b.error,
            b.before,
        )
        assert a.emulation == b.emulation and a.emulation is not None and a.emulation.instructions
        assert b.built is not None and b.built.sass is not None, "ours, with its machine code"


@pytest.mark.slow
def test_few_rows_and_problems_of_a_file_stay_here(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def processes(count: int) -> Any:
        raise AssertionError("started")

    monkeypatch.setattr(emulation, "processes", processes)
    monkeypatch.setattr(emulation, "_MANY", 9)  # of 4 kernels at 2 points
    assert len(rows(cache)) == 6

    class OfAFile(Gemm):
        pass

    OfAFile.__module__ = "_a_file_beside_a_kernel"
    assert emulation._can_leave(Gemm(M=8, N=8, K=8)) and not emulation._can_leave(OfAFile(M=8, N=8, K=8))
    monkeypatch.setattr(emulation, "free_memory", lambda: 1000.0)
    assert not emulation._can_leave(Gemm(M=8, N=8, K=8)), "no room"


def test_a_problem_is_begun_before_the_last_row_of_the_one_before(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is idle meanwhile, and one kernel at the end is not run here beside idle processes."""
    begun: list[str] = []

    class Pool:
        def submit(self, _row: Any, built: builds.Built, problem: Gemm, *_: Any) -> Future[Any]:
            begun.append(problem.label)
            future: Future[Any] = Future()
            row = emulation.Measurement(label=built.label, built=None, problem=problem, status=OK)
            future.set_result(row)
            return future

    monkeypatch.setattr(emulation, "cores", lambda: 2)
    monkeypatch.setattr(emulation, "_MANY", 1)
    monkeypatch.setattr(emulation, "processes", lambda _count: contextlib.nullcontext(Pool()))
    kernels = [catalog.kernel(name).variant() for name in ("02", "03", "21")]
    built, _ = builds.build_all(kernels, ["sm_90a"], cache, lambda _: None)
    sizes = {Gemm: [{"N": 8}, {"N": 9}], GEMMS["bf16"]: [{"N": 8}]}
    found = emulation.rows(built, sizes, Options(), lambda _: None)
    assert next(found).problem.label == "8" and begun == ["8", "8", "9", "9"]
    assert [row.problem.label for row in found] == ["8", "9", "9", "8 bf16"] and begun[4:] == ["8 bf16"]


@pytest.mark.parametrize("before", [False, True])
def test_a_process_that_was_killed_is_an_error(cache: Cache, before: bool) -> None:
    class Killed:
        def submit(self, *_: Any) -> Future[Any]:
            error = BrokenProcessPool("one was terminated abruptly")
            if before:
                raise error
            future: Future[Any] = Future()
            future.set_exception(error)
            return future

    (one,), _ = builds.build_all([catalog.kernel("02").variant()], ["sm_90a"], cache, lambda _: None)
    problem = Gemm(M=8, N=8, K=8)
    inputs = problem.inputs(1)
    job = (problem, inputs, problem.reference(inputs), Options())
    with pytest.raises(HarnessError, match="8 was ended"):
        list(emulation._apart(Killed(), [one], job, lambda _: None))  # type: ignore[arg-type]


class Late(subprocess.Popen[bytes]):
    """A process of which its thread knows some time after it has begun."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        time.sleep(0.5)


def control_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("popen", "interrupted"),
    # What _thread says wakes nobody, as a signal does not that comes just before a wait begins.
    [(subprocess.Popen, control_c), (Late, control_c), (subprocess.Popen, _thread.interrupt_main)],
)
def test_of_several_commands_none_outlives_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, popen: Any, interrupted: Callable[[], None]
) -> None:
    """Each in a thread of its own, which no signal reaches."""
    monkeypatch.setattr(subprocess, "Popen", popen)
    pids, began = tmp_path / "pids", time.monotonic()
    command = ["sh", "-c", f"echo $$ >> {pids}; exec sleep 60"]

    def interrupt() -> None:
        while not pids.exists() or len(pids.read_text().split()) < 3:
            time.sleep(0.01)
        interrupted()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            tools.run_each([command] * 3, "here")
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 20
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_of_several_commands_the_outcomes_are_in_order() -> None:
    done = tools.run_each([["sh", "-c", f"sleep {0.2 / n}; echo {n}; exit {n}"] for n in (1, 2, 3)], "here")
    assert [(d.returncode, d.stdout) for d in done] == [(1, b"1\n"), (2, b"2\n"), (3, b"3\n")]
    with pytest.raises(HarnessError, match="gave no answer within 0.2 s"):
        tools.run_each([["sleep", "30"], ["true"]], "here", timeout=0.2)
