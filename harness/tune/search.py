"""Search a kernel's parameter space for the fastest parameter sets on a problem; ties are reported together.

    prune: candidates that are not worth a launch are left out as they are compiled (`plan.unfit`)
    rungs: the others are timed in turn with a reference; those slower beyond doubt are dropped (`race`)
    finals: the rest are measured anew on other data, against the reference and against the best of them

Every measurement is by `harness.bench.measure.measure`: verified before, and each timed launch too. A
candidate that is wrong once, at any stage, is out. All results are kept in a `Journal` and not measured
again.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from harness.bench.measure import Method
from harness.bench.row import OK
from harness.bench.session import Bench
from harness.bench.stats import FAST, SLOW, Interval
from harness.errors import ContextLost, HarnessError, UsageError
from harness.kernels.spec import Variant
from harness.launch import kernel
from harness.launch.builds import Built, Progress, Skipped
from harness.launch.operands import Data, Operands
from harness.problems.protocol import Problem
from harness.problems.registry import blamed
from harness.results import rows
from harness.results.rows import Row
from harness.tune import baseline
from harness.tune.baseline import Opponent
from harness.tune.journal import Journal
from harness.tune.plan import Plan, unfit
from harness.tune.prefetch import Ahead
from harness.tune.race import Race, settled, survivors
from harness.tune.trials import Trials

FINAL, DUEL = "final", "duel"  # stages after the rungs: against the reference, against the best

_LOOK = 0.001  # seconds of a turn in rungs of a single block, a first look at every candidate
_SEARCH_SHARE = 0.75  # of the time for a size; the rest is for the finals


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """A candidate that is not launched at any size, and `why`. `compiled` is False if the build failed."""

    variant: Variant
    why: str
    compiled: bool


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a tuning at one size.

    `shape` is the problem's label. `winners` are the rows of the fastest candidates, tied, the best first. If
    `confirmed`, they were measured on fresh data; otherwise they were ahead when the search had to end, for
    the reason in `note`. `ranking` has each candidate's last row, the winners first, those without a time at
    the end. `rows` has all rows in the order in which they were taken. A row is a record of ``harness bench``
    with its `stage`; in `ranking`, the `ratio` of a row from a rung is that of all its rungs so far.

    The tuning took `seconds`, of which `searching` until the finalists were known. `measured` counts the rows
    that were measured now, `resumed` those from the journal.
    """

    shape: str
    winners: tuple[Row, ...]
    ranking: tuple[Row, ...]
    rows: tuple[Row, ...]
    confirmed: bool
    note: str
    seconds: float
    searching: float
    measured: int
    resumed: int


