"""Threads that diverge, reconverge and wait at barriers, for a batch of blocks side by side.

Threads at the same instruction run together as a fragment. The fragment at the lowest instruction runs first,
so it meets the fragments ahead of it where their paths join. With ``schedule="warp-serial"`` each warp runs
to its next barrier before the following warp starts. The hardware may choose that order too, and in it a
missing barrier shows in the results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.decode import Step, unset
from harness.emulator.group import Group, spread
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import Scratch
from harness.emulator.numbers.values import Array, Integer, Lanes, mask_of
from harness.emulator.ptx.module import Instruction
from harness.emulator.watch.findings import Finding
from harness.emulator.watch.patterns import WARP
from harness.errors import EmulatorError

if TYPE_CHECKING:
    from harness.emulator.machine import Launch


class Batch:
    """Blocks `first` to ``first + blocks - 1`` of the launch, executed side by side.

    Raises EmulatorError if their shared and local memory does not fit this machine.
    """

    def __init__(self, launch: Launch, first: int, blocks: int) -> None:
        self.launch, self.first, self.blocks = launch, first, blocks
        launch.batch_first = first
        try:
            self.shared = Scratch(launch.shared_size, blocks)
            self.local = Scratch(launch.entry.sizes.get("local", 0), blocks * launch.threads)
        except MemoryError as error:
            raise EmulatorError(
                "shared and local memory of one batch of blocks do not fit this machine"
            ) from error
        self.steps_left = launch.budget
        if launch.hazards is not None:
            launch.hazards.start(blocks)
        rows = launch.threads if launch.schedule == "lockstep" else WARP
        count = len(launch.entry.registers)
        self.runners = [
            _Runner(Group(self, row, min(rows, launch.threads - row), count), self)
            for row in range(0, launch.threads, rows)
        ]
        self._columns: dict[tuple[str, int], Array] = {}

    def columns(self, space: str, group: Group) -> Array:
        """Return the column of each lane in the batch's `Scratch` of `space`, shared or local.

        For shared memory that is the block, (1, C); for local memory the thread of the batch, (T, C).
        """
        key = (space, group.row)
        if key not in self._columns:
            blocks = np.arange(self.blocks).reshape(1, -1)
            threads = np.arange(group.row, group.row + group.shape[0]).reshape(-1, 1)
            self._columns[key] = blocks if space == "shared" else threads * self.blocks + blocks
        return self._columns[key]

    def run(self) -> None:
        """Run all blocks to their end. Raises EmulatorError when they have used up the budget."""
        with self.launch.underflow.watching():
            while True:
                for runner in self.runners:
                    runner.run()
                if not any(runner.waiting for runner in self.runners):
                    break
                self._meet()
        if self.launch.hazards is not None:
            self.launch.hazards.barrier(None)

    def exhausted(self, instruction: Instruction) -> EmulatorError:
        """Return the error for a budget that ends at `instruction`."""
        return EmulatorError(
            f"the kernel has not ended after {self.launch.budget:,} instructions",
            where=str(instruction.source),
            hint="Does the loop there end? If it only takes long, give the emulator a larger budget.",
        )

    def _meet(self) -> None:
        """Let the threads go on whose barrier is complete, once every thread waits or has ended.

        Reports threads of one block that wait at different barriers or for threads that never come.
        """
        waits = [runner.waiting for runner in self.runners]
        first = waits[0][0] if waits[0] else None
        if (
            first
            and all(len(w) == 1 and w[0] == first and w[0].where is True for w in waits)
            and not first.threads
        ):
            self._release(None, None)
            return
        everyone = self.launch.threads
        shape = (everyone, self.blocks)
        barrier, number, wanted = (np.full(shape, fill, np.int64) for fill in (-1, 0, everyone))
        for runner in self.runners:
            rows = slice(runner.group.row, runner.group.row + runner.group.shape[0])
            for wait in runner.waiting:
                lanes = broadcast_mask(wait.where, runner.group.shape)
                barrier[rows][lanes] = wait.pc
                number[rows][lanes] = spread(wait.number, runner.group.shape)[lanes]
                wanted[rows][lanes] = wait.threads or everyone
        waiting = barrier >= 0
        complete = np.zeros(shape, np.bool_)
        for identity in np.unique(number[waiting]):
            here = waiting & (number == identity)
            arrived, need = here.sum(0), np.where(here, wanted, 0).max(0)
            places = np.where(here, barrier, barrier.max()).min(0) != np.where(here, barrier, -1).max(0)
            split = here.any(0) & (need == everyone) & (places | (arrived < need))
            if split.any():
                self._diverged(here, barrier, int(np.nonzero(split)[0][0]))
            # A barrier does not wait for threads that have ended; neither does the hardware's.
            complete |= here & np.where(need == everyone, arrived == waiting.sum(0), arrived >= need)
        if not complete.any():  # no other thread can arrive: report it and release all
            self._diverged(waiting, barrier, int(np.nonzero(waiting.any(0))[0][0]))
            complete = waiting
        self._release(complete, np.asarray(complete.any(0)))

    def _diverged(self, here: Array, barrier: Array, column: int) -> None:
        """Report a divergent barrier in block `column` of the batch.

        here: bool (threads, blocks), the threads that wait
        barrier: (threads, blocks), the instruction at which each of them goes on
        """
        if not self.launch.check:
            return
        pcs = sorted(set(barrier[here[:, column], column].tolist()))
        instructions = [self.launch.entry.instructions[pc - 1] for pc in pcs]
        thread = self.launch.thread(int(np.nonzero(here[:, column])[0][0]))
        missing = np.nonzero(~here[:, column])[0]
        block = self.launch.block_index(self.first + column)

        def make() -> Finding:
            if len(pcs) > 1:
                what = "threads of one block wait at different barriers"
            else:
                other = self.launch.thread(int(missing[0])) if len(missing) else thread
                what = (
                    f"{int(here[:, column].sum())} of {self.launch.threads} threads wait here and the "
                    f"others, thread {other} among them, never come"
                )
            return Finding(
                kind="divergent barrier",
                message=f"{what}: thread {thread}, block {block}",
                sources=tuple(dict.fromkeys(i.source for i in instructions)),
                threads=(thread,),
                block=block,
            )

        self.launch.findings.add("divergent barrier", tuple(pcs), 1, make)

    def _release(self, lanes: Array | None, columns: Array | None) -> None:
        """Let threads go on from their barriers.

        lanes: bool (threads, blocks), the threads to release; None for all
        columns: bool (blocks,), the blocks that have met at a barrier; None for all
        """
        if self.launch.hazards is not None:
            self.launch.hazards.barrier(columns)
        for runner in self.runners:
            runner.release(lanes)


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A fragment that waits at a barrier.

    pc: the instruction at which it goes on
    where: its lanes
    number: the barrier's number
    threads: how many threads the barrier waits for; 0 is all of the block
    """

    pc: int
    where: Lanes
    number: Integer
    threads: int


