"""Threads that diverge, reconverge and wait: the fragments of one group.

Threads at the same instruction run together as a fragment. The fragment at the lowest instruction runs first,
so it meets the fragments ahead of it where their paths join. A fragment that polls memory, again and again
and without any store in between, steps back until the others have run. With ``schedule="warp-serial"`` each
warp runs to its next barrier before the following warp starts. The hardware may choose that order too, and in
it a missing barrier shows in the results. With ``backward`` the fragment at the highest instruction runs
first, so that of threads that part, the others come first. With ``random`` it is any fragment, and a group is
interrupted now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.emulator.blocks.control import PROGRESS
from harness.emulator.blocks.members import Members
from harness.emulator.blocks.straight import Straight
from harness.emulator.decode import Step, unset
from harness.emulator.group import Group
from harness.emulator.numbers.values import Array, Integer, Lanes, mask_of
from harness.errors import EmulatorError

if TYPE_CHECKING:
    from harness.emulator.blocks.batch import Batch

_PATIENCE = 4  # polls in a row before a fragment lets the others run
_COMINGS = 100  # how often a group that is held comes late


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A fragment that waits at a barrier.

    pc: the instruction at which it goes on
    where: its lanes
    number: the barrier's number
    threads: how many threads the barrier waits for; 0 is all of the block
    reduce: of ``bar.red`` how the predicates `says` are combined: popc, and, or; `into` gets the result
    """

    pc: int
    where: Lanes
    number: Integer
    threads: int
    reduce: str = ""
    says: Lanes = False
    into: int = -1


