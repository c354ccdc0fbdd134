"""Hazards on shared memory, against a search of every pair of accesses in kernels drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement, product

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.emulator import Emulation
from shared.straight_line import Step, run

ROOM = 64
CLEAR = (Step("st", 16, 16, wrap=ROOM, limit=4, value=0), Step("bar"))  # no read of what was never written
Hazard = tuple[str, int, int]


def clash(earlier: Step, later: Step) -> str:
    """Return the kind of hazard that two accesses to one byte make, "" if none."""
    kinds = (earlier.kind, later.kind)
    if ("st" not in kinds and "atom" not in kinds) or kinds == ("atom", "atom"):
        return ""
    if kinds[1] == "ld":
        return "RAW hazard"
    if kinds[0] == "ld":
        return "WAR hazard"
    same = earlier.value is not None and earlier.value == later.value
    return "" if same and kinds == ("st", "st") else "WAW hazard"


def hazards(steps: Sequence[Step], threads: int, blocks: int) -> dict[Hazard, set[tuple[int, int, int, int]]]:
    """Return, for each hazard and its two lines, the (byte, thread, other thread, block) that make it."""
    found: dict[Hazard, set[tuple[int, int, int, int]]] = {}
    for block in range(blocks):
        owners: list[dict[int, list[int]]] = [{} for _ in steps]
        for step, owner in zip(steps, owners, strict=True):
            for thread in range(threads):
                for byte in step.bytes(thread, block):
                    owner.setdefault(byte, []).append(thread)
        for one, two in combinations_with_replacement(range(len(steps)), 2):
            between = [s.kind for s in steps[one:two]]
            kind = clash(steps[one], steps[two])
            if not kind or "bar" in between:
                continue
            for byte in owners[one].keys() & owners[two].keys():
                for t, u in product(owners[one][byte], owners[two][byte]):
                    if t != u and not ("warp" in between and t // 32 == u // 32):
                        found.setdefault((kind, one + 1, two + 1), set()).add((byte, t, u, block))
    return found


def reported(run: Emulation) -> dict[Hazard, set[tuple[int, int, int, int]]]:
    found: dict[Hazard, set[tuple[int, int, int, int]]] = {}
    for f in run.findings:
        one, two = (source.line for source in f.sources)
        assert f.variable == "s"
        place = (f.offset, f.threads[0].x, f.threads[1].x, f.block.x)
        found[f.kind, one, two] = {place}
    return found


sizes = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def steps(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(["ld", "ld", "st", "st", "atom", "bar", "warp"]))
    size = 4 if kind == "atom" else draw(sizes)
    return Step(
        kind,
        size,
        thread=size * draw(st.integers(0, 3)),
        block=size * draw(st.sampled_from([0, 0, 0, 1, 2])),
        start=size * draw(st.integers(0, 3)),
        wrap=ROOM,
        limit=draw(st.sampled_from([1, 2, 5, 33, 40, 1024])),
        value=draw(st.sampled_from([None, 3, 4])) if size == 4 else None,
    )


programs = st.lists(steps(), min_size=1, max_size=6).map(lambda drawn: [*CLEAR, *drawn])


@settings(max_examples=80, deadline=None)
@given(programs, st.sampled_from([8, 40]), st.integers(1, 3))
def test_every_hazard_and_no_other_is_found(program: list[Step], threads: int, blocks: int) -> None:
    found = reported(run("shared", program, grid=(blocks, 1, 1), block=(threads, 1, 1), room=ROOM))
    expected = hazards(program, threads, blocks)
    assert found.keys() == expected.keys()
    for hazard, places in found.items():
        assert places <= expected[hazard], hazard


@settings(max_examples=25, deadline=None)
@given(programs, st.integers(1, 2))
def test_warps_that_run_one_after_the_other_hide_none(program: list[Step], blocks: int) -> None:
    """The order in which they came to the lines is another one, but the lines are the same."""
    serial = run("shared", program, grid=(blocks, 1, 1), block=(40, 1, 1), room=ROOM, schedule="warp-serial")
    expected = {frozenset(lines) for _, *lines in hazards(program, 40, blocks)}
    assert {frozenset(lines) for _, *lines in reported(serial)} == expected