class _Runner:
    """Runs the fragments of one group until each of them waits or has ended.

    `ready` holds the lanes of each fragment that can run, by the instruction that it is at.
    """

    def __init__(self, group: Group, batch: Batch) -> None:
        self.group = group
        self.batch = batch
        self.steps = batch.launch.steps
        self.counter = batch.launch.counter
        self.ready: dict[int, Lanes] = {0: True}
        self.waiting: list[_Waiting] = []

    def run(self) -> None:
        """Run until no fragment is ready. Raises EmulatorError for an instruction that cannot be executed."""
        while self.ready:
            pc = min(self.ready)
            where = self.ready.pop(pc)
            try:
                while where is not False:
                    if self.ready and pc >= min(self.ready):
                        self._join(pc, where)
                        break
                    pc, where = self._step(pc, where)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # Only PTX that no compiler wrote gets here: decoding does not check every operand's type.
                ins = self.steps[pc].instruction
                raise EmulatorError(
                    f"cannot execute {ins} {', '.join(ins.operands)}: {error}",
                    where=f"{ins.source} (PTX line {ins.ptx_line})",
                ) from error

    def _join(self, pc: int, where: Lanes) -> None:
        """Add lanes to the fragment that is ready at instruction `pc`."""
        self.ready[pc] = self.group.algebra.either(self.ready.get(pc, False), where)

    def _step(self, pc: int, where: Lanes) -> tuple[int, Lanes]:
        """Execute instruction `pc`; return the next instruction and the lanes that go on there."""
        if pc >= len(self.steps):
            return pc, False
        step = self.steps[pc]
        batch = self.batch
        batch.steps_left -= 1
        if batch.steps_left < 0:
            raise batch.exhausted(step.instruction)
        group, active = self.group, where
        rest: Lanes = False
        if step.guard >= 0:
            chosen = group.registers[step.guard]
            if chosen is None:
                chosen = unset(group, step.instruction, step.instruction.guard)
            algebra = group.algebra
            active = algebra.both(where, algebra.negate(chosen) if step.negated else chosen)
            if active is False:
                return pc + 1, where
            rest = algebra.both(where, algebra.negate(active))
        if self.counter is not None:
            self.counter.executions[pc] += group.count(active)
        if step.run is not None:
            step.run(group, active)
            return pc + 1, where
        if step.kind == "branch":
            if rest is False:
                return step.instruction.targets[0], active
            self._join(step.instruction.targets[0], active)
        elif step.kind == "table":
            self._scatter(step, active)
        elif step.kind == "barrier":
            self.waiting.append(self._wait(step, pc + 1, active))
        return pc + 1, rest

    def _scatter(self, step: Step, active: Lanes) -> None:
        """Send each active lane to the target that its index selects (``brx.idx``)."""
        algebra = self.group.algebra
        index = step.operands[0](self.group)
        for place, target in enumerate(step.instruction.targets):
            taken = algebra.both(active, algebra.compare("eq", index, place, unsigned=True, bits=32))
            if taken is not False:
                self._join(target, taken)

    def _wait(self, step: Step, pc: int, active: Lanes) -> _Waiting:
        """Return the fragment that waits at a barrier. Raises EmulatorError for a bad number of threads."""
        threads = step.operands[1](self.group) if len(step.operands) > 1 else 0
        if not isinstance(threads, int) or not 0 <= threads <= self.batch.launch.threads:
            raise EmulatorError(
                f"a barrier for {threads if isinstance(threads, int) else 'varying numbers of'} threads",
                where=str(step.instruction.source),
            )
        return _Waiting(pc=pc, where=active, number=step.operands[0](self.group), threads=threads)

    def release(self, lanes: Array | None) -> None:
        """Let the threads `lanes`, bool (threads, blocks) or None for all, go on from their barriers."""
        waiting, self.waiting = self.waiting, []
        algebra, row = self.group.algebra, self.group.row
        for wait in waiting:
            go = True if lanes is None else mask_of(lanes[row : row + self.group.shape[0]])
            gone = algebra.both(wait.where, go)
            if gone is not False:
                self._join(wait.pc, gone)
            left = algebra.both(wait.where, algebra.negate(gone))
            if left is not False:
                self.waiting.append(replace(wait, where=left))
        if lanes is None:
            self.group.clock = self.group.epoch = 0
