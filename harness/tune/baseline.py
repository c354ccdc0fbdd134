"""Whom the candidates of a tuning are timed in turn with: cuBLAS, or the first of them that is right."""

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
from harness.launch.operands import Operands, Twin
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem
from harness.tune.trials import Trials


@dataclass(frozen=True)
class Opponent:
    """A launch that others are timed in turn with; `name` says which code it is."""

    run: Launch
    name: str


def load(session: Bench, problem: Problem) -> None:
    """Have cuBLAS ready for this problem, where `reference` will take it: that is no part of a search."""
    if isinstance(session.baseline, CuBlas) and isinstance(problem, Gemm):
        with suppress(OutOfMemory):  # the operands will say what does not fit
            session.baseline.load(problem, session.stream)


def reference(
    trials: Trials, operands: Operands, candidates: Iterator[Built], owned: ExitStack
) -> tuple[Opponent, Iterator[Built]]:
    """On outputs of its own; and the candidates, none of them lost."""
    session, problem = trials.session, operands.problem
    twin = owned.enter_context(Twin(operands, session.stream))
    if session.baseline is not None and session.baseline.serves(problem):
        run, label = owned.enter_context(session.baseline.prepare(twin)), session.baseline.label
        if not check(run, session.stream, sets=1).ok:
            raise HarnessError(f"{label} is wrong on {problem.label}: nothing to compare with")
        return Opponent(run, label), candidates
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
