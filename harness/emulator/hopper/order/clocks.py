"""Vector clocks of a cluster: what every thread knows of the others and of asynchronous operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.watch.knowledge import Knowledge
from harness.emulator.watch.patterns import WARP


@dataclass(frozen=True, kw_only=True)
class Known:
    """Knowledge at one point: the clocks `seen`, and those of them that come before a proxy fence.

    seen, fenced, passed: int32 (columns,); a fence of the thread that made an access counts for `fenced`,
      one of any thread on the way from it for `passed`
    told: what is known of global memory, see `Told`
    """

    seen: Array
    fenced: Array
    passed: Array
    told: Told | None = None

    def with_(self, other: Known | None) -> Known:
        """Return what is known by either."""
        if other is None:
            return self
        mine, theirs = self.widened(len(other.seen)), other.widened(len(self.seen))
        return Known(
            seen=np.maximum(mine.seen, theirs.seen),
            fenced=np.maximum(mine.fenced, theirs.fenced),
            passed=np.maximum(mine.passed, theirs.passed),
            told=self.told.with_(other.told) if self.told is not None else other.told,
        )

    def widened(self, columns: int) -> Known:
        """Return the same with at least so many columns."""
        more = columns - len(self.seen)
        if more <= 0:
            return self
        seen, fenced, passed = (np.pad(a, (0, more)) for a in (self.seen, self.fenced, self.passed))
        return replace(self, seen=seen, fenced=fenced, passed=passed)


@dataclass(frozen=True)
class Told:
    """Knowledge of accesses to global memory: a node of the launch's `Knowledge`."""

    graph: Knowledge
    node: int

    def with_(self, other: Told | None) -> Told:
        """Return what is known by either."""
        if other is None or other.node == self.node:
            return self
        return Told(self.graph, self.graph.join(self.node, other.node))


class Clocks:
    """The clocks of `threads` threads.

    Column t is that of thread t: its own value counts the points at which it has published what it did.
    Further columns are allocated for streams of asynchronous operations.

    seen, fenced, passed: int32 (threads, columns), see `Known`
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
        self.seen = np.zeros((threads, room), np.int32)
        self.fenced = np.zeros((threads, room), np.int32)
        self.passed = np.zeros((threads, room), np.int32)
        self.generic = np.ones(room, np.bool_)
        self.seen[np.arange(threads), np.arange(threads)] = 1

    def columns(self, count: int, *, generic: bool) -> int:
        """Allocate `count` columns for streams, and return the first."""
        first = self._used
        self._used += count
        if self._used > self.seen.shape[1]:
            more = max(64, self._used - self.seen.shape[1])
            self.seen, self.fenced, self.passed = (
                np.pad(clock, ((0, 0), (0, more))) for clock in (self.seen, self.fenced, self.passed)
            )
            self.generic = np.pad(self.generic, (0, more), constant_values=True)
        self.generic[first : self._used] = generic
        if generic:
            self._copies.append(first)
        return first

    def known(self, rows: Array) -> Known:
        """Return what any of the threads `rows` knows."""
        return Known(
            seen=self.seen[rows].max(0), fenced=self.fenced[rows].max(0), passed=self.passed[rows].max(0)
        )

    def shared(self, rows: Array) -> Known:
        """Return what every warp of the threads `rows` knows, (warps, 32): each of its threads, together."""
        seen, fenced, passed = (clock[rows].max(1).min(0) for clock in (self.seen, self.fenced, self.passed))
        return Known(seen=seen, fenced=fenced, passed=passed)

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
        width = len(known.seen)
        self.seen[rows, :width] = np.maximum(self.seen[rows, :width], known.seen)
        self.fenced[rows, :width] = np.maximum(self.fenced[rows, :width], known.fenced)
        self.passed[rows, :width] = np.maximum(self.passed[rows, :width], known.passed)

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

    def observe(self, rows: Array, column: int, value: int) -> None:
        """Let the threads `rows` know that the operations of a stream up to `value` are complete."""
        for clock in (self.seen, self.fenced, self.passed):
            clock[rows, column] = np.maximum(clock[rows, column], value)

    def tick(self, rows: Array) -> None:
        """Begin a new interval of the threads `rows`."""
        self.seen[rows, rows] += 1

    def own(self, rows: Array) -> Array:
        """Return the values of the threads `rows` in their own columns."""
        found: Array = self.seen[rows, rows]
        return found
