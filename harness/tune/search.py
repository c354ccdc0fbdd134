"""A kernel's parameter space on a problem -> the set of parameters that are fastest, tied ones together.

    candidates as they are compiled -> pruned by what the compiler says (`pruning`)
    -> rungs: timed in turn with a reference, those slower beyond doubt dropped (`halving`)
    -> finals: the rest measured anew on other data, against the reference and against the best of them

Every measurement is `measure.measure`: verified before, timed, verified after. A candidate that is wrong
once, at any stage, is out. Whatever was measured is kept in a `Journal` and not measured again.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from harness.bench.measure import Method
from harness.bench.row import HOT, OK
from harness.bench.session import Bench
from harness.bench.stats import FAST, SLOW, Interval
from harness.errors import ContextLost, HarnessError, UsageError
from harness.kernels.spec import Variant
from harness.launch import kernel
from harness.launch.builds import Built, Progress, Skipped
from harness.launch.operands import Data, Operands, Twin, rotation_sets
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

_LOOK = 0.001  # seconds of a turn where a single block is all there is: a first look at everybody
_SEARCH_SHARE = 0.75  # of a size's time; the rest is for the finals


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """A candidate that was not launched at any size; not `compiled` where the compiler refused it."""

    variant: Variant
    why: str
    compiled: bool


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a tuning found at one size.

    `winners` are tied, the best first: measured on fresh data where `confirmed`, otherwise what was ahead
    when the search had to end, for the reason in `note`. `ranking` has each candidate's last row, the winners
    first, those without a time at the end; `rows` all of them in the order in which they were taken. Rows are
    bench's records with their `stage`; the `ratio` of a rung's in `ranking` is that of all rungs so far. It
    took so many `seconds`, `searching` of them until the finalists were known.
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
    """Tunes on the GPU of `session`. Its baseline, if it computes the problem, is the reference; otherwise
    the first candidate that is right is.
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
        """`ahead` may have begun to make the data of a problem. `identity`: see `Trials`. The time limit
        counts from here.
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
        """Each size as it is done. `candidates` are taken as they come at the first one, and kept."""
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
                self._size.note = str(e)  # of this size: the others may fit
            self.ahead.drop(problem)
            yield self._size.result()
            self._size = None

    def interrupted(self) -> Result | None:
        """What is known of the size at which a fault or Ctrl-C ended `run`."""
        return self._size.result() if self._size is not None else None

    def _worthy(self, candidates: Iterable[Built | Skipped], kept: list[Built]) -> Iterator[Built]:
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
    pass


class _Size:
    """The search at one size. An entrant's number is its place in `entered`."""

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
        self.tuner.ahead.begin(self.problem, self.plan.seeds)
        baseline.load(self.tuner.session, self.problem)
        self.began = self.tuner.clock()  # the data, too, were begun before
        try:
            self._search(candidates)
        except _TimeUp:
            self.note = "time limit: the search ended before all were told apart"
        self.searched = self.tuner.clock()
        self.deadline = self.end
        try:
            while finalists := self._ahead():
                self.winners = finalists
                self._finals(finalists)
                wrong = [e for e in finalists if not self._right(e)]
                if not wrong:
                    break
                for entrant in wrong:  # nobody stays dropped because of one that was wrong
                    self.race.remove(entrant)
        except _TimeUp:
            self.note = self.note or "time limit: not confirmed on fresh data"

    def _search(self, candidates: Iterator[Built]) -> None:
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
        """On fresh data: each against the reference, and then against the best of them."""
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
        """For a reference: on other data the finalists may all be wrong."""
        others = (e for e in self.race.standings if e not in finalists)
        return (self.entered[e] for e in itertools.chain(finalists, others))

    def _duels(self, right: Sequence[int], operands: Operands) -> list[int]:
        """The champion, and whom it does not beat. Whoever beats it takes its place and meets all others."""
        champion, past = right[0], set[int]()
        while True:
            past.add(champion)
            best, stream = self.entered[champion], self.tuner.session.stream
            with Twin(operands, stream) as twin, kernel.prepare(best.cubin, twin) as run:
                champion_run = Opponent(run, best.cubin.sha256)
                others = [e for e in right if e != champion and self._right(e)]
                rows = {e: self._trial(e, operands, champion_run, DUEL, self.tuner.method) for e in others}
            met = {e: row for e, row in rows.items() if row["status"] == OK and row["ratio"]}
            faster = [e for e, row in met.items() if row["decision"] == FAST and e not in past]
            if not faster:
                return [champion, *(e for e, row in met.items() if row["decision"] != SLOW)]
            champion = min(faster, key=lambda e: _estimate(met[e]))

    def _right(self, entrant: int) -> bool:
        row = self.last[entrant]
        return row["status"] == OK and row["ratio"] is not None

    def _trial(self, entrant: int, operands: Operands, against: Opponent, stage: str, method: Method) -> Row:
        """Its row; also its last one, unless from a duel that it ended well: that has another reference."""
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
        session = self.tuner.session

        def data() -> Data:
            return self.tuner.ahead.taken(self.problem, seed) or Data.of(self.problem, seed)

        with blamed(type(self.problem)):
            hot = self.tuner.method.regime == HOT
            sets = 1 if hot else rotation_sets(session.context, self.problem)
            return Operands(session.context, self.problem, session.stream, seed=seed, sets=sets, data=data)

    def _brief(self, blocks: int) -> Method:
        """A rung's: so many blocks, no warm-up but a run or two, for the pairing takes care of what drifts,
        and one set of outputs verified after. The finals, which take the session's own method, warm up
        until the clock settles and verify every set.
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
        return replace(self.tuner.method, rule=rule, verified=1)

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
    """The time of each ABBA block, from the medians of its two batches; see `sampling.Pair`."""
    return [math.sqrt(a * b) for a, b in zip(medians[0::2], medians[1::2], strict=True)]


def _with_ratio(row: Row, ratio: Interval) -> Row:
    return {**row, "ratio": rows.ratio(ratio), "speedup": rows.ratio(ratio.inverse)}


def _estimate(row: Row) -> float:
    ratio = row["ratio"]
    return math.inf if ratio is None else ratio["estimate"]


def _place(entrant: int, winners: Sequence[int], row: Row) -> tuple[int, float]:
    if entrant in winners:
        return 0, winners.index(entrant)
    return (1, _estimate(row)) if row["ratio"] else (2, entrant)
