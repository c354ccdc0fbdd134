"""Strong reads of what other blocks have written that only a fence of the writer would order.

Two strong accesses are no race, ordered or not. But who has seen a ticket or a flag, and then reads data,
relies on the data being there, and volatile and relaxed stores to two places may become visible in any order.
So the order of threads is kept twice: as it is, and as it would be if each strong write came after a fence. A
read that only the second one orders with the latest write to its place, of another block, lacks that fence.

Nothing is said of

- a read whose value decides a branch or a mask: it may wait for the data themselves, as in a look-back whose
  flag and value are one word;
- a buffer of which some place is read while nothing at all orders the read with a write: the kernel takes
  what it finds there, old or new;
- atomics that return what they found, if they count or join a list, and do not put a constant there or add 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.blocks.slice import CONTROL, LOADS, named
from harness.emulator.memory import WORKSPACE
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import Finding
from harness.emulator.watch.knowledge import GRID, Knowledge, Semantics
from harness.emulator.watch.order import Order
from harness.emulator.watch.shadow import STRONG_READ, STRONG_WRITE, Lanes, Shadow, Watched
from harness.emulator.watch.touches import READ

if TYPE_CHECKING:
    from harness.emulator.executable import Executable
    from harness.emulator.machine import Launch

KIND = "missing fence"
Synchronise = Callable[[Shadow, Order, Instruction, str, Semantics, Lanes], None]


class Unfenced:
    """Looks for such reads in a launch; `synchronise` is what `races` does at each access."""

    def __init__(self, launch: Launch, knowledge: Knowledge, synchronise: Synchronise) -> None:
        self._launch, self._synchronise = launch, synchronise
        blocks = launch.grid.x * launch.grid.y * launch.grid.z
        self._knowledge = Knowledge(blocks, launch.threads, knowledge.clusters)
        self._orders: dict[int, Order] = {}  # by the first block of a batch, its order with all fences
        self._shadows: dict[str, Shadow] = {}  # by buffer
        self._grains: dict[str, int] = {}
        self._loose: set[str] = set()  # the buffers of which a read is ordered with a write by nothing
        self._found: dict[tuple[str, int, int], tuple[int, int, int, int]] = {}
        self._relying = relying(launch.code)

    def start(self, order: Order) -> None:
        """Begin a batch of blocks, of which `order` is the order as it is."""
        self._orders[order.first] = Order(self._knowledge, order.first, order.threads, order.blocks)

    def both(self, order: Order, happens: Callable[[Order], None]) -> None:
        """Let something happen in both orders, whose stamps stay the same."""
        supposed = self._orders[order.first]
        happens(order)
        happens(supposed)
        _together(order, supposed)

    def touch(
        self,
        order: Order,
        ins: Instruction,
        kind: str,
        meaning: Semantics,
        lanes: Lanes,
        watched: Watched,
        name: str,
    ) -> None:
        """Look at an access to global memory, and keep it for later ones."""
        supposed = self._orders[order.first]
        _together(order, supposed)
        lanes = replace(lanes, stamps=order.state.now[lanes.column])
        shadow = self._shadow(name, watched)
        strong = meaning.strong and meaning.scope == GRID
        if strong and ins.index in self._relying:
            self._compare(shadow, order, ins, name, lanes, STRONG_READ)
        if strong and kind != READ:
            self._compare(shadow, order, ins, name, lanes, STRONG_WRITE)
            meaning = replace(meaning, release=True)
        if supposed.orders(meaning, shadow.published is not None):
            self._synchronise(shadow, supposed, ins, kind, meaning, lanes)
            _together(order, supposed)

    def report(self) -> None:
        """Add what was found."""
        for (name, store, load), (offset, writer, reader, times) in self._found.items():
            if name not in self._loose and name != WORKSPACE:
                self._add(name, store, load, offset, (writer, reader), times)

    def _shadow(self, name: str, watched: Watched) -> Shadow:
        """Return what is known of a buffer, in the cells of `watched`."""
        shadow = self._shadows.get(name)
        if shadow is None:
            shadow = Shadow(watched.shadow.size, crowded=True)
            self._grains[name] = watched.grain
        while self._grains[name] > watched.grain:
            shadow = shadow.refined(1)
            self._grains[name] //= 2
        self._shadows[name] = shadow
        return shadow

    def _compare(
        self, shadow: Shadow, order: Order, ins: Instruction, name: str, lanes: Lanes, access: int
    ) -> None:
        """Compare a strong access with the earlier ones of the other kind, and keep it."""
        supposed = self._orders[order.first]

        def known(those: Order) -> Callable[[Array, Array, Array], Array]:
            return lambda some, others, stamps: those.knows(
                those.state, (lanes.thread[some], lanes.column[some]), others, stamps
            )

        other = STRONG_WRITE if access == STRONG_READ else STRONG_READ
        for some, threads, stamps, sites in shadow.earlier(other, lanes):
            bad = ~known(order)(some, threads, stamps)
            bad &= threads // order.threads != lanes.grid[some] // order.threads
            if not known(supposed)(some[bad], threads[bad], stamps[bad]).all():
                self._loose.add(name)
            elif access == STRONG_READ and bad.any():
                self._keep((some[bad], threads[bad], sites[bad]), ins, name, lanes)
        last = access == STRONG_WRITE and ins.opcode[0] == "atom" and ins.index not in self._launch.code.waits
        shadow.add(access, lanes, ins.index, known(supposed), atomic=last)

    def _keep(self, seen: tuple[Array, Array, Array], ins: Instruction, name: str, lanes: Lanes) -> None:
        """Keep the reads `seen`, (lanes, threads, instructions) of the stores, by the two lines."""
        some, threads, sites = seen
        key = (name, int(sites[0]), ins.index)
        first = (int(lanes.cells[some[0]]) * self._grains[name], int(threads[0]), int(lanes.grid[some[0]]), 0)
        offset, writer, reader, times = self._found.get(key, first)
        self._found[key] = offset, writer, reader, times + len(some)

    def _add(
        self, name: str, store: int, load: int, offset: int, threads: tuple[int, int], times: int
    ) -> None:
        launch = self._launch
        made = [launch.entry.instructions[store], launch.entry.instructions[load]]
        lines = tuple(instruction.source for instruction in made)

        def make() -> Finding:
            writer, reader = (launch.block_index(n // launch.threads) for n in threads)
            return Finding(
                kind=KIND,
                message=f"{name} at offset {offset}: block {writer} writes it, block {reader} reads it after "
                "what the first one wrote later, and may see what was there before: a __threadfence() "
                "behind the first line, before that later write, would order them",
                sources=lines,
                variable=name,
                offset=offset,
                threads=tuple(launch.thread(n % launch.threads) for n in threads),
                block=writer,
            )

        launch.findings.add(KIND, (*lines, name), times, make)


def _together(order: Order, other: Order) -> None:
    """Give what happens from here on the same stamps in both orders."""
    now = np.maximum(order.state.now, other.state.now)
    order.state, other.state = replace(order.state, now=now), replace(other.state, now=now)


def relying(code: Executable) -> frozenset[int]:
    """Return the instructions, by index, that read data: no branch and no mask depends on what they read.

    That is by way of registers alone. Of atomics those count that put a constant there, or add 0, and return
    what was there before.
    """
    entries = code.entry.instructions
    registers: set[int] = set()
    for ins in entries:
        if ins.opcode[0] in CONTROL:
            registers |= code.registers_of(ins.index)[0]
        elif "sync" in ins.opcode and ins.operands:
            registers |= named(code, ins.operands[-1])
    before = -1
    while before != len(registers):
        before = len(registers)
        for ins in entries:
            reads, writes = code.registers_of(ins.index)
            if ins.opcode[0] not in LOADS and not registers.isdisjoint(writes):
                registers |= reads
    wanted = frozenset().union(*(code.registers_of(ins.index)[0] for ins in entries))
    found = set()
    for ins in entries:
        result = code.registers_of(ins.index)[1]
        if ins.opcode[0] in ("ld", "atom") and result & wanted and registers.isdisjoint(result):
            last = ins.operands[-1]
            if ins.opcode[0] == "ld" or ("exch" in ins.opcode and last.isdecimal()) or last == "0":
                found.add(ins.index)
    return frozenset(found)
