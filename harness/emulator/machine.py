"""The launch: batches of blocks, and within a batch threads that diverge, meet again and wait at barriers.

Threads at one instruction run together as a fragment; the fragment furthest behind goes first, so those
ahead are joined where the paths meet. ``schedule="warp-serial"`` runs each warp to the next barrier before
the following one starts: an order that the hardware may choose too, in which a missing barrier shows in the
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import harness.emulator.access
import harness.emulator.asynchronous
import harness.emulator.atomics
import harness.emulator.floating
import harness.emulator.half
import harness.emulator.integer
import harness.emulator.matrix
import harness.emulator.moving
import harness.emulator.predicates
import harness.emulator.warp  # noqa: F401 - the instructions register themselves
from harness.emulator.counts import Counter
from harness.emulator.decode import Step, unset
from harness.emulator.findings import Finding, Findings, Index3
from harness.emulator.floats import Underflow
from harness.emulator.group import Group, spread
from harness.emulator.predicates import broadcast_mask
from harness.emulator.hazards import HazardWatch
from harness.emulator.memory import Arena, Scratch
from harness.emulator.patterns import WARP
from harness.emulator.ptx import Entry, Instruction
from harness.emulator.races import RaceWatch
from harness.emulator.values import Array, Integer, Lanes, Memo, mask_of
from harness.errors import EmulatorError

LANES = 16384  # of a batch: what keeps its registers within a processor's cache
SCHEDULES = ("lockstep", "warp-serial")


class Launch:
    """What all batches share."""

    def __init__(
        self,
        entry: Entry,
        steps: list[Step],
        *,
        grid: Index3,
        block: Index3,
        arena: Arena,
        parameters: bytes,
        dynamic_shared: int,
        symbols: Mapping[str, int],
        schedule: str,
        budget: int,
        check: bool,
        count: bool,
        widths: Mapping[int, int],
        watched: set[int],
    ) -> None:
        self.entry, self.steps = entry, steps
        self.grid, self.block = grid, block
        self.arena, self.parameters = arena, parameters
        self.dynamic_shared, self.symbols = dynamic_shared, symbols
        self.shared_size = entry.sizes.get("shared", 0) + dynamic_shared
        self.schedule, self.budget, self.check = schedule, budget, check
        self.threads = block.x * block.y * block.z
        self.memo = Memo()
        self.underflow = Underflow()
        self.findings = Findings()
        self.counter = Counter(entry.instructions, [s.flops for s in steps], widths) if count else None
        self.hazards = HazardWatch(self.findings, self._describe, self.thread) if check else None
        self.races = RaceWatch(self.findings, watched) if check else None

    def run(self) -> None:
        total = self.grid.x * self.grid.y * self.grid.z
        at_once = max(1, LANES // self.threads)
        for first in range(0, total, at_once):
            Batch(self, first, min(at_once, total - first)).run()
            if self.races is not None:
                self.races.end_batch()
        if self.races is not None:
            self.races.judge(self.entry.instructions, self.block_index)

    # -- names for findings

    def thread(self, number: int) -> Index3:
        x, y = self.block.x, self.block.y
        return Index3(number % x, number // x % y, number // (x * y))

    def block_index(self, number: int) -> Index3:
        x, y = self.grid.x, self.grid.y
        return Index3(number % x, number // x % y, number // (x * y))

    def variable(self, space: str, address: int) -> tuple[str, int]:
        """(name, offset in it) of a byte of shared or local memory; past the end it is the last one's."""
        found = [v for v in self.entry.variables.values() if v.space == space and v.offset <= address]
        if not found:
            return f"{space} memory", address
        nearest = max(found, key=lambda v: v.offset)
        return plain_name(nearest.name), address - nearest.offset

    def _describe(self, offset: int, column: int) -> tuple[str, int, Index3]:
        name, within = self.variable("shared", offset)
        return name, within, self.block_index(self.batch_first + column)

    batch_first = 0


def plain_name(name: str) -> str:
    """``_ZZ6matmulE2As`` is As of matmul: an Itanium name of a function's own variable."""
    head, _, tail = name.rpartition("E")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    if not name.startswith("_ZZ") or not head or not digits:
        return name
    return tail[digits : digits + int(tail[:digits])] or name


