"""Measure one candidate of a tuning at one stage, or take its row from the journal."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict

from harness.bench.measure import Method
from harness.bench.row import Measurement
from harness.bench.session import Bench
from harness.errors import UsageError
from harness.launch import kernel
from harness.launch.builds import Built, Progress
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.results import encode
from harness.results.rows import Row
from harness.support.cache import digest
from harness.tune.journal import Journal

_FORMAT = "2"  # version of the journal's keys, and part of each


class Trials:
    """The measurements of a tuning: those in `journal` are reused, the others are made in `session`.

    `identity` names all that a row depends on beside the candidate and the method: the GPU, its driver, the
    baseline's version. A row counts as equally fast as its reference if their times differ by less than the
    fraction `threshold`. `rows` has the rows of this process in order; `measured` and `resumed` count those
    that were measured and those from the journal.
    """

    def __init__(
        self,
        session: Bench,
        journal: Journal,
        *,
        identity: Sequence[str],
        threshold: float,
        progress: Progress,
    ) -> None:
        self.session, self.journal = session, journal
        self.rows: list[Row] = []  # those taken from the journal included
        self.measured = self.resumed = 0
        self._own: set[str] = set()  # the keys of `rows`
        self._identity, self._threshold, self._progress = tuple(identity), threshold, progress

    def row(
        self,
        one: Built,
        operands: Operands,
        against: Launch | None,
        whose: str,
        stage: str,
        method: Method | None,
    ) -> Row:
        """Return the row of ``harness bench`` for one candidate, with its `stage`.

        The candidate is timed in turn with `against`, if given, which `whose` identifies. Without a `method`
        it is only verified. Errors become rows too. Raises ContextLost after a fault on the GPU; the row that
        says so is then in `rows` and the journal.
        """
        problem = operands.problem
        self._progress(f"{problem.label} {stage}: {one.variant.params_label}")
        try:
            key = self._key(one, operands, whose, stage, method)
        except UsageError as e:  # the problem is too large for a grid
            return self._keep(self._record(Measurement.failed_with(one, problem, e), one, stage))
        if (known := self.journal.get(key)) is not None:
            if key in self._own:
                return known
            self._own.add(key)
            self.resumed += 1
            return self._keep(known)
        self._own.add(key)
        self.journal.begin(key, self._record(Measurement.failed_with(one, problem, ""), one, stage))
        found, lost = self.session.attempt(one, operands, against, method)
        self.measured += 1
        row = self._keep(self._record(found, one, stage))
        self.journal.put(key, row)
        if lost is not None:
            raise lost
        return row

    def _key(self, one: Built, operands: Operands, whose: str, stage: str, method: Method | None) -> str:
        """Return the journal's key: a hash of all that the row depends on."""
        variant, problem = one.variant, operands.problem
        grid = kernel.grid(variant, problem, sms=operands.context.device.sms)
        axes = [(name, getattr(problem, name, None)) for name in problem.axes]
        what = (one.cubin.sha256, grid, variant.block, variant.shared, type(problem).__qualname__, axes)
        timing = method and (method.regime, sorted(asdict(method.rule).items()))
        how = (whose, stage, timing, operands.seed, len(operands.buffers))
        return digest(_FORMAT, *self._identity, repr(what), repr(how))

    def _record(self, found: Measurement, one: Built, stage: str) -> Row:
        """Return a measurement as a row, with its stage, the time in UTC, and the seconds of its build."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        row = encode.timed_record(found, self.session.context.device.peak_fp32, self._threshold)
        return {**row, "stage": stage, "utc": now, "build_seconds": one.seconds}

    def _keep(self, row: Row) -> Row:
        self.rows.append(row)
        return row
