"""Bugs of public Hopper kernels rebuilt in small: each is found, and its repair is clean.

The kernels are new; only the fault is that of the thread that is named. Some were reported for Blackwell, and
have the same form on Hopper.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from shared.hopper_kernels import kinds, run


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A kernel of (const float* a, float* c), and the edit that brings the fault back.

    name: the thread on GitHub
    wanted: kinds of findings of which one has to be among those of the faulty kernel
    notice: it is a notice: what NVIDIA's guide asks for, and its memory model does not
    """

    name: str
    text: str
    good: str
    bad: str
    wanted: set[str]
    block: int = 128
    grid: int = 1
    cluster: int = 0
    notice: bool = False

    def __str__(self) -> str:
        return self.name


# A state that threads set to zero, and that TMA stores if there are no steps.
STATE = """const float* a, float* c {
  __shared__ __align__(128) float s[128];
  const int t = threadIdx.x, steps = (int)a[0];
  s[t] = 0;
  REPAIR
  for (int i = 0; i < steps; ++i) { __syncthreads(); s[t] += i; fence_async(); }
  __syncthreads();
  if (t == 0) { store(c, s, 512); wait_read(); }
}"""
FULL = """const float* a, float* c {
  __shared__ __align__(128) float s[128]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); REPAIR }
  __syncthreads();
  if (t == 0) { expect(&full, 512); load(s, a, 512, &full); }
  wait(&full, 0);
  c[t] = s[t];
}"""
ORDER = """const float* a, float* c {
  __shared__ __align__(128) float s[128];
  const int t = threadIdx.x;
  s[t] = a[t];
  REPAIR
  if (t == 0) { store(c, s, 512); wait_read(); }
}"""
# A warp adds up rows that TMA brings into two stages, and fills each again.
REUSE = """const float* a, float* c {
  __shared__ __align__(128) float s[2][32]; __shared__ u64 full[2];
  const int t = threadIdx.x;
  if (t == 0) { init(full, 1); init(full + 1, 1); fence_init(); }
  __syncwarp();
  if (t == 0) for (int i = 0; i < 2; ++i) { expect(full + i, 128); load(s[i], a + 32 * i, 128, full + i); }
  float sum = 0;
  for (int i = 0; i < 6; ++i) {
    wait(full + i % 2, i / 2 % 2);
    sum += s[i % 2][t];
    REPAIR
    __syncwarp();
    if (t == 0 && i < 4) { expect(full + i % 2, 128); load(s[i % 2], a + 32 * (i + 2), 128, full + i % 2); }
  }
  c[t] = sum;
}"""
# Block 0 makes what block 1 loads by TMA once a flag says so; the flag is polled as any other memory is.
FLAG = """const float* a, float* c {
  __shared__ __align__(128) float s[128]; __shared__ u64 full;
  const int t = threadIdx.x;
  int* flag = (int*)(c + 256);
  if (blockIdx.x == 0) {
    c[t] = 2 * a[t];
    __threadfence();
    __syncthreads();
    if (t == 0) asm volatile("st.release.gpu.s32 [%0], 1;" :: "l"(flag) : "memory");
    return;
  }
  if (t == 0) {
    init(&full, 1); fence_init();
    int seen;
    do asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory"); while (!seen);
    REPAIR
    expect(&full, 512); load(s, c, 512, &full);
  }
  __syncthreads();
  wait(&full, 0);
  c[128 + t] = s[t];
}"""
FENCE_ALL = 'asm volatile("fence.proxy.async;" ::: "memory");'
# One warp stores, and one lane tells the others.
HANDOFF = """const float* a, float* c {
  __shared__ float s[32]; __shared__ u64 ready;
  const int t = threadIdx.x;
  if (t == 0) init(&ready, 1);
  __syncthreads();
  if (t < 32) {
    s[t] = a[t];
    REPAIR
    if (t == 0) arrive(&ready);
  } else {
    wait(&ready, 0);
    c[t] = s[t % 32];
  }
}"""
# A ring of two boxes from which the leader stores; the others fill them again.
RING = """const float* a, float* c {
  __shared__ __align__(128) float s[2][128];
  const int t = threadIdx.x;
  for (int i = 0; i < 4; ++i) {
    if (t == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    REPAIR
    s[i % 2][t] = a[t] + i;
    fence_async();
    __syncthreads();
    if (t == 0) store(c + 128 * i, s[i % 2], 512);
  }
  if (t == 0) wait_read();
}"""
# Three boxes a tile take turns in two places: the first two were begun longest ago, but not the last.
TURNS = """const float* a, float* c {
  __shared__ __align__(128) float s[2][128];
  const int t = threadIdx.x;
  for (int tile = 0; tile < 2; ++tile)
    for (int j = 0; j < 3; ++j) {
      if (t == 0) { REPAIR }
      __syncthreads();
      s[j % 2][t] = a[t] + tile + j;
      fence_async();
      __syncthreads();
      if (t == 0) store(c + 128 * (j % 2), s[j % 2], 512);
      if (t == 0 && j == 2) c[256 + tile] = j;
    }
  if (t == 0) wait_all();
}"""
ONE_LEFT = 'asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");'
# Stages that consumers wait for; the pointer to the barrier has to follow the stage.
STALE = """const float* a, float* c {
  __shared__ __align__(128) float s[4][32]; __shared__ u64 full[4];
  const int t = threadIdx.x;
  if (t == 0) { for (int i = 0; i < 4; ++i) init(full + i, 1); fence_init(); }
  __syncthreads();
  if (t == 64)
    for (int i = 0; i < 4; ++i) { expect(full + i, 128); load(s[i], a + 32 * i, 128, full + i); }
  if (t < 32) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) { wait(full REPAIR, 0); sum += s[i][t]; }
    c[t] = sum;
  }
}"""
# A leader publishes a number that everyone reads, and makes the next one.
LEADER = """const float* a, float* c {
  __shared__ float bound; __shared__ u64 unused;
  const int t = threadIdx.x;
  if (t == 0) { init(&unused, 1); bound = a[0]; }
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    sum += bound;
    REPAIR
    if (t == 0) bound = a[i];
    __syncthreads();
  }
  c[t] = sum;
}"""
# Both blocks release the first one's stage; it has to stay until they have.
TAIL = """const float* a, float* c {
  __shared__ __align__(128) float s[128]; __shared__ u64 full, empty;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); init(&empty, 2); fence_init(); expect(&full, 512); }
  cluster_sync();
  if (t == 0 && rank() == 0)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1], 512, [%2], %3;" :: "r"(at(s)), "l"(a), "r"(at(&full)), "h"((short)3)
                 : "memory");
  wait(&full, 0);
  c[128 * rank() + t] = s[t];
  __syncthreads();
  if (t == 0) arrive_far(far(&empty, 0));
  REPAIR
}"""
# Sums of a tile that a second store of the same thread must follow.
SECOND = """const float* a, float* c {
  __shared__ __align__(128) float s[128]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); fence_init(); }
  s[t] = a[t];
  fence_async();
  __syncthreads();
  if (t == 0) {
    store(c, s, 512);
    REPAIR
    expect(&full, 512); load(s, c, 512, &full);
  }
  wait(&full, 0);
  c[128 + t] = s[t];
}"""
BUGS = [
    Bug(name="MoonshotAI/FlashKDA 24: an empty sequence", text=STATE, good="fence_async();", bad="",
        wanted={"missing proxy fence"}),
    Bug(name="MoonshotAI/FlashKDA 24: an mbarrier", text=FULL, good="fence_init();", bad="",
        wanted={"missing proxy fence"}),
    Bug(name="pytorch/ao 4278", text=ORDER, good="fence_async(); __syncthreads();",
        bad="__syncthreads(); fence_async();", wanted={"missing proxy fence"}, notice=True),
    Bug(name="deepseek-ai/DeepEP 642", text=REUSE, good="fence_async();", bad="", block=32,
        wanted={"missing proxy fence"}),
    Bug(name="deepseek-ai/DeepEP 621", text=FLAG, good=FENCE_ALL, bad="", grid=2,
        wanted={"missing proxy fence"}),
    Bug(name="NVIDIA/cudnn-frontend 426", text=HANDOFF, good="__syncwarp();", bad="",
        wanted={"RAW hazard"}),
    Bug(name="NVIDIA/TransformerEngine 3417", text=RING, good="__syncthreads();", bad="",
        wanted={"WAR hazard"}),
    Bug(name="rung 23 of this repository with BN=192", text=TURNS,
        good=f"if (j == 0) wait_all(); else if (j == 2) {ONE_LEFT}", bad=ONE_LEFT, wanted={"WAR hazard"}),
    Bug(name="NVIDIA/TensorRT-LLM 15338", text=STALE, good="+ i", bad="", wanted={"RAW hazard"}),
    Bug(name="NVIDIA/TensorRT-LLM 18339", text=LEADER, good="__syncthreads();", bad="",
        wanted={"WAR hazard"}),
    Bug(name="NVIDIA/cutlass: no producer tail", text=TAIL, good="if (rank() == 0) wait(&empty, 0);", bad="",
        grid=2, cluster=2, wanted={"block has left"}),
    Bug(name="a store that is read back", text=SECOND, good="wait_all();", bad="wait_read();",
        wanted={"RAW hazard"}),
]  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_public_bug_is_found_and_its_repair_is_clean(bug: Bug) -> None:
    def found(repair: str) -> tuple[set[str], set[str]]:
        a, c = np.zeros(512, np.float32), np.zeros(512, np.float32)
        text = bug.text.replace("REPAIR", repair)
        ran = run(text, a, c, block=bug.block, grid=bug.grid, cluster=bug.cluster)
        return kinds(ran), {notice.kind for notice in ran.notices}

    assert found(bug.good) == (set(), set())
    findings, notices = found(bug.bad)
    assert (notices if bug.notice else findings) & bug.wanted
    assert not (bug.notice and findings)
