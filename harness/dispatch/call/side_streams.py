"""Side streams, for work that may run at the same time as a stream's own: they fork from it and rejoin it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.driver import Context, Event, Stream, outside_captures
from harness.support.resources import Closing

_MOST_KEPT = 64  # side streams; beyond that the least recently used is dropped


def order(first: Stream, then: Stream) -> None:
    """Make all later work in the stream `then` wait for the work queued in `first` so far."""
    with Event(then.context, timing=False) as event:  # the driver keeps it until all waits for it are over
        event.record(first)
        then.wait(event)


class Forks(Closing):
    """The side streams of one GPU: each stream has its own, so that two streams never wait for each other."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[int, Stream] = {}
        self._lock = threading.Lock()

    @contextmanager
    def beside(self, stream: Stream) -> Iterator[Stream]:
        """Yield a side stream, for work that may run at the same time as what the block queues in `stream`.

        Work in the side stream waits for what `stream` held before the block, and `stream` waits for it at
        the end of the block. If `stream` is being captured, it is yielded itself: a side stream that is kept
        would have to stay part of the capture until that ends.
        """
        if stream.capturing:
            yield stream
            return
        side = self._of(stream)
        order(stream, side)
        try:
            yield side
        finally:
            order(side, stream)

    def _of(self, stream: Stream) -> Stream:
        """Return the side stream of `stream`, made at the first call."""
        with self._lock:
            key = stream.id
            found = self._kept.pop(key, None)
            if found is None:
                with outside_captures():
                    while len(self._kept) >= _MOST_KEPT:  # not closed, for another thread may be using it
                        self._kept.pop(next(iter(self._kept)))
                    found = Stream(self._context)
            self._kept[key] = found
            return found

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()
