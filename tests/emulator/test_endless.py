"""Loops that never end are told within seconds, with where the warps stand; long ones run on."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.emulator import emulate
from harness.emulator.blocks.endless.linear import Entry, endless
from harness.emulator.executable import executable
from harness.emulator.ptx.program import Instruction
from harness.errors import EmulatorError
from shared.emulator_kernels import compile_ptx, launch
from shared.hopper_strangers import BROUGHT, FOLDER

# Each of them is right but for what it waits for; p holds zeros.
ENDLESS = {
    "barriers": "while (p[0] == 0) { __syncthreads(); if (p[1]) p[2] = 1; __syncthreads(); }",
    "stores": "for (;;) p[t + 4] = 1;",
    "stores of a counter": "int i = 0; for (;;) p[(t + ++i) % 1000] = i;",
    "an outer loop": "while (v[0] == 0) for (int j = 0; j < 50; j++) v[5] = j;",
    "one warp, while the others wait": "if (t < 32) for (;;) p[t] = 1; __syncthreads();",
    "one lane, while the others poll": "if (t) { while (v[1] == 0) ; } else for (;;) v[2] = 1;",
    "another block's flag, with stores": "if (blockIdx.x == 0) while (v[1] == 0) v[3] = 1; else v[2] = 1;",
    "a lock taken twice": "while (atomicCAS(p, 0, 1)) ; p[4]++; while (atomicCAS(p, 0, 1)) ; p[5]++;",
}
RANDOM = "unsigned x = t; do x = x * 1664525u + 1013904223u; while (x != 7777 + (t & 1) * p[9]); s = x;"
TOO_LONG = {
    "many turns": "for (int k = 0; k < 100000000; k++) s = s * 3 + p[k & 255];",
    "a step over the end": "for (int i = 2 * t + 1; i != 0; i -= 2) s = s * 3 + i;",
    "a bound that is 0": "int k = 0; do s = s * 3 + p[k & 255]; while (++k != p[900]);",
    "a rest that is negative": "unsigned left = p[900] - 1; do s = s * 3 + p[left & 255]; while (--left);",
}
LONG = {
    "numbers that grow away from the 0 at their end": """for (int i = t; i < 900; i += 64) p[i] = i + 1;
      __syncthreads(); for (int i = 0; p[i] != 0; i++) s = (s ^ i) * 3 + (s >> 3) + (s << 5) + i * i;""",
    "a counter": "for (int k = 0; k < 6000; k++) s = s * 3 + p[k & 7];",
    "a counter, or before": "for (int k = 0; k < 3000 && s != 5; k++) s = s * 3 + p[k & 7];",
    "floats": "for (float x = 0; x < 1.0f; x += 0.001f) s = s * 3 + p[s & 7];",
    "shifts": "for (int r = 0; r < 700; r++) for (unsigned k = 1u << 31; k; k >>= 4) s = s * 3 + p[k & 7];",
    "the heartbeat of whom another block wakes": (
        "if (blockIdx.x == 0) while (v[1] == 0) v[3] = 1; else if (blockIdx.x == gridDim.x - 1) v[1] = 1;"
    ),
    "the heartbeat of whom another lane wakes": (
        "if (t == 0) while (v[1] == 0) v[3] = 1; else if (t == 40) v[1] = 1;"
    ),
    "levels of a graph": """
      __shared__ int go; int level = 1; if (t == 0) p[0] = 1; __syncthreads();
      do {
        __syncthreads(); if (t == 0) go = 0; __syncthreads();
        for (int i = t; i < 150; i += 64) if (p[i] == level && !p[i + 1]) { p[i + 1] = level + 1; go = 1; }
        level++; __syncthreads();
      } while (go);""",
}


def run(body: str, blocks: int = 2, schedule: str = "lockstep", **options: int) -> None:
    source = f"""extern "C" __global__ void k(int* p) {{
      int t = threadIdx.x, s = 0; volatile int* v = p;
      {body}
      if (s == 12345) p[0] = s;
    }}"""
    launch(source, "k", (blocks,), (64,), np.zeros(1024, np.int32), schedule=schedule, check=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("what", ENDLESS)
def test_what_repeats_is_told_at_once(what: str) -> None:
    began = time.thread_time()
    with pytest.raises(EmulatorError, match=r"(?s)the kernel hangs: .*(again and again).*warp.*line 3"):
        run(ENDLESS[what], blocks=1 if what == "one lane, while the others poll" else 2)
    assert time.thread_time() - began < 5


@pytest.mark.slow
@pytest.mark.parametrize("what", ["barriers", "one warp, while the others wait", "a lock taken twice"])
def test_what_repeats_is_told_warp_by_warp(what: str) -> None:
    with pytest.raises(EmulatorError, match="again and again"):
        run(ENDLESS[what], schedule="warp-serial")


@pytest.mark.slow
def test_what_nothing_bounds_is_told_in_seconds() -> None:
    """The control of `LONG`. With a budget a tenth as large it takes a tenth of the time."""
    with pytest.raises(EmulatorError, match="no counter bounds it"):
        run(RANDOM, budget=500_000)


@pytest.mark.parametrize("what", LONG)
def test_what_only_takes_long_is_not_cut(what: str) -> None:
    blocks = 1 if "graph" in what or "lane" in what else 400 if "another block" in what else 2
    run(LONG[what], blocks=blocks)


@pytest.mark.parametrize("what", TOO_LONG)
def test_a_loop_over_the_budget_is_told_before_it_is_run(what: str) -> None:
    began = time.thread_time()
    with pytest.raises(
        EmulatorError, match=r"(?s)line 3: .*more turns: [\d,]+ instructions in all.*budget=\d+_"
    ):
        run(TOO_LONG[what])
    assert time.thread_time() - began < 5


@pytest.mark.slow
def test_a_loop_that_may_end_before_its_counter_is_run() -> None:
    run("for (int k = 0; k < 100000000 && s < 40000; k++) s += 1 + p[k & 255];")


def test_a_grid_over_the_budget_is_told_before_it_is_run() -> None:
    with pytest.raises(EmulatorError, match=r"would take [\d,]+ instructions"):
        run("p[t] = 1;", blocks=1_000_000_000)
    with pytest.raises(EmulatorError, match=r"would take [\d,]+ instructions"):
        run("for (int k = 0; k < 1500; k++) s = s * 3 + p[k & 7];", blocks=256_000, budget=20_000)


def steps_of_nothing(source: str) -> str:
    """Return a product whose number of steps is read from shared memory that nothing has written."""
    source = source.replace("const int steps = K / 64;", "__shared__ volatile int of[1]; int steps = of[0];")
    source = source.replace("for (int s = 0; s < steps; ++s) {", "int s = 0; do {")
    for last in ("if (++q == ST) q = 0, p ^= 1;", "if (t == 0) Barrier::arrive(empty + q);"):
        before, after = source.split(last)
        source = f"{before}{last} {after.replace('}', '} while (++s != steps);', 1)}"
    return source


def test_a_product_of_steps_that_nothing_wrote_is_told() -> None:
    """Its 384 threads wait for each other by mbarriers, and count past all numbers of 32 bits."""
    kernel = BROUGHT["ping_pong"]
    ptx = compile_ptx(steps_of_nothing(kernel.source), "compute_90a", f"--include-path={FOLDER}")
    arguments, _ = kernel.make(np.random.default_rng(5))
    began = time.thread_time()
    with pytest.raises(EmulatorError, match=r"more turns.*\n.*128 threads \(warps 4 to 7 ") as told:
        emulate(ptx, "k", grid=(1,), block=(384,), arguments=arguments, shared=kernel.shared)
    assert time.thread_time() - began < 8
    assert any("of at offset 0 was never written" in f.message for f in told.value.findings)


CALLED = """
.version 8.0
.target sm_80
.address_size 64
.func down(.param .b32 from)
{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  ld.param.u32 %r1, [from];
AGAIN:
  add.s32 %r1, %r1, -1;
  setp.ne.s32 %p1, %r1, 0;
  @%p1 bra AGAIN;
  ret;
}
.visible .entry k(.param .u32 n)
{
  .reg .b32 %r<4>;
  ld.param.u32 %r3, [n];
  { .param .b32 given; st.param.b32 [given], %r3; call.uni down, (given); }
  ret;
}
"""


def test_a_counter_of_a_function_decides() -> None:
    """Its loop is told as a hang otherwise, where it takes long: all that decides stays the same."""
    code = executable(CALLED, "k")
    (counter,) = (number for name, number in code.numbers.items() if name.startswith("down:%r1:"))
    assert counter in code.slice.registers


@pytest.mark.slow
def test_a_loop_that_ends_when_the_bits_of_a_quotient_do_is_run() -> None:
    """No comparison nears its end in three periods, and no progress shows while the loop lets others run."""
    ptx = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p) { .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<4>;
ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1];
ld.global.u32 %r6, [%rd1+4]; mov.u32 %r2, 5; mov.u32 %r3, 0;
L: div.u32 %r4, %r2, %r1; and.b32 %r5, %r4, %r6; add.s32 %r3, %r3, 1; add.s32 %r2, %r2, -1;
setp.ne.u32 %p1, %r5, 65527; @%p1 bra L;
st.global.u32 [%rd1+8], %r3; ret; }"""
    found = np.array([4096, 65535, 0], np.int32)
    emulate(ptx, "k", grid=(1,), block=(1,), arguments=[found])
    assert found[2] == 32775


