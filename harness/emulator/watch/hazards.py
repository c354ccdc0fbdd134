"""Hazards on shared memory: two threads access a word, at least one writes it, and no barrier is between.

Accesses are gathered by interval, from barrier to barrier, as patterns (instruction, addresses, lanes). An
interval with the patterns of an earlier one of its batch costs only a look-up. The order in which a thread
comes to the two instructions tells RAW, WAR and WAW apart. A cp.async writes from its issue until its own
thread has waited for it: an access to the same place in between conflicts with a copy in flight, and the
issue conflicts with earlier reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from harness.emulator.numbers.values import Array, Integer, Lanes, identity, lane_id
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import Finding, Findings
from harness.emulator.watch.patterns import WARP
from harness.emulator.watch.touches import ATOMIC, ISSUE, READ, WRITE, Clock, Layout, Touch

_MEMORY = 4096  # analysed intervals to keep


@dataclass(kw_only=True)
class Flight:
    """A cp.async between its issue and its wait, in the lanes `where`.

    issued: the group's clock at the issue; -1 if that was in an earlier interval
    landed: the group's clock at the wait; None while the copy is in flight
    """

    touch: Touch
    where: Lanes
    issued: int
    landed: int | None = None


@dataclass
class Interval:
    """The accesses of the blocks `columns` since their last barrier; bool (blocks,), None for all.

    `times` holds, by access pattern, the group's clock at the first and at the last access.
    """

    columns: Array | None
    times: dict[Touch, tuple[int, int]] = field(default_factory=dict)


class HazardWatch:
    """Watches shared memory for hazards.

    fine: `races` watches shared memory; what is left here are copies in flight
    describe(byte, column): returns (variable, offset in it, block index) of a byte of a block's shared memory
    thread(number): returns the index of a thread in its block
    guesses: the loads whose value a compare-and-swap then verifies, by index
    """

    def __init__(
        self,
        findings: Findings,
        describe: Callable[[int, int], tuple[str, int, Any]],
        thread: Callable[[int], Any],
        fine: bool = False,
        guesses: frozenset[int] = frozenset(),
    ) -> None:
        self._guesses = guesses
        self._findings = findings
        self._describe = describe
        self._thread = thread
        self._fine = fine
        self._seen: dict[Hashable, list[tuple[str, tuple[object, ...], int]]] = {}
        self.start(1)

    def start(self, blocks: int) -> None:
        """Begin a new batch of `blocks` blocks."""
        self._blocks = blocks
        self._open = [Interval(None)]
        self._flights: list[Flight] = []
        self._seen.clear()
        self._known: dict[Hashable, Touch] = {}

    def record(
        self,
        instruction: Instruction,
        kind: str,
        address: Integer,
        where: Lanes,
        size: int,
        group: Clock,
        value: Hashable = None,
    ) -> Touch:
        """Record an access of `size` bytes per lane and return its touch; the group's clock advances.

        kind: READ, WRITE, ATOMIC or ISSUE
        address, where: byte address in shared memory, and the active lanes
        value: what is stored, if it is the same in all lanes
        """
        signature = (
            instruction.index,
            kind,
            identity(address),
            lane_id(where),
            size,
            group.row,
            group.epoch,
            value,
        )
        touch = self._known.get(signature)
        if touch is None:
            touch = self._known[signature] = Touch(
                instruction=instruction,
                kind=kind,
                address=address,
                where=where,
                size=size,
                row=group.row,
                shape=group.shape,
                epoch=group.epoch,
                value=value,
            )
        self.again(touch, group)
        return touch

    def again(self, touch: Touch, group: Clock) -> None:
        """Record an access like one that was recorded in this batch; the group's clock advances."""
        clock = group.tick()
        for interval in self._open:
            known = interval.times.get(touch)
            interval.times[touch] = (clock if known is None else known[0], clock)

    def issue(
        self, instruction: Instruction, address: Integer, where: Lanes, size: int, group: Clock
    ) -> Flight:
        """Record the issue of a cp.async, and return its flight."""
        touch = self.record(instruction, ISSUE, address, where, size, group)
        flight = Flight(touch=touch, where=where, issued=group.clock)
        self._flights.append(flight)
        return flight

    def land(self, flight: Flight, landing: Lanes, rest: Lanes, group: Clock) -> None:
        """Record that the lanes `landing` have waited for a copy, and the lanes `rest` have not yet."""
        copy = flight.touch
        touch = self.record(copy.instruction, WRITE, copy.address, landing, copy.size, group)
        self._flights.append(Flight(touch=touch, where=landing, issued=flight.issued, landed=group.clock))
        flight.where = rest
        if rest is False:
            self._flights.remove(flight)

    def barrier(self, columns: Array | None) -> None:
        """End the interval of the blocks `columns`, bool (blocks,) or None for all, at a barrier."""
        fresh = Interval(columns)
        kept: list[Interval] = []
        for interval in self._open:
            mine = _overlap(interval.columns, columns)
            if mine is not None and not mine.any():
                kept.append(interval)
                continue
            self._close(interval, mine)
            if columns is not None:
                left = ~columns if interval.columns is None else interval.columns & ~columns
                if left.any():
                    kept.append(Interval(left, interval.times))
        if not kept:
            fresh.columns = None
        self._open = [*kept, fresh]
        self._flights = [f for f in self._flights if f.landed is None]
        for flight in self._flights:
            flight.issued = -1

    def _close(self, interval: Interval, columns: Array | None) -> None:
        """Report the faults of an ended interval in the blocks `columns`; known intervals are looked up."""
        if not interval.times:
            return
        flights = tuple((f.touch, lane_id(f.where), f.issued, f.landed) for f in self._flights)
        key = (tuple(interval.times.items()), flights, b"" if columns is None else columns.tobytes())
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= _MEMORY:
                self._seen.clear()
            seen = self._seen[key] = []
            touches = [
                replace(touch, first=first, last=last) for touch, (first, last) in interval.times.items()
            ]
            self._analyse(touches, columns, seen)
        else:
            for kind, fault, times in seen:
                self._findings.add(kind, fault, times, _impossible)

    def _analyse(self, touches: list[Touch], columns: Array | None, seen: list[Any]) -> None:
        """Report the faults of an interval, and add (kind, key, times) of each to `seen`."""
        copies = [replace(f.touch, where=f.where) for f in self._flights]
        if not copies and (self._fine or all(touch.kind == READ for touch in touches)):
            return
        layout = Layout([*touches, *copies], self._blocks, columns)
        for flight, copy in zip(self._flights, copies, strict=True):
            self._in_flight(flight, copy, touches, layout, seen)
        if self._fine or not layout.conflict(touches):
            return
        writes = [t for t in touches if t.kind != READ]
        for write in writes:
            owners = layout.owners(write)
            for other in touches:
                for kind in _kinds(write, other):
                    self._pair(kind, write, other, owners, layout, seen)

    def _pair(
        self,
        kind: str,
        write: Touch,
        other: Touch,
        owners: tuple[Array, Array],
        layout: Layout,
        seen: list[Any],
    ) -> None:
        """Report a hazard of `kind` if `other` accesses a cell that another thread writes in `write`.

        `owners` is the result of ``layout.owners(write)``.
        """
        cells, threads = layout.cells(other)
        low, high = owners[0][cells], owners[1][cells]
        bad_low = (high >= 0) & _unordered(low, write.epoch, threads, other.epoch)
        bad_high = (high >= 0) & _unordered(high, write.epoch, threads, other.epoch)
        bad = np.nonzero(bad_low | bad_high)[0]
        if len(bad):
            place = bad[0]
            writer = int(low[place] if bad_low[place] else high[place])
            pair = [(write, writer), (other, int(threads[place]))]
            if kind == "WAR hazard":
                pair.reverse()
            why = ""
            if kind == "WAW hazard" and write.value is not None and write.value == other.value:
                why = "the same value"
            elif write.kind == ATOMIC and other.instruction.index in self._guesses:
                why = "which a compare-and-swap verifies"
            self._report(kind, pair, int(cells[place]), len(bad), layout, seen, why)

    def _in_flight(
        self, flight: Flight, copy: Touch, touches: list[Touch], layout: Layout, seen: list[Any]
    ) -> None:
        """Report the accesses to the bytes that a copy writes, made between its issue and its wait."""
        low, high = layout.owners(copy)
        for touch in touches:
            late = flight.landed is not None and touch.first >= flight.landed
            if touch.kind == ISSUE or touch.last <= flight.issued or late:
                continue
            if touch.instruction.index == copy.instruction.index:
                continue  # another landing of the same cp.async: if it is a fault, it is a WAW hazard
            cells, threads = layout.cells(touch)
            bad = np.nonzero(high[cells] >= 0)[0]
            if len(bad):
                cell = int(cells[bad[0]])
                pair = [(copy, int(low[cell])), (touch, int(threads[bad[0]]))]
                self._report("missing cp.async wait", pair, cell, len(bad), layout, seen)

    def _report(
        self,
        kind: str,
        pair: list[tuple[Touch, int]],
        cell: int,
        times: int,
        layout: Layout,
        seen: list[Any],
        why: str = "",
    ) -> None:
        """Add a finding for a pair of (touch, thread), and (kind, key, times) to `seen`.

        why: why it does not show in the result
        """
        offset, column = layout.place(cell)
        variable, within, block = self._describe(offset, column)
        touches = [touch for touch, _ in pair]
        key = (*(t.instruction.source for t in touches), variable, bool(why))

        def make() -> Finding:
            size = touches[-1].size if touches[-1].size <= 8 else 4
            names = [self._thread(number) for _, number in pair]
            verbs = [_VERB[touch.kind] for touch in touches]
            between = (
                "before the copy has landed" if kind.startswith("missing") else "with no barrier between"
            )
            end = f", {why}" if why else ""
            message = (
                f"{variable}[{within // size}] ({size}-byte elements): thread {names[0]} {verbs[0]} it, "
                f"thread {names[1]} {verbs[1]} it {between}, block {block}{end}"
            )
            return Finding(
                kind=kind,
                message=message,
                sources=tuple(t.instruction.source for t in touches),
                variable=variable,
                offset=within,
                threads=tuple(names),
                block=block,
                benign=bool(why),
            )

        self._findings.add(kind, key, times, make)
        seen.append((kind, key, times))


