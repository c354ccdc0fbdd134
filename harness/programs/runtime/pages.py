"""Pages of the host's own that the device reaches: they are of a file for so long, and then the process's."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PAGE = mmap.PAGESIZE
_NO_FILE = -1


class Mapping(NamedTuple):
    """A line of ``/proc/self/maps``: where it lies, whether one may write there, and what it is of."""

    start: int
    end: int
    writable: bool
    place: int
    inode: int


def whole(address: int, size: int) -> tuple[int, int]:
    """Return the first address of the pages that bytes lie in, and the one behind them."""
    return address // _PAGE * _PAGE, -(-(address + size) // _PAGE) * _PAGE


def mappings(first: int, end: int) -> Iterator[Mapping]:
    """Return what is mapped in a range of addresses, in ascending order."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        where, access, place, _, inode, *_ = line.split()
        low, high = (int(one, 16) for one in where.split("-"))
        if low < end and first < high:
            yield Mapping(low, high, access.startswith("rw"), int(place, 16), int(inode))


class Pages:
    """Pages of the host's, which move to a file and back while other threads may write to them.

    native: the library of native/
    """

    def __init__(self, native: ctypes.CDLL, file: int) -> None:
        self._file, self._inode = file, os.fstat(file).st_ino
        types = ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t
        self._move = ctypes.PYFUNCTYPE(ctypes.c_int, *types)(("harness_move", native))

    @staticmethod
    def writable(first: int, end: int) -> bool:
        """Return whether host code may read and write all of a range."""
        for one in mappings(first, end):
            if one.start > first or not one.writable:
                return False
            first = one.end
        return first >= end

    def lend(self, first: int, end: int, place: int) -> bool:
        """Let a range be the file's pages from `place` on; return whether it is."""
        return not self._move(first, end - first, self._file, place)

    def give_back(self, first: int, end: int, place: int) -> list[tuple[int, int]]:
        """Let a range that is the file's from `place` on be the process's own again; return what is free.

        What the program has unmapped or moved meanwhile is left as it is.
        """
        found = []
        for one in mappings(first, end):
            low, high = max(first, one.start), min(end, one.end)
            here = place + low - first
            lent = one.inode == self._inode and one.place + low - one.start == here
            if lent and not self._move(low, high - low, _NO_FILE, 0):
                found.append((here, high - low))
        return found
