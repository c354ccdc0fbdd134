"""Accesses whose lanes go to several buffers, are generic, take no part or lie at an end of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator import Buffer, Emulation, emulate
from harness.emulator.memory import GLOBAL_BASE


def buffer(name: str, size: int, dtype: Any = np.uint32, initialised: bool = True) -> Buffer:
    return Buffer(array=np.arange(size).astype(dtype), name=name, initialised=initialised)


HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {
.reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
.shared .align 16 .b8 s[128];
.local .align 16 .b8 l[16];
.file 1 "k.cu"
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c];
mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 4; add.s64 %rd3, %rd3, %rd4;
setp.lt.u32 %p1, %r1, 4;
.loc 1 1 0
"""


def several(
    body: str, *, b: Buffer | None = None, threads: int = 8, blocks: int = 1, schedule: str = "lockstep"
) -> tuple[Emulation, np.ndarray]:
    """Run a kernel with a and b of 8 words; %rd5 is each thread's word, of a for the threads below 4."""
    a, c = buffer("a", 8), buffer("c", threads)
    pick = "selp.b64 %rd5, %rd1, %rd2, %p1; add.s64 %rd5, %rd5, %rd4;"
    text = f"{HEAD}{pick}{body} ret; }}"
    b = b or buffer("b", 8)
    run = emulate(text, "k", grid=(blocks,), block=(threads,), arguments=[a, b, c], schedule=schedule)
    return run, np.concatenate([a.array, b.array, c.array])


def test_lanes_of_several_buffers_load_and_store_each_in_its_own() -> None:
    run, (*ab, _, _, _, _, _, _, _, _) = several("st.global.u32 [%rd5], 77;")
    assert run.findings == () and ab == [77] * 4 + [4, 5, 6, 7] + [0, 1, 2, 3] + [77] * 4
    run, found = several("ld.global.u32 %r2, [%rd5]; add.u32 %r2, %r2, 10; st.global.u32 [%rd3], %r2;")
    assert run.findings == () and found[16:].tolist() == list(range(10, 18))


def test_unwritten_words_are_told_in_that_buffer_which_has_them() -> None:
    run, _ = several(
        "ld.global.u32 %r2, [%rd5]; st.global.u32 [%rd3], %r2;", b=buffer("b", 8, initialised=False)
    )
    (found,) = run.findings
    assert (found.kind, found.variable, found.offset, found.seen) == ("uninitialised read", "b", 16, 4)
    assert found.threads[0].x == 4
    run, _ = several(
        "@!%p1 st.global.u32 [%rd5], 1; ld.global.u32 %r2, [%rd5]; st.global.u32 [%rd3], %r2;",
        b=buffer("b", 8, initialised=False),
    )
    assert run.findings == ()


def test_each_word_of_a_vector_has_to_be_written() -> None:
    """The words 0 to 4 of b are, and threads 0 to 2 read two each: the last one's second is not."""
    run, _ = several(
        "add.s64 %rd6, %rd2, %rd4; setp.lt.u32 %p2, %r1, 5; @%p2 st.global.u32 [%rd6], 1;"
        "add.s64 %rd6, %rd6, %rd4; setp.lt.u32 %p3, %r1, 3; @%p3 ld.global.v2.u32 {%r2, %r3}, [%rd6];",
        b=buffer("b", 8, initialised=False),
    )
    (found,) = (f for f in run.findings if f.kind == "uninitialised read")  # they race, too
    assert (found.offset, found.seen, found.threads[0].x) == (16, 1, 2)


def test_blocks_that_store_the_same_are_a_notice_whatever_lanes_hold_that_take_no_part() -> None:
    """Thread t of both blocks stores 7 to word t of a, or its block's number; the threads below 4 do not."""
    for value, benign in (("7", True), ("%r6", False)):
        run, _ = several(
            f"mov.u32 %r6, %ctaid.x; mad.lo.u32 %r7, %r6, 8, %r1; @!%p1 mov.u32 %r7, {value};"
            "add.s64 %rd6, %rd1, %rd4; @!%p1 st.global.u32 [%rd6], %r7;",
            blocks=2,
        )
        assert {f.kind for f in (run.notices if benign else run.findings)} == {"global race"}
        assert (run.findings == ()) == benign


