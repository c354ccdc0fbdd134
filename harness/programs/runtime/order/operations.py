"""Operations of a program, and races between them: two that nothing orders access the same bytes, one writes.

Launches, copies, memsets, and what `cudaMallocAsync` and `cudaFreeAsync` do, which is to write all of their
memory. The bytes are exact, so that streams may have a part of a buffer each. What is strong, as atomics are,
does not race with what is strong, as within a kernel (`shadow.within`). A launch that reads strongly what
another has written strongly may have waited for it in a loop, and comes after it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.watch.shadow import READ, STRONG_READ, STRONG_WRITE, WRITE, Footprint, within
from harness.programs.events import Event, Raced
from harness.programs.places import Places
from harness.programs.runtime.memory import DeviceMemory
from harness.programs.runtime.order.clocks import LEGACY, Clock, Clocks, Line, joined

_VERBS = {READ: "reads", WRITE: "writes", STRONG_READ: "reads", STRONG_WRITE: "updates"}
_CONFLICTS = [
    (a, b) for a in (WRITE, STRONG_WRITE, READ, STRONG_READ) for b in _VERBS if within(a, b) is None
]
_WHOLE = {"cudaMallocAsync": "allocates", "cudaFreeAsync": "frees"}


@dataclass(kw_only=True, eq=False)
class Operation:
    """Something that host code puts into a stream.

    what: the function, or the kernel by its PTX name
    caller: where it was called
    stream: the stream; line: that, or the branch of a graph that was launched in it
    number, clock: of it, and what it comes after
    waited: host code waits until it is done
    footprint: by the start of each allocation the addresses that it accesses, as runs, by kind
    launch: it is one; early: what it may access before the launch before it has ended
    """

    what: str
    caller: int
    stream: Line
    line: Line
    number: int
    clock: Clock
    waited: bool = False
    footprint: dict[int, Footprint] = field(default_factory=dict)
    launch: bool = False
    early: dict[int, Footprint] = field(default_factory=dict)

    def after(self, other: Operation) -> bool:
        """Return whether it comes after an earlier operation."""
        return other.number <= self.clock.get(other.line, 0)

    @functools.cached_property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """Return the first and the last address of each allocation's footprint."""
        found = {}
        for start, kinds in self.footprint.items():
            found[start] = (
                min(int(some[0, 0]) for some in kinds.values()),
                max(int(some[-1, 1]) for some in kinds.values()),
            )
        return found

    def meets(self, other: Operation) -> bool:
        """Return whether ranges of the two have something in common, which is quick."""
        for start, (low, high) in self.ranges.items():
            its = other.ranges.get(start)
            if its is not None and low < its[1] and its[0] < high:
                return True
        return False

    def signals(self, other: Operation) -> bool:
        """Return whether a later operation may have waited for a flag of this one: it reads strongly what
        this has written strongly.
        """
        return any(
            common(found[STRONG_WRITE], other.footprint[start][STRONG_READ]) is not None
            for start, found in self.footprint.items()
            if STRONG_WRITE in found and STRONG_READ in other.footprint.get(start, ())
        )

    def key(self) -> object:
        """Return what another operation of the line has that does the same, and takes its place."""
        parts = ((start, kind, some) for start, one in self.footprint.items() for kind, some in one.items())
        return self.what, self.caller, self.stream, *((*at, hash(some.tobytes())) for *at, some in parts)


