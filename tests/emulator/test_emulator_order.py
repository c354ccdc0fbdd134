"""Order between threads: barriers, fences, atomics and flags, and each of them left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness import emulator
from harness.emulator import Emulation
from shared.emulator_kernels import launch

N, BLOCKS = 64, 40  # threads of a block, and blocks
RACES = {"global race", "RAW hazard", "WAR hazard", "WAW hazard"}


def races(run: Emulation) -> set[tuple[str, str]]:
    """The races found, as (kind, variable)."""
    assert {f.kind for f in run.findings} <= RACES, run.findings
    return {(f.kind, f.variable) for f in run.findings}


def run(
    body: str, *, blocks: int = BLOCKS, threads: int = N, signature: str = "", **options: Any
) -> Emulation:
    """Run a kernel with a = floats, b = partial results, c = results, d = counters, and x = this thread's."""
    source = f"""
    {signature}
    extern "C" __global__ void k(const float* a, float* b, float* c, unsigned* d) {{
      int t = threadIdx.x, block = blockIdx.x, i = block * blockDim.x + t;
      float x = a[i];
      {body}
    }}"""
    a = np.arange(blocks * threads, dtype=np.float32)
    b, c = np.zeros(blocks * threads, np.float32), np.zeros(blocks * threads, np.float32)
    return launch(source, "k", (blocks,), (threads,), a, b, c, np.zeros(256, np.uint32), **options)


# Global memory within a block

SHARES = "b[i] = x; SYNC c[i] = b[block * 64 + (t ^ OTHER)];"


@pytest.mark.parametrize(
    ("sync", "other", "found"),
    [
        ("__syncthreads();", 63, set()),
        ("", 63, {"b"}),
        ("__syncwarp();", 1, set()),
        ("__syncwarp();", 32, {"b"}),  # another warp
        ("", 0, set()),
    ],
)
@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial"])
def test_threads_of_a_block_share_global_memory(
    sync: str, other: int, found: set[Any], schedule: str
) -> None:
    body = SHARES.replace("SYNC", sync).replace("OTHER", str(other))
    assert {name for _, name in races(run(body, schedule=schedule))} == found


def test_reads_before_the_first_store_of_a_buffer_are_kept() -> None:
    body = "float y = b[block * 64 + (t + 1) % 64]; SYNC b[i] = x + y;"
    assert races(run(body.replace("SYNC", "__syncthreads();"))) == set()
    assert races(run(body.replace("SYNC", ""))) == {("WAR hazard", "b")}


def test_bytes_of_one_word_are_apart() -> None:
    source = """extern "C" __global__ void k(unsigned char* a, const unsigned char* b) {
      a[threadIdx.x * STEP] = b[threadIdx.x];
    }"""
    a, b = np.zeros(64, np.uint8), np.arange(64, dtype=np.uint8)
    assert launch(source.replace("STEP", "1"), "k", (1,), (64,), a, b).findings == ()
    found = launch(source.replace("STEP", "0"), "k", (1,), (64,), a, b).findings
    assert [f.kind for f in found] == ["WAW hazard"]


def test_bytes_of_one_word_are_apart_in_shared_memory() -> None:
    body = """
      __shared__ unsigned char s[128]; __shared__ int w[64];
      w[t] = block; s[t] = t; SYNC
      c[i] = s[t ^ OTHER] + w[t] + (x < 0 ? (__threadfence(), 1) : 0);
    """
    assert races(run(body.replace("SYNC", "").replace("OTHER", "0"))) == set()
    assert races(run(body.replace("SYNC", "__syncthreads();").replace("OTHER", "1"))) == set()
    assert races(run(body.replace("SYNC", "").replace("OTHER", "1"))) == {("RAW hazard", "s")}


