"""Loops that never end, and those that take longer than the budget, told long before it is used up.

From time to time the branches back of a batch are looked at more closely. If the control slice of all its
threads has been seen before at the outermost of them (Brent, "An improved Monte Carlo factorization
algorithm", BIT 1980), the loop never ends. Otherwise the registers that its exits compare are followed over
some turns: where they near each other, they tell how many turns are left, and a loop may take its time. One
that nothing bounds may not. Before that is said it lets other lanes, warps and blocks run for some time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.blocks.endless.turns import (
    Comparison,
    comparisons,
    exits,
    last_turns,
    turns_left,
    value_of,
)
from harness.emulator.blocks.slice import Repeats
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.numbers.values import Array, Lanes
from harness.errors import NotEnded

if TYPE_CHECKING:
    from harness.emulator.blocks.batch import Batch
    from harness.emulator.blocks.runner import Runner

BUDGET = 5_000_000  # instructions of a batch, unless its launch says otherwise
PATIENCE = 50_000  # of them in a loop that nothing bounds, and one for every four bytes of the arguments
FIRST, _LATE = 5_000, 0.5  # of them before loops are looked at; seconds, where instructions are slow
_LEAST = 250  # of them in a phase of a look
_SECONDS = 4  # of this thread in a loop that nothing bounds; more with a larger budget
_SLOW = 6, 500, 1024  # of slow instructions, as printf's: seconds, turns at least, and threads at most
_SHARE = 0.4  # of all these seconds, where others run and it is told twice
_GROWTH = 1.5  # from one look to the next, or `_LATE` seconds where that is sooner
_SHOTS = 16  # turns that a look lasts, or more, until lanes have taken three
_YIELD = 16  # turns after which lanes in an endless loop let others run
# Of `_SECONDS`: when loops that nothing bounds let others run, and for how long none is called a hang; the
# most such times of a launch.
_FAIR, _TIMES = (1 / 8, 1 / 2), 3
_LET = 1 / 8  # of the turns of `_SLOW`, in a loop that lets others run, who take the time


@dataclass(frozen=True)
class Edge:
    """A branch back: the first and the last instruction of its loop, and the first thread of the group."""

    target: int
    pc: int
    row: int


class Fair:
    """Lets others run: lanes, warps and blocks that have not come to run may end a loop that nothing else
    bounds, and that changes memory while it waits for them. From the first such loop on all loops of a launch
    do so. For some time none is called a hang, and blocks begin that have not begun.

    had: the loops that had that time, by their first instruction
    """

    def __init__(self) -> None:
        self._end = 0.0  # of the present time, in seconds of this thread
        self.had: set[int] = set()

    @property
    def open(self) -> bool:
        """Return whether no loop is called a hang now."""
        if self._end and time.thread_time() > self._end:
            self._end = 0.0
        return self._end > 0

    def begin(self, edge: Edge, seconds: float) -> bool:
        """Begin the time of a loop, and return True, unless it has had it or there were enough."""
        if edge.target in self.had or len(self.had) == _TIMES:
            return False
        self.had.add(edge.target)
        self._end = time.thread_time() + max(seconds, _LATE)
        return True


class Loops:
    """The branches back that the threads of `batch` take.

    spinning: the loops that do the same again and again while others could run, by the first thread of the
      group and the branch
    unbounded: what is said of loops that nothing bounds but what others do, by the first thread of the group
    gave: how often a loop that may yet end has let others run
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._wake = batch.launch.budget - FIRST  # the next look, in steps that are left
        self._start = time.thread_time()
        self._candidate = Edge(0, 0, 0)  # the outermost branch back seen while looking for one
        self._outer: Edge | None = None  # the outermost branch back of this look
        # By the first thread of a group: its outermost branch back, since which instruction and which second.
        self._began: dict[int, tuple[int, int, float]] = {}
        self._until = 0  # end of this phase
        self._following = False
        self._repeats = Repeats()
        self._shots: list[tuple[int, Lanes, list[Array]]] = []
        self._turns: Any = 0  # of each lane, in this look
        self.spinning: set[tuple[int, int]] = set()
        self.unbounded: dict[int, str] = {}
        self.gave = 0
        self._shared = False  # others have run since the loop was first the outermost one
        self._fair = batch.launch.fair
        self._compared: dict[Edge, list[Comparison]] = {}
        self._taken: dict[tuple[int, int], int] = {}  # how often those loops that let others run
        self._let = False  # one that might have gone on did so in this turn of the batch

    def took(self, runner: Runner, pc: int, where: Lanes) -> bool:
        """Note that the lanes `where` take the branch back `pc`; return whether others shall run first.

        Raises EmulatorError for a loop that does not end, or not within the budget, or the time.
        """
        self._batch.launch.timely()
        livelocks = self._batch.launch.livelocks
        if livelocks.took(runner, pc):
            return True
        if self.spinning or self._fair.had or livelocks.lets:
            key = (runner.group.row, pc)
            spins = key in self.spinning
            fair = self._fair.open if self._batch.beside else self._fair.had
            if spins or fair or livelocks.lets:
                self._taken[key] = self._taken.get(key, 0) + 1
                if self._taken[key] % _YIELD == 0:
                    self._let |= not spins
                    self.gave += not spins
                    return True
        if self._batch.steps_left > self._wake:
            if self._outer is not None or time.thread_time() - self._start < _LATE:
                return False
            self._wake = self._batch.steps_left
        used = self._batch.launch.budget - self._batch.steps_left
        edge = Edge(self._batch.launch.entry.instructions[pc].targets[0], pc, runner.group.row)
        if not self._following:
            self._scout(edge, used)
        elif edge == self._outer:
            return self._follow(runner, edge, where, used)
        elif used > self._until:
            self._rest(used)
        return False

    def turns(self) -> list[tuple[tuple[int, int], int]]:
        """Return how far the loops that let others run are from doing so again."""
        return sorted((key, turns % _YIELD) for key, turns in self._taken.items())

    def begin(self) -> None:
        """Count the turns anew after which loops let others run: all have."""
        self._taken = dict.fromkeys(self._taken, 0)

    def restart(self) -> None:
        """Forget the states that were seen: others have run. How a counter nears its bound still holds, and
        a loop that need not have let them run is judged as one that is alone.
        """
        self._repeats, self._shared, self._let = Repeats(), self._shared or not self._let, False

    def _scout(self, edge: Edge, used: int) -> None:
        """Find the outermost branch back that is taken for some time."""
        if not self._until:
            self._until, self._candidate = self._next(used), edge
        # That of a group of which nothing is said yet comes first.
        ranks = [(e.row in self.unbounded, e.target, -e.pc) for e in (edge, self._candidate)]
        if ranks[0] < ranks[1]:
            self._candidate = edge
        if used >= self._until:
            self._outer, self._following = self._candidate, True
            row, target = self._candidate.row, self._candidate.target
            if self._began.get(row, (-1,))[0] != target:
                self._began[row] = target, used, time.thread_time()
                self._shared = False
                self.unbounded.pop(row, None)
            self._until = self._next(used)
            self._repeats, self._shots, self._turns = Repeats(), [], 0

    def _next(self, used: int) -> int:
        """Return the instruction at which a phase ends that begins now."""
        rate = used / max(time.thread_time() - self._start, 1e-3)
        late = _LATE * (_SHARE if self._shared or self.spinning else 1)
        return min(int(used * _GROWTH), used + max(_LEAST, int(rate * late)))

    def _rest(self, used: int) -> None:
        """End a look, and plan the next one."""
        self._following, self._until = False, 0
        self._wake = self._batch.launch.budget - self._next(used)

    def _follow(self, runner: Runner, edge: Edge, where: Lanes, used: int) -> bool:
        """Compare a turn with earlier ones; return whether others shall run first."""
        batch, launch = self._batch, self._batch.launch
        if launch.code.slice.complete and self._repeats.seen([batch]):
            others = [r for r in batch.runners if r is not runner and (r.ready or r.later or r.parked)]
            if runner.ready or runner.later or runner.parked or others or not launch.alone:
                self.spinning.add((edge.row, edge.pc))
                self._taken[edge.row, edge.pc] = 0
                self._rest(used)
                return True
            runner.join(edge.target, where)
            raise batch.hangs(f"the loop that ends at {self._source(edge)} does the same again and again")
        if edge not in self._compared:
            self._compared[edge] = comparisons(launch.code, edge.target, edge.pc)
        compared = self._compared[edge]
        values = [value_of(runner, text, c.kind) for c in compared for text in c.instruction.operands[1:3]]
        self._shots.append((used, where, values))
        lanes = broadcast_mask(where, runner.group.shape)
        self._turns = self._turns + lanes  # where each warp takes its turns apart, 16 may be of as many warps
        thrice = self._turns[lanes].max(initial=0) >= 3
        if (len(self._shots) >= _SHOTS and thrice) or used > self._until:
            self._judge(runner, edge, compared, used)
            self._rest(used)
            # Which others may still end; where all let them run, now and then does not repeat itself.
            return edge.row in self.unbounded and not launch.livelocks.lets
        return False

    def _judge(self, runner: Runner, edge: Edge, compared: list[Comparison], used: int) -> None:
        """Raise EmulatorError for a loop that takes longer than the budget, or that nothing bounds."""
        batch, launch = self._batch, self._batch.launch
        if len(self._shots) < 3:
            return
        shape = runner.group.shape
        taken = np.stack([broadcast_mask(where, shape) for _, where, _ in self._shots])
        latest = last_turns(taken)
        lanes = taken[-1] & (latest[0][0] >= 0)
        if not lanes.any():
            return
        turns = np.full((2, *shape), np.inf)
        for place, one in enumerate(compared):
            pairs = [shot[2][2 * place : 2 * place + 2] for shot in self._shots]
            gaps = np.stack([np.broadcast_to(a - b, shape) for a, b in pairs])
            turns = np.minimum(turns, turns_left(one, [np.take_along_axis(gaps, i, 0)[0] for i in latest]))
        even, left = turns[:, lanes].max(axis=1, initial=0)
        times = np.array([shot[0] for shot in self._shots])
        span = int((times[latest[2]] - times[latest[0]])[:, lanes].max())  # of two turns, in instructions
        total = used + even * span / 2
        _, first, since = self._began[edge.row]
        seconds, spent = time.thread_time() - since, used - first
        if np.isfinite(even) and total > launch.budget:
            if len(exits(launch.entry, edge.target, edge.pc)) == 1:
                runner.join(edge.target, self._shots[-1][1])
                raise batch.too_long(self._source(edge), int(even), int(total))
            self._let_others(edge, seconds)
        if np.isfinite(left) or launch.livelocks.hopes:
            self.unbounded.pop(edge.row, None)
            return
        others = self._shared or bool(self.spinning)  # which may still do what it waits for
        share = _SHARE if others else 1
        scale = launch.budget / BUDGET * share
        if self._let_others(edge, seconds):
            return
        few = launch.threads * sum(other.blocks for other in launch.livelocks.batches.values()) <= _SLOW[2]
        enough = _SLOW[1] * (_LET if self._fair.had and not batch.beside else 1)
        longest = _SLOW[0] * (1 if batch.beside else max(share, scale))
        slow = few and spent * 2 / span > enough and seconds > longest
        if slow or (spent > launch.patience and seconds > _SECONDS * scale):
            said = self.unbounded[edge.row] = (
                f"the loop that ends at {self._source(edge)} has not ended after {spent:,} "
                f"instructions and {seconds:.0f} s, and no counter bounds it"
            )
            if not others:
                runner.join(edge.target, self._shots[-1][1])
                raise batch.hangs(said, NotEnded)

    def _let_others(self, edge: Edge, seconds: float) -> bool:
        """Let others run if a loop has taken so many seconds; return whether it is their time."""
        whole = _SECONDS * self._batch.launch.budget / BUDGET
        due = seconds > _FAIR[0] * whole and (edge.row, edge.pc) not in self.spinning
        if due and self._fair.begin(edge, _FAIR[1] * whole):
            self._batch.launch.livelocks.restart()
            self._batch.launch.schedule.holds = False  # what is held may be what it waits for
        return self._fair.open

    def _source(self, edge: Edge) -> str:
        return str(self._batch.launch.entry.instructions[edge.pc].source)
