"""Runs that are ended from outside: signals keep what was measured, end children and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.support import signals, tools

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a folder for temporary files of its own."""
    (tmp_path / "temporary").mkdir()
    return {**tools.environment(), "TMPDIR": str(tmp_path / "temporary")}


def wait(holds: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)


def run_until(
    seconds: float, number: signal.Signals, env: dict[str, str], *args: str
) -> tuple[int, str, str]:
    """Start harness, send it a signal after so many seconds of CPU time; return exit code, stdout, stderr."""
    command = [sys.executable, "-m", "harness", *args]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, **pipes, start_new_session=True, preexec_fn=heed_signals) as run:  # noqa: PLW1509
        wait(lambda: run.poll() is not None or cpu_seconds(run.pid) > seconds)
        run.send_signal(number)
        out, err = run.communicate(timeout=60)
    return run.returncode, out, err


def heed_signals() -> None:
    """Undo what nohup and a shell's ``&`` do: a signal that is ignored stays so in children."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process: on a busy machine that of a clock says little."""
    try:
        after = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after[11]) + int(after[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "number"), [*zip(("check", "verify", "bench"), SIGNALS, strict=True)])
def test_what_was_measured_is_kept(
    verb: str, number: signal.Signals, tmp_path: Path, places: dict[str, str]
) -> None:
    """A product that is done at once, and one of minutes, in which the signal comes."""
    file = tmp_path / "r.json"
    on = [] if verb == "check" else ["-d", "emulator"]
    sizes = ["-a", "MxNxK=[8x8x8,2048x2048x2048]"]
    code, out, err = run_until(6, number, places, verb, "tiled", *sizes, *on, "--json", str(file))
    assert code == SIGNALS[number], err
    assert "Traceback" not in err and "interrupted: these are the rows measured before" in err
    content = json.loads(file.read_text())
    assert [r["shape"] for r in content["rows"]] == ["8"] and "interrupted" in content["meta"]["ended"]
    assert "03_tiled" in out
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "number"), [*zip(("build", "sass", "report"), SIGNALS, strict=True)])
def test_the_exit_code_names_the_signal_from_the_first_import_on(
    verb: str, number: signal.Signals, tmp_path: Path, places: dict[str, str]
) -> None:
    env = {**places, "HARNESS_CACHE_DIR": str(tmp_path / "cache")}
    for seconds in (0.3, 0.6):
        code, _, err = run_until(seconds, number, env, verb, *([] if verb == "report" else ["--sweep"]))
        if code == 2 and verb == "report":  # it had ended: no files to report on
            continue
        # -number: before our first line ran. -2: CPython ends itself so after a KeyboardInterrupt in exec(),
        # with which a dataclass is made, though it was handled; a shell calls that 130, too.
        assert code in (SIGNALS[number], -number, -signal.SIGINT), err
        assert "Aborted" not in err and "harness/" not in err
    assert list((tmp_path / "temporary").iterdir()) == []


PARENT = """
import sys
from harness.support import children, signals
with signals.interrupting():
    children.watch([sys.executable, "-c", sys.argv[1]], 60, grace=float(sys.argv[2]))
"""
CHILD = """
import os, signal, sys, time
path = {path!r}
signal.signal(signal.SIGTERM, lambda *_: (open(path + '.told', 'w').close(), sys.exit(0)))
with open(path + '.part', 'w') as file: file.write(str(os.getpid()))
os.rename(path + '.part', path)
time.sleep(60)
"""


def running(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl(2)")
@pytest.mark.parametrize(
    ("number", "grace", "told"),
    [(signal.SIGKILL, 0, False), (signal.SIGTERM, 0, False), (signal.SIGTERM, 20, True)],
)
def test_children_end_with_their_parent(
    number: signal.Signals, grace: float, told: bool, tmp_path: Path, places: dict[str, str]
) -> None:
    name = tmp_path / "pid"
    command = [sys.executable, "-c", PARENT, CHILD.format(path=str(name)), str(grace)]
    with subprocess.Popen(command, env=places) as parent:
        wait(name.exists)
        child = int(name.read_text())
        assert running(child)
        parent.send_signal(number)
        parent.wait(30)
    wait(lambda: not running(child), 10)
    assert Path(f"{name}.told").exists() == told


def test_a_child_that_is_not_tied_outlives_its_parent(tmp_path: Path, places: dict[str, str]) -> None:
    """The control: what the test above would see without the tie."""
    name = tmp_path / "pid"
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"
    with subprocess.Popen([sys.executable, "-c", code, CHILD.format(path=str(name))], env=places) as parent:
        wait(name.exists)
        parent.kill()
    child = int(name.read_text())
    assert running(child)
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(("number", "code"), [*SIGNALS.items(), (0, 1)])
def test_a_signal_that_an_import_makes_another_exception_of(number: int, code: int) -> None:
    r"""Python's compiler does, where it is interrupted as it loads what "\N{...}" needs: a SyntaxError."""
    program = f"""
import os, sys, types
from harness.__main__ import main
def broken():
    try:
        if {number:d}:
            os.kill(os.getpid(), {number:d})
    except KeyboardInterrupt:
        pass
    raise SyntaxError("cannot load unicodedata")
sys.modules["harness.cli"] = types.SimpleNamespace(main=broken)
main()
"""
    env = tools.environment()
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=heed_signals,
    )
    assert done.returncode == code, done.stderr
    assert ("cannot load unicodedata" in done.stderr) == (number == 0)


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.interrupting():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)
        assert signals.exit_code() == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_of_an_earlier_command_is_forgotten() -> None:
    with pytest.raises(KeyboardInterrupt), signals.interrupting():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.exit_code() == 143
    with signals.interrupting():
        assert signals.exit_code() == 130
