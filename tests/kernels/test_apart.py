"""Tests of compilers in processes of their own: harness goes on where one of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main, patience
from harness.errors import BuildError
from harness.kernels import compiler
from harness.kernels.catalog import load_each
from harness.kernels.cpp.compilers import apart, nvrtc
from harness.support.cache import Cache
from harness.support.tools import environment
from shared import crashing

RIGHT = "__global__ void right(float* x, int n) { int i = threadIdx.x; if (i < n) x[i] = 1; }\n"
WRONG = RIGHT.replace("right", "WORD")


@pytest.fixture(autouse=True)
def none_yet() -> Iterator[None]:
    """Begin and end without processes that wait for calls."""
    apart._end_all()
    yield
    apart._end_all()


def gone(pid: int) -> bool:
    """Return True if a process ends within some seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True  # it waits for a parent who does not look
        time.sleep(0.1)
    return False


def test_one_process_serves_many_calls() -> None:
    pids = {apart.call(os.getpid) for _ in range(3)}
    assert len(pids) == 1 and os.getpid() not in pids
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: apart.call(time.sleep, 0.5), range(2)))
    assert len(apart._idle) == 2  # as many as there were calls at a time


def test_what_is_raised_arrives_whole() -> None:
    with pytest.raises(BuildError) as raised:
        apart.call(crashing.refuse)
    assert (raised.value.what, raised.value.where, raised.value.log) == ("no", "here", "line 1")
    with pytest.raises(nvrtc.CompileError) as refused:
        apart.call(nvrtc._translated, "int x = ;", Path("k.cu"), "", ("--gpu-architecture=sm_80",), None)
    assert refused.value.code == "NVRTC_ERROR_COMPILATION" and "k.cu(1): error" in refused.value.log
    with pytest.raises(MemoryError):
        apart.call(crashing.full)
    assert len(apart._idle) == 1


def test_a_crash_is_an_exception_and_the_next_call_has_another_process(tmp_path: Path) -> None:
    before = apart.call(os.getpid)
    with pytest.raises(apart.Ended, match="crashed: SIGSEGV"):
        apart.call(crashing.crash)
    assert apart.call(os.getpid) != before and gone(before)
    with pytest.raises(apart.Ended, match="ended with code 3: terminate called"):
        apart.call(crashing.leave)


@pytest.mark.slow
def test_a_call_is_ended_when_its_time_is_over(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(apart.Ended, match="not done after . s, and ended") as ended:
        apart.call(crashing.sleep, tmp_path / "pid", until=began + 2)
    assert 1.9 < time.monotonic() - began < 60 and "--seconds" in ended.value.hint
    assert gone(int((tmp_path / "pid").read_text())) and not apart._idle


def test_an_interrupted_call_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C is the parent's alone: the process has a group of its own."""
    pid = tmp_path / "pid"

    def interrupt() -> None:
        while not pid.exists() or not pid.read_text():
            time.sleep(0.02)
        assert os.getpgid(int(pid.read_text())) != os.getpgid(0)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            apart.call(crashing.sleep, pid, until=time.monotonic() + 60)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert gone(int(pid.read_text()))


def test_a_process_ends_with_the_one_that_it_serves(tmp_path: Path) -> None:
    """Also in the midst of a call, and where that one is killed."""
    path = tmp_path / "pid"
    script = (
        f"from harness.kernels.cpp.compilers import apart\nfrom shared import crashing\n"
        f"from pathlib import Path\napart.call(crashing.sleep, Path({str(path)!r}))"
    )
    where = os.pathsep.join([str(Path(crashing.__file__).parents[1]), environment().get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", script], env={**environment(), "PYTHONPATH": where}
    ) as parent:
        while not path.exists() or not path.read_text():
            time.sleep(0.05)
        parent.kill()
    assert gone(int(path.read_text()))


def test_a_forked_process_has_its_own() -> None:
    apart.call(os.getpid)
    if (pid := os.fork()) == 0:
        os._exit(len(apart._idle))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and len(apart._idle) == 1


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC crashes at a word, and never ends at another."""
    monkeypatch.setattr(nvrtc, "_translated", crashing.translated)


@pytest.mark.usefixtures("planted")
def test_a_crash_of_nvrtc_is_an_error_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(WRONG.replace("WORD", "CRASHES"))
    (kernel,) = load_each(path)
    with pytest.raises(BuildError, match=r"NVRTC 1\d\.\d+ crashed: SIGSEGV") as raised:
        compiler.compile_kernel(kernel.variant(), "sm_80", Cache(None))
    assert raised.value.where == str(path) and "another version" in raised.value.hint


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("word", "said"), [("CRASHES", "crashed: SIGSEGV"), pytest.param("ENDLESS", "", marks=pytest.mark.slow)]
)
def test_the_other_files_are_checked(tmp_path: Path, word: str, said: str) -> None:
    (tmp_path / "right.cu").write_text(RIGHT)
    (tmp_path / "wrong.cu").write_text(WRONG.replace("WORD", word))
    began = time.monotonic()
    ran = CliRunner().invoke(main, ["check", *map(str, sorted(tmp_path.iterdir())), "--seconds", "5"])
    assert ran.exit_code == 3 and "right was launched as by" in ran.output
    text = " ".join(ran.output.split())
    assert ("NOT COMPILED: wrong" in text) if said else ("NOT RUN, as 5 s were over: wrong" in text)
    assert said in text and time.monotonic() - began < 60


@pytest.mark.usefixtures("planted")
def test_what_never_compiles_is_given_up_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--seconds counts what the compiler takes, also where nothing else compiles."""
    path = tmp_path / "wrong.cu"
    path.write_text(WRONG.replace("WORD", "ENDLESS"))
    monkeypatch.setattr(patience, "_LEAST", 1)
    began = time.monotonic()
    ran = CliRunner().invoke(main, ["check", str(path), "--seconds", "1"])
    assert ran.exit_code == 1 and "not done after" in ran.output and "--seconds" in ran.output
    assert time.monotonic() - began < 60


def test_ptx_of_others_is_assembled_apart_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"
    (tmp_path / "k.ptx").write_text(ptx)
    (kernel,) = load_each(tmp_path / "k.ptx")
    assert compiler.compile_kernel(kernel.variant(), "sm_80", Cache(None)).code and len(apart._idle) == 1
    monkeypatch.setattr(compiler.nvjitlink, "link_ptx", crashing.crash)
    with pytest.raises(BuildError, match=r"nvJitLink 1\d\.\d+ crashed: SIGSEGV"):
        compiler.compile_kernel(kernel.variant(), "sm_80", Cache(None))
