"""Commands run in a child process that may fault or hang: watched, killed where they do, and told about."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.support import signals

_LOOK = 0.2  # seconds between looks at a child
# PR_SET_PDEATHSIG (1, see prctl(2)): the kernel ends the child when the thread that started it ends, by
# SIGKILL, too. It outlives exec. A parent that was gone before the call is noticed by its number.
_TIE = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): os._exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


def tied(command: Sequence[str | Path]) -> list[str]:
    """Return a command that runs `command` as a child which does not outlive the thread that starts it.

    On systems other than Linux it is the command as it is. It takes some 20 ms more to start.
    """
    whole = list(map(str, command))
    if sys.platform != "linux":
        return whole
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *whole]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a child: its exit code (-N after signal N), what it wrote to stderr if that was captured,
    and `why` it did not end by itself, empty where it did.
    """

    code: int
    why: str = ""
    said: str = ""
    hung: bool = False
    interrupted: bool = False


def watch(
    command: Sequence[str],
    timeout: float,
    *,
    env: Mapping[str, str] | None = None,
    captured: bool = False,
    progress: Callable[[], object] = lambda: None,
    hangs: Callable[[], bool] = lambda: True,
    grace: float = 0.0,
    memory: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run `command` to its end, and kill it once it has made no progress for `timeout` seconds.

    It makes progress when what `progress` returns changes. Without any it is killed if `hangs` says so then;
    otherwise it gets as long again. When this process is interrupted (Ctrl-C, SIGTERM, SIGHUP), the child is
    told so and has `grace` seconds to end by itself; it dies with this process in any case. `captured`:
    stdout is dropped and stderr is returned, otherwise both are the parent's.

    With `memory` it is in a session of its own, and killed with all that it has started once it holds more
    than that many bytes (where /proc tells), or when `stop` returns True.
    """
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE} if captured else {}
    seen, since = progress(), time.monotonic()
    started = {"text": True, "errors": "replace", "env": env, "start_new_session": memory > 0, **streams}
    with subprocess.Popen(tied(command), **started) as child:  # type: ignore[call-overload]
        said: str | None = None
        try:
            while True:
                try:
                    _, said = child.communicate(timeout=min(_LOOK, timeout))
                    break
                except subprocess.TimeoutExpired:
                    pass
                if memory and (why := _beyond(child.pid, memory, stop)):
                    os.killpg(child.pid, signal.SIGKILL)
                    return Ended(code=child.wait(), why=why, interrupted=stop())
                if (now := progress()) != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > timeout:
                    if child.poll() is None and hangs():
                        os.killpg(child.pid, signal.SIGKILL) if memory else child.kill()
                        why = f"not done after {timeout:g} s, and killed: it hangs"
                        return Ended(code=child.wait(), why=why, hung=True)
                    if child.returncode is not None:
                        break  # it has ended, and something that it started still holds its stderr
                    since = time.monotonic()
        except KeyboardInterrupt:
            return Ended(code=_stopped(child, grace, memory > 0), why="interrupted", interrupted=True)
    why = f"its process was ended by {signal.Signals(-child.returncode).name}" if child.returncode < 0 else ""
    return Ended(code=child.returncode, why=why, said=said or "")


def failure(ended: Ended) -> str:
    """Return why a child that is a command of harness did not finish; empty if it did, even with failed
    kernels.

    `ended` has its stderr.
    """
    if ended.why:
        return ended.why + (", or needs a longer --kernel-timeout" if ended.hung else "")
    lines = [line for line in ended.said.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if ended.code == 0 or (ended.code in (1, 3) and not errors and not any("Traceback" in s for s in lines)):
        return ""
    last = lines[-1] if lines else "silently"
    return errors[0] if errors else f"its process ended with code {ended.code}: {last}"


def lines(text: str) -> list[Any]:
    """Return the values in the lines of JSON that a child has written, except for a last one that is torn."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _stopped(child: subprocess.Popen[str], grace: float, session: bool) -> int:
    """Wait `grace` seconds for a child that was interrupted, then kill it; return its exit code.

    A terminal's Ctrl-C has told the child too, unless it has a `session` of its own; a second signal would
    end it before it has written what it has.
    """
    try:
        if grace:
            if session or signals.last() != signal.SIGINT:
                child.terminate()
            return child.wait(grace)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    os.killpg(child.pid, signal.SIGKILL) if session else child.kill()
    child.wait()
    return signals.exit_code()


def _beyond(pid: int, memory: int, stop: Callable[[], bool]) -> str:
    """Return why a child has to be killed at once; empty where it need not be."""
    if stop():
        return "interrupted"
    try:
        pages = int(Path("/proc", str(pid), "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):  # it has just ended, or there is no /proc
        return ""
    if pages * os.sysconf("SC_PAGE_SIZE") <= memory:
        return ""
    return f"it took more than {memory / 2**30:.3g} GiB of memory, and was killed"
