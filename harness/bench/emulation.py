"""Verify kernels in the emulator: one row per kernel and size, as on a GPU, with findings and counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from harness.bench.row import (
    ERROR,
    EXPECTED,
    FAILED,
    LATE,
    OK,
    REFUSED,
    REPEATABLE,
    UNEXPECTED,
    UNVERIFIED,
    Measurement,
)
from harness.emulator import Counts, Emulation
from harness.emulator.blocks.endless.loops import BUDGET
from harness.errors import EmulatorError, HarnessError, NeedsGpu, OutOfMemory, OutOfTime, UsageError
from harness.kernels.arch import SMS
from harness.launch.builds import Built, Progress
from harness.launch.emulated import Memory, Options, launch
from harness.launch.further import explained, further, judged, kept, late, lengthened, longest, with_zeros
from harness.launch.sequence import run as sequence
from harness.problems import checks
from harness.problems.protocol import (
    Axes,
    Problem,
    Reference,
    mistaken,
    outputs,
)
from harness.problems.verify import Repeats
from harness.support.processes import ENDED, cores, free_memory, outcome, processes

__all__ = [
    "BUDGET",
    "MATRIX",
    "SMS",
    "Memory",
    "Options",
    "launch",
    "matrix_instructions",
    "multiplies_matrices",
    "row",
    "rows",
]

_MANY = 8  # with fewer rows than this, starting processes takes longer than emulating
_OTHER = {"lockstep": "warp-serial", "early": "late", "late": "early"}  # lockstep for all others
MATRIX = ("mma", "wmma.mma", "wgmma.mma_async", "tcgen05.mma")
# Peaks of memory, measured at products and copies: of the process, and of each byte of inputs and outputs.
_PROCESS, _OF_INPUTS, _OF_OUTPUTS = 0.15 * 2**30, 3.2, 16

_Job = tuple[Problem, Mapping[str, NDArray[Any]], Reference | None, Options]


def rows(
    built: Sequence[Built],
    points: Mapping[type[Problem], Sequence[Axes]],
    options: Options,
    progress: Progress,
) -> Iterator[Measurement]:
    """Yield one row for each kernel on each point of its problem, as it is done.

    `points` maps each problem class to its sizes. Eight rows or more are spread over processes, one per core,
    where the problem can be sent there. `progress` is called with a short text before each step. A size whose
    inputs cannot be made gives error rows. Raises HarnessError if a process was killed.
    """
    with ExitStack() as owned:
        pool: ProcessPoolExecutor | None = None
        ahead: Iterator[Measurement] | None = None  # rows of the problem before, which are on their way
        if cores() > 1 and sum(len(built) * len(axes_list) for axes_list in points.values()) >= _MANY:
            pool = owned.enter_context(processes(cores()))
        for cls, axes_list in points.items():
            for axes in axes_list:
                problem = checks.instance(cls, axes)
                kernels = [b for b in built if b.serves(problem)]
                progress(f"inputs {problem.label}")
                try:
                    inputs, reference = _inputs(problem, options.seed)
                except HarnessError as e:
                    yield from ahead or ()
                    yield from (Measurement.failed_with(one, problem, e) for one in kernels)
                    continue
                job = (problem, inputs, reference, options)
                if pool is not None and (ahead or len(kernels) > 1) and _can_leave(problem):
                    begun = _apart(pool, kernels, job, progress)
                    yield from ahead or ()  # not before: no process waits for the last row of a problem
                    ahead = begun
                    continue
                yield from ahead or ()
                for one in kernels:
                    progress(f"{one.label} {problem.label}")
                    yield row(one, *job)
        yield from ahead or ()


def _apart(
    pool: ProcessPoolExecutor, kernels: Sequence[Built], job: _Job, progress: Progress
) -> Iterator[Measurement]:
    """Begin to emulate one problem in the processes of `pool`, and return its rows in the order of `kernels`.

    Parsed machine code is left out of what is sent where nothing needs it, and put back into the row: sending
    it takes long.
    """
    options = job[-1]
    lighter = [one if options.as_compiled else replace(one, sass=None) for one in kernels]
    try:
        return _arriving(pool, kernels, [pool.submit(row, one, *job) for one in lighter], job[0], progress)
    except BrokenProcessPool as e:
        ended = Future[Measurement]()
        ended.set_exception(e)
        return _arriving(pool, kernels, [ended] * len(kernels), job[0], progress)


def _arriving(
    pool: ProcessPoolExecutor,
    kernels: Sequence[Built],
    futures: Sequence[Future[Measurement]],
    problem: Problem,
    progress: Progress,
) -> Iterator[Measurement]:
    """Yield the rows of one problem as they arrive. Raises HarnessError if a process was killed."""
    for one, future in zip(kernels, futures, strict=True):
        progress(f"{one.label} {problem.label}")
        try:
            yield replace(outcome(pool, future), built=one)
        except BrokenProcessPool:
            raise HarnessError(f"a process that emulated {problem.label} was ended", hint=ENDED) from None


def _can_leave(problem: Problem) -> bool:
    """Return True if the problem can be sent to other processes and memory suffices for one copy per core."""
    ours = (
        type(problem).__module__.split(".")[0] == __name__.split(".")[0]
    )  # a class from a file beside a kernel cannot be imported there
    return ours and cores() * _needed(problem) <= free_memory()


def row(
    built: Built,
    problem: Problem,
    inputs: Mapping[str, NDArray[Any]],
    reference: Reference | None,
    options: Options,
) -> Measurement:
    """Emulate one kernel on one problem, and return its row.

    The status is OK if the output is within its bounds, no input was overwritten and nothing was found, else
    FAILED. For a kernel that its file marks as broken, a defect is EXPECTED and its absence UNEXPECTED. A
    kernel that the emulator cannot run is REFUSED, one that has found nothing when its time is over is LATE,
    and every other error becomes an ERROR row.

    One without front matter is launched on what those before it in host code leave, where that is sure.
    """
    return _in_sequence(built, problem, inputs, options) or _alone(built, problem, inputs, reference, options)


def _in_sequence(
    built: Built, problem: Problem, inputs: Mapping[str, NDArray[Any]], options: Options
) -> Measurement | None:
    """Emulate a kernel on what the launches before it leave; None where nothing is sure of that.

    That what they have not written is read is not sure where it is not at sizes that are multiples of blocks.
    """
    try:
        made = sequence.prepared(built, problem, options)
    except Exception:  # of a defect of ours no kernel must suffer that can be launched alone
        made = None
    if made is None:
        return None
    found = _alone(made.built, made.problem, made.inputs, None, options, made.memory)
    if made.partly and sequence.unwritten(found.emulation):
        whole = sequence.prepared(built, sequence.whole_blocks(problem), options)
        if whole is None or not sequence.unwritten(
            _alone(whole.built, whole.problem, whole.inputs, None, options, whole.memory).emulation
        ):
            return None
    clean = found.status == UNVERIFIED and found.emulation is not None
    hidden = clean and sequence.hides(made, found.emulation, (built, problem, inputs), options)
    return found if sequence.sure(made, found.emulation) and not hidden else None


def _alone(
    built: Built,
    problem: Problem,
    inputs: Mapping[str, NDArray[Any]],
    reference: Reference | None,
    options: Options,
    memory: Memory | None = None,
) -> Measurement:
    """Emulate one kernel on these inputs, as `row` does, in this memory."""
    variant, memory = built.variant, memory or Memory()
    try:
        run, arrays = launch(built, problem, inputs, options, memory)
        problem, inputs, memory, run, arrays, ran = longest(
            built,
            (problem, inputs, memory, run, arrays),
            options,
            lambda more: _inputs(more, options.seed)[0],
        )
    except NeedsGpu as e:
        return Measurement.failed_with(built, problem, e, REFUSED)
    except (HarnessError, MemoryError) as e:
        seen = e.findings if isinstance(e, EmulatorError) else ()
        if isinstance(e, OutOfTime) and (more := lengthened(built, problem, e.reached, options)):
            problem, seen = more, kept(seen, more)
        failed = Measurement.failed_with(built, problem, e)
        if isinstance(e, OutOfTime):
            ended = LATE if all(f.benign and not options.strict for f in seen) else FAILED
            failed = replace(failed, status=ended)
        return replace(failed, emulation=Emulation(findings=seen, instructions=())) if seen else failed
    except Exception as e:  # a defect of ours in one row must not take the others with it
        return Measurement.failed_with(built, problem, f"the emulator failed: {type(e).__name__}: {e}")
    verdict, wrong = judged(problem, inputs, reference, arrays)
    wrong = explained(wrong, run)
    bits = _bits(problem, arrays) if options.repeats else b""
    del arrays
    try:
        if ran and options.check and options.count and not wrong and not run.findings:
            run = with_zeros(built, problem, inputs, options, run)
        if ran and options.check and not wrong and not run.findings:
            run, wrong = further(built, problem, inputs, reference, options, memory, run)
            if not wrong and not run.findings:
                run, wrong = late(built, problem, inputs, reference, options, run)
    except OutOfTime as e:
        ended = FAILED if options.strict and run.notices else LATE
        return replace(Measurement.failed_with(built, problem, e, ended), before=verdict, emulation=run)
    wrong = [*wrong, *mistaken(problem)]
    right = not wrong and not run.findings and not (options.strict and run.notices)
    ends = (UNEXPECTED, EXPECTED) if variant.kernel.broken else (OK, FAILED)
    if verdict is None:
        ends = UNVERIFIED, FAILED
    found = Measurement(
        label=built.label,
        built=built,
        problem=problem,
        status=ends[not right],
        error="\n".join(wrong),
        before=verdict,
        emulation=run,
    )
    if not options.repeats or not ran or found.status not in REPEATABLE:
        return found
    try:
        return found.repeated(Repeats.of(bits, _again(built, problem, inputs, options)))
    except (HarnessError, MemoryError) as e:
        return replace(found, status=ERROR, error=str(e) or "host memory is exhausted")


def _again(
    built: Built, problem: Problem, inputs: Mapping[str, NDArray[Any]], options: Options
) -> Iterator[bytes]:
    """Yield the bytes of the outputs of each of the repeats."""
    swapped = _OTHER.get(options.schedule, "lockstep")
    for number in range(options.repeats):
        schedule = options.schedule if number % 2 else swapped
        quick = replace(options, schedule=schedule, check=False, count=False, as_compiled=False)
        yield _bits(problem, launch(built, problem, inputs, quick)[1])


def _bits(problem: Problem, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return b"".join(arrays[name].tobytes() for name in outputs(problem))


def matrix_instructions(counts: Iterable[Counts]) -> tuple[int, int]:
    """Return how often threads executed matrix instructions in all, and how many of these none executed."""
    found = [c.executions for c in counts if c.opcode.startswith(MATRIX)]
    return sum(found), found.count(0)


def multiplies_matrices(built: Built, cls: type[Problem]) -> bool:
    """Return True if the kernel executes matrix instructions at one of its problem's sizes for verification.

    Also where that cannot be told, since the emulator cannot run the kernel.
    """
    never = False
    for axes in cls.verify_axes:
        problem = checks.instance(cls, axes)
        try:
            run, _ = launch(built, problem, checks.data(problem, 1)[0], Options(check=False))
        except UsageError:  # a size that the kernel does not take
            continue
        except HarnessError:
            return True
        executed, _ = matrix_instructions(run.instructions)
        if executed:
            return True
        never = True
    return not never


def _inputs(problem: Problem, seed: int) -> tuple[dict[str, NDArray[Any]], Reference | None]:
    """Make the inputs and their reference. Raises OutOfMemory where host memory does not suffice."""
    needed, free = _needed(problem), free_memory()
    if needed > free:
        raise OutOfMemory(
            f"{problem.label}: emulating it takes about {needed / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB is free",
            hint="choose a smaller size with -a",
        )
    try:
        return checks.data(problem, seed)
    except MemoryError:
        raise OutOfMemory(
            f"{problem.label}: the inputs and their reference do not fit in memory",
            hint="choose a smaller size with -a",
        ) from None


def _needed(problem: Problem) -> float:
    """Return how many bytes of memory the process takes at most, within a factor of 1.5.

    Of inputs there are copies; of outputs a reference in float64, bounds, and what the emulator remembers of
    each cell. Where elements are small, making the data takes more than that.
    """
    outputs: int = min(problem.buffer_bytes, 4 * math.prod(problem.extents))
    emulated = _OF_INPUTS * (problem.buffer_bytes - outputs) + _OF_OUTPUTS * outputs
    return _PROCESS + max(emulated, checks.host_bytes(problem))
