"""More kernels of CUDA cores and mma.sync, which add to `shared.anew_kernels.ANEW`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shared.anew_kernels import ANEW, Anew, close

Made = tuple[list[Any], Callable[[], bool]]


def compaction(rng: np.random.Generator) -> Made:
    x = rng.integers(-99, 99, 900, dtype=np.int32)
    out, count = np.zeros(900, np.int32), np.zeros(1, np.int32)
    wanted = np.sort(x[x > 0])
    return [
        x,
        out,
        count,
        np.int32(900),
    ], lambda: count[0] == wanted.size and np.array_equal(np.sort(out[: wanted.size]), wanted)


ANEW["stream compaction"] = Anew(
    make=compaction,
    grid=8,
    block=128,
    source="""
extern "C" __global__ void k(const int* x, int* out, int* count, int n) {
  __shared__ int sizes[4], base;
  int t = threadIdx.x, lane = t & 31, w = t >> 5, i = blockIdx.x * 128 + t;
  bool keep = i < n && x[i] > 0;
  unsigned votes = __ballot_sync(~0u, keep);
  if (lane == 0) sizes[w] = __popc(votes);
  __syncthreads(); // sizes
  int before = 0, total = 0;
  for (int j = 0; j < 4; j++) { if (j < w) before += sizes[j]; total += sizes[j]; }
  if (t == 0) base = atomicAdd(count, total);
  __syncthreads(); // base
  if (keep) out[base + before + __popc(votes & ((1u << lane) - 1))] = x[i];
}""",
    faults=(
        ("__syncthreads(); // sizes", ""),
        ("__syncthreads(); // base", ""),
        ("base = atomicAdd(count, total)", "base = *count, *count += total"),
        ("i < n && x[i]", "x[i]"),
        ("j < w) before", "j <= w) before"),
        ("__ballot_sync(~0u, keep)", "__ballot_sync(0x7fffffffu, keep)"),
        ("bool keep = i < n && x[i] > 0;", "if (i >= n) return;\n  bool keep = x[i] > 0;"),
        ("(1u << lane) - 1", "(1u << lane)"),
        ("if (t == 0) base", "if (lane == 0) base"),
    ),
)


def stencil(rng: np.random.Generator) -> Made:
    x = rng.standard_normal(500).astype(np.float32)
    out = np.full(500, np.nan, np.float32)
    y = x.astype(float)
    for _ in range(3):
        p = np.pad(y, 1)
        y = 0.25 * p[:-2] + 0.5 * p[1:-1] + 0.25 * p[2:]
    return [x, out, np.int32(500)], lambda: close(out, y)


ANEW["temporal blocking"] = Anew(
    make=stencil,
    grid=9,
    block=64,
    source="""
extern "C" __global__ void k(const float* in, float* out, int n) {
  const int STEPS = 3;
  __shared__ float s[2][66];
  int t = threadIdx.x, i = blockIdx.x * (64 - 2 * STEPS) + t - STEPS;
  bool inside = i >= 0 && i < n;
  s[0][t + 1] = inside ? in[i] : 0.f;
  if (t < 2) s[t][0] = s[t][65] = 0.f;
  __syncthreads(); // loaded
  for (int step = 0; step < STEPS; step++) {
    const float* a = s[step & 1];
    s[(step + 1) & 1][t + 1] = inside ? 0.25f * a[t] + 0.5f * a[t + 1] + 0.25f * a[t + 2] : 0.f;
    __syncthreads(); // step
  }
  if (inside && t >= STEPS && t < 64 - STEPS) out[i] = s[STEPS & 1][t + 1];
}""",
    faults=(
        ("__syncthreads(); // loaded", ""),
        ("__syncthreads(); // step", ""),
        ("s[(step + 1) & 1]", "s[0]"),
        ("i >= 0 && i < n", "i < n"),
        ("i >= 0 && i < n", "i >= 0 && i <= n"),
        ("if (t < 2) s[t][0]", "if (t < 1) s[t][0]"),
        ("t >= STEPS && t", "t >= STEPS - 1 && t"),
        ("t < 64 - STEPS)", "t <= 64 - STEPS)"),
        ("s[STEPS & 1]", "s[0]"),
        ("__syncthreads(); // step", "if (inside) __syncthreads();"),
        ("(64 - 2 * STEPS)", "(64 - STEPS)"),
    ),
)


def spmv(rng: np.random.Generator) -> Made:
    dense = rng.standard_normal((101, 90)) * (rng.random((101, 90)) < 0.2)
    start = np.concatenate([[0], np.cumsum((dense != 0).sum(1))]).astype(np.int32)
    column, value = np.nonzero(dense)[1].astype(np.int32), dense[dense != 0].astype(np.float32)
    x, y = rng.standard_normal(90).astype(np.float32), np.full(101, np.nan, np.float32)
    return [start, column, value, x, y, np.int32(101)], lambda: close(y, dense @ x)


ANEW["CSR vector"] = Anew(
    make=spmv,
    grid=7,
    block=128,
    source="""
