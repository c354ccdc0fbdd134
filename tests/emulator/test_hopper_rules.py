"""Rules of clusters, setmaxnreg and stores, each with a kernel that keeps them and one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.emulator import Emulation, emulate
from harness.errors import EmulatorError
from shared.emulator_kernels import compile_ptx
from shared.hopper_kernels import PRELUDE, kinds, run

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


# Block 0 copies from its shared memory to that of block 1, and ends after the cluster's barrier.
LEAVING = """int* c {
  __shared__ __align__(128) int s[256], got[256]; __shared__ u64 full;
  const int t = threadIdx.x;
  if (t == 0) { init(&full, 1); fence_init(); if (rank() == 1) expect(&full, 1024); }
  for (int i = t; i < 256; i += 288) s[i] = i;
  fence_async();
  cluster_sync();
  if (rank() == 0 && t == 0)
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], 1024, [%2];" :: "r"(far(got, 1)), "r"(at(s)), "r"(far(&full, 1)) : "memory");
  BEFORE
  asm volatile("barrier.cluster.arrive.ORDER.aligned;" ::: "memory");
  AFTER
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (rank() == 1) for (int i = t; i < 256; i += 288) c[i] = got[i];
}"""
SEEN = "if (rank() == 1) wait(&full, 0);"


@pytest.mark.parametrize("order", ["release", "relaxed"])
@pytest.mark.parametrize(("before", "after", "wanted"), [
    (SEEN, "", set()),
    ("", SEEN, {"block has left"}),  # the barrier tells nobody what is seen after the arrival
    ("", f"{SEEN} if (rank() == 1) return;", {"block has left"}),  # nor is the end of who arrived waited for
    (f"{SEEN} if (rank() == 1) return;", "", set()),  # but that of who did not arrive
])  # fmt: skip
def test_the_cluster_barrier_tells_of_copies_seen_before_the_arrival(
    before: str, after: str, wanted: set[str], order: str
) -> None:
    text = LEAVING.replace("BEFORE", before).replace("AFTER", after).replace("ORDER", order)
    # Of three warpgroups one may arrive after another's copy has been waited for.
    schedules = [("early", 0), ("late", 0), *(("random", seed) for seed in range(1, 9))]
    found = {
        (schedule, seed): kinds(
            run(text, np.zeros(256, np.int32), block=288, grid=2, cluster=2, schedule=schedule, seed=seed)
        )
        for schedule, seed in schedules
    }
    assert found == dict.fromkeys(schedules, wanted)


UNFENCED = """extern "C" __global__ void k(const float* a, float* c) {
  __shared__ __align__(16) float s[64]; __shared__ u64 full;
  if (threadIdx.x == 0) { init(&full, 1); expect(&full, 256); load(s, a, 256, &full); }
  __syncthreads();
  wait(&full, 0);
  c[threadIdx.x] = s[threadIdx.x];
}"""


@pytest.mark.parametrize(("folder", "notice"), [("cuda/__memcpy_async", True), ("my__memcpy_async", False)])
def test_only_cuda_memcpy_async_may_do_without_the_fence(tmp_path: Path, folder: str, notice: bool) -> None:
    header = tmp_path / folder / "copy.cuh"
    header.parent.mkdir(parents=True)
    header.write_text(
        PRELUDE[PRELUDE.index("__device__ void load(") : PRELUDE.index("__device__ void store(")]
    )
    source = f'{PRELUDE.replace(header.read_text(), "")}\n#include "{folder}/copy.cuh"\n{UNFENCED}'
    ptx = compile_ptx(source, "compute_90a", f"--include-path={tmp_path}")
    arguments = [np.zeros(64, np.float32), np.zeros(64, np.float32)]
    found = emulate(ptx, "k", grid=(1,), block=(64,), arguments=arguments)
    fence = {"missing proxy fence"}
    assert (kinds(found), {f.kind for f in found.notices}) == ((set(), fence) if notice else (fence, set()))


# Two copies to shared memory that end in one phase of an mbarrier: nothing says which is the last.
OVERLAID = """const float* x, float* o { __shared__ __align__(128) float s[64]; __shared__ u64 bar;
  int t = threadIdx.x; s[t] = s[t + 32] = 0;
  if (t == 0) { init(&bar, 1); fence_init(); }
  fence_async(); __syncthreads();
  if (t == 0) { expect(&bar, BYTES); FIRST }
  BETWEEN
  if (t == 0) { SECOND }
  wait(&bar, PHASE);
  o[t] = s[t]; }"""
APART = "wait(&bar, 0); __syncthreads(); if (t == 0) expect(&bar, 128);"
COPY = "load(s + %d, x, 128, &bar);"
ADD = """asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"
  " [%0], [%1], 128, [%2];" :: "r"(at(s)), "r"(at(s + 32)), "r"(at(&bar)) : "memory");"""


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (COPY % 0, COPY % 32, set()),
        (COPY % 0, COPY % 28, {"WAW hazard"}),
        (COPY % 0, COPY % 0, {"WAW hazard"}),
        (ADD, ADD, set()),  # sums of whole numbers do not depend on the order
        (COPY % 0, ADD, {"WAW hazard"}),
        (COPY % 32, ADD, {"RAW hazard"}),
    ],
    ids=["apart", "16 bytes", "all", "sums", "a sum onto a copy", "a sum of a copy"],
)
@pytest.mark.parametrize("schedule", ["lockstep", "random"])
def test_copies_that_end_together(first: str, second: str, found: set[str], schedule: str) -> None:
    def of(between: str, size: int, phase: int) -> set[str]:
        body = OVERLAID.replace("FIRST", first).replace("SECOND", second).replace("BETWEEN", between)
        body = body.replace("BYTES", str(size)).replace("PHASE", str(phase))
        return kinds(
            run(body, np.ones(32, np.float32), np.zeros(32, np.float32), block=32, schedule=schedule)
        )

    assert of("", 256, 0) == found
    assert of(APART, 128, 1) == set()  # one after the other
