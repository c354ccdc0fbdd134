"""Races between blocks on global memory, against a search of all pairs of accesses in random kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.emulator import Buffer, Finding, Index3
from shared.straight_line import Extents, Step, run

WORDS = 4096
THREADS = (8, 1, 1)
MANY = (2500, 1, 1)  # more blocks of 8 threads than run at a time


def owners(steps: Sequence[Step], blocks: int) -> dict[int, dict[str, set[int]]]:
    """Return, for each word, the blocks that read and write it."""
    found: dict[int, dict[str, set[int]]] = {}
    for step in steps:
        for thread in range(prod(THREADS)):
            for block in range(blocks):
                for word in {byte // 4 for byte in step.bytes(thread, block)}:
                    found.setdefault(word, {"ld": set(), "st": set()})[step.kind].add(block)
    return found


def raced(access: dict[str, set[int]]) -> bool:
    return any(
        a in access["st"] or b in access["st"] for a, b in combinations(access["ld"] | access["st"], 2)
    )


def races(program: Sequence[Step], grid: Extents) -> list[Finding]:
    """Run a program and return the races between blocks; those within a block are hazards."""
    a = Buffer(array=np.zeros(WORDS, np.uint32), name="a")
    sums = Buffer(array=np.zeros(prod(grid) * prod(THREADS), np.uint32), name="b")
    found = run("global", program, grid=grid, block=THREADS, a=a, b=sums).findings
    return [f for f in found if f.kind == "global race"]


def number(index: Index3, grid: Extents) -> int:
    return index.x + grid[0] * (index.y + grid[1] * index.z)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    size = draw(st.sampled_from([4, 8, 16]))
    return Step(
        draw(st.sampled_from(["ld", "st"])),
        size,
        thread=size * draw(st.integers(0, 2)),
        block=size * draw(st.sampled_from([0, 1, 7, 8, 16, 24])),
        start=size * draw(st.integers(0, 9)),
        wrap=4 * WORDS,
        limit=draw(st.sampled_from([1, 3, 8])),
        blocks=draw(st.sampled_from([1, 2, 99, 99])),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(steps(), min_size=1, max_size=4), st.sampled_from([(1, 1, 1), (3, 1, 1), (2, 2, 1), (1, 2, 3)])
)
def test_a_race_is_found_where_two_blocks_meet_and_nowhere_else(program: list[Step], grid: Extents) -> None:
    touched = owners(program, prod(grid))
    found = races(program, grid)
    assert bool(found) == any(map(raced, touched.values()))
    for f in found:
        word = touched[f.offset // 4]
        assert f.variable == "a" and f.offset % 4 == 0 and raced(word)
        assert number(f.block, grid) in word["st"] | word["ld"]
        assert {program[source.line - 1].kind for source in f.sources} & {"st"}


@pytest.mark.parametrize("first", [0, 2400])
@pytest.mark.parametrize("kinds", [("st", "st"), ("ld", "st"), ("st", "ld")])
def test_blocks_that_do_not_run_at_the_same_time_race_too(first: int, kinds: tuple[str, str]) -> None:
    """The first block and one of a later batch; its word is next to those of the others."""
    one = Step(kinds[0], thread=0, block=4, start=4 * 100, limit=1, wrap=4 * 2500 + 404)
    two = Step(kinds[1], thread=0, block=0, start=4 * (100 + first), limit=1)
    found = races([one, two], MANY)
    assert found and all(f.offset == 4 * (100 + first) for f in found)


def test_rows_of_blocks_are_told_apart() -> None:
    """Blocks (0, 0) and (0, 1) store to one word: their second index is all that differs."""
    (found,) = races([Step("st", thread=4, block=0)], (1, 2, 1))
    assert found.block in (Index3(0, 0, 0), Index3(0, 1, 0))
    assert "(0, 0, 0)" in found.message and "(0, 1, 0)" in found.message
    assert races([Step("st", thread=4, block=32)], (1, 2, 1)) == []


def test_one_block_does_not_race_with_itself() -> None:
    program = [Step("st", thread=0, block=4), Step("ld", thread=0, block=4), Step("st", 8, thread=0, block=8)]
    assert races([program[0], program[1]], (5, 1, 1)) == races(program, (1, 1, 1)) == []
    assert races(program, (5, 1, 1)) != []
