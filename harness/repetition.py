"""A GPU that verifies kernels and then launches each again and again: the same inputs, the same bits?"""

from __future__ import annotations

from harness.bench import Bench
from harness.builds import Built
from harness.driver import Context
from harness.launch import Launch
from harness.measure import REPEATABLE, Measurement, Method, repeated
from harness.verify import Repeats


class Repetition(Bench):
    """A `Bench` that times nothing: what it has verified it launches `repeats` times more, on outputs filled
    anew each time. What a launch writes is known by the fingerprint of its bits.
    """

    def __init__(self, context: Context, *, repeats: int, seed: int = 1) -> None:
        super().__init__(context, rule=None, seed=seed)
        self._repeats = repeats

    def measured(
        self, run: Launch, method: Method | None, built: Built | None, against: Launch | None
    ) -> Measurement:
        """What the verified launch wrote is still there when the repeats begin."""
        row = super().measured(run, method, built, against)
        if not self._repeats or row.status not in REPEATABLE:
            return row
        prints = run.operands.repeated(run.calls[0], self.stream, self._repeats)
        repeats = Repeats.of(next(prints), prints)
        return repeated(row, repeats, run.operands.damaged_inputs(self.stream))