_VERB = {READ: "reads", WRITE: "writes", ATOMIC: "updates", ISSUE: "copies into"}


def _kinds(write: Touch, other: Touch) -> list[str]:
    """Return the kinds of hazard that a write and another access make, by the order in which they came."""
    if other.kind == READ:
        raw = ["RAW hazard"] if write.kind != ISSUE and write.first < other.last else []
        # Equal only in warps that run one after the other, each of which has a clock of its own.
        war = ["WAR hazard"] if other.first <= write.last else []
        return raw + war
    if ISSUE in (write.kind, other.kind) or (write.kind == ATOMIC and other.kind == ATOMIC):
        return []
    return ["WAW hazard"] if write.first <= other.first else []


def _unordered(writer: Array, epoch: int, thread: Array, other: int) -> Array:
    """Return where a writing and another thread are different, and no warp barrier orders them.

    `epoch` and `other` are the epochs of the two accesses; if they differ, threads of one warp are ordered.
    """
    apart: Array = writer != thread
    if epoch != other:
        apart = apart & (writer // WARP != thread // WARP)
    return apart


def _overlap(mine: Array | None, others: Array | None) -> Array | None:
    """Return the blocks in both sets, each bool (blocks,) or None for all."""
    if mine is None or others is None:
        return others if mine is None else mine
    return mine & others


def _impossible() -> Finding:
    """Stand in for the maker of a finding that exists; raises RuntimeError if it is called."""
    raise RuntimeError("a fault seen before is known")