# Atomics and plain accesses


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("atomicAdd(b, x);", set()),
        ("if (t == 0) b[block] = x; atomicAdd(b + block, x);", {("WAW hazard", "b")}),
        ("if (t == 0) b[block] = x; __syncthreads(); atomicAdd(b + block, x);", set()),
        ("atomicAdd(b + block, x); c[i] = b[block];", {("RAW hazard", "b")}),
        ("atomicAdd(b + block, x); __syncthreads(); c[i] = b[block];", set()),
        ("atomicAdd(b + 999, x); if (i == 70) c[i] = b[999];", {("global race", "b")}),
        ("if (t == 0) { if (block == 3) b[7] = x; atomicAdd(b + 7, x); }", {("global race", "b")}),
        ("if (t == 0) atomicAdd_block(b, x);", {("global race", "b")}),  # of a block, not of the grid
        ("if (t < 9) atomicAdd_block(b + block, x);", set()),
    ],
)
def test_an_atomic_and_a_plain_access(body: str, found: set[Any]) -> None:
    assert races(run(body)) == found


@pytest.mark.parametrize("fine", ["", "if (x < 0) __threadfence();"])
@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("atomicAdd(&s, x);", set()),
        ("if (t == 1) s = x; atomicAdd(&s, x);", {("WAW hazard", "s")}),
        ("atomicAdd(&s, x); c[i] = s;", {("RAW hazard", "s")}),
        ("atomicAdd(&s, x); __syncthreads(); c[i] = s;", set()),
    ],
)
def test_an_atomic_and_a_plain_access_in_shared_memory(body: str, found: set[Any], fine: str) -> None:
    before = "__shared__ float s; if (t == 0) s = 0; __syncthreads();"
    assert races(run(f"{before} {fine} {body}")) == found


# Blocks that order themselves

LAST = """
  __shared__ bool last;
  b[i] = x;                                   // every thread a partial result
  FENCE1
  BARRIER
  if (t == 0) { FENCE2 last = atomicAdd(d, 1u) == gridDim.x - 1; }
  __syncthreads();
  if (last) { float s = 0; for (int j = t; j < gridDim.x * 64; j += 64) s += b[j]; c[t] = s; }
"""


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [2, BLOCKS, 600])  # 600 do not fit in one batch
@pytest.mark.parametrize(
    ("fence1", "barrier", "fence2", "clean"),
    [
        ("", "__syncthreads();", "__threadfence();", True),
        ("__threadfence();", "__syncthreads();", "", True),
        ("__threadfence();", "__syncthreads();", "__threadfence();", True),
        ("", "__syncthreads();", "", False),  # no fence
        ("", "__syncthreads();", "__threadfence_block();", False),  # one that is too narrow
        ("", "", "__threadfence();", False),  # thread 0 does not wait for the others of its block
    ],
)
def test_the_last_block(fence1: str, barrier: str, fence2: str, clean: bool, blocks: int) -> None:
    body = LAST.replace("FENCE1", fence1).replace("BARRIER", barrier).replace("FENCE2", fence2)
    found = races(run(body, blocks=blocks))
    assert ("global race", "b") not in found if clean else ("global race", "b") in found
    assert found == set() or not clean


def test_a_fence_elsewhere_orders_nothing() -> None:
    assert races(run("__threadfence(); if (t == 0) b[0] = x; c[i] = x;")) == {("global race", "b")}
    assert races(run("if (t == 0) { c[i] = x; __threadfence(); } b[i] = x; c[(i + 64) % 2560] = x;")) >= {
        ("global race", "c")
    }


FLAG = """
  volatile unsigned* flag = d;
  __shared__ unsigned seen;
  if (block == 0) b[t] = x;
  __syncthreads();
  if (block == 0 && t == 0) { RELEASE }
  __syncthreads();                            // the emulator runs the blocks side by side up to here
  if (t == 0) seen = 0;
  if (block != 0 && t == 0) { ACQUIRE }
  __syncthreads();
  if (block != 0 && seen) c[i] = b[t];
"""
WITHIN = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
PTX = """
__device__ void st_release_cluster(unsigned* p, unsigned v) {
  asm volatile("st.release.cluster.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
__device__ void st_release(unsigned* p, unsigned v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
__device__ void st_relaxed(unsigned* p, unsigned v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
__device__ unsigned ld_acquire(unsigned* p) {
  unsigned v; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ unsigned ld_acquire_cta(unsigned* p) {
  unsigned v; asm volatile("ld.acquire.cta.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
"""


