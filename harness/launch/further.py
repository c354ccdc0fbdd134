"""Further launches of a kernel in the emulator, where one does not show all: in other orders, in the memory
that it left, and with guessed buffers as long as it goes; and what is wrong after a launch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator import Emulation, Finding
from harness.emulator.blocks.delays.unfenced import KINDS as MISSING
from harness.errors import EmulatorError, HarnessError, NeedsGpu, NotEnded, OutOfTime
from harness.launch.builds import Built
from harness.launch.emulated import Memory, Options, launch
from harness.launch.kernel import grid
from harness.problems import protocol
from harness.problems.protocol import Problem, Reference, outputs, references, zeroed
from harness.problems.verify import Verdict, compare_each

_BACKWARD = "backward"  # the order of the second launch of a kernel to which it matters who comes first
_DELAYED = "delayed"  # that of one more, if strong stores tell others where they are
_HELD = "held"  # that of the last one
_SECONDS = 5.0  # that the last one may take: warp by warp, some kernels take many times as long
_BRIEFLY = 2.0  # and one with zeros in constant memory
_MEMORY = ("ld", "st", "atom", "red")
_MOST, _LARGE = 3, 2**28  # launches with longer buffers, and bytes of these
# A problem, its inputs, and what a launch left: memory, what the emulator saw, arrays.
_Launched = tuple[Problem, Mapping[str, NDArray[Any]], Memory, Emulation, dict[str, NDArray[Any]]]
_Longest = tuple[Problem, Mapping[str, NDArray[Any]], Memory, Emulation, dict[str, NDArray[Any]], bool]
_SAID = 3  # stores seen too late of which a row tells


def judged(
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


def with_zeros(
    built: Built, problem: Problem, inputs: Mapping[str, NDArray[Any]], options: Options, run: Emulation
) -> Emulation:
    """Launch a guess again with zeros in place of random contents of constant memory.

    These may have sent all threads past some lines. A finding in one of them is that of `run`, too.
    """
    never = {c.source for c in run.instructions if c.opcode.startswith(_MEMORY) and not c.executions}
    if not never or (still := zeroed(problem)) is None:
        return run
    until = min(options.until, time.monotonic() + _BRIEFLY)
    quick = replace(options, count=False, as_compiled=False, until=until)
    try:
        found = launch(built, still, inputs, quick)[0].findings
    except (HarnessError, MemoryError) as e:
        found = e.findings if isinstance(e, EmulatorError) else ()
    more = tuple(finding for finding in found if never.intersection(finding.sources))
    return replace(run, findings=more) if more else run


def further(
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
            found, wrong = (*other.findings, *other.notices), judged(problem, inputs, reference, arrays)[1]
        except OutOfTime as e:
            if all(finding.benign for finding in e.findings):
                raise
            found, wrong = e.findings, []
        except (HarnessError, MemoryError) as e:
            found = e.findings if isinstance(e, EmulatorError) else ()
            wrong = [str(e) or "host memory is exhausted"]
        run, wrong = _joined(run, found, how, schedule), [f"{how}: {text}" for text in wrong]
        swapped, kept = False, kept and memory.digest() != before
    return run, wrong


def late(
    built: Built,
    problem: Problem,
    inputs: Mapping[str, NDArray[Any]],
    reference: Reference | None,
    options: Options,
    run: Emulation,
) -> tuple[Emulation, list[str]]:
    """Launch a kernel to which it matters who comes first with all strong stores late, if its threads tell
    each other by them, and again with one warp late.

    Its numbers alone are looked at: that something is late is no fault unless they are wrong. The last
    launch says nothing where it takes long. Then, and without a reference, fences and barriers that are
    missing are looked for.
    """
    if reference is None:
        return _unfenced(built, problem, inputs, options, run), []
    if options.schedule != "lockstep" or not run.contended:
        return run, []
    for schedule in (_DELAYED, _HELD) if run.waits else (_HELD,):
        how = f"in a further launch, with --schedule {schedule}"
        quick = replace(options, schedule=schedule, check=False, count=False, as_compiled=False)
        if schedule == _HELD:
            quick = replace(quick, until=min(options.until, time.monotonic() + _SECONDS))
        try:
            other, arrays = launch(built, problem, inputs, quick)
            wrong = explained(judged(problem, inputs, reference, arrays)[1], other)
        except (HarnessError, MemoryError) as e:
            if schedule == _HELD and isinstance(e, NotEnded):
                break
            if isinstance(e, OutOfTime):
                raise
            wrong = [str(e) or "host memory is exhausted"]
        run = _joined(run, (), how, schedule)
        if wrong:
            return run, [f"{how}: {text}" for text in wrong]
    return _unfenced(built, problem, inputs, options, run), []


def _unfenced(
    built: Built, problem: Problem, inputs: Mapping[str, NDArray[Any]], options: Options, run: Emulation
) -> Emulation:
    """Launch a kernel again to look for fences and barriers that are missing, which need not show in numbers,
    if its threads tell each other by strong stores where they are.
    """
    if options.schedule != "lockstep" or not run.relies:
        return run
    until = min(options.until, time.monotonic() + _SECONDS)
    try:
        quick = replace(options, count=False, as_compiled=False, fences=True, until=until)
        found = launch(built, problem, inputs, quick)[0].findings
    except (HarnessError, MemoryError):
        return run
    return replace(run, findings=tuple(f for f in found if f.kind in MISSING))


def explained(wrong: list[str], run: Emulation) -> list[str]:
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


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return True if both arrays have the same bits; NaNs compare equal to themselves."""
    return np.array_equal(a.view(np.uint8), b.view(np.uint8))