def test_a_lane_between_two_buffers_is_out_of_bounds_and_the_others_are_not() -> None:
    run, found = several("add.s64 %rd5, %rd5, 4; st.global.u32 [%rd5], 77;")
    (fault,) = run.findings
    assert (fault.kind, fault.variable, fault.offset, fault.seen) == ("out of bounds", "b", 32, 1)
    assert found[:16].tolist() == [0, 77, 77, 77, 77, 5, 6, 7, 0, 1, 2, 3, 4, 77, 77, 77]


@pytest.mark.parametrize(("space", "variable"), [("shared", "s"), ("local", "l")])
def test_a_generic_address_is_of_the_space_that_it_points_to(space: str, variable: str) -> None:
    to = f"mov.u64 %rd6, {variable}; cvta.{space}.u64 %rd6, %rd6;"
    own = "add.s64 %rd6, %rd6, %rd4;" if space == "shared" else ""
    run, found = several(
        f"{to} {own} st.u32 [%rd6], %r1; ld.{space}.u32 %r3, [{variable}]; ld.u32 %r2, [%rd6];"
        "st.u32 [%rd3], %r2;"
    )
    assert {f.kind for f in run.findings} <= {"RAW hazard"} and found[16:].tolist() == list(range(8))
    counts = [c for c in run.instructions if c.opcode.startswith(("st.u32", "ld.u32"))]
    assert sum(c.shared_requests for c in counts) == (2 if space == "shared" else 0)
    assert sum(c.global_requests for c in counts) == 1
    run, _ = several(f"{to} {own} ld.u32 %r2, [%rd6]; st.u32 [%rd3], %r2;")
    assert [(f.kind, f.variable, f.seen) for f in run.findings] == [("uninitialised read", variable, 8)]
    run, _ = several(f"{to} st.u32 [%rd6+{128 if space == 'shared' else 16}], %r1;")
    assert [(f.kind, f.variable, f.seen) for f in run.findings] == [("out of bounds", variable, 8)]


def test_a_generic_address_of_no_buffer_is_told_by_the_nearest() -> None:
    run, _ = several("ld.u32 %r2, [%rd1-64]; st.u32 [%rd3], %r2;")
    assert [(f.kind, f.variable, f.offset, f.distance, f.seen) for f in run.findings] == [
        ("out of bounds", "a", -64, 64, 8)
    ]


def test_a_generic_address_of_no_window_is_global_memory_s() -> None:
    """A null pointer with an offset is below every window, and far above them is no window either."""
    for address in (16, 1 << 31, 1 << 35):
        run, _ = several(f"mov.u64 %rd6, {address}; ld.u32 %r2, [%rd6]; st.u32 [%rd3], %r2;")
        assert [(f.kind, f.variable, f.seen) for f in run.findings] == [("out of bounds", "a", 8)]


@pytest.mark.parametrize(("shift", "thread", "distance"), [(-4, 0, 4), (100, 7, 4)])
def test_of_the_lanes_at_an_end_of_shared_memory_one_is_out(shift: int, thread: int, distance: int) -> None:
    """The first or the last word of 32 is another lane's, which is in bounds."""
    for body in ("st.shared.u32 [%r4], %r1;", "ld.shared.u32 %r2, [%r4];"):
        run, _ = several(f"mov.u32 %r3, s; mad.lo.u32 %r4, %r1, 4, %r3; add.s32 %r4, %r4, {shift}; {body}")
        (found,) = (f for f in run.findings if f.kind == "out of bounds")
        assert (found.seen, found.threads[0].x, found.distance) == (1, thread, distance)


