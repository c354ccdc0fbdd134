"""Races: two threads access the same bytes, at least one writes, and nothing orders the two.

Global memory is watched cell by cell (`shadow`), between blocks and within them. Shared memory is watched by
`hazards`, which is quicker, and knows no order but that of the whole block's barriers. Where threads are
ordered by other means, too, whatever is found so may be none: the launch starts over (`Rewatch`) with shared
memory watched cell by cell as well. Atomics and volatile accesses do not race with one another, only with
plain ones.

Only buffers that the kernel stores to can race. Reads of a buffer are kept until a store shows that it is one
of those, or until a batch of blocks that read it has ended. If a later batch stores to it, the launch starts
over with that buffer watched from the beginning (`Rewatch`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from harness.emulator.blocks.delays.unfenced import Unfenced, together
from harness.emulator.group import Group, spread
from harness.emulator.memory import Allocation
from harness.emulator.numbers.values import Array, Integer, Mask, mask_of
from harness.emulator.numbers.values import Lanes as Where
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.conflicts import Access, Values, never, report
from harness.emulator.watch.findings import Rewatch
from harness.emulator.watch.knowledge import (
    BLOCK,
    CLUSTER,
    NOTHING,
    Knowledge,
    Semantics,
    clusters_of,
    semantics,
)
from harness.emulator.watch.order import Order, State
from harness.emulator.watch.shadow import (
    BLOCK_WRITE,
    CLUSTER_WRITE,
    OUTSIDE,
    WRITE,
    Lanes,
    Shadow,
    Watched,
    kind_of,
)
from harness.emulator.watch.shadow import READ as PLAIN
from harness.emulator.watch.touches import ATOMIC, READ, Reach

if TYPE_CHECKING:
    from harness.emulator.machine import Launch

T = TypeVar("T")
UNITS = 3  # a thread, its bulk stores and its bulk loads have clocks of their own


class RaceWatch:
    """Watches a launch for races.

    watched: indices of the allocations that are known, from an earlier run, to be stored to
    fine: orders other than barriers of the whole block are known
    shared: shared memory is watched, too, cell by cell, where `hazards` or `hopper` does not
    """

    def __init__(self, launch: Launch, watched: set[int], fine: bool, shared: bool) -> None:
        self._launch = launch
        grid = launch.grid
        units = UNITS if launch.asynchronous else 1
        clusters = clusters_of(grid, launch.cluster, units)
        self.knowledge = Knowledge(grid.x * grid.y * grid.z * units, launch.threads, clusters)
        self.fine = fine
        self.shared = shared and not launch.asynchronous  # `hopper` watches shared memory itself
        self._coarse = not (shared or launch.asynchronous)  # `hazards` watches it
        self.watched: dict[int, Watched] = {}
        self._known = set(watched)
        self._reads: dict[int, list[Callable[[Watched], None]]] = defaultdict(list)
        self._readers: dict[int, set[int]] = defaultdict(set)  # the first blocks of their batches
        self._forgotten: set[int] = set()  # the allocations whose reads are not kept
        self.reach = Reach(launch.memo, depends=launch.code.depends) if launch.footprints else None
        self._meanings: dict[int, Semantics] = {}
        self._lanes: dict[tuple[int, int, int, int], tuple[Array, Array, Array]] = {}
        self.unfenced: Unfenced | None = None
        if launch.fences:
            self._known.update(range(len(launch.arena.allocations)))
            self.unfenced = Unfenced(launch, self.knowledge, self._synchronise)

    def start(self, first: int, blocks: int) -> Order:
        """Return the order of the threads of a batch that begins."""
        order = Order(self.knowledge, first, self._launch.threads, blocks)
        if self.unfenced is not None:
            self.unfenced.start(order)
        return order

    def orders(self, order: Order) -> tuple[Order, ...]:
        """Return the order of a batch, and those that `unfenced` supposes."""
        return (order,) if self.unfenced is None else (order, *self.unfenced.supposed(order))

    def each(self, order: Order, happens: Callable[[Order], T]) -> list[T]:
        """Let something happen that orders threads; return what it returns, in each of the orders."""
        orders = self.orders(order)
        found = [happens(one) for one in orders]
        if len(orders) > 1:
            together(*orders)
        return found

    def end_batch(self, first: int) -> None:
        """End the batch that begins with block `first`; reads of what it only read are not kept any more."""
        for index in [index for index, batches in self._readers.items() if first in batches]:
            self._forgotten.add(index)
            del self._reads[index], self._readers[index]

    def barrier(self, order: Order, lanes: Array | None, number: int) -> None:
        """Order the threads that pass the barrier `number`: bool (threads, blocks), None for all.

        Raises Rewatch if they are only a part of their block, which `hazards` does not know.
        """
        if lanes is not None and self._coarse and (lanes.any(0) & ~lanes.all(0)).any():
            raise Rewatch
        self.each(order, lambda one: one.barrier(lanes, number))

    def arrive(self, group: Group, lanes: Array, number: int) -> None:
        """Record arrivals (``bar.arrive``) of the lanes, bool (T, C), at the barrier `number`.

        Raises Rewatch, since `hazards` does not know them.
        """
        if self._coarse:
            raise Rewatch
        order = group.batch.order
        whole = np.zeros((order.threads, order.blocks), np.bool_)
        whole[group.row : group.row + group.shape[0]] = lanes
        self.each(order, lambda one: one.arrive(whole, number))

    def warp_barrier(self, group: Group, active: Array) -> None:
        """Order lanes that pass a ``bar.warp.sync``, bool (warps, 32, C); those that no block has are active.

        Raises Rewatch unless all warps of the group pass it as a whole, which is all that `hazards` knows.
        """
        if self._coarse and not active.all():
            raise Rewatch
        self.each(group.batch.order, lambda one: one.warp_barrier(group.row, active))

    def fence(self, group: Group, ins: Instruction, lanes: Array) -> None:
        """Record a fence in the lanes, bool (T, C)."""
        thread, column = np.nonzero(lanes)
        places, scope = (thread + group.row, column), self._meaning(ins).scope
        self.each(group.batch.order, lambda one: one.fence(places, scope))

    # -- accesses

    def record(
        self,
        group: Group,
        ins: Instruction,
        kind: str,
        owner: Allocation | None,
        address: Integer,
        where: Where,
        size: int,
        values: Values | None = None,
    ) -> None:
        """Record an access of `size` bytes per lane at a device address, in the lanes `where`.

        owner: the allocation that holds all of them, None if they lie in several
        values: returns of lanes, by index in the order of blocks, the bytes before a store and after it

        Raises Rewatch for a store to a buffer whose reads were not kept.
        """
        if owner is None:
            lanes = spread(address, group.shape)
            for one in self._launch.arena.among(lanes):
                mine = group.algebra.both(where, mask_of((lanes >= one.start) & (lanes < one.end)))
                if mine is not False:
                    self.record(group, ins, kind, one, address, mine, size)
            return
        if self.reach is not None:
            outside = OUTSIDE[kind_of(self._meaning(ins), kind != READ)]
            kept = kind != READ or owner.index in self._known
            self.reach.add(group, outside, owner, address, where, size, kept=kept)
        state = group.batch.order.state

        def touch(watched: Watched) -> None:
            self._touch(
                watched, group, ins, kind, address, where, size, owner.start, owner.name, state, values
            )

        self.watch(owner, kind == READ, touch, group.batch.first)

    def watch(self, owner: Allocation, reads: bool, touch: Callable[[Watched], None], first: int) -> None:
        """Pass what is known of a buffer to `touch`; for a read not before it matters, if ever.

        first: the first block of the batch that accesses it

        Raises Rewatch for a store to a buffer whose reads were not kept.
        """
        if owner.index not in self._known:
            if reads:
                if owner.index not in self._forgotten:
                    self._reads[owner.index].append(touch)
                    self._readers[owner.index].add(first)
                return
            if owner.index in self._forgotten:
                raise Rewatch(owner.index)
            self._known.add(owner.index)
            self._readers.pop(owner.index, None)
        watched = self.watched.get(owner.index)
        if watched is None:
            watched = self.watched[owner.index] = Watched(owner.end - owner.start, 1, self.fine)
            for earlier in self._reads.pop(owner.index, ()):
                earlier(watched)
        touch(watched)

    def stored(self) -> dict[int, tuple[int, int]]:
        """Return the range of addresses that the kernel stored to, of each allocation by its start."""
        starts = [one.start for one in self._launch.arena.allocations]
        written = {starts[index]: watched.written() for index, watched in self.watched.items()}
        return {start: (start + ends[0], start + ends[1]) for start, ends in written.items() if ends}

    def record_shared(
        self,
        group: Group,
        ins: Instruction,
        kind: str,
        address: Integer,
        where: Where,
        size: int,
        values: Values | None = None,
    ) -> None:
        """Record an access to shared memory; the arguments are those of `record`."""
        order = group.batch.order
        if order.shared is None:
            order.shared = Watched(self._launch.shared_size, group.shape[1], self.fine)
        self._touch(order.shared, group, ins, kind, address, where, size, 0, "", order.state, values)

    def _touch(
        self,
        watched: Watched,
        group: Group,
        ins: Instruction,
        kind: str,
        address: Integer,
        where: Where,
        size: int,
        start: int,
        name: str,
        state: State,
        values: Values | None = None,
    ) -> None:
        """Report the conflicts of an access, and keep it for later ones."""
        order = group.batch.order
        meaning = self._meaning(ins)
        watched.refine(size)
        thread, column, grid = self._numbers(group)
        cells = (
            np.broadcast_to(spread(address, group.shape), group.shape).T.ravel() - start
        ) // watched.grain
        if watched.columns > 1:
            cells = cells * watched.columns + column
        if isinstance(where, Mask):
            some = np.broadcast_to(where.array, group.shape).T.ravel()
            thread, column, grid, cells = thread[some], column[some], grid[some], cells[some]
        if kind == ATOMIC and self._launch.schedule.backward:  # the last one executed comes last
            thread, column, grid, cells = thread[::-1], column[::-1], grid[::-1], cells[::-1]
        whole = Lanes(cells, grid, thread, column, state.now[column])
        access = kind_of(meaning, kind != READ)
        if not name and ins.index in self._launch.code.volatile:  # data, to be ordered as if read plainly
            access = PLAIN
        words, seen = range(max(1, size // watched.grain)), ins.index in self._launch.code.looking
        threads, clusters = self._launch.threads, self.knowledge.clusters

        def knows(lanes: Array, others: Array, stamps: Array) -> Array:
            return order.knows(state, (thread[lanes], column[lanes]), others, stamps)

        for word in words:
            lanes = whole.moved(word * watched.columns)
            made = Access(ins, access, lanes, watched, name, word, values)
            ordered = never if "nc" in ins.opcode else knows
            for conflict in watched.shadow.conflicts(access, lanes, threads, ordered, clusters):
                report(self._launch, made, conflict)
            watched.shadow.add(access, lanes, ins.index, knows, atomic=seen)
            inner = None
            if access in (WRITE, BLOCK_WRITE, CLUSTER_WRITE):
                inner = watched.shadow.among(access, lanes, threads, clusters)
            if inner is not None:
                report(self._launch, made, inner, among=True)
        if order.orders(meaning, watched.shadow.published is not None):
            self._synchronise(watched.shadow, order, ins, kind, meaning, whole)
        if self.unfenced is not None and name:
            self.unfenced.touch(order, ins, kind, meaning, whole, words, watched, name)

    def _meaning(self, ins: Instruction) -> Semantics:
        """Return the memory semantics of an instruction; a block without a cluster is one of its own."""
        found = self._meanings.get(ins.index)
        if found is None:
            found = semantics(ins)
            if found.scope == CLUSTER and self.knowledge.clusters is None:
                found = replace(found, scope=BLOCK)
            self._meanings[ins.index] = found
        return found

    def _numbers(self, group: Group) -> tuple[Array, Array, Array]:
        """Return the thread, the column and the number in the grid of each lane, block by block."""
        key = (group.row, *group.shape, group.batch.first)
        found = self._lanes.get(key)
        if found is None:
            threads, blocks = group.shape
            thread = np.tile(np.arange(threads) + group.row, blocks)
            column = np.repeat(np.arange(blocks), threads)
            grid = (column + group.batch.first) * self._launch.threads + thread
            self._lanes.clear()
            found = self._lanes[key] = (thread, column, grid)
        return found

    def _synchronise(
        self, shadow: Shadow, order: Order, ins: Instruction, kind: str, meaning: Semantics, lanes: Lanes
    ) -> None:
        """Publish with writes what lanes know, and let strong reads learn what was published."""
        at, published = (lanes.thread, lanes.column), shadow.publications()
        if kind == READ:
            if meaning.strong:
                order.read(at, published[lanes.cells], meaning)
            return
        mine = order.published(at, meaning) if meaning.strong else np.zeros(len(lanes.cells), np.int64)
        if meaning.release:
            shadow.released(lanes, mine)
        elif meaning.strong and shadow.releases:  # a later write to the place publishes that as well
            for i, (cell, number) in enumerate(zip(lanes.cells.tolist(), lanes.grid.tolist(), strict=True)):
                if cell in shadow.releases:
                    mine[i] = order.knowledge.join(int(mine[i]), shadow.releases[cell].get(number, NOTHING))
        if kind != ATOMIC:
            if self._launch.delays is not None:  # others may still read what was there before
                known = zip(published[lanes.cells].tolist(), mine.tolist(), strict=True)
                mine = np.array([order.knowledge.join(*pair) for pair in known], np.int64)
            published[lanes.cells] = mine
            return
        before = published[lanes.cells]
        if not (mine.any() or before.any()):
            return
        turn = np.lexsort((lanes.column, lanes.thread))  # the order in which atomics are executed
        if self._launch.schedule.backward:
            turn = turn[::-1]
        for i in turn:
            cell = lanes.cells[i]
            before[i] = published[cell]
            published[cell] = order.knowledge.join(int(before[i]), int(mine[i]))
        if ins.opcode[0] == "atom":
            order.read(at, before, meaning)
