"""Global memory: what mbarriers and clusters tell of it, and the accesses that bulk copies make to it.

A thread's bulk stores, and its bulk loads, are two further threads to `watch`, with the thread's number and
one or two multiples of the grid's. Their stamp is the number of the bulk group, or of the load. A thread
knows of a group when it has waited for it (``wait_group`` without ``.read``), and of a load when it has
waited for the phase of its mbarrier; from there on that travels as all knowledge does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.hopper.order.clocks import Told
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.conflicts import Access, report
from harness.emulator.watch.findings import Finding
from harness.emulator.watch.knowledge import NOTHING
from harness.emulator.watch.shadow import READ, READS, STRONG_WRITE, WRITE, Conflict, Lanes, Watched

if TYPE_CHECKING:
    from harness.emulator.hopper.grid import Block, Cluster
    from harness.emulator.watch.races import RaceWatch

STORES, LOADS = 1, 2  # the units of a thread


@dataclass(frozen=True)
class Bytes:
    """The bytes of global memory that a copy accesses: `size` at each of the addresses that `all` returns.

    first: one of the addresses
    """

    first: int
    size: int
    all: Callable[[], Array]

    def cells(self, watched: Watched, start: int, end: int) -> Array:
        """Return their cells in what is known of the buffer from `start` to `end`, without those outside."""
        address = self.all()
        offset = address[(address >= start) & (address + self.size <= end)] - start
        cells = np.unique(offset // watched.grain)
        if len(cells) * watched.grain != len(offset) * self.size:  # a part of a cell
            watched.refine(self.size)
            cells = np.unique(offset // watched.grain)
        if self.size > watched.grain:
            cells = (cells[:, None] + np.arange(self.size // watched.grain)).ravel()
        return cells


@dataclass(frozen=True)
class Bulk:
    """An access of a bulk copy: the number and the stamp of its unit, its instruction and its kind."""

    number: int
    stamp: int
    instruction: Instruction
    kind: int


class GlobalMemory:
    """Knowledge that the threads of a cluster have of global memory, and its bulk copies' accesses there.

    Threads are numbered as in the cluster's clocks: those of its first block, of its second, ...
    """

    def __init__(self, cluster: Cluster, races: RaceWatch) -> None:
        self._cluster, self._races = cluster, races
        self._launch = cluster.launch
        grid = cluster.launch.grid
        self._every = grid.x * grid.y * grid.z * cluster.launch.threads
        self._loads: dict[int, int] = {}  # by thread, how many it has begun

    def _by_block(self, rows: Array) -> list[tuple[Block, Array]]:
        """Return (block, numbers in it) of threads."""
        threads = self._launch.threads
        ranks = rows // threads
        return [(self._cluster.blocks[r], rows[ranks == r] % threads) for r in np.unique(ranks).tolist()]

    def publish(self, rows: Array) -> Told:
        """Return what the threads `rows` have done and know."""
        graph = self._cluster.blocks[0].order.knowledge
        found = [
            self._races.each(block.order, methodcaller("release", threads, 0))
            for block, threads in self._by_block(rows)
        ]
        return Told(graph, tuple(graph.join(*nodes) for nodes in zip(*found, strict=True)))

    def learn(self, rows: Array, told: Told) -> None:
        """Let the threads `rows` know what was published."""
        if any(told.nodes):
            for block, threads in self._by_block(rows):
                for order, node in zip(self._races.orders(block.order), told.nodes, strict=True):
                    order.learn(threads, 0, node)

    def told(self, block: Block, rows: Array, columns: Array, stamps: Array) -> Array:
        """Return which accesses to shared memory threads of a block know of by what orders global memory.

        rows: of the threads, (n, 1)
        columns, stamps: of the accesses, (n, k): the threads that made them, and when in that order
        """
        threads, first = self._launch.threads, np.array([b.first for b in self._cluster.blocks])
        known = (columns >= 0) & (columns < threads * len(first))
        rows, others = np.broadcast_to(rows, columns.shape)[known], columns[known]
        numbers = first[others // threads] * threads + others % threads
        lanes = rows % threads, np.zeros(len(rows), np.int64)
        known[known] = block.order.knows(block.order.state, lanes, numbers, stamps[known].astype(np.int64))
        return known

    def fence(self, rows: Array) -> None:
        """Record a proxy fence of the threads `rows` for global memory."""
        for block, threads in self._by_block(rows):
            block.order.proxy_fence(threads, 0)

    # -- bulk copies

    def _number(self, row: int, unit: int) -> int:
        """Return the number of a unit of the thread `row` among all threads and units."""
        block = self._cluster.blocks[row // self._launch.threads]
        return unit * self._every + block.first * self._launch.threads + row % self._launch.threads

    def complete(self, row: int, unit: int, stamp: int) -> Told:
        """Return that the accesses of a unit of the thread `row` up to `stamp` are complete."""
        number, order = self._number(row, unit), self._cluster.blocks[0].order
        graph = order.knowledge
        node = graph.leaf(number // self._launch.threads, 0, ((number, stamp),), NOTHING)
        return Told(graph, (node,) * len(self._races.orders(order)))

    def load(self, row: int, ins: Instruction, source: Bytes) -> Told:
        """Record that a bulk load reads `source`; return its completion."""
        stamp = self._loads[row] = self._loads.get(row, 0) + 1
        self._access(Bulk(self._number(row, LOADS), stamp, ins, READ), row, source)
        return self.complete(row, LOADS, stamp)

    def store(self, row: int, ins: Instruction, target: Bytes, stamp: int) -> None:
        """Record that a bulk store of the group `stamp` writes `target`."""
        kind = STRONG_WRITE if "reduce" in ins.opcode else WRITE
        self._access(Bulk(self._number(row, STORES), stamp, ins, kind), row, target)

    def _access(self, bulk: Bulk, row: int, place: Bytes) -> None:
        races, owner = self._launch.races, self._launch.arena.holding(place.first, place.first + 1)
        if races is None or owner is None:
            return
        block = self._cluster.blocks[row // self._launch.threads]
        at, state = (row % self._launch.threads, 0), block.order.state

        def touch(watched: Watched) -> None:
            cells = place.cells(watched, owner.start, owner.end)
            if not len(cells):
                return
            many = np.ones(len(cells), np.int64)
            lanes = Lanes(cells, many * bulk.number, many * at[0], many * 0, many * bulk.stamp)
            made = Access(bulk.instruction, bulk.kind, lanes, watched, owner.name, 0, None)

            def knows(some: Array, threads: Array, stamps: Array) -> Array:
                return block.order.knows(state, (lanes.thread[some], lanes.column[some]), threads, stamps)

            def fenced(some: Array, threads: Array, stamps: Array) -> Array:
                known = block.order.fenced(state, at, threads, stamps)
                return known | (threads >= self._every) | ~knows(some, threads, stamps)

            shadow = watched.shadow
            clusters = races.knowledge.clusters
            for conflict in shadow.conflicts(bulk.kind, lanes, self._launch.threads, knows, clusters):
                report(self._launch, made, conflict)
            for conflict in shadow.conflicts(bulk.kind, lanes, self._launch.threads, fenced, clusters):
                if conflict.kind not in READS:
                    self._unfenced(made, conflict, block)
            shadow.add(bulk.kind, lanes, bulk.instruction.index, knows)
            if bulk.kind == STRONG_WRITE and races.unfenced is not None:
                races.unfenced.reduction(block.order, bulk.instruction, lanes, watched, owner.name)

        if races.reach is not None:
            kept = bulk.kind != READ
            races.reach.copy(bulk.kind, owner, place.all(), place.size, block.first, kept=kept)
        races.watch(owner, bulk.kind == READ, touch, block.first)

    def _unfenced(self, access: Access, conflict: Conflict, block: Block) -> None:
        """Report that an access by a thread and one by TMA are ordered, but in different proxies."""
        launch, ins = self._launch, access.instruction
        site = launch.entry.instructions[int(conflict.sites[0])]
        offset = int(access.lanes.cells[conflict.lanes[0]]) * access.watched.grain
        index = launch.block_index(block.first)

        def make() -> Finding:
            said = "reads" if access.kind == READ else "writes"
            return Finding(
                kind="missing proxy fence",
                message=f"{access.name} at offset {offset}: a thread writes it, then TMA {said} it; they are "
                "ordered, but through different proxies: fence.proxy.async is missing between them, in the "
                f"thread that writes or in the one that begins the copy: block {index}",
                sources=(site.source, ins.source),
                variable=access.name,
                offset=offset,
                block=index,
            )

        launch.findings.add("missing proxy fence", (site.source, ins.source, access.name), 1, make)
