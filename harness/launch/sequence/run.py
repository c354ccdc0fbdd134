"""Emulate the launches before one of a kernel without front matter: what they leave is what it finds.

Where one of them is refused, does not end, or has a finding of its own, nothing is said of what it leaves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator import Emulation
from harness.errors import EmulatorError, HarnessError
from harness.kernels.compiler import compile_kernel
from harness.kernels.cpp.host.order.host_calls import COPY, FILL, SCANS, SEQUENCE, Step
from harness.kernels.cpp.host.values import Values
from harness.launch.builds import Built
from harness.launch.emulated import Memory, Options, launch
from harness.launch.sequence import plan
from harness.launch.sequence.plan import Member, Plan, parameters_of
from harness.problems.guessed.contents import Held
from harness.problems.protocol import Problem, aliases
from harness.support.cache import Cache

_SECONDS = 2.0  # that the launches before may take, and one on guessed contents
_MEMORY = ("ld", "st", "atom", "red")
_WHOLE = 1024  # elements of whole blocks, for a size that is no multiple by default
_RACES = ("race", "hazard")
_UNWRITTEN = "uninitialised read"  # of a launch before: that is its own, and what it leaves is as good as any

_Bytes = NDArray[np.uint8]


@dataclass(kw_only=True)
class _Buffers:
    """The buffers of the host: their bytes, and the NumPy type of their elements.

    written: of those of which not all is known to be written, a 1 for each byte that is
    """

    bytes: dict[str, _Bytes] = field(default_factory=dict)
    written: dict[str, _Bytes] = field(default_factory=dict)
    types: dict[str, np.dtype[Any]] = field(default_factory=dict)

    def of(self, name: str) -> NDArray[Any]:
        """Return a buffer as elements."""
        return self.bytes[name].view(self.types[name])

    def write(self, name: str, end: int) -> None:
        """Note that the first bytes of a buffer are written."""
        if name in self.written:
            self.written[name][:end] = 1

    def memory(self, member: Member) -> Memory:
        """Return what a launch is told of what was written."""
        return Memory(written={n: self.written[b] for n, b in member.buffers.items() if b in self.written})


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A launch on what others leave: the kernel with its grid, its problem with the sizes of all.

    memory: says what was written; of some buffers that is a part, where `partly`
    known: the operands whose length host code tells
    again: as in `Plan`
    """

    built: Built
    problem: Problem
    inputs: dict[str, NDArray[Any]]
    memory: Memory
    partly: bool
    known: frozenset[str]
    again: bool


def prepared(built: Built, problem: Problem, options: Options) -> Prepared | None:
    """Return a launch on what those before it leave; None where that is nothing, or not sure."""
    found = plan.of(built.variant.kernel, problem)
    buffers = _left(found, built, options) if found else None
    if found is None or buffers is None:
        return None
    made: Any = found.last.problem
    made._after = found.after
    variant, kernel = built.variant, found.last.kernel
    return Prepared(  # what is built stays the same object, by which rows are grouped
        built=built if kernel is variant.kernel else replace(built, variant=replace(variant, kernel=kernel)),
        problem=made,
        inputs=_inputs(found.last, buffers, options.seed),
        memory=buffers.memory(found.last),
        partly=any(flags.any() and not flags.all() for flags in buffers.written.values()),
        known=frozenset(name for name, buffer in found.last.buffers.items() if buffer in found.known),
        again=found.again,
    )


def sure(made: Prepared, run: Emulation | None) -> bool:
    """Return whether a launch says something: it went past no buffer whose length is guessed."""
    return run is None or run.reached.keys() <= made.known


def unwritten(run: Emulation | None) -> bool:
    """Return True where a launch reads what nobody wrote."""
    return run is not None and any(finding.kind == _UNWRITTEN for finding in run.findings)


def whole_blocks(problem: Problem) -> Problem:
    """Return a problem whose sizes are multiples of blocks: kernels may leave out a rest."""
    known = parameters_of(problem)
    found: Any = problem
    more = {n: _WHOLE for n in known.whole if getattr(problem, n) == known.size < _WHOLE and known.depth == 1}
    return found.from_axes({**found._given, **more}) if more else problem


def hides(
    made: Prepared,
    run: Emulation | None,
    guess: tuple[Built, Problem, Mapping[str, NDArray[Any]]],
    options: Options,
) -> bool:
    """Return True where a launch with a `guess` has a fault in a line to which one without any did not come.

    So does a race where the launch is the first one of a loop: fewer threads may do something then.
    """
    counts = [c for c in run.instructions if c.opcode.startswith(_MEMORY)] if run else []
    never = {c.source for c in counts if not c.executions}
    if not options.check or not (never or made.again):
        return False
    until = min(options.until, time.monotonic() + _SECONDS)
    try:
        found = launch(*guess, replace(options, count=False, until=until))[0].findings
    except (HarnessError, MemoryError) as e:
        found = e.findings if isinstance(e, EmulatorError) else ()
    races = [f for f in found if any(kind in f.kind for kind in _RACES)]
    return any(never.intersection(f.sources) for f in found) or bool(made.again and races)


