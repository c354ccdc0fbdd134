"""A batch of blocks side by side, from their start to their end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.blocks.barriers import Barriers
from harness.emulator.blocks.endless.loops import Loops
from harness.emulator.blocks.runner import Runner
from harness.emulator.blocks.special import Clock
from harness.emulator.group import Group
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import Scratch
from harness.emulator.numbers.values import Array, Lanes
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.patterns import WARP
from harness.errors import EmulatorError, NotEnded

if TYPE_CHECKING:
    from harness.emulator.machine import Launch


class Endless:
    """Tells when all threads that run are in loops that nothing bounds but what another one might do.

    That is told twice, by looks that come after each other: one of them may have been let go meanwhile.
    """

    def __init__(self) -> None:
        self._running: set[Batch] = set()
        self._sure = False
        self._gave = self._polls = 0

    def polls(self, running: Sequence[Batch], idle: int) -> int:
        """Return in how many turns up to this one, the `idle` one of those without progress, no loop that may
        yet end let others run.
        """
        gave = sum(batch.loops.gave for batch in running)
        self._polls = self._polls + 1 if idle and gave == self._gave else 0
        self._gave = gave
        return self._polls

    def seen(self, running: Sequence[Batch]) -> bool:
        """Return whether all loops are such; begin anew where others run than before."""
        again = self._running == set(running)
        if not again:
            self._running, self._sure = set(running), False
        found = bool(running) and all(
            runner.group.row in batch.loops.unbounded
            for batch in running
            for runner in batch.runners
            if runner.ready or runner.later or runner.parked
        )
        if found and self._sure:
            return True
        if found or not again:
            self._sure = found and again
            for batch in running:
                batch.loops.unbounded.clear()
        return False


class Batch:
    """Blocks `first` to ``first + blocks - 1`` of the launch, executed side by side.

    rows: threads in a group; 0 follows from the schedule
    last: the group whose strong writes come when nobody else can go on, see `Schedule`

    Raises EmulatorError if their shared and local memory does not fit this machine.
    """

    base = 0  # address at which the shared memory of a block begins
    rank = 0  # its number in its cluster
    polls = 0  # of its threads so far
    beside = False  # other blocks take turns with it from the beginning

    def __init__(self, launch: Launch, first: int, blocks: int, rows: int = 0) -> None:
        self.launch, self.first, self.blocks = launch, first, blocks
        try:
            self.shared, self.local = self._memory()
        except MemoryError as error:
            raise EmulatorError(
                "shared and local memory of one batch of blocks do not fit this machine"
            ) from error
        self.steps_left, self.clock = launch.budget, Clock()
        self.loops = Loops(self)
        if launch.hazards is not None:
            launch.hazards.start(blocks)
        if launch.races is not None:
            self.order = launch.races.start(first, blocks)
        by_warp = launch.schedule.by_warp or (launch.schedule.backward and bool(launch.code.polled))
        rows = rows or (WARP if by_warp else launch.threads)
        count = len(launch.entry.registers)
        self.runners = [
            Runner(Group(self, row, min(rows, launch.threads - row), count), self)
            for row in range(0, launch.threads, rows)
        ]
        self.last: Runner | None = None
        if launch.schedule.holds and not first and len(self.runners) > 1:
            self.last = self.runners[-1]
            self.last.hold(launch.code.signals)
        self.barriers = Barriers(self)
        self._columns: dict[tuple[str, int], Array] = {}
        launch.livelocks.batches[first] = self

    def _memory(self) -> tuple[Scratch, Scratch]:
        """Return the shared and the local memory of the blocks."""
        local = Scratch(self.launch.entry.sizes.get("local", 0), self.blocks * self.launch.threads)
        return Scratch(self.launch.shared_size, self.blocks), local

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

    def run(self) -> Iterator[None]:
        """Run all blocks to their end; yield whenever all that can run only polls memory.

        Raises EmulatorError when they have used up the budget.
        """
        while True:
            with self.launch.underflow.watching():
                for runner in self.launch.schedule.turns(self.runners):
                    runner.run()
            polling = any(runner.later or runner.parked for runner in self.runners)
            if any(runner.waiting for runner in self.runners) and self.barriers.meet(not polling):
                continue
            if not polling:
                break
            stuck = not any(runner.members.moved for runner in self.runners)
            for runner in self.runners:
                runner.members.forced = stuck
            if not stuck:
                yield
        if self.launch.hazards is not None:
            self.launch.hazards.barrier(None)

    def end(self) -> None:
        """Let go of all that the batch has: it, its runners and groups refer to each other, so that Python
        would keep their registers, and the launch, for several launches.
        """
        self.launch.livelocks.leaves(self)
        for runner in self.runners:
            vars(runner.group).clear()
            vars(runner).clear()
        vars(self).clear()

    def left(self, group: Group, where: Lanes) -> None:
        """Note that the lanes `where` of a group have ended."""

    def arrived(self, number: int, row: int, lanes: Array) -> None:
        """Note that the threads `lanes` of the group that begins at thread `row` arrive at a barrier."""

    def mark(self, group: Group, pc: int) -> None:
        """Note the registers that an instruction is about to touch while products of wgmma are in flight."""

    def gathered(self, group: Group, where: Lanes) -> None:
        """Note that the lanes `where` of a group pass a barrier of their warps."""

    def fenced(self, group: Group, where: Lanes) -> None:
        """Note a fence in the lanes `where` of a group."""

    def met(self, number: int, lanes: Array) -> None:
        """Note that the threads `lanes`, bool (threads, blocks), pass the barrier `number` together."""

    def hangs(self, how: str, kind: type[EmulatorError] = EmulatorError) -> EmulatorError:
        """Return the error for threads that never end; `how` says how that is known.

        kind: NotEnded where it follows from the time alone
        """
        return kind(
            f"the kernel hangs: {how}",
            where=f"block {self.launch.block_index(self.first)}",
            hint="A kernel that only takes long needs a larger budget: --budget, or from Python budget=. "
            f"Where the threads stand: {self.standing()}",
        )

    def too_long(self, where: str, turns: int, total: int) -> EmulatorError:
        """Return the error for a loop that ends after `turns` more turns, `total` instructions in all."""
        return NotEnded(
            f"the loop that ends here takes about {turns:,} more turns: {total:,} instructions in all, and "
            f"the budget is {self.launch.budget:,}",
            where=where,
            hint=f"Take a smaller shape, or --budget {total + total // 4:_}, from Python "
            f"emulate(..., budget={total + total // 4:_}). Where the threads stand: {self.standing()}",
        )

    def exhausted(self, instruction: Instruction) -> EmulatorError:
        """Return the error for a budget that ends at `instruction`."""
        return NotEnded(
            f"the kernel has not ended after {self.launch.budget:,} instructions",
            where=str(instruction.source),
            hint="Does the loop there end? If it only takes long, give the emulator a larger budget: "
            f"--budget, or from Python budget=. The threads stand: {self.standing()}",
        )

    def standing(self) -> str:
        """Return where the warps of the batch stand, as text, with the first block of each place."""
        places: dict[str, Array] = {}
        for runner in self.runners:
            rows = slice(runner.group.row, runner.group.row + runner.group.shape[0])
            for pc, where, what in runner.standing():
                if pc < len(self.launch.entry.instructions):
                    source = self.launch.entry.instructions[pc].source
                    none = np.zeros((self.launch.threads, self.blocks), np.bool_)
                    places.setdefault(f"at {source} ({what})", none)[rows] |= broadcast_mask(
                        where, runner.group.shape
                    )
        return "; ".join(f"{self._who(lanes)} {place}" for place, lanes in places.items() if lanes.any())

    def _who(self, lanes: Array) -> str:
        """Return which threads `lanes`, bool (threads, blocks), are: how many, and the warps of one block."""
        blocks = np.nonzero(lanes.any(0))[0]
        warps = np.unique(np.nonzero(lanes[:, blocks[0]])[0] // WARP)
        runs = np.split(warps, np.nonzero(np.diff(warps) > 1)[0] + 1)
        named = ", ".join(f"{r[0]}" if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)
        more = "" if len(blocks) == 1 else f" and of {len(blocks) - 1:,} other block"
        more += "s" if len(blocks) > 2 else ""
        block = self.launch.block_index(self.first + int(blocks[0]))
        plural = "s" if len(warps) > 1 else ""
        return f"{int(lanes.sum()):,} threads (warp{plural} {named} of block {block}{more})"
