"""Happens-before among the operations of a program: a vector clock of each stream, each event and the host.

Operations are numbered in the order in which host code asks for them. A clock tells of each line of work, a
stream or a branch of a graph, up to which number its operations have happened. Host code is one line of
work, whatever its threads are: what one of them has waited for counts for all.

    operation in a stream        comes after the stream's last one, and after all that the host has waited for
    legacy default stream        comes after all blocking streams, and they come after it
    cudaEventRecord              the event has the stream's clock
    cudaStreamWaitEvent          the stream learns the event's clock
    cudaStreamSynchronize, ...   the host learns the stream's
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

Line = Hashable
Clock = Mapping[Line, int]
LEGACY = 1  # cudaStreamLegacy
_OF_THREAD = 2  # cudaStreamPerThread
NONBLOCKING = 1  # cudaStreamNonBlocking


def joined(*clocks: Clock) -> dict[Line, int]:
    """Return what several clocks tell together."""
    longest = max(clocks, key=len)
    found = dict(longest)
    for clock in clocks:
        if clock is not longest:
            for line, number in clock.items():
                if number > found.get(line, 0):
                    found[line] = number
    return found


class Clocks:
    """The clocks of streams, events and the host.

    thread: returns the number of the thread of the host that calls
    of_threads: the default stream is one of each thread (``--default-stream per-thread``)
    """

    def __init__(self, thread: Callable[[], int], *, of_threads: bool) -> None:
        self._thread = thread
        self._default = _OF_THREAD if of_threads else LEGACY
        self._streams: dict[Line, Clock] = {LEGACY: {}}
        self._nonblocking: set[Line] = set()
        self._events: dict[int, Clock] = {}
        self._host: Clock = {}
        self._number = self._all = 0  # of the last operation, and of the last that the host has waited for

    def stream(self, handle: int) -> Line:
        """Return the line of work that a stream is."""
        handle = handle or self._default
        return ("thread", self._thread()) if handle == _OF_THREAD else handle

    def create(self, stream: int, flags: int) -> None:
        """Add a stream."""
        self._streams[stream] = {}
        if flags & NONBLOCKING:
            self._nonblocking.add(stream)

    def blocking(self, stream: Line) -> bool:
        """Return whether a stream waits for the legacy default stream, and that for it."""
        return stream not in self._nonblocking

    def number(self) -> int:
        """Return the number of a new operation."""
        self._number += 1
        return self._number

    def before(self, stream: Line) -> Clock:
        """Return what an operation comes after that host code puts into a stream now."""
        found = [self._host, self._streams.get(stream, {})]
        if stream == LEGACY:
            found += [clock for one, clock in self._streams.items() if self.blocking(one)]
        elif self.blocking(stream):
            found.append(self._streams[LEGACY])
        return joined(*found)

    def advance(self, stream: Line, clock: Clock) -> None:
        """Let what comes next in a stream come after all that `clock` tells of."""
        self._streams[stream] = clock

    def known(self, line: Line, number: int) -> bool:
        """Return whether the host has waited for an operation: all that it asks for now comes after."""
        return number <= max(self._all, self._host.get(line, 0))

    # -- events, and the host

    def record(self, event: int, stream: Line) -> None:
        """Record an event, which in the legacy stream is a barrier of the blocking ones."""
        self._events[event] = self.before(stream)
        if stream == LEGACY:
            self.advance(stream, self._events[event])

    def wait(self, stream: Line, event: int) -> None:
        """Let a stream wait for an event; nothing, if that was not recorded."""
        self.advance(stream, joined(self.before(stream), self._events.get(event, {})))

    def learn(self, clock: Clock) -> None:
        """Let the host know what a clock tells of."""
        self._host = joined(self._host, clock)

    def wait_for_event(self, event: int) -> None:
        """Let the host wait for an event."""
        self.learn(self._events.get(event, {}))

    def wait_for_all(self) -> None:
        """Let the host wait for all that it has asked for: clocks begin anew."""
        self._all, self._host = self._number, {}
        self._streams = {LEGACY: {}}