extern "C" __global__ void k(const int* start, const int* column, const float* value, const float* x,
    float* y,
                             int rows) {
  int lane = threadIdx.x & 7, row = (blockIdx.x * 128 + threadIdx.x) / 8;
  if (row >= rows) return;
  unsigned mask = 0xffu << (threadIdx.x & 24);
  float sum = 0;
  for (int j = start[row] + lane; j < start[row + 1]; j += 8) sum += value[j] * x[column[j]];
  for (int d = 4; d; d /= 2) sum += __shfl_down_sync(mask, sum, d, 8);
  if (lane == 0) y[row] = sum;
}""",
    faults=(
        ("row >= rows", "row > rows"),
        ("0xffu << (threadIdx.x & 24)", "0xffu"),
        ("0xffu << (threadIdx.x & 24)", "0xfu << (threadIdx.x & 24)"),
        ("j < start[row + 1]", "j <= start[row + 1]"),
        ("d = 4; d", "d = 4; d > 1"),
        ("if (lane == 0) y", "y"),
        ("j += 8", "j += 4"),
        ("x[column[j]]", "x[j]"),
        ("sum, d, 8)", "sum, d, 4)"),
    ),
    same=(("0xffu << (threadIdx.x & 24)", "~0u"),),
)


def gemm(rng: np.random.Generator) -> Made:
    m, n, depth = 37, 29, 70
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, depth), (depth, n)))
    c = np.full((m, n), np.nan, np.float32)
    return [a, b, c, np.int32(m), np.int32(n), np.int32(depth)], lambda: close(c, a.astype(float) @ b)


ANEW["cp.async stages"] = Anew(
    make=gemm,
    grid=6,
    block=256,
    source="""
__device__ void copy(float* to, const float* from, bool in) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
      ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
               "r"(in ? 4 : 0) : "memory");
}
extern "C" __global__ void k(const float* A, const float* B, float* C, int m, int n, int depth) {
  __shared__ float as[3][16][16], bs[3][16][16];
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16, across = (n + 15) / 16;
  int row = blockIdx.x / across * 16 + ty, col = blockIdx.x % across * 16 + tx, steps = (depth + 15) / 16;
  auto load = [&](int step) {
    if (step < steps) {
      int s = step % 3, ka = step * 16 + tx, kb = step * 16 + ty;
      bool inA = row < m && ka < depth, inB = col < n && kb < depth;
      copy(&as[s][ty][tx], inA ? A + row * depth + ka : A, inA);
      copy(&bs[s][ty][tx], inB ? B + kb * n + col : B, inB);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  load(0);
  load(1);
  float sum = 0;
  for (int step = 0; step < steps; step++) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    load(step + 2);
    for (int q = 0; q < 16; q++) sum += as[step % 3][ty][q] * bs[step % 3][q][tx];
  }
  if (row < m && col < n) C[row * n + col] = sum;
}""",
    faults=(
        ("wait_group 1;", "wait_group 2;"),
        ('    asm volatile("cp.async.wait_group 1;" ::: "memory");\n', ""),
        ("    __syncthreads();\n", ""),
        ('1;" ::: "memory");\n    __syncthreads();\n', '1;" ::: "memory");\n'),
        (
            '    asm volatile("cp.async.wait_group 1;" ::: "memory");\n    __syncthreads();\n',
            '    __syncthreads();\n    asm volatile("cp.async.wait_group 1;" ::: "memory");\n',
        ),
        ("    __syncthreads();\n    load(step + 2);\n", "    load(step + 2);\n    __syncthreads();\n"),
        ("int s = step % 3", "int s = step % 2"),
        ('    asm volatile("cp.async.commit_group;" ::: "memory");\n', ""),
        ("load(step + 2)", "load(step + 1)"),
        ("bool inA = row < m && ka < depth", "bool inA = ka < depth"),
        ("inB = col < n && kb < depth", "inB = col < n && kb <= depth"),
        ('"r"(in ? 4 : 0)', '"r"(4)'),
        ("row < m && col < n)", "row < m)"),
        ("steps = (depth + 15) / 16", "steps = depth / 16"),
    ),
    same=(("    if (step < steps) {", "    {"),),
)


def split(rng: np.random.Generator) -> Made:
    m, n, depth = 29, 22, 100
    a, b = (
        rng.standard_normal((m, depth)).astype(np.float16),
        rng.standard_normal((n, depth)).astype(np.float16),
    )
    c = np.full((m, n), np.nan, np.float32)
    args = [a, b, c, np.zeros(6, np.int32), np.int32(m), np.int32(n), np.int32(depth)]
    return args, lambda: close(c, a.astype(float) @ b.T.astype(float))


ANEW["split-k by semaphores"] = Anew(
    make=split,
    grid=18,
    block=32,
    source="""
extern "C" __global__ void k(const unsigned short* A, const unsigned short* B, float* C, int* turn, int m,
    int n,
                             int depth) {
  __shared__ __align__(16) unsigned short as[16][24], bs[8][24];
  const int SPLIT = 3;
  int lane = threadIdx.x, tile = blockIdx.x / SPLIT, part = blockIdx.x % SPLIT, across = (n + 7) / 8;
  int row = tile / across * 16, col = tile % across * 8, steps = (depth + 15) / 16;
  float c[4] = {};
  for (int step = part; step < steps; step += SPLIT) {
    for (int j = lane; j < 256; j += 32) {
      int r = j / 16, q = step * 16 + j % 16;
      as[r][j % 16] = row + r < m && q < depth ? A[(row + r) * depth + q] : 0;
      if (r < 8) bs[r][j % 16] = col + r < n && q < depth ? B[(col + r) * depth + q] : 0;
    }
    __syncwarp(); // stored
    unsigned a[4], b[2], at = __cvta_generic_to_shared(&as[lane % 16][lane / 16 * 8]);
    unsigned bt = __cvta_generic_to_shared(&bs[lane % 8][lane / 8 % 2 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(at) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1])
        : "r"(bt) : "memory");
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    __syncwarp(); // read
  }
  if (lane == 0) {
    int now;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn + tile) : "memory");
    while (now != part);
  }
  __syncwarp(); // turn
  for (int i = 0; i < 4; i++) {
    int r = row + lane / 4 + i / 2 * 8, q = col + lane % 4 * 2 + i % 2;
    if (r < m && q < n) C[r * n + q] = part ? C[r * n + q] + c[i] : c[i];
  }
  __syncwarp(); // added
  if (lane == 0)
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn + tile),
        "r"(part + 1 == SPLIT ? 0 : part + 1) : "memory");
}""",
    faults=(
        ("__syncwarp(); // stored", ""),
        ("__syncwarp(); // read", ""),
        ("__syncwarp(); // turn", ""),
        ("__syncwarp(); // added", ""),
        ("ld.acquire.gpu", "ld.relaxed.gpu"),
        ("st.release.gpu", "st.relaxed.gpu"),
        ("st.release.gpu", "st.release.cta"),
        ("ld.acquire.gpu", "ld.acquire.cta"),
        ("while (now != part)", "while (now < part - 1)"),
        ("row + r < m && q", "q"),
        ("q < depth ? B", "q <= depth ? B"),
        ("if (r < m && q < n) C", "if (r < m) C"),
        ("lane / 16 * 8]", "lane / 16 * 4]"),
        ("lane % 16][", "lane % 8]["),
        ("part + 1 == SPLIT ? 0 : part + 1", "part + 2"),
        ("if (r < 8) bs", "bs"),
        ("part ? C[r", "part > 1 ? C[r"),
    ),
)


def jacobi(rng: np.random.Generator) -> Made:
    a, b = rng.standard_normal(300).astype(np.float32), np.zeros(300, np.float32)
    y = a.astype(float)
    for _ in range(4):
        y[1:-1] = (y[:-2] + y[2:]) / 2
    b[[0, -1]] = a[[0, -1]]
    return [a, b, np.zeros(2, np.int32), np.int32(300)], lambda: close(a, y)


ANEW["grid-wide Jacobi"] = Anew(
    make=jacobi,
    grid=5,
    block=64,
    source="""
