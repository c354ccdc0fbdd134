"""Flags in shared memory: what strong writes publish there, and strong reads learn.

That is what the PTX ISA calls release and acquire patterns. A release publishes what its thread knows; after
a fence, so does any strong write, with what was known at the fence. An acquire learns it; any other strong
read does at the thread's next fence or barrier.
"""

from __future__ import annotations

import functools

import numpy as np

from harness.emulator.hopper.order.clocks import Clocks, Known
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.knowledge import Semantics, semantics
from harness.emulator.watch.touches import ATOMIC, READ


def flagged(instructions: tuple[Instruction, ...]) -> bool:
    """Return whether there are strong accesses that may be to shared memory."""
    return any(
        ins.opcode[0] in ("ld", "st", "atom", "red")
        and not {"global", "async", "local", "param", "const"} & set(ins.opcode)
        and semantics(ins).strong
        for ins in instructions
    )


class Flags:
    """Publications at each place of a cluster's shared memory, and those that threads have yet to learn."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._published: dict[int, Known] = {}
        self._pending: dict[int, Known] = {}  # by thread
        self._fenced: dict[int, Known] = {}  # by thread, what it knew at its last fence

    def fence(self, rows: Array) -> None:
        """Execute a fence in the threads `rows`."""
        self.barrier(rows)
        for row in rows.tolist():
            self._fenced[row] = self._clocks.known(np.array([row]))
        self._clocks.tick(rows)

    def barrier(self, rows: Array) -> None:
        """Let the threads `rows` learn what they have read."""
        for row in rows.tolist():
            known = self._pending.pop(row, None)
            if known is not None:
                self._clocks.acquire(np.array([row]), known)

    def meet(self, rows: Array) -> None:
        """Let the threads `rows`, which pass a barrier, publish what any of them has fenced before it."""
        fenced = {row: self._fenced[row] for row in rows.tolist() if row in self._fenced}
        several = list({id(known): known for known in fenced.values()}.values())
        if len(several) > 1:
            self._fenced |= dict.fromkeys(fenced, functools.reduce(Known.with_, several))

    def access(self, kind: str, meaning: Semantics, rows: Array, places: Array) -> None:
        """Execute an access of the threads `rows` to the first of their `places`, (n, k)."""
        for row, place in zip(rows.tolist(), places[:, 0].tolist(), strict=True):
            there = self._published.get(place)
            if kind != READ:
                self._write(row, place, meaning, there if kind == ATOMIC else None)
            if kind in (READ, ATOMIC):
                self._read(row, meaning, there)

    def _write(self, row: int, place: int, meaning: Semantics, joined: Known | None) -> None:
        """Publish at a place; an atomic adds to what was there."""
        mine = self._fenced.get(row) if meaning.strong else None
        if meaning.release:
            mine = self._clocks.release(np.array([row]))
        found = mine.with_(joined) if mine is not None else joined
        if found is not None:
            self._published[place] = found
        else:
            self._published.pop(place, None)

    def _read(self, row: int, meaning: Semantics, there: Known | None) -> None:
        """Learn what was published, now or at the next fence."""
        if there is None or not meaning.strong:
            return
        if meaning.acquire:
            self._clocks.acquire(np.array([row]), there)
        else:
            self._pending[row] = there.with_(self._pending.get(row))
