"""Data of operands, made before anybody asks for them: while compilers, clocks or the GPU are waited for."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from harness.launch.operands import Data
from harness.problems.protocol import Problem
from harness.problems.registry import blamed
from harness.support.resources import Closing

_MOST = 1 << 30  # bytes of operands: several times as much, the reference included, would wait in memory


class Ahead(Closing):
    """Makes them one after the other in a thread of its own. Problems are told apart as objects."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._begun: dict[tuple[int, int], Future[Data] | None] = {}  # by problem and seed; None: taken

    def begin(self, problem: Problem, seeds: Iterable[int]) -> None:
        """Of each seed, unless they are large."""
        with blamed(type(problem)):
            large = problem.buffer_bytes > _MOST
        for seed in seeds if not large else ():
            key = id(problem), seed
            if key not in self._begun:
                self._begun[key] = self._thread.submit(Data.of, problem, seed)

    def taken(self, problem: Problem, seed: int) -> Data | None:
        """What was begun and nobody has taken, as soon as it is there. Raises what `Data.of` raises."""
        begun = self._begun.get((id(problem), seed))
        if begun is None:
            return None
        self._begun[id(problem), seed] = None
        return begun.result()

    def drop(self, problem: Problem) -> None:
        """What nobody has taken of it."""
        for key in [key for key in self._begun if key[0] == id(problem)]:
            if begun := self._begun.pop(key):
                begun.cancel()

    def close(self) -> None:
        """What is being made is not waited for here (after Ctrl-C it is of no use), but when Python ends."""
        self._thread.shutdown(wait=False, cancel_futures=True)
