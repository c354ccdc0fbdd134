"""Who accessed each cell of a memory: the accesses that a later one may conflict with.

Of each kind of access a cell keeps the threads that accessed it and are not ordered with one another: those
with the lowest and the highest number. An access that comes after all of them takes their place, since
whatever comes after it comes after them as well (Flanagan and Freund, "FastTrack", PLDI 2009). Threads are
numbered block by block, so that the two extremes tell whether another block, or another thread of the same
block, is among them. Where more than barriers order threads, those between the two are kept as well, apart:
a `Crowd`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.watch.crowd import Crowd
from harness.emulator.watch.knowledge import BLOCK, CLUSTER, GRID, Semantics
from harness.emulator.watch.touches import Marks, Reach, runs

Footprint = dict[int, Array]  # by kind of access the bytes of a buffer, see `touches.runs`
Ends = tuple[tuple[Array, Array, Array], ...]  # by end, lowest and highest: thread + 1, stamp, instruction

# Kinds of access: plain ones, strong ones (volatile, relaxed, atomic), and those strong within a block or a
# cluster only.
READ, WRITE, STRONG_READ, STRONG_WRITE, BLOCK_READ, BLOCK_WRITE, CLUSTER_READ, CLUSTER_WRITE = range(8)
KINDS = 8
_GRAIN = 4  # bytes of a cell until a smaller access asks for finer ones
READS = (READ, STRONG_READ, BLOCK_READ, CLUSTER_READ)
# Another launch is outside of all blocks and clusters: to it what is strong within those is plain.
OUTSIDE = (READ, WRITE, STRONG_READ, STRONG_WRITE, READ, WRITE, READ, WRITE)
_SCOPES = {STRONG_READ: GRID, STRONG_WRITE: GRID, BLOCK_READ: BLOCK, BLOCK_WRITE: BLOCK}
_SCOPES |= {CLUSTER_READ: CLUSTER, CLUSTER_WRITE: CLUSTER}


def within(one: int, other: int) -> int | None:
    """Return the scope within which accesses of two kinds do not conflict: GRID for all, None for no threads.

    They do not if both read, or if both are strong and each is of a scope that has the other's thread.
    """
    if one in READS and other in READS:
        return GRID
    if one in _SCOPES and other in _SCOPES:
        return min(_SCOPES[one], _SCOPES[other])
    return None


def apart(scope: int | None, threads: int, clusters: Array | None, one: Array, other: Array) -> Array:
    """Return which of two arrays of threads, by number in the grid, do not have each other in `scope`.

    threads: of a block
    clusters: of each block the number of its cluster, None if each is one of its own
    """
    if scope in (None, GRID):
        return np.full(len(one), scope is None)
    one, other = one // threads, other // threads
    if scope == CLUSTER and clusters is not None:
        one, other = clusters[one], clusters[other]
    return np.asarray(one != other)


def kind_of(meaning: Semantics, write: bool) -> int:
    """Return the kind of a read or a `write` with these semantics; an atomic is a write."""
    if not meaning.strong:
        return WRITE if write else READ
    kinds = {BLOCK: (BLOCK_READ, BLOCK_WRITE), CLUSTER: (CLUSTER_READ, CLUSTER_WRITE)}
    return kinds.get(meaning.scope, (STRONG_READ, STRONG_WRITE))[write]


@dataclass(frozen=True)
class Lanes:
    """The lanes of an access, block by block: elementwise their cells, and of their threads the numbers.

    cells: the cell in the shadow
    grid: the thread's number in the grid
    thread, column: its number in the block, and the block's in the batch
    stamps: the stamp of the access
    """

    cells: Array
    grid: Array
    thread: Array
    column: Array
    stamps: Array

    def moved(self, by: int) -> Lanes:
        """Return the same lanes `by` cells further on."""
        return Lanes(self.cells + by, self.grid, self.thread, self.column, self.stamps) if by else self


@dataclass(frozen=True)
class Conflict:
    """Lanes in conflict with an earlier access, or with another lane of the same one.

    kind: that of the earlier access
    lanes: indices in `Lanes`
    threads, sites: of the earlier access, elementwise: the number of the thread and the instruction's index
    """

    kind: int
    lanes: Array
    threads: Array
    sites: Array


class Shadow:
    """The accesses of a memory of `cells` cells.

    crowded: those of threads between the lowest and the highest are kept, too
    """

    def __init__(self, cells: int, crowded: bool = False) -> None:
        self.size, self._crowded = cells, crowded
        self._crowds: dict[int, Crowd] = {}  # by kind
        # By kind; made with the first access.
        self._kept: list[Ends | None] = [None] * KINDS
        self.published: Array | None = None  # the node of `Knowledge` that was published at each cell
        self.releases: dict[int, dict[int, int]] = {}  # by cell and thread, that of its last release there

    def conflicts(
        self,
        kind: int,
        lanes: Lanes,
        threads: int,
        knows: Callable[[Array, Array, Array], Array],
        clusters: Array | None = None,
    ) -> Iterator[Conflict]:
        """Yield the conflicts of an access with earlier ones.

        threads, clusters: as in `apart`
        knows(lanes, threads, stamps): returns whether earlier accesses happened before, elementwise; `lanes`
          are indices
        """
        for other in range(KINDS):
            scope = within(kind, other)
            if scope == GRID:
                continue
            for some, thread, when, where in self.earlier(other, lanes):
                bad = ~knows(some, thread, when)
                bad &= apart(scope, threads, clusters, thread, lanes.grid[some])
                if bad.any():
                    yield Conflict(other, some[bad], thread[bad], where[bad])

    def written(self) -> Array | None:
        """Return the cells that something wrote, in order; None if nothing did."""
        kept = [ends[0][0] != 0 for kind, ends in enumerate(self._kept) if ends and kind not in READS]
        cells = np.nonzero(np.logical_or.reduce(kept))[0] if kept else np.empty(0, np.int64)
        return cells if len(cells) else None

    def accessed(self) -> dict[int, Array]:
        """Return which cells were accessed by each kind of access: READ, WRITE, and those that are strong."""
        found: dict[int, Array] = {}
        for kind, ends in enumerate(self._kept):
            if ends is not None:
                seen = ends[0][0] != 0
                found[OUTSIDE[kind]] = found.get(OUTSIDE[kind], False) | seen
        return found

    def earlier(self, kind: int, lanes: Lanes) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Yield the accesses of a kind that other threads have made to the cells of lanes.

        These are, elementwise, indices of lanes, the threads, their stamps and the indices of instructions.
        """
        kept = self._kept[kind]
        for place, (who, when, where) in enumerate(kept or ()):
            found = who[lanes.cells]
            others = (found != 0) & (found != lanes.grid + 1)
            if kept and place:
                others &= found != kept[0][0][lanes.cells]  # the lowest was told already
            some = np.nonzero(others)[0]
            if len(some):
                cells = lanes.cells[some]
                yield some, found[some].astype(np.int64) - 1, when[cells].astype(np.int64), where[cells]
        if kind in self._crowds:
            some, thread, when, where = self._crowds[kind].at(lanes.cells)
            other = thread != lanes.grid[some]
            if other.any():
                yield some[other], thread[other], when[other], where[other]

    def add(
        self,
        kind: int,
        lanes: Lanes,
        site: int,
        knows: Callable[[Array, Array, Array], Array],
        *,
        atomic: bool = False,
    ) -> None:
        """Add an access by the instruction with index `site`; the arguments are those of `conflicts`.

        An `atomic` read-modify-write whose result somebody looks at comes after all those of its kind at the
        cell, whatever else orders them, and takes their place: the last one at a counter may set it back by a
        plain store.
        """
        kept = self._kept[kind]
        if kept is None:
            kept = tuple(
                (
                    np.zeros(self.size, np.int32),
                    np.zeros(self.size, np.int32),
                    np.zeros(self.size, np.int32),
                )
                for _ in range(2)
            )
            self._kept[kind] = kept
        cells, mine = lanes.cells, (lanes.grid + 1).astype(np.int32)
        stamps = lanes.stamps.astype(np.int32)
        (low, low_at, low_site), (high, high_at, high_site) = kept
        lowest, highest = low[cells], high[cells]
        older = np.nonzero((lowest != 0) & ((lowest != mine) | (highest != mine)))[0]
        fresh = np.ones(len(cells), np.bool_)
        if len(older):
            for who, when in ((lowest, low_at), (highest, high_at)):
                fresh[older] &= knows(
                    older, who[older].astype(np.int64) - 1, when[cells[older]].astype(np.int64)
                )
        displaced = cells[older[~fresh[older]]] if self._crowded else older[:0]
        left = [(displaced, a[displaced], b[displaced], c[displaced]) for a, b, c in kept]
        # Of several lanes at one cell the last one assigned stays: the lowest, then the highest. Of atomics
        # that is the last in both places.
        takes = np.nonzero(fresh | atomic | (mine <= lowest))[0]
        takes = takes if atomic else takes[::-1]
        at = cells[takes]
        low[at], low_at[at], low_site[at] = mine[takes], stamps[takes], site
        takes = np.nonzero(fresh | atomic | (mine >= highest))[0]
        at = cells[takes]
        high[at], high_at[at], high_site[at] = mine[takes], stamps[takes], site
        if kind == WRITE:
            for crowd in self._crowds.values():
                crowd.forget(cells)
        elif self._crowded:
            if atomic and kind in self._crowds:
                self._crowds[kind].forget(cells)
            elif not atomic:
                left.append((cells, mine, stamps, np.full(len(cells), site, np.int32)))
                self._keep(kind, kept, left)

    def _keep(self, kind: int, kept: Ends, left: list[tuple[Array, Array, Array, Array]]) -> None:
        """Keep those of accesses (cells, threads + 1, stamps, sites) that are not the two of their cell."""
        for cells, threads, stamps, sites in left:
            gone = (kept[0][0][cells] != threads) & (kept[1][0][cells] != threads)
            if gone.any():
                crowd = self._crowds.setdefault(kind, Crowd(self.size))
                crowd.add(cells[gone], threads[gone].astype(np.int64) - 1, stamps[gone], sites[gone])

    def among(self, kind: int, lanes: Lanes, threads: int, clusters: Array | None = None) -> Conflict | None:
        """Return the conflicts among the lanes of a write that was just added, None without any."""
        kept = self._kept[kind]
        if kept is None:
            return None
        who, _, where = kept[1]
        found = who[lanes.cells]
        others = apart(within(kind, kind), threads, clusters, found.astype(np.int64) - 1, lanes.grid)
        bad = np.nonzero(others & (found != lanes.grid + 1))[0]
        if not len(bad):
            return None
        return Conflict(kind, bad, found[bad].astype(np.int64) - 1, where[lanes.cells[bad]])

    def refined(self, columns: int) -> Shadow:
        """Return the shadow of the same memory in cells of half the size; `columns` is that of `Watched`."""

        def halves(cells: Array) -> Array:
            return np.repeat(cells.reshape(-1, columns), 2, axis=0).ravel()

        finer = Shadow(self.size * 2, self._crowded)
        finer._crowds = {kind: crowd.refined(columns) for kind, crowd in self._crowds.items()}
        for kind, kept in enumerate(self._kept):
            if kept is not None:
                low, high = ((halves(a), halves(b), halves(c)) for a, b, c in kept)
                finer._kept[kind] = low, high
        if self.published is not None:
            finer.published = halves(self.published)
        for cell, nodes in self.releases.items():
            first = 2 * (cell // columns) * columns + cell % columns
            finer.releases |= {first: dict(nodes), first + columns: dict(nodes)}
        return finer

    def released(self, lanes: Lanes, nodes: Array) -> None:
        """Keep the nodes that lanes published at their cells by releases."""
        for cell, thread, node in zip(lanes.cells.tolist(), lanes.grid.tolist(), nodes.tolist(), strict=True):
            self.releases.setdefault(cell, {})[thread] = node

    def publications(self) -> Array:
        """Return the nodes published at each cell, made when they are first needed."""
        if self.published is None:
            self.published = np.zeros(self.size, np.int64)
        return self.published


class Watched:
    """The shadow of an allocation or of a batch's shared memory, in cells of `grain` bytes.

    size: in bytes; columns: of a batch's shared memory the blocks, otherwise 1
    crowded: as in `Shadow`
    """

    def __init__(self, size: int, columns: int, crowded: bool = False) -> None:
        self.grain, self.columns = _GRAIN, columns
        self.shadow = Shadow((-(-size // _GRAIN) + 1) * columns, crowded)

    def written(self) -> tuple[int, int] | None:
        """Return the range of bytes, in an allocation, that something wrote; None if nothing did."""
        cells = self.shadow.written()
        return None if cells is None else (int(cells[0]) * self.grain, (int(cells[-1]) + 1) * self.grain)

    def footprint(self) -> Footprint:
        """Return the bytes, in an allocation, that were accessed."""
        found = {kind: runs(cells) * self.grain for kind, cells in self.shadow.accessed().items()}
        return {kind: some for kind, some in found.items() if len(some)}

    def refine(self, size: int) -> None:
        """Make the cells small enough for accesses of `size` bytes."""
        while self.grain > size:
            self.grain //= 2
            self.shadow = self.shadow.refined(self.columns)


def footprints(reach: Reach, watched: Mapping[int, Watched]) -> dict[int, Footprint]:
    """Return what a launch accessed of each allocation, by its index."""
    return _by_buffer(reach.reads) | {index: one.footprint() for index, one in watched.items()}


def early(reach: Reach) -> dict[int, Footprint]:
    """Return what blocks accessed before they waited for the launch before."""
    return _by_buffer(reach.early)


def _by_buffer(marks: Mapping[int, Marks]) -> dict[int, Footprint]:
    found: dict[int, Footprint] = {}
    for kind, some in marks.items():
        for index, bytes_ in some.runs().items():
            found.setdefault(index, {})[kind] = bytes_
    return found
