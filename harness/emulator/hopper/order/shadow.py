"""The last write to every place of shared memory and the reads since then, and the races with them.

A place is as many bytes as the kernel's narrowest access to shared memory. Reads are kept for each warp, and
for each stream of asynchronous operations, the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from harness.emulator.hopper.order.clocks import Clocks, Known
from harness.emulator.numbers.values import Array

Places = Array | slice
_NONE = -1


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An access that races with the present one.

    column, site: its column and its instruction
    unfenced: the two are ordered, and only the proxy fence is missing
    """

    column: int
    site: int
    unfenced: bool


Report = Callable[[str, Earlier, int, int], None]


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
        self._atomic = np.zeros(self._count, np.bool_)
        self._slots: dict[Hashable, int] = {}
        self._read = np.zeros((16, 3, self._count), np.int32)  # column, value, site by slot

    def places(self, start: int, size: int) -> slice:
        """Return the places of `size` bytes from `start`."""
        return slice(start // self.grain, -(-(start + size) // self.grain))

    def _slot(self, key: Hashable) -> int:
        """Return the number of the slot that the reads of `key` are kept in."""
        if key not in self._slots:
            self._slots[key] = len(self._slots)
            if len(self._slots) > len(self._read):
                more = np.zeros((max(4, len(self._read)), 3, self._count), np.int32)
                self._read = np.concatenate([self._read, more])
        return self._slots[key]

    # -- accesses of threads

    def threads(
        self,
        kind: str,
        site: int,
        rows: Array,
        places: Array,
        report: Report,
        stream: tuple[Array, Array] | None = None,
    ) -> None:
        """Record an access of the threads `rows`, (n,), to `places`, (n, k); report each race.

        kind: read, write or atomic
        stream: (columns, values) of a write that is an operation of its own for each thread
        """
        clocks = self._clocks
        row = rows[:, None]
        column = self._column[places]
        unknown = (column >= 0) & (clocks.seen[row, column] < self._value[places])
        if kind == "atomic":
            unknown &= ~self._atomic[places]
        if unknown.any():
            self._report("write", unknown, places, column, report)
        if kind != "read":
            for slot in range(len(self._slots)):
                value = self._read[slot, 1][places]
                reader = self._read[slot, 0][places]
                late = (value > 0) & (clocks.seen[row, reader] < value)
                if late.any():
                    self._report("read", late, places, reader, report, slot)
        mine, own = (rows, clocks.own(rows)) if stream is None else stream
        if kind == "read":
            if not len(rows):
                return
            warps = rows // 32
            for warp in np.unique(warps):
                here = warps == warp
                slot = self._slot(("warp", int(warp)))  # may make room for more
                held = self._read[slot]
                held[0, places[here]] = row[here]
                held[1, places[here]] = own[here][:, None]
                held[2, places[here]] = site
            return
        self._column[places] = mine[:, None]
        if kind == "write":
            twice = self._column[places] != mine[:, None]
            if twice.any():
                self._report("same", twice, places, self._column[places], report)
        self._value[places] = own[:, None]
        self._site[places] = site
        self._atomic[places] = kind == "atomic"
        self._read[: len(self._slots), 1, places] = 0

    def _report(
        self,
        kind: str,
        bad: Array,
        places: Array,
        column: Array,
        report: Report,
        slot: int = _NONE,
    ) -> None:
        """Report the first of the accesses `bad`, bool (n, k)."""
        lane, k = (int(i) for i in np.argwhere(bad)[0])
        place = int(places[lane, k])
        site = self._site[place] if slot < 0 else self._read[slot, 2][place]
        if kind == "same":
            site = _NONE
        found = Earlier(column=int(column[lane, k]), site=int(site), unfenced=False)
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
    ) -> None:
        """Record an access that an operation of `stream`, (column, value), makes to distinct `places`.

        known: what was known where the operation began
        generic: it is made through the generic proxy, and needs no proxy fence
        """
        known = known.widened(len(self._clocks.generic))
        column = self._column[places]
        value = self._value[places]
        ordered = known.seen[column] >= value
        fenced = ordered
        if not generic:
            fenced = np.where(self._clocks.generic[column], known.fenced[column] >= value, ordered)
        bad = (column >= 0) & ~fenced & ((column != stream[0]) | (value != stream[1]))
        if bad.any():
            first = int(np.nonzero(bad)[0][0])
            place = int(np.arange(self._count)[places][first])
            found = Earlier(
                column=int(column[first]), site=int(self._site[place]), unfenced=bool(ordered[first])
            )
            report("write", found, place * self.grain, 0)
        if kind == "read":
            slot = self._slot(("stream", stream[0]))
            held = self._read[slot]
            held[0, places] = stream[0]
            held[1, places] = stream[1]
            held[2, places] = site
            return
        for slot in range(len(self._slots)):
            held = self._read[slot]
            value, reader = held[1][places], held[0][places]
            late = (value > 0) & (known.seen[reader] < value)
            if late.any():
                first = int(np.nonzero(late)[0][0])
                place = int(np.arange(self._count)[places][first])
                found = Earlier(column=int(reader[first]), site=int(held[2][place]), unfenced=False)
                report("read", found, place * self.grain, 0)
        self._column[places] = stream[0]
        self._value[places] = stream[1]
        self._site[places] = site
        self._atomic[places] = False
        self._read[: len(self._slots), 1, places] = 0
