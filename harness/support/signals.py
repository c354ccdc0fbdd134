"""End on SIGTERM and SIGHUP as on Ctrl-C: what was measured is kept, children are ended, folders removed.

A program is told to end by Ctrl-C (SIGINT), by ``kill``, ``timeout``, a batch system or a container's runtime
(SIGTERM), and by a terminal that closes (SIGHUP). Left alone, the last two end Python at once: no ``finally``
runs, nothing is written, and children go on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_LOOK = 1.0  # seconds between looks at a job
_received: list[int] = []


@contextmanager
def interrupting() -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread on each of these signals, while the block runs.

    A signal that is ignored stays so: ``nohup`` ignores SIGHUP, and shells ignore SIGINT for jobs behind
    ``&``. Does nothing in other threads, which cannot set handlers, and where somebody else handles a signal.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        _received.clear()  # a signal of an earlier command in this process is not this one's
        for number in (getattr(signal, name) for name in _ENDING if hasattr(signal, name)):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """Handle a signal: remember it, and raise KeyboardInterrupt."""
    _received.append(number)
    raise KeyboardInterrupt


def received() -> bool:
    """Return whether a signal has interrupted this process."""
    return bool(_received)


def last() -> int:
    """Return the number of the last signal that interrupted this process; SIGINT's without one."""
    return _received[-1] if _received else signal.SIGINT


def exit_code() -> int:
    """Return 128 + the number of the `last` signal, the convention of shells."""
    return 128 + last()


def awaited(future: Future[T]) -> T:
    """Return the result of a job of another thread, or raise its exception; a signal ends the wait.

    Python handles a signal that comes just before a wait begins only after it: no wait is a long one.
    """
    while not future.done():
        wait([future], timeout=_LOOK)
    return future.result()
