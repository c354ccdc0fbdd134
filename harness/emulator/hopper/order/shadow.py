"""The last write to every place of shared memory and the reads since then, and the races with them.

A place is as many bytes as the kernel's narrowest access to shared memory. Reads are kept for each warp, and
for each stream of asynchronous operations, the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator.hopper.order.clocks import Clocks, Known
from harness.emulator.numbers.values import Array
from harness.emulator.watch.patterns import WARP

Places = Array | slice
_NONE = -1


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An access that races with the present one.

    column, site: its column and its instruction
    unfenced: the two are ordered, and only the proxy fence is missing
    passed: a proxy fence lies on the way from it, in another thread than its own
    alike: both store the same value
    narrow: the two are ordered by an mbarrier, by a scope that does not have both threads
    """

    column: int
    site: int
    unfenced: bool
    passed: bool = False
    alike: bool = False
    narrow: bool = False


Report = Callable[[str, Earlier, int, int], None]
Told = Callable[[Array, Array, Array], Array]  # of rows, columns and stamps: what flags in global memory tell


def _nothing(rows: Array, columns: Array, stamps: Array) -> Array:
    return np.zeros(columns.shape, np.bool_)


def _untold(bad: Array, told: Told, rows: Array, columns: Array, stamps: Array, places: Array) -> Array:
    """Return those of the races `bad` whose earlier access, of the last at `places`, nothing tells of."""
    return bad & ~told(rows, columns, stamps[places]) if bad.any() else bad


def _worst(bad: Array, passed: Array) -> int:
    """Return the first of the accesses `bad` that no fence has passed, or else the first of them."""
    worse = bad & ~passed
    return int(np.nonzero(worse if worse.any() else bad)[0][0])


class Reads:
    """The reads of one warp, or of one stream, since the last write to each place.

    Memory is taken for the places that are touched only: `low` to `high`, which is past the last one.
    """

    def __init__(self, count: int) -> None:
        self.column, self.value, self.site, self.stamp = np.zeros((4, count), np.int32)
        self.low, self.high = count, 0

    def keep(self, places: Places, column: Any, value: Any, site: int, stamp: int = 0) -> None:
        """Keep a read of `places` as the last one."""
        low, high = _extent(places)
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.column[places] = column
        self.value[places] = value
        self.site[places] = site
        self.stamp[places] = stamp


def _extent(places: Places) -> tuple[int, int]:
    """Return the first of the places and the one past the last."""
    if isinstance(places, slice):
        return places.start, places.stop
    return (int(places.min()), int(places.max()) + 1) if places.size else (0, 0)


