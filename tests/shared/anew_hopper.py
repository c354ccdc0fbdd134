"""Kernels of Hopper's units, which add to `shared.anew_kernels.ANEW`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator import TensorMap
from shared.anew_kernels import ANEW, Anew, close

Made = tuple[list[Any], Callable[[], bool]]

PRELUDE = """
#define ASM(...) asm volatile(__VA_ARGS__ : "memory")
typedef unsigned long long Bar;
struct __align__(64) Map { char bytes[128]; };
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned far(unsigned p, int rank) { unsigned q; ASM("mapa.shared::cluster.u32 %0, %1, %2;"
    : "=r"(q) : "r"(p), "r"(rank)); return q; }
__device__ void init(Bar* b, int n) { ASM("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(b)), "r"(n)); }
__device__ void begun() { ASM("fence.mbarrier_init.release.cluster;" ::); }
__device__ void proxy() { ASM("fence.proxy.async;" ::); }
__device__ void expect(Bar* b, int n) { ASM("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
    ::"r"(at(b)), "r"(n)); }
__device__ void arrive(Bar* b) { ASM("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at(b))); }
__device__ void arriveFar(Bar* b, int rank) {
    ASM("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(far(at(b), rank))); }
__device__ void wait(Bar* b, int parity) {
  int done = 0;
  while (!done)
    ASM("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
        "selp.s32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(b)), "r"(parity));
}
__device__ void bulk(void* to, const void* from, int n, Bar* b) {
  ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(at(to)), "l"(from), "r"(n), "r"(at(b)));
}
__device__ void tile(void* to, const Map* map, int x, int y, Bar* b) {
  ASM("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(at(to)), "l"(map), "r"(x), "r"(y), "r"(at(b)));
}
__device__ int rankOf() { int r; ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(r) :); return r; }
__device__ void comes() { ASM("barrier.cluster.arrive.release.aligned;" ::); }
__device__ void all() { ASM("barrier.cluster.wait.acquire.aligned;" ::); }
"""


def matrix(array: np.ndarray, box: tuple[int, int], element: str = "FLOAT32", swizzle: int = 0) -> TensorMap:
    """Return the tensor map of a matrix."""
    rows, columns = array.shape
    return TensorMap(array=array, element=element, extents=(columns, rows), strides=array.strides[:1],
                     box=box, swizzle=swizzle)  # fmt: skip


def rows(rng: np.random.Generator) -> Made:
    x, out = rng.standard_normal((70, 44)).astype(np.float32), np.full(70, np.nan, np.float32)
    return [matrix(x, (16, 16)), out, np.int32(70), np.int32(44)], lambda: close(out, x.sum(1))


ANEW["TMA pipeline with a producer warp"] = Anew(
    make=rows,
    grid=2,
    block=96,
    hopper=True,
    source=PRELUDE
    + """
extern "C" __global__ void k(const __grid_constant__ Map map, float* out, int rows, int columns) {
  __shared__ __align__(128) float s[2][16][16];
  __shared__ Bar full[2], empty[2];
  int t = threadIdx.x, tiles = (rows + 15) / 16, steps = (columns + 15) / 16, n = 0;
  if (t == 0) {
    for (int i = 0; i < 2; i++) { init(full + i, 1); init(empty + i, 64); }
    begun();
  }
  __syncthreads();
  if (t >= 64) {
    if (t == 64)
      for (int j = blockIdx.x; j < tiles; j += gridDim.x)
        for (int step = 0; step < steps; step++, n++) {
          if (n > 1) wait(empty + n % 2, (n / 2 - 1) & 1);
          expect(full + n % 2, 1024);
          tile(s[n % 2], &map, step * 16, j * 16, full + n % 2);
        }
    return;
  }
  for (int j = blockIdx.x; j < tiles; j += gridDim.x) {
    float sum = 0;
    for (int step = 0; step < steps; step++, n++) {
      wait(full + n % 2, n / 2 & 1);
      for (int c = 0; c < 4; c++) sum += s[n % 2][t / 4][t % 4 * 4 + c];
      arrive(empty + n % 2);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t % 4 == 0 && j * 16 + t / 4 < rows) out[j * 16 + t / 4] = sum;
  }
}""",
    faults=(
        ("    begun();\n", ""),
        ("  __syncthreads();\n  if (t >= 64)", "  if (t >= 64)"),
        ("if (n > 1) wait(empty", "if (n > 2) wait(empty"),
        ("(n / 2 - 1) & 1", "n / 2 & 1"),
        ("          if (n > 1) wait(empty + n % 2, (n / 2 - 1) & 1);\n", ""),
        ("full + n % 2, 1024", "full + n % 2, 512"),
        ("full + n % 2, 1024", "full + n % 2, 2048"),
        ("j * 16, full + n % 2)", "j * 16, full)"),
        ("init(empty + i, 64)", "init(empty + i, 63)"),
        ("init(empty + i, 64)", "init(empty + i, 65)"),
        ("      wait(full + n % 2, n / 2 & 1);\n", ""),
        ("n / 2 & 1)", "n & 1)"),
        ("arrive(empty + n % 2)", "arrive(full + n % 2)"),
        (
            "      wait(full + n % 2, n / 2 & 1);\n",
            "      arrive(empty + n % 2);\n      wait(full + n % 2, n / 2 & 1);\n",
        ),
        ("tile(s[n % 2]", "tile(s[(n + 1) % 2]"),
        ("&& j * 16 + t / 4 < rows", ""),
        ("s[2][16][16]", "s[1][16][16]"),
        ("step * 16, j * 16", "j * 16, step * 16"),
        ("      arrive(empty + n % 2);\n", "      if (t < 32) arrive(empty + n % 2);\n"),
    ),
)


def shared_rows(rng: np.random.Generator) -> Made:
    x, out = rng.standard_normal((5, 256)).astype(np.float32), np.full((2, 256), np.nan, np.float32)
    return [x, out, np.int32(5)], lambda: close(out, x.sum(0) * np.array([[1], [2]]))


ANEW["cluster multicast"] = Anew(
    make=shared_rows,
    grid=2,
    block=128,
    hopper=True,
    source=PRELUDE
    + """
extern "C" __global__ __cluster_dims__(2, 1, 1) void k(const float* x, float* out, int steps) {
  __shared__ __align__(128) float s[2][256];
  __shared__ Bar full[2], empty[2];
  int t = threadIdx.x, rank = rankOf();
  if (t == 0) {
    for (int i = 0; i < 2; i++) { init(full + i, 1); init(empty + i, 8); }
    begun();
  }
  comes();
  all();
  auto load = [&](int n) {
    if (n > 1) wait(empty + n % 2, (n / 2 - 1) & 1);
    expect(full + n % 2, 1024);
    ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1], 512, [%2], %3;" ::"r"(
            at(s[n % 2] + rank * 128)), "l"(x + n * 256 + rank * 128), "r"(at(full + n % 2)), "h"((short)3));
  };
  if (t == 0) load(0);
  float a = 0, b = 0;
  for (int n = 0; n < steps; n++) {
    if (t == 0 && n + 1 < steps) load(n + 1);
    __syncwarp();
    wait(full + n % 2, n / 2 & 1);
    a += s[n % 2][t];
    b += s[n % 2][t + 128];
    __syncwarp(); // read
    if (t % 32 < 2) arriveFar(empty + n % 2, t % 32);
  }
  out[rank * 256 + t] = a * (rank + 1);
  out[rank * 256 + t + 128] = b * (rank + 1);
  comes();
  all();
}""",
    faults=(
        ("    begun();\n  }\n  comes();\n  all();\n", "    begun();\n  }\n  __syncthreads();\n"),
        ("(rank + 1);\n  comes();\n  all();\n", "(rank + 1);\n"),
        ("expect(full + n % 2, 1024)", "expect(full + n % 2, 512)"),
        ("if (n > 1) wait", "if (n > 2) wait"),
        ("(n / 2 - 1) & 1", "n / 2 & 1"),
        ('"h"((short)3)', '"h"((short)1)'),
        ("init(empty + i, 8)", "init(empty + i, 4)"),
        ("init(empty + i, 8)", "init(empty + i, 9)"),
        ("arriveFar(empty + n % 2, t % 32)", "arriveFar(empty + n % 2, rank)"),
        ("if (t % 32 < 2) arriveFar", "if (t % 32 < 1) arriveFar"),
        ("    wait(full + n % 2, n / 2 & 1);\n", ""),
        ("    __syncwarp(); // read\n", ""),
        ("s[n % 2] + rank * 128", "s[n % 2] + rank * 64"),
        ("    begun();\n", ""),
        ("[%1], 512,", "[%1], 1024,"),
        ("arriveFar(empty + n % 2", "arriveFar(full + n % 2"),
        ("expect(full + n % 2, 1024);", ""),
        ("  comes();\n  all();\n  auto", "  comes();\n  auto"),
    ),
)


def histogram(rng: np.random.Generator) -> Made:
    x, out = rng.integers(0, 128, 1001, dtype=np.int32), np.full(128, -1, np.int32)
    return [x, out, np.int32(1001)], lambda: np.array_equal(out, np.bincount(x, minlength=128))


ANEW["histogram in distributed shared memory"] = Anew(
    make=histogram,
    grid=4,
    block=64,
    hopper=True,
    source=PRELUDE
    + """
extern "C" __global__ __cluster_dims__(4, 1, 1) void k(const int* x, int* out, int n) {
  __shared__ int bins[32], own[32];
  int t = threadIdx.x, rank = rankOf();
  if (t < 32) bins[t] = 0;
  comes();
  int first = blockIdx.x * 64 + t, v = first < n ? x[first] : 0;
  all(); // cleared
  for (int i = first; i < n; i += 256) {
    if (i != first) v = x[i];
    ASM("red.relaxed.cluster.shared::cluster.add.s32 [%0], 1;" ::"r"(far(at(bins + v % 32), v / 32)));
  }
  comes();
  all(); // counted
  if (t < 32) own[t] = bins[t];
  comes();
  all(); // own
  if (t < 32) {
    int next;
    ASM("ld.shared::cluster.s32 %0, [%1];" : "=r"(next) : "r"(far(at(own + t), (rank + 1) % 4)));
    out[(rank + 1) % 4 * 32 + t] = next;
  }
  comes();
  all(); // last
}""",
    faults=(
        ("  all(); // cleared\n", "  all();\n  if (t == 63) bins[31] = 0;\n"),
        ("  comes();\n  int first", "  __syncthreads();\n  int first"),
        ("  comes();\n  all(); // counted\n", "  __syncthreads();\n"),
        ("  comes();\n  all(); // last\n", ""),
        ("red.relaxed.cluster.shared::cluster", "red.relaxed.cta.shared::cluster"),
        ("i < n; i += 256", "i <= n; i += 256"),
        ("if (t < 32) bins[t] = 0", "if (t < 31) bins[t] = 0"),
        ("v % 32), v / 32", "v % 32), v % 4"),
        ("at(bins + v % 32)", "at(bins + v % 33)"),
        ("(rank + 1) % 4)));", "rank + 1)));"),
        ("  comes();\n  all(); // own\n", "  __syncthreads();\n"),
        ("  comes();\n  all(); // own\n", "  comes();\n"),
        ("out[(rank + 1) % 4 * 32 + t]", "out[rank * 32 + t]"),
    ),
)


def halo(rng: np.random.Generator) -> Made:
    x, out = rng.standard_normal(256).astype(np.float32), np.full(256, np.nan, np.float32)
    y = x.astype(float)
    for _ in range(6):
        p = np.pad(y, 1)
        y = (p[:-2] + p[1:-1] + p[2:]) / 3
    return [x, out, np.int32(6)], lambda: close(out, y)


ANEW["halo by st.async"] = Anew(
    make=halo,
    grid=4,
    block=64,
    hopper=True,
    source=PRELUDE
    + """
extern "C" __global__ __cluster_dims__(4, 1, 1) void k(const float* x, float* out, int steps) {
  __shared__ float s[2][64], edge[2][2];
  __shared__ Bar bar[2];
  int t = threadIdx.x, rank = rankOf(), near = (rank > 0) + (rank < 3);
  if (t == 0) {
    init(bar, 1);
    init(bar + 1, 1);
    begun();
  }
  if (t < 4) edge[t / 2][t % 2] = 0;
  comes();
  all();
  float mine = x[rank * 64 + t];
  for (int n = 0; n < steps; n++) {
    int b = n & 1;
    s[b][t] = mine;
    if (t == 0) expect(bar + b, 4 * near);
    int side = t == 63, to = side ? rank + 1 : rank - 1;
    bool last = t == 0 || t == 63;
    if (last && to >= 0 && to < 4)
      ASM("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
          ::"r"(far(at(&edge[b][1 - side]), to)),
          "r"(__float_as_int(mine)), "r"(far(at(bar + b), to)));
    __syncthreads();
    if (last) wait(bar + b, n / 2 & 1);
    float l = t ? s[b][t - 1] : edge[b][0], r = t < 63 ? s[b][t + 1] : edge[b][1];
    mine = (l + mine + r) / 3;
  }
  out[rank * 64 + t] = mine;
  comes();
  all();
}""",
    faults=(
        ("  comes();\n  all();\n  float mine", "  __syncthreads();\n  float mine"),
        ("expect(bar + b, 4 * near)", "expect(bar + b, 8)"),
        ("expect(bar + b, 4 * near)", "expect(bar + b, 4)"),
        ("    if (last) wait(bar + b, n / 2 & 1);\n", ""),
        ("n / 2 & 1);", "n & 1);"),
        ("edge[b][1 - side]), to)", "edge[b][side]), to)"),
        ("at(&edge[b][1 - side])", "at(&edge[0][1 - side])"),
        ("far(at(bar + b), to)", "far(at(bar), to)"),
        ("far(at(bar + b), to)", "at(bar + b)"),
        ("to >= 0 && to < 4", "to < 4"),
        ("    __syncthreads();\n    if (last)", "    if (last)"),
        ("int b = n & 1", "int b = 0"),
        ("    if (t == 0) expect", "    if (t < 2) expect"),
        ("if (last) wait", "if (t == 0) wait"),
        ("s[2][64], edge[2][2]", "s[1][64], edge[2][2]"),
    ),
    same=(
        ("    begun();\n", ""),
        ("out[rank * 64 + t] = mine;\n  comes();\n  all();\n", "out[rank * 64 + t] = mine;\n"),
    ),
)
