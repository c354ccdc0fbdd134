"""Kernels and sizes -> rows: built and inspected anywhere, verified and timed where there is a GPU.

This composes the stations below it; the order within a measurement is its point: verify, poison the
outputs, time, verify what the timed runs wrote. A kernel that computes something wrong has no time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from harness import launch, telemetry, timing
from harness.build import Cubin, compile_kernel
from harness.cache import Cache
from harness.cublas import LABEL, CuBlas
from harness.driver import Context, Stream
from harness.errors import BuildError, ContextLost, HarnessError, InspectError, UsageError
from harness.launch import Launch, Operands
from harness.problem import Axes, Gemm, Problem, resolve
from harness.sass import Sass, disassemble
from harness.spec import Kernel, Variant
from harness.timing import EventTimer, Samples, StopRule, Timer
from harness.verify import Verdict, compare

Progress = Callable[[str], None]  # told what begins now

OK = "ok"
FAILED = "FAILED"
EXPECTED = "FAILED as marked"  # broken on purpose, and seen to be
UNEXPECTED = "passed, marked broken"  # a race that did not show this time
IMPOSSIBLE = "impossible"  # faster than the hardware: the measurement is wrong, whatever the reason
ERROR = "error"  # it could not be launched


@dataclass(frozen=True, kw_only=True)
class Built:
    """One variant compiled and disassembled: everything known without a GPU."""

    variant: Variant
    cubin: Cubin
    sass: Sass

    @property
    def intensity(self) -> float | None:
        """FLOP a byte loaded from global memory, where the front matter says what a block loads."""
        loads = self.variant.loads
        return None if loads is None else resolve(self.variant.kernel).intensity(self.variant.tile, loads)


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A variant without a row, and why. `failed` where the kernel is to blame, not the architecture."""

    variant: Variant
    error: HarnessError

    @property
    def failed(self) -> bool:
        return isinstance(self.error, BuildError | InspectError)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One launch on one problem. `samples` is None where it was not timed, for the reason in `status`.

    `occupancy` is the driver's: active warps over the most that an SM holds. `sets` copies of the operands,
    `bytes_touched` in all, were visited in turn; `cold` says that they displaced twice the L2 cache.
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
    cold: bool = False
    baseline: float | None = None

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
    def failed(self) -> bool:
        return self.status in (FAILED, IMPOSSIBLE, ERROR)


def build_all(
    variants: Sequence[Variant], arch: str, cache: Cache, progress: Progress
) -> tuple[list[Built], list[Skipped]]:
    """Compile and disassemble each variant. One that cannot be is skipped with its reason; where nothing
    is left the first reason is raised.
    """
    built, skipped = [], []
    for variant in variants:
        progress(f"build {variant.label}")
        try:
            cubin = compile_kernel(variant, arch, cache)
            built.append(Built(variant=variant, cubin=cubin, sass=disassemble(cubin, cache)))
        except HarnessError as e:
            skipped.append(Skipped(variant=variant, error=e))
    if skipped and not built:
        raise skipped[0].error
    return built, skipped


