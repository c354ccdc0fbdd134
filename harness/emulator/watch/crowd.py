"""Accesses beyond the two that a cell keeps: of each cell and thread the latest one (`shadow`).

They are FastTrack's read-shared state, and matter only where some threads of a block are ordered with another
and some are not: where fences and flags order them. A list of accesses grows, and is sorted by cell from time
to time, so that an access to a cell nobody else is waiting at costs one look-up.
"""

from __future__ import annotations

import numpy as np

from harness.emulator.numbers.values import Array

_UNSORTED = 1 << 16  # accesses that are searched one by one, at least
_MOST = 1 << 21  # accesses that are kept; further ones are lost
_NONE = np.zeros(0, np.int64)


class Crowd:
    """Accesses of one kind to a memory of `cells` cells."""

    def __init__(self, cells: int) -> None:
        self._age = np.zeros(cells, np.int32)  # how often a cell was forgotten
        self._some = np.zeros(cells, np.bool_)  # the cells with accesses since then
        # Of each access: cell << 32 | thread, stamp, instruction, and the age of its cell.
        self._sorted = _NONE, _NONE, _NONE, _NONE
        self._new: list[tuple[Array, Array, Array, Array]] = []
        # How many there are of the new ones, and of those lost since all were sorted.
        self._count = self._lost = 0

    def add(self, cells: Array, threads: Array, stamps: Array, sites: Array) -> None:
        """Add accesses: elementwise the cell, the thread's number in the grid, its stamp, the instruction."""
        if not len(cells) or not self._room(len(cells)):
            return
        cells = cells.astype(np.int64)
        self._some[cells] = True
        self._new.append((cells << 32 | threads, stamps, sites, self._age[cells]))
        self._count += len(cells)
        if self._count > max(_UNSORTED, len(self._sorted[0])):
            self._sort()

    def _room(self, wanted: int) -> bool:
        """Return whether more accesses may be kept; those that are forgotten make room, if not at once."""
        if len(self._sorted[0]) + self._count <= _MOST:
            return True
        self._lost += wanted
        if self._lost > _MOST // 2:
            self._sort()
        return len(self._sorted[0]) + self._count <= _MOST

    def forget(self, cells: Array) -> None:
        """Forget the accesses to cells: a later one comes after all of them, or in conflict with them."""
        some = cells[self._some[cells]]
        self._age[some] += 1
        self._some[some] = False

    def at(self, cells: Array) -> tuple[Array, Array, Array, Array]:
        """Return the accesses to cells: elementwise the index in `cells`, thread, stamp and instruction."""
        asked = np.flatnonzero(self._some[cells])
        if not len(asked):
            return _NONE, _NONE, _NONE, _NONE
        asked = asked[np.argsort(cells[asked], kind="stable")]
        wanted = cells[asked].astype(np.int64)
        found = []
        keys = self._sorted[0]
        first, end = np.searchsorted(keys, wanted << 32), np.searchsorted(keys, (wanted + 1) << 32)
        which, place = _ranges(first, end)
        found.append((asked[which], *(part[place] for part in self._sorted)))
        for part in self._new:
            of = part[0] >> 32
            place, which = _ranges(np.searchsorted(wanted, of), np.searchsorted(wanted, of, side="right"))
            found.append((asked[which], *(values[place] for values in part)))
        lanes, key, stamps, sites, ages = (np.concatenate(parts) for parts in zip(*found, strict=True))
        alive = ages == self._age[key >> 32]
        return lanes[alive], key[alive] & 0xFFFFFFFF, stamps[alive].astype(np.int64), sites[alive]

    def refined(self, columns: int) -> Crowd:
        """Return the same in cells of half the size; `columns` is that of `shadow.Watched`."""
        self._sort()
        finer = Crowd(len(self._age) * 2)
        key, stamps, sites, _ = self._sorted
        cells = key >> 32
        for half in (0, 1):
            moved = (2 * (cells // columns) + half) * columns + cells % columns
            finer.add(moved, key & 0xFFFFFFFF, stamps, sites)
        return finer

    def _sort(self) -> None:
        """Sort all accesses by cell; those that are forgotten go, and of a thread all but the latest."""
        parts = zip(self._sorted, *self._new, strict=True)
        key, stamps, sites, ages = (np.concatenate(values) for values in parts)
        alive = np.flatnonzero(ages == self._age[key >> 32])
        alive = alive[np.argsort(key[alive], kind="stable")]
        if len(alive):
            alive = alive[np.append(np.diff(key[alive]) != 0, True)]
        self._sorted = key[alive], stamps[alive], sites[alive], ages[alive]
        self._new, self._count, self._lost = [], 0, 0


def _ranges(first: Array, end: Array) -> tuple[Array, Array]:
    """Return the numbers from `first` up to `end` of each range: (index of the range, number)."""
    lengths = end - first
    which = np.repeat(np.arange(len(lengths)), lengths)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + first[which]
