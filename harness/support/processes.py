"""A pool of worker processes for CPU work, how many of them to start, and memory: how much there is."""

from __future__ import annotations

import contextlib
import math
import mmap
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_MOST = 16
_LOOK = 1.0  # seconds between looks at a pool that a job is awaited from
CGROUPS = Path("/sys/fs/cgroup")
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


def free_memory() -> float:
    """Return how many bytes of memory this process may still take; infinity where the system does not tell.

    The page cache, which the system gives back, counts as free. The limits of the process's control groups
    hold, too: in a container the machine has more than the process may have.
    """
    found = [_available()]
    try:
        groups = [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        groups = []
    for controllers, name in groups:
        for version, folder in (("", CGROUPS), ("memory", CGROUPS / "memory")):
            if version in controllers.split(","):
                place = folder / name.strip("/")
                found += [_left(p) for p in (place, *place.parents) if p.is_relative_to(folder)]
    return min(found)


def sparse(size: int) -> mmap.mmap | bytearray:
    """Return bytes that take memory by small pages: where NumPy asks for huge ones, gaps take it, too."""
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return bytearray(size)
    room = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without huge pages
        room.madvise(mmap.MADV_NOHUGEPAGE)
    return room


def _available() -> float:
    """Return the bytes of memory that the machine can give."""
    try:
        about = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(about["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf


def _left(group: Path) -> float:
    """Return the bytes that a control group, of version 2 or 1, may still take; infinity without a limit."""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            most, now = int((group / limit).read_text()), int((group / used).read_text())
            about = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            return most - now + int(about.get("inactive_file", 0))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return math.inf


def outcome(pool: ProcessPoolExecutor, future: Future[T]) -> T:
    """Return what a job of the pool has returned, or raise what it raised.

    Raises BrokenProcessPool if a process was ended, and if the pool's own thread was: where no thread can be
    started for its queue, Python leaves everybody waiting.
    """
    thread = getattr(pool, "_executor_manager_thread", None)
    while not future.done():
        if thread is not None and not thread.is_alive() and not future.done():
            raise BrokenProcessPool("the thread that serves the processes has ended")
        wait([future], timeout=_LOOK)
    return future.result()


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of `count` spawned processes.

    At the normal end of the block, work that has not begun is cancelled and running work is waited for. If an
    exception (Ctrl-C included) leaves the block, the processes are terminated at once and the exception goes
    on. Each process imports the script that was started, which must therefore guard its main code: see
    `ENDED`.
    """
    before = set(multiprocessing.active_children())
    with _no_traceback(), ProcessPoolExecutor(count, mp_context=_Spawned(), initializer=_begin) as pool:
        try:
            yield pool
        except BaseException:
            thread = getattr(pool, "_executor_manager_thread", None)
            answers = getattr(getattr(pool, "_result_queue", None), "_writer", None)
            pool.shutdown(wait=False, cancel_futures=True)
            _end(before)
            if answers is not None:
                answers.close()  # nobody writes the rest of an answer: the thread that reads one would wait
            if thread is not None and thread.is_alive():
                thread.join(_LOOK)  # if it was first to see a child end, only it can note that
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            _end(before)  # those whose pool has broken, which nobody ends


@contextmanager
def _no_traceback() -> Iterator[None]:
    """Print no traceback of a thread that cannot start another: `outcome` tells what came of it."""
    hook = threading.excepthook

    def told(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not RuntimeError or "start new thread" not in str(args.exc_value):
            hook(args)

    threading.excepthook = told
    try:
        yield
    finally:
        threading.excepthook = hook


def _end(before: set[BaseProcess]) -> None:
    """Terminate the children that are not among those of `before`, and wait for them."""
    ours = set(multiprocessing.active_children()) - before
    for child in ours:
        child.terminate()
    for child in ours:
        child.join()


def _begin() -> None:
    """Initialise a worker: leave Ctrl-C to the parent, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
