"""Barriers of a block by number (``bar.sync 1, 128``): who comes to a phase knows that the last has ended.

A thread that has not heard of all arrivals of the last phase may come before one of them, and be counted in
its place: two groups of threads use one barrier at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.hopper.order.clocks import Clocks
from harness.emulator.hopper.order.races import misuse
from harness.emulator.numbers.values import Array
from harness.emulator.watch.patterns import WARP

if TYPE_CHECKING:
    from harness.emulator.hopper.grid import Block


@dataclass(frozen=True)
class _Arrivals:
    """The threads `rows`, their clocks when they arrived, and when that was in the order of global memory."""

    rows: Array
    clocks: Array
    stamps: Array


class NamedPhases:
    """The last phase of each barrier of a block and those who have arrived since.

    mates: threads that come together, a warp, or a warpgroup where its products keep it together
    first: the number in the cluster of the block's first thread
    told: tells which arrivals, by (threads, when), threads know of by flags in global memory
    """

    def __init__(
        self, clocks: Clocks, mates: int, first: int, told: Callable[[Array, Array, Array], Array]
    ) -> None:
        self._clocks, self._mates, self._first, self._told = clocks, mates, first, told
        self._last: dict[int, _Arrivals] = {}  # by number
        self._open: dict[int, list[_Arrivals]] = {}
        self._early: dict[int, tuple[int, int]] = {}

    def arrive(self, number: int, rows: Array, stamp: int) -> None:
        """Count arrivals of the threads `rows` in the present phase of a barrier."""
        if number in self._last:
            self._compare(number, rows)
        come = _Arrivals(rows, self._clocks.own(rows), np.full(len(rows), stamp, np.int64))
        self._open.setdefault(number, []).append(come)

    def _compare(self, number: int, rows: Array) -> None:
        """Note a thread that has not heard of an arrival of the last phase, and whose that is."""
        last = self._last[number]
        # The arrival of one warp ended the phase at once: nobody else is counted in it.
        if len(np.unique(last.rows // WARP)) == 1:
            return
        groups, own = ((some - self._first) // self._mates for some in (last.rows, rows))
        for mates in np.unique(own).tolist():
            mine = rows[own == mates]
            heard = (self._clocks.heard[mine].max(0)[last.rows] >= last.clocks) | (groups == mates)
            missing = np.setdiff1d(groups, groups[heard])
            if not len(missing):
                continue
            shape = len(mine), len(last.rows)
            known = self._told(
                mine[:, None], np.broadcast_to(last.rows, shape), np.broadcast_to(last.stamps, shape)
            )
            missing = np.setdiff1d(missing, groups[known.any(0)])
            if len(missing):
                self._early[number] = int(mine[0]), int(last.rows[groups == missing[0]][0])

    def turn(self, number: int) -> tuple[int, int] | None:
        """End the phase; return (a thread, one that it may have come before), if there are such."""
        arrivals = self._open.pop(number, [])
        self._last[number] = _Arrivals(
            np.concatenate([come.rows for come in arrivals]),
            np.concatenate([come.clocks for come in arrivals]),
            np.concatenate([come.stamps for come in arrivals]),
        )
        return self._early.pop(number, None)


def report(block: Block, number: int, early: tuple[int, int]) -> None:
    """Report that one of two threads may come to a phase of a barrier in the place of the other."""
    launch = block.launch
    runner = next(runner for runner in block.runners if runner.waiting)
    ins = launch.entry.instructions[runner.waiting[0].pc - 1]
    first, second = (launch.thread(row % launch.threads) for row in early)
    misuse(
        runner.group,
        ins,
        f"thread {first} may come to barrier {number} before thread {second} has come to its last phase, and "
        "be counted there: groups of threads that nothing orders need barriers of their own",
        kind="barrier misuse",
    )
