"""Vector clocks that travel through memory: what a release publishes and an acquire learns.

A block counts the events that order its threads; the count is the stamp of what they access. Knowledge says,
by block and by thread, up to which stamp everything happened before. It is kept as a graph: a node adds to
what others know, and is worked out when someone asks for it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nlargest

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import Index3

BLOCK, CLUSTER, GRID = 0, 1, 2  # scopes, each of which includes the ones before
NOTHING = 0  # the node that knows nothing
_KEPT = 32 << 20  # bytes of the knowledge of nodes that is kept
_LONG, _NEWEST = 16, 16  # nodes on a way that is long; of them, those whose knowledge is kept, too
_ALL = -1  # the domain of all blocks; that of one block is its number, those of clusters follow


@dataclass(frozen=True)
class Semantics:
    """The order that an access gives to others.

    strong: it is volatile, relaxed, atomic or more
    scope: BLOCK, CLUSTER or GRID
    acquire, release: it, or the fence that it is, has that effect
    """

    strong: bool
    scope: int
    acquire: bool
    release: bool


def semantics(ins: Instruction) -> Semantics:
    """Return the memory semantics of a load, store, atomic or fence."""
    return _semantics(ins.opcode)


@lru_cache(maxsize=1024)
def _semantics(opcode: tuple[str, ...]) -> Semantics:
    parts = set(opcode)
    atomic = opcode[0] in ("atom", "red")
    strong = atomic or bool(parts & {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"})
    fence = opcode[0] in ("membar", "fence")
    return Semantics(
        strong=strong,
        scope=BLOCK if "cta" in parts else CLUSTER if "cluster" in parts else GRID,
        acquire=fence or bool(parts & {"acquire", "acq_rel"}),
        release=fence or bool(parts & {"release", "acq_rel"}),
    )


def orders(ins: Instruction) -> bool:
    """Return whether an instruction can order threads without a barrier."""
    return semantics(ins).acquire or semantics(ins).release


@dataclass(frozen=True)
class _Node:
    """The knowledge of the nodes `bases`, and more.

    block, upto: everything of this block up to this stamp; -1 for none
    threads: the stamp up to which more is known of single threads, by their number in the grid
    narrow: only the blocks of this domain may learn it, since it was published for them alone
    learner: what a thread of this block has learned, and hands on to any; -1 for no block
    only: of the bases, only what they know of the blocks of this domain
    fence: what the bases know comes before a proxy fence; that is not to say that it is known
    span: as `threads`, for some that follow each other: (first, one past the last, stamp)
    """

    bases: tuple[int, ...] = ()
    block: int = -1
    upto: int = 0
    threads: tuple[tuple[int, int], ...] = ()
    narrow: int = _ALL
    learner: int = -1
    only: int = _ALL
    fence: bool = False
    span: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class _Place:
    """A node on the way from one whose knowledge is worked out.

    asks: the block of the thread that learns from it
    only: what is told of other blocks than those of all these domains does not count
    """

    node: int
    asks: int
    only: frozenset[int] = frozenset()

    def bases(self, found: _Node) -> list[_Place]:
        """Return the places of the bases of the node, which is `found`."""
        asks = found.learner if found.learner >= 0 else self.asks
        only = self.only if found.only == _ALL else self.only | {found.only}
        return [_Place(base, asks, only) for base in found.bases]


@dataclass
class View:
    """Worked-out knowledge: stamps of all threads of a block, (blocks,), and of single threads."""

    blocks: Array
    threads: dict[int, int]
    _sorted: tuple[Array, Array] | None = field(default=None, repr=False)

    def covers(self, threads: Array, blocks: Array, stamps: Array) -> Array:
        """Return whether accesses of `threads`, of `blocks`, at `stamps` happened before, elementwise."""
        known: Array = stamps <= self.blocks[blocks]
        if self.threads and not known.all():
            if self._sorted is None:
                ids = np.array(sorted(self.threads), np.int64)
                self._sorted = ids, np.array([self.threads[int(i)] for i in ids], np.int64)
            ids, upto = self._sorted
            place = np.minimum(np.searchsorted(ids, threads), len(ids) - 1)
            known = known | ((ids[place] == threads) & (stamps <= upto[place]))
        return known


def clusters_of(grid: Index3, size: Index3, units: int) -> Array | None:
    """Return the number of the cluster of each block, and the same for the other units of its threads.

    None if each block is a cluster of its own.
    """
    if max(size) == 1:
        return None
    z, y, x = (place // count for place, count in zip(np.indices(grid[::-1]), size[::-1], strict=True))
    return np.tile(np.unique((z * grid.y + y) * grid.x + x, return_inverse=True)[1].ravel(), units)


class Knowledge:
    """The nodes of a launch of `blocks` blocks with `threads` threads each.

    clusters: of each block the number of its cluster; None if each block is one of its own
    narrow: something was published for a block or cluster alone, so that not all blocks learn the same
    """

    def __init__(self, blocks: int, threads: int, clusters: Array | None = None) -> None:
        self._blocks, self._threads, self.clusters = blocks, threads, clusters
        self._nodes, self._for_some = [_Node()], [False]  # not all blocks learn the same from it
        self._made: dict[_Node, int] = {}  # the same knowledge is one node, however many threads have it
        # By `_key`; of a node taken negative, what is known from before proxy fences.
        self._views: OrderedDict[tuple[int, int], View] = OrderedDict()
        self.narrow = False

    def leaf(
        self, block: int, upto: int, threads: tuple[tuple[int, int], ...], base: int, scope: int = GRID
    ) -> int:
        """Add a node for what a thread of `block` knows of its own block beside `base`; return its number.

        scope: of those who may learn it
        """
        self.narrow |= scope != GRID
        bases = (base,) if base else ()
        return self._add(_Node(bases, block, upto, threads, self._domain(block, scope)))

    def group(self, block: int, upto: int, first: int, end: int, stamp: int) -> int:
        """Add a node for what the threads from `first` up to `end` of `block` have accessed up to a stamp."""
        return self._add(_Node(block=block, upto=upto, span=(first, end, stamp)))

    def join(self, *nodes: int) -> int:
        """Return a node that knows what all of `nodes` know."""
        wanted = tuple(sorted({n for n in nodes if n != NOTHING}))
        if len(wanted) < 2:
            return wanted[0] if wanted else NOTHING
        return self._add(_Node(wanted))

    def learned(self, node: int, block: int, scope: int) -> int:
        """Return a node for what a thread of `block` learns from `node`: of blocks in its `scope`, no others.

        What was published for its block or cluster alone it may then tell any other.
        """
        if not node or (scope == GRID and not self._for_some[node]):
            return node
        return self._add(_Node((node,), learner=block, only=self._domain(block, scope)))

    def _domain(self, block: int, scope: int) -> int:
        """Return the domain of the blocks in the `scope` of a thread of `block`."""
        if scope == CLUSTER and self.clusters is not None:
            return self._blocks + int(self.clusters[block])
        return _ALL if scope == GRID else block

    def _holds(self, domain: int, block: int) -> bool:
        """Return whether a block is one of a domain."""
        return domain in (_ALL, block) or (domain >= self._blocks and domain == self._domain(block, CLUSTER))

    def _counts(self, block: int, only: frozenset[int]) -> bool:
        """Return whether a block is one of all these domains."""
        for domain in only:  # noqa: SIM110 - very often, and a generator takes twice as long
            if domain != block and not self._holds(domain, block):
                return False
        return True

    def fence(self, node: int) -> int:
        """Return a node that says that what `node` knows comes before a proxy fence, and nothing else."""
        return self._add(_Node((node,), fence=True)) if node else NOTHING

    def fenced(self, node: int, block: int) -> View:
        """Return what a thread of `block` knows by `node` from before a proxy fence."""
        view = View(np.zeros(self._blocks, np.int64), {})
        walk = [_Place(node, block)]
        seen = set(walk)
        for place in walk:
            number, asks = self._key(place.node, place.asks)
            kept = self._views.get((-number, asks))
            if kept is not None:
                self._merge(view, kept, place.only)
                continue
            found = self._nodes[place.node]
            if not self._holds(found.narrow, place.asks):
                continue
            if found.fence:
                self._merge(view, self.view(found.bases[0], place.asks), place.only)
                continue
            new = [one for one in place.bases(found) if one not in seen]
            seen.update(new)
            walk.extend(new)
        number, asks = self._key(node, block)
        self._views[-number, asks] = view
        return view

    def _add(self, node: _Node) -> int:
        found = self._made.get(node)
        if found is None:
            found = self._made[node] = len(self._nodes)
            self._nodes.append(node)
            some = node.narrow != _ALL or any(self._for_some[base] for base in node.bases)
            self._for_some.append(some and node.learner < 0)
        return found

    def view(self, node: int, block: int) -> View:
        """Return what a thread of `block` knows by `node`."""
        key = self._key(node, block)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = self._work_out(node, block)
            while len(self._views) > 64 and len(self._views) * 8 * self._blocks > _KEPT:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(key)
        return found

    def _key(self, node: int, block: int) -> tuple[int, int]:
        """Return under which key the view of a node is kept."""
        return node, block if self._for_some[node] else -1

    def _work_out(self, node: int, block: int) -> View:
        """Gather the knowledge of a node; after a long way, let the next one meet what is known there.

        So is the way through all that atomics have published at one place, of which nobody asks for each.
        """
        view, walk = self._gather(node, block)
        if len(walk) > _LONG:
            for place in reversed(nlargest(_NEWEST, walk[1:], key=lambda place: place.node)):
                self._views[self._key(place.node, place.asks)] = self._gather(place.node, place.asks)[0]
        return view

    def _gather(self, node: int, block: int) -> tuple[View, list[_Place]]:
        """Return the knowledge of a node, from its bases that are worked out already, and the way there."""
        view = View(np.zeros(self._blocks, np.int64), {})
        walk = [_Place(node, block)]
        seen = set(walk)
        for place in walk:
            kept = self._views.get(self._key(place.node, place.asks))
            if kept is not None:
                self._merge(view, kept, place.only)
                continue
            found = self._nodes[place.node]
            if found.fence or not self._holds(found.narrow, place.asks):
                continue
            if found.block >= 0:
                if self._counts(found.block, place.only):
                    view.blocks[found.block] = max(view.blocks[found.block], found.upto)
                first, end, stamp = found.span
                for thread, upto in (*found.threads, *((thread, stamp) for thread in range(first, end))):
                    if self._counts(thread // self._threads, place.only):
                        view.threads[thread] = max(view.threads.get(thread, 0), upto)
            new = [one for one in place.bases(found) if one not in seen]
            seen.update(new)
            walk.extend(new)
        return view, walk

    def _merge(self, view: View, base: View, only: frozenset[int]) -> None:
        """Add to a view, which nobody has asked yet, what `base` knows of the blocks of all these domains."""
        threads = base.threads
        if only:
            these = [block for block in range(self._blocks) if self._counts(block, only)]
            view.blocks[these] = np.maximum(view.blocks[these], base.blocks[these])
            threads = {g: stamp for g, stamp in threads.items() if g // self._threads in these}
        else:
            np.maximum(view.blocks, base.blocks, out=view.blocks)
        if not view.threads:
            view.threads.update(threads)
            return
        for thread, stamp in threads.items():
            if stamp > view.threads.get(thread, 0):
                view.threads[thread] = stamp