def test_a_fault_in_a_loop_is_counted_in_each_turn() -> None:
    turns = "mov.u32 %r5, 0; again: BODY add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 3; @%p2 bra again;"
    for body, kind, variable, seen in (
        ("st.shared.u32 [s+128], %r1;", "out of bounds", "s", 24),
        ("@%p1 st.local.u32 [l+2], %r1;", "misaligned", "l", 12),
        ("ld.local.u32 %r2, [l+4];", "uninitialised read", "l", 24),
        ("@%p1 st.global.u32 [%rd2+32], %r1;", "out of bounds", "b", 12),
    ):
        run, _ = several(turns.replace("BODY", body))
        found = [(f.kind, f.variable, f.seen) for f in run.findings if f.kind == kind]
        assert found == [(kind, variable, seen)], body


def test_a_store_that_is_partly_out_of_bounds_touches_no_other_buffer() -> None:
    """The lanes that are in bounds store to a; b is read-only, and nothing comes to it."""
    b = buffer("b", 8)
    b.array.flags.writeable = False
    run, found = several("add.s64 %rd6, %rd1, %rd4; st.global.u32 [%rd6+16], 77;", b=b)
    assert [(f.kind, f.variable, f.seen) for f in run.findings] == [("out of bounds", "a", 4)]
    assert found[:8].tolist() == [0, 1, 2, 3, 77, 77, 77, 77]


def test_lanes_that_take_no_part_may_point_anywhere() -> None:
    far = "mad.wide.u32 %rd6, %r1, 8, %rd1; @!%p1 sub.s64 %rd6, %rd6, %rd1;"
    run, found = several(f"{far} @%p1 st.global.v2.u32 [%rd6], {{%r1, 9}};")
    assert run.findings == () and found[:8].tolist() == [0, 9, 1, 9, 2, 9, 3, 9]
    run, found = several(f"{far} @%p1 ld.global.v2.u32 {{%r2, %r3}}, [%rd6]; @%p1 st.global.u32 [%rd3], %r3;")
    assert run.findings == () and found[16:].tolist() == [1, 3, 5, 7, 4, 5, 6, 7]


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("space", [".shared", ".global", ""])
def test_lanes_that_take_no_part_in_a_load_may_point_anywhere(space: str, width: int) -> None:
    """Behind the end of shared memory, and of a buffer of which some words were never written."""
    at = "[%r4]" if space == ".shared" else "[%rd6]"
    run, found = several(
        f"mov.u32 %r3, s; mad.lo.u32 %r4, %r1, {width}, %r3; mad.wide.u32 %rd6, %r1, {width}, %rd2;"
        "@!%p1 add.u32 %r4, %r4, 1000000; @!%p1 add.s64 %rd6, %rd6, 100000000;"
        f"cvt.u64.u32 %rd7, %r1; mov.u64 %rd8, 55; @%p1 st{space}.u{8 * width} {at}, "
        f"{'%r1' if width == 4 else '%rd7'}; mov.u32 %r2, 55;"
        f"@%p1 ld{space}.u{8 * width} {'%r2' if width == 4 else '%rd8'}, {at};"
        f"{'' if width == 4 else 'cvt.u32.u64 %r2, %rd8;'} st.global.u32 [%rd3], %r2;",
        b=buffer("b", 8, initialised=False),
    )
    assert run.findings == () and found[16:].tolist() == [0, 1, 2, 3, 55, 55, 55, 55]


@pytest.mark.parametrize("threads", [2, 8])
@pytest.mark.parametrize(
    ("value", "expected"),
    [("%r1", [0, 1, 2, 3]), ("7", [7, 7, 7, 7]), ("%r6", [41, 41, 41, 41])],  # by thread, for all, by block
)
def test_some_threads_of_every_block_store(threads: int, value: str, expected: list[int]) -> None:
    """In shared memory: those below 4, or in a block of 2 threads the second one."""
    few = "setp.eq.u32 %p1, %r1, 1;" if threads == 2 else ""
    run, found = several(
        f"{few} mov.u32 %r6, %ctaid.x; add.u32 %r6, %r6, 40; mov.u32 %r3, s; mad.lo.u32 %r4, %r1, 4, %r3;"
        f"st.shared.u32 [%r4], 9; @%p1 st.shared.u32 [%r4], {value}; ld.shared.u32 %r2, [%r4];"
        "st.global.u32 [%rd3], %r2;",
        threads=threads,
        blocks=2,
    )
    assert {f.kind for f in run.findings} <= {"global race"}  # on c, where the blocks meet
    assert found[16:].tolist() == ([9, expected[1]] if threads == 2 else [*expected, 9, 9, 9, 9])


