"""Sources of the data of timed launches, each with the verification of what was computed from it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from harness.driver import Stream
from harness.launch.fresh import freivalds
from harness.launch.fresh.datasets import DataSets
from harness.launch.fresh.freivalds import Products
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm
from harness.problems.verify import Verdict

_DATA_SETS = 4  # made on the host for a problem whose results cannot be verified on the GPU
_MOST = 1 << 28  # bytes of operands up to which more than one is made: each has its reference in float64


class Source(Protocol):
    """New data for the operands of a launch, and the verification of its outputs on the GPU.

    `label` says in words what the data is, `rounds` how many may follow each other between two calls of
    `wrong`. A round is: `refresh`, one launch on each of the first `count`
    sets, `verify`; all of it is queued. `wrong` waits, and returns in words what is wrong with the outputs of
    all rounds since its last call, or that an input was overwritten; empty if nothing is.

    `keep` downloads one launch of the last round, for `verdict` to compare by element on the host. `verdict`
    is None if there is nothing to compare. After `close` the operands hold whatever data came last.
    """

    label: str
    rounds: int

    def refresh(self, stream: Stream, count: int) -> None: ...

    def verify(self, stream: Stream, count: int) -> None: ...

    def wrong(self, stream: Stream) -> str: ...

    def keep(self, stream: Stream, rng: np.random.Generator, count: int) -> None: ...

    def verdict(self) -> Verdict | None: ...

    def close(self) -> None: ...


def source(operands: Operands, stream: Stream, *, seed: int) -> Source:
    """Return the source of new data for these operands; the caller closes it.

    Products of matrices get random data for each launch. Other problems get some data sets made on the host,
    in random order, or the same data each time where their references would take too much memory. `seed` is
    what all of it is made from.
    """
    problem = operands.problem
    if isinstance(problem, Gemm) and freivalds.applies(problem):
        return Products(operands.code, problem, operands.buffers, stream, seed=seed)
    count = _DATA_SETS if problem.buffer_bytes <= _MOST else 1
    return DataSets(operands, operands.data_sets(count), stream, seed=seed)