__device__ void everyone(int* bar) {
  __syncthreads(); // before
  if (threadIdx.x == 0) {
    volatile int* gen = bar + 1;
    int mine = *gen;
    __threadfence(); // release
    if (atomicAdd(bar, 1) == gridDim.x - 1) {
      *bar = 0;
      __threadfence(); // opened
      *gen = mine + 1;
    } else
      while (*gen == mine);
    __threadfence(); // acquire
  }
  __syncthreads(); // behind
}
extern "C" __global__ void k(float* a, float* b, int* bar, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  for (int step = 0; step < 4; step++) {
    float *from = step & 1 ? b : a, *to = step & 1 ? a : b;
    if (i > 0 && i < n - 1) to[i] = (from[i - 1] + from[i + 1]) / 2;
    everyone(bar);
  }
}""",
    faults=(
        ("__syncthreads(); // before", ""),
        ("__syncthreads(); // behind", ""),
        ("__threadfence(); // release", ""),
        ("__threadfence(); // release", "__threadfence_block();"),
        ("__threadfence(); // opened", ""),
        ("gridDim.x - 1)", "gridDim.x - 2)"),
        ("gridDim.x - 1)", "gridDim.x)"),
        ("i < n - 1)", "i < n)"),
        ("i > 0 &&", ""),
        ("step & 1 ? a : b", "a"),
        ("      *bar = 0;\n", ""),
        ("atomicAdd(bar, 1)", "(*bar)++"),
        ("*gen = mine + 1", "*gen = mine"),
        (
            "      *bar = 0;\n      __threadfence(); // opened\n      *gen = mine + 1;\n",
            "      *gen = mine + 1;\n      __threadfence();\n      *bar = 0;\n",
        ),
        ("    everyone(bar);", "    if (i < n) everyone(bar);"),
    ),
    same=(("__threadfence(); // acquire", ""),),
)