def _left(found: Plan, built: Built, options: Options) -> _Buffers | None:
    """Return the buffers as the launches before the last one leave them; None where that is not sure."""
    until = min(options.until, time.monotonic() + _SECONDS)
    quick = replace(options, count=False, as_compiled=False, check=True, until=until)
    try:
        buffers = _drawn(found, options.seed)
        for step, member in found.steps:
            if member is None:
                _apply(step, found, buffers)
            elif not _launched(member, built, buffers, quick):
                return None
        _inputs(found.last, buffers, options.seed)  # all as long as that
        return buffers
    except (HarnessError, MemoryError, ValueError):
        return None


def _drawn(found: Plan, seed: int) -> _Buffers:
    """Return what each buffer holds before the first launch. Raises ValueError where lengths differ.

    That is what the first kernel would have in it, or one that goes through rows or counts there, with no
    integer larger than any of them takes. What only a later kernel writes to may have two places that are the
    same: an earlier one reads them, and made offsets of them.
    """
    drawn = dict[str, list[tuple[Held, NDArray[Any]]]]()
    for member in [*(m for _, m in found.steps if m), found.last]:
        arrays = member.problem.inputs(seed)
        for name, buffer in member.buffers.items():
            drawn.setdefault(buffer, []).append((member.holds[name], np.ascontiguousarray(arrays[name])))
    buffers = _Buffers()
    for buffer, several in drawn.items():
        if len({array.nbytes for _, array in several}) > 1:
            raise ValueError(buffer)
        chosen = next((x for held, x in several if held.begins), None)
        chosen = next((x for held, x in several if held.counts is not None), chosen)
        first = several[0][1] if chosen is None else chosen
        alike = [x for held, x in several if x.dtype == first.dtype]
        if chosen is None and first.dtype.kind in "iu" and first.size:
            targets = [x for held, x in several if held.targets and x.dtype == first.dtype]
            if several[0][0].targets:
                first = min(targets, key=np.max)
            first = first % (min(x.max() for x in alike) + 1)
        buffers.types[buffer] = first.dtype
        buffers.bytes[buffer] = np.ascontiguousarray(first).reshape(-1).view(np.uint8).copy()
        if buffer in found.fresh:
            buffers.written[buffer] = np.zeros(len(buffers.bytes[buffer]), np.uint8)
    return buffers


def _inputs(member: Member, buffers: _Buffers, seed: int) -> dict[str, NDArray[Any]]:
    """Return the operands of a launch. Raises ValueError for a buffer of another length."""
    inputs = dict(member.problem.inputs(seed))
    for name, buffer in member.buffers.items():
        array = inputs[name]
        inputs[name] = buffers.bytes[buffer].view(array.dtype).reshape(array.shape).copy()
    return inputs


def _launched(member: Member, built: Built, buffers: _Buffers, options: Options) -> bool:
    """Emulate a launch on the buffers; return whether nothing was found in it."""
    variant = member.kernel.variant()
    cubin = compile_kernel(variant, built.cubin.arch, options.cache or Cache(None))
    one = Built(variant=variant, cubin=cubin, sass=None)
    inputs = _inputs(member, buffers, options.seed)
    run, arrays = launch(one, member.problem, inputs, options, buffers.memory(member))
    for name, buffer in member.buffers.items():
        if buffer in member.written and name not in aliases(member.problem):
            buffers.bytes[buffer] = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
            if not member.exact:
                buffers.written.pop(buffer, None)
    return all(finding.kind == _UNWRITTEN for finding in run.findings)


def _apply(step: Step, found: Plan, buffers: _Buffers) -> None:
    """Do what a call does. Raises ValueError where that is not known."""

    def number(at: int, otherwise: int) -> int:
        if not (written := step.values[at]):
            return otherwise
        value = Values({}).literal(written)
        if value is None and (value := found.number(written)) is None:
            raise ValueError(written)
        return value

    target = step.buffers[0]
    if step.kind == FILL:
        whole = buffers.bytes[target]
        whole[: number(1, len(whole))] = number(0, 0) & 0xFF
        buffers.write(target, number(1, len(whole)))
        return
    if step.kind == COPY:
        source, to = buffers.bytes[step.buffers[1]], buffers.bytes[target]
        count = number(0, len(to))
        to[:count] = source[: len(to)][:count]
        buffers.write(target, count)
        return
    x = buffers.of(target)
    count = min(number(0, len(x)), len(x))
    if step.kind in SCANS:
        sums = np.cumsum(x[:count], dtype=x.dtype)
        if step.kind == SCANS[0]:
            sums = sums - x[:count] + x.dtype.type(number(1, 0))
        buffers.of(step.buffers[1])[:count] = sums
        buffers.write(step.buffers[1], count * x.itemsize)
    elif step.kind == SEQUENCE:
        x[:count] = np.arange(count, dtype=x.dtype)
        buffers.write(target, count * x.itemsize)
    else:
        order = np.argsort(x[:count], kind="stable")
        x[:count] = x[order]
        for other in step.buffers[1:]:
            values = buffers.of(other)
            values[:count] = values[order]
