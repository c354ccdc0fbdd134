"""The order of threads: which accesses happened before which (PTX ISA, "Memory Consistency Model").

Threads of a block are ordered by its barriers, threads of a warp also by ``bar.warp.sync``. All threads are
ordered by release and acquire: a fence and then a strong write to a place, and a strong read of it and then a
fence. Knowledge is cumulative: what a thread has learned, its block learns at the next barrier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.watch.knowledge import BLOCK, CLUSTER, GRID, NOTHING, Knowledge, Semantics
from harness.emulator.watch.patterns import WARP


@dataclass(frozen=True)
class State:
    """The knowledge of the threads of a batch at one time; the arrays are not changed any more.

    now: (C,) the stamp of what each block accesses now
    bar: (C,) the stamp up to which all its threads know each other's accesses, from its last barrier
    warp: (warps, C) the same for the threads of a warp, from their last common ``bar.warp.sync``
    lanes: (T, 32, C) the same for each thread and each lane of its warp; None where only whole warps have met
    view: (T, C) the node of `Knowledge` that a thread has learned
    pending: (T, C) the node that it learns at its next fence or barrier
    """

    now: Array
    bar: Array
    warp: Array
    lanes: Array | None
    view: Array
    pending: Array


class Order:
    """The order of the threads of a batch: its blocks begin with `first` and have `threads` threads each.

    `knowledge` is the launch's; `state` is what is known at present.
    """

    def __init__(self, knowledge: Knowledge, first: int, threads: int, blocks: int) -> None:
        self.knowledge = knowledge
        self.first, self.threads, self.blocks = first, threads, blocks
        warps = -(-threads // WARP)
        none = np.zeros((threads, blocks), np.int64)
        self.state = State(
            np.ones(blocks, np.int64),
            np.zeros(blocks, np.int64),
            np.zeros((warps, blocks), np.int64),
            None,
            none,
            none,
        )
        # At the last fence of each thread, by scope: its own stamp, its block's, and its node.
        self._own, self._upto, self._node = (np.zeros((3, threads, blocks), np.int64) for _ in range(3))
        self._mates = np.zeros((3, threads, WARP, blocks), np.int64)  # and those of its warp, see `_of_warp`
        self._scopes = (BLOCK, GRID) if knowledge.clusters is None else (BLOCK, CLUSTER, GRID)
        self._fenced = self._learned = False
        self._arrived: dict[tuple[int, int], int] = {}  # by barrier and column, the node of who arrived
        self.shared: Any = None  # what `races` knows of the batch's shared memory

    # -- what is known

    def knows(self, state: State, lanes: tuple[Array, Array], threads: Array, stamps: Array) -> Array:
        """Return whether accesses happened before what lanes do in `state`, elementwise.

        lanes: the (thread, column) of each lane
        threads, stamps: of the access: the number of its thread in the grid, and its stamp
        """
        t, c = lanes
        blocks, others = threads // self.threads, threads % self.threads
        here = blocks == c + self.first
        known: Array = here & ((others == t) | (stamps <= state.bar[c]))
        mates = here & ~known & (others // WARP == t // WARP)
        if mates.any():
            told = stamps[mates] <= state.warp[t[mates] // WARP, c[mates]]
            if state.lanes is not None:
                told |= stamps[mates] <= state.lanes[t[mates], others[mates] % WARP, c[mates]]
            known[mates] = told
        if self._learned and not known.all():
            nodes = np.where(known, NOTHING, state.view[t, c])
            for node in np.unique(nodes[nodes != NOTHING]):
                some = nodes == node
                for column in np.unique(c[some]) if self.knowledge.narrow else c[some][:1]:
                    these = some & (c == column) if self.knowledge.narrow else some
                    view = self.knowledge.view(int(node), int(column) + self.first)
                    known[these] = view.covers(threads[these], blocks[these], stamps[these])
        return known

    # -- barriers

    def barrier(self, lanes: Array | None, number: int) -> None:
        """Order the threads that pass the barrier `number` together: bool (T, C), None for all."""
        state = self.state
        met = np.ones((self.threads, self.blocks), np.bool_) if lanes is None else lanes
        some, whole = np.asarray(met.any(0)), np.asarray(met.all(0))
        self.state = replace(state, now=state.now + some, bar=np.where(whole, state.now, state.bar))
        for column in np.nonzero(some & (~whole | self._learned))[0].tolist():
            here = np.nonzero(met[:, column])[0]
            known = self._met(state, here, column) if not whole[column] else NOTHING
            arrived = self._arrived.pop((number, column), NOTHING)
            known = self.knowledge.join(known, arrived, *self._nodes(here, column))
            view, pending = self.state.view.copy(), self.state.pending.copy()
            view[here, column], pending[here, column] = known, NOTHING
            self.state = replace(self.state, view=view, pending=pending)

    def arrive(self, lanes: Array, number: int) -> None:
        """Record threads, bool (T, C), that arrive at the barrier `number` without waiting for it."""
        state = self.state
        for column in np.nonzero(lanes.any(0))[0].tolist():
            here = np.nonzero(lanes[:, column])[0]
            node = self.knowledge.join(self._met(state, here, column), *self._nodes(here, column))
            known = self._arrived.get((number, column), NOTHING)
            self._arrived[number, column] = self.knowledge.join(known, node)
        self.state = replace(state, now=state.now + lanes.any(0))

    def _met(self, state: State, threads: Array, column: int) -> int:
        """Return a node that knows what some threads of a column have accessed so far."""
        self._learned = True
        block, stamp = self.first + column, int(state.now[column])
        known = self._told(state, threads, column)
        known |= {int(t) + block * self.threads: stamp for t in threads}
        return self.knowledge.leaf(block, int(state.bar[column]), tuple(known.items()), NOTHING)

    def _told(self, state: State, threads: Array, column: int) -> dict[int, int]:
        """Return what threads of a column know by barriers of their warps: stamps, by number in the grid."""
        first, warps = (self.first + column) * self.threads, threads // WARP
        if state.lanes is None and (state.warp[warps, column] <= state.bar[column]).all():
            return {}
        known: dict[int, int] = {}
        for warp in np.unique(warps).tolist():
            stamps = self._of_warp(state, threads[warps == warp], column).max(0)
            for mate in range(warp * WARP, min(warp * WARP + WARP, self.threads)):
                known[first + mate] = int(stamps[mate % WARP])
        return known

    def _of_warp(self, state: State, threads: Array, columns: Array | int) -> Array:
        """Return up to which stamps threads know the lanes of their warps by its barriers: (threads, 32)."""
        known = np.repeat(state.warp[threads // WARP, columns][:, None], WARP, 1)
        return known if state.lanes is None else np.maximum(known, state.lanes[threads, :, columns])

    def _nodes(self, threads: Array, column: int) -> list[int]:
        """Return the nodes that some threads of a column know or have pending."""
        found = [a[threads, column] for a in (self.state.view, self.state.pending)]
        return [int(n) for n in np.unique(np.concatenate(found))]

    def warp_barrier(self, row: int, active: Array) -> None:
        """Order the lanes that pass a ``bar.warp.sync`` together.

        row: the first thread of the group
        active: bool (warps, 32, C), by warp of the group; lanes that no block has are active
        """
        state = self.state
        first = row // WARP
        rows = slice(first, first + len(active))
        some, whole = np.asarray(active.any(1)), np.asarray(active.all(1))
        warp = state.warp.copy()
        warp[rows] = np.where(whole, state.now, warp[rows])
        lanes = state.lanes
        if (some & ~whole).any():
            lanes = self._partial(state, row, active & ~whole[:, None])
        self.state = replace(state, now=state.now + some.any(0), warp=warp, lanes=lanes)
        if not self._learned:
            return
        for w, column in np.argwhere(some):
            here = np.nonzero(active[w, :, column])[0] + (first + w) * WARP
            here = here[here < self.threads]
            nodes = self._nodes(here, column)
            if len(nodes) > 1:
                view = self.state.view.copy()
                view[here, column] = self.knowledge.join(*(int(n) for n in np.unique(view[here, column])))
                self.state = replace(self.state, view=view)

    def _partial(self, state: State, row: int, active: Array) -> Array:
        """Return `State.lanes` after the lanes `active`, bool (warps, 32, C), of some warps have met."""
        whole = -(-self.threads // WARP) * WARP
        table = np.zeros((whole, WARP, self.blocks), np.int64) if state.lanes is None else state.lanes.copy()
        mine = table[row : row + active.shape[0] * WARP].reshape(*active.shape[:2], WARP, self.blocks)
        joined = np.where(active[:, :, None], mine, 0).max(1)
        joined = np.where(active, np.maximum(joined, state.now), joined)
        mine[:] = np.where(active[:, :, None], np.maximum(mine, joined[:, None]), mine)
        found: Array = table
        return found

    # -- mbarriers, barriers of clusters, and the async proxy

    def release(self, threads: Array, column: int) -> int:
        """Return a node that knows what some threads of a column have done and know."""
        state = self.state
        views = [int(n) for n in np.unique(state.view[threads, column])]
        first, end = int(threads[0]), int(threads[-1]) + 1
        if end - first == len(threads):
            block, base = self.first + column, (self.first + column) * self.threads
            stamp, upto = int(state.now[column]), int(state.bar[column])
            mine = self.knowledge.group(block, upto, base + first, base + end, stamp)
            told = self._told(state, threads, column)
            mine = self.knowledge.leaf(block, upto, tuple(told.items()), mine) if told else mine
        else:
            mine = self._met(state, threads, column)
        node = self.knowledge.join(mine, *views)
        now = state.now.copy()
        now[column] += 1
        self.state = replace(self.state, now=now)
        return node

    def learn(self, threads: Array, column: int, node: int) -> None:
        """Let some threads of a column know `node`."""
        if (self.state.view[threads, column] != node).any():
            told = np.full(len(threads), node, np.int64)
            self._acquire((threads, np.full(len(threads), column)), told, GRID)

    def proxy_fence(self, threads: Array, column: int) -> None:
        """Record a proxy fence for global memory in some threads of a column."""
        self.learn(threads, column, self.knowledge.fence(self.release(threads, column)))

    def fenced(self, state: State, at: tuple[int, int], threads: Array, stamps: Array) -> Array:
        """Return which accesses a thread, (thread, column), knows from before a proxy fence; see `knows`."""
        view = self.knowledge.fenced(int(state.view[at]), at[1] + self.first)
        return view.covers(threads, threads // self.threads, stamps)

    # -- release and acquire

    def orders(self, meaning: Semantics, published: bool) -> bool:
        """Return whether a write can publish, or a read learn, anything; `published`: something is."""
        return published or self._fenced or meaning.release

    def fence(self, lanes: tuple[Array, Array], scope: int) -> None:
        """Record a fence of `scope` in the lanes, (thread, column) of each."""
        t, c = lanes
        waiting = self.state.pending[t, c]
        if waiting.any():
            self._acquire(lanes, waiting, scope)
            if scope == GRID:
                pending = self.state.pending.copy()
                pending[t, c] = NOTHING
                self.state = replace(self.state, pending=pending)
        t, c = lanes
        for which in [
            s for s in self._scopes if s <= scope
        ]:  # what the lanes know now, their strong writes publish from here on
            self._own[which, t, c] = self.state.now[c]
            self._upto[which, t, c] = self.state.bar[c]
            self._mates[which, t, :, c] = self._of_warp(self.state, t, c)
            self._node[which, t, c] = self.state.view[t, c]
        self._fenced = True
        self._advance(c)

    def _advance(self, columns: Array) -> None:
        """Give what blocks do from here on a later stamp."""
        self.state = replace(
            self.state, now=self.state.now + (np.bincount(columns, minlength=self.blocks) > 0)
        )

    def read(self, lanes: tuple[Array, Array], nodes: Array, meaning: Semantics) -> None:
        """Record that lanes read places at which `nodes` were published; 0 for none."""
        t, c = lanes
        told = nodes != NOTHING
        if not told.any():
            return
        lanes, nodes = (t[told], c[told]), nodes[told]
        if meaning.acquire:
            self._acquire(lanes, nodes, meaning.scope)
            return
        pending = self.state.pending.copy()
        pending[lanes] = self._joined(pending[lanes], lanes[1], nodes, meaning.scope)
        self._learned = True
        self.state = replace(self.state, pending=pending)

    def _acquire(self, lanes: tuple[Array, Array], nodes: Array, scope: int) -> None:
        """Let lanes know `nodes`; at the scope of a block or cluster only what they say of it."""
        view = self.state.view.copy()
        view[lanes] = self._joined(view[lanes], lanes[1], nodes, scope)
        self._learned = True
        self.state = replace(self.state, view=view)

    def _joined(self, known: Array, columns: Array, nodes: Array, scope: int) -> Array:
        """Return the nodes that join what lanes have `known` with `nodes`, elementwise."""
        pairs = known << 32 | nodes
        if scope != GRID or self.knowledge.narrow:
            pairs = pairs * self.blocks + columns
        _, first, which = np.unique(pairs, return_index=True, return_inverse=True)
        joined = np.zeros(len(first), np.int64)
        for i, lane in enumerate(first.tolist()):
            wanted = self.knowledge.learned(int(nodes[lane]), self.first + int(columns[lane]), scope)
            joined[i] = self.knowledge.join(int(known[lane]), wanted)
        found: Array = joined[which.reshape(-1)]
        return found

    def published(self, lanes: tuple[Array, Array], meaning: Semantics) -> Array:
        """Return the node that each lane publishes with a strong write; 0 for none.

        A release publishes all that the thread knows. After a fence, a write publishes what it knew then, and
        what it has learned since, at barriers, of threads that had fenced it themselves.
        """
        t, c = lanes
        found = np.zeros(len(t), np.int64)
        if meaning.release:
            found = np.array([self._released(*lane, meaning.scope) for lane in zip(*lanes, strict=True)])
            self._advance(c)
        if not self._fenced:
            return found
        newest = np.zeros(len(t), np.int64)
        for scope in [s for s in self._scopes[::-1] if s <= meaning.scope]:
            # A later fence of a narrower scope adds to one of a wider scope.
            for i in np.nonzero(self._own[scope, t, c] > newest)[0]:
                found[i] = self.knowledge.join(int(found[i]), self._leaf(int(t[i]), int(c[i]), scope))
            newest = self._own[scope, t, c]
        return found

    def _released(self, t: int, c: int, scope: int) -> int:
        """Return the node that thread `t` of column `c` publishes with a release."""
        state, block = self.state, self.first + int(c)
        known = self._told(state, np.array([t]), int(c)) | {int(t) + block * self.threads: int(state.now[c])}
        upto, view = int(state.bar[c]), int(state.view[t, c])
        return self.knowledge.leaf(block, upto, tuple(known.items()), view, scope)

    def _leaf(self, t: int, c: int, scope: int) -> int:
        """Return the node that thread `t` of column `c` publishes after a fence."""
        state, base = self.state, self.threads * (self.first + c)
        own, upto = int(self._own[scope, t, c]), int(self._upto[scope, t, c])
        fenced = np.minimum(self._own[scope, :, c], state.bar[c])  # by their own threads, before the barrier
        told = max(upto, int(fenced.min()))
        threads = {int(o) + base: int(fenced[o]) for o in np.nonzero(fenced > told)[0]}
        threads[t + base] = own
        first = t // WARP * WARP
        fenced = self._own[scope, first : first + WARP, c]
        met = np.minimum(self._of_warp(state, np.array([t]), c)[0, : len(fenced)], fenced)
        met = np.maximum(met, self._mates[scope, t, : len(fenced), c])
        for o, stamp in enumerate(met.tolist(), first + base):
            if stamp > threads.get(o, told):
                threads[o] = stamp
        node = int(self._node[scope, t, c])
        return self.knowledge.leaf(self.first + c, told, tuple(threads.items()), node, scope)
