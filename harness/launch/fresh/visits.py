"""Launches on new data: what happens around those that are timed, and what was found wrong with them.

A visit is one launch on one set of operands. No set is visited twice on the same data. Before a batch each
set that it visits gets new data, and its output random contents; after it, all outputs are verified on the
GPU. None of this lies between two events.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.driver import Stream
from harness.launch.fresh.code import derive
from harness.launch.fresh.source import Source
from harness.launch.kernel import Launch
from harness.problems.verify import Verdict

_KEPT = 1 / 8  # probability that a batch is the one of which a launch is verified by element


class WrongWhileTimed(Exception):
    """A timed launch of `run` computed a wrong result or overwrote an input; `said` describes it."""

    def __init__(self, run: Launch, said: str) -> None:
        super().__init__(f"{run.label}: {said}")
        self.run, self.said = run, said


class Visits:
    """The visits of `run`, on data from `source`.

    In the regimes ``cold`` and ``graph`` (`hot` is False) a round has up to one visit to each set, and the
    L2 cache is drained before it. With `hot` every round is one visit to the first set, whose data has just
    been written. `seed` decides which launch is verified by element; with `by_element` False none is. What
    was wrong with a visit ends the measurement, except for an `opponent`, where `said` keeps it.
    """

    def __init__(
        self,
        run: Launch,
        source: Source,
        *,
        hot: bool,
        seed: int,
        by_element: bool = True,
        opponent: bool = False,
    ) -> None:
        self.run, self.source, self.hot, self.opponent, self.said = run, source, hot, opponent, ""
        self._rng = np.random.default_rng(derive(seed, "which launch"))
        self._kept = not by_element
        self._last = 0  # visits of the last round

    @property
    def most(self) -> int:
        """The most visits in a batch."""
        return self.source.rounds if self.hot else self.run.sets

    def begin(self, stream: Stream, visits: int) -> None:
        """Queue what comes before a batch of `visits` visits: new data for all, unless hot."""
        self.run.rewind()
        self._last = 1 if self.hot else visits
        if not self.hot:
            self.source.refresh(stream, visits)
            self.run.operands.code.drain(stream)

    def around(self, launch: Callable[[Stream], object], stream: Stream) -> None:
        """Queue `launch`, one visit with its events; if hot, new data before and verification behind it."""
        if not self.hot:
            launch(stream)
            return
        self.run.rewind()
        self.source.refresh(stream, 1)
        launch(stream)
        self.source.verify(stream, 1)

    def end(self, stream: Stream) -> None:
        """Queue what comes after a batch: the verification of all visits, unless hot."""
        if not self.hot:
            self.source.verify(stream, self._last)

    def collect(self, stream: Stream) -> None:
        """Wait for the batch, and raise WrongWhileTimed if a visit was wrong."""
        if said := self.source.wrong(stream):
            self.said = self.said or said
            if not self.opponent:
                raise WrongWhileTimed(self.run, said)
        if not self._kept and self._rng.random() < _KEPT:
            self._keep(stream)

    def verdict(self, stream: Stream) -> Verdict | None:
        """Return the verdict by element on a launch that was chosen after it ran; None if none was kept.

        If none was chosen so far, it is one of the last batch, whose data is still there.
        """
        if not self._kept and self._last:
            self._keep(stream)
        return self.source.verdict()

    def _keep(self, stream: Stream) -> None:
        self.source.keep(stream, self._rng, self._last)
        self._kept = True