def test_a_fault_names_the_first_lane_that_has_it() -> None:
    word = "mov.u32 %r3, s; mad.lo.u32 %r4, %r1, 4, %r3;"
    for schedule in ("lockstep", "warp-serial"):
        run, _ = several(f"{word} @!%p1 st.shared.u16 [%r4+1], 7;", schedule=schedule, threads=20)
        (found,) = run.findings
        assert (found.kind, found.offset, found.seen, found.threads[0].x) == ("misaligned", 17, 16, 4)
        late = "setp.eq.u32 %p2, %r1, 70; @%p2 st.global.u32 [%rd2+32], 1;"
        run, _ = several(late, schedule=schedule, threads=96)
        assert [f.threads[0].x for f in run.findings] == [70]


COPY = "cp.async.ca.shared.global {}, 4; cp.async.wait_all;"
TILE = "{%r2, %r3, %r4, %r5, %r6, %r7, %r8, %r2}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("ld.global.u32 %r2, [%rd2+32];", "reads 4 bytes at offset 32 of b"),
        ("ldu.global.u32 %r2, [%rd2+32];", "reads 4 bytes at offset 32 of b"),
        ("st.global.u32 [%rd2+32], 1;", "writes 4 bytes at offset 32 of b"),
        ("red.global.add.u32 [%rd2+32], 1;", "writes 4 bytes at offset 32 of b"),
        ("atom.shared.add.u32 %r2, [s+128], 1;", "writes 4 bytes at offset 128 of s"),
        (COPY.format("[s], [%rd2+32]"), "reads 4 bytes at offset 32 of b"),
        (COPY.format("[s+128], [%rd2]"), "writes 4 bytes at offset 128 of s"),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [s+128];", "reads 16 bytes at offset 128 of s"),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [s+128], {%r2};", "writes 16 bytes at offset 128 of s"),
        (f"wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {TILE}, [s+128];", "reads "),
        ("wmma.store.d.sync.aligned.row.m16n16k16.shared.f16 [s+128], {%r2, %r3, %r4, %r5};", "writes "),
    ],
)
def test_a_fault_says_whether_it_reads_or_writes(body: str, words: str) -> None:
    run, _ = several(f"mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0; mov.u32 %r5, 0; {body}", threads=32)
    messages = {f.message for f in run.findings if f.kind == "out of bounds"}
    assert messages and all(message.startswith(words) for message in messages)


def test_an_access_longer_than_shared_memory_is_past_its_end() -> None:
    text = HEAD.replace("s[128]", "s[8]") + "st.shared.v4.u32 [s], {%r1, %r1, %r1, %r1}; ret; }"
    (found,) = emulate(text, "k", grid=(1,), block=(1,), arguments=[buffer("a", 8)] * 3).findings
    assert (found.kind, found.offset, found.distance) == ("out of bounds", 0, 8)


def test_an_access_longer_than_its_buffer_is_past_the_end() -> None:
    run, _ = several("@%p1 ld.v4.u32 {%r2, %r3, %r4, %r5}, [%rd2];", b=buffer("b", 2))
    (found,) = run.findings
    assert (found.kind, found.variable, found.offset, found.distance, found.seen) == (
        "out of bounds",
        "b",
        0,
        8,
        4,
    )
    assert "reads 16 bytes at offset 0 of b, up to 8 bytes past the end" in found.message


def test_without_buffers_nothing_is_near() -> None:
    text = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k() {
.reg .b32 %r<3>; .reg .b64 %rd<3>;
mov.u64 %rd1, 64;
.loc 1 1 0
ld.global.u32 %r1, [%rd1];
ret; }"""
    (found,) = emulate(text, "k", grid=(2,), block=(3,), arguments=[]).findings
    assert (found.kind, found.variable, found.distance, found.seen) == (
        "out of bounds",
        "global memory",
        0,
        6,
    )
    assert found.offset == 64 - GLOBAL_BASE
