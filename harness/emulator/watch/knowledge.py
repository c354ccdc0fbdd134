"""Vector clocks that travel through memory: what a release publishes and an acquire learns.

A block counts the events that order its threads; the count is the stamp of what they access. Knowledge says,
by block and by thread, up to which stamp everything happened before. It is kept as a graph: a node adds to
what others know, and is worked out when someone asks for it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction

BLOCK, GRID = 0, 1  # scopes
NOTHING = 0  # the node that knows nothing
_KEPT = 32 << 20  # bytes of the knowledge of nodes that is kept


@dataclass(frozen=True)
class Semantics:
    """The order that an access gives to others.

    strong: it is volatile, relaxed, atomic or more
    scope: BLOCK or GRID
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
        scope=BLOCK if "cta" in parts else GRID,
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
    narrow: only this block may learn it, since it was published for threads of a block alone; -1 for all
    only: of the bases, only what they know of this block; -1 for all
    fence: what the bases know comes before a proxy fence; that is not to say that it is known
    span: as `threads`, for some that follow each other: (first, one past the last, stamp)
    """

    bases: tuple[int, ...] = ()
    block: int = -1
    upto: int = 0
    threads: tuple[tuple[int, int], ...] = ()
    narrow: int = -1
    only: int = -1
    fence: bool = False
    span: tuple[int, int, int] | None = None


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


class Knowledge:
    """The nodes of a launch of `blocks` blocks with `threads` threads each.

    narrow: something was published for threads of one block alone, so that not all blocks learn the same
    """

    def __init__(self, blocks: int, threads: int) -> None:
        self._blocks, self._threads = blocks, threads
        self._nodes = [_Node()]
        self._made: dict[_Node, int] = {}  # the same knowledge is one node, however many threads have it
        self._views: OrderedDict[tuple[int, int], View] = OrderedDict()
        self.narrow = False

    def leaf(
        self, block: int, upto: int, threads: tuple[tuple[int, int], ...], base: int, narrow: bool = False
    ) -> int:
        """Add a node for what a thread of `block` knows of its own block beside `base`; return its number."""
        self.narrow |= narrow
        bases = (base,) if base else ()
        return self._add(_Node(bases, block, upto, threads, block if narrow else -1))

    def group(self, block: int, upto: int, first: int, end: int, stamp: int) -> int:
        """Add a node for what the threads from `first` up to `end` of `block` have accessed up to a stamp."""
        return self._add(_Node(block=block, upto=upto, span=(first, end, stamp)))

    def join(self, *nodes: int) -> int:
        """Return a node that knows what all of `nodes` know."""
        wanted = tuple(sorted({n for n in nodes if n != NOTHING}))
        if len(wanted) < 2:
            return wanted[0] if wanted else NOTHING
        return self._add(_Node(wanted))

    def within(self, node: int, block: int) -> int:
        """Return a node that knows of `block` what `node` knows, and nothing else."""
        return self._add(_Node((node,), only=block)) if node else NOTHING

    def fence(self, node: int) -> int:
        """Return a node that says that what `node` knows comes before a proxy fence, and nothing else."""
        return self._add(_Node((node,), fence=True)) if node else NOTHING

    def fenced(self, node: int, block: int) -> View:
        """Return what a thread of `block` knows by `node` from before a proxy fence."""
        view = View(np.zeros(self._blocks, np.int64), {})
        seen, open_ = {node}, [node]
        while open_:
            found = self._nodes[open_.pop()]
            if found.narrow not in (-1, block):
                continue
            if found.fence:
                base = self.view(found.bases[0], block)
                _merge(view, base.blocks, base.threads)
                continue
            if found.only >= 0:
                self._merge_one(view, self.fenced(found.bases[0], block), found.only)
                continue
            new = [n for n in found.bases if n not in seen]
            seen.update(new)
            open_.extend(new)
        return view

    def _add(self, node: _Node) -> int:
        found = self._made.get(node)
        if found is None:
            found = self._made[node] = len(self._nodes)
            self._nodes.append(node)
        return found

    def view(self, node: int, block: int) -> View:
        """Return what a thread of `block` knows by `node`."""
        key = (node, block if self.narrow else -1)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = self._work_out(node, block)
            while len(self._views) > 64 and len(self._views) * 8 * self._blocks > _KEPT:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(key)
        return found

    def _work_out(self, node: int, block: int) -> View:
        """Gather the knowledge of a node from its bases, the nearest ones that are worked out already."""
        view = View(np.zeros(self._blocks, np.int64), {})
        seen, open_ = {node}, [node]
        while open_:
            here = open_.pop()
            kept = self._views.get((here, block if self.narrow else -1))
            if kept is not None:
                _merge(view, kept.blocks, kept.threads)
                continue
            found = self._nodes[here]
            if found.fence or found.narrow not in (-1, block):
                continue
            if found.only >= 0:
                self._merge_one(view, self.view(found.bases[0], block), found.only)
                continue
            if found.block >= 0:
                view.blocks[found.block] = max(view.blocks[found.block], found.upto)
                for thread, stamp in found.threads:
                    view.threads[thread] = max(view.threads.get(thread, 0), stamp)
                if found.span is not None:
                    first, end, stamp = found.span
                    for thread in range(first, end):
                        view.threads[thread] = max(view.threads.get(thread, 0), stamp)
            new = [n for n in found.bases if n not in seen]
            seen.update(new)
            open_.extend(new)
        return view

    def _merge_one(self, view: View, base: View, block: int) -> None:
        """Add to a view what `base` knows of one block."""
        mine = {g: s for g, s in base.threads.items() if g // self._threads == block}
        alone = np.zeros_like(base.blocks)
        alone[block] = base.blocks[block]
        _merge(view, alone, mine)


def _merge(view: View, blocks: Array, threads: dict[int, int]) -> None:
    """Add knowledge to a view that nobody has asked yet."""
    np.maximum(view.blocks, blocks, out=view.blocks)
    if not view.threads:
        view.threads.update(threads)
        return
    for thread, stamp in threads.items():
        if stamp > view.threads.get(thread, 0):
            view.threads[thread] = stamp