class Operations:
    """Does what streams are asked to, and tells the races between it.

    watching: races are looked for; not in a program that has one stream
    running: the operation that is being done
    """

    def __init__(
        self,
        clocks: Clocks,
        memory: DeviceMemory,
        places: Places,
        tell: Callable[[Event], None],
        *,
        watching: bool,
    ) -> None:
        self.clocks, self.watching = clocks, watching
        self._memory, self._places, self._tell = memory, places, tell
        self.running: Operation | None = None
        self._made: dict[Line, int] = {}  # where streams were created
        self._before: dict[Line, dict[object, Operation]] = defaultdict(dict)
        self._last: dict[Line, Operation] = {}
        self._told: set[object] = set()

    def create(self, stream: int, flags: int, caller: int) -> None:
        """Add a stream."""
        self._made[stream] = caller
        self._places.names(caller)
        self.clocks.create(stream, flags)

    def do(self, stream: Line, what: str, caller: int, work: Callable[[], int | None]) -> int:
        """Do what a stream is asked to, or what the node of a graph does; return its error, or 0."""
        if self.running is not None:
            self.running.what = what
            return int(work() or 0)
        clock = self.clocks.before(stream)
        one, code, clock = self.step(stream, stream, clock, what, caller, work)
        self.clocks.advance(stream, clock)
        if one.waited:
            self.clocks.learn(clock)
        return code

    def step(
        self,
        stream: Line,
        line: Line,
        clock: Clock,
        what: str,
        caller: int,
        work: Callable[[], int | None],
    ) -> tuple[Operation, int, Clock]:
        """Do an operation after what `clock` tells of; return it, its error, and what is done then."""
        number = self.clocks.number()
        one = Operation(what=what, caller=caller, stream=stream, line=line, number=number, clock=clock)
        self.running = one
        self._memory.log.clear()
        try:
            code = int(work() or 0)
        finally:
            self.running = None
        if self.watching and not code:
            self._add_log(one)
            self._watch(one)
            last, self._last[line] = self._last.get(line), one
            if line == stream and last is not None and last.launch:
                self._compare(last, one, one.early)
        return one, code, joined(one.clock, {line: number})

    def apart(self, stream: Line) -> None:
        """Let the next launch in a stream not follow the last one directly."""
        self._last.pop(stream, None)

    def launched(
        self,
        kernel: str,
        caller: int,
        footprints: Mapping[int, Footprint],
        early: Mapping[int, Footprint],
    ) -> None:
        """Say of the operation that is being done that it is a launch, and what that accessed."""
        one = self.running
        if one is not None:
            one.what, one.caller, one.launch = kernel, caller, True
            one.footprint, one.early = self._own(footprints), self._own(early)

    def _own(self, footprints: Mapping[int, Footprint]) -> dict[int, Footprint]:
        """Return addresses for offsets, without memory that is of the launch alone."""
        found = {}
        for start, kinds in footprints.items():
            owner = self._memory.at(start)
            if owner is not None and owner.start == start:
                found[start] = {kind: some + start for kind, some in kinds.items()}
        return found

    def _add_log(self, one: Operation) -> None:
        """Add what copies and the like accessed."""
        found: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for owner, start, end, writes in self._memory.log:
            found[owner][WRITE if writes else READ].append((start, end))
        for start, kinds in found.items():
            one.footprint[start] = {kind: united(some) for kind, some in kinds.items()}

    def _watch(self, one: Operation) -> None:
        """Tell the races of an operation with those before it, and keep it for those that come."""
        if not one.footprint:
            return
        unordered: list[Operation] = []
        for line, before in self._before.items():
            while before and self.clocks.known(line, next(iter(before.values())).number):
                del before[next(iter(before))]
            known = one.clock.get(line, 0)
            for other in reversed(before.values()):
                if other.number <= known:
                    break
                if other.meets(one):
                    unordered.append(other)
        unordered.sort(key=lambda other: other.number)
        for other in unordered:
            if other.signals(one):
                one.clock = joined(one.clock, other.clock, {other.line: other.number})
        for other in unordered:
            if not one.after(other):
                self._compare(other, one, one.footprint)
        mine, key = self._before[one.line], one.key()
        mine.pop(key, None)
        mine[key] = one

    def _compare(self, first: Operation, second: Operation, accessed: Mapping[int, Footprint]) -> None:
        """Tell the races of an operation with one that accessed this, which nothing orders."""
        for start in sorted(first.footprint.keys() & accessed.keys()):
            one, other = first.footprint[start], accessed[start]
            for kind, later in _CONFLICTS:
                if kind in one and later in other:
                    address = common(one[kind], other[later])
                    if address is not None:
                        self._report(first, second, kind, later, start, address)
                        break

    def _report(
        self, first: Operation, second: Operation, kind: int, later: int, start: int, address: int
    ) -> None:
        """Tell a race, once for each pair of places and buffer."""
        self._memory.name(self._places)
        found = self._memory.freed(start) or self._memory.at(start)
        name = found.name if found is not None else "memory"
        places = self._places.of(first.caller), self._places.of(second.caller)
        key = (*places, first.what, second.what, name)
        if key in self._told:
            return
        self._told.add(key)
        what = _WHOLE.get(first.what) or _WHOLE.get(second.what)
        where = name if what else f"{name} at offset {address - start}"
        one, other = self._label(first.stream), self._label(second.stream)
        said = f"{where}: {first.what} in {one} ({places[0]}) {_verb(first, kind)} it, and {second.what} in "
        said += f"{other} {_verb(second, later)} it; nothing orders the two: {self._remedy(first, second)}"
        self._tell(Raced(what=said, place=places[1], others=places[:1]))

    def _label(self, stream: Line) -> str:
        """Return what a stream is called."""
        if stream == LEGACY:
            return "the default stream"
        if stream not in self._made:
            return "the default stream of a thread"
        caller = self._made[stream]
        alike = [one for one, made in self._made.items() if made == caller]
        number = f" #{alike.index(stream) + 1}" if len(alike) > 1 else ""
        name = self._places.named(caller)
        return f"stream {name}{number}" if name else f"a stream of {self._places.of(caller)}{number}"

    def _remedy(self, first: Operation, second: Operation) -> str:
        """Return what would order two operations."""
        one, other = self._label(first.stream), self._label(second.stream)
        if second.after(first):
            return (
                f"{second.what} may begin before that has ended, and cudaGridDependencySynchronize would wait"
            )
        if first.line != first.stream and first.stream == second.stream:
            return "an edge of the graph from the one to the other would"
        said = f"cudaStreamWaitEvent in {other}, for an event recorded in {one} after {first.what}, would"
        if LEGACY in (first.stream, second.stream):
            own = other if first.stream == LEGACY else one
            return f"{own} is non-blocking, and the default stream and it do not wait for each other; {said}"
        return said


def _verb(one: Operation, kind: int) -> str:
    return _WHOLE.get(one.what, _VERBS[kind])


def united(ranges: Iterable[tuple[int, int]]) -> Array:
    """Return ranges as runs: in order, and none that meets another."""
    found = np.array(sorted(ranges), np.int64).reshape(-1, 2)
    ends = np.maximum.accumulate(found[:, 1])
    first = np.concatenate(([True], found[1:, 0] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((found[first, 0], ends[last]), axis=1)


def common(one: Array, other: Array) -> int | None:
    """Return the first place that two series of runs have in common; None if there is none."""
    if one[-1, 1] <= other[0, 0] or other[-1, 1] <= one[0, 0]:
        return None
    place = np.minimum(np.searchsorted(other[:, 1], one[:, 0], side="right"), len(other) - 1)
    starts = np.maximum(one[:, 0], other[place, 0])
    met = starts < np.minimum(one[:, 1], other[place, 1])
    return int(starts[np.argmax(met)]) if met.any() else None