class Tuner:
    """A tuning on the GPU of `session`, whose baseline is the reference that candidates are compared with.

    If there is no baseline or it does not compute the problem, the first right candidate is the reference.
    """

    def __init__(
        self,
        session: Bench,
        plan: Plan,
        journal: Journal,
        ahead: Ahead,
        *,
        identity: Sequence[str] = (),
        progress: Progress = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the tuning; the plan's time limit counts from here.

        `ahead` may have begun to make the data of problems. `identity` is that of `Trials`. `clock` returns
        seconds. Raises UsageError if the session does not time.
        """
        if session.method is None:
            raise UsageError("a tuner needs a session that times")
        self.session, self.plan, self.ahead, self.clock = session, plan, ahead, clock
        self.method: Method = session.method
        self.trials = Trials(session, journal, identity=identity, threshold=plan.threshold, progress=progress)
        self.unfit: list[Unfit] = []
        self._end = math.inf if plan.time_limit is None else clock() + plan.time_limit
        self._size: _Size | None = None

    def run(self, problems: Sequence[Problem], candidates: Iterable[Built | Skipped]) -> Iterator[Result]:
        """Tune each problem in turn, and yield its result when it is done.

        `candidates` are taken as they are built, during the first problem, and kept for the others. A
        HarnessError at one size is put into its result's `note`. Raises ContextLost after a fault on the GPU.
        """
        worthy: list[Built] = []
        arriving = self._worthy(candidates, worthy)
        for left, problem in zip(range(len(problems), 0, -1), problems, strict=True):
            now = self.clock()
            self._size = _Size(self, problem, now, now + (self._end - now) / left)
            try:
                self._size.tune(itertools.chain(tuple(worthy), arriving))
            except ContextLost:
                raise
            except HarnessError as e:
                self._size.note = str(e)  # for this size only: the others may be possible
            self.ahead.drop(problem)
            yield self._size.result()
            self._size = None

    def interrupted(self) -> Result | None:
        """Return the result so far of the size at which a fault or Ctrl-C ended `run`; None if at none."""
        return self._size.result() if self._size is not None else None

    def _worthy(self, candidates: Iterable[Built | Skipped], kept: list[Built]) -> Iterator[Built]:
        """Yield the candidates that are worth a launch, also into `kept`; note the others in `self.unfit`."""
        for one in candidates:
            compiled = not isinstance(one, Skipped)
            if isinstance(one, Skipped):
                why = str(one.error)
            elif not (why := unfit(one, self.session.context.device)):
                kept.append(one)
                yield one
                continue
            self.unfit.append(Unfit(variant=one.variant, why=why, compiled=compiled))


class _TimeUp(Exception):
    """The deadline of the search or of the finals has passed."""


class _Size:
    """The tuning at one size. Candidates tried are in `entered`; an entrant's number is its index there."""

    def __init__(self, tuner: Tuner, problem: Problem, began: float, end: float) -> None:
        self.tuner, self.problem, self.plan = tuner, problem, tuner.plan
        self.began, self.searched, self.end = began, math.inf, end
        self.deadline = began + _SEARCH_SHARE * (end - began)
        self.race = Race(seed=tuner.plan.seed)
        self.entered: list[Built] = []
        self.last: dict[int, Row] = {}
        self.winners: list[int] = []
        self.confirmed, self.note = False, ""
        trials = tuner.trials
        self._before = len(trials.rows), trials.measured, trials.resumed

    def tune(self, candidates: Iterator[Built]) -> None:
        """Search, and run the finals; repeat these without finalists that turn out to be wrong."""
        self.tuner.ahead.begin(self.problem, self.plan.seeds)
        baseline.load(self.tuner.session, self.problem)
        self.began = self.tuner.clock()  # loading cuBLAS does not count, as making the data ahead does not
        try:
            self._search(candidates)
        except _TimeUp:
            self.note = "time limit: the search ended before all were told apart"
        self.searched = self.tuner.clock()
        if not self.plan.finals:
            return
        self.deadline = self.end
        try:
            while finalists := self._ahead():
                self.winners = finalists
                self._finals(finalists)
                wrong = [e for e in finalists if not self._right(e)]
                if not wrong:
                    break
                for entrant in wrong:  # those dropped only because of a wrong one come back
                    self.race.remove(entrant)
        except _TimeUp:
            self.note = self.note or "time limit: not confirmed on fresh data"

    def _search(self, candidates: Iterator[Built]) -> None:
        """Run rung after rung, until all that are left are equally fast or there are no more rungs."""
        seed, _ = self.plan.seeds
        with self._operands(seed) as operands, ExitStack() as owned:
            reference, candidates = baseline.reference(self.tuner.trials, operands, candidates, owned)
            for rung, blocks in enumerate(self.plan.rungs, 1):
                method = self._brief(blocks)
                for entrant in self._ahead() if rung > 1 else self._enter(candidates):
                    row = self._trial(entrant, operands, reference, f"rung {rung}", method)
                    if row["status"] == OK and row["pair"]:
                        times = (_blocks(row["pair"][side]) for side in ("candidate", "baseline"))
                        self.last[entrant] = _with_ratio(row, self.race.add(entrant, *times))
                    else:
                        self.race.remove(entrant)
                standings = self.race.standings
                if settled({e: standings[e] for e in self._ahead()}, self.plan.threshold):
                    break

    def _enter(self, candidates: Iterator[Built]) -> Iterator[int]:
        for one in candidates:
            self.entered.append(one)
            yield len(self.entered) - 1

    def _ahead(self) -> list[int]:
        return survivors(self.race.standings, self.plan.threshold)

    def _finals(self, finalists: Sequence[int]) -> None:
        """Measure the finalists on fresh data, against the reference and then against the best of them."""
        _, seed = self.plan.seeds
        with self._operands(seed) as operands, ExitStack() as owned:
            reference, _ = baseline.reference(self.tuner.trials, operands, self._best_first(finalists), owned)
            for entrant in finalists:
                self._trial(entrant, operands, reference, FINAL, self.tuner.method)
            right = [e for e in finalists if self._right(e)]
            self.winners = sorted(right, key=lambda e: _estimate(self.last[e]))
            if len(right) > 1:
                self.winners = self._duels(self.winners, operands)
        self.confirmed = bool(self.winners)

    def _best_first(self, finalists: Sequence[int]) -> Iterator[Built]:
        """Yield the finalists, then the other entrants, because on fresh data no finalist may be right."""
        others = (e for e in self.race.standings if e not in finalists)
        return (self.entered[e] for e in itertools.chain(finalists, others))

    def _duels(self, right: Sequence[int], operands: Operands) -> list[int]:
        """Time the right entrants in turn with the best of them, and return it with those it does not beat.

        If others beat it, the fastest of these takes its place and is timed with all others.
        """
        champion, past = right[0], set[int]()
        while True:
            past.add(champion)
            best, stream = self.entered[champion], self.tuner.session.stream
            with operands.twin(stream) as twin, kernel.prepare(best.cubin, twin) as run:
                champion_run = Opponent(run, best.cubin.sha256)
                others = [e for e in right if e != champion and self._right(e)]
                rows = {e: self._trial(e, operands, champion_run, DUEL, self.tuner.method) for e in others}
            met = {e: row for e, row in rows.items() if row["status"] == OK and row["ratio"]}
            faster = [e for e, row in met.items() if row["decision"] == FAST and e not in past]
            if not faster:
                return [champion, *(e for e, row in met.items() if row["decision"] != SLOW)]
            champion = min(faster, key=lambda e: _estimate(met[e]))

    def _right(self, entrant: int) -> bool:
        """Return True if the entrant's last measurement was verified and timed."""
        row = self.last[entrant]
        return row["status"] == OK and row["ratio"] is not None

    def _trial(self, entrant: int, operands: Operands, against: Opponent, stage: str, method: Method) -> Row:
        """Measure an entrant in turn with `against`, and return its row; raises _TimeUp after the deadline.

        The row is kept as its last one, except that of a successful duel, which has another reference.
        """
        if self.last and self.tuner.clock() >= self.deadline:
            raise _TimeUp
        trials = self.tuner.trials
        try:
            row = trials.row(self.entered[entrant], operands, against.run, against.name, stage, method)
        except ContextLost:
            self.race.remove(entrant)
            self.last[entrant] = trials.rows[-1]
            raise
        if stage != DUEL or row["status"] != OK:
            self.last[entrant] = row
        return row

    def _operands(self, seed: int) -> Operands:
        """Upload the data of `seed`, to as many sets as the session visits in a batch."""
        session = self.tuner.session

        def data() -> Data:
            return self.tuner.ahead.taken(self.problem, seed) or Data.of(self.problem, seed)

        with blamed(type(self.problem)):
            sets = session.sets(self.problem)
            return Operands(session.context, self.problem, session.stream, seed=seed, sets=sets, data=data)

    def _brief(self, blocks: int) -> Method:
        """Return the method of a rung with this many ABBA blocks.

        It warms up for a run or two only, because pairing cancels drift, and verifies no timed launch by
        element on the host, as the finals do, which use the session's own method.
        """
        rule = replace(
            self.tuner.method.rule,
            min_samples=1,
            max_samples=1,
            min_time=math.inf,
            min_blocks=blocks,
            turn=_LOOK if blocks == 1 else self.tuner.method.rule.turn,
            warmup=0.0,
            settle=0.0,
        )
        return replace(self.tuner.method, rule=rule, by_element=False)

    def result(self) -> Result:
        winners = [e for e in self.winners or self._ahead() if self._right(e)]
        order = sorted(self.last, key=lambda e: _place(e, winners, self.last[e]))
        rows, measured, resumed = self._before
        now = self.tuner.clock()
        trials = self.tuner.trials
        return Result(
            shape=self.problem.label,
            winners=tuple(self.last[e] for e in winners),
            ranking=tuple(self.last[e] for e in order),
            rows=tuple(trials.rows[rows:]),
            confirmed=self.confirmed,
            note=self.note,
            seconds=now - self.began,
            searching=min(now, self.searched) - self.began,
            measured=trials.measured - measured,
            resumed=trials.resumed - resumed,
        )


def _blocks(medians: Sequence[float]) -> list[float]:
    """Return the time of each ABBA block: the geometric mean of its two batches' medians."""
    return [math.sqrt(a * b) for a, b in zip(medians[0::2], medians[1::2], strict=True)]


def _with_ratio(row: Row, ratio: Interval) -> Row:
    return {**row, "ratio": rows.ratio(ratio), "speedup": rows.ratio(ratio.inverse)}


def _estimate(row: Row) -> float:
    ratio = row["ratio"]
    return math.inf if ratio is None else ratio["estimate"]


def _place(entrant: int, winners: Sequence[int], row: Row) -> tuple[int, float]:
    """Return the key by which the ranking is sorted: winners, then by ratio, then those without one."""
    if entrant in winners:
        return 0, winners.index(entrant)
    return (1, _estimate(row)) if row["ratio"] else (2, entrant)