class Runner:
    """Runs the fragments of one group until each of them waits, polls or has ended.

    ready: the lanes of each fragment that can run, by the instruction that it is at
    later: the same for those that poll
    parked: the same for those whose instruction has to wait, such as for a phase of an mbarrier
    waiting: the fragments at barriers
    polls: how often a fragment has polled in a row
    """

    def __init__(self, group: Group, batch: Batch) -> None:
        self.group = group
        self.batch = batch
        self.launch = batch.launch
        self.steps = batch.launch.steps
        self.counter = batch.launch.counter
        self.ready: dict[int, Lanes] = {0: True}
        self.later: dict[int, Lanes] = {}
        self.parked: dict[int, Lanes] = {}
        self.waiting: list[Waiting] = []
        self.members = Members(self)
        self.schedule = batch.launch.schedule
        # One that is drawn may interrupt a group at any instruction.
        self._stops = self.schedule.dice is not None
        self._straight = {} if self._stops else batch.launch.code.straight
        self._held: frozenset[int] = frozenset()
        self._stopped = self._released = False  # by what is held; it may come
        self._seen = self._comings = 0  # the launch's progress when it last came, and how often it did
        self.polls = 0
        self._progress = 0
        self._paused = -1  # the launch's progress when it was last interrupted

    def run(self) -> bool:
        """Run until no fragment is ready, or the group is interrupted; return whether any fragment was ready.

        Raises EmulatorError for an instruction that cannot be executed.
        """
        self.members.moved = bool(self.ready or self.later)
        self._released &= self.launch.progress == self._seen  # until it has changed anything
        for held in (self.later, self.parked):
            for pc, where in held.items():
                self.join(pc, where)
            held.clear()
        some = bool(self.ready)
        schedule = self.schedule
        while self.ready:
            pc = schedule.pick(self.ready)
            where = self.ready.pop(pc)
            try:
                while where is not False:
                    if self.ready and schedule.parts(pc, self.ready):
                        self.join(pc, where)
                        break
                    if self._stops and self._interrupted(pc):
                        self.join(pc, where)
                        self._step_back()
                        return some
                    straight = self._straight.get(pc) if where is True else None
                    if straight is not None and self._begins(straight):
                        for pc, run in straight.runs:  # noqa: B007 - named where it fails
                            run(self.group, True)
                        pc = straight.end
                        continue
                    pc, where = self._step(pc, where)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # Only PTX that no compiler wrote gets here: decoding does not check every operand's type.
                ins = self.steps[pc].instruction
                raise EmulatorError(
                    f"cannot execute {ins} {', '.join(ins.operands)}: {error}",
                    where=f"{ins.source} (PTX line {ins.ptx_line})",
                ) from error
        return some

    def hold(self, instructions: frozenset[int]) -> None:
        """Let others run before the group executes one of the instructions, each time."""
        self._held, self._stops, self._straight = instructions, True, {}

    def record(self, steps: list[Step] | None) -> None:
        """Execute `steps` in place of the launch's, one by one; None ends that."""
        self.steps = steps or self.launch.steps
        self._straight = {} if steps or self._stops else self.launch.code.straight

    def comes(self, for_good: bool = False) -> bool:
        """Let what is held come, for nobody else can go on; return whether the group waits for that.

        for_good: nothing is held any more
        """
        if not self._stopped:
            return False
        self._stopped, self._released, self._seen = False, True, self.launch.progress
        self._comings += 1
        if for_good or self._comings == _COMINGS:
            self._held = frozenset()
        return True

    def _begins(self, straight: Straight) -> bool:
        """Note that all lanes execute straight code; return whether they may do so at once."""
        length = straight.end - straight.first
        if self.group.warpgroup is not None or self.batch.steps_left < length:
            return False
        self.batch.steps_left -= length
        self.launch.progress += straight.progress
        if self.counter is not None:
            self.counter.executed(straight.first, straight.end, self.group.lanes)
        return True

    def _interrupted(self, pc: int) -> bool:
        """Return whether others run before it goes on at `pc`, never twice while nothing changes."""
        if self._held:
            self._stopped = pc in self._held and self.schedule.holds and not self._released
            return self._stopped
        if self.launch.progress == self._paused or not self.schedule.pauses():
            return False
        self._paused = self.launch.progress
        return True

    def _step_back(self) -> None:
        """Let others run before the fragments that are ready."""
        for pc, where in self.ready.items():
            self.later[pc] = self.group.algebra.either(self.later.get(pc, False), where)
        self.ready.clear()

    def join(self, pc: int, where: Lanes) -> None:
        """Add lanes to the fragment that is ready at instruction `pc`."""
        self.ready[pc] = self.group.algebra.either(self.ready.get(pc, False), where)

    def _step(self, pc: int, where: Lanes) -> tuple[int, Lanes]:
        """Execute instruction `pc`; return the next instruction and the lanes that go on there."""
        if pc >= len(self.steps):
            self._leave(where)
            return pc, False
        step = self.steps[pc]
        batch = self.batch
        batch.steps_left -= 1
        if batch.steps_left < 0:
            self.join(pc, where)
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
        if step.members is not None and step.run is not None:
            gone, active = self.members.admit(step, pc, active)
            where = group.algebra.either(rest, gone)
            if gone is False:
                return pc + 1, where
        if self.counter is not None:
            self.counter.executions[pc] += group.count(active)
        if group.warpgroup is not None:
            batch.mark(group, pc)
        if step.run is not None:
            step.run(group, active)
            if self.launch.paces[pc]:
                return self._paced(pc, where)
            if not step.kind:
                return pc + 1, where
        return self._control(step, pc, active, rest)

    def _control(self, step: Step, pc: int, active: Lanes, rest: Lanes) -> tuple[int, Lanes]:
        """Execute control flow in the lanes `active`; the lanes `rest` skip it. Returns what `_step` does."""
        if step.kind == "branch":
            target = step.instruction.targets[0]
            if target <= pc and self.batch.loops.took(self, pc, active):
                self.later[target] = self.group.algebra.either(self.later.get(target, False), active)
                return pc + 1, rest
            if rest is False:
                return target, active
            self.join(target, active)
        elif step.kind == "table":
            self._scatter(step, active)
        elif step.kind == "barrier":
            self._wait(step, pc + 1, active)
            if step.arrives:
                return pc + 1, self.group.algebra.either(rest, active)
        elif step.attempt is not None:
            done = step.attempt(self.group, active)
            left = self.group.algebra.both(active, self.group.algebra.negate(done))
            if left is not False:
                self.parked[pc] = self.group.algebra.either(self.parked.get(pc, False), left)
            if done is not False:
                self.launch.progress += 1
                return pc + 1, self.group.algebra.either(rest, done)
        else:
            self._leave(active)
        return pc + 1, rest

    def _leave(self, where: Lanes) -> None:
        """End the lanes `where`."""
        self.launch.progress += 1
        self.members.ended = self.group.algebra.either(self.members.ended, where)
        self.batch.left(self.group, where)

    def _paced(self, pc: int, where: Lanes) -> tuple[int, Lanes]:
        """Note what the instruction `pc` means for others; return what `_step` does."""
        launch = self.launch
        if launch.paces[pc] == PROGRESS:
            launch.progress += 1
            return pc + 1, where
        if launch.progress != self._progress:
            self._progress, self.polls = launch.progress, 0
        self.polls += 1
        self.batch.polls += 1
        if self.polls < _PATIENCE:
            return pc + 1, where
        self.polls = 0
        self.later[pc + 1] = self.group.algebra.either(self.later.get(pc + 1, False), where)
        return pc + 1, False

    def _scatter(self, step: Step, active: Lanes) -> None:
        """Send each active lane to the target that its index selects (``brx.idx``)."""
        algebra = self.group.algebra
        index = step.operands[0](self.group)
        for place, target in enumerate(step.instruction.targets):
            taken = algebra.both(active, algebra.compare("eq", index, place, unsigned=True, bits=32))
            if taken is not False:
                self.join(target, taken)

    def _wait(self, step: Step, pc: int, active: Lanes) -> None:
        """Arrive at a barrier, and wait there unless the instruction only arrives.

        Raises EmulatorError for a bad number of threads.
        """
        group = self.group
        threads = step.operands[1](group) if len(step.operands) > 1 else 0
        if not isinstance(threads, int) or not 0 <= threads <= self.launch.threads:
            raise EmulatorError(
                f"a barrier for {threads if isinstance(threads, int) else 'varying numbers of'} threads",
                where=str(step.instruction.source),
            )
        wait = Waiting(
            pc=pc,
            where=active,
            number=step.operands[0](group),
            threads=threads,
            reduce=step.reduce,
            says=step.says(group) if step.says is not None else False,
            into=step.into,
        )
        if step.arrives:
            self.batch.barriers.arrive(wait, group)
        else:
            self.waiting.append(wait)

    def release(self, lanes: Array | None) -> None:
        """Let the threads `lanes`, bool (threads, blocks) or None for all, go on from their barriers."""
        waiting, self.waiting = self.waiting, []
        algebra, row = self.group.algebra, self.group.row
        for wait in waiting:
            go = True if lanes is None else mask_of(lanes[row : row + self.group.shape[0]])
            gone = algebra.both(wait.where, go)
            if gone is not False:
                self.join(wait.pc, gone)
            left = algebra.both(wait.where, algebra.negate(gone))
            if left is not False:
                self.waiting.append(replace(wait, where=left))
        if lanes is None:
            self.group.clock = self.group.epoch = 0

    def standing(self) -> list[tuple[int, Lanes, str]]:
        """Return (instruction, lanes, what they do) of each fragment, for messages."""
        found = [(pc, where, "running") for pc, where in self.ready.items()]
        found += [(pc, where, "polling") for pc, where in self.later.items()]
        found += [(pc, where, "waiting") for pc, where in self.parked.items()]
        return found + [(w.pc - 1, w.where, f"at barrier {w.number}") for w in self.waiting]
