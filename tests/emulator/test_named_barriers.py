"""Barriers by number that two groups of threads use, and the memory of mbarriers that others use."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import emulate
from shared.emulator_kernels import compile_ptx
from shared.hopper_kernels import kinds, run

PAIRS = """extern "C" __global__ void k(int* o) {
  __shared__ int s[128];
  int t = threadIdx.x;
  s[t] = t;
  asm volatile("bar.sync %0, 64;" :: "r"(NUMBER) : "memory");
  o[t] = s[t ^ 32];
}"""


@pytest.mark.parametrize(("number", "found"), [("1 + t / 64", set()), ("1", {"barrier misuse"})])
@pytest.mark.parametrize("schedule", ["lockstep", "backward"])
def test_pairs_of_warps_that_wait_at_the_same_time(number: str, found: set[str], schedule: str) -> None:
    o = np.zeros(128, np.int32)
    ptx = compile_ptx(PAIRS.replace("NUMBER", number))
    result = emulate(ptx, "k", grid=(1,), block=(128,), arguments=[o], schedule=schedule)
    assert found <= kinds(result) and (found or not result.findings)


ALONE = """int* o { __shared__ u64 bar; __shared__ int s[128]; int t = threadIdx.x;
  MORE s[t] = t; asm volatile("bar.sync 1, 32;" ::: "memory"); o[t] = s[t ^ 1];
  asm volatile("bar.sync 1, 32;" ::: "memory"); s[t ^ 1] = 0; }"""


@pytest.mark.parametrize("more", ["", "if (t == 0) { init(&bar, 64); } __syncthreads();"])
def test_a_warp_alone_ends_a_phase_of_its_own(more: str) -> None:
    """Four use one number: each arrival is a phase. Nobody else is counted in it."""
    o = np.zeros(128, np.int32)
    result = run(ALONE.replace("MORE", more), o, block=128)
    assert not result.findings and (o == np.arange(128) ^ 1).all()


# Two warps pass barrier 1 with the second one's partner, then two others: who has heard of whom?
HANDED = """int* o { __shared__ u64 bar; int t = threadIdx.x, w = t / 32;
  if (t == 0) { init(&bar, 64); }
  __syncthreads();
  if (w < 2) { asm volatile("bar.sync 1, 64;" ::: "memory"); FIRST }
  else { SECOND asm volatile("bar.sync 1, 64;" ::: "memory"); }
  o[t] = 1; }"""


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("arrive(&bar);", "wait(&bar, 0);", set()),
        ("", "", {"barrier misuse"}),
        ("arrive(&bar);", "", {"barrier misuse"}),
    ],
)
def test_a_barrier_that_one_group_hands_to_another(first: str, second: str, found: set[str]) -> None:
    body = HANDED.replace("FIRST", first).replace("SECOND", second)
    assert kinds(run(body, np.zeros(128, np.int32))) == found


def test_a_group_that_comes_late_to_a_barrier_of_others() -> None:
    """They never wait at the same time here, but nothing keeps them from it."""
    late = 'for (int i = 0; i < 99; i++) o[t] = i; asm volatile("nanosleep.u32 9;");'
    body = HANDED.replace("FIRST", "").replace("SECOND", late + " wait_all();")
    assert kinds(run(body, np.zeros(128, np.int32))) == {"barrier misuse"}


# The same, where a flag in global memory hands the barrier on.
BY_FLAG = """int* o, int* flag { __shared__ u64 bar; int t = threadIdx.x, w = t / 32;
  if (t == 0) { init(&bar, 64); }
  __syncthreads();
  if (w < 2) { FIRST if (t == 0) { PUBLISH } }
  else { while (READ == 0) { } FENCE asm volatile("bar.sync 1, 64;" ::: "memory"); }
  o[t] = 1; }"""
SYNC = 'asm volatile("bar.sync 1, 64;" ::: "memory");'
ARRIVE = f"if (w == 0) {{ {SYNC} }} else {{ {SYNC.replace('sync', 'arrive')} }}"
STORE = "*(volatile int*)flag = 1;"
RELEASE = 'asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory");'
ACQUIRE = (
    '([&] { int v; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory"); '
    "return v; })()"
)


@pytest.mark.parametrize("schedule", ["lockstep", "backward"])
@pytest.mark.parametrize(
    ("first", "publish", "read", "fence", "found"),
    [
        (SYNC, "__threadfence(); " + STORE, "*(volatile int*)flag", "__threadfence();", set()),
        (SYNC, RELEASE, ACQUIRE, "", set()),
        (SYNC, "__threadfence(); atomicExch(flag, 1);", "atomicAdd(flag, 0)", "__threadfence();", set()),
        (ARRIVE, RELEASE, ACQUIRE, "", set()),
        (SYNC, STORE, "*(volatile int*)flag", "__threadfence();", {"barrier misuse"}),
        (SYNC, "__threadfence(); " + STORE, "*(volatile int*)flag", "", {"barrier misuse"}),
        ("PUBLISHED " + SYNC, "", ACQUIRE, "", {"barrier misuse"}),
    ],
)
def test_a_flag_in_global_memory_hands_a_barrier_on(
    first: str, publish: str, read: str, fence: str, found: set[str], schedule: str
) -> None:
    first = first.replace("PUBLISHED", f"if (t == 0) {{ {RELEASE} }} __syncwarp();")
    body = BY_FLAG.replace("FIRST", first).replace("PUBLISH", publish)
    body = body.replace("READ", read).replace("FENCE", fence)
    result = run(body, np.zeros(128, np.int32), np.zeros(1, np.int32), schedule=schedule)
    assert found <= kinds(result) and (found or not result.findings)


MEMORY = """const float* a, int* o { __shared__ __align__(128) struct { float s[32]; u64 bar, other; } m;
  int t = threadIdx.x;
  if (t == 0) { init(&m.bar, 1); init(&m.other, 32); fence_init(); }
  __syncthreads();
  if (t == 0) { expect(&m.bar, BYTES); load(m.s, a, BYTES, &m.bar); }
  wait(&m.bar, 0);
  arrive(&m.other); wait(&m.other, 0);
  __syncthreads();
  if (t == 0) { LAST }
  o[t] = m.s[t]; }"""
INVAL = 'asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(&m.other)) : "memory");'


@pytest.mark.parametrize(
    ("size", "last", "found"),
    [
        ("128", INVAL + " m.other = 1;", set()),
        ("128", "m.other = 1;", {"mbarrier misuse"}),
        ("128", "m.s[33] = 1;", {"mbarrier misuse"}),
    ],
)
def test_memory_of_an_mbarrier_is_freed_before_it_holds_data(size: str, last: str, found: set[str]) -> None:
    body = MEMORY.replace("BYTES", size).replace("LAST", last)
    assert kinds(run(body, np.ones(64, np.float32), np.zeros(32, np.int32), block=32)) == found


def test_a_copy_that_lands_on_an_mbarrier() -> None:
    body = MEMORY.replace("BYTES", "144").replace("LAST", "")
    found = kinds(run(body, np.ones(64, np.float32), np.zeros(32, np.int32), block=32))
    assert "mbarrier misuse" in found


def test_a_reduction_that_counts_up_in_the_memory_of_a_block() -> None:
    """`.inc` wraps at the bound that is given; what it adds to has to have been written."""
    body = """int* o { __shared__ __align__(128) unsigned at_most[32], count[32]; __shared__ u64 bar;
      int t = threadIdx.x; at_most[t] = t & 3; FIRST
      if (t == 0) { init(&bar, 1); fence_init(); }
      fence_async(); __syncthreads();
      if (t == 0) { expect(&bar, 128);
        asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.inc.u32"
          " [%0], [%1], 128, [%2];" :: "r"(at(count)), "r"(at(at_most)), "r"(at(&bar)) : "memory"); }
      wait(&bar, 0);
      o[t] = count[t]; }"""
    o = np.zeros(32, np.int32)
    assert kinds(run(body.replace("FIRST", "count[t] = 2;"), o, block=32)) == set()
    assert np.array_equal(o, np.where(np.arange(32) & 3 == 3, 3, 0))
    assert kinds(run(body.replace("FIRST", ""), o, block=32)) == {"uninitialised read"}
