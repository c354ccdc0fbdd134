"""Work beside a stream's own: queued in a stream at its side, which joins it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.driver import Context, Event, Stream, outside_captures
from harness.support.resources import Closing

_MOST_KEPT = 64  # streams; beyond that the one that was used the longest ago goes


def order(first: Stream, then: Stream) -> None:
    """What is queued in `then` from now on starts after what is queued in `first` so far."""
    with Event(then.context, timing=False) as event:  # the driver keeps it until it has been passed
        event.record(first)
        then.wait(event)


class Forks(Closing):
    """The streams at the sides of others, each with its own: launches of two streams are not to meet."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[int, Stream] = {}
        self._lock = threading.Lock()

    @contextmanager
    def beside(self, stream: Stream) -> Iterator[Stream]:
        """A stream for what may run beside that which is queued in `stream` in the block: it starts after
        what was queued there before, and what is queued there later waits for it. While `stream` is captured
        that is `stream` itself: a kept stream would have to stay in the capture until it ends.
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
        with self._lock:
            key = stream.id
            found = self._kept.pop(key, None)
            if found is None:
                with outside_captures():
                    while len(self._kept) >= _MOST_KEPT:  # not closed: another thread may be in its block
                        self._kept.pop(next(iter(self._kept)))
                    found = Stream(self._context)
            self._kept[key] = found
            return found

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()
