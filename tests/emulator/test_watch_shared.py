"""Hazards on shared memory, against a search of every pair of accesses in kernels drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.emulator import Buffer, Emulation, emulate
from shared.emulator_kernels import launch
from shared.straight_line import Step, ptx, run

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
            between = [s.kind for s in steps[one:two] if block < s.blocks]
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
        start=draw(st.sampled_from([0, size, 2 * size, 3 * size, ROOM - size])),
        wrap=ROOM,
        limit=draw(st.sampled_from([1, 2, 5, 33, 40, 1024])),
        # Warp barriers of some blocks only are watched by `races`, which tells the last of several reads.
        blocks=99 if kind == "warp" else draw(st.sampled_from([1, 2, 99, 99, 99])),
        value=draw(st.sampled_from([None, 3, 4])) if size == 4 else None,
    )


def copied(steps: Sequence[Step], at: int, threads: int) -> set[Hazard]:
    """Return the hazards of the one copy, step `at`, with the others.

    From its issue to the wait its bytes are nobody's, and then it is a store that was made at the wait.
    """
    found: set[Hazard] = set()
    kinds = [s.kind for s in steps]
    landed = next((n for n in range(at, len(steps)) if kinds[n] == "wait"), None)
    owner = {byte: thread for thread in range(threads) for byte in steps[at].bytes(thread, 0)}
    pairs = {
        (other, owner[byte], u)
        for other, step in enumerate(steps)
        for u in range(threads)
        for byte in step.bytes(u, 0)
        if other != at and byte in owner
    }

    def apart(one: int, two: int, t: int, u: int) -> bool:
        between = kinds[min(one, two) : max(one, two)]
        return t != u and "bar" not in between and not ("warp" in between and t // 32 == u // 32)

    for other, t, u in pairs:
        if other > at and (landed is None or other < landed):
            found.add(("missing cp.async wait", at + 1, other + 1))
        if other < at and kinds[other] == "ld" and apart(other, at, t, u):
            found.add(("WAR hazard", other + 1, at + 1))
        if landed is not None and apart(other, landed, t, u):
            late = other > landed
            kind = "WAW hazard" if kinds[other] != "ld" else "RAW hazard" if late else "WAR hazard"
            found.add((kind, at + 1, other + 1) if late else (kind, other + 1, at + 1))
    return found


programs = st.lists(steps(), min_size=1, max_size=6).map(lambda drawn: [*CLEAR, *drawn])


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(programs, st.sampled_from([8, 40]), st.integers(1, 3))
def test_every_hazard_and_no_other_is_found(program: list[Step], threads: int, blocks: int) -> None:
    found = reported(run("shared", program, grid=(blocks, 1, 1), block=(threads, 1, 1), room=ROOM))
    expected = hazards(program, threads, blocks)
    assert found.keys() == expected.keys()
    for hazard, places in found.items():
        assert places <= expected[hazard], hazard


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(programs, st.integers(1, 2))
def test_warps_that_run_one_after_the_other_hide_none(program: list[Step], blocks: int) -> None:
    """The order in which they came to the lines is another one, but the lines are the same.

    Where only some blocks come to a barrier, the watch keeps one of several reads that a store conflicts
    with: then every store that is a fault is reported, and nothing else.
    """
    serial = run("shared", program, grid=(blocks, 1, 1), block=(40, 1, 1), room=ROOM, schedule="warp-serial")
    expected = {frozenset(lines) for _, *lines in hazards(program, 40, blocks)}
    found = {frozenset(lines) for _, *lines in reported(serial)}
    if any(step.kind in ("bar", "warp") and step.blocks < blocks for step in program):
        assert found <= expected
        assert all(any(pair & other for other in found) for pair in expected)
    else:
        assert found == expected


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    st.lists(steps(), max_size=3), st.lists(steps(), max_size=3), st.lists(steps(), max_size=3),
    st.sampled_from([4, 8, 16]), st.sampled_from([3, 36]), st.booleans(),
)  # fmt: skip
def test_a_copy_is_in_flight_until_its_thread_has_waited(
    before: list[Step], during: list[Step], after: list[Step], size: int, limit: int, waited: bool
) -> None:
    room = 64 * 16
    copy = Step("cp", size, thread=size, start=size, limit=limit)
    program = [Step("st", 16, 16, limit=64, value=0), Step("bar"), *before, copy, *during]
    program += [Step("wait")] * waited + after
    a = Buffer(array=np.zeros(4, np.uint32), name="a")
    done = run("shared", program, block=(64, 1, 1), room=room, a=a)
    lines = {(f.kind, *(source.line for source in f.sources)) for f in done.findings}
    of_copy = {hazard for hazard in lines if 3 + len(before) in hazard}
    assert of_copy == copied(program, 2 + len(before), 64)


def test_of_two_that_write_the_other_one_counts() -> None:
    """Threads 0 and 1 write a word that only thread 1 reads, or only thread 0: its own store is no hazard."""
    both = Step("st", thread=0, limit=2)
    for start, reader in ((ROOM - 4, 1), (0, 0)):
        program = [*CLEAR, both, Step("ld", start=start, wrap=ROOM, limit=2)]
        found = [f for f in run("shared", program, room=ROOM).findings if f.kind == "RAW hazard"]
        assert [(f.offset, f.threads[0].x, f.threads[1].x) for f in found] == [(0, 1 - reader, reader)]


def test_a_loop_comes_back_to_what_was_read_before_the_store() -> None:
    """Each turn reads the neighbour's word and stores its own: WAR in a turn, RAW from one to the next."""
    text = ptx("shared", [])
    start, end = text.split("mov.u32 %r13, 0;")
    body = """
.loc 1 1 0
mov.u32 %r6, s; mad.lo.u32 %r6, %r0, 4, %r6; mov.u32 %r7, 0; st.shared.u32 [%r6+4], 0; st.shared.u32 [s], 0;
bar.sync 0;
again:
.loc 1 2 0
ld.shared.u32 %r9, [%r6+4];
.loc 1 3 0
st.shared.u32 [%r6], %r0;
add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %r7, TURNS;
@%p1 bra again;
"""
    for turns, kinds in (
        (1, {"WAR hazard"}),
        (2, {"WAR hazard", "RAW hazard"}),
        (3, {"WAR hazard", "RAW hazard"}),
    ):
        code = f"{start}{body.replace('TURNS', str(turns))}mov.u32 %r13, 0;{end}"
        buffers = [Buffer(array=np.zeros(32, np.uint32), name=name) for name in "ab"]
        found = emulate(code, "k", grid=(1,), block=(32,), arguments=buffers).findings
        assert {f.kind for f in found if f.sources[0].line > 1} == kinds


