"""Plan the launches that come before one of a kernel without front matter: which, and at which sizes.

Only those are taken on which integers depend that the kernel reads, such as offsets and counters: floats lead
to no other places. Sizes are those of the kernel; where another one has it fixed, such as the threads of a
block that scans all counters, it is taken from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import HarnessError
from harness.kernels import catalog, text
from harness.kernels.cpp import calls, elements
from harness.kernels.cpp.host import launches
from harness.kernels.cpp.host.order import steps
from harness.kernels.cpp.host.order.host_calls import ALLOCATE, COPY, FILL, GIVEN, LAUNCH, LOST, SCANS, Step
from harness.kernels.cpp.host.values import SIZEOF
from harness.kernels.cpp.source.anew import instances
from harness.kernels.expr import Expr, ExprError
from harness.kernels.spec import Kernel
from harness.problems.guessed.allocated import together
from harness.problems.guessed.buffers import Parameters
from harness.problems.guessed.contents import Held
from harness.problems.protocol import Problem, unverified
from harness.problems.registry import resolve

_FEW = 1024  # what is taken as it stands of numbers of the host that the kernel has not got
_LAUNCHES = 8  # that come before
_BYTES = 2**24  # of a buffer
_THREADS = 2**17  # of a launch whose grid is the host's
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A launch of a kernel on a problem.

    buffers: those of the host that its pointers are, by parameter; `written` are the ones that it may write
    holds: what it would have in them, by parameter
    exact: it is launched as by the host, with sizes of its own
    """

    kernel: Kernel
    problem: Problem
    buffers: Mapping[str, str]
    written: frozenset[str]
    holds: Mapping[str, Held]
    exact: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The `steps` up to a launch, each with a member if it is a launch, and that launch, `last`.

    known: the buffers whose length host code tells
    numbers: what the expressions of steps are
    fresh: the buffers that hold nothing before the first step
    again: the last launch is in a loop, and is the first one of many, which these steps do not come before
    """

    steps: Sequence[tuple[Step, Member | None]]
    last: Member
    again: bool
    known: frozenset[str]
    fresh: frozenset[str]
    numbers: Mapping[str, int]

    @property
    def after(self) -> tuple[str, ...]:
        """Return what made the contents: the kernels, and functions of libraries, in order."""
        found = (step.entry.partition("<")[0].rpartition("::")[2] for step, _ in self.steps)
        return tuple(dict.fromkeys(found))

    def number(self, written: str) -> int | None:
        """Return the value of an expression over names of the host, or None."""
        return _evaluated(written, self.numbers)


@dataclass(frozen=True, kw_only=True)
class _Launched:
    """A launch that is not planned yet."""

    step: Step
    kernel: Kernel
    known: Parameters

    def pointers(self) -> Iterator[tuple[text.Parameter, str]]:
        """Yield the parameters that are plain pointers, each with its buffer."""
        for p, buffer in zip(self.known.entry.parameters, self.step.buffers, strict=False):
            if buffer and p.pointer and p.name not in self.known.dimensions.ranks:
                yield p, buffer

    def integers(self) -> Iterator[tuple[str, str]]:
        """Yield the parameters that are integers, each with what it is given."""
        names = {p.name for p in self.known.values}
        for p, written in zip(self.known.entry.parameters, self.step.values, strict=False):
            kind = self.known.types.get(p.name)
            if p.name in names and isinstance(kind, tuple) and kind[1] == 1 and "int" in kind[0]:
                yield p.name, written

    def read(self) -> set[str]:
        """Return the buffers of integers that the kernel reads."""
        return {
            buffer
            for p, buffer in self.pointers()
            if any("int" in kind for kind in elements.numbers(self.known.types[p.name]))
            and reads(self.known.entry.body, p.name)
        }

    def written(self) -> set[str]:
        """Return the buffers that the kernel may write."""
        return {buffer for p, buffer in self.pointers() if not p.const}


def of(kernel: Kernel, problem: Problem) -> Plan | None:
    """Return what comes before a launch of a kernel on a problem; None where that is nothing, or in doubt."""
    if not kernel.plain or not unverified(problem):
        return None
    try:
        found = steps.before(calls.host(kernel), kernel.entry)
        if not found.steps:
            return None
        last = _Launched(step=found.steps[-1], kernel=kernel, known=parameters_of(problem))
        kept, fresh = _needed(found, last)
        if not (kept or fresh) or any(map(_twice, (last, *(m for _, m in kept if m)))):
            return None
        return _planned(kept, last, problem, found, frozenset(fresh))
    except (HarnessError, ExprError):
        return None


def reads(body: str, pointer: str) -> bool:
    """Return True unless a body does nothing with a pointer but assign to its places."""
    for at in re.finditer(rf"(?<![.>\w])\b{re.escape(pointer)}\b\s*(\[)?", body):
        closed = text.closing(body, at.end() - 1) if at[1] else -1
        if closed < 0 or not re.match(r"\s*=(?!=)", body[closed + 1 :]):
            return True
    return False


def parameters_of(problem: Problem | type[Problem]) -> Parameters:
    """Return what is known of the parameters of a guessed problem."""
    known: Parameters = getattr(problem, "_parameters")  # noqa: B009
    return known


def _twice(one: _Launched) -> bool:
    """Return True where a launch has a buffer twice, and may write it: it is emulated in two places."""
    names = [buffer for _, buffer in one.pointers()]
    return any(names.count(buffer) > 1 for buffer in one.written())


def _needed(found: steps.Before, last: _Launched) -> tuple[list[tuple[Step, _Launched | None]], set[str]]:
    """Return the steps on which integers depend that a kernel reads, and buffers that only these write."""
    needed, kept, fresh = last.read(), list[tuple[Step, _Launched | None]](), set[str]()
    for step in reversed(found.steps[:-1]):
        if not needed.intersection(step.buffers):
            continue
        if step.kind in (ALLOCATE, GIVEN, LOST):
            fresh |= needed & found.fresh & {*step.buffers} if step.kind == ALLOCATE else set()
            needed -= {*step.buffers}
        elif step.kind == LAUNCH:
            kernel = _kernel(last.kernel, step.entry)
            launch = _Launched(step=step, kernel=kernel, known=parameters_of(resolve(kernel)))
            if needed & launch.written():
                needed |= launch.read()
                kept.append((step, launch))
        elif step.kind not in (*SCANS, COPY) or step.buffers[-1 if step.kind in SCANS else 0] in needed:
            needed |= {*step.buffers} - {""}
            kept.append((step, None))
    written = {buffer for step, launch in kept for buffer in (launch.written() if launch else step.buffers)}
    if not any(step.kind == GIVEN and {*step.buffers} & {*last.step.buffers} for step in found.steps):
        fresh &= written  # host code that gives the kernel nothing at all is short of more than this
    whole = sum(launch is not None for _, launch in kept) <= _LAUNCHES
    return (kept[::-1], fresh) if whole else ([], set())


def _kernel(kernel: Kernel, entry: str) -> Kernel:
    """Return another kernel of a file, as host code launches it."""
    found = text.find(text.entries(kernel.source), entry)
    if found is not None and found.template and "<" not in entry:
        entry = next(iter(instances.launched(kernel.source, found)), "") or instances.guessed(found)
    return calls.launchable(catalog.chosen([kernel], entry, ())[0])


def _planned(
    kept: Sequence[tuple[Step, _Launched | None]],
    last: _Launched,
    problem: Problem,
    found: steps.Before,
    fresh: frozenset[str],
) -> Plan | None:
    """Return the plan: sizes that are the same for all, and buffers as long as these say."""
    several = [*(launch for _, launch in kept if launch), last]
    numbers = _numbers(several, problem, found.numbers)
    written = {
        s.buffers[0]: s.values[0] for s in found.steps if s.kind == ALLOCATE and s.buffers[0] and s.values[0]
    }
    sizes = [_sizes(launch, numbers, problem if launch is last else None) for launch in several]
    if any(size is None for size in sizes):
        return None
    first = [
        type(problem).from_axes(size) if one is last else resolve(one.kernel).from_axes(size)
        for one, size in zip(several, sizes, strict=True)
        if size is not None
    ]
    bytes_of, known = _lengths(several, first, written, numbers)
    if max(bytes_of.values(), default=0) > _BYTES:
        return None
    members = [
        _member(launch, one, bytes_of, numbers, sized=launch is last and bool(last.known.whole))
        for launch, one in zip(several, first, strict=True)
    ]
    of_launch = iter(members)
    whole = [(_filled(step, written), next(of_launch) if launch else None) for step, launch in kept]
    return Plan(
        steps=whole,
        last=members[-1],
        again=bool(kept and last.step.loops.difference(*(step.loops for step, _ in kept))),
        known=frozenset(known),
        fresh=fresh,
        numbers=numbers,
    )


def _filled(step: Step, written: Mapping[str, str]) -> Step:
    """Return a step that fills a buffer without its bytes, where these are what was allocated."""
    if step.kind == FILL and step.values[1] == written.get(step.buffers[0]):
        return replace(step, values=(step.values[0], ""))
    return step


def _numbers(several: Sequence[_Launched], problem: Problem, of_host: Mapping[str, int]) -> dict[str, int]:
    """Return what names of the host are for all several.

    That is what the user says, what a kernel has fixed, what the last one has, a small number of the host,
    and what another kernel has.
    """
    given, found = getattr(problem, "_given", {}), dict[str, tuple[int, int]]()
    for launch in several:
        last = launch is several[-1]
        known = launch.known
        loose = {n for n in known.whole if known.scalars[n] == known.size}
        loose |= {*known.strides, *known.pitches}
        for name, written in launch.integers():
            value = getattr(problem, name) if last else known.scalars[name]
            if written:  # an expression of several names as well: the same one is the same number
                rank = 0 if last and name in given else 1 if name not in loose else 2 if last else 4
                found[written] = min(found.get(written, (9, 0)), (rank, int(value)))
    own = [_WORD.findall(written) for written, (rank, _) in found.items() if rank == 2]
    composed = {n for names in own if found.keys().isdisjoint(names) for n in names}  # its size stays small
    for name, number in of_host.items():
        if 0 <= number <= _FEW and name not in composed:
            found[name] = min(found.get(name, (9, 0)), (3, number))
    return {name: number for name, (_, number) in found.items()}


def _sizes(launch: _Launched, numbers: Mapping[str, int], problem: Problem | None) -> dict[str, Any] | None:
    """Return the integers of a launch; None where one that is a size is not known, and not its own."""
    found = dict(getattr(problem, "_given", {}))
    for name, written in launch.integers():
        value = _evaluated(written, numbers)
        if value is not None:
            found[name] = value
        elif problem is not None:
            found[name] = getattr(problem, name)
        elif name in launch.known.whole:
            return None
    return found


def _lengths(
    several: Sequence[_Launched],
    problems: Sequence[Any],
    written: Mapping[str, str],
    numbers: Mapping[str, int],
) -> tuple[dict[str, int], set[str]]:
    """Return the bytes of each buffer, and the buffers of which host code tells that.

    A plain number is taken where it is no more than what some kernel is guessed to want.
    """
    found, known = dict[str, int](), set[str]()
    for launch, problem in zip(several, problems, strict=True):
        for p, buffer in launch.pointers():
            size = elements.size(launch.known.types[p.name])
            guessed = getattr(problem, p.name) * size
            expression = re.sub(rf"\b{SIZEOF}\w*", str(size), written.get(buffer, ""))
            told = _evaluated(expression, numbers)
            if told and (_WORD.search(expression) or told <= max(guessed, _FEW)):
                found[buffer] = told
                known.add(buffer)
            elif buffer not in known:
                found[buffer] = max(found.get(buffer, 0), guessed)
    return found, known


def _member(
    launch: _Launched, problem: Any, bytes_of: Mapping[str, int], numbers: Mapping[str, int], *, sized: bool
) -> Member:
    """Return a launch with buffers of so many bytes, and the grid of the host, unless one is `sized`."""
    axes = dict(problem._given)
    for p, buffer in launch.pointers():
        axes.setdefault(p.name, -(-bytes_of[buffer] // elements.size(launch.known.types[p.name])))
    kernel, host = launch.kernel, launches.launches(calls.host(launch.kernel))
    shapes = {one.block for one in host if one.entry.partition("<")[0] == launch.step.entry.partition("<")[0]}
    told = len(shapes) == 1 and all(shapes) and _told(launch, numbers)
    grid = [_evaluated(part, numbers) for part in launch.step.grid]
    blocks = [n for n in grid if n]
    if not sized and blocks and len(blocks) == len(grid):
        threads = kernel.variant().threads
        for n in blocks:
            threads *= n
        kernel = replace(kernel, grid=tuple(map(Expr.parse, blocks))) if threads <= _THREADS else kernel
    filled = type(problem).from_axes(axes)
    filled._aliases = together(launch.pointers(), launch.known.types)
    return Member(
        kernel=kernel,
        problem=filled,
        buffers={p.name: buffer for p, buffer in launch.pointers()},
        written=frozenset(launch.written()),
        holds=launch.known.holds,
        exact=told and bool(blocks) and [e({}) for e in kernel.grid if not e.names] == blocks,
    )


def _told(launch: _Launched, numbers: Mapping[str, int]) -> bool:
    """Return True where host code says all integers of a launch, and there is no struct among its values."""
    given = [_evaluated(written, numbers) for _, written in launch.integers()]
    kinds = [launch.known.types[p.name] for p in launch.known.values]
    return None not in given and all(isinstance(kind, tuple) for kind in kinds)


def _evaluated(written: str, numbers: Mapping[str, int]) -> int | None:
    """Return the value of an expression, or None."""
    try:
        expression = Expr.parse(" ".join(written.split()))
        return expression(numbers) if expression.names <= numbers.keys() else numbers.get(written)
    except (ExprError, RecursionError):
        return None
