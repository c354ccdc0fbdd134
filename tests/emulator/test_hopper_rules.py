"""Rules of clusters, setmaxnreg and stores, each with a kernel that keeps them and one that does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator import Emulation, emulate
from harness.errors import EmulatorError
from shared.emulator_kernels import compile_ptx
from shared.hopper_kernels import PRELUDE, kinds, run

SCHEDULES = ("lockstep", "warp-serial", "backward", "early", "late")

REGISTERS = """
extern "C" __global__ void BOUNDS k(int* c) {
  if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 LESS;");
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 MORE;");
  c[threadIdx.x] = 1;
}"""


def given_registers(bounds: str, less: int, more: int, threads: int) -> Emulation:
    source = REGISTERS.replace("BOUNDS", bounds).replace("LESS", str(less)).replace("MORE", str(more))
    ptx = compile_ptx(source, "compute_90a")
    return emulate(ptx, "k", grid=(1,), block=(threads,), arguments=[np.zeros(512, np.int32)])


@pytest.mark.parametrize(
    ("bounds", "less", "more", "threads", "wanted"),
    [  # a thread begins with what `ptxas -v` says for these bounds
        ("__launch_bounds__(256, 1)", 24, 240, 256, set()),  # 240
        ("__launch_bounds__(256, 1)", 24, 208, 256, set()),  # 208
        ("__launch_bounds__(384, 1)", 40, 232, 384, set()),  # 168
        ("__launch_bounds__(384, 1)", 40, 240, 384, {"deadlock"}),
        ("__launch_bounds__(384, 1)", 176, 232, 384, {"setmaxnreg misuse", "deadlock"}),
        ("__maxnreg__(128)", 24, 232, 256, set()),
        ("__maxnreg__(128)", 32, 240, 256, {"deadlock"}),
        ("__maxnreg__(128)", 24, 120, 256, {"setmaxnreg misuse"}),
    ],
)
def test_threads_begin_with_the_registers_that_ptxas_gives_them(
    bounds: str, less: int, more: int, threads: int, wanted: set[str]
) -> None:
    found = given_registers(bounds, less, more, threads)
    assert kinds(found) == wanted and not found.notices


def test_setmaxnreg_without_effect_is_a_notice() -> None:
    found = given_registers("__launch_bounds__(384)", 40, 240, 384)
    assert not found.findings and {f.kind for f in found.notices} == {"setmaxnreg misuse"}
    assert "__launch_bounds__(384, 1)" in found.notices[0].message


SPACES = """unsigned* c {
  __shared__ int s[4];
  u64 own = (u64)&s[1], other;
  unsigned to, of = 0;
  s[threadIdx.x % 4] = 0;
  asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(own), "r"(rank() ^ 1));
  asm("{ .reg .u64 x; cvta.to.shared::cluster.u64 x, %1; cvt.u32.u64 %0, x; }" : "=r"(to) : "l"(other));
  const u64 addresses[4] = {own, other, (u64)c, (u64)&own};
  for (int i = 0; i < 4; ++i) {
    asm("{ .reg .pred p; isspacep.shared p, %1; @p or.b32 %0, %0, 1; isspacep.shared::cta p, %1;"
        " @p or.b32 %0, %0, 2; isspacep.shared::cluster p, %1; @p or.b32 %0, %0, 4; }"
        : "+r"(of) : "l"(addresses[i]));
    of <<= 3;
  }
  if (threadIdx.x == 0) { c[2 * rank()] = of >> 3; c[2 * rank() + 1] = to == far(s + 1, rank() ^ 1); }
  cluster_sync();
}"""


def test_addresses_of_another_block_are_in_the_cluster_and_not_in_the_block() -> None:
    c = np.zeros(4, np.uint32)
    assert kinds(run(SPACES, c, block=4, grid=2, cluster=2)) == set()
    assert c.tolist() == [0o7400, 1] * 2


ALIKE = """int* c {
  __shared__ int s[2]; __shared__ u64 unused;
  if (threadIdx.x == 0) init(&unused, 1);
  s[1] = WHAT;
  __syncthreads();
  c[threadIdx.x] = s[1];
}"""


def test_stores_of_the_same_value_are_notices() -> None:
    c = np.zeros(64, np.int32)
    alike, other = (run(ALIKE.replace("WHAT", what), c, block=64) for what in ("c[0]", "threadIdx.x"))
    assert (kinds(alike), {f.kind for f in alike.notices}) == (set(), {"WAW hazard"})
    assert "the same value" in alike.notices[0].message
    assert kinds(other) == {"WAW hazard"}


BOUNDS = """int* c {
  extern __shared__ int s[];
  s[threadIdx.x] = 1;
  cluster_sync();
  int sum, *p = (int*)0;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(sum) : "r"(far(s, 1) + 4 * INDEX) : "memory");
  c[threadIdx.x] = sum;
  cluster_sync();
}"""


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(("shared", "index", "wanted"), [
    (128, "threadIdx.x", set()),
    (124, "threadIdx.x", {"out of bounds"}),  # the store, too
    (128, "(threadIdx.x + 1)", {"out of bounds"}),
])  # fmt: skip
def test_shared_memory_of_a_block_of_a_cluster_ends(
    cluster: int, shared: int, index: str, wanted: set[str]
) -> None:
    text = BOUNDS.replace("INDEX", index).replace("far(s, 1)", f"far(s, {cluster - 1})")
    found = run(text, np.zeros(32, np.int32), block=32, grid=cluster, cluster=cluster, shared=shared)
    assert kinds(found) == wanted
    assert all(f"offset {shared} of s" in f.message for f in found.findings)


PUSHED = """int* c {
  __shared__ __align__(16) int s[4]; __shared__ u64 full;
  s[threadIdx.x % 4] = rank();
  if (threadIdx.x == 0 && rank() == 1) { init(&full, 1); fence_init(); expect(&full, 16); }
  fence_async();
  cluster_sync();
  if (rank() == 0 && threadIdx.x == 0)
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 16,"
                 " [%2];" :: "r"(far(s, 1)), "r"(at(s)), "r"(far(&full, 1)) : "memory");
  if (rank() == 1) { BEFORE }
  if (rank() == 0) for (int i = 0; i < threadIdx.x >> 5 << 3; ++i) c[2 + threadIdx.x] += 1;  // arrives late
  asm volatile("barrier.cluster.arrive.HOW;" ::: "memory");
  if (rank() == 1) { BEHIND }
  asm volatile("barrier.cluster.wait;" ::: "memory");
  c[blockIdx.x] = s[0];
}"""


@pytest.mark.parametrize("how", ["release", "relaxed"])
@pytest.mark.parametrize(
    "order", [*((s, 1) for s in SCHEDULES), *(("random", seed) for seed in range(1, 11))]
)
def test_what_a_thread_sees_behind_its_arrival_keeps_no_block(order: tuple[str, int], how: str) -> None:
    """Block 0 passes when all have arrived: then block 1 must have seen the end of the copy."""
    (schedule, seed), wait = order, "wait(&full, 0);"
    for before, behind, wanted in ((wait, "", set()), ("", wait, {"block has left"})):
        text = PUSHED.replace("BEFORE", before).replace("BEHIND", behind).replace("HOW", how)
        options = {"block": 256, "grid": 2, "cluster": 2, "schedule": schedule, "seed": seed}
        assert kinds(run(text, np.zeros(258, np.int32), **options)) == wanted


RANKS = 'unsigned r; asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r)); if (!threadIdx.x) c[blockIdx.x] = r;'


def launched(body: str, **options: Any) -> tuple[Emulation, list[int]]:
    """Run a kernel of 4 blocks that says nothing of clusters; return also what it has written."""
    ptx = compile_ptx(f'{PRELUDE} extern "C" __global__ void k(int* c) {{ {body} }}', "compute_90a")
    c = np.zeros(4, np.int32)
    return emulate(ptx, "k", grid=(4,), block=(32,), arguments=[c], **options), c.tolist()


def test_a_launch_may_have_clusters() -> None:
    assert launched(f"{RANKS} cluster_sync();", cluster=(2,))[1] == [2] * 4
    assert launched(f"{RANKS} cluster_sync();")[1] == [1] * 4
    with pytest.raises(EmulatorError, match="multiple"):
        launched(f"{RANKS} cluster_sync();", cluster=(3,))


def test_a_rank_without_a_cluster_says_what_is_missing() -> None:
    body = "__shared__ int s; c[blockIdx.x] = far(&s, 1); cluster_sync();"
    assert not launched(body, cluster=(2,))[0].findings
    (found,) = launched(body)[0].findings
    assert found.kind == "mapa misuse" and "__cluster_dims__" in found.message


def test_bytes_that_nobody_expects_are_counted() -> None:
    body = """const float* a, float* c {
      __shared__ __align__(16) float s[64]; __shared__ u64 full;
      if (threadIdx.x == 0) { init(&full, 1); fence_init(); expect(&full, 128); load(s, a, 256, &full); }
      __syncthreads();
      wait(&full, 0);
    }"""
    found = run(body, np.zeros(64, np.float32), np.zeros(1, np.float32))
    said = {f.kind: f.message for f in found.findings}
    assert "mbarrier at byte 0 of full" in said["deadlock"] and "128 bytes too many" in said["deadlock"]
