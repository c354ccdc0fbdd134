"""Verify kernels in the emulator: one row per kernel and size, as on a GPU, with findings and counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.bench.row import (
    ERROR,
    EXPECTED,
    FAILED,
    OK,
    REFUSED,
    REPEATABLE,
    UNEXPECTED,
    UNVERIFIED,
    Measurement,
)
from harness.emulator import Counts, Emulation, Finding
from harness.emulator.blocks.endless import BUDGET
from harness.errors import EmulatorError, HarnessError, NeedsGpu, OutOfMemory, UsageError
from harness.launch.builds import Built, Progress
from harness.launch.emulated import SMS, Memory, Options, launch
from harness.problems import checks
from harness.problems.protocol import (
    Axes,
    Problem,
    Reference,
    outputs,
    references,
)
from harness.problems.verify import Repeats, Verdict, compare_each
from harness.support.processes import ENDED, cores, free_memory, outcome, processes

__all__ = [
    "BUDGET",
    "SMS",
    "Memory",
    "Options",
    "launch",
    "matrix_instructions",
    "multiplies_matrices",
    "row",
    "rows",
]

_DELAYED = "delayed"  # that of one more, if strong stores tell others where they are
_SAID = 3  # stores seen too late of which a row tells
_BACKWARD = "backward"  # the order of the second launch of a kernel to which it matters who comes first
_MANY = 8  # with fewer rows than this, starting processes takes longer than emulating
_OTHER = {"lockstep": "warp-serial", "warp-serial": "lockstep", "backward": "lockstep"}
_OTHER |= {"early": "late", "late": "early", "random": "lockstep", "delayed": "lockstep"}
_MATRIX = ("mma", "wmma.mma", "wgmma.mma_async", "tcgen05.mma")
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
        pool = None
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
                    yield from (Measurement.failed_with(one, problem, e) for one in kernels)
                    continue
                job = (problem, inputs, reference, options)
                if pool is not None and len(kernels) > 1 and _can_leave(problem):
                    yield from _apart(pool, kernels, job, progress)
                    continue
                for one in kernels:
                    progress(f"{one.label} {problem.label}")
                    yield row(one, *job)


def _apart(
    pool: ProcessPoolExecutor, kernels: Sequence[Built], job: _Job, progress: Progress
) -> Iterator[Measurement]:
    """Emulate one problem in the processes of `pool`, and yield the rows in the order of `kernels`.

    Parsed machine code is left out of what is sent where nothing needs it, and put back into the row: sending
    it takes long. Raises HarnessError if a process was killed.
    """
    problem, *_, options = job
    lighter = [one if options.as_compiled else replace(one, sass=None) for one in kernels]
    futures = [pool.submit(row, one, *job) for one in lighter]
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
    kernel that the emulator cannot run is REFUSED, and every other error becomes an ERROR row.
    """
    variant, memory = built.variant, Memory()
    try:
        run, arrays = launch(built, problem, inputs, options, memory)
    except NeedsGpu as e:
        return Measurement.failed_with(built, problem, e, REFUSED)
    except (HarnessError, MemoryError) as e:
        failed = Measurement.failed_with(built, problem, e)
        seen = e.findings if isinstance(e, EmulatorError) else ()
        return replace(failed, emulation=Emulation(findings=seen, instructions=())) if seen else failed
    except Exception as e:  # a defect of ours in one row must not take the others with it
        return Measurement.failed_with(built, problem, f"the emulator failed: {type(e).__name__}: {e}")
    verdict, wrong = _judged(problem, inputs, reference, arrays)
    wrong = _explained(wrong, run)
    bits = _bits(problem, arrays) if options.repeats else b""
    del arrays
    if options.check and not wrong and not run.findings:
        run, wrong = _further(built, problem, inputs, reference, options, memory, run)
        if reference is not None and not wrong and not run.findings:
            run, wrong = _delayed(built, problem, inputs, reference, options, run)
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
    if not options.repeats or found.status not in REPEATABLE:
        return found
    try:
        return found.repeated(Repeats.of(bits, _again(built, problem, inputs, options)))
    except (HarnessError, MemoryError) as e:
        return replace(found, status=ERROR, error=str(e) or "host memory is exhausted")


def _judged(
    problem: Problem,
    inputs: Mapping[str, NDArray[Any]],
    reference: Reference | None,
    arrays: Mapping[str, NDArray[Any]],
) -> tuple[Verdict | None, list[str]]:
    """Return the verdict on the outputs after a launch, and what is wrong with them and with the inputs."""
    written = outputs(problem)
    verdict = None if reference is None else compare_each(arrays, references(problem, reference), inputs)
    damaged = sorted(n for n in arrays.keys() - set(written) if not _same(arrays[n], inputs[n]))
    wrong = [] if verdict is None or verdict.ok else [str(verdict)]
    wrong += [f"it overwrote its input {' and '.join(damaged)}"] if damaged else []
    return verdict, wrong


