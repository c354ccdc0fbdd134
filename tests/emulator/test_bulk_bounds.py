"""Bounds and alignment of what ``st.async``, copies between shared memories and prefetches touch."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import TensorMap
from shared.hopper_kernels import kinds, run

# Each block stores one word to place AT of an array of the other one, behind which another array follows.
STORE = """int* out {
  __shared__ alignas(16) int s[32], after[32]; __shared__ alignas(8) u64 full;
  const int t = threadIdx.x, r = rank();
  if (t < 32) after[t] = 0;
  if (t == 0) { init(&full, 1); fence_init(); expect(&full, 4); }
  cluster_sync();
  if (t == 0)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
      :: "r"(far(s, r ^ 1) + 4 * AT), "r"(7), "r"(far(&full, r ^ 1)) : "memory");
  cluster_sync();
  wait(&full, 0);
  if (t == 0) out[r] = s[AT < 32 ? AT : 0] + after[0];
  cluster_sync();
}"""
# A copy from dynamic shared memory of 256 bytes, from byte FROM on, to the other block.
COPY = """float* out {
  extern __shared__ __align__(128) float s[];
  __shared__ alignas(128) float got[32]; __shared__ alignas(8) u64 full;
  const int t = threadIdx.x, r = rank();
  s[t] = t;
  if (t == 0) { init(&full, 1); fence_init(); expect(&full, 128); }
  fence_async();
  cluster_sync();
  if (t == 0)
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[%0], [%1], 128, [%2];"
      :: "r"(far(got, r ^ 1)), "r"(at(s) + FROM), "r"(far(&full, r ^ 1)) : "memory");
  wait(&full, 0);
  if (t < 32) out[32 * r + t] = got[t];
  cluster_sync();
}"""
BOX = """const __grid_constant__ Map in, int x {
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
                 :: "l"(&in), "r"(x), "r"(0) : "memory");
}"""
BYTES = """const float* x {
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(x + FROM), "r"(COUNT) : "memory");
}"""


@pytest.mark.parametrize(("at", "wanted"), [(0, set()), (31, set()), (32, {"out of bounds"})])
def test_a_far_store_stays_in_its_array(at: int, wanted: set[str]) -> None:
    out = np.zeros(2, np.int32)
    found = run(STORE.replace("AT", str(at)), out, block=64, grid=2, cluster=2)
    assert kinds(found) - ({"uninitialised read"} if wanted else set()) == wanted
    assert wanted or out.tolist() == [7, 7]


def test_of_many_lanes_that_store_far_one_may_leave_the_array() -> None:
    """The others' words arrive, and so do the bytes that are waited for."""
    out = np.zeros(2, np.int32)
    lanes = STORE.replace("if (t == 0)\n", "if (t < 32)\n").replace("expect(&full, 4)", "expect(&full, 128)")
    found = run(
        lanes.replace("4 * AT", "4 * (t + 1)").replace("AT < 32 ? AT : 0", "31"),
        out,
        block=64,
        grid=2,
        cluster=2,
    )
    assert kinds(found) == {"out of bounds"} and out.tolist() == [14, 14]


@pytest.mark.parametrize(("begin", "wanted"), [(128, set()), (144, {"out of bounds"}), (8, {"TMA misuse"})])
def test_the_source_of_a_copy_between_blocks(begin: int, wanted: set[str]) -> None:
    out = np.zeros(64, np.float32)
    body = COPY.replace("FROM", str(begin))
    if wanted:
        body = body.replace("wait(&full, 0);", "").replace("got[t]", "0")
    found = run(body, out, block=64, grid=2, cluster=2, shared=256)
    assert kinds(found) == wanted
    assert wanted or np.array_equal(out, np.tile(np.arange(32, 64), 2))


def test_the_source_of_a_copy_between_blocks_is_the_own_block() -> None:
    body = (
        COPY.replace("at(s) + FROM", "far(s, r ^ 1) + 128")
        .replace("wait(&full, 0);", "")
        .replace("got[t]", "0")
    )
    assert kinds(run(body, np.zeros(64, np.float32), block=64, grid=2, cluster=2, shared=256)) == {
        "TMA misuse"
    }


@pytest.mark.parametrize(("x", "wanted"), [(4, set()), (-4, set()), (5, {"TMA misuse"})])
def test_where_the_box_of_a_prefetch_begins(x: int, wanted: set[str]) -> None:
    array = np.zeros((4, 16), np.float32)
    map_ = TensorMap(array=array, element="FLOAT32", extents=(16, 4), strides=(64,), box=(8, 4))
    assert kinds(run(BOX, map_, np.int32(x), block=32)) == wanted


@pytest.mark.parametrize(
    ("begin", "count", "wanted"), [(4, 64, set()), (1, 64, {"TMA misuse"}), (0, 8, {"TMA misuse"})]
)
def test_prefetched_bytes_are_multiples_of_16(begin: int, count: int, wanted: set[str]) -> None:
    body = BYTES.replace("FROM", str(begin)).replace("COUNT", str(count))
    assert kinds(run(body, np.zeros(64, np.float32), block=32)) == wanted
