"""Read what host code does with buffers before it launches a kernel: launches, fills, copies, algorithms.

A function of the text is read in place of its call. Buffers have the names of the outermost function, so that
one that is passed on keeps its name, and numbers are expressions over names of the host. What only happens on
a condition, or each time differently, leaves what nobody knows.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.kernels import text
from harness.kernels.cpp.host import allocations, calling, launches, values
from harness.kernels.cpp.host.order import host_calls
from harness.kernels.cpp.host.order.host_calls import ALLOCATE, LAUNCH, LOST, Step
from harness.kernels.cpp.host.order.meanings import FIRST, Function, Meanings

_MEMBER = re.compile(r"\b([A-Za-z_]\w*)\.(?!(?:x|y|z)\b)(?=[A-Za-z_]\w*\b(?!\s*[(<]))")
_THROUGH = re.compile(r"(?<=[\w\]])->(?=[A-Za-z_]\w*\b(?!\s*[(<]))")
_THIS = re.compile(r"\bthis\s*->")
_HEAD = re.compile(r"\b(?:(if|for|while|switch)\s*(\()|(else|do)\b)")
_CALL = re.compile(r"\b([A-Za-z_][\w:]*)\s*(<[^;{}()]{0,200}>)?\s*\(")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMED = re.compile(r"\b(\w+)\s*\Z")
_LONGEST = 200  # characters of a function's name and of what stands around it
_DEEPEST, _MOST = 4, 400  # functions in each other, and steps that are read
_KEPT = 32


@dataclass(frozen=True)
class Before:
    """Hold what host code does up to a launch: `steps`, the last of which is that launch.

    numbers: those that the text gives to names in the expressions of steps, where it does
    fresh: the buffers that the function of the launch allocates, and does nothing with but these steps
    """

    steps: tuple[Step, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    fresh: frozenset[str] = frozenset()


@functools.lru_cache(maxsize=_KEPT)
def before(source: str, entry: str) -> Before:
    """Return what the host code of a text does up to the first launch of a kernel; nothing without one."""
    known = launches.launches(source)
    wanted = launches.of(source, entry) or launches.by_argument(source, entry)
    place = next((i for i, launch in enumerate(known) if launch is wanted), None)
    return _reader(source).up_to(place) if place is not None else Before()


def written(buffer: str) -> str:
    """Return the name that the text has for a buffer of a step, whose local names say of which function."""
    return re.sub(r"__\d+\Z", "", buffer)


@functools.lru_cache(maxsize=2)
def _reader(source: str) -> _Reader:
    return _Reader(source)


@dataclass(frozen=True, kw_only=True)
class _Region:
    """The text from `begin` to `end` that is done on a condition, or in a loop, whose head is at `head`.

    changed: the names that are given values there
    """

    head: int
    begin: int
    end: int
    loop: bool
    changed: frozenset[str] = frozenset()


@dataclass(kw_only=True)
class _Frame:
    """A function that is being read: what its parameters were given, and which buffers its names mean."""

    number: int
    function: Function
    values: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A step, with the regions that it is in; those in `doubted` make it another each time, or no step."""

    step: Step
    frame: int
    regions: frozenset[tuple[int, int]]
    doubted: frozenset[tuple[int, int]]


