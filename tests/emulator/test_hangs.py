"""Kernels that hang, of every kind: each is told in less than 10 s, with where its threads stand.

Right ones that only take long are not cut.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from harness.emulator.blocks.endless import loops
from harness.emulator.blocks.endless.loops import BUDGET
from harness.errors import EmulatorError
from shared.emulator_kernels import launch
from shared.speed import slowness
from shared.sweeps import sweep

MOST = 10  # seconds of this thread


@dataclass(frozen=True)
class Hang:
    """A kernel that hangs: p holds zeros, v are the same, volatile; t is the thread."""

    body: str
    blocks: int = 1
    threads: int = 64


MBARRIER = """__shared__ unsigned long long b; unsigned a = __cvta_generic_to_shared(&b);
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(a)); __syncthreads();"""
ARRIVE = 'asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(a));'
WAIT = """int ok; do asm volatile("{ .reg .pred q; mbarrier.try_wait.parity.shared.b64 q, [%1], PARITY; "
  "selp.s32 %0, 1, 0, q; }" : "=r"(ok) : "r"(a)); while (!ok);"""
# In a ring of the block's warps, each waits for the one before.
RING = """unsigned w = t / 32, next = (w + 1) % (blockDim.x / 32);
  if (s || w) asm volatile("bar.sync %0, 64;" :: "r"(w + 1)); s = 1;
  asm volatile("bar.arrive %0, 64;" :: "r"(next + 1));"""
# A queue whose threads wait until all of its work is done, and move its head while they do.
QUEUE = """while (true) { int i = atomicAdd(p, 1);
  if (i < 1000) { p[i + 64] = i; atomicAdd(p + 1, 1); } else if (atomicAdd(p + 1, 0) >= ALL) break; }"""
WORDS = {"MBARRIER": MBARRIER, "ARRIVE": ARRIVE, "RING": RING}
WORDS |= {f"WAIT{p}": WAIT.replace("PARITY", p) for p in "01"}
FUNCTIONS = """
__device__ __noinline__ int down(volatile int* p, int n) { return p[n & 7] + down(p, n + 1) * 3; }
__device__ __noinline__ int pong(volatile int* p, int n);
__device__ __noinline__ int ping(volatile int* p, int n) { return p[n & 7] + pong(p, n + 1) * 3; }
__device__ __noinline__ int pong(volatile int* p, int n) { return p[n & 7] * ping(p, n + 2) - 3; }
"""
HANGS = {
    "a flag that nobody sets": Hang("while (v[1] == 0) ;", 2, 64),
    "a flag with a plain load": Hang(
        "while (*(int*)(p + 1) == 0) { if (t < 0) p[2] = 1; __threadfence(); }", 2, 64
    ),
    "a flag by acquire": Hang(
        r"""
        int f; do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(f) : "l"(p + 1) : "memory");
        while (!f);""",
        2,
        64,
    ),
    "nanosleep": Hang("while (v[1] == 0) __nanosleep(100);", 2, 64),
    "a lock held by its own warp": Hang(r"""
        if (t % 32 == 0) { while (atomicCAS(p, 0, 1)) ; } __syncwarp(); while (atomicCAS(p, 0, 1)) ;
        p[1]++;"""),
    "a lock taken twice": Hang("while (atomicCAS(p, 0, 1)) ; while (atomicCAS(p, 0, 1)) ;", 2, 64),
    "two locks, crosswise": Hang(
        r"""
        int a = blockIdx.x & 1; while (atomicCAS(p + a, 0, 1)) ; while (!v[4 + (1 - a)]) { v[4 + a]
        = 1; } while (atomicCAS(p + 1 - a, 0, 1)) ;""",
        2,
        1,
    ),
    "a barrier in a loop of other counts": Hang(r"""
        for (int i = 0; i < 10 + (t < 32); i++) { __syncthreads(); while (t >= 32 && i == 9 && v[1]
        == 0) ; }"""),
    "a named barrier for more threads": Hang(r"""asm volatile("bar.sync 1, 96;"); p[t] = 1;"""),
    "a named barrier that half come to": Hang(
        r"""if (t < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;");"""
    ),
    "grid sync by hand, too few": Hang(
        "if (t == 0) { atomicAdd(p, 1); while (v[0] < 2 * gridDim.x) ; } __syncthreads();", 8, 64
    ),
    "a chain that waits backwards": Hang(
        "if (t == 0) { while (v[blockIdx.x + 1] == 0) ; v[blockIdx.x] = 1; }", 40, 32
    ),
    "a ring of blocks": Hang(
        "if (t == 0) { while (v[(blockIdx.x + 1) % gridDim.x] == 0) ; v[blockIdx.x] = 1; }", 40, 32
    ),
    "a growing counter": Hang("unsigned i = 1; while (v[1] == 0) i++; p[2] = i;"),
    "a growing counter in memory": Hang("while (v[1] == 0) atomicAdd(p + 2, 1);", 2, 64),
    "a growing store": Hang("int i = 0; while (v[1] == 0) p[2] = i++;", 1, 32),
    "a counter that wraps": Hang("unsigned char i = 0; do { i += 2; s += p[i]; } while (i != 7);"),
    "a loop over NaN": Hang("float x = __int_as_float(0x7fc00000 + p[0]); while (!(x > 1)) x += 1; s = x;"),
    "a float that stops growing": Hang("float x = 0; while (x < 1e9f) x += 1; s = x;"),
    "an infinite sum": Hang("double x = 1; while (x != 0) x = x / 2 + p[0] + 1e-3; s = x;"),
    "printf in a loop": Hang(r"""while (v[1] == 0) printf("%d ", t);""", 1, 32),
    "recursion without end": Hang("s = down(p, t);", 1, 32),
    "mutual recursion": Hang("s = ping(p, t);", 1, 32),
    "for ever": Hang("for (;;) ;", 1, 32),
    "for ever, storing": Hang("for (;;) p[t] = t;", 2, 64),
    "for ever, counting": Hang("for (int i = 0;; i++) p[t] = i;", 2, 64),
    "linked list with a cycle": Hang("int n = 8; while (n != 1) n = p[n] ? 9 : 8 + (n == 8); s = n;"),
    "hash table that is full": Hang(r"""
        int k = t; while (true) { int old = atomicCAS(p + 100 + k % 32, 0, t + 1); if (old == 0 ||
        old == t + 1) break; k++; }"""),
    "a CAS on a NaN": Hang(r"""
        float* f = (float*)p; float old = __int_as_float(0x7fc00001), now; if (t == 0) *f = old;
        __syncthreads(); now = *f; do { old = now; now = __int_as_float(atomicCAS(p,
        __float_as_int(old), __float_as_int(old + 0))); } while (now != old);"""),
    "two threads that undo each other": Hang(
        "if (t == 0) while (v[0] == 0) v[0] = 0; else if (t == 32) while (v[0] != 5) v[0] = 0;"
    ),
    "a polite livelock": Hang(
        r"""
        int me = t & 1; for (;;) { v[me] = 1; if (!v[1 - me]) break; v[me] = 0; if (v[9]) break;
        v[me] = 1; }""",
        1,
        2,
    ),
    "mbarrier, the wrong parity": Hang("MBARRIER if (t == 0) ARRIVE __syncthreads(); WAIT1"),
    "mbarrier, bytes that never come": Hang(r"""
        __shared__ unsigned long long b; unsigned a = __cvta_generic_to_shared(&b); if (t == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(a)); asm
        volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 64;" :: "r"(a)); } __syncthreads();
        WAIT0"""),
    "mbarrier, no arrival": Hang("MBARRIER WAIT0"),
    "a cluster barrier of one": Hang(
        r"""
        if (t == 0) asm volatile("barrier.cluster.arrive;\n barrier.cluster.wait;"); else while
        (v[1] == 0) ;""",
        2,
        64,
    ),
    "a flag polled beside an mbarrier": Hang("MBARRIER while (v[1] == 0) ;", 2, 64),
    "for ever beside an mbarrier": Hang("MBARRIER for (int i = 0; ; i++) p[t] = i;"),
    "for ever beside an mbarrier, plain": Hang(
        "MBARRIER while (p[0] == 0) { __syncthreads(); p[t + 1] = 0; __syncthreads(); }"
    ),
    "a random walk": Hang(
        "unsigned x = t + 1; do { x ^= x << 13; x ^= x >> 17; x ^= x << 5; } while (x != 0); s = x;"
    ),
    "a walk of warps in a ring": Hang(
        "unsigned x = t + 1; do { RING x ^= x << 13; x ^= x >> 17; x ^= x << 5; } while (x != 0); s = x;",
        1,
        256,
    ),
    "a count of warps in a ring": Hang("for (int i = 0; i < 2000000000; i++) { RING p[t] = i; }", 1, 256),
    "matches that never agree": Hang("while (__match_any_sync(~0u, t) != ~0u) ; s = 1;", 1, 32),
    "a vote that never ends": Hang("while (__any_sync(~0u, t >= p[0])) s++;"),
    "a queue that never ends": Hang(QUEUE.replace("ALL", "2000"), 16),
    "for another warp, and moves memory": Hang(
        "if (t == 0) while (!atomicAdd(p, 0)) atomicAdd(p + 1, 1);", 4
    ),
    "many blocks wait for the last": Hang(
        "if (t == 0) while (v[1] == 0) ; __syncthreads(); if (blockIdx.x == gridDim.x) v[1] = 1;", 2000, 128
    ),
    "large blocks, a barrier and a flag": Hang("while (v[1] == 0) __syncthreads();", 40, 1024),
    "clock": Hang("long long c = clock64(); while (clock64() - c >= 0) ; s = c;"),
}
# Those that are told by time: with a tenth of the budget in a tenth of it.
TIMED = {
    "a growing counter in memory",
    "printf in a loop",
    "for ever beside an mbarrier",
    "for ever beside an mbarrier, plain",
    "a counter that wraps",
    "a random walk",
    "a walk of warps in a ring",
    "a vote that never ends",
    "a queue that never ends",
    "for another warp, and moves memory",
}
LONG = {
    "a search of many levels": Hang(
        """__shared__ int go; int level = 1; if (t == 0) p[0] = 1; __syncthreads();
        do {
          __syncthreads(); if (t == 0) go = 0; __syncthreads();
          for (int i = t; i < 8000; i += 1024)
            if (p[i] == level && i < 200 && !p[i + 1]) { p[i + 1] = level + 1; go = 1; }
          level++; __syncthreads();
        } while (go);""",
        1,
        1024,
    ),
    "tickets of a counter": Hang(
        """__shared__ int tile; __shared__ float red[128];
        while (true) {
          if (t == 0) tile = atomicAdd(p, 1);
          __syncthreads(); int i = tile; if (i >= 8 * blockDim.x) break;
          red[t] = t; __syncthreads();
          for (int k = 64; k; k >>= 1) { if (t < k) red[t] += red[t + k]; __syncthreads(); }
          if (t == 0) { float had = 0; if (i) { while (v[i + 1999] == 0) ; had = p[i + 4000]; }
            p[i + 4001] = had + red[0]; __threadfence(); v[i + 2000] = 1; red[0] = had; }
          __syncthreads(); s += red[0]; __syncthreads();
        }""",
        1,
        128,
    ),
    "many turns at a lock": Hang(
        "if (t == 0) for (int i = 0; i < 20; i++) { while (atomicCAS(p, 0, 1)) ; p[1]++; __threadfence(); "
        "atomicExch(p, 0); }",
        24,
    ),
    "warps that take their turns apart": Hang(
        """for (int i = 0; i < 1200; i++) {
          if (t < 32) asm volatile("bar.sync 1, 64; bar.arrive 2, 64;");
          else asm volatile("bar.arrive 1, 64; bar.sync 2, 64;");
          s = s * 3 + v[i & 7]; p[64 + t] = s;
        }"""
    ),
    "warps in a ring that is left": Hang("for (int i = 0; i < 300; i++) { RING p[t] = i; }", 1, 256),
    "one block works long, and the others wait": Hang(
        "if (blockIdx.x == 0) { for (int i = 0; i < 30000; i++) s = s * 3 + p[i & 7]; "
        "if (t == 0) v[1] = 1; } else while (v[1] == 0) ;",
        8,
    ),
}


