"""One launch -> a `Measurement`: verified, timed, verified again.

The order is the point: verify, spoil the outputs, time, verify what the timed runs wrote. A kernel that
computes something wrong has no time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import telemetry, timing
from harness.builds import Built
from harness.driver import Stream
from harness.emulator import Emulation
from harness.launch import Launch, Operands
from harness.problem import Problem
from harness.timing import Samples, StopRule, Timer
from harness.verify import Verdict, compare

OK = "ok"
FAILED = "FAILED"
EXPECTED = "FAILED as marked"  # broken on purpose, and seen to be
UNEXPECTED = "passed, marked broken"  # a race that did not show this time
IMPOSSIBLE = "impossible"  # faster than the hardware: the measurement is wrong, whatever the reason
ERROR = "error"  # it could not be launched, or faulted

# How far above its rated peak a card may be: many run above the clock that their driver names. Matrix
# instructions are not counted in that peak, and faster by less than this.
_ABOVE_RATED, _MATRIX = 1.3, 32


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One launch on one problem. `samples` is None where it was not timed, for the reason in `status`.

    `occupancy` is the driver's: active warps over the most that an SM holds. `sets` copies of the operands,
    `bytes_touched` in all, were visited in turn; `cold` says that they displaced twice the L2 cache.
    `emulation` is what the emulator saw, where no GPU ran it.
    """

    label: str
    built: Built | None
    problem: Problem
    status: str
    error: str = ""
    before: Verdict | None = None
    after: Verdict | None = None
    samples: Samples | None = None
    occupancy: float | None = None
    sets: int = 0
    bytes_touched: int = 0
    cold: bool | None = None
    baseline: float | None = None
    emulation: Emulation | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.samples is None else self.samples.summary.median

    @property
    def flops_rate(self) -> float | None:
        """FLOP/s at the median time; None where the problem has none."""
        return self.problem.flops / self.seconds if self.seconds and self.problem.flops else None

    @property
    def bandwidth(self) -> float | None:
        """Compulsory bytes/s at the median time."""
        return self.problem.bytes / self.seconds if self.seconds else None

    @property
    def speedup(self) -> float | None:
        """cuBLAS's median time over this one's, both from this run."""
        return self.baseline / self.seconds if self.baseline and self.seconds else None

    @property
    def device(self) -> telemetry.Reading | None:
        return None if self.samples is None else telemetry.summarize(self.samples.readings)

    @property
    def detail(self) -> str:
        """What was found out about its numbers, or why it could not be launched."""
        return self.error or str(self.after or self.before)

    @property
    def right(self) -> bool:
        return self.status == OK

    @property
    def failed(self) -> bool:
        return self.status in (FAILED, IMPOSSIBLE, ERROR)


def measure(
    run: Launch, stream: Stream, timer: Timer, rule: StopRule | None, *, built: Built | None = None
) -> Measurement:
    """Verify, time, verify again; see the module's docstring. Without a `rule`, verify only."""
    operands, problem = run.operands, run.operands.problem
    before = check(run, stream, sets=1)
    after = samples = None
    error = ""
    if built is not None and built.variant.kernel.broken:
        status = UNEXPECTED if before.ok else EXPECTED
    elif not before.ok:
        status = FAILED
    else:
        status = OK
        if rule is not None:
            samples, after = _timed(run, stream, timer, rule)
            if not after.ok:
                status, samples = FAILED, None
            elif error := _impossible(samples.summary.median, operands, _uses_matrix_units(built)):
                status, samples = IMPOSSIBLE, None
    if damaged := operands.damaged_inputs(stream):
        status = EXPECTED if status in (EXPECTED, UNEXPECTED) else FAILED
        samples, error = None, f"FAILED: it overwrote its input {' and '.join(damaged)}"
    return Measurement(
        label=run.label,
        built=built,
        problem=problem,
        status=status,
        error=error,
        before=before,
        after=after,
        samples=samples,
        occupancy=_occupancy(run, built),
        sets=run.sets,
        bytes_touched=operands.bytes,
        cold=operands.cold,
    )


def _timed(run: Launch, stream: Stream, timer: Timer, rule: StopRule) -> tuple[Samples, Verdict]:
    """Samples, and the verdict on what the sampled runs themselves wrote, in every set.

    The outputs are spoilt between warm-up and sampling, so that the warm-up's results cannot stand in for
    those of a kernel that stops working when it sees its output filled. Where launches accumulate
    (beta != 0), what they leave is not the problem's answer, and one more run is verified instead.
    """
    operands = run.operands
    typical = timing.warm_up(run, timer, rule)
    if operands.problem.accumulates:
        operands.fill_output(stream)
        samples = timing.sample(run, timer, rule, typical=typical, at_least=run.sets)
        return samples, check(run, stream, sets=run.sets)
    output = operands.host[operands.problem.output]
    spoilt = np.full_like(output, _wrong_value(output.dtype))
    operands.fill_output(stream, spoilt)
    samples = timing.sample(run, timer, rule, typical=typical, at_least=run.sets)
    return samples, _worst(operands, operands.outputs(stream), spoilt)


def check(run: Launch, stream: Stream, *, sets: int) -> Verdict:
    """Fill every output anew, run on the first `sets` sets of operands, and compare those: the worst."""
    operands = run.operands
    operands.fill_output(stream)
    run.rewind()
    for _ in range(sets):
        run(stream)
    outputs = itertools.islice(operands.outputs(stream), sets)
    return _worst(operands, outputs, operands.host[operands.problem.output])


def _worst(operands: Operands, outputs: Iterable[NDArray[Any]], before: NDArray[Any]) -> Verdict:
    verdicts = (compare(output, operands.reference, before) for output in outputs)
    return max(verdicts, key=lambda v: (not v.ok, v.bad, v.stray, v.worst))


def _wrong_value(dtype: np.dtype[Any]) -> Any:
    """The largest there is: no result has it, and unlike NaN it is not what an empty output is known by."""
    return np.finfo(dtype).max if dtype.kind == "f" else np.iinfo(dtype).max


def _uses_matrix_units(built: Built | None) -> bool:
    """Whether its code has any kind of MMA; without nvdisasm we cannot know that it has none."""
    if built is None:
        return False
    return built.sass is None or any(o.split(".", 1)[0].endswith("MMA") for o in built.sass.mix)


def _impossible(seconds: float, operands: Operands, matrix: bool) -> str:
    """Why no kernel can have been that fast; empty where it can.

    Bandwidth is a limit only where a single run moves several times what the L2 cache could absorb.
    """
    device, problem = operands.context.device, operands.problem
    factor = _ABOVE_RATED * (_MATRIX if matrix else 1)
    if problem.flops > factor * device.peak_fp32 * seconds:
        rate = f"{problem.flops / seconds / 1e12:.4g} TFLOP/s"
        return f"{rate} is above this card's peak of {device.peak_fp32 / 1e12:.4g}: not a measurement"
    peak = device.peak_bandwidth
    large = problem.bytes > 4 * device.l2_bytes
    if peak and large and problem.bytes > _ABOVE_RATED * peak * seconds:
        rate = f"{problem.bytes / seconds / 1e9:.4g} GB/s"
        return f"{rate} is above this card's peak of {peak / 1e9:.4g}: not a measurement"
    return ""


def _occupancy(run: Launch, built: Built | None) -> float | None:
    if run.function is None or built is None:
        return None
    return run.function.occupancy(built.variant.threads, built.variant.shared)