class Batch:
    """Blocks `first` to `first + blocks`, side by side."""

    def __init__(self, launch: Launch, first: int, blocks: int) -> None:
        self.launch, self.first, self.blocks = launch, first, blocks
        launch.batch_first = first
        try:
            self.shared = Scratch(launch.shared_size, blocks)
            self.local = Scratch(launch.entry.sizes.get("local", 0), blocks * launch.threads)
        except MemoryError as error:
            raise EmulatorError("shared and local memory of one batch of blocks do not fit this machine") from error
        self.written: set[Any] = set()  # shared patterns known to be initialised
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
        """The column of each lane in a `Scratch`."""
        key = (space, group.row)
        if key not in self._columns:
            blocks = np.arange(self.blocks).reshape(1, -1)
            threads = np.arange(group.row, group.row + group.shape[0]).reshape(-1, 1)
            self._columns[key] = blocks if space == "shared" else threads * self.blocks + blocks
        return self._columns[key]

    def run(self) -> None:
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
        return EmulatorError(
            f"the kernel has not ended after {self.launch.budget:,} instructions",
            where=str(instruction.source),
            hint="Does the loop there end? If it only takes long, give the emulator a larger budget.",
        )

    def _meet(self) -> None:
        """All threads wait or have ended: let those go on whose barrier is complete."""
        waits = [runner.waiting for runner in self.runners]
        first = waits[0][0] if waits[0] else None
        if first and all(len(w) == 1 and w[0] == first and w[0].where is True for w in waits) and not first.threads:
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
            # Threads that have ended are not waited for, which is what the hardware does.
            complete |= here & np.where(need == everyone, arrived == waiting.sum(0), arrived >= need)
        if not complete.any():  # nobody else can come: say so, and let them go
            self._diverged(waiting, barrier, int(np.nonzero(waiting.any(0))[0][0]))
            complete = waiting
        self._release(complete, complete.any(0))

    def _diverged(self, here: Array, barrier: Array, column: int) -> None:
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
                    f"{int(here[:, column].sum())} of {self.launch.threads} threads wait here and the others, "
                    f"thread {other} among them, never come"
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
        """Let the threads `lanes` (None: all) go on; the blocks `columns` (None: all) have met."""
        if self.launch.hazards is not None:
            self.launch.hazards.barrier(columns)
        for runner in self.runners:
            runner.release(lanes)


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A fragment at a barrier; `pc` is where it goes on, `threads` how many the barrier wants (0: all)."""

    pc: int
    where: Lanes
    number: Integer
    threads: int


class _Runner:
    """Runs one group's fragments until all of them wait or have ended."""

    def __init__(self, group: Group, batch: Batch) -> None:
        self.group = group
        self.batch = batch
        self.steps = batch.launch.steps
        self.counter = batch.launch.counter
        self.ready: dict[int, Lanes] = {0: True}
        self.waiting: list[_Waiting] = []

    def run(self) -> None:
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
                # PTX that no compiler wrote: operands of a type or a number that decoding let through.
                ins = self.steps[pc].instruction
                raise EmulatorError(
                    f"cannot execute {ins} {', '.join(ins.operands)}: {error}",
                    where=f"{ins.source} (PTX line {ins.ptx_line})",
                ) from error

    def _join(self, pc: int, where: Lanes) -> None:
        self.ready[pc] = self.group.algebra.either(self.ready.get(pc, False), where)

    def _step(self, pc: int, where: Lanes) -> tuple[int, Lanes]:
        """Execute one instruction; where the fragment goes on, and who is left of it."""
        if pc >= len(self.steps):
            return pc, False
        step = self.steps[pc]
        batch = self.batch
        batch.steps_left -= 1
        if batch.steps_left < 0:
            raise batch.exhausted(step.instruction)
        group, active, rest = self.group, where, False
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
            index = step.operands[0](group)
            for place, target in enumerate(step.instruction.targets):
                hit = group.algebra.compare("eq", index, place, unsigned=True, bits=32)
                taken = group.algebra.both(active, hit)
                if taken is not False:
                    self._join(target, taken)
        elif step.kind == "barrier":
            self.waiting.append(self._wait(step, pc + 1, active))
        return pc + 1, rest

    def _wait(self, step: Step, pc: int, active: Lanes) -> _Waiting:
        threads = step.operands[1](self.group) if len(step.operands) > 1 else 0
        if not isinstance(threads, int) or not 0 <= threads <= self.batch.launch.threads:
            raise EmulatorError(
                f"a barrier for {threads if isinstance(threads, int) else 'varying numbers of'} threads",
                where=str(step.instruction.source),
            )
        return _Waiting(pc=pc, where=active, number=step.operands[0](self.group), threads=threads)

    def release(self, lanes: Array | None) -> None:
        """Let the threads `lanes` (None: all) go on from their barriers."""
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