def _further(
    built: Built,
    problem: Problem,
    inputs: Mapping[str, NDArray[Any]],
    reference: Reference | None,
    options: Options,
    memory: Memory,
    run: Emulation,
) -> tuple[Emulation, list[str]]:
    """Launch again what may then go another way; return what all launches saw, and what is now wrong.

    That is a kernel to which it matters who comes first, in the other order, and one that has left something
    in its workspace or its variables, in `memory` as it was left, and a third time if it has changed again.
    With no reference, variables are set anew: how the host launches such a kernel is not known.
    """
    swapped = options.schedule == "lockstep" and bool(run.contended)
    kept = reference is not None and memory.changed(built, problem)
    wrong: list[str] = []
    for which in ("second", "third"):
        if wrong or run.findings or not (kept or swapped):
            break
        schedule = _BACKWARD if swapped else options.schedule
        quick = replace(options, schedule=schedule, check=swapped, count=False, as_compiled=False)
        how = f"in a {which} launch" + (f", with --schedule {schedule}" if swapped else "")
        how += ", in the workspace and variables as they were left" if kept else ""
        before = memory.digest()
        found: tuple[Finding, ...] = ()
        try:
            other, arrays = launch(built, problem, inputs, quick, memory if kept else None)
            found, wrong = (*other.findings, *other.notices), _judged(problem, inputs, reference, arrays)[1]
        except (HarnessError, MemoryError) as e:
            found = e.findings if isinstance(e, EmulatorError) else ()
            wrong = [str(e) or "host memory is exhausted"]
        run, wrong = _joined(run, found, how, schedule), [f"{how}: {text}" for text in wrong]
        swapped, kept = False, kept and memory.digest() != before
    return run, wrong


def _delayed(
    built: Built,
    problem: Problem,
    inputs: Mapping[str, NDArray[Any]],
    reference: Reference,
    options: Options,
    run: Emulation,
) -> tuple[Emulation, list[str]]:
    """Launch once more, with strong stores delayed, a kernel whose threads tell each other by such stores.

    Its numbers alone are looked at: what is delayed is no fault unless they are wrong.
    """
    if options.schedule != "lockstep" or not (run.contended and run.waits):
        return run, []
    how = f"in a further launch, with --schedule {_DELAYED}"
    quick = replace(options, schedule=_DELAYED, check=False, count=False, as_compiled=False)
    try:
        other, arrays = launch(built, problem, inputs, quick)
        wrong = _explained(_judged(problem, inputs, reference, arrays)[1], other)
    except (HarnessError, MemoryError) as e:
        wrong = [str(e) or "host memory is exhausted"]
    return _joined(run, (), how, _DELAYED), [f"{how}: {text}" for text in wrong]


def _explained(wrong: list[str], run: Emulation) -> list[str]:
    """Return what is wrong, and the stores that were seen too late, which may be why."""
    return [*wrong, *list(dict.fromkeys(map(str, run.late)))[:_SAID]] if wrong else []


def _joined(run: Emulation, found: Sequence[Finding], how: str, schedule: str) -> Emulation:
    """Return what a kernel's launches saw, with what was `found` in a further one; `how` says in which."""
    seen = {_identity(f) for f in (*run.findings, *run.notices)}
    new = [replace(f, message=f"{f.message} ({how})") for f in found if _identity(f) not in seen]
    return replace(
        run,
        findings=(*run.findings, *(f for f in new if not f.benign)),
        notices=(*run.notices, *(f for f in new if f.benign)),
        schedules=(*run.schedules, schedule),
    )


def _identity(finding: Finding) -> tuple[object, ...]:
    """Return what tells a fault from others."""
    return finding.kind, finding.sources, finding.variable, finding.benign


def _again(
    built: Built, problem: Problem, inputs: Mapping[str, NDArray[Any]], options: Options
) -> Iterator[bytes]:
    """Yield the bytes of the outputs of each of the repeats."""
    swapped = _OTHER[options.schedule]
    for number in range(options.repeats):
        schedule = options.schedule if number % 2 else swapped
        quick = replace(options, schedule=schedule, check=False, count=False, as_compiled=False)
        yield _bits(problem, launch(built, problem, inputs, quick)[1])


def _bits(problem: Problem, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return b"".join(arrays[name].tobytes() for name in outputs(problem))


def matrix_instructions(counts: Iterable[Counts]) -> tuple[int, int]:
    """Return how often threads executed matrix instructions in all, and how many of these none executed."""
    found = [c.executions for c in counts if c.opcode.startswith(_MATRIX)]
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


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return True if both arrays have the same bits; NaNs compare equal to themselves."""
    return np.array_equal(a.view(np.uint8), b.view(np.uint8))
