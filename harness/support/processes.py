"""Processes that work beside this one, a core each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess

_MOST = 16
ENDED = (  # of a process that its work cannot have ended
    "is there enough memory? And a script of your own has to keep what it does below "
    "if __name__ == '__main__':, for each process imports it"
)


class _Process(SpawnProcess):
    def start(self) -> None:
        """It inherits what is held back: Ctrl-C would end it, with a traceback, while it still imports."""
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)


class _Spawned(SpawnContext):
    """A fork would inherit CUDA, half of it."""

    Process = _Process


def cores(spared: int = 0) -> int:
    """How many are worth starting, on the cores that are this process's."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(mine - spared, _MOST))


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """`count` of them. Left in good order, what has not begun is given up and the rest waited for; left by an
    exception, Ctrl-C among them, they end at once. Each imports the script that was started: see `ENDED`.
    """
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(count, mp_context=_Spawned(), initializer=_begin) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            ours = set(multiprocessing.active_children()) - before
            for child in ours:
                child.terminate()
            for child in ours:
                child.join()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """In each process, first: Ctrl-C is its parent's to handle, and it does not outlive that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
