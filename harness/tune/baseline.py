"""The code that a tuning's candidates are timed in turn with: the session's baseline, or a candidate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from harness.bench.measure import check
from harness.bench.row import OK
from harness.bench.session import Bench
from harness.errors import HarnessError, OutOfMemory
from harness.launch.builds import Built
from harness.launch.cublas import CuBlas
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem
from harness.tune.trials import Trials


@dataclass(frozen=True)
class Opponent:
    """A launch that candidates are timed in turn with. `name` identifies its code."""

    run: Launch
    name: str


def load(session: Bench, problem: Problem) -> None:
    """Let cuBLAS load its kernel for the problem, if it is the session's baseline: the search is timed."""
    if isinstance(session.baseline, CuBlas) and isinstance(problem, Gemm):
        with suppress(OutOfMemory):  # allocating the operands will raise it with a better message
            session.baseline.load(problem, session.stream)


def reference(
    trials: Trials, operands: Operands, candidates: Iterator[Built], owned: ExitStack
) -> tuple[Opponent, Iterator[Built]]:
    """Return the launch to compare with, which `owned` closes, and all candidates; raise if none is right."""
    session, problem = trials.session, operands.problem
    twin = owned.enter_context(operands.twin(session.stream))
    if session.baseline is not None and session.baseline.serves(problem):
        run, label = owned.enter_context(session.baseline.prepare(twin)), session.baseline.label
        built = session.baseline.built
        if not check(run, session.stream, sets=1).ok:
            raise HarnessError(f"{label} is wrong on {problem.label}: nothing to compare with")
        return Opponent(run, label if built is None else built.cubin.sha256), candidates
    tried = []
    for one in candidates:
        tried.append(one)
        row = trials.row(one, operands, None, "", "reference", None)
        if row["status"] == OK:
            run = owned.enter_context(one.prepare(twin))
            return Opponent(run, one.cubin.sha256), itertools.chain(tried, candidates)
    raise HarnessError(
        f"no candidate is right on {problem.label}: nothing to tune",
        hint="harness verify --sweep says what is wrong with each",
    )
