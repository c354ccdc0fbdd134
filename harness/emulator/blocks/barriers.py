"""Barriers of a batch of blocks (``bar``, ``barrier.cta``), once no thread can go on without them.

A barrier is complete when as many threads have arrived as it waits for; those that have ended are not waited
for, as on the hardware. Whole warps may meet at different instructions with the same barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.blocks.runner import Waiting
from harness.emulator.group import Group, spread
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.instructions.warp import warps
from harness.emulator.numbers.values import Array, integer_of, mask_of
from harness.emulator.watch.findings import Finding
from harness.emulator.watch.patterns import WARP

if TYPE_CHECKING:
    from harness.emulator.blocks.batch import Batch


class Barriers:
    """The barriers of the blocks of `batch`.

    arrivals: threads that have arrived without waiting, (blocks,), by the barrier's number and its threads
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.arrivals: dict[tuple[int, int], Array] = {}

    def arrive(self, wait: Waiting, group: Group) -> None:
        """Record arrivals at a barrier (``bar.arrive``) of threads that do not wait for it."""
        lanes = broadcast_mask(wait.where, group.shape)
        numbers = spread(wait.number, group.shape)
        for number in np.unique(numbers[lanes]):
            key = (int(number), wait.threads)
            these = lanes & (numbers == number)
            self.arrivals[key] = self.arrivals.get(key, 0) + these.sum(0)
            if self._batch.launch.races is not None:
                self._batch.launch.races.arrive(group, these, int(number))
            self._batch.arrived(int(number), group.row, these)

    def meet(self, last: bool) -> bool:
        """Let the threads go on whose barrier is complete, and return whether there are any.

        last: no other thread can move. Threads that wait for others that never come are then reported and go
          on, as are the threads of a warp that wait at different barriers.
        """
        waits = [runner.waiting for runner in self._batch.runners]
        first = waits[0][0] if waits[0] else None
        if (
            first
            and last
            and all(len(w) == 1 and w[0].pc == first.pc and w[0].where is True for w in waits)
            and not first.threads
            and not first.reduce
            and isinstance(first.number, int)
            and all(w[0].number == first.number for w in waits)
        ):
            self._order(None, 0)
            self._release(None, None)
            return True
        everyone = self._batch.launch.threads
        shape = (everyone, self._batch.blocks)
        barrier, number, wanted = (np.full(shape, fill, np.int64) for fill in (-1, 0, 0))
        for runner in self._batch.runners:
            rows = slice(runner.group.row, runner.group.row + runner.group.shape[0])
            for wait in runner.waiting:
                lanes = broadcast_mask(wait.where, runner.group.shape)
                barrier[rows][lanes] = wait.pc
                number[rows][lanes] = spread(wait.number, runner.group.shape)[lanes]
                wanted[rows][lanes] = wait.threads
        waiting = barrier >= 0
        alive = waiting | self._polling(shape)
        complete = np.zeros(shape, np.bool_)
        counted = []
        for identity in np.unique(number[waiting]):
            here = waiting & (number == identity)
            need = np.where(here, wanted, 0).max(0)
            everybody = need == 0  # no number of threads was given
            need = np.where(everybody, everyone, need)
            arrived = here.sum(0) + self.arrivals.get((int(identity), int(need.max())), 0)
            # A barrier for everybody does not wait for threads that have ended; neither does the hardware's.
            # One for a number of threads does: those that have ended may be among the arrivals.
            met = here & (arrived >= np.where(everybody, alive.sum(0), need))
            # One warp's arrival ends a phase of 32, so that no others are counted in it.
            if (crowded := ~everybody & (need > WARP) & (arrived > need) & here.any(0)).any():
                self._crowded(int(identity), here, barrier, int(np.nonzero(crowded)[0][0]), need)
            counted.append((identity, here, need, everybody, arrived, met))
            complete |= met
        goes_on = complete.any(0)
        for identity, here, need, everybody, arrived, met in counted:
            split = here.any(0) & everybody & _within_a_warp(here, barrier)
            # Threads that pass another barrier may still come to this one.
            alone = here.any(0) & everybody & (arrived < need) & last
            split |= alone & (met.any(0) | ~goes_on)
            if split.any() and (last or met.any()):
                self._diverged(here, barrier, int(np.nonzero(split)[0][0]))
            for key in [k for k in self.arrivals if k[0] == identity]:
                self.arrivals[key] = np.where(met.any(0), 0, self.arrivals[key])
            if met.any():
                self._batch.met(int(identity), met)
            ended = ~alive & (met.any(0) & everybody)  # where it was not for a number of threads
            self._order(met | ended, int(identity))
            self._reduce(met)
        if not complete.any():
            if not last:
                return False
            # No other thread can arrive: report it and release all.
            first_one = waiting & (number == number[waiting].min())
            self._diverged(first_one, barrier, int(np.nonzero(first_one.any(0))[0][0]))
            complete = waiting
            self._order(complete, 0)
        self._release(complete, np.asarray(complete.any(0)))
        return True

    def _polling(self, shape: tuple[int, int]) -> Array:
        """Return the threads that can still run or wait for something else, bool (threads, blocks)."""
        found = np.zeros(shape, np.bool_)
        for runner in self._batch.runners:
            rows = slice(runner.group.row, runner.group.row + runner.group.shape[0])
            for where in (*runner.later.values(), *runner.parked.values(), *runner.ready.values()):
                found[rows] |= broadcast_mask(where, runner.group.shape)
        return found

    def _reduce(self, met: Array) -> None:
        """Combine the predicates of the threads `met`, bool (threads, blocks), that pass a ``bar.red``."""
        waits = [(runner, wait) for runner in self._batch.runners for wait in runner.waiting if wait.reduce]
        if not waits or not met.any():
            return
        says = np.zeros(met.shape, np.bool_)
        for runner, wait in waits:
            rows = slice(runner.group.row, runner.group.row + runner.group.shape[0])
            says[rows] |= broadcast_mask(runner.group.algebra.both(wait.where, wait.says), runner.group.shape)
        for runner, wait in waits:
            rows = slice(runner.group.row, runner.group.row + runner.group.shape[0])
            where = runner.group.algebra.both(wait.where, mask_of(met[rows]))
            if where is False or wait.into < 0:
                continue
            if wait.reduce == "popc":
                value: object = integer_of((met & says).sum(0).reshape(1, -1).astype(np.int64))
            else:
                some, all_of = (met & says).any(0), (~met | says).all(0)
                value = mask_of((some if wait.reduce == "or" else all_of).reshape(1, -1))
            runner.group.write(wait.into, value, where)

    def _diverged(self, here: Array, barrier: Array, column: int) -> None:
        """Report a divergent barrier in block `column` of the batch.

        here: bool (threads, blocks), the threads that wait
        barrier: (threads, blocks), the instruction at which each of them goes on
        """
        if not self._batch.launch.check:
            return
        pcs = sorted(set(barrier[here[:, column], column].tolist()))
        instructions = [self._batch.launch.entry.instructions[pc - 1] for pc in pcs]
        thread = self._batch.launch.thread(int(np.nonzero(here[:, column])[0][0]))
        missing = np.nonzero(~here[:, column])[0]
        block = self._batch.launch.block_index(self._batch.first + column)

        def make() -> Finding:
            if len(pcs) > 1:
                what = "threads of one warp wait at different barriers"
            else:
                other = self._batch.launch.thread(int(missing[0])) if len(missing) else thread
                what = (
                    f"{int(here[:, column].sum())} of {self._batch.launch.threads} threads wait here and the "
                    f"others, thread {other} among them, never come"
                )
            return Finding(
                kind="divergent barrier",
                message=f"{what}: thread {thread}, block {block}",
                sources=tuple(dict.fromkeys(i.source for i in instructions)),
                threads=(thread,),
                block=block,
            )

        self._batch.launch.findings.add("divergent barrier", tuple(pcs), 1, make)

    def _crowded(self, number: int, here: Array, barrier: Array, column: int, need: Array) -> None:
        """Report that more threads have come to a barrier of block `column` than one phase takes."""
        batch = self._batch
        pcs = sorted(set(barrier[here[:, column], column].tolist()))
        block = batch.launch.block_index(batch.first + column)
        count, takes = int(here[:, column].sum()), int(need[column])

        def make() -> Finding:
            return Finding(
                kind="barrier misuse",
                message=f"{count} threads wait at barrier {number}, a phase of which takes {takes}: groups "
                f"that wait at the same time need barriers of their own: block {block}",
                sources=tuple(batch.launch.entry.instructions[pc - 1].source for pc in pcs),
                block=block,
            )

        if batch.launch.check:
            batch.launch.findings.add("barrier misuse", tuple(pcs), 1, make)

    def _order(self, lanes: Array | None, number: int) -> None:
        """Order the threads that meet at barrier `number`, and those that have ended, for the watches."""
        batch, delays = self._batch, self._batch.launch.delays
        if delays is not None:
            passed = np.arange(batch.blocks) if lanes is None else np.nonzero(lanes.any(0))[0]
            delays.barrier(passed + batch.first)
        if self._batch.launch.races is not None and (lanes is None or lanes.any()):
            self._batch.launch.races.barrier(self._batch.order, lanes, number)

    def _release(self, lanes: Array | None, columns: Array | None) -> None:
        """Let threads go on from their barriers.

        lanes: bool (threads, blocks), the threads to release; None for all
        columns: bool (blocks,), the blocks that have met at a barrier; None for all
        """
        if self._batch.launch.hazards is not None:
            self._batch.launch.hazards.barrier(columns)
        for runner in self._batch.runners:
            runner.release(lanes)


def _within_a_warp(here: Array, barrier: Array) -> Array:
    """Return the blocks in which threads of one warp wait at different instructions: bool (blocks,).

    Whole warps may meet at different instructions with the same barrier (PTX ISA, "bar").
    """
    low = warps(np.where(here, barrier, np.int64(1 << 40)), np.int64(1 << 40)).min(1)
    high = warps(np.where(here, barrier, np.int64(-1)), np.int64(-1)).max(1)
    apart: Array = ((high >= 0) & (low != high)).any(0)
    return apart
