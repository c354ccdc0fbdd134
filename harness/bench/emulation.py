"""Verify kernels in the emulator: one row per kernel and size, as on a GPU, with findings and counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
from harness.emulator import Buffer, Counts, Emulation, emulate
from harness.emulator.blocks.endless import BUDGET
from harness.errors import EmulatorError, HarnessError, InspectError, NeedsGpu, OutOfMemory, UsageError
from harness.launch import emulated
from harness.launch.builds import Built, Progress
from harness.launch.kernel import grid, maps, workspace
from harness.problems import checks
from harness.problems.protocol import (
    Axes,
    Problem,
    Reference,
    constants,
    outputs,
    references,
)
from harness.problems.registry import blamed
from harness.problems.verify import Repeats, compare_each
from harness.sass import access_widths
from harness.support.cache import Cache
from harness.support.processes import ENDED, cores, free_memory, processes

SMS = 4  # emulated multiprocessors, by default
_MANY = 8  # with fewer rows than this, starting processes takes longer than emulating
_OTHER = {"lockstep": "warp-serial", "warp-serial": "lockstep", "backward": "lockstep"}
_OTHER |= {"early": "late", "late": "early"}
_MATRIX = ("mma", "wmma.mma", "wgmma.mma_async", "tcgen05.mma")
# Peaks of memory, measured at products and copies: of the process, and of each byte of inputs and outputs.
_PROCESS, _OF_INPUTS, _OF_OUTPUTS = 0.15 * 2**30, 3.2, 16


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to emulate.

    `seed` makes the input data. `schedule` is ``lockstep``, or ``warp-serial``, in which a missing barrier
    shows in the numbers. `check` looks for races and other findings, `count` counts accesses and
    instructions. `as_compiled` counts shared and global accesses in the widths that the machine code has, for
    which the output of nvdisasm is kept in `cache`; otherwise they are counted as the PTX has them. `sms` is
    the number of multiprocessors, of which persistent kernels make their grid: on one, their blocks could not
    race. `strict` takes notices, such as stores of the same value by several threads, for findings. `budget`
    is the instructions that a batch of blocks may execute. After a launch has been verified, `repeats` more
    follow, alternating between the other schedule and this one, since nothing else can differ from launch to
    launch here.
    """

    seed: int = 1
    schedule: str = "lockstep"
    check: bool = True
    count: bool = True
    as_compiled: bool = False
    cache: Cache | None = None
    repeats: int = 0
    sms: int = SMS
    strict: bool = False
    budget: int = BUDGET


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The state that stays from launch to launch: variables of the module by name, workspaces by size."""

    variables: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    workspaces: dict[int, NDArray[np.uint8]] = field(default_factory=dict)


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
            yield replace(future.result(), built=one)
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
    variant = built.variant
    try:
        run, arrays = launch(built, problem, inputs, options)
    except NeedsGpu as e:
        return Measurement.failed_with(built, problem, e, REFUSED)
    except (HarnessError, MemoryError) as e:
        failed = Measurement.failed_with(built, problem, e)
        seen = e.findings if isinstance(e, EmulatorError) else ()
        return replace(failed, emulation=Emulation(findings=seen, instructions=())) if seen else failed
    except Exception as e:  # a defect of ours in one row must not take the others with it
        return Measurement.failed_with(built, problem, f"the emulator failed: {type(e).__name__}: {e}")
    written = outputs(problem)
    verdict = None if reference is None else compare_each(arrays, references(problem, reference), inputs)
    damaged = sorted(n for n in arrays.keys() - set(written) if not _same(arrays[n], inputs[n]))
    wrong = [] if verdict is None or verdict.ok else [str(verdict)]
    wrong += [f"it overwrote its input {' and '.join(damaged)}"] if damaged else []
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
        return found.repeated(Repeats.of(_bits(problem, arrays), _again(built, problem, inputs, options)))
    except (HarnessError, MemoryError) as e:
        return replace(found, status=ERROR, error=str(e) or "host memory is exhausted")


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


def launch(
    built: Built,
    problem: Problem,
    inputs: Mapping[str, NDArray[Any]],
    options: Options,
    memory: Memory | None = None,
) -> tuple[Emulation, dict[str, NDArray[Any]]]:
    """Launch a kernel once on copies of `inputs`; return what the emulator saw, and the arrays after the
    launch.

    Launches with the same `memory` share the module and the workspace, which are new without one. Raises
    HarnessError for a kernel that cannot be emulated.
    """
    variant = built.variant
    arrays = {name: array.copy() for name, array in inputs.items()}
    with blamed(type(problem)):
        shape, arguments = grid(variant, problem, sms=options.sms), problem.arguments()
        size = workspace(variant, problem, sms=options.sms)
    bound: list[Any] = [emulated.tensor_map(mapped, arrays) for mapped in maps(variant, problem)]
    bound += [emulated.argument(a, arrays, problem) for a in arguments]
    if size:
        memory = Memory() if memory is None else memory
        scratch = memory.workspaces.setdefault(size, np.zeros(size, dtype=np.uint8))
        bound.append(Buffer(array=scratch, name="workspace"))
    variables = {} if memory is None else memory.variables
    for name in constants(problem):
        variables[built.cubin.symbol(name)] = arrays[name].reshape(-1).view(np.uint8)
    run = emulate(
        built.cubin.ptx,
        built.cubin.entry,
        grid=shape,
        block=variant.block,
        arguments=bound,
        shared=variant.shared,
        schedule=options.schedule,
        check=options.check,
        count=options.count,
        widths=_widths(built, options) if options.as_compiled else None,
        budget=options.budget,
        variables=variables,
    )
    return run, arrays


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
    each cell.
    """
    outputs: int = min(problem.buffer_bytes, 4 * math.prod(problem.extents))
    return _PROCESS + _OF_INPUTS * (problem.buffer_bytes - outputs) + _OF_OUTPUTS * outputs


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return True if both arrays have the same bits; NaNs compare equal to themselves."""
    return np.array_equal(a.view(np.uint8), b.view(np.uint8))


def _widths(built: Built, options: Options) -> Mapping[int, int]:
    """Return the width in bytes of the compiled access of each PTX line.

    Raises InspectError where there is no disassembly, or one line was compiled to accesses of several widths.
    """
    if built.sass is None:
        raise InspectError("counts as compiled need nvdisasm", where=built.label)
    found = access_widths.widths(built.cubin, built.sass, options.cache or Cache(None))
    if found.ambiguous:
        raise InspectError(
            f"PTX lines {', '.join(map(str, found.ambiguous))} were compiled to accesses of several widths: "
            "counts as compiled are not known",
            where=built.label,
        )
    return found.bytes