def run(kind: Hang, **options: Any) -> tuple[str, float]:
    """Return what is said of a kernel, and the seconds that it took; none if it ends without a word."""
    body = re.sub("|".join(WORDS), lambda word: WORDS[word[0]], kind.body)
    source = f"""{FUNCTIONS if "s = " in kind.body else ""}
    extern "C" __global__ void k(int* p) {{
      int t = threadIdx.x, s = 0; volatile int* v = p;
      {body}
      if (s == 12345) p[0] = s;
    }}"""
    began = time.thread_time()
    try:
        found = launch(source, "k", (kind.blocks,), (kind.threads,), np.zeros(8192, np.int32), **options)
        said = "\n".join(str(finding) for finding in found.findings)
    except EmulatorError as error:
        said = str(error)
    return said, time.thread_time() - began


def told(said: str) -> bool:
    """Return whether it is said that the kernel does not end, why, and where its threads stand."""
    stand = r"\d+ (of \d+ )?threads .*line \d+|line \d+: 32 of 64 threads"
    reasons = r"the kernel hangs|deadlock|divergent barrier|has not ended"
    known = r"line \d+: (a barrier for 96 threads|the loop that ends here takes|a function that calls itself)"
    return bool(re.search(reasons, said) and re.search(stand, said)) or bool(re.search(known, said))