@pytest.mark.parametrize(
    ("opcode", "by", "wanted"),
    [("shr.u32", by, 0) for by in (-1, 62, 63, 64, 1 << 30)]
    + [("div.u32", 0, 0), ("rem.u32", 0, 0)]
    # The control: what goes on as it did.
    + [("shr.u32", 2, 1), ("div.u32", 4, 1), ("rem.u32", 4, 1)],
)
def test_what_a_register_shifts_or_divides_by_may_be_anything(opcode: str, by: int, wanted: int) -> None:
    """A counter goes up by 4, and is shifted or divided: it goes on for ever where that is known."""
    ins = Instruction(
        index=0, opcode=tuple(opcode.split(".")), operands=("%r2", "%r1", "%r3"), source="", ptx_line=1
    )
    periods = []
    for value in (4, 8, 12):
        gives = value // 4 if wanted and opcode != "rem.u32" else 0
        wrote = {2: np.array([[gives]]), 1: np.array([[value]])}
        periods.append([Entry((0, 0), 0, np.array([[True]]), wrote, (np.array([[value]]), np.array([[by]])))])
    code: Any = SimpleNamespace(slice=SimpleNamespace(spaces=set()), registers_of=lambda _: ({1, 3}, {2}))
    entry = SimpleNamespace(instructions=[ins])
    launch: Any = SimpleNamespace(entry=entry, code=code, budget=1000)
    with np.errstate(all="raise"):
        assert endless(launch, periods) == wanted