@pytest.mark.parametrize(
    ("release", "acquire", "found"),
    [
        ("__threadfence(); *flag = 1;", "seen = *flag; __threadfence();", set()),
        ("st_release(d, 1);", "seen = ld_acquire(d);", set()),
        ("__threadfence(); atomicExch(d, 1);", "seen = atomicAdd(d, 0); __threadfence();", set()),
        ("__threadfence(); st_relaxed(d, 1);", "seen = ld_acquire(d);", set()),
        ("*flag = 1;", "seen = *flag; __threadfence();", {"b"}),
        ("__threadfence_block(); *flag = 1;", "seen = *flag; __threadfence();", {"b"}),
        ("st_relaxed(d, 1);", "seen = ld_acquire(d);", {"b"}),
        ("st_release(d, 1);", "seen = ld_acquire_cta(d);", {"b", "d"}),
        # Without a cluster a block is one of its own.
        ("st_release_cluster(d, 1);", "seen = ld_acquire(d);", {"b", "d"}),
        (f"{WITHIN} *flag = 1;", "seen = *flag; __threadfence();", {"b"}),
        ("st_release(d, 2); st_relaxed(d, 1);", "seen = ld_acquire(d);", set()),
        ("st_release(d, 2); atomicExch(d, 1);", "seen = ld_acquire(d);", set()),
        ("st_release(d + 1, 1); st_relaxed(d, 1);", "seen = ld_acquire(d);", {"b"}),  # to another place
        ("st_release(d + 1, 1); atomicExch(d, 1);", "seen = ld_acquire(d);", {"b"}),
        ("__threadfence(); st_release(d + 1, 1); st_relaxed(d, 1);", "seen = ld_acquire(d);", set()),
        ("__threadfence(); d[0] = 1;", "seen = *flag; __threadfence();", {"b", "d"}),  # a plain store
        ("__threadfence(); *flag = 1;", "seen = d[0]; __threadfence();", {"b", "d"}),  # a plain load
        ("__threadfence(); *flag = 1;", "seen = flag[1] + 1; __threadfence();", {"b"}),  # of another flag
    ],
)
def test_a_flag(release: str, acquire: str, found: set[str]) -> None:
    body = FLAG.replace("RELEASE", release).replace("ACQUIRE", acquire)
    assert {name for _, name in races(run(body, signature=PTX))} == found
    unread = run(body.replace("c[i] = b[t]", "c[i] = t"), signature=PTX)
    assert {name for _, name in races(unread)} == found - {"b"}, "the reads are what races"


# How the CUDA Programming Guide makes an atomic of atomicCAS: the first load may read anything.
SWAPS = """
  __shared__ unsigned s;
  if (t == 0) s = 0;
  __syncthreads();
  unsigned* at = WHERE;
  unsigned old = *at, seen;
  do { seen = old; old = atomicCAS(at, seen, seen + 1 + c[i]); } while (seen != old);
  MORE
"""


@pytest.mark.parametrize("where", ["d", "&s"])
@pytest.mark.parametrize(
    ("more", "clean"),
    [("", True), ("b[t] = old;", True), ("b[t] = *at;", False), ("if (t == 5) *at = 0;", False)],
)
def test_a_load_that_a_compare_and_swap_verifies_is_a_notice(where: str, more: str, clean: bool) -> None:
    found = run(SWAPS.replace("WHERE", where).replace("MORE", more), blocks=2)
    racy = [f for f in found.findings if f.variable in ("d", "s")]
    assert (not racy) == clean
    assert any("which a compare-and-swap verifies" in f.message for f in found.notices)