def soon(what: str, **options: Any) -> None:
    """Assert that a hang is told, and in time."""
    said, seconds = run(HANGS[what], **options)
    assert told(said), said
    assert seconds < MOST


def test_there_are_enough() -> None:
    assert len(HANGS) >= 40 and HANGS.keys() >= TIMED


LARGE = (
    "a growing counter in memory",
    "clock",
    "hash table that is full",
    "many blocks wait for the last",
    "printf in a loop",
    "two threads that undo each other",
)
FEW = ("a flag by acquire", "a loop over NaN", "mbarrier, the wrong parity", "recursion without end")


@pytest.mark.parametrize("what", sweep(HANGS, lambda what: what in FEW, lambda what: what in LARGE))
def test_a_hang_is_told(what: str) -> None:
    soon(what, **({"budget": BUDGET // 10} if what in TIMED else {}))


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", ["warp-serial", "backward", "held"])
@pytest.mark.parametrize("what", HANGS)
def test_a_hang_is_told_in_any_order(what: str, schedule: str) -> None:
    soon(what, schedule=schedule)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a growing counter in memory", "two threads that undo each other"])
def test_a_hang_is_told_by_a_schedule_that_is_drawn(what: str) -> None:
    """Blocks and warps are interrupted at any instruction, so that none of them is alone for long."""
    soon(what, budget=BUDGET // 10, schedule="random", seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["many turns at a lock", "one block works long, and the others wait"])
def test_what_only_takes_long_is_not_cut_by_a_schedule_that_is_drawn(what: str) -> None:
    said, _ = run(LONG[what], budget=BUDGET // 4, schedule="random", seed=1)
    assert not told(said) and "budget" not in said, said


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", sorted(TIMED))
def test_a_hang_is_told_in_time(what: str) -> None:
    said, seconds = run(HANGS[what])
    assert told(said), said
    assert seconds < MOST


@pytest.mark.parametrize("what", [pytest.param(w, marks=pytest.mark.slow) for w in LONG])
def test_what_only_takes_long_is_not_cut(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: nothing is said of a hang. With a tenth of the emulator's patience, a tenth of the turns
    tries it as much; on a slow machine its seconds are longer.
    """
    seconds, turns, threads = loops._SLOW
    monkeypatch.setattr(loops, "_SLOW", (seconds / 10 * slowness(), turns // 10, threads))
    monkeypatch.setattr(loops, "FIRST", loops.FIRST // 10)
    said, _ = run(LONG[what], budget=BUDGET // 10)
    assert not told(said) and "budget" not in said, said


COMES = {
    "lanes of a queue": QUEUE.replace("ALL", "1000"),
    "a warp": "if (t == 63) atomicExch(p, 1); if (t == 0) while (!atomicAdd(p, 0)) atomicAdd(p + 1, 1);",
    "a warp, as another one does": """if (t == 64) atomicExch(p, 1);
      if (t == 0 || t == 32) while (!atomicAdd(p, 0)) atomicAdd(p + 1, 1);""",
    "a block that has not begun": """if (blockIdx.x == gridDim.x - 1) atomicExch(p, 1);
      if (t == 0 && blockIdx.x == 0) while (!atomicAdd(p, 0)) atomicAdd(p + 1, 1);""",
}


@pytest.mark.parametrize("budget", [BUDGET, BUDGET // 20])
@pytest.mark.parametrize("beside", ["", "MBARRIER "])
@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial", "backward", "held"])
@pytest.mark.parametrize("what", COMES)
@pytest.mark.slow
def test_who_waits_for_others_and_moves_memory_lets_them_come(
    what: str, schedule: str, beside: str, budget: int
) -> None:
    """Each turn changes memory, so that none is seen twice; with others to come it does not hang."""
    said, _ = run(Hang(beside + COMES[what], 16, 96), schedule=schedule, budget=budget)
    assert not said


@pytest.mark.slow
def test_a_warp_that_has_not_come_is_let_come() -> None:
    assert not run(Hang(COMES["a warp"], 16), schedule="warp-serial", budget=BUDGET // 20)[0]
