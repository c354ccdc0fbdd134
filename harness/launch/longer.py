"""Launch a kernel again with guessed buffers as long as it goes; tell apart what rests on their lengths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from harness.emulator import Emulation, Finding
from harness.errors import HarnessError
from harness.launch.builds import Built
from harness.launch.emulated import Memory, Options, launch
from harness.launch.kernel import grid
from harness.problems import protocol
from harness.problems.protocol import Problem

_MOST, _LARGE = 3, 2**28  # launches with longer buffers, and bytes of these
# A problem, its inputs, and what a launch left: memory, what the emulator saw, arrays.
_Launched = tuple[Problem, Mapping[str, NDArray[Any]], Memory, Emulation, dict[str, NDArray[Any]]]


def longest(
    built: Built,
    first: _Launched,
    options: Options,
    inputs: Callable[[Problem], Mapping[str, NDArray[Any]]],
    most: int = _MOST,
) -> _Launched:
    """Launch a kernel with guessed arguments again where a buffer is longer than guessed, so often at `most`.

    A buffer that is as long as its kernel goes may lead to others. Return the problem, its inputs, and what
    the launch left. Where nothing is longer that is the `first` one's, and where such a launch would be one
    too many or does not end, without what rests on the lengths.
    """
    problem, given, memory, run, arrays = first
    if (more := lengthened(built, problem, run.reached, options)) is None:
        return first
    if most and more.buffer_bytes <= _LARGE:
        with contextlib.suppress(HarnessError, MemoryError):
            made, other = inputs(more), Memory()
            left = launch(built, more, made, options, other)
            return longest(built, (more, made, other, *left), options, inputs, most - 1)
    if not options.doubts:
        return first
    return more, given, memory, replace(run, findings=kept(run.findings, more)), arrays


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
