"""Launch a submission in the sequences in which cheats give themselves away, and say which check it failed.

Each sequence begins with a module loaded anew and a launch on random data, whose output holds what
`harness verify` puts there. What follows differs in one thing: the output's contents, the data, a few
elements of the data, the number of launches.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.bench.emulation import matrix_instructions
from harness.errors import ContextLost, EmulatorError, HarnessError, NeedsGpu, OutOfMemory
from harness.judging import rare, values
from harness.judging.cases import Kind, drawn, kinds, seeds, sequence_size, takes
from harness.judging.machines import Machine, Ran, matrix_products
from harness.judging.values import Trial
from harness.judging.verdict import CHECKS, EMULATOR, FAILED, GPU, PASSED, SKIPPED, WARNING, Check
from harness.kernels.spec import Variant
from harness.launch.operands import wrong_value
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem

_REPEATS = {EMULATOR: 3, GPU: 30}
_WATCHED_K = 100  # products of a sum, up to which values are watched: it takes longer
_MANY_PRODUCTS = 1 << 14  # of a launch, where it matters what makes them
_LAUNCHES = {EMULATOR: 24, GPU: 100}  # of "launch count"


class Trials:
    """The trials of one kernel on one machine.

    `shapes` has the sizes at which it was launched. Trials end at `until` (`time.monotonic`); what was not
    begun by then was not possible. `step` is called with a short text before each launch. `lost` is True
    after a fault of the GPU, when nothing more can be launched in this process.
    """

    def __init__(
        self,
        machine: Machine,
        variant: Variant,
        cls: type[Problem],
        seed: int,
        until: float,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.machine, self.variant, self.cls, self.until = machine, variant, cls, until
        self.rng = np.random.default_rng([seed, machine.where == GPU])
        self.seeds = seeds(self.rng)
        self.shapes: list[str] = []
        self._made: dict[str, int] = {}
        self._failed: dict[str, str] = {}
        self._warned: dict[str, str] = {}
        self._executed = self._unexecuted = self._wrong = 0
        self._share: float | None = None  # of the products of a launch, those of matrix instructions
        self.step, self.lost = step, False
        self._large = machine.where == GPU

    def run(self) -> Iterator[Check]:
        """Make all trials, and yield the outcome of each check."""
        missing = "the time for trials was over"
        try:
            for step in self._steps():
                if time.monotonic() > self.until:
                    break
                step()
            else:
                missing = (
                    "it takes no such size" if not self._plainly_wrong() else "it is wrong at every size"
                )
        except NeedsGpu as e:
            missing = e.what
        except EmulatorError as e:
            missing = str(e)
            if "hangs" in e.what or "has not ended" in e.what:
                self._failed["ends"] = e.what
        except OutOfMemory as e:
            missing = e.what
        except HarnessError as e:  # a launch that is refused, or that faults
            self._failed["ends"], missing = f"{self._at}: {e}", "a launch failed before"
            self.lost = isinstance(e, ContextLost)
        except MemoryError:
            missing = "host memory is exhausted"
        yield from self._outcomes(missing)

    def _outcomes(self, missing: str) -> Iterator[Check]:
        where = self.machine.where
        if where == EMULATOR:
            self._judge_matrix_code()
        for name, (places, _) in CHECKS.items():
            if where not in places or name in ("timed launches", "ceiling"):
                continue
            times = sum(self._made.values()) if name == "ends" else self._made.get(name, 0)
            if name in self._failed:
                yield Check(name=name, where=where, outcome=FAILED, reason=self._failed[name])
            elif name in self._warned:
                yield Check(name=name, where=where, outcome=WARNING, reason=self._warned[name])
            elif times:
                said = "" if name == "ends" else f"{times} launch{'es' if times > 1 else ''}"
                yield Check(name=name, where=where, outcome=PASSED, reason=said)
            else:
                yield Check(name=name, where=where, outcome=SKIPPED, reason=missing)

    def _steps(self) -> Iterator[Callable[[], object]]:
        """Yield the trials, the most telling first; after a wrong one of the first three none follow that
        need a right one.
        """
        first, *others = kinds(self.variant, large=self._large)
        for kind in (first, *others[:2]):
            yield partial(self._shape, kind)
        if self._plainly_wrong():
            return
        problem = sequence_size(self.rng, self.variant, self.cls, large=self._large, sms=self.machine.sms)
        if problem is not None:
            for trial in (self._fresh, self._spoilt, self._own, self._near):
                yield partial(trial, problem)
            yield partial(self._same, problem)
        if issubclass(self.cls, Gemm):
            yield from self._styles()
        for kind in others[2:]:
            if not kind.late:
                yield partial(self._shape, kind)
        if problem is not None:
            yield partial(self._count, problem)
        for kind in others:
            if kind.late:
                yield partial(self._shape, kind)

    def _plainly_wrong(self) -> bool:
        """Return True if it was wrong at every size so far: what else is wrong follows from that."""
        return bool(self.shapes) and self._wrong == len(self.shapes)

    # -- one launch

    def _verify(
        self, check: str, problem: Problem, trial: Trial, what: str, watched: bool = False, turn: int = 0
    ) -> Ran:
        """Launch on the inputs of `trial`, and record what is wrong of it under `check`."""
        self._at = f"{check}, {problem.label}"
        self.step(self._at)
        ran = self.machine.run(problem, trial.inputs, watched=watched, turn=turn)
        self._made[check] = self._made.get(check, 0) + 1
        for name in ("inputs intact", "stray writes"):
            self._made[name] = self._made.get(name, 0) + 1
        at = f"{problem.label}: {what}" if what else problem.label
        verdict = trial.compare(ran.output, ran.before)
        if verdict.bad or not (verdict.ok or verdict.stray):
            self._fail(check, f"{at}: {str(verdict).removeprefix('FAILED: ')}")
        if verdict.stray:
            self._fail("stray writes", f"{at}: {verdict.stray} elements between the rows of the output")
        if ran.damaged:
            self._fail("inputs intact", f"{at}: it overwrote its input {' and '.join(ran.damaged)}")
        if ran.stray:
            self._fail("stray writes", f"{at}: {'; '.join(ran.stray)}")
        for finding in ran.findings:
            self._fail("races and memory", f"{at}: {finding}")
        for notice in ran.notices:
            self._warned.setdefault("races and memory", f"{at}: {notice}")
        if watched and self.machine.where == EMULATOR:
            self._made["races and memory"] = self._made.get("races and memory", 0) + 1
            executed, unexecuted = matrix_instructions(ran.counts)
            self._executed += executed
            self._unexecuted += unexecuted
            if isinstance(problem, Gemm) and problem.M * problem.N * problem.K >= _MANY_PRODUCTS:
                share = matrix_products(ran.counts) / (problem.M * problem.N * problem.K)
                self._share = max(self._share or 0.0, share)
        return ran

    def _fail(self, check: str, reason: str) -> None:
        self._failed.setdefault(check, reason)

    def _random(self, problem: Problem) -> Trial:
        return values.random(problem, next(self.seeds))

    # -- trials

    def _shape(self, kind: Kind) -> None:
        problem = drawn(self.rng, self.variant, self.cls, kind, sms=self.machine.sms)
        if problem is None:
            return
        self.machine.forget()
        self.shapes.append(problem.label)
        trial = self._random(problem)
        ran = self._verify("drawn shapes", problem, trial, "", watched=not kind.late or kind.step > 0)
        self._wrong += bool(trial.compare(ran.output, ran.before).bad)

    def _styles(self) -> Iterator[Callable[[], object]]:
        many = Kind(name="values", m=(8, 60), n=(8, 60), k=(1000, 4000) if self._large else (150, 400))
        few = Kind(name="values", m=(8, 40), n=(8, 40), k=(20, 60))
        for kind in (many, few):
            problem = drawn(self.rng, self.variant, self.cls, kind, sms=self.machine.sms)
            if isinstance(problem, Gemm):
                left_out = {rare.TINY} if self.machine.flushes else set()
                left_out |= set(rare.STYLES) if kind is few else set()
                for style in values.styles(problem):
                    if style not in left_out:
                        yield partial(self._style, problem, style)

    def _style(self, problem: Gemm, style: str) -> None:
        self.machine.forget()
        plain = replace(problem, alpha=1.0, beta=0.0) if problem.beta or problem.alpha != 1 else problem
        trial = values.styled(plain, style, next(self.seeds))
        self._verify("values", plain, trial, style, watched=problem.K <= _WATCHED_K)

    def _begin(self, check: str, problem: Problem) -> tuple[Trial, Ran]:
        """Load the module anew, and launch once on random data."""
        self.machine.forget()
        first = self._random(problem)
        return first, self._verify(check, problem, first, "launch 1")

    def _fresh(self, problem: Problem) -> None:
        first, _ = self._begin("fresh data", problem)
        for launch in range(2, 5):
            what = f"launch {launch}, on new data"
            self._verify("fresh data", problem, self._random(problem), what, watched=launch == 3)
        self._verify("fresh data", problem, first, "launch 5, on the data of launch 1")
        for launch in range(6, 12, 2):
            other = sequence_size(self.rng, self.variant, self.cls, large=self._large, sms=self.machine.sms)
            if other is not None:
                after = f"launch {launch}, after {problem.label}"
                self._verify("fresh data", other, self._random(other), after, watched=launch == 6)
                after = f"launch {launch + 1}, after {other.label}"
                self._verify("fresh data", problem, self._random(problem), after)

    def _spoilt(self, problem: Problem) -> None:
        """Fill the output with numbers such as results are, zeros, the largest number, infinity."""
        trial, _ = self._begin("spoilt output", problem)
        expected = trial.reference.expected
        output = trial.inputs[problem.output]
        spread = self.rng.standard_normal(output.shape) * (float(np.std(expected)) or 1.0)
        fillings: dict[str, NDArray[Any]] = {
            "random numbers": self._stored(trial, spread),
            "zeros": np.zeros_like(output),
            "infinity": self._stored(trial, np.full(output.shape, np.inf)),
            "the largest number": np.full_like(output, wrong_value(output.dtype, trial.reference.dtype)),
        }
        for name, filling in fillings.items():
            again = replace(trial, inputs={**trial.inputs, problem.output: filling})
            self._verify("spoilt output", problem, again, f"its output held {name}")

    def _own(self, problem: Problem) -> None:
        """Leave its own output in place while the data changes, then the right one with some elements
        wrong.
        """
        first, ran = self._begin("own output", problem)
        fresh = self._random(problem)
        held = replace(fresh, inputs={**fresh.inputs, problem.output: ran.output})
        self._verify("own output", problem, held, "new data, its output held the result of launch 1")
        nearly = ran.output.copy()
        inside = tuple(slice(0, n) for n in first.reference.expected.shape)
        wrong = self.rng.random(nearly[inside].shape) < 0.5
        wrong[(slice(0, 1),) * wrong.ndim] = False
        noise = self._stored(first, self.rng.standard_normal(wrong.shape) * 3 + 7)
        nearly[inside][wrong] = noise[wrong]
        held = replace(first, inputs={**first.inputs, problem.output: nearly})
        self._verify("own output", problem, held, "half of the result was there already, the rest was not")

    def _near(self, problem: Problem) -> None:
        """Repeat the first data with three elements changed, with its rows scaled and one changed, in another
        order, with other signs, with other lower bits, with another alpha.
        """
        first, _ = self._begin("near copies", problem)
        names = [n for n in first.inputs if n != problem.output]
        for attempt, name in itertools.product(range(3), names):
            inputs = {n: array.copy() for n, array in first.inputs.items()}
            if attempt == 2 and isinstance(problem, Gemm) and name == names[0]:
                a, b = values.matrices(problem, inputs)
                signs = np.exp2(self.rng.integers(-1, 2, (problem.M, 1))) * self.rng.choice(
                    [-1, 1], (problem.M, 1)
                )
                inputs = values.filled(problem, inputs, a * signs, b)
            if not self._changed(problem, first, inputs, name):
                return
            self._near_copy(problem, inputs, f"elements of {name} changed")
        if isinstance(problem, Gemm):
            for what, inputs in values.near(problem, first.inputs, self.rng):
                self._verify("near copies", problem, first, "the data of launch 1")
                self._near_copy(problem, inputs, what)
            other = replace(problem, alpha=problem.alpha * 1.5)
            if takes(self.variant, other, self.machine.sms):
                self._verify("near copies", problem, first, "the data of launch 1")
                self._near_copy(other, first.inputs, "another alpha")

    def _near_copy(self, problem: Problem, inputs: values.Arrays, what: str) -> None:
        trial = Trial(inputs=inputs, reference=problem.reference(inputs))
        self._verify("near copies", problem, trial, f"the data of launch 1 with {what}")

    def _changed(self, problem: Problem, first: Trial, inputs: dict[str, NDArray[Any]], name: str) -> bool:
        """Change three elements of an input, within its rows; False where its element type is unknown."""
        array = inputs[name]
        if not (isinstance(problem, Gemm) or array.dtype.kind == "f"):
            return False
        rows = array.reshape(-1, array.shape[-1])
        width = array.shape[-1]
        if isinstance(problem, Gemm):
            width = problem.layouts()[name].columns
        for _ in range(3):
            at = int(self.rng.integers(len(rows))), int(self.rng.integers(width))
            rows[at] = self._stored(first, np.full(1, self.rng.uniform(3, 6)), array.dtype)[0]
        return True

    def _same(self, problem: Problem) -> None:
        trial, ran = self._begin("same bits", problem)
        for turn in range(1, _REPEATS[self.machine.where]):
            other = self._verify(
                "same bits", problem, trial, f"launch {turn + 1} on the same data", turn=turn
            )
            if other.output.tobytes() != ran.output.tobytes():
                self._warned.setdefault(
                    "same bits", f"{problem.label}: launch {turn + 1} wrote other bits, within the bound"
                )

    def _count(self, problem: Problem) -> None:
        """Launch often, in turn on a few sets of data, each of which is verified each time."""
        self._begin("launch count", problem)
        sets = [self._random(problem) for _ in range(4)]
        for launch in range(2, _LAUNCHES[self.machine.where]):
            if time.monotonic() > self.until or "launch count" in self._failed:
                return
            last = launch == _LAUNCHES[self.machine.where] - 1
            self._verify("launch count", problem, sets[launch % 4], f"launch {launch}", watched=last)

    def _judge_matrix_code(self) -> None:
        """Say whether matrix instructions are there for show: for float32 that is no kernel's business."""
        if "races and memory" in self._made:
            self._made["dead matrix code"] = self._made["races and memory"]
        reason = ""
        if self._unexecuted and not self._executed:
            reason = "it has matrix instructions, and no launch executed one"
        elif self._executed and self._share is not None and self._share < 0.5:
            reason = f"its matrix instructions make {self._share:.1%} of the products at most"
        if reason:
            typed = issubclass(self.cls, Gemm) and self.cls.dtype.name == "fp32"
            (self._failed if typed else self._warned)["dead matrix code"] = reason

    def _stored(self, trial: Trial, numbers: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
        """Return numbers as an output, or an input of NumPy's `dtype`, stores them."""
        element = trial.reference.dtype
        if element is not None:
            return element.encode(numbers.astype(np.float32))
        return numbers.astype(dtype or np.float32)
