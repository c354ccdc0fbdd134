"""The arena of global memory by itself, and accesses whose lanes go to several buffers or are generic."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from harness.emulator import Buffer, Emulation, emulate
from harness.emulator.memory import GAP, GLOBAL_BASE, Arena, Scratch
from harness.errors import EmulatorError


def buffer(name: str, size: int, dtype: Any = np.uint32, initialised: bool = True) -> Buffer:
    return Buffer(array=np.arange(size).astype(dtype), name=name, initialised=initialised)


# ---- where buffers lie -------------------------------------------------------------------------------


def test_buffers_lie_apart_and_in_their_order() -> None:
    arena = Arena([buffer("a", 10), buffer("b", GAP // 4 + 1), buffer("c", 3, np.uint8), buffer("d", 0)])
    a, b, c, d = arena.allocations
    assert [x.index for x in arena.allocations] == [0, 1, 2, 3] and [x.name for x in (a, d)] == ["a", "d"]
    assert [x.end - x.start for x in arena.allocations] == [40, GAP + 4, 3, 0]
    assert a.start == GLOBAL_BASE + GAP  # an address a little below the first buffer is nobody's
    for one, two in ((a, b), (b, c), (c, d)):
        assert two.start - one.end >= GAP - 256 * 2 and two.start % 256 == 0
        assert GAP <= two.start - one.start


def test_who_holds_an_address_and_who_is_nearest() -> None:
    arena = Arena([buffer("a", 4), buffer("b", 4)])
    a, b = arena.allocations
    assert arena.holding(a.start, a.end) is a and arena.holding(b.start + 4, b.end) is b
    for low, end in ((a.start - 1, a.end), (a.start, a.end + 1), (a.start, b.end), (0, 4)):
        assert arena.holding(low, end) is None
    assert arena.nearest(a.start - 8, 4) == (a, 8)
    assert arena.nearest(a.end - 2, 4) == (a, 2)
    assert arena.nearest(a.end + 100, 8) == (a, 108)
    assert arena.nearest(b.start - 100, 8) == (b, 100)
    assert arena.nearest(a.start, 4) == (a, -12)  # inside
    assert Arena([]).nearest(5, 4) is None


def test_lanes_inside_of_one_buffer() -> None:
    arena = Arena([buffer("a", 4), buffer("b", 4, initialised=False)])
    a, b = arena.allocations
    at = np.array([a.start - 1, a.start, a.end - 4, a.end - 3, a.end, b.start, b.end - 4, b.end, 0])
    assert arena.inside(at, 4).tolist() == [False, True, True, False, False, True, True, False, False]
    assert arena.inside(at, 1).tolist() == [False, True, True, True, False, True, True, False, False]
    assert arena.undefined(np.array([a.start, a.end - 1, b.start, b.end - 1])).tolist() == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(("size", "dtype"), [(1, np.uint8), (2, np.uint16), (4, np.float32), (8, np.float64)])
def test_units_are_loaded_and_stored_at_their_places(size: int, dtype: Any) -> None:
    arena = Arena([buffer("a", 16, dtype), buffer("b", 16, dtype, initialised=False)])
    a, b = arena.allocations
    index = np.array([[3, 0], [5, 1]])
    assert arena.load(index, a.start, size, None).tolist() == index.tolist()
    out = np.empty((2, 2), dtype)
    assert arena.load(index, a.start + 2 * size, size, out) is out and out.tolist() == (index + 2).tolist()
    assert arena.unwritten(index, b.start, size).all()
    arena.store(index, b.start + size, size, np.array([[1, 2], [3, 4]], dtype), b)
    assert arena.load(np.arange(8), b.start, size, None).tolist() == [0, 2, 4, 3, 1, 5, 3, 7]
    written = ~arena.unwritten(np.arange(8), b.start, size)
    assert written.tolist() == [False, True, True, False, True, False, True, False]
    assert arena.stored == {1}
    arena.store(np.array([0]), a.start, size, dtype(9), None)  # lanes of several buffers
    assert arena.stored == {0, 1}


def test_a_unit_is_written_once_all_its_bytes_are() -> None:
    arena = Arena([buffer("a", 4, initialised=False)])
    (a,) = arena.allocations
    for byte in range(3):
        arena.store(np.array([byte]), a.start, 1, np.uint8(7), a)
        assert arena.unwritten(np.array([0]), a.start, 4).tolist() == [True]
    arena.store(np.array([3]), a.start, 1, np.uint8(7), a)
    assert arena.unwritten(np.array([0, 1]), a.start, 4).tolist() == [False, True]
    assert arena.unwritten(np.array([0]), a.start, 8).tolist() == [True]


def test_what_was_stored_is_copied_back_and_nothing_else() -> None:
    first, second = buffer("a", 4), buffer("b", 4)
    arena = Arena([first, second])
    arena.store(
        np.array([1]), arena.allocations[1].start, 4, np.uint32(99).view(np.float32), arena.allocations[1]
    )
    first.array[:] = 5  # not stored to, so not copied over
    arena.copy_back([first, second])
    assert first.array.tolist() == [5] * 4 and second.array.tolist() == [0, 99, 2, 3]
    second.array.flags.writeable = False
    with pytest.raises(EmulatorError, match="^the kernel stores to b, a read-only array$"):
        arena.copy_back([first, second])


def test_arrays_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 100}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    monkeypatch.setattr(os, "sysconf_names", pages)
    Arena([buffer("a", 750, np.uint8)])
    with pytest.raises(EmulatorError) as refused:
        Arena([buffer("a", 700, np.uint8), buffer("b", 51, np.uint8)])
    assert str(refused.value) == (
        "the kernel's arrays take 751 bytes and this machine has 1,000\n  -> Take a smaller shape."
    )


# ---- accesses to several buffers, and generic ones ---------------------------------------------------

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


def several(body: str, *, b: Buffer | None = None, threads: int = 8) -> tuple[Emulation, np.ndarray]:
    """Run a kernel with a and b of 8 words; %rd5 is each thread's word, of a for the threads below 4."""
    a, c = buffer("a", 8), buffer("c", threads)
    pick = "selp.b64 %rd5, %rd1, %rd2, %p1; add.s64 %rd5, %rd5, %rd4;"
    text = f"{HEAD}{pick}{body} ret; }}"
    b = b or buffer("b", 8)
    run = emulate(text, "k", grid=(1,), block=(threads,), arguments=[a, b, c])
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
    assert "reads 16 bytes at offset 0 of b, 8 past what is its own (past the end)" in found.message


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


# ---- bytes as they are -------------------------------------------------------------------------------


def test_raw_bytes_are_those_of_each_address() -> None:
    arena = Arena([buffer("a", 8, np.uint8), buffer("b", 16, np.uint8)])
    at = np.array([arena.allocations[1].start + 3, arena.allocations[0].start])
    assert arena.raw(at, 4).tolist() == [[3, 4, 5, 6], [0, 1, 2, 3]]
    scratch = Scratch(16, 3)
    scratch.flat().view(np.uint8)[:] = (
        np.arange(scratch.flat().nbytes) % 251
    )  # word w of column c is w * 3 + c
    found = scratch.raw(np.array([0, 5, 6]), np.array([0, 1, 2]), 3)
    assert found.tolist() == [[0, 1, 2], [17, 18, 19], [22, 23, 32]]