class _Reader:
    """Read a text from the function that calls those of a launch on."""

    def __init__(self, source: str) -> None:
        sized = values.sized(text.blank(source))
        self._plain = _flat(sized)
        self._functions = values.bodies(self._plain)
        self._named = {
            name[1]: f for f in self._functions if (name := _NAMED.search(self._plain[: f[0]][-_LONGEST:]))
        }
        self._given = values.given(self._plain)
        self._meanings = Meanings(source, self._given, self._functions)
        self._launches = calling.calls(sized)
        self._entries = [launch.entry for launch in launches.launches(source)]
        self._events = sorted(self._all_events())
        self._regions = [replace(r, changed=self._changed(r)) for r in _regions(self._plain)]
        self._loops = {r.head for r in self._regions if r.loop}
        self._frames, self.numbers = itertools.count(), dict[str, int]()
        self._local: dict[tuple[int, str], bool] = {}

    def up_to(self, launch: int) -> Before:
        """Return what is done up to the launch of that number."""
        self._frames, self.numbers = itertools.count(), {}
        place = self._launches[launch].place
        root = self._around(place)
        for _ in range(_DEEPEST - 1):
            root = self._caller(root) or root
        found = list[_Found]()
        frame = _Frame(number=next(self._frames), function=root)
        for one in itertools.islice(self._read(frame, frozenset(), frozenset(), 0), _MOST):
            found.append(one)
            if one.step.place == place and one.step.kind == LAUNCH:
                sure = [self._sure(each, one.regions) for each in found]
                return Before(tuple(sure), self.numbers, frozenset(self._fresh(found)))
        return Before()

    def _fresh(self, found: Sequence[_Found]) -> Iterator[str]:
        """Yield the buffers that the last function of some steps allocates and hands to nobody but them."""
        *before, last = found
        for one in before:
            name, place = one.step.buffers[0] if one.step.buffers else "", one.step.place
            plain = name.removesuffix(f"__{last.frame}")
            if not (
                one.step.kind == ALLOCATE
                and re.match(r"cudaMalloc(?:Async)?\s*\(", self._plain[place:][:_LONGEST])
                and one.frame == last.frame
                and one.regions <= last.regions
            ):
                continue
            between = self._plain[self._plain.find(";", place) : last.step.place]
            known = [passed for passed in host_calls.understood(between) if allocations.name(passed) == plain]
            if len(re.findall(rf"\b{re.escape(plain)}\b", between)) == len(known):
                yield name

    def _all_events(self) -> Iterator[tuple[int, int, str, tuple[str, ...]]]:
        """Yield (place, number of the launch or -1, name, arguments) of what happens in the text."""
        for n, launched in enumerate(self._launches):
            arguments = tuple(map(values.uncast, text.split(_flat(launched.arguments))))
            yield launched.place, n, LAUNCH, arguments
        for one in allocations.of(self._plain):
            yield one.place, -1, ALLOCATE, (one.name, one.bytes)
        for place, name, value in self._given:
            yield place, -1, "=", (name, value)
        names = {place: (name, buffer) for place, name, buffer in host_calls.wrapped(self._plain)}
        yield from ((place, -1, "=", given) for place, given in names.items())
        for place, vector in host_calls.zeroed(self._plain):
            yield place + 1, -1, "device_vector", (vector, "0", "")
        for call in _CALL.finditer(self._plain):
            closed = text.closing(self._plain, call.end() - 1)
            if closed > 0 and "<<" not in (call[2] or "") and call.start() not in names:
                arguments = tuple(text.split(self._plain[call.end() : closed]))
                before = self._plain[self._around(call.start())[1] : call.start()]
                if not host_calls.asks(call[1], before, arguments):
                    yield call.start(), -1, call[1], arguments

    def _around(self, place: int) -> Function:
        return next((f for f in self._functions if f[1] < place < f[2]), (0, 0, len(self._plain), ()))

    def _caller(self, function: Function) -> Function | None:
        """Return the function that calls one first in the text."""
        name = next((name for name, known in self._named.items() if known == function), None)
        for place, _, called, _ in self._events if name else ():
            outer = self._around(place)
            if called.rpartition("::")[2] == name and outer[1] and outer != function and place != function[0]:
                return outer
        return None

    def _read(
        self,
        frame: _Frame,
        regions: frozenset[tuple[int, int]],
        doubted: frozenset[tuple[int, int]],
        depth: int,
    ) -> Iterator[_Found]:
        """Yield the steps of a function, and of those that it calls."""
        _, opened, end, _ = frame.function
        inside = slice(*(bisect.bisect_left(self._events, at, key=FIRST) for at in (opened, end)))
        for place, launch, name, arguments in self._events[inside]:
            around = [r for r in self._regions if opened < r.head and r.begin <= place <= r.end]
            own = frozenset((frame.number, r.head) for r in around)
            if name == "=":
                self._assign(frame, place, *arguments)
                continue
            called = self._named.get(name.rpartition("::")[2]) if launch < 0 else None
            if called and depth < _DEEPEST and called != frame.function:
                inner = _Frame(number=next(self._frames), function=called)
                inner.values = dict(
                    zip(called[3], (self._value(frame, place, a) for a in arguments), strict=False)
                )
                inner.buffers = dict(
                    zip(called[3], (self._buffer(frame, a) for a in arguments), strict=False)
                )
                doubts = self._doubts(frame, around, [*inner.values.values(), *inner.buffers.values()])
                yield from self._read(inner, regions | own, doubted | doubts, depth + 1)
                continue
            for step in self._steps(frame, place, launch, name, arguments):
                written = [*step.values, *step.grid, *step.buffers]
                doubts = doubted | self._doubts(frame, around, written)
                done = replace(step, place=place, entry=step.entry or name.rpartition("::")[2])
                yield _Found(step=done, frame=frame.number, regions=regions | own, doubted=doubts)

    def _steps(
        self, frame: _Frame, place: int, launch: int, name: str, arguments: Sequence[str]
    ) -> Iterator[Step]:
        """Yield what a call does, or an allocation or a launch."""

        def value(written: str) -> str:
            return self._value(frame, place, written)

        def buffer(written: str) -> str:
            return self._buffer(frame, written)

        if launch >= 0:
            grid = self._launches[launch].launch[0]
            yield Step(
                kind=LAUNCH,
                entry=self._entries[launch],
                buffers=tuple(map(buffer, arguments)),
                values=tuple(map(value, arguments)),
                grid=self._expressions(frame, place, _flat(grid)),
            )
        elif name == ALLOCATE:
            yield Step(kind=ALLOCATE, buffers=(buffer(arguments[0]),), values=(value(arguments[1]),))
        elif name.rpartition("::")[2] in ("swap", "iter_swap") and len(arguments) == 2:
            a, b = arguments
            frame.buffers[a.strip()], frame.buffers[b.strip()] = buffer(b), buffer(a)
        else:
            yield from host_calls.steps(name, arguments, value, buffer)

    def _doubts(
        self, frame: _Frame, around: Sequence[_Region], written: Sequence[str]
    ) -> frozenset[tuple[int, int]]:
        """Return the regions in which what is written is not done, or is done otherwise each time."""
        names = {name for part in written for name in _WORD.findall(part)}
        plain = {re.sub(r"__v\d+\Z", "", name) for name in names}
        return frozenset(
            (frame.number, region.head)
            for region in around
            if not region.loop or any(self._own(frame, name) in plain for name in region.changed)
        )

    def _changed(self, region: _Region) -> frozenset[str]:
        """Return the names that are given values in a region or its head, or are swapped."""
        first, end = (bisect.bisect_left(self._events, at, key=FIRST) for at in (region.head, region.end))
        events = [e for e in self._events[first:end] if e[2] == "=" or e[2].rpartition("::")[2] == "swap"]
        return frozenset(
            name.strip() for _, _, what, given in events for name in (given[:1] if what == "=" else given)
        )

    def _sure(self, found: _Found, regions: frozenset[tuple[int, int]]) -> Step:
        """Return a step, or that nobody knows what it leaves: it is in further regions of doubt."""
        if found.step.kind == ALLOCATE or found.doubted <= regions:
            return replace(found.step, loops=frozenset(r for r in found.regions if r[1] in self._loops))
        return Step(kind=LOST, buffers=found.step.buffers, place=found.step.place)

    def _assign(self, frame: _Frame, place: int, name: str, value: str) -> None:
        """Let a name mean another buffer, ``in = out;``."""
        other = allocations.name(value)
        if other and not other[0].isdigit() and other not in host_calls.NOTHING:
            frame.buffers[name] = self._buffer(frame, value)
        elif re.fullmatch(r"[\w\s]+[+-][\w\s+*-]+", value):
            frame.buffers[name] = ""  # a place within another, perhaps
        else:
            frame.buffers.pop(name, None)

    def _own(self, frame: _Frame, name: str) -> str:
        """Return the name by which the outermost function would know one of a function."""
        if not frame.number:
            return name
        _, opened, end, parameters = frame.function
        if (opened, name) not in self._local:
            declared = allocations.declared(self._plain[opened:end], name)
            self._local[opened, name] = name in parameters or declared
        return f"{name}__{frame.number}" if self._local[opened, name] else name

    def _buffer(self, frame: _Frame, written: str) -> str:
        """Return the name of a buffer, "" for what is none, or a place within one."""
        name = allocations.name(written)
        if not name or name[0].isdigit() or name in host_calls.NOTHING:
            return ""
        return frame.buffers[name] if name in frame.buffers else self._own(frame, name)

    def _value(self, frame: _Frame, place: int, written: str) -> str:
        """Return a number as an expression over names of the host, "" where it is none."""
        known, names = self._known(frame, place, written)
        found = known.length(written, names)
        number = None if found else known.number(written)
        return found if number is None else str(number)

    def _expressions(self, frame: _Frame, place: int, written: str) -> tuple[str, ...]:
        known, names = self._known(frame, place, written)
        return known.expressions(written, names)

    def _known(self, frame: _Frame, place: int, written: str) -> tuple[values.Values, dict[str, str]]:
        """Return what names are composed of at a place, and what those of an expression mean that are not."""
        meant = self._meanings.at(frame.function, place)
        passed = {name: frame.values.get(name, "") for name in frame.function[3]}
        names = meant.names(written, passed, lambda name: self._own(frame, name), self.numbers)
        return meant.known, names


def _flat(plain: str) -> str:
    """Return a text in which a member has one name, of the same length: ``p__n`` for ``p->n``."""
    plain = _THIS.sub(lambda at: " " * len(at[0]), plain)
    return _MEMBER.sub(r"\1_", _THROUGH.sub("__", plain))


def _regions(plain: str) -> Iterator[_Region]:
    """Yield what is executed on conditions and in loops."""
    for at in _HEAD.finditer(plain):
        closed = text.closing(plain, at.start(2)) if at[2] else at.end() - 1
        opened = re.compile(r"\s*(\{)?").match(plain, closed + 1) if closed >= 0 else None
        end = text.closing(plain, opened.start(1)) if opened and opened[1] else plain.find(";", closed + 1)
        if opened and end > 0:
            loop = at[1] in ("for", "while") or at[3] == "do"
            yield _Region(head=at.start(), begin=closed + 1, end=end, loop=loop)
