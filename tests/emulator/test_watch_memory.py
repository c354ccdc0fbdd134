"""Single accesses in every state space, against a model of memory in plain Python: what is loaded and stored,
and which lanes are out of bounds, misaligned, or read what nothing wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.emulator import Buffer, Emulation, Finding, Index3
from shared.straight_line import Extents, Step, own, run

ROOM = 96
SPACES = {"global": "a", "shared": "s", "local": "l"}
FAULTS = ("out of bounds", "misaligned", "uninitialised read")


def index(number: int, extents: Extents) -> Index3:
    x, y, _ = extents
    return Index3(number % x, number // x % y, number // (x * y))


@dataclass
class Model:
    """Memory as bytes, by owner: everybody, a block, or a thread of a block.

    faults: by kind and line (lanes, byte of the first, the first)
    sums: of each thread and block, None where it loaded what it may not
    """

    space: str
    written: bool  # before the launch
    memory: dict[object, bytearray] = field(default_factory=dict)
    known: dict[object, set[int]] = field(default_factory=dict)
    faults: dict[tuple[str, int], tuple[int, int, tuple[int, int]]] = field(default_factory=dict)
    sums: dict[tuple[int, int], int | None] = field(default_factory=dict)

    def run(self, steps: Sequence[Step], threads: int, blocks: int) -> None:
        for line, step in enumerate(steps, 1):
            for thread, block in product(range(threads), range(blocks)):
                self.sums.setdefault((thread, block), 0)
                if thread < step.limit and block < step.blocks:
                    self.access(line, step, thread, block)

    def fault(self, kind: str, line: int, first: int, lane: tuple[int, int]) -> None:
        times, *rest = self.faults.get((kind, line), (0, first, lane))
        self.faults[kind, line] = (times + 1, *rest)  # type: ignore[assignment]

    def access(self, line: int, step: Step, thread: int, block: int) -> None:
        owner = {"global": None, "shared": block, "local": (thread, block)}[self.space]
        memory = self.memory.setdefault(owner, bytearray(ROOM))
        known = self.known.setdefault(owner, set(range(ROOM)) if self.written else set())
        first, lane = step.address(thread, block), (thread, block)
        if not 0 <= first <= ROOM - step.size or first % step.size:
            inside = 0 <= first <= ROOM - step.size
            self.fault("misaligned" if inside else "out of bounds", line, first, lane)
            if step.kind == "ld":
                self.sums[lane] = None
            return
        here = slice(first, first + step.size)
        if step.kind == "ld":
            if not known.issuperset(range(first, first + step.size)):
                self.fault("uninitialised read", line, first, lane)
            for at in range(first, first + step.size, min(4, step.size)):
                if (total := self.sums[lane]) is not None:
                    value = int.from_bytes(memory[at : at + min(4, step.size)], "little")
                    self.sums[lane] = (total * 3 + value) % 2**32
            return
        value = own(thread, block) if step.value is None else step.value
        width = min(step.size, 4) if step.size != 8 else 8
        memory[here] = (value % 256**width).to_bytes(width, "little") * (step.size // width)
        known.update(range(first, first + step.size))


def check(found: Finding, model: Model, grid: Extents, block: Extents, steps: Sequence[Step]) -> None:
    """Hold a finding against the lanes of the model."""
    (source,) = found.sources
    step = steps[source.line - 1]
    times, first, (thread, number) = model.faults.pop((found.kind, source.line))
    if found.seen < times:  # the rest is another warp's, whose first lane misses by the other end
        model.faults[found.kind, source.line] = (times - found.seen, first, (thread, number))
        return
    assert found.seen == times
    if found.block != index(number, grid) or found.threads != (index(thread, block),):
        assert prod(block) > 32
        return
    name = SPACES[model.space] if first >= 0 or model.space == "global" else f"{model.space} memory"
    assert (found.variable, found.offset) == (name, first)
    who = f": thread {index(thread, block)} of block {index(number, grid)}"
    distance = -first if first < 0 else max(0, first + step.size - ROOM)
    side = "before the start" if first < 0 else "past the end"
    verb = "reads" if step.kind == "ld" else "writes"
    assert found.distance == distance
    assert (
        found.message
        == {
            "misaligned": f"a {step.size}-byte access at offset {first} of {name}{who}",
            "uninitialised read": f"{name} at offset {first} was never written{who}",
            "out of bounds": f"{verb} {step.size} bytes at offset {first} of {name}, up to {distance} "
            f"bytes {side}{who}",
        }[found.kind]
    )


def held(
    space: str,
    steps: Sequence[Step],
    *,
    grid: Extents = (1, 1, 1),
    block: Extents = (8, 1, 1),
    written: bool = False,
    schedule: str = "lockstep",
) -> Emulation:
    """Run a kernel and hold its faults, its loads and its stores against the model."""
    a = Buffer(array=np.zeros(ROOM // 4, np.uint32), name="a", initialised=written or space != "global")
    sums = Buffer(array=np.zeros(prod(grid) * prod(block), np.uint32), name="b")
    done = run(space, steps, grid=grid, block=block, room=ROOM, a=a, b=sums, schedule=schedule)
    model = Model(space, written=written and space == "global")
    model.run(steps, prod(block), prod(grid))
    for found in done.findings:
        if found.kind in FAULTS:
            check(found, model, grid, block, steps)
    assert model.faults == {}
    if space == "global":
        assert a.array.tobytes() == bytes(model.memory.get(None, bytearray(ROOM)))
    for (thread, number), total in model.sums.items():
        assert total is None or sums.array[number * prod(block) + thread] == total
    return done


@st.composite
def steps(draw: st.DrawFn, *, apart: bool) -> Step:
    """An access; `apart` keeps the lanes of a store on bytes of their own, or on one value."""
    kind, size = draw(st.sampled_from(["ld", "st"])), draw(st.sampled_from([1, 2, 4, 8, 16]))
    mostly_aligned = draw(st.sampled_from([1, 1, 1, 0]))
    unit = size if mostly_aligned else 1
    alone = apart and kind == "st"
    return Step(
        kind,
        size,
        thread=size if alone else unit * draw(st.integers(-2, 3)),
        block=0 if alone else unit * draw(st.sampled_from([0, 0, 1, 3])),
        start=unit * draw(st.integers(-1, 6)),
        limit=draw(st.sampled_from([1, 3, 5, 1000])),
        blocks=draw(st.sampled_from([1, 2, 99, 99])),
        value=draw(st.sampled_from([None, 0x01020304])),
    )


SHAPES: list[tuple[Extents, Extents]] = [
    ((1, 1, 1), (8, 1, 1)), ((3, 1, 1), (4, 1, 1)), ((2, 2, 1), (2, 2, 2)), ((1, 1, 2), (20, 2, 1)),
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(list(SPACES)), st.sampled_from(SHAPES), st.booleans(),
    st.lists(steps(apart=True), min_size=1, max_size=5), st.sampled_from(["lockstep", "warp-serial"]),
)  # fmt: skip
def test_loads_stores_and_faults_are_those_of_the_model(
    space: str, shape: tuple[Extents, Extents], written: bool, program: list[Step], schedule: str
) -> None:
    grid, block = shape
    if prod(grid) > 1 and space == "global":  # blocks would race; values of one thread and one value do not
        program = [Step(**{**vars(s), "value": 7}) if s.kind == "st" else s for s in program]
    if schedule == "warp-serial" and prod(block) > 32:
        schedule = "lockstep" if space != "local" else schedule  # warps would see each other's stores late
    held(space, program, grid=grid, block=block, written=written, schedule=schedule)