@pytest.mark.parametrize(("size", "element"), [(1, 1), (2, 2), (4, 4), (8, 8), (16, 4)])
def test_a_hazard_in_words(size: int, element: int) -> None:
    program = [Step("st", size, size, limit=2), Step("ld", size, size, start=size, limit=1)]
    (found,) = run("shared", program).findings
    at = size // element
    assert found.message == (
        f"s[{at}] ({element}-byte elements): thread (1, 0, 0) writes it, thread (0, 0, 0) reads it with no "
        "barrier between, block (0, 0, 0)"
    )
    updated = run("shared", [Step("st", limit=1, value=0), Step("atom", thread=0, limit=2)]).findings
    assert "thread (1, 0, 0) updates it with no barrier between" in updated[0].message


def test_a_copy_that_is_not_waited_for_in_words() -> None:
    program = [*CLEAR, Step("cp", 8, 8, limit=4), Step("ld", 4, start=8, limit=1)]
    a = Buffer(array=np.zeros(4, np.uint32), name="a")
    (found,) = run("shared", program, a=a, room=ROOM).findings
    assert found.message == (
        "s[2] (4-byte elements): thread (1, 0, 0) copies into it, thread (0, 0, 0) reads it before the copy "
        "has landed, block (0, 0, 0)"
    )


RESERVED = """extern "C" __global__ void k(const int* a, int* o) {
  __shared__ int own[64];
  unsigned at, value, t = threadIdx.x;
  asm("mov.u32 %0, %%reserved_smem_offset_1;" : "=r"(at));
  own[t] = a[t];
  asm volatile("st.shared.u32 [%0], %1;" :: "r"(at + 4 * t), "r"(7 * t) : "memory");
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(at + 4 * (t ^ 32) + PAST) : "memory");
  SYNC
  o[t] = own[t ^ 32] + value;
}"""


@pytest.mark.parametrize(
    ("sync", "past", "found"),
    [("__syncthreads();", 0, []), ("", 0, ["RAW hazard"]), ("__syncthreads();", 8192, ["out of bounds"])],
)
def test_what_the_system_reserves_is_apart_and_its_own_matter(sync: str, past: int, found: list[str]) -> None:
    """Cooperative groups synchronise tiles of several warps there, by means that no kernel may use."""
    a, o = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    run = launch(RESERVED.replace("SYNC", sync).replace("PAST", str(past)), "k", (1,), (64,), a, o)
    assert [finding.kind for finding in run.findings] == found
    if not found:
        assert np.array_equal(o, 8 * (np.arange(64) ^ 32))