def test_a_flag_within_a_block() -> None:
    """A warp hands over to another by a flag in shared memory, with no barrier."""
    body = """
      __shared__ float s[64]; __shared__ volatile int flag;
      if (t == 0) flag = 0;
      __syncthreads();
      if (t < 32) { s[t] = x; SYNC if (t == 0) { FENCE flag = 1; } }
      if (t == 32 && flag) { FENCE c[i] = s[5]; }
    """
    whole = body.replace("SYNC", "__syncwarp();").replace("FENCE", "__threadfence_block();")
    assert races(run(whole)) == set()
    assert races(run(whole.replace("__syncwarp();", ""))) == {("RAW hazard", "s")}
    without = body.replace("SYNC", "__syncwarp();").replace("FENCE", "")
    assert {name for _, name in races(run(without))} >= {"s"}


# Barriers of warps


def test_a_warp_that_synchronises_orders_no_other_warp() -> None:
    body = """
      __shared__ float s[64];
      if (t < 32) { s[t] = x; __syncwarp(); c[i] = s[t ^ 1]; }
      else { s[t] = x; OTHER c[i] = s[t ^ 1]; }
    """
    assert races(run(body.replace("OTHER", "__syncwarp();"))) == set()
    assert races(run(body.replace("OTHER", ""))) == {("RAW hazard", "s")}


def test_a_warp_barrier_orders_the_lanes_of_its_mask() -> None:
    body = """
      __shared__ float s[64];
      s[t] = x;
      if (t % 32 < 16) { __syncwarp(0xffff); c[i] = s[t ^ OTHER]; }
    """
    assert races(run(body.replace("OTHER", "1"))) == set()
    assert races(run(body.replace("OTHER", "16"))) == {("RAW hazard", "s")}


# Stores of the same value


def test_stores_of_the_same_value_are_noticed_and_no_fault() -> None:
    for body, shared in (
        ("b[7] = 1;", False),
        ("__shared__ unsigned s; s = gridDim.x; __syncthreads(); c[i] = s;", True),
    ):
        found = run(body)
        assert found.findings == ()
        assert {f.kind for f in found.notices} == (
            {"WAW hazard"} if shared else {"WAW hazard", "global race"}
        )
        assert all(f.benign and "the same value" in f.message for f in found.notices)
    assert races(run("b[7] = t == 3;")) == {("WAW hazard", "b"), ("global race", "b")}


# Blocks that wait for one another

LOCK = """
  if (t == 0) {
    while (atomicCAS(d, 0u, 1u) != 0u) { }
    ACQUIRE
    c[0] += x + 1;
    RELEASE
    UNLOCK
  }
"""


@pytest.mark.parametrize("unlock", ["atomicExch(d, 0u);", "*(volatile unsigned*)d = 0;"])
@pytest.mark.parametrize(
    ("acquire", "release", "clean"),
    [
        ("__threadfence();", "__threadfence();", True),
        ("", "__threadfence();", False),
        ("__threadfence();", "", False),
        ("", "", False),
        ("__threadfence_block();", "__threadfence();", False),
    ],
)
def test_a_lock(acquire: str, release: str, unlock: str, clean: bool) -> None:
    body = LOCK.replace("ACQUIRE", acquire).replace("RELEASE", release).replace("UNLOCK", unlock)
    assert races(run(body, blocks=12)) == (set() if clean else {("global race", "c")})


