"""Strong reads of what other blocks have written that only what is missing would order: a fence, a barrier.

Two strong accesses are no race, ordered or not. But who has seen a ticket or a flag, and then reads data,
relies on the data being there, and volatile and relaxed accesses to two places may be seen in any order. So
the order of threads is kept three times: as it is, as if each strong write came after a fence, and as if a
fence followed each strong read, too. A read that is ordered with the latest write to its place, of another
block, or a write with an earlier read, only by

- the second order lacks the fence of the first thread;
- the third one lacks that of the second thread;
- none of them, while the second thread knows what another one of the first one's block has done since, or
  another thread of its own block knows of the first access, lacks a barrier of that block; where the first
  access is a reduction by a bulk copy, the wait for it.

Nothing is said of

- a read whose value decides a branch or a mask: it may wait for the data themselves, as in a look-back whose
  flag and value are one word;
- a buffer of which some place is read while nothing at all orders the read with a write: the kernel takes
  what it finds there, old or new;
- atomics that return what they found, if they count or join a list, and do not put a constant there or add 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.memory import WORKSPACE
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import Finding
from harness.emulator.watch.knowledge import GRID, NOTHING, Knowledge, Semantics
from harness.emulator.watch.order import Order
from harness.emulator.watch.shadow import STRONG_READ, STRONG_WRITE, Lanes, Shadow, Watched
from harness.emulator.watch.touches import ATOMIC, READ

if TYPE_CHECKING:
    from harness.emulator.machine import Launch

FENCE, BARRIER, WAIT = KINDS = "missing fence", "missing barrier", "missing wait"
_FIRST, _SECOND, _FIRSTS, _SECONDS, _COPY = range(5)  # whose fence is missing, or whose block's barrier
_WHAT = {
    _FIRST: "a __threadfence() behind the first line, before that later write, would",
    _SECOND: "a __threadfence() before the second line, behind the read of that later write, would",
    _FIRSTS: "another thread wrote that: a __syncthreads() between the first line and that later write, and "
    "a __threadfence() in the thread that writes it, would",
    _SECONDS: "another thread saw that: a __syncthreads() between the read of that later write and the "
    "second line would",
    _COPY: "nothing waits for the copy before that: cp.async.bulk.wait_group, without .read, in the thread "
    "that began it, and a __threadfence() behind it, would",
}
Synchronise = Callable[[Shadow, Order, Instruction, str, Semantics, Lanes], None]


@dataclass
class _Seen:
    """Accesses that lack something, of one pair of lines: the first two, and how many there are."""

    offset: int
    first: int
    second: int
    times: int = 0


class Unfenced:
    """Looks for such reads in a launch; `synchronise` is what `races` does at each access."""

    def __init__(self, launch: Launch, knowledge: Knowledge, synchronise: Synchronise) -> None:
        self._launch, self._synchronise, self._knowledge = launch, synchronise, knowledge
        # By the first block of a batch, its order with the fences of writers, and with all.
        self._orders: dict[int, tuple[Order, Order]] = {}
        self._shadows: dict[str, tuple[Shadow, Shadow]] = {}  # by buffer, what is published in each of these
        self._grains: dict[str, int] = {}
        self._loose: set[str] = set()  # the buffers of which a read is ordered with a write by nothing
        self._found: dict[tuple[str, int, int, int, int], _Seen] = {}
        self._relying = launch.code.relying
        self._every = launch.grid.x * launch.grid.y * launch.grid.z * launch.threads
        self._begun: dict[tuple[int, int], int] = {}  # by unit and its stamp, that of its thread

    def start(self, order: Order) -> None:
        """Begin a batch of blocks, of which `order` is the order as it is."""
        first, fenced = (Order(self._knowledge, order.first, order.threads, order.blocks) for _ in range(2))
        self._orders[order.first] = first, fenced

    def supposed(self, order: Order) -> tuple[Order, Order]:
        """Return the other orders of a batch."""
        return self._orders[order.first]

    def touch(
        self,
        order: Order,
        ins: Instruction,
        kind: str,
        meaning: Semantics,
        lanes: Lanes,
        words: Sequence[int],
        watched: Watched,
        name: str,
    ) -> None:
        """Look at an access to global memory, of `words` cells each, and keep it for later ones."""
        supposed = self._orders[order.first]
        together(order, *supposed)
        lanes = replace(lanes, stamps=order.state.now[lanes.column])
        shadows = self._shadow(name, watched)
        if meaning.strong and meaning.scope == GRID:
            for word in words:
                if ins.index in self._relying:
                    self._compare(shadows[1], order, ins, name, lanes.moved(word), STRONG_READ)
                if kind != READ:
                    self._compare(shadows[1], order, ins, name, lanes.moved(word), STRONG_WRITE)
            if kind != READ:
                meaning = replace(meaning, release=True)
        for other, shadow, acquires in zip(supposed, shadows, (False, True), strict=True):
            if acquires and kind in (READ, ATOMIC) and meaning.strong:
                meaning = replace(meaning, acquire=True)
            if other.orders(meaning, shadow.published is not None):
                self._synchronise(shadow, other, ins, kind, meaning, lanes)
        together(order, *supposed)

    def reduction(self, order: Order, ins: Instruction, lanes: Lanes, watched: Watched, name: str) -> None:
        """Keep what a bulk copy adds to global memory; the lanes are those of its unit."""
        fenced = self._orders[order.first][1]
        self._begun[int(lanes.grid[0]), int(lanes.stamps[0])] = int(order.state.now[lanes.column[0]])

        def knows(some: Array, threads: Array, stamps: Array) -> Array:
            return fenced.knows(fenced.state, (lanes.thread[some], lanes.column[some]), threads, stamps)

        self._shadow(name, watched)[1].add(STRONG_WRITE, lanes, ins.index, knows)

    def report(self) -> None:
        """Add what was found."""
        for key, seen in self._found.items():
            if key[0] not in self._loose and key[0] != WORKSPACE:
                self._add(key, seen)

    def _shadow(self, name: str, watched: Watched) -> tuple[Shadow, Shadow]:
        """Return what is known of a buffer, in the cells of `watched`."""
        shadows = self._shadows.get(name)
        if shadows is None:
            shadows = Shadow(watched.shadow.size), Shadow(watched.shadow.size, crowded=True)
            self._grains[name] = watched.grain
        while self._grains[name] > watched.grain:
            shadows = shadows[0].refined(1), shadows[1].refined(1)
            self._grains[name] //= 2
        self._shadows[name] = shadows
        return shadows

    def _compare(
        self, shadow: Shadow, order: Order, ins: Instruction, name: str, lanes: Lanes, access: int
    ) -> None:
        """Compare a strong access with the earlier ones of the other kind, and keep it."""
        first, fenced = self._orders[order.first]

        def known(those: Order) -> Callable[[Array, Array, Array], Array]:
            return lambda some, others, stamps: those.knows(
                those.state, (lanes.thread[some], lanes.column[some]), others, stamps
            )

        other = STRONG_WRITE if access == STRONG_READ else STRONG_READ
        for some, threads, stamps, sites in shadow.earlier(other, lanes):
            bad = threads % self._every // order.threads != lanes.grid[some] // order.threads
            bad[bad] = ~known(order)(some[bad], threads[bad], stamps[bad])
            if not bad.any():
                continue
            reads, made, when = some[bad], threads[bad], stamps[bad]
            side = np.where(known(first)(reads, made, when), _FIRST, _SECOND)
            none = ~known(fenced)(reads, made, when)
            side[none] = self._without(fenced, lanes, reads[none], made[none], when[none])
            if (side < 0).any():
                self._loose.add(name)
                continue
            for which in np.unique(side).tolist():
                these = side == which
                self._keep((which, access), (reads[these], made[these], sites[bad][these]), ins, name, lanes)
        last = access == STRONG_WRITE and ins.opcode[0] == "atom" and ins.index not in self._launch.code.waits
        shadow.add(access, lanes, ins.index, known(fenced), atomic=last)

    def _without(self, fenced: Order, lanes: Lanes, some: Array, threads: Array, stamps: Array) -> Array:
        """Return what is missing where no fence would order an earlier access, -1 where nothing orders it.

        some: indices of lanes
        threads, stamps: of the accesses, elementwise
        """
        copies, when = threads >= self._every, stamps.copy()
        for i in np.nonzero(copies)[0]:
            when[i] = self._begun[int(threads[i]), int(stamps[i])]
        thread, column = lanes.thread[some], lanes.column[some]
        heard = _heard(fenced, (thread, column), threads % self._every // fenced.threads, when)
        side = np.where(heard, np.where(copies, _COPY, _FIRSTS), -1)
        alone = np.nonzero(~heard)[0]
        side[alone[_told(fenced, column[alone], threads[alone], stamps[alone])]] = _SECONDS
        return side

    def _keep(
        self,
        how: tuple[int, int],
        seen: tuple[Array, Array, Array],
        ins: Instruction,
        name: str,
        lanes: Lanes,
    ) -> None:
        """Keep accesses of lanes, and the earlier ones: (lanes, threads, instructions), by the two lines.

        how: what is missing, and the kind of the later access
        """
        some, threads, sites = seen
        offset = int(lanes.cells[some[0]]) * self._grains[name]
        first = _Seen(offset, int(threads[0]), int(lanes.grid[some[0]]))
        self._found.setdefault((name, *how, int(sites[0]), ins.index), first).times += len(some)

    def _add(self, key: tuple[str, int, int, int, int], seen: _Seen) -> None:
        name, side, access, *sites = key
        launch = self._launch
        lines = tuple(launch.entry.instructions[site].source for site in sites)
        kind = {_FIRST: FENCE, _SECOND: FENCE, _COPY: WAIT}.get(side, BARRIER)

        def make() -> Finding:
            threads = seen.first % self._every, seen.second
            first, second = (launch.block_index(n // launch.threads) for n in threads)
            done, does, may = "writes", "reads", "see what was there before"
            if access == STRONG_WRITE:
                done, does, may = "reads", "writes", "do so before it is read"
            return Finding(
                kind=kind,
                message=f"{name} at offset {seen.offset}: block {first} {done} it, block {second} {does} it "
                f"after it has seen what the first one wrote later, and may {may}: {_WHAT[side]} order them",
                sources=lines,
                variable=name,
                offset=seen.offset,
                threads=tuple(launch.thread(n % launch.threads) for n in threads),
                block=first,
            )

        launch.findings.add(kind, (*lines, name, side, access), seen.times, make)


def _heard(order: Order, lanes: tuple[Array, Array], blocks: Array, stamps: Array) -> Array:
    """Return whether lanes know anything that others did in `blocks` at or after `stamps`, elementwise."""
    found = np.zeros(len(blocks), np.bool_)
    nodes = order.state.view[lanes]
    for node, column in {(int(n), int(c)) for n, c in zip(nodes, lanes[1], strict=True) if n != NOTHING}:
        view = order.knowledge.view(node, column + order.first)
        latest = view.blocks.copy()
        for thread, stamp in view.threads.items():
            latest[thread // order.threads] = max(int(latest[thread // order.threads]), stamp)
        these = (nodes == node) & (lanes[1] == column)
        found[these] = latest[blocks[these]] >= stamps[these]
    return found


def _told(order: Order, columns: Array, threads: Array, stamps: Array) -> Array:
    """Return whether any thread of a column knows of an access of another block, elementwise."""
    found = np.zeros(len(threads), np.bool_)
    for column in np.unique(columns).tolist():
        these = np.nonzero(columns == column)[0]
        for node in np.unique(order.state.view[:, column]).tolist():
            view = order.knowledge.view(node, column + order.first)
            found[these] |= view.covers(threads[these], threads[these] // order.threads, stamps[these])
    return found


def together(*orders: Order) -> None:
    """Give what happens from here on the same stamps in all orders of a batch."""
    now = np.maximum.reduce([order.state.now for order in orders])
    for order in orders:
        order.state = replace(order.state, now=now)
