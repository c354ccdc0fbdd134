"""Straight code, executed without a look at each instruction, is what its instructions are one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from harness.emulator import Buffer, Emulation, emulate
from harness.emulator.decode import Decoder
from harness.emulator.executable import Executable
from harness.emulator.instructions.floating import fused
from harness.emulator.instructions.floating.fused import Row, fuse, rows_of
from harness.emulator.ptx.module import parse
from harness.errors import EmulatorError
from shared.emulator_kernels import MATMULS, matmul

REGISTERS, THREADS, BLOCKS = 12, 64, 5
HEAD = f"""
.version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out) {{
.reg .f32 %f<{REGISTERS}>; .reg .f32 %z; .reg .b64 %p, %q; .reg .b32 %r<4>;

mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, {THREADS}, %r0;
"""


def program(body: list[str]) -> str:
    """Return PTX that loads all registers, runs `body` and stores all registers."""
    offset = f"mul.wide.u32 %q, %r2, {4 * REGISTERS}; ld.param.u64 %p, [in]; add.u64 %p, %p, %q;"
    loads = [f"ld.global.f32 %f{i}, [%p+{4 * i}];" for i in range(REGISTERS)]
    out = "ld.param.u64 %p, [out]; add.u64 %p, %p, %q;"
    stores = [f"st.global.f32 [%p+{4 * i}], %f{i};" for i in range(REGISTERS)]
    return "\n".join([HEAD, offset, *loads, *body, out, *stores, "ret;", "}"])


def drawn(rng: random.Random, length: int) -> list[str]:
    """Draw code of few registers, so that nearly every instruction depends on some others."""

    def name() -> str:
        return f"%f{rng.randrange(REGISTERS)}"

    kinds = [
        lambda: f"fma.rn.f32 {name()}, {name()}, {name()}, {name()};",
        lambda: f"fma.rn.f32 {name()}, {name()}, {name()}, {name()};",
        lambda: f"fma.rn.f32 {(into := name())}, {name()}, {name()}, {into};",
        lambda: f"fma.rn.f32 {name()}, {name()}, 0f3FC00000, {name()};",
        lambda: f"mov.f32 {name()}, {name()};",
        lambda: f"mov.f32 {name()}, 0f40000000;",
        lambda: f"add.f32 {name()}, {name()}, {name()};",
        lambda: f"fma.rz.f32 {name()}, {name()}, {name()}, {name()};",
        lambda: f"ld.global.f32 {name()}, [%p+{4 * rng.randrange(REGISTERS)}];",
        lambda: f"max.f32 {name()}, {name()}, {name()};",
    ]
    weights = [8, 8, 8, 2, 1, 1, 1, 1, 1, 0.3]
    return [rng.choices(kinds, weights)[0]() for _ in range(length)]


def numbers(rng: np.random.Generator) -> np.ndarray:
    """Draw numbers whose sums are halfway between two float32, or subnormal, about as often as not."""
    exponent = rng.choice([0, 0, 1, 23, 24, -23, -75, -74, -126], (BLOCKS * THREADS, REGISTERS))
    mantissa = 1 + rng.integers(0, 4, exponent.shape) * 2.0**-23
    return (mantissa * 2.0**exponent * rng.choice([-1, 1], exponent.shape)).astype(np.float32)


def run(ptx: str, given: np.ndarray, schedule: str) -> tuple[Emulation, np.ndarray]:
    out = np.zeros_like(given)
    arguments = [Buffer(array=given.copy(), name="in"), Buffer(array=out, name="out", initialised=False)]
    with np.errstate(all="ignore"):
        found = emulate(ptx, "k", grid=(BLOCKS,), block=(THREADS,), arguments=arguments, schedule=schedule)
    return found, out.view(np.uint32)


def same(body: list[str], seed: int) -> bool:
    """Return whether code computes and counts the same where each instruction is looked at (``random``)."""
    given = numbers(np.random.default_rng(seed))
    (fast, one), (slow, other) = (run(program(body), given, s) for s in ("lockstep", "random"))
    assert fast.findings == slow.findings == ()
    return bool((one == other).all()) and fast.instructions == slow.instructions


@pytest.mark.parametrize("at_once", [fused._AT_ONCE, 3 * THREADS * BLOCKS])
@pytest.mark.parametrize("seed", range(3))
def test_code_of_many_dependences(seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_AT_ONCE", at_once)
    assert same(drawn(random.Random(seed), 60), seed)


@pytest.mark.parametrize("addends", [(0, 1, 2, 3), (2, 3, 8, 9), (3, 2, 1, 0), (8, 0, 1, 2)])
def test_results_that_are_added_to_in_any_order(addends: tuple[int, ...]) -> None:
    first = [fma(i, 4, 5 + i % 2, 7) for i in range(4)]
    assert same([*first, *(fma(8 + i, 4, 5, c) for i, c in enumerate(addends))], 1)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_rows_that_are_cut(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_AT_ONCE", rows * THREADS * BLOCKS)
    assert same([fma(i, 8, 9 + i % 3, 7) for i in range(6)], 1)


def sets(*body: str) -> list[list[int]]:
    """Return which instructions of `body` are executed together, each set under its last one."""
    text = "\n".join([".version 8.4", ".target sm_90", ".entry k() {", ".reg .f32 %f<40>;", *body, "}"])
    entry = parse(text)["k"]
    found = fuse(Decoder(entry), entry.instructions, Executable(entry).registers_of)
    together: list[list[int]] = []
    waiting: list[int] = []
    for place in sorted(found):
        waiting.append(place)
        if found[place] is not None:
            together.append(waiting)
            waiting = []
    assert not waiting
    return together


def fma(into: int, a: int, b: int, c: int) -> str:
    return f"fma.rn.f32 %f{into}, %f{a}, %f{b}, %f{c};"


FOUR = [fma(i, 20, 24 + i, 30 + i) for i in range(4)]


@pytest.mark.parametrize(
    ("between", "parts"),
    [
        ("", [8]),
        ("mov.f32 %f38, %f39;", [8]),
        ("mov.f32 %f38, %f0;", [4, 4]),  # reads a result
        ("mov.f32 %f1, %f38;", [4, 4]),  # writes one
        ("mov.f32 %f20, %f38;", [4, 4]),  # writes a factor
        ("mov.f32 %f33, %f38;", [4, 4]),  # writes an addend
        ("max.f32 %f38, %f39, %f39;", [4, 4]),  # may do anything
    ],
)
def test_fma_are_executed_together_as_far_as_nothing_depends_on_them(between: str, parts: list[int]) -> None:
    later = [fma(4 + i, 21, 24 + i, 34) for i in range(4)]
    assert [len(members) for members in sets(*FOUR, between, *later)] == parts


@pytest.mark.parametrize(
    "fifth",
    [fma(8, 0, 24, 30), fma(8, 20, 24, 3), fma(2, 20, 24, 30), fma(20, 21, 24, 30), fma(32, 21, 24, 30)],
)
def test_an_fma_that_depends_on_the_set_begins_another(fifth: str) -> None:
    assert sets(*FOUR, fifth) == [[0, 1, 2, 3]]


def test_rows_of_an_outer_product() -> None:
    whole = [(0, 1 + j) for j in range(8)] + [(9, 1 + j) for j in range(8)]
    assert rows_of(whole) == [Row(0, 8, 0, 1), Row(8, 8, 9, 1)]
    assert rows_of([(b, a) for a, b in whole]) == rows_of(whole)
    assert rows_of([(0, 1), (2, 3), (0, 0)]) == [Row(0, 1, 0, 1), Row(1, 1, 2, 3), Row(2, 1, 0, 0)]


@pytest.mark.parametrize("name", ["tiled16", "reg64"])
def test_products_are_the_same_bits_and_counts(name: str) -> None:
    fast, slow = (matmul(*MATMULS[name], 64, schedule=s) for s in ("lockstep", "random"))
    assert (fast[1] == slow[1]).all()
    assert [c.executions for c in fast[0].instructions] == [c.executions for c in slow[0].instructions]
    assert fast[0].total.flops == slow[0].total.flops


def test_a_budget_that_ends_within_straight_code_ends_there() -> None:
    given = numbers(np.random.default_rng(0))
    ptx = program(drawn(random.Random(0), 20))
    arguments = [Buffer(array=given, name="in"), Buffer(array=given.copy(), name="out")]
    with pytest.raises(EmulatorError, match="has not ended after 21 instructions"):
        emulate(ptx, "k", grid=(1,), block=(THREADS,), arguments=arguments, budget=21)
