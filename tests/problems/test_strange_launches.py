"""Launches of which a guess missed what host code says: right kernels are clean, faults in them found."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main

BLURRED = """#include <iostream>
#define T 8
#define R 2
#define BLOCK T + 2 * R
__global__ void blurred(const float* x, float* y, int h, int w) {
  __shared__ float tile[T + 2 * R][T + 2 * R];
  int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
  int r = row - R, c = col - R;
  tile[threadIdx.y][threadIdx.x] = r >= 0 && r < h && c >= 0 && c < w ? x[r * w + c] : 0;
  __syncthreads();
  if (threadIdx.y < T && threadIdx.x < T && row < h && col < w) {
    float sum = 0;
    for (int i = 0; i <= 2 * R; i++)
      for (int j = 0; j <= 2 * R; j++) sum += tile[threadIdx.y + i][threadIdx.x + j];
    y[row * w + col] = sum;
  }
}
void run(const float* x, float* y, int h, int w) {
  dim3 grid((w + T - 1) / T, (h + T - 1) / T), block(BLOCK, BLOCK);
  std::cout << "begins" << std::endl;
  blurred<<<grid, block>>>(x, y, h, w);
}
"""
SCALED = """__global__ void scaled(const float* x, float* y, int rows, int cols) {
  int row = blockIdx.x;
  if (row >= rows) return;
  const float4* in = (const float4*)(x + row * cols);
  float4* out = (float4*)(y + row * cols);
  float4 v = in[threadIdx.x];
  v.x *= 2, v.y *= 2, v.z *= 2, v.w *= 2;
  out[threadIdx.x] = v;
}
bool run(const float* x, float* y, int rows, int cols) {
  if (rows < 1 || cols != 512) return false;
  scaled<<<rows, 128>>>(x, y, rows, cols);
  return true;
}
"""
WHOLE = """#include <stdexcept>
__global__ void whole(const float* x, float* y, int n) {
  int first = blockIdx.x * 48;
  if (first < n) y[first + threadIdx.x] = 2 * x[first + threadIdx.x];
}
void run(const float* x, float* y, int n) {
  if (n % 48 != 0) { throw std::runtime_error("whole"); }
  whole<<<n / 48, 48>>>(x, y, n);
}
"""
STENCIL = """#define RADIUS 3
#define BLOCK 128
__global__ void stencil(const int* in, int* out) {
  __shared__ int tile[BLOCK + 2 * RADIUS];
  int i = blockIdx.x * BLOCK + threadIdx.x, at = threadIdx.x + RADIUS;
  tile[at] = in[i];
  if (threadIdx.x < RADIUS) {
    tile[at - RADIUS] = in[i - RADIUS];
    tile[at + BLOCK] = in[i + BLOCK];
  }
  __syncthreads();
  int sum = 0;
  for (int d = -RADIUS; d <= RADIUS; d++) sum += tile[at + d];
  out[i] = sum;
}
void run(const int* in, int* out, int n) {
  stencil<<<n / BLOCK, BLOCK>>>(in + RADIUS, &out[RADIUS]);
}
"""
SEGMENTS = """__global__ void segments(float* x, int n) {
  int segment = blockIdx.x, lane = threadIdx.x;
  if (segment >= n) return;
  x[segment * 32 + lane] *= 2;
}
"""
TURNED = """#define TILE 32
#define ROWS 16
__global__ void turned(float* y, const float* x, int width, int height) {
  int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
  int from = col + width * row, to = row + height * col;
  for (int i = 0; i < TILE; i += ROWS) y[to + i] = x[from + i * width];
}
"""
SUMMED = """template <unsigned int bs>
__device__ void summed_block(volatile float* s, float sum) {
  s[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned int w = bs / 2; w > 0; w /= 2) {
    if (threadIdx.x < w) s[threadIdx.x] += s[threadIdx.x + w];
    __syncthreads();
  }
}
template <unsigned int bs>
__global__ void summed(const float* x, float* y, int n) {
  __shared__ float s[bs];
  float sum = 0;
  for (int i = blockIdx.x * (bs * 2) + threadIdx.x; i < n; i += bs * 2 * gridDim.x) {
    sum += x[i];
    if (i + bs < n) sum += x[i + bs];
  }
  summed_block<bs>(s, sum);
  if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}