SEMAPHORE = """
  // Blocks add to one result in their turn.
  if (t == 0) while (WAIT != block) { }
  FENCE
  __syncthreads();
  c[t] += x;
  __syncthreads();
  if (t == 0) { POST }
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "fence", "post", "clean"),
    [
        ("ld_acquire(d)", "", "st_release(d, block + 1);", True),
        ("*(volatile unsigned*)d", "__threadfence();", "__threadfence(); atomicAdd(d, 1);", True),
        ("atomicAdd(d, 0u)", "__threadfence();", "__threadfence(); st_relaxed(d, block + 1);", True),
        ("ld_acquire(d)", "", "st_relaxed(d, block + 1);", False),
        ("ld_acquire_cta(d)", "", "st_release(d, block + 1);", False),
        ("*(volatile unsigned*)d", "__threadfence();", "atomicAdd(d, 1);", False),
    ],
)
@pytest.mark.parametrize(("blocks", "threads"), [(5, 64), (20, 1024)])  # 16 of the latter fill a batch
def test_a_semaphore_of_stream_k(
    wait: str, fence: str, post: str, clean: bool, blocks: int, threads: int
) -> None:
    body = SEMAPHORE.replace("WAIT", wait).replace("FENCE", fence).replace("POST", post)
    found = {name for _, name in races(run(body, blocks=blocks, threads=threads, signature=PTX))}
    assert ("c" not in found) == clean
    assert found <= ({"d"} if "cta" in wait else set()) | (set() if clean else {"c"})


BARRIER = """
  b[i] = x;
  BEFORE
  if (t == 0) {
    FENCE1
    atomicAdd(d, 1u);
    while (*(volatile unsigned*)d < gridDim.x) { }
    FENCE2
  }
  AFTER
  c[i] = b[(i + 64) % (64 * gridDim.x)];
"""
SYNC, FENCE = "__syncthreads();", "__threadfence();"


@pytest.mark.parametrize("blocks", [4, 300])
@pytest.mark.parametrize(
    ("before", "fence1", "fence2", "after", "clean"),
    [
        (SYNC, FENCE, FENCE, SYNC, True),
        (SYNC, FENCE, "", SYNC, True),
        ("", FENCE, FENCE, SYNC, False),
        (SYNC, "", FENCE, SYNC, False),
        (SYNC, FENCE, FENCE, "", False),
    ],
)
def test_a_barrier_of_the_grid(
    before: str, fence1: str, fence2: str, after: str, clean: bool, blocks: int
) -> None:
    body = BARRIER.replace("BEFORE", before).replace("FENCE1", fence1)
    body = body.replace("FENCE2", fence2).replace("AFTER", after)
    assert races(run(body, blocks=blocks)) == (set() if clean else {("global race", "b")})


# Shared memory in a kernel that orders threads by more than barriers


EXCHANGE = "__shared__ float s[64]; s[t] = x; SYNC c[i] = s[63 - t]; __threadfence(); atomicAdd(d, 1u);"
HANDED = """
  __shared__ volatile int flag; __shared__ float s; __shared__ float y;
  if (t == 0) flag = 0;
  __syncthreads();
  if (t == 0) { s = x; FENCE flag = 1; }
  if (t == 32) { while (!flag) {} FENCE y = s; }
  __syncthreads();
  c[i] = y;
  __threadfence();"""


@pytest.mark.parametrize(
    ("body", "found", "looks"),
    [
        (EXCHANGE.replace("SYNC", "__syncthreads();"), set(), [False]),
        (EXCHANGE.replace("SYNC", ""), {"s"}, [False, True]),
        # Nothing but the flag orders these two, which only a look at each cell shows.
        (HANDED.replace("FENCE", "__threadfence_block();"), set(), [False, True]),
        (HANDED.replace("FENCE", ""), {"s"}, [False, True]),
        # A barrier of some of the block's threads.
        (EXCHANGE.replace("SYNC", 'asm volatile("bar.sync 1, 64;");'), set(), [False]),
        (EXCHANGE.replace("SYNC", 'if (t < 32) asm volatile("bar.sync 1, 32;");'), {"s"}, [False, True]),
    ],
)
def test_shared_memory_is_watched_by_cells_only_where_it_may_matter(
    body: str, found: set[str], looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Launch(emulator.Launch):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            seen.append(options["cells"])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(emulator, "Launch", Launch)
    assert {name for _, name in races(run(body))} == found
    assert seen == looks
