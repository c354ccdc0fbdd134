"""A pool of worker processes for CPU work, and how many of them to start."""

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
ENDED = (  # hint for a worker that was killed, probably for lack of memory, or could not start
    "is there enough memory? And a script of your own has to keep what it does below "
    "if __name__ == '__main__':, for each process imports it"
)


class _Process(SpawnProcess):
    """A spawned process that starts with Ctrl-C (SIGINT) blocked."""

    def start(self) -> None:
        """Start the process with SIGINT blocked.

        The child inherits the mask; otherwise Ctrl-C would end it with a traceback while it still imports.
        `_begin` then ignores the signal.
        """
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)


class _Spawned(SpawnContext):
    """The spawn start method with `_Process`.

    Forked workers would inherit a CUDA context that does not work.
    """

    Process = _Process


def cores(spared: int = 0) -> int:
    """Return how many workers to start: the CPU cores this process may use less `spared`, from 1 to 16."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(mine - spared, _MOST))


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of `count` spawned processes.

    At the normal end of the block, work that has not begun is cancelled and running work is waited for. If an
    exception (Ctrl-C included) leaves the block, the processes are terminated at once and the exception goes
    on. Each process imports the script that was started, which must therefore guard its main code: see
    `ENDED`.
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
    """Initialise a worker: leave Ctrl-C to the parent, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
