"""Time several codes for one product in turn: in CUDA graphs back to back, or with events at each launch.

The codes take turns in an order and then in the reverse one, A B C C B A, so that a drifting clock or
temperature affects all alike. A graph has a launch on each set of operands, and goes through the sets more
than once if that would be too short to time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from harness.bench.ceilings import peaks
from harness.driver import Context, Event, Gate, Graph, Stream
from harness.launch.kernel import Launch
from harness.support.resources import Closing

Pair = tuple[Event, Event]

_GRAPH_SECONDS = 0.0003  # least duration of a graph: an event is exact to 0.5 us
_MOST_LAUNCHES = 256  # in a graph
_LEAST_SECONDS = 2e-6  # that a launch in a graph takes
_SECONDS, _MOST_ROUNDS = 0.003, 4  # GPU time for each code in rounds of two replays, one round at least
_EVENT_ROUNDS, _EVENT_LAUNCHES = 4, 8
_MOST_GATED, _ENTRIES = 900, 8  # entries in the driver's queue behind a gate, and of a launch with its events


class Side(Closing):
    """A launch on all sets of a product, captured in a graph; `launches` is how many the graph has.

    The events before and after them are the graph's, too: with a host that other threads keep busy, the time
    from an event to the graph that is queued after it came to ten times that of the graph. The launch is
    borrowed.
    """

    def __init__(self, launch: Launch, stream: Stream) -> None:
        problem, device = launch.operands.problem, launch.operands.context.device
        shortest = max(
            problem.flops / (device.peak_fp32 * peaks(problem, device)),
            problem.bytes / device.peak_bandwidth if device.peak_bandwidth else 0.0,
            _LEAST_SECONDS,
        )
        again = math.ceil(_GRAPH_SECONDS / (shortest * launch.sets))
        self.launch = launch
        self.launches = launch.sets * max(1, min(again, _MOST_LAUNCHES // launch.sets))
        launch(stream)  # loads the code, which no capture may
        stream.synchronize()
        launch.rewind()
        with ExitStack() as owned:
            self._start, self._end = (owned.enter_context(Event(stream.context)) for _ in range(2))
            self._graph = owned.enter_context(Graph(stream, self._all))
            self._owned = owned.pop_all()

    def _all(self, stream: Stream) -> None:
        self._start.record_in_graph(stream)
        for _ in range(self.launches):
            self.launch(stream)
        self._end.record_in_graph(stream)

    def __call__(self, stream: Stream) -> None:
        """Queue one run of the graph."""
        self._graph(stream)

    @property
    def seconds(self) -> float:
        """Return the seconds of a launch in the last run, which must have ended."""
        return self._end.seconds_since(self._start) / self.launches

    def close(self) -> None:
        self._owned.close()


@dataclass(frozen=True)
class Clock:
    """A stream of a context, in which `graphs` and `launches` take times."""

    context: Context
    stream: Stream

    def graphs(self, sides: Sequence[Side], during: Callable[[], object]) -> list[list[float]]:
        """Return the seconds of a launch of each side in its graph, once for each replay.

        A first round, which is not counted, loads the graphs and tells how many rounds are worth while.
        `during` is called once, while the GPU is busy with the last round.
        """
        found: list[list[float]] = [[] for _ in sides]
        self._replay(sides)
        longest = max(side.seconds * side.launches for side in sides)
        rounds = max(1, min(_MOST_ROUNDS, math.ceil(_SECONDS / (2 * max(longest, _LEAST_SECONDS)))))
        for left in reversed(range(2 * rounds)):
            self._replay(sides if left % 2 else sides[::-1], during if left == 0 else None)
            for side, taken in zip(sides, found, strict=True):
                taken.append(side.seconds)
        return found

    def _replay(self, sides: Sequence[Side], during: Callable[[], object] | None = None) -> None:
        """Run the graphs in this order, and wait for them."""
        for side in sides:
            side(self.stream)
        if during is not None:
            during()
        self.stream.synchronize()

    def launches(self, sides: Sequence[Side]) -> list[list[float]]:
        """Return the seconds of single launches of each side, with an event before and after each."""
        order = [*range(len(sides)), *reversed(range(len(sides)))]
        each = max(1, min(_EVENT_LAUNCHES, _MOST_GATED // (_ENTRIES * len(order))))
        found: list[list[float]] = [[] for _ in sides]
        with ExitStack() as owned:
            gate = owned.enter_context(Gate(self.context))
            pairs = [(which, *self._pair(owned)) for which in order for _ in range(each)]
            for side in sides:
                side.launch.rewind()
            for _ in range(_EVENT_ROUNDS):
                with gate.holding(self.stream):
                    for which, start, end in pairs:
                        start.record(self.stream)
                        sides[which].launch(self.stream)
                        end.record(self.stream)
                self.stream.synchronize()
                for which, start, end in pairs:
                    found[which].append(end.seconds_since(start))
        return found

    def _pair(self, owned: ExitStack) -> Pair:
        return owned.enter_context(Event(self.context)), owned.enter_context(Event(self.context))
