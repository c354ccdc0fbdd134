"""Launches that files of strangers have: clean where the kernel is right, and a planted fault is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.kernels.cpp.source import items
from shared.checking import check

ONE = """__global__ void own(char* a, int n) {
  int i = blockIdx.x;
  if (i < n) a[i] = a[i] + i;
}
"""
CAST = """#define T ((size_t)64)
#define W ((T * 3) + 2)
#define H ((T * 2) + 1)
#define UP(x, y) (((x) + (y) - 1) / (y))
__global__ void sums(const int* a, const int* b, int* c) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= W || y >= H) return;
  int at = y * W + x;
  c[at] = a[at] + b[at];
}
int main() {
  size_t bytes = W * H * sizeof(int);
  int *a, *b, *c;
  cudaMalloc(&a, bytes);
  cudaMalloc(&b, bytes);
  cudaMalloc(&c, bytes);
  dim3 block(16, 4), grid;
  grid.x = UP(W, 16);
  grid.y = UP(H, 4);
  sums<<<grid, block>>>(a, b, c);
}
"""
FLAT = """__global__ void scaled(float* x, int n) {
  int block = blockIdx.z * gridDim.x * gridDim.y + blockIdx.y * gridDim.x + blockIdx.x;
  int i = block * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
"""
STEP = """__global__ void step(int* a, int n, int j, int k) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x, other = i ^ j;
  if (i >= n) return;
  if (other > i && ((i & k) == 0) == (a[i] > a[other])) {
    int was = a[i];
    a[i] = a[other];
    a[other] = was;
  }
}
void sort(int* a, int n) {
  for (int k = 2; k <= n; k <<= 1)
    for (int j = k >> 1; j > 0; j >>= 1) step<<<(n + 255) / 256, 256>>>(a, n, j, k);
}
"""
LONG = """const int count = 34177;
__global__ void dot(const float* a, const float* b, float* c) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float s = 0;
  for (; i < count; i += blockDim.x * gridDim.x) s += a[i] * b[i];
  c[blockIdx.x * blockDim.x + threadIdx.x] = s;
}
"""
STRIDES = """template <typename T> struct Own { using type = T; };
template <typename T>
__global__ void relu(const T* x, T* y, int x_stride_b, int x_stride_n, int x_stride_d, int y_stride_b,
                     int y_stride_n, int y_stride_d, int rows, int size) {
  using own = typename Own<T>::type;
  const own* from = reinterpret_cast<const own*>(x) + blockIdx.x * x_stride_b;
  own* to = reinterpret_cast<own*>(y) + blockIdx.x * y_stride_b;
  for (int i = threadIdx.x; i < rows; i += blockDim.x)
    for (int d = 0; d < size; d++)
      to[i * y_stride_n + d * y_stride_d] = max(own(0), from[i * x_stride_n + d * x_stride_d]);
}
template __global__ void relu<float>(const float*, float*, int, int, int, int, int, int, int, int);
"""
ALONE = """__global__ void sorted(int* a, int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n - 1; j++)
      if (a[j] > a[j + 1]) {
        int was = a[j];
        a[j] = a[j + 1];
        a[j + 1] = was;
      }
}
void run(int* a, int n) { sorted<<<1, 1>>>(a, n); }
"""
SHARES = """#define THREADS 256
#define EACH 32768
__global__ void sums(const float* x, float* y) {
  __shared__ float s[THREADS];
  float sum = 0;
  for (int i = 0; i < EACH / THREADS; i++) sum += x[blockIdx.x * EACH + i * THREADS + threadIdx.x];
  s[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < THREADS; i++) sum += s[i];
  y[blockIdx.x] = sum;
}
int main() {
  const int n = 32 * 1024 * 1024;
  float *x, *y;
  cudaMalloc(&x, n * sizeof(float));
  cudaMalloc(&y, 1024 * sizeof(float));
  dim3 grid(1024, 1), block(THREADS, 1);
  sums<<<grid, block>>>(x, y);
}
"""
TILES = """constexpr int BM = 32, BN = 64, BK = 8;
template <int TM, int TN>
__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float as[BM][BK], bs[BK][BN];
  int x = blockIdx.x * BN + threadIdx.x * TN, y = blockIdx.y * BM + threadIdx.y * TM;
  int own = threadIdx.y * blockDim.x + threadIdx.x, all = blockDim.x * blockDim.y;
  float sum[TM][TN] = {};
  for (int t = 0; t < k; t += BK) {
    for (int i = own; i < BM * BK; i += all) {
      int row = blockIdx.y * BM + i / BK, col = t + i % BK;
      as[i / BK][i % BK] = row < m && col < k ? a[row * k + col] : 0;
    }
    for (int i = own; i < BK * BN; i += all) {
      int row = t + i / BN, col = blockIdx.x * BN + i % BN;
      bs[i / BN][i % BN] = row < k && col < n ? b[row * n + col] : 0;
    }
    __syncthreads();
    for (int i = 0; i < BK; i++)
      for (int p = 0; p < TM; p++)
        for (int q = 0; q < TN; q++)
          sum[p][q] += as[threadIdx.y * TM + p][i] * bs[i][threadIdx.x * TN + q];
    __syncthreads();
  }
  for (int p = 0; p < TM; p++)
    for (int q = 0; q < TN; q++)
      if (y + p < m && x + q < n) c[(y + p) * n + x + q] = sum[p][q];
}
template __global__ void product<4, 8>(const float*, const float*, float*, int, int, int);
"""
MEAN = """__global__ void mean(float* sum, int n) { *sum /= n; }
"""
LAYER = """__global__ void layer(const float* x, const float* w, float* y) {
  int unit = blockIdx.x + 64 * blockIdx.y;
  y[unit + 9000 * blockIdx.y] = w[unit] * x[unit * 7 + 3];
}
"""
ROWS = """__global__ void doubled(float* y, const float* x, long n) {
  long i = threadIdx.x + blockDim.x * blockIdx.x;
  i += threadIdx.y + blockDim.y * (blockDim.x * gridDim.x) * blockIdx.y;
  if (i >= n) return;
  y[i] += 2 * x[i];
}
"""


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        pytest.param(ONE, "a[i] = a[i]", "a[i + 1] = a[i]", marks=slow, id="one"),
        pytest.param(CAST, "x >= W", "x > W", marks=slow, id="cast"),
        pytest.param(FLAT, "i < n", "i <= n", id="flat"),
        pytest.param(STEP, "a[other] = was", "a[other + 1] = was", marks=slow, id="step"),
        pytest.param(LONG, "s += a[i] * b[i]", "i += 9, s += a[i] * b[i]", marks=slow, id="long"),
        pytest.param(STRIDES, "to[i * y_stride_n +", "to[i / 2 * y_stride_n +", marks=slow, id="strides"),
        pytest.param(ALONE, "j < n - 1", "j < n", marks=slow, id="alone"),
        pytest.param(TILES, "    __syncthreads();\n  }\n", "  }\n", marks=slow, id="tiles"),
        pytest.param(MEAN, "*sum /= n", "sum[threadIdx.x / 2] /= n", marks=slow, id="mean"),
        pytest.param(LAYER, "y[unit + 9000 * blockIdx.y]", "y[9000 * blockIdx.y]", marks=slow, id="layer"),
        pytest.param(ROWS, "i >= n", "i > n", marks=slow, id="rows"),
        pytest.param(SHARES, "  __syncthreads();\n", "", marks=slow, id="shares"),
    ],
)
def test_a_right_kernel_is_clean_and_a_fault_is_found(
    tmp_path: Path, source: str, old: str, new: str
) -> None:
    code, output = check(tmp_path, source)
    assert code == 0, output
    assert old in source
    code, output = check(tmp_path, source.replace(old, new))
    assert code == 1, output


def test_a_block_of_the_host_counts(tmp_path: Path) -> None:
    """So a kernel that asks for its block alone races where each has more threads than one."""
    code, output = check(tmp_path, ONE + "void run(char* a, int n) { own<<<n, 64>>>(a, n); }\n")
    assert code == 1 and "hazard" in output, output


@slow
def test_a_thread_that_a_function_asks_for_is_seen(tmp_path: Path) -> None:
    asks = "__device__ int own_thread() { return threadIdx.x; }\n"
    source = ONE.replace("blockIdx.x;", "blockIdx.x * 32 + own_thread();").replace(
        "a[i] = a[i] + i", "a[i] = 1"
    )
    assert "--block 1,1,1" not in check(tmp_path, asks + source)[1]
    assert "--block 1,1,1" not in check(tmp_path, '#include "none.h"\n' + source)[1]


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        ("blockIdx.x + blockIdx.y * gridDim.x", "blockIdx.x"),
        ("(blockIdx.y * gridDim.x + blockIdx.x) * n", "blockIdx.x * n"),
        ("blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)", None),
        ("blockIdx.x + blockIdx.y * gridDim.x * blockDim.x", None),
        ("blockIdx.y * gridDim.x + j", None),
        ("gridDim.y * blockIdx.x + blockIdx.y", None),
        ("__mul24(blockIdx.x, 128) + i", "blockIdx.x * 128 + i"),
    ],
)
def test_what_counts_all_blocks_is_one_index(body: str, plain: str | None) -> None:
    assert items.counted(body) == (plain or body)


OVERRUN = """__global__ void far(const float* x, const float* y, float* z, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i AT];
}
"""


@pytest.mark.parametrize(
    ("at", "said"), [("+ 3000000", "of y, up to 11"), pytest.param("- 1", "offset -4 of y", marks=slow)]
)
def test_an_overrun_is_told_of_its_own_buffer(tmp_path: Path, at: str, said: str) -> None:
    """It was told of the next one where it went farther than the room between the two."""
    _, output = check(tmp_path, OVERRUN.replace("AT", at), "-a", "y=1000")
    assert said in output and "of z" not in output, output


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("__global__ void k(int* a, int n) { int i = IDX; if (i <= n) a[i] = i ^ n; }", "out of bounds"),
        ("#define N 1024\n__global__ void k(float* a, float* c) { int i = IDX; if (i < N) c[i + 1] = a[i]; }",
         "out of bounds"),
        ("__global__ void k(float* x, float* y) { int i = IDX; float v = x[i * 500 + 7]; int k = i;\n"
         "  if (v < 100.f && v > -100.f && i > 2)\n"
         "    while (k != -1) { k = (k * 2) & 1023; y[i] = k; } }", "hangs"),
        ("__global__ void k(float* y, int n) { const int D = -1; int i = blockIdx.x * 64 + threadIdx.x;\n"
         "  int j = n - 1 + threadIdx.x * D; if (i < n && j >= 0) y[i] = j; }", ""),
        ("__global__ void k(float* y) { __shared__ float s[320]; int i = blockIdx.x * 64 + threadIdx.x;\n"
         "  s[threadIdx.x * 4] = i; __syncthreads();\n"
         "  y[i] = s[threadIdx.x * 4] + s[(63 - threadIdx.x) * 4]; }", ""),
    ],
    ids=["xor", "guard", "hang", "negative", "shared"],
)  # fmt: skip
@slow
def test_rules_do_not_reach_too_far(tmp_path: Path, source: str, said: str) -> None:
    text = source.replace("IDX", "blockIdx.x * blockDim.x + threadIdx.x")
    code, output = check(tmp_path, text, "--budget", "3000000")
    assert code == bool(said) and said in output, output
