"""Threads for jobs that cannot be stopped, which have a time limit and for which nobody has to wait."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

T = TypeVar("T")
_LOOK = 0.2  # seconds between looks at a job
_given_up: list[Future[Any]] = []


class Overdue(Exception):
    """A job has not ended within its time; its thread goes on."""


class Daemons:
    """Threads for jobs that cannot be stopped, such as a compiler's: nobody has to wait for them.

    A job that is given up (`result` raises Overdue, or an exception leaves the ``with`` block) goes on in its
    thread until the process ends; see `abandoned`. If fewer than `count` threads can be started, those work;
    raises RuntimeError, as `threading` does, if not even one can be started.
    """

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._began: dict[Future[Any], float] = {}
        self._count = 0
        for _ in range(count):
            try:
                self._add()
            except RuntimeError:  # this machine has no more: those that there are do the work
                if not self._count:
                    raise

    def _add(self) -> None:
        threading.Thread(target=self._work, daemon=True).start()
        self._count += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            self._began[future] = time.monotonic()
            try:
                result = call()
            except BaseException as e:
                future.set_exception(e)
            else:
                future.set_result(result)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue a job; its result comes from `result`."""
        future: Future[T] = Future()
        self._jobs.put((future, call))
        return future

    def result(self, future: Future[T], seconds: float) -> T:
        """Return a job's result, or raise its exception. Raises Overdue `seconds` after it has begun."""
        while True:
            wait([future], _LOOK)
            if future.done():
                return future.result()
            if time.monotonic() - self._began.get(future, math.inf) > seconds:
                _given_up.append(future)
                self._add()  # in the place of the thread that is lost
                raise Overdue

    def ended(self, future: Future[Any], until: float) -> bool:
        """Return whether a job ends before the monotonic clock shows `until`."""
        wait([future], max(0.0, until - time.monotonic()))
        return future.done()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        _given_up.extend(f for f in self._began if not f.done())
        with suppress(Empty):
            while job := self._jobs.get_nowait():
                job[0].cancel()
        for _thread in range(self._count):
            self._jobs.put(None)


def abandoned() -> bool:
    """Return True if a job that was given up is still at work: the process has to end without waiting."""
    return any(not future.done() for future in _given_up)
