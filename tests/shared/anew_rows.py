"""Kernels of rows, which add to `shared.anew_kernels.ANEW`: bitonic top-k and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shared.anew_kernels import ANEW, Anew, close


def topk(rng: np.random.Generator) -> tuple[list[Any], Callable[[], bool]]:
    x = rng.standard_normal((5, 101)).astype(np.float32)
    out = np.zeros((5, 10), np.float32)
    return [x, out, np.int32(101), np.int32(10)], lambda: np.array_equal(out, -np.sort(-x, axis=1)[:, :10])


ANEW["bitonic top-k"] = Anew(
    make=topk,
    grid=5,
    block=64,
    source="""
extern "C" __global__ void k(const float* x, float* out, int n, int top) {
  __shared__ float s[128];
  int t = threadIdx.x;
  for (int i = t; i < 128; i += blockDim.x) s[i] = i < n ? x[blockIdx.x * n + i] : -1e30f;
  for (int size = 2; size <= 128; size *= 2)
    for (int stride = size / 2; stride; stride /= 2) {
      __syncthreads(); // step
      int a = 2 * t - (t & (stride - 1)), b = a + stride;
      bool down = (a & size) == 0;
      float p = s[a], q = s[b];
      if ((p < q) == down) { s[a] = q; s[b] = p; }
    }
  __syncthreads(); // sorted
  if (t < top) out[blockIdx.x * top + t] = s[t];
}""",
    faults=(
        ("__syncthreads(); // step", ""),
        ("__syncthreads(); // step", "__syncwarp();"),
        ("__syncthreads(); // sorted", ""),
        ("__syncthreads(); // step", "if (stride > 16) __syncthreads();"),
        ("i < n ? x", "i <= n ? x"),
        ("i < n ? x[blockIdx.x * n + i] : -1e30f", "x[blockIdx.x * n + i]"),
        ("t < top", "t <= top"),
        ("stride = size / 2", "stride = size"),
        ("size <= 128", "size < 128"),
        ("i += blockDim.x", "i += 128"),
        ("(t & (stride - 1))", "(t & stride)"),
    ),
)


def attention(rng: np.random.Generator) -> tuple[list[Any], Callable[[], bool]]:
    q, key, v = (rng.standard_normal((m, 16)).astype(np.float32) for m in (10, 70, 70))
    out = np.full((10, 16), np.nan, np.float32)
    p = np.exp(q.astype(float) @ key.T)
    return [q, key, v, out, np.int32(10), np.int32(70)], lambda: close(out, p @ v / p.sum(1)[:, None])


ANEW["online softmax"] = Anew(
    make=attention,
    grid=3,
    block=128,
    source="""
extern "C" __global__ void k(const float* Q, const float* K, const float* V, float* O, int m, int n) {
  __shared__ float ks[32][17], vs[32][16], q[4][16];
  int t = threadIdx.x, lane = t & 31, w = t >> 5, row = blockIdx.x * 4 + w;
  if (lane < 16) q[w][lane] = row < m ? Q[row * 16 + lane] : 0.f;
  float top = -1e30f, sum = 0, acc = 0;
  for (int base = 0; base < n; base += 32) {
    for (int j = t; j < 512; j += 128) {
      int r = j / 16, c = j % 16;
      bool in = base + r < n;
      ks[r][c] = in ? K[(base + r) * 16 + c] : 0.f;
      vs[r][c] = in ? V[(base + r) * 16 + c] : 0.f;
    }
    __syncthreads(); // loaded
    float s = -1e30f;
    if (base + lane < n) {
      s = 0;
      for (int c = 0; c < 16; c++) s += q[w][c] * ks[lane][c];
    }
    float most = s;
    for (int d = 16; d; d >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    float now = fmaxf(top, most), scale = __expf(top - now), p = base + lane < n ? __expf(s - now) : 0.f;
    float total = p;
    for (int d = 16; d; d >>= 1) total += __shfl_xor_sync(~0u, total, d);
    sum = sum * scale + total;
    acc *= scale;
    for (int j = 0; j < 32; j++) {
      float pj = __shfl_sync(~0u, p, j);
      if (lane < 16) acc += pj * vs[j][lane];
    }
    top = now;
    __syncthreads(); // read
  }
  if (row < m && lane < 16) O[row * 16 + lane] = acc / sum;
}""",
    faults=(
        ("__syncthreads(); // loaded", ""),
        ("__syncthreads(); // read", ""),
        ("__syncthreads(); // loaded", "__syncwarp();"),
        ("base + r < n", "base + r <= n"),
        ("row < m && lane", "lane"),
        ("row < m ? Q[row * 16 + lane] : 0.f", "Q[row * 16 + lane]"),
        ("acc *= scale", ""),
        ("top = now;", ""),
        ("if (lane < 16) q[w]", "if (lane < 15) q[w]"),
        ("if (lane < 16) acc += pj", "acc += __shfl_sync(0xffffu, pj, 0)"),
        ("(row < m && lane < 16)", "(row < m)"),
        ("j < 32; j++", "j < 31; j++"),
    ),
    same=(("base + lane < n ? __expf", "base + lane <= n ? __expf"),),
)
