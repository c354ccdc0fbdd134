"""Tests of proxy fences: in the thread that writes, on the way to the copy, or nowhere."""

from __future__ import annotations

import numpy as np
import pytest

from shared.hopper_kernels import kinds, run

FENCE = {"missing proxy fence"}
# The four warps write, and the first thread of the second one stores what they wrote.
STORE = """const float* a, float* c {
  __shared__ __align__(128) float s[128]; __shared__ u64 full, more;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 128); init(&more, 1); fence_init(); }
  __syncthreads();
  s[t] = a[t];
  WAY
  if (t == 32) { LAST store(c, s, 512); wait_read(); }
}"""
# A thread of another warp tells the last one by an mbarrier what it knows.
PASSED_ON = "if (t == 64) { FENCE arrive(&more); } if (t == 32) wait(&more, 0);"


@pytest.mark.parametrize(
    "order", ["__syncthreads();", "arrive(&full); wait(&full, 0);"], ids=["bar", "mbarrier"]
)
@pytest.mark.parametrize(
    ("before", "after", "last", "found", "noticed"),
    [
        ("fence_async();", "", "", set(), set()),  # as in the Programming Guide and in CUTLASS
        ("", "fence_async();", "", set(), FENCE),  # in all threads, of which one begins the store
        ("", "", "fence_async();", set(), FENCE),  # in that thread alone
        ("", "if (t == 0) fence_async();", "", FENCE, set()),  # in one that tells nobody
        ("if (t == 32) fence_async();", "", "", FENCE, set()),  # of its own writes alone
        ("", "", "", FENCE, set()),
        ("", PASSED_ON.replace("FENCE", "fence_async();"), "", set(), FENCE),
        ("", PASSED_ON.replace("FENCE", ""), "", FENCE, set()),
        ("", "", "fence_async(); s[1] = 2;", FENCE, set()),  # written after the fence
        ("fence_async();", "fence_async();", "", set(), set()),
    ],
)  # fmt: skip
def test_a_fence_before_a_store_by_tma(
    order: str, before: str, after: str, last: str, found: set[str], noticed: set[str]
) -> None:
    a, c = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    text = STORE.replace("WAY", f"{before} {order} {after}").replace("LAST", last)
    ran = run(text, a, c)
    assert (kinds(ran), {f.kind for f in ran.notices}) == (found, noticed)
    assert all("NVIDIA's guide has it in the thread that made the first" in f.message for f in ran.notices)


# Each thread writes an operand, and the warpgroup multiplies it.
PRODUCT = """const float* a, float* c {
  __shared__ __align__(128) unsigned short s[2048], u[64];
  const int t = threadIdx.x;
  for (int i = t; i < 2048; i += blockDim.x) s[i] = 0;
  WAY
  if (t >= 128) return;
  const u64 descriptor = ((u64)at(s) >> 4) | (u64)8 << 16 | (u64)16 << 32;
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  c[t] = d[0] + d[1] + d[2] + d[3];
}"""


@pytest.mark.parametrize(
    ("way", "found", "noticed"),
    [
        ("fence_async(); __syncthreads();", set(), set()),
        ("__syncthreads(); fence_async();", set(), FENCE),
        ("__syncthreads(); if (t < 128) fence_async();", set(), FENCE),
        ("__syncthreads(); if (t >= 128) fence_async();", FENCE, set()),  # they do not multiply
        ("__syncthreads(); if (t < 32) fence_async();", FENCE, set()),  # one warp of the four
        ("__syncthreads();", FENCE, set()),
    ],
)
def test_a_fence_before_a_wgmma(way: str, found: set[str], noticed: set[str]) -> None:
    ran = run(PRODUCT.replace("WAY", way), np.zeros(1, np.float32), np.zeros(128, np.float32), block=256)
    assert (kinds(ran), {f.kind for f in ran.notices}) == (found, noticed)


# One warp reads what TMA brought, and its first lane has it filled again.
AGAIN = """const float* a, float* c {
  __shared__ __align__(128) float s[32]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); fence_init(); expect(&full, 128); load(s, a, 128, &full); }
  __syncwarp();
  wait(&full, 0);
  c[t] = s[t];
  BEFORE
  __syncwarp();
  if (t == 0) { AFTER expect(&full, 128); load(s, a + 32, 128, &full); }
  wait(&full, 1);
  c[t] += s[t];
}"""


@pytest.mark.parametrize(
    ("before", "after", "found", "noticed"),
    [("fence_async();", "", set(), set()), ("", "fence_async();", set(), FENCE), ("", "", FENCE, set())],
)
def test_a_fence_before_a_place_is_filled_again(
    before: str, after: str, found: set[str], noticed: set[str]
) -> None:
    text = AGAIN.replace("BEFORE", before).replace("AFTER", after)
    ran = run(text, np.zeros(64, np.float32), np.zeros(32, np.float32), block=32)
    assert (kinds(ran), {f.kind for f in ran.notices}) == (found, noticed)


@pytest.mark.parametrize(("fence", "found"), [("fence_async();", set()), ("", FENCE)])
def test_a_fence_on_the_way_makes_an_mbarrier_visible(fence: str, found: set[str]) -> None:
    """Neither the thread that made it nor the guide's place, but the thread that begins the copy."""
    text = """const float* a, float* c {
      __shared__ __align__(128) float s[32]; __shared__ u64 full;
      const int t = threadIdx.x;
      if (t == 0) init(&full, 1);
      __syncthreads();
      if (t == 32) { FENCE expect(&full, 128); load(s, a, 128, &full); }
      wait(&full, 0);
      c[t] = s[t % 32];
    }""".replace("FENCE", fence)
    assert kinds(run(text, np.zeros(32, np.float32), np.zeros(64, np.float32), block=64)) == found