def by_problem(kernels: Sequence[Kernel]) -> dict[type[Problem], list[Kernel]]:
    """Kernels grouped by what they compute, in order of first appearance."""
    groups: dict[type[Problem], list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault(resolve(kernel), []).append(kernel)
    return groups


class Bench:
    """A GPU ready to measure: stream, timer and sensor in one context.

    `rule` None verifies only. `baseline` is borrowed.
    """

    def __init__(
        self, context: Context, *, rule: StopRule | None, baseline: CuBlas | None = None, seed: int = 1
    ) -> None:
        self.context, self.baseline, self.rule, self.seed = context, baseline, rule, seed
        with ExitStack() as owned:
            self.stream = owned.enter_context(Stream(context))
            self.sensor = owned.enter_context(telemetry.Telemetry(context.device.uuid))
            self.timer: Timer = owned.enter_context(EventTimer(context, self.stream, self.sensor))
            self._owned = owned.pop_all()

    def rows(
        self, built: Sequence[Built], points: Mapping[type[Problem], Sequence[Axes]], progress: Progress
    ) -> Iterator[Measurement]:
        """Every kernel on every point of its problem, the baseline first; each row as it is done."""
        for cls, axes_list in points.items():
            kernels = [b for b in built if resolve(b.variant.kernel) is cls]
            for axes in axes_list:
                yield from self._point(cls.from_axes(axes), kernels, progress)

    def _point(self, problem: Problem, kernels: Sequence[Built], progress: Progress) -> Iterator[Measurement]:
        fitting = []
        for one in kernels:  # before minutes go into inputs that no kernel can take
            try:
                launch.grid(one.variant, problem)
                fitting.append(one)
            except UsageError as e:
                yield _refused(one, problem, e)
        if not fitting:
            return
        progress(f"inputs {problem.label}")
        sets = launch.rotation_sets(self.context, problem) if self.rule else 1
        with Operands(self.context, problem, self.stream, seed=self.seed, sets=sets) as operands:
            yield from self._rows(operands, fitting, progress)

    def _rows(
        self, operands: Operands, kernels: Sequence[Built], progress: Progress
    ) -> Iterator[Measurement]:
        problem, reference = operands.problem, None
        if self.baseline is not None and isinstance(problem, Gemm):
            progress(f"{LABEL} {problem.label}")
            with self.baseline.prepare(problem, operands) as run:
                row = measure(run, self.stream, self.timer, self.rule)
            reference = row.seconds
            yield row
        for one in kernels:
            progress(f"{one.variant.label} {problem.label}")
            try:
                with launch.prepare(one.cubin, operands) as run:
                    row = measure(run, self.stream, self.timer, self.rule, built=one)
            except ContextLost:
                raise  # nothing after this could work
            except HarnessError as e:
                row = _refused(one, problem, e)
            yield replace(row, baseline=reference)

    def close(self) -> None:
        self._owned.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refused(one: Built, problem: Problem, error: HarnessError) -> Measurement:
    return Measurement(label=one.variant.label, built=one, problem=problem, status=ERROR, error=str(error))


def measure(
    run: Launch, stream: Stream, timer: Timer, rule: StopRule | None, *, built: Built | None = None
) -> Measurement:
    """Verify, time, verify again; see the module's docstring. Without a `rule`, verify only."""
    operands = run.operands
    before = check(run, stream, sets=1)
    after = samples = None
    if built is not None and built.variant.kernel.broken:
        status = UNEXPECTED if before.ok else EXPECTED
    elif not before.ok:
        status = FAILED
    elif rule is None:
        status = OK
    else:
        operands.reset_output(stream)
        samples = timing.sample(run, timer, rule, at_least=run.sets)
        # What the timed runs wrote; where they accumulate, that is no longer the problem's answer.
        after = check(run, stream, sets=run.sets) if operands.problem.accumulates else worst(operands, stream)
        least = operands.problem.flops / operands.context.device.peak_fp32
        status = IMPOSSIBLE if samples.summary.median < least else OK
        if not after.ok:
            status, samples = FAILED, None
    return Measurement(
        label=run.label,
        built=built,
        problem=operands.problem,
        status=status,
        before=before,
        after=after,
        samples=samples,
        occupancy=_occupancy(run, built),
        sets=run.sets,
        bytes_touched=operands.bytes,
        cold=operands.cold,
    )


def check(run: Launch, stream: Stream, *, sets: int) -> Verdict:
    """Poison every output, run on the first `sets` sets of operands, and compare those: the worst verdict."""
    run.operands.reset_output(stream)
    run.rewind()
    for _ in range(sets):
        run(stream)
    return worst(run.operands, stream, sets=sets)


def worst(operands: Operands, stream: Stream, *, sets: int | None = None) -> Verdict:
    """The worst verdict over what stands in the outputs now (None: of all sets)."""
    host = operands.host[operands.problem.output]
    outputs = itertools.islice(operands.outputs(stream), sets)
    verdicts = (compare(out, operands.reference, host) for out in outputs)
    return max(verdicts, key=lambda v: (v.bad, v.stray, v.worst))


def _occupancy(run: Launch, built: Built | None) -> float | None:
    if run.function is None or built is None:
        return None
    return run.function.occupancy(built.variant.threads, built.variant.shared)