class Shadow:
    """The accesses to `size` bytes of shared memory, in places of `grain` bytes.

    A report is called for the first place of a race with (kind of the earlier access, the earlier access,
    byte, index of the present access among its rows); the kind "same" is a write of the same instruction.
    """

    def __init__(self, size: int, grain: int, clocks: Clocks) -> None:
        self.grain = grain
        self._clocks = clocks
        self._count = -(-size // grain) + 1
        self._column = np.full(self._count, _NONE, np.int32)
        self._value = np.zeros(self._count, np.int32)
        self._site = np.zeros(self._count, np.int32)
        self._stamp = np.zeros(self._count, np.int32)
        self._strong = np.zeros(self._count, np.int32)  # of a strong write: how many threads its scope has
        self._adds = np.zeros(self._count, np.bool_)  # an asynchronous reduction: two of a phase do not race
        self._stored = np.zeros(self._count, np.int32)  # a number for what threads stored, 0 if not known
        self._numbers: dict[Hashable, int] = {None: 0}
        self._reads: dict[Hashable, Reads] = {}  # by warp and stream

    def places(self, start: int, size: int) -> slice:
        """Return the places of `size` bytes from `start`."""
        return slice(start // self.grain, -(-(start + size) // self.grain))

    def _reads_of(self, key: Hashable) -> Reads:
        """Return where the reads of `key` are kept."""
        found = self._reads.get(key)
        if found is None:
            found = self._reads[key] = Reads(self._count)
        return found

    def _readers(self, places: Places) -> list[Reads]:
        """Return the reads that may have been of one of the places."""
        low, high = _extent(places)
        return [reads for reads in self._reads.values() if reads.low < high and low < reads.high]

    # -- accesses of threads

    def threads(
        self,
        kind: str,
        site: int,
        rows: Array,
        places: Array,
        report: Report,
        stream: tuple[Array, Array] | None = None,
        stamp: int = 0,
        told: Told = _nothing,
        stores: Hashable = None,
        scope: int = 0,
    ) -> None:
        """Record an access of the threads `rows`, (n,), to `places`, (n, k); report each race.

        kind: read, write, or of strong accesses poll and atomic, which do not race within each other's scope
        stream: (columns, values) of a write that is an operation of its own for each thread
        stamp: that of the access in the order of global memory
        told: returns which earlier accesses, by column and stamp, threads know of by that order
        stores: a key for what a write stores: equal keys mean equal values in each place
        scope: of a strong access: how many threads there are in its scope
        """
        clocks, stored = self._clocks, self._numbers.setdefault(stores, len(self._numbers))
        row = rows[:, None]
        column = self._column[places]
        unknown = (column >= 0) & (clocks.seen[row, column] < self._value[places])
        if kind in ("atomic", "poll"):
            both = np.minimum(self._strong[places], scope)
            unknown &= (both == 0) | (row // np.maximum(both, 1) != column // np.maximum(both, 1))
        unknown = _untold(unknown, told, row, column, self._stamp, places)
        alike = unknown & (self._stored[places] == stored) if stored and kind == "write" else None
        if unknown.any():
            self._report("write", unknown, places, column, report, alike=alike)
        mine, own = (rows, clocks.own(rows)) if stream is None else stream
        if kind == "poll":  # of which no later strong write is a race
            return
        if kind == "read":
            if not len(rows):
                return
            narrow = (column >= 0) & (column < clocks.threads) & ~unknown
            narrow &= clocks.scoped[row, column] < self._value[places]
            narrow &= clocks.seen[row, column] >= self._value[places]
            if narrow.any():
                self._report("write", narrow, places, column, report, narrow=True)
            warps = rows // 32  # ascending
            ends = [*(np.flatnonzero(warps[1:] != warps[:-1]) + 1).tolist(), len(warps)]
            begin = 0
            for end in ends:
                here = slice(begin, end)
                self._reads_of(("warp", int(warps[begin]))).keep(
                    places[here], row[here], own[here][:, None], site, stamp
                )
                begin = end
            return
        readers = self._readers(places)
        for reads in readers:
            value, reader = reads.value[places], reads.column[places]
            late = (value > 0) & (clocks.done[row, reader] < value)
            late = _untold(late, told, row, reader, reads.stamp, places)
            if late.any():
                self._report("read", late, places, reader, report, reads)
        self._column[places] = mine[:, None]
        if kind == "write":
            twice = self._column[places] != mine[:, None]
            if twice.any():
                alike = twice if stored else None
                self._report("same", twice, places, self._column[places], report, alike=alike)
        self._value[places] = own[:, None]
        self._site[places] = site
        self._stamp[places] = stamp
        self._strong[places] = scope if kind == "atomic" else 0
        self._stored[places] = stored
        for reads in readers:
            reads.value[places] = 0

    def _report(
        self,
        kind: str,
        bad: Array,
        places: Array,
        column: Array,
        report: Report,
        reads: Reads | None = None,
        alike: Array | None = None,
        narrow: bool = False,
    ) -> None:
        """Report the first of the accesses `bad`, bool (n, k), and of those that are not `alike`."""
        if alike is not None and alike.any() and (bad & ~alike).any():
            self._report(kind, bad & ~alike, places, column, report, reads)
            bad = alike
        lane, k = (int(i) for i in np.argwhere(bad)[0])
        place = int(places[lane, k])
        site = self._site[place] if reads is None else reads.site[place]
        if kind == "same":
            site = _NONE
        same = alike is not None and bool(alike[lane, k])
        found = Earlier(
            column=int(column[lane, k]), site=int(site), unfenced=False, alike=same, narrow=narrow
        )
        report(kind, found, place * self.grain, lane)

    # -- accesses of asynchronous operations

    def operation(
        self,
        kind: str,
        site: int,
        places: Places,
        known: Known,
        stream: tuple[int, int],
        report: Report,
        *,
        generic: bool = False,
        by: int = _NONE,
        adds: bool = False,
    ) -> None:
        """Record an access that an operation of `stream`, (column, value), makes to distinct `places`.

        known: what was known where the operation began
        generic: it is made through the generic proxy, and needs no proxy fence
        by: the thread that begins it
        adds: it is a reduction
        """
        known = known.widened(len(self._clocks.generic))
        column = self._column[places]
        value = self._value[places]
        ordered = known.seen[column] >= value
        if kind == "write":  # what an operation wrote whose end was waited for is there
            ordered |= (column >= self._clocks.threads) & (known.done[column] >= value)
        fenced = ordered
        if not generic:
            fenced = np.where(self._clocks.generic[column], known.fenced[column] >= value, ordered)
        bad = (column >= 0) & ~fenced
        if adds:
            bad &= ~(self._adds[places] & (column == stream[0]) & (value == stream[1]))
        if bad.any():
            passed = ordered & (known.passed[column] >= value)
            first = _worst(bad, passed)
            place = int(np.arange(self._count)[places][first])
            found = Earlier(
                column=int(column[first]),
                site=int(self._site[place]),
                unfenced=bool(ordered[first]),
                passed=bool(passed[first]),
            )
            report("write", found, place * self.grain, 0)
        if kind == "read":
            self._reads_of(("stream", stream[0])).keep(places, stream[0], stream[1], site)
            return
        readers = self._readers(places)
        for reads in readers:
            value, reader = reads.value[places], reads.column[places]
            late = (value > 0) & (known.done[reader] < value)
            unfenced = ~late & (value > 0) & self._outrun(by, reader, value, known)
            if late.any() or (unfenced.any() and not generic):
                passed = ~late & (known.passed[reader] >= value)
                first = _worst(late | unfenced, passed)
                place = int(np.arange(self._count)[places][first])
                found = Earlier(
                    column=int(reader[first]),
                    site=int(reads.site[place]),
                    unfenced=not late[first],
                    passed=bool(passed[first]),
                )
                report("read", found, place * self.grain, 0)
        self._column[places] = stream[0]
        self._value[places] = stream[1]
        self._site[places] = site
        self._strong[places] = 0
        self._adds[places] = adds
        self._stored[places] = 0
        for reads in readers:
            reads.value[places] = 0

    def _outrun(self, by: int, reader: Array, value: Array, known: Known) -> Array:
        """Return which reads an operation of the async proxy, begun by the thread `by`, may outrun.

        They are those of its own warp, ordered by the program alone: without a proxy fence, or a wait since,
        they may not have got what they asked for.
        """
        clocks = self._clocks
        thread = np.minimum(reader, clocks.threads - 1)
        mate = (reader < clocks.threads) & (reader // WARP == by // WARP)
        found: Array = mate & (known.fenced[reader] < value) & (clocks.settled[thread] < value)
        return found
