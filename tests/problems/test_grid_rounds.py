"""Blocks of a grid that host code has as a number go around, where their loop's step is that grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.checking import check
from shared.sweeps import sweep

TILES = """
__global__ void reversed(const float* x, float* y, int n) {
  __shared__ float tile[256];
  int t = threadIdx.x, tiles = (n + 255) / 256;
  for (int k = blockIdx.x; k < tiles; k += gridDim.x) {
    int left = min(256, n - k * 256);
    if (t < left) tile[t] = x[k * 256 + t];
    __syncthreads();
    if (t < left) y[k * 256 + t] = tile[left - 1 - t];
    __syncthreads();
  }
}
int main() {
  int n = 10000;
  float *x, *y;
  cudaMalloc(&x, n * sizeof(float)), cudaMalloc(&y, n * sizeof(float));
  reversed<<<GRID, 256>>>(x, y, n);
}
"""
AROUND = "n=2112"
CASES = [  # grid, old, new, what is said, whether it goes around
    ("4", "", "", "", True),
    ("4", "    __syncthreads();\n  }", "  }", "WAR hazard", True),
    ("4", "k += gridDim.x", "k += gridDim.x - 1", "race", True),
    ("(n + 255) / 256", "", "", "", False),
    ("1000", "", "", "", False),
]


@pytest.mark.parametrize(
    ("grid", "old", "new", "said", "around"), sweep(CASES, lambda *case: case in CASES[1:2])
)
def test_blocks_go_around(tmp_path: Path, grid: str, old: str, new: str, said: str, around: bool) -> None:
    assert old in TILES
    source = TILES.replace("GRID", grid)
    code, output = check(tmp_path, source.replace(old, new, 1) if old else source)
    assert code == bool(said) and said in output, output
    assert (AROUND in output) == around


BINS = """
__global__ void sums(const float* x, float* bins, int n, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&bins[i % count], x[i]);
}
int main() {
  int n = 10000, count = 64;
  float *x, *bins;
  cudaMalloc(&x, n * sizeof(float)), cudaMalloc(&bins, count * sizeof(float));
  cudaMemset(bins, 0, count * sizeof(float));
  sums<<<(n + 127) / 128, 128>>>(x, bins, n, count);
}
"""
SHARED = [
    ("", "", ""),
    ("% count]", "% count + 1]", "out of bounds"),
    ("atomicAdd(&bins[i % count], x[i])", "bins[i % count] += x[i]", "race"),
]


@pytest.mark.parametrize(("old", "new", "said"), sweep(SHARED, lambda *case: case == SHARED[1]))
def test_bins_are_as_few_as_the_host_has(tmp_path: Path, old: str, new: str, said: str) -> None:
    """With as many bins as elements no two threads share one, and none comes to the last."""
    code, output = check(tmp_path, BINS.replace(old, new, 1) if old else BINS)
    assert code == bool(said) and said in output, output
    assert "count=64" in output


PAIRS = """
__global__ void pairs(const int* x, int* y, volatile int* slots, volatile int* ready, int unused) {
  int pair = blockIdx.x / 2, i = pair * 64 + threadIdx.x;
  if (blockIdx.x % 2 == 0) {
    slots[i] = x[i] * 3;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) ready[pair] = 1;
  } else {
    if (threadIdx.x == 0) while (ready[pair] == 0) {}
    __syncthreads();
    y[i] = slots[i] + 1;
  }
}
int main() {
  int n = 8 * 64, *x, *y, *slots, *ready;
  cudaMalloc(&x, n * sizeof(int)), cudaMalloc(&y, n * sizeof(int)), cudaMalloc(&slots, n * sizeof(int));
  cudaMalloc(&ready, 8 * sizeof(int));
  cudaMemset(ready, 0, 8 * sizeof(int));
  pairs<<<16, 64>>>(x, y, slots, ready, n);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("fence", [True, False])
def test_a_size_that_no_kernel_reads_scales_no_grid(tmp_path: Path, fence: bool) -> None:
    code, output = check(tmp_path, PAIRS if fence else PAIRS.replace("__threadfence();", ""))
    assert "--grid 16,1,1" in output and "out of bounds" not in output, output
    assert code == (not fence) and ("missing fence" in output) == (not fence)
