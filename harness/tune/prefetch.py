"""Make the data of operands ahead of time, while the tuning waits for compilers, clocks or the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from harness.launch.operands import Data
from harness.problems.protocol import Problem
from harness.problems.registry import blamed
from harness.support.resources import Closing

_MOST = 1 << 30  # bytes of operands; with the reference, several times as much is held in memory


class Ahead(Closing):
    """A thread that makes problems' data one after the other. Problems are distinguished by identity."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._begun: dict[tuple[int, int], Future[Data] | None] = {}  # by problem and seed; None: taken

    def begin(self, problem: Problem, seeds: Iterable[int]) -> None:
        """Begin to make the problem's data for each seed, unless its operands exceed 1 GiB."""
        with blamed(type(problem)):
            large = problem.buffer_bytes > _MOST
        for seed in seeds if not large else ():
            key = id(problem), seed
            if key not in self._begun:
                self._begun[key] = self._thread.submit(Data.of, problem, seed)

    def taken(self, problem: Problem, seed: int) -> Data | None:
        """Wait for the data and return it; None if it was not begun or was taken before.

        Raises what `Data.of` raises.
        """
        begun = self._begun.get((id(problem), seed))
        if begun is None:
            return None
        self._begun[id(problem), seed] = None
        return begun.result()

    def drop(self, problem: Problem) -> None:
        """Discard the problem's data that has not been taken."""
        for key in [key for key in self._begun if key[0] == id(problem)]:
            if begun := self._begun.pop(key):
                begun.cancel()

    def close(self) -> None:
        """Cancel what has not begun. Data being made is waited for only when Python ends."""
        self._thread.shutdown(wait=False, cancel_futures=True)
