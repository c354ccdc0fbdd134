"""Sizes that change alone: rows of warps, images of vectors, and the vectors among a kernel's operands."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.checking import check

SOFTMAX = """
#define WARPS 4
__device__ float most(float v) {
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}
__global__ void __launch_bounds__(WARPS * 32) softmax(const float* x, float* y, int rows, int cols) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.x * WARPS + warp;
  if (row >= rows) return;
  float m = -1e30f;
  for (int c = lane; c < cols; c += 32) m = fmaxf(m, x[row * cols + c]);
  m = most(m);
  for (int c = lane; c < cols; c += 32) y[row * cols + c] = x[row * cols + c] - m;
}
"""
SPARSE = """
__global__ void spmv(int rows, const int* at, const int* col, const float* v, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / 32, lane = i % 32;
  if (row < rows) {
    float sum = 0;
    for (int j = at[row] + lane; j < at[row + 1]; j += 32) sum += v[j] * x[col[j]];
    for (int o = 16; o > 0; o /= 2) sum += __shfl_down_sync(0xffffffff, sum, o);
    if (lane == 0) y[row] = sum;
  }
}
"""
QUANTIZE = """
__global__ void quantize(const float* x, signed char* q, float* scale, int rows, int cols) {
  int row = blockIdx.x * blockDim.y + threadIdx.y;
  float m = 0.f;
  if (row < rows)
    for (int c = threadIdx.x; c < cols; c += blockDim.x) m = fmaxf(m, fabsf(x[row * cols + c]));
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, o));
  if (row >= rows) return;
  if (threadIdx.x == 0) scale[row] = m;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) q[row * cols + c] = x[row * cols + c] / m;
}
void run(const float* x, signed char* q, float* s, int rows, int cols) {
  dim3 block(32, 8);
  quantize<<<(rows + 7) / 8, block>>>(x, q, s, rows, cols);
}
"""
IMAGE = """
__global__ void invert(const uchar4* src, uchar4* dst, int w, int h) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= w || y >= h) return;
  uchar4 p = src[y * w + x];
  int4 sum = make_int4(p.x, p.y, p.z, p.w);
  dst[y * w + x] = make_uchar4(sum.x / 2, sum.y / 2, sum.z / 2, sum.w / 2);
}
"""
BEST = """
__global__ void best(const float* score, int* top, int rows, int classes) {
  __shared__ float s[128];
  int row = blockIdx.x;
  if (row >= rows) return;
  float m = -1e30f;
  for (int c = threadIdx.x; c < classes; c += 128) m = fmaxf(m, score[row * classes + c]);
  s[threadIdx.x] = m;
  __syncthreads();
  if (threadIdx.x == 0) top[row] = s[0] > 0;
}
void run(const float* score, int* top, int rows, int classes) {
  best<<<rows, 128>>>(score, top, rows, classes);
}
"""
CLOUD = """
struct Cloud { float* x; float* v; int count; };
__global__ void move(Cloud p, float dt) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  p.x[i] = p.x[i] + dt * p.v[i];
}
"""
BATCHED = """
#define IDX(i, j, ld) ((i) + (j) * (ld))
__global__ void added(int m, int n, const double* A, int lda, long strideA, double* B, int ldb, long strideB,
                      int batch) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y, b = blockIdx.z;
  if (i >= m || j >= n || b >= batch) return;
  const double* a = A + b * strideA;
  double* c = B + b * strideB;
  c[IDX(i, j, ldb)] += a[IDX(i, j, lda)];
}
"""
DECODE = """
#define HEAD 64
__global__ void decode(const float* keys, float* y, int heads, int len) {
  int h = blockIdx.x, t = threadIdx.x;
  if (h >= heads || t >= HEAD) return;
  float sum = 0;
  for (int j = 0; j < len; j++) sum += keys[(h * len + j) * HEAD + t];
  y[h * HEAD + t] = sum;
}
void run(const float* keys, float* y, int heads, int len) { decode<<<heads, 128>>>(keys, y, heads, len); }
"""


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (SOFTMAX, "y[row * cols + c] =", "y[row * rows + c] ="),
        (SOFTMAX, "row >= rows", "row > rows"),
        (SPARSE, "row < rows", "row <= rows"),
        (QUANTIZE, "  if (row >= rows) return;\n", ""),
        (QUANTIZE, "  if (row < rows)\n", ""),
        (QUANTIZE, "scale[row] =", "scale[row + 1] ="),
        (IMAGE, "x >= w || y >= h", "x >= w"),
        (IMAGE, "dst[y * w + x] =", "dst[y * h + x] ="),
        (BEST, "score[row * classes + c]", "score[row * rows + c]"),
        (BEST, "top[row] =", "top[row + 1] ="),
        (CLOUD, "  if (i >= p.count) return;\n", ""),
        (CLOUD, "i >= p.count", "i > p.count"),
        (BATCHED, "j >= n || ", ""),
        (BATCHED, "j >= n", "j > n"),
        (DECODE, "j < len", "j <= len"),
    ],
    ids=[
        "a stride of rows", "a row too many", "a row of warps", "no guard", "no guard before shuffles",
        "a scale", "no guard of an image", "height for width", "rows for columns", "a vector",
        "no guard of a struct",
        "one too many of a struct", "no guard beside strides", "a column too many", "a key too many",
    ],
)  # fmt: skip
def test_right_kernels_are_clean_and_faults_are_found(
    tmp_path: Path, source: str, old: str, new: str
) -> None:
    code, said = check(tmp_path, source)
    assert code == 0, said
    assert old in source
    code, said = check(tmp_path, source.replace(old, new, 1))
    assert code == 1 and ("past the end" in said or "race" in said)
