"""A GPU that verifies kernels and then launches each again and again: the same inputs, the same bits?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.bench import Bench
from harness.builds import Built
from harness.driver import Context
from harness.errors import ContextLost, HarnessError
from harness.launch import Launch
from harness.measure import ERROR, REPEATABLE, Measurement, Method, repeated
from harness.operands import Operands
from harness.problems import blamed
from harness.verify import Repeats


class Repetition(Bench):
    """A `Bench` that times nothing: what it has verified it launches `repeats` times more, on outputs filled
    anew each time. What a launch writes is known by the fingerprint of its bits.
    """

    def __init__(self, context: Context, *, repeats: int, seed: int = 1) -> None:
        super().__init__(context, rule=None, seed=seed)
        self._repeats = repeats

    def attempt(
        self,
        label: str,
        built: Built | None,
        prepare: Callable[[Operands], Launch],
        operands: Operands,
        against: Launch | None,
        method: Method | None,
    ) -> tuple[Measurement, ContextLost | None]:
        """See `Bench.attempt`. What the verified launch wrote is still there when the repeats begin."""
        row, lost = super().attempt(label, built, prepare, operands, against, method)
        if not self._repeats or row.status not in REPEATABLE:
            return row, lost
        try:
            with blamed(type(operands.problem)), prepare(operands) as run:
                prints = operands.repeated(run.calls[0], self.stream, self._repeats)
                repeats = Repeats.of(next(prints), prints)
            return repeated(row, repeats, operands.damaged_inputs(self.stream)), None
        except ContextLost as e:
            return replace(row, status=ERROR, error=str(e)), e
        except HarnessError as e:
            operands.damaged_inputs(self.stream)
            return replace(row, status=ERROR, error=str(e)), None