template __global__ void summed<128>(const float*, float*, int);
"""
FACTORED = """__global__ void factored(float* A, int lda, int n) {
  __shared__ float a[(64 * 65) / 2];
  int t = threadIdx.x;
  for (int j = 0; j < n; j++)
    if (threadIdx.x <= j) a[(j * (j + 1)) / 2 + t] = A[j * lda + t];
  __syncthreads();
  for (int j = 0; j < n; j++)
    if (threadIdx.x <= j) A[j * lda + t] = a[(j * (j + 1)) / 2 + j];
}
void run(float* A, int lda, int n) { factored<<<1, 64>>>(A, lda, n); }
"""
BUCKETS = """__global__ void buckets(const int* key, int* next, int* order, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    int at = atomicAdd(&next[key[i]], 1);
    order[at] = i;
  }
}
"""
MOVED = """__global__ void moved(double* x, const int* first, const int* count, int n) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n) return;
  for (int v = 0; v < count[r]; v++) {
    int at = first[r] + v;
    x[at] = 2 * x[at];
  }
}
"""
HASHED = """struct Pair { unsigned key, value; };
const unsigned kCapacity = 1 << 16, kEmpty = 0xffffffff;
__device__ unsigned hash(unsigned k) { k ^= k >> 8; k *= 0x9e3779b1; return k & (kCapacity - 1); }
__global__ void hashed(Pair* table, const Pair* pairs, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned key = pairs[i].key, slot = hash(key);
  while (true) {
    unsigned before = atomicCAS(&table[slot].key, kEmpty, key);
    if (before == kEmpty || before == key) { atomicExch(&table[slot].value, pairs[i].value); return; }
    slot = (slot + 1) & (kCapacity - 1);
  }
}
"""
CASES = {
    "a stream before a launch": (BLURRED, "--block 12,12,1", "T + 2 * R][T + 2 * R]", "T + R][T + R]"),
    "a number that host code wants": (SCALED, "-a cols=512", "out[threadIdx.x] =", "out[threadIdx.x + 1] ="),
    "multiples that host code wants": (WHOLE, "-a n=1008", "y[first +", "y[first + 1 +"),
    "a place in a buffer": (STENCIL, "-a in=1030", "in[i + BLOCK]", "in[i + BLOCK + 1]"),
    "rows of a block's threads": (SEGMENTS, "--block 32,1,1", "* 32 + lane", "* 31 + lane"),
    "rows of a tile": (TURNED, "--block 32,16,1", "y[to + i]", "y[to + i + 1]"),
    "a template's block": (SUMMED, "--block 128,1,1", "  __syncthreads();\n  for", "  for"),
    "columns of one block": (FACTORED, "-a n=64", "  __syncthreads();\n  for", "  for"),
    "slots behind each other": (BUCKETS, "-a order=1000", "order[at] =", "order[at + 1] ="),
    "a table of a number": (
        HASHED,
        "-a table=65536",
        "atomicExch(&table[slot].value, pairs[i].value)",
        "table[slot].value = pairs[i].value",
    ),
    "parts behind each other": (MOVED, "-a x=1000", "v < count", "v <= count"),
}
QUICK = ("a stream before a launch", "a number that host code wants")


def check(folder: Path, source: str, *more: str) -> tuple[int, str]:
    """Return the exit code of `harness check`, and what it says."""
    (path := folder / "k.cu").write_text(source)
    ran = CliRunner().invoke(main, ["check", str(path), *more])
    return ran.exit_code, " ".join(ran.output.split())


@pytest.mark.parametrize(
    "what", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_a_right_kernel_is_clean_and_its_fault_is_found(tmp_path: Path, what: str) -> None:
    source, said, right, wrong = CASES[what]
    code, output = check(tmp_path, source)
    assert code == 0 and said in output, output
    assert right in source
    code, output = check(tmp_path, source.replace(right, wrong, 1))
    assert code == 1 and ("out of bounds" in output or "hazard" in output), output


@pytest.mark.slow
def test_a_size_that_host_code_leaves_free_is_no_multiple(tmp_path: Path) -> None:
    code, output = check(tmp_path, WHOLE.replace("n % 48 != 0", "n < 48"))
    assert code == 1 and "out of bounds" in output, output
    code, output = check(tmp_path, SCALED.replace("cols != 512", "cols < 512"))
    assert code == 1 and "out of bounds" in output, output


@pytest.mark.slow
def test_a_macro_of_a_header_behind_a_product_is_one(tmp_path: Path) -> None:
    (tmp_path / "tile.h").write_text("#define OUT 8\n#define IN (OUT + 2) // with a rim\n")
    source = """#include "tile.h"
__global__ void rims(const float* x, float* y, int n) {
  __shared__ float s[IN];
  int begin = blockIdx.x * OUT;
  int i = begin + threadIdx.x - 1;
  s[threadIdx.x] = i >= 0 && i < n ? x[i] : 0;
  __syncthreads();
  if (threadIdx.x > 0 && threadIdx.x < IN - 1 && i < n)
    y[i] = s[threadIdx.x - 1] + s[threadIdx.x + 1];
}
void run(const float* x, float* y, int n) { rims<<<(n + OUT - 1) / OUT, IN>>>(x, y, n); }
"""
    code, output = check(tmp_path, source)
    assert code == 0 and "--block 10,1,1" in output, output
    code, output = check(tmp_path, source.replace("IN - 1 &&", "IN &&"))
    assert code == 1 and "out of bounds" in output, output
