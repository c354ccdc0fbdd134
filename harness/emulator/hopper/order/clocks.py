"""Vector clocks of a cluster: what every thread knows of the others and of asynchronous operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.watch.knowledge import Knowledge
from harness.emulator.watch.patterns import WARP

_SEEN, _FENCED, _PASSED, _HEARD, _SCOPED, _DONE = ROWS = range(6)  # the rows of a table


@dataclass(frozen=True)
class Known:
    """Knowledge at one point: a table of clocks (6, columns), and what is `told` of global memory.

    seen: what is known, with its effects
    fenced, passed: of that, what comes before a proxy fence; one of the thread that made an access counts for
      `fenced`, one of any thread on the way from it for `passed`
    heard: what has happened before, whether or not its effects are known
    scoped: of what is seen, what was told by means whose scope has both threads
    done: what is seen, and what was before copies and ``st.async`` began whose end was waited for:
      what was read there has been read
    """

    table: Array
    told: Told | None = None

    seen = property(lambda self: self.table[_SEEN])
    fenced = property(lambda self: self.table[_FENCED])
    passed = property(lambda self: self.table[_PASSED])
    heard = property(lambda self: self.table[_HEARD])
    scoped = property(lambda self: self.table[_SCOPED])
    done = property(lambda self: self.table[_DONE])

    def with_(self, other: Known | None) -> Known:
        """Return what is known by either."""
        if other is None:
            return self
        columns = max(self.table.shape[1], other.table.shape[1])
        table = np.maximum(self.widened(columns).table, other.widened(columns).table)
        return Known(table, self.told.with_(other.told) if self.told is not None else other.told)

    def widened(self, columns: int) -> Known:
        """Return the same with at least so many columns."""
        more = columns - self.table.shape[1]
        return self if more <= 0 else replace(self, table=np.pad(self.table, ((0, 0), (0, more))))

    def narrow(self, first: int, end: int) -> Known:
        """Return the same, told by means whose scope has none but the threads from `first` up to `end`."""
        table = self.table.copy()
        table[_SCOPED, :first] = table[_SCOPED, end:] = 0
        return replace(self, table=table)

    def hearsay(self) -> Known:
        """Return what has happened, without its effects: so much a relaxed arrival tells."""
        return self._of(_HEARD)

    def begun(self) -> Known:
        """Return what had happened, and what had been read, where a copy began: so much its end tells."""
        return self._of(_HEARD, _DONE)

    def _of(self, *rows: int) -> Known:
        table = np.zeros_like(self.table)
        table[[*rows]] = self.table[[*rows]]
        return Known(table)


@dataclass(frozen=True)
class Told:
    """Knowledge of accesses to global memory: of each order of the launch a node of its `Knowledge`."""

    graph: Knowledge
    nodes: tuple[int, ...]

    def with_(self, other: Told | None) -> Told:
        """Return what is known by either."""
        if other is None or other.nodes == self.nodes:
            return self
        pairs = zip(self.nodes, other.nodes, strict=True)
        return Told(self.graph, tuple(self.graph.join(*pair) for pair in pairs))


class Clocks:
    """The clocks of `threads` threads.

    Column t is that of thread t: its own value counts the points at which it has published what it did.
    Further columns are allocated for streams of asynchronous operations.

    seen, fenced, passed, heard, scoped, done: int32 (threads, columns), see `Known`
    generic: bool (columns,), the accesses of a column are made through the generic proxy
    settled: int32 (threads,), a thread's value when its warp last waited for something: what it read until
      then it has got, whatever proxy writes next
    publish, learn: what threads know of global memory, and how they are told; see `global_memory`
    """

    publish: Callable[[Array], Told] | None = None
    learn: Callable[[Array, Told], None] | None = None

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.settled = np.zeros(threads, np.int32)
        self._copies: list[int] = []  # first columns of streams that each thread has one of
        self._used = threads
        room = threads + 64
        self._table = np.zeros((len(ROWS), threads, room), np.int32)
        self.generic = np.ones(room, np.bool_)
        self.tick(np.arange(threads))

    seen = property(lambda self: self._table[_SEEN])
    fenced = property(lambda self: self._table[_FENCED])
    passed = property(lambda self: self._table[_PASSED])
    heard = property(lambda self: self._table[_HEARD])
    scoped = property(lambda self: self._table[_SCOPED])
    done = property(lambda self: self._table[_DONE])

    def columns(self, count: int, *, generic: bool) -> int:
        """Allocate `count` columns for streams, and return the first."""
        first = self._used
        self._used += count
        if self._used > self.seen.shape[1]:
            more = max(64, self._used - self.seen.shape[1])
            self._table = np.pad(self._table, ((0, 0), (0, 0), (0, more)))
            self.generic = np.pad(self.generic, (0, more), constant_values=True)
        self.generic[first : self._used] = generic
        if generic:
            self._copies.append(first)
        return first

    def known(self, rows: Array) -> Known:
        """Return what any of the threads `rows` knows."""
        return Known(self._table[:, rows].max(1))

    def begin(self, rows: Array) -> Known:
        """Return what any of the threads `rows` knows that begin an operation. What they do next is later."""
        found = self.known(rows)
        self.tick(rows)
        return found

    def shared(self, rows: Array) -> Known:
        """Return what every warp of the threads `rows` knows, (warps, 32): each of its threads, together."""
        return Known(self._table[:, rows].max(2).min(1))

    def release(self, rows: Array) -> Known:
        """Return what the threads `rows` know and have done, for whoever acquires it."""
        found = self.known(rows)
        self.tick(rows)
        return replace(found, told=self.publish(rows)) if self.publish is not None else found

    def acquire(self, rows: Array, known: Known | None) -> None:
        """Let the threads `rows` know what was released, at the end of a wait."""
        mates = (np.unique(rows // WARP)[:, None] * WARP + np.arange(WARP)).ravel()
        mates = mates[mates < self.threads]
        self.settled[mates] = self.own(mates)
        self.tick(mates)
        if known is None:
            return
        self._join(rows, known)
        if known.told is not None and self.learn is not None:
            self.learn(rows, known.told)

    def _join(self, rows: Array, known: Known) -> None:
        width = known.table.shape[1]
        self._table[:, rows, :width] = np.maximum(self._table[:, rows, :width], known.table[:, None])

    def hear(self, rows: Array, known: Known | None) -> None:
        """Let the threads `rows` know that what was known has happened, at the end of a relaxed wait."""
        if known is not None:
            self._join(rows, known.hearsay())

    def meet(self, rows: Array) -> None:
        """Order all that the threads `rows` of a warp have done before all that they do next."""
        found = self.known(rows)
        self.tick(rows)
        self._join(rows, found)

    def fence(self, rows: Array) -> None:
        """Execute a proxy fence in the threads `rows`: of their own accesses, and of all that they know."""
        self.passed[rows] = self.seen[rows]
        for first in (0, *self._copies):
            self.fenced[rows, first + rows] = self.seen[rows, first + rows]
        self.tick(rows)

    def widen(self, rows: Array, known: Known | None = None) -> None:
        """Let the threads `rows` know what is `known`, or all that they have seen, by a wide enough scope."""
        if known is None:
            self.scoped[rows] = self.seen[rows]
            return
        width = known.table.shape[1]
        self.scoped[rows, :width] = np.maximum(self.scoped[rows, :width], known.scoped)

    def observe(self, rows: Array, column: int, value: int) -> None:
        """Let the threads `rows` know that the operations of a stream up to `value` are complete."""
        self._table[:, rows, column] = np.maximum(self._table[:, rows, column], value)

    def land(self, rows: Array, column: int, values: Array, known: Known | None = None) -> None:
        """Let each of the threads `rows` know that what it began itself is complete up to a value.

        column: the first of the streams that each thread has one of
        known: who acquires this knows it, and not yet the threads
        """
        place = column + rows
        for which in (_SEEN, _DONE):
            table, at = (self._table[which], (rows, place)) if known is None else (known.table[which], place)
            table[at] = np.maximum(table[at], values)

    def tick(self, rows: Array) -> None:
        """Begin a new interval of the threads `rows`."""
        for which in (_SEEN, _HEARD, _SCOPED, _DONE):
            self._table[which, rows, rows] += 1

    def own(self, rows: Array) -> Array:
        """Return the values of the threads `rows` in their own columns."""
        found: Array = self.seen[rows, rows]
        return found
