"""Global memory in kernels with asynchronous units: what orders accesses to it, and those of TMA."""

from __future__ import annotations

import numpy as np
import pytest

from shared.hopper_kernels import kinds, run

ALL = 'asm volatile("fence.proxy.async;" ::: "memory");'
RELAXED = """asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");"""
REDUCE = """asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 512;"
    :: "l"(c), "r"(at(s)) : "memory"); asm volatile("cp.async.bulk.commit_group;" ::: "memory");"""

CLUSTER = """const float* a, float* c {
  const int t = threadIdx.x;
  if (rank() == 0) c[t] = a[t];
  EDIT
  if (rank() == 1) c[128 + t] = c[t];
}"""
WARPS = """const float* a, float* c {
  __shared__ u64 ready;
  const int t = threadIdx.x;
  if (t == 0) init(&ready, 32);
  __syncthreads();
  if (t < 32) { c[t] = a[t]; EDIT arrive(&ready); }
  else if (t < 64) { wait(&ready, 0); c[64 + t] = c[t - 32]; }
}"""
FAR = """const float* a, float* c {
  __shared__ u64 ready;
  const int t = threadIdx.x;
  if (t == 0) { init(&ready, 128); fence_init(); }
  cluster_sync();
  if (rank() == 0) { c[t] = a[t]; arrive_far(far(&ready, 1)); }
  else { EDIT c[128 + t] = c[t]; }
  cluster_sync();
}"""
STORED = """const float* a, float* c {
  __shared__ __align__(128) float s[128];
  const int t = threadIdx.x;
  s[t] = a[t];
  fence_async();
  __syncthreads();
  if (t == 0 && rank() == 0) { store(c, s, 512); EDIT }
  cluster_sync();
  if (rank() == 1) c[128 + t] = c[t];
}"""
BOTH = """const float* a, float* c {
  __shared__ __align__(128) float s[128];
  const int t = threadIdx.x;
  s[t] = a[t];
  fence_async();
  __syncthreads();
  if (t == 0) { EDIT wait_all(); }
}"""
LOADED = """const float* a, float* c {
  __shared__ __align__(128) float s[128]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); fence_init(); }
  c[t] = a[t];
  EDIT
  if (t == 0) { expect(&full, 512); load(s, c, 512, &full); }
  wait(&full, 0);
  c[128 + t] = s[t];
}"""
AGAIN = """const float* a, float* c {
  __shared__ __align__(128) float s[128]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); fence_init(); }
  __syncthreads();
  if (t == 0) { expect(&full, 512); load(s, c, 512, &full); }
  EDIT
  wait(&full, 0);
  c[t] = s[t] + a[t];
}"""
CASES = [
    (CLUSTER, "cluster_sync();", RELAXED, "global race", 2),
    (WARPS, "", "} if (t >= 32 && t < 64) c[64 + t] = c[t - 32]; if (t < 32) {", "RAW hazard", 0),
    (FAR, "wait(&ready, 0);", "", "global race", 2),
    (STORED, "wait_all();", "wait_read();", "global race", 2),
    (BOTH, REDUCE, "store(c, s, 512);", "global race", 0),
    (LOADED, f"{ALL} __syncthreads();", "__syncthreads();", "missing proxy fence", 0),
    (LOADED, f"__syncthreads(); {ALL}", f"{ALL}", "RAW hazard", 0),
    (AGAIN, "", "c[t] = 0;", "WAR hazard", 0),
]


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("schedule", ["early", "late"])
def test_what_orders_global_memory(case: int, schedule: str) -> None:
    text, good, bad, wanted, cluster = CASES[case]

    def found(edit: str) -> set[str]:
        a, c = np.ones(512, np.float32), np.zeros(512, np.float32)
        return kinds(run(text.replace("EDIT", edit), a, c, grid=2, cluster=cluster, schedule=schedule))

    if not cluster and text is not BOTH:  # each block has its own
        text = text.replace("const int t = threadIdx.x;", "const int t = threadIdx.x; c += 256 * blockIdx.x;")
    assert found(good) == set()
    assert wanted in found(bad)


PLAIN = """const float* a, float* c {
  __shared__ __align__(128) float s[128]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); fence_init(); }
  s[t] = a[t];
  if (t < 32) c[t] = 1;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (t == 0) { EDIT wait_all(); }
}"""


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        ("store(c, s, 512);", {"out of bounds"}),  # of 128 bytes
        ("store(c - 4, s, 32);", {"out of bounds"}),
        ("expect(&full, 512); load(s, c, 512, &full); wait(&full, 0);", {"out of bounds"}),
        ("store(c, s, 0);", set()),
    ],
)
def test_a_copy_past_the_end_of_a_buffer(edit: str, wanted: set[str]) -> None:
    a, c = np.ones(128, np.float32), np.zeros(32, np.float32)
    assert kinds(run(PLAIN.replace("EDIT", edit), a, c)) == wanted


# Shared memory and a flag in global memory: thread 0 hands s over to thread 32, of its block or of the next.
HANDED = """float* a, float* c, unsigned* flag {
  __shared__ __align__(128) float s[64]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) init(&full, 1);
  s[t] = 0;
  cluster_sync();
  float* mine = &s[5];
  if (FAR) asm("mapa.u64 %0, %1, 0;" : "=l"(mine) : "l"(&s[5]));
  if (t == 0 && rank() == 0) { FIRST BEFORE; *(volatile unsigned*)flag = 1; }
  if (t == 32 && rank() == FAR) { while (*(volatile unsigned*)flag == 0); AFTER; THEN }
  cluster_sync();
  if (t == 40) c[8 + rank()] = s[5];
}"""
WROTE = "s[5] = a[0]; @ c[0] = *mine;"
READ = "c[0] = s[5]; @ *mine = a[0];"
BOTH_WROTE = "s[5] = a[0]; @ *mine = a[1];"
GPU, CTA = "__threadfence()", "__threadfence_block()"


@pytest.mark.parametrize("far", [0, 1])
@pytest.mark.parametrize(
    ("edit", "wanted"), [(WROTE, "RAW hazard"), (READ, "WAR hazard"), (BOTH_WROTE, "WAW hazard")]
)
@pytest.mark.parametrize(
    ("before", "after", "within", "across"),
    [(GPU, GPU, True, True), ("", GPU, False, False), (GPU, "", False, False), (CTA, GPU, True, False)],
)
def test_a_flag_in_global_memory_orders_shared_memory(
    edit: str, wanted: str, far: int, before: str, after: str, within: bool, across: bool
) -> None:
    text = HANDED
    first, then = edit.split("@")
    for name, value in (
        ("FAR", str(far)),
        ("FIRST", first),
        ("THEN", then),
        ("BEFORE", before),
        ("AFTER", after),
    ):
        text = text.replace(name, value)
    a, c, flag = np.ones(64, np.float32), np.zeros(64, np.float32), np.zeros(1, np.uint32)
    found = kinds(run(text, a, c, flag, block=64, grid=2, cluster=2))
    assert found == (set() if (across if far else within) else {wanted})


def test_a_flag_orders_nothing_that_comes_after_its_fence() -> None:
    text = HANDED.replace("FAR", "0").replace("FIRST", "").replace("BEFORE", f"{GPU}; s[5] = a[0]")
    text = text.replace("AFTER", GPU).replace("THEN", "c[0] = s[5];")
    a, c, flag = np.ones(64, np.float32), np.zeros(64, np.float32), np.zeros(1, np.uint32)
    assert kinds(run(text, a, c, flag, block=64, grid=2, cluster=2)) == {"RAW hazard"}
