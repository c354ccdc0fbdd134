"""Run compilers in processes of their own, which a crash ends in place of harness, and which can be stopped.

Such a process serves one call after another, and there are as many as calls at a time. It is spawned, never
forked: harness may have a CUDA context. It ends with harness, also where that is killed.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

from harness.support.processes import free_memory

T = TypeVar("T")
# Isolated (-I), so that what lies in the working directory is imported only if it is here.
_START = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    f"from {__name__} import serve\n"
    "serve(int(sys.argv[1]))"
)
_SLOW = "give it more time: HARNESS_COMPILE_SECONDS, and --seconds of `harness check`"
_DEFECT = "that is a defect of the compiler's, which another version of it may not have"
_LONGEST = 10**6  # seconds for which the system can be asked to wait, in ms
_LEAST = 2**31  # bytes of address space, most of which it never touches
_idle: list[_Child] = []


class Ended(Exception):
    """The process has not returned: it crashed, or its time was over, says `what`; `hint` is what to do."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


def call(function: Callable[..., T], *args: object, until: float = math.inf) -> T:
    """Call a module's function in another process; return what it returns, or raise what it raises.

    Raises Ended where the process ends, and where it is ended since the monotonic clock shows `until`.
    """
    asked = pickle.dumps((function, args))
    try:
        child = _idle.pop()
    except IndexError:
        child = _Child()
    try:
        answer = child.ask(asked, until)
    except BaseException:
        child.end()
        raise
    _idle.append(child)
    value, error = pickle.loads(answer)
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


class _Child:
    """A process that serves calls, and this end of the connection to it."""

    def __init__(self) -> None:
        self._connection, other = Pipe()
        with other:
            number, path = str(other.fileno()), json.dumps(sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, number, path],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,  # a terminal's Ctrl-C is for harness, which ends this one
            )

    def ask(self, asked: bytes, until: float) -> bytes:
        """Return the answer to a call. Raises Ended as `call` does."""
        began = time.monotonic()
        try:
            self._connection.send_bytes(asked)
            if not self._connection.poll(max(0.0, min(until - time.monotonic(), _LONGEST))):
                raise Ended(f"not done after {time.monotonic() - began:.0f} s, and ended", _SLOW)
            return self._connection.recv_bytes()
        except (EOFError, ConnectionError):
            raise self._ended() from None

    def _ended(self) -> Ended:
        code = self._process.wait()
        if code < 0:
            hint = "is there enough memory?" if code == -signal.SIGKILL else _DEFECT
            return Ended(f"crashed: {signal.Signals(-code).name}", hint)
        said = self._process.communicate()[1].decode(errors="replace").strip().splitlines()
        return Ended(f"ended with code {code}: {said[-1] if said else 'silently'}", _DEFECT)

    def end(self) -> None:
        """End the process."""
        self._connection.close()
        with self._process:
            self._process.kill()


@atexit.register
def _end_all() -> None:
    with suppress(IndexError):
        while True:
            _idle.pop().end()


os.register_at_fork(after_in_child=_idle.clear)  # they are the parent's


def serve(descriptor: int) -> None:
    """Answer calls until the other end of the connection is closed, in a process that `call` has started."""
    threading.Thread(target=_follow, args=(descriptor,), daemon=True).start()
    _limit()
    connection = Connection(descriptor)
    with suppress(EOFError, ConnectionError):
        while True:
            function, args = pickle.loads(connection.recv_bytes())
            answer: tuple[Any, Exception | None]
            try:
                answer = function(*args), None
            except Exception as e:
                answer = None, e
            connection.send_bytes(pickle.dumps(answer))


def _limit() -> None:
    """Leave no core file, and lack memory before harness does."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if (free := free_memory()) < math.inf:
        with suppress(ValueError, OSError):  # the hard limit is lower
            resource.setrlimit(resource.RLIMIT_AS, (max(int(free), _LEAST), resource.RLIM_INFINITY))
    with suppress(OSError):  # no /proc
        Path("/proc/self/oom_score_adj").write_text("1000")


def _follow(descriptor: int) -> None:
    """End this process once the other end is closed, in the midst of a call, too."""
    look = select.poll()
    look.register(descriptor, 0)  # without events: of its end alone
    look.poll()
    os.kill(os.getpid(), signal.SIGKILL)
