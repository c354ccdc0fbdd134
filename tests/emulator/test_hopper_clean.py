"""Race-free kernels in the styles of others: numbers are right, and there is no finding and no notice."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator.executable import executable
from harness.kernels import catalog
from harness.kernels.compiler import compile_kernel
from shared.hopper_kernels import run

# Each kernel writes c[i] = 2 a[i] + i for 512 elements.
# Two stages; a warp in which one thread is elected fills them, and each thread of four warps releases.
ELECTED = """const float* a, float* c {
  __shared__ __align__(128) float s[2][128]; __shared__ u64 full[2], empty[2];
  const int t = threadIdx.x, warp = t / 32;
  if (t == 0) { for (int i = 0; i < 2; ++i) { init(full + i, 1); init(empty + i, 128); } fence_init(); }
  __syncthreads();
  if (warp == 4) {
    for (int i = 0; i < 4; ++i) {
      wait(empty + i % 2, i / 2 % 2 ^ 1);
      __syncwarp();
      if (t % 32 == 0) { expect(full + i % 2, 512); load(s[i % 2], a + 128 * i, 512, full + i % 2); }
    }
  } else {
    for (int i = 0; i < 4; ++i) {
      wait(full + i % 2, i / 2 % 2);
      c[128 * i + t] = 2 * s[i % 2][t] + 128 * i + t;
      arrive(empty + i % 2);
    }
  }
}"""
# A barrier of the block made of an mbarrier, by states, as cuda::barrier does it.
TOKENS = """const float* a, float* c {
  __shared__ float s[160]; __shared__ u64 all;
  const int t = threadIdx.x;
  if (t == 0) init(&all, 160);
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    if (t < 128) s[127 - t] = a[128 * i + t];
    for (int turn = 0; turn < 2; ++turn) {
      u64 state; unsigned done;
      asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(&all)) : "memory");
      if (turn == 0)
        do asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2;"
                        "  selp.u32 %0, 1, 0, p; }"
                        : "=r"(done) : "r"(at(&all)), "l"(state) : "memory"); while (!done);
      if (turn == 0 && t < 128) c[128 * i + 127 - t] = 2 * s[t] + 128 * i + 127 - t;
      if (turn == 1)
        do asm volatile("{ .reg .pred p; mbarrier.try_wait.shared::cta.b64 p, [%1], %2;"
                        "  selp.u32 %0, 1, 0, p; }"
                        : "=r"(done) : "r"(at(&all)), "l"(state) : "memory"); while (!done);
    }
  }
}"""
# Two groups of warps take turns with one box by named barriers; another warp stores it.
TURNS = """const float* a, float* c {
  __shared__ __align__(128) float s[64];
  const int t = threadIdx.x, group = t / 64;
  if (t < 128) {
    for (int i = group; i < 8; i += 2) {
      asm volatile("bar.sync %0, 96;" :: "r"(1 + group) : "memory");  // the box is free
      s[t % 64] = 2 * a[64 * i + t % 64] + 64 * i + t % 64;
      fence_async();
      asm volatile("bar.arrive %0, 96;" :: "r"(3 + group) : "memory");
    }
  } else {
    for (int i = 0; i < 8; ++i) {
      asm volatile("bar.arrive %0, 96;" :: "r"(1 + i % 2) : "memory");
      asm volatile("bar.sync %0, 96;" :: "r"(3 + i % 2) : "memory");
      if (t == 128) { store(c + 64 * i, s, 256); wait_read(); }
      __syncwarp();
    }
  }
}"""
# A block sends its part to the other one's shared memory, whose copy counts the bytes.
SENT = """const float* a, float* c {
  __shared__ __align__(128) float s[256], got[256]; __shared__ u64 full;
  const int t = threadIdx.x, mine = rank();
  if (t == 0) { init(&full, 1); fence_init(); expect(&full, 1024); }
  for (int i = t; i < 256; i += 160) s[i] = 2 * a[256 * mine + i] + 256 * mine + i;
  fence_async();
  cluster_sync();
  if (t == 0)
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], 1024, [%2];"
                 :: "r"(far(got, 1 - mine)), "r"(at(s)), "r"(far(&full, 1 - mine)) : "memory");
  wait(&full, 0);
  for (int i = t; i < 256; i += 160) c[256 * (1 - mine) + i] = got[i];
  cluster_sync();
}"""
# The sums of both blocks meet in one by atomics on distributed shared memory, and are read by loads there.
FAR = """const float* a, float* c {
  __shared__ float s[512];
  const int t = threadIdx.x;
  for (int i = t; i < 512; i += 160) s[i] = 0;
  cluster_sync();
  for (int i = t; i < 512; i += 160)
    asm volatile("red.relaxed.cluster.shared::cluster.add.f32 [%0], %1;"
                 :: "r"(far(s + i, i / 256)), "f"(a[i] + 0.5f * i) : "memory");
  cluster_sync();
  for (int i = t; i < 256; i += 160) {
    float v; const int at_ = 256 * rank() + i;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(far(s + at_, at_ / 256)) : "memory");
    c[at_] = v;
  }
  cluster_sync();
}"""
KERNELS = {"elected": ELECTED, "tokens": TOKENS, "turns": TURNS, "sent": SENT, "far": FAR}


@pytest.mark.parametrize("schedule", ["early", "late"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_clean_kernel_has_no_findings(name: str, schedule: str) -> None:
    a, c = np.random.default_rng(1).standard_normal(512, np.float32), np.zeros(512, np.float32)
    cluster = 2 if name in ("sent", "far") else 0
    found = run(KERNELS[name], a, c, block=160, grid=max(1, cluster), cluster=cluster, schedule=schedule)
    assert [str(f) for f in (*found.findings, *found.notices)] == []
    np.testing.assert_allclose(c, 2 * a + np.arange(512, dtype=np.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("schedule", "threads"), [("lockstep", 192), ("backward", 192), ("backward", 160)])
def test_who_arrives_and_ends_is_counted_once(schedule: str, threads: int) -> None:
    """Wait for two warps: one arrives at once, and ends; the other writes first.

    A barrier for one of them less does not wait for the write: the control.
    """
    body = f"""const float* a, float* c {{
      __shared__ float s[1];
      const int t = threadIdx.x;
      if (t < 128) {{
        asm volatile("barrier.cta.sync.aligned 5, {threads};" ::: "memory");
        for (int i = t; i < 512; i += 128) c[i] = 2 * a[i] + i + s[0];
        return;
      }}
      if (t == 128) {{ s[0] = 1; asm volatile("fence.proxy.async;" ::: "memory"); s[0] = 3; }}
      __syncwarp();
      asm volatile("barrier.cta.arrive.aligned 5, {threads};" ::: "memory");
    }}"""
    a, c = np.random.default_rng(1).standard_normal(512, np.float32), np.zeros(512, np.float32)
    found = run(body, a, c, block=192, schedule=schedule)
    clean = not found.findings and np.allclose(c, 2 * a + np.arange(512, dtype=np.float32) + 3)
    assert clean == (threads == 192)


@pytest.mark.slow
def test_griddepcontrol_alone_does_not_part_the_blocks() -> None:
    """Hundreds of blocks run side by side; with a unit that is asynchronous they would take their turns."""

    def parted(name: str) -> bool:
        variant = catalog.kernel(name).variant()
        ptx = compile_kernel(variant, "sm_90a").ptx
        assert "griddepcontrol.wait" in ptx
        return executable(ptx, variant.kernel.entry).asynchronous

    assert not parted("40_skinny_dots") and parted("23_wgmma_pipeline")