def longest(
    built: Built,
    first: _Launched,
    options: Options,
    inputs: Callable[[Problem], Mapping[str, NDArray[Any]]],
    most: int = _MOST,
) -> _Longest:
    """Launch a kernel with guessed arguments again where a buffer is longer than guessed, so often at `most`.

    A buffer that is as long as its kernel goes may lead to others. Return the problem, its inputs, what the
    launch left, and True. Where nothing is longer that is the `first` one's, and where such a launch would be
    one too many or has no time or room, without what rests on the lengths: the problem then is that of the
    launch that there was not, and False is returned. What is wrong with a longer launch is raised.
    """
    problem, given, memory, run, arrays = first
    if (more := lengthened(built, problem, run.reached, options)) is None:
        return *first, True
    if most:
        with contextlib.suppress(OutOfTime, NeedsGpu, MemoryError):
            if more.buffer_bytes <= _LARGE:
                made, other = inputs(more), Memory()
                left = launch(built, more, made, options, other)
                return longest(built, (more, made, other, *left), options, inputs, most - 1)
    if not options.doubts:
        return *first, True
    return more, given, memory, replace(run, findings=kept(run.findings, more)), arrays, False


def lengthened(
    built: Built, problem: Problem, reached: Mapping[str, int], options: Options
) -> Problem | None:
    """Return a guessed problem with longer buffers, where a kernel `reached` past the ends of some."""
    shape = grid(built.variant, problem, sms=options.sms) if reached else ()
    return protocol.longer(problem, reached, shape, options.doubts)


def kept(found: Sequence[Finding], more: Problem) -> tuple[Finding, ...]:
    """Return what was found without accesses past the ends of buffers that `more` has longer."""
    known = protocol.lengthened(more).keys() | protocol.doubted(more).keys()
    return tuple(f for f in found if f.kind != "out of bounds" or f.variable not in known)


def unsure(problem: Problem) -> list[str]:
    """Return the options that say how long buffers are of which that is in doubt, with what was guessed."""
    known = protocol.doubted(problem).items()
    return [f"-a {name}={getattr(problem, name)} ({guessed} guessed)" for name, guessed in known]
