"""Host code that leaves a rest out is told of, and right host code is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.kernels import text
from harness.kernels.cpp.host.order import mistakes
from harness.kernels.cpp.host.values import Values
from shared.checking import check

SCALE = """
__global__ void scale(const float* a, const float* b, float* c, int rows, int cols) {
  int r = blockIdx.y * blockDim.y + threadIdx.y, q = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < rows && q < cols) c[r * cols + q] = a[r * cols + q] * b[q];
}
int main() {
  int rows = 1000, cols = 700;
  float *a, *b, *c;
  cudaMalloc(&a, rows * cols * sizeof(float));
  cudaMalloc(&b, cols * sizeof(float));
  cudaMalloc(&c, rows * cols * sizeof(float));
  std::vector<float> h(rows * cols);
  cudaMemcpy(a, h.data(), rows * cols * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemcpy(b, h.data(), cols * sizeof(float), cudaMemcpyHostToDevice);
  dim3 block(32, 8), grid((cols + 31) / 32, (rows + 7) / 8);
  scale<<<grid, block>>>(a, b, c, rows, cols);
  cudaMemcpy(h.data(), c, rows * cols * sizeof(float), cudaMemcpyDeviceToHost);
}
"""
PRODUCT = """
template <int T> __global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  const int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
  float sum = 0;
  if (row >= M || col >= N) return;
  for (int k = 0; k < K; k++) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
}
void run(const float* A, const float* B, float* C, int M, int N, int K) {
  dim3 block(16, 16), grid((N + 15) / 16, (M + 15) / 16);
  product<16><<<grid, block>>>(A, B, C, M, N, K);
}
"""
LOSS = """
__global__ void loss(const float* x, float* sum, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(sum, x[i] * x[i]);
}
void run(const float* x, int n) {
  float* sum;
  cudaMalloc(&sum, sizeof(float));
  cudaMemset(sum, 0, sizeof(float));
  loss<<<(n + 127) / 128, 128>>>(x, sum, n);
}
"""
LAST = """
__device__ unsigned int ticket = 0;
__global__ void last(const float* x, volatile float* parts, float* y, int n) {
  __shared__ bool done;
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int i = blockIdx.x; i < n; i += gridDim.x) sum += x[i];
    parts[blockIdx.x] = sum;
    __threadfence();
    done = atomicInc(&ticket, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (done && threadIdx.x == 0) {
    float sum = 0;
    for (int b = 0; b < gridDim.x; b++) sum += parts[b];
    *y = sum;
  }
}
int main() {
  int n = 1 << 18, blocks = 32;
  float *x, *parts, *y;
  cudaMalloc(&x, n * sizeof(float));
  cudaMalloc(&parts, blocks * sizeof(float));
  cudaMalloc(&y, sizeof(float));
  last<<<blocks, 64>>>(x, parts, y, n);
}
"""


@pytest.mark.parametrize(
    ("source", "old", "new", "told"),
    [
        (SCALE, "(rows + 7) / 8", "rows / 16", "r from 496 on is left out"),
        (SCALE, "grid((cols + 31) / 32,", "grid(cols / 32,", "q from 672 on is left out"),
        (SCALE, "grid((cols + 31) / 32, (rows + 7) / 8)", "grid((rows + 31) / 32, (cols + 7) / 8)", "r from"),
        (
            SCALE,
            "cudaMemcpy(b, h.data(), cols * sizeof(float)",
            "cudaMemcpy(b, h.data(), cols",
            "the rest of b",
        ),
        (
            PRODUCT,
            "grid((N + 15) / 16, (M + 15) / 16)",
            "grid((M + 15) / 16, (N + 15) / 16)",
            "as many blocks",
        ),
        (LOSS, "  cudaMemset(sum, 0, sizeof(float));\n", "", "nothing sets sum"),
        (LAST, "cudaMalloc(&parts, blocks *", "cudaMalloc(&parts, 16 *", "past the end"),
        (LAST, "b < gridDim.x", "b <= gridDim.x", "past the end"),
    ],
    ids=[
        "rows",
        "columns",
        "numbers swapped",
        "bytes",
        "names swapped",
        "no memset",
        "parts",
        "one too many",
    ],
)
def test_a_rest_that_host_code_leaves_out_is_found(
    tmp_path: Path, source: str, old: str, new: str, told: str
) -> None:
    code, said = check(tmp_path, source)
    assert (code, told in said) == (0, False), said
    assert old in source
    code, said = check(tmp_path, source.replace(old, new, 1))
    assert code == 1 and told in said


ONE = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


@pytest.mark.parametrize(
    ("body", "launch", "count"),
    [
        (f"{ONE} if (i < n) y[i] = x[i];", "k<<<1000 / 256, 256>>>(x, y, 1000);", 1),
        (f"{ONE} if (i < n) y[i] = x[i];", "k<<<1024 / 256, 256>>>(x, y, 1024);", 0),
        (f"{ONE} if (i < n) y[i] = x[i];", "k<<<n / 256, 256>>>(x, y, n);", 0),  # multiples, perhaps
        (f"{ONE} if (i < n - 1) y[i] = x[i];", "k<<<3, 333>>>(x, y, 1000);", 0),
        (f"{ONE} for (; i < n; i += blockDim.x * gridDim.x) y[i] = x[i];", "k<<<2, 256>>>(x, y, 1000);", 0),
        (f"{ONE} while (i < n) {{ y[i] = x[i]; i += 512; }}", "k<<<2, 256>>>(x, y, 1000);", 0),
        (f"{ONE} if (i < n) y[i] = 0; if (i + 512 < n) y[i + 512] = 0;", "k<<<2, 256>>>(x, y, 1000);", 0),
        (f"{ONE} if (i < 4) y[i] = n;", "k<<<1, 32>>>(x, y, 1000);", 0),
        ("int i = blockIdx.x * 512 + threadIdx.x; if (i < n) y[i] = 0;", "k<<<2, 256>>>(x, y, 1000);", 0),
    ],
)
def test_only_what_is_sure_is_told(body: str, launch: str, count: int) -> None:
    source = f"__global__ void k(float* x, float* y, int n) {{ {body} }}\n"
    source += f"void run(float* x, float* y, int n) {{ {launch} }}"
    entry = text.entries(source)[0]
    assert len(mistakes.of(source, entry, "k", Values({}), {"x": 4, "y": 4})) == count


@pytest.mark.parametrize(
    ("copies", "count"),
    [
        ("cudaMemcpy(x, h, n, cudaMemcpyHostToDevice);", 1),
        ("cudaMemcpy(x, h, n * sizeof(float), cudaMemcpyHostToDevice);", 0),
        ("cudaMemcpy(x, h, n / 2 * sizeof(float), cudaMemcpyHostToDevice);", 0),  # as much as there is
        ("cudaMemset(x, 0, n * 4); cudaMemcpy(x, h, n, cudaMemcpyHostToDevice);", 0),
        ("for (int i = 0; i < 4; i++) cudaMemcpy(x + i * n / 4, h, n, cudaMemcpyHostToDevice);", 0),
    ],
)
def test_a_copy_of_elements_for_bytes(copies: str, count: int) -> None:
    source = f"""__global__ void k(float* x, int n) {{ {ONE} if (i < n) x[i] += 1; }}
void run(float* h, int n) {{
  float* x;
  cudaMalloc(&x, n * sizeof(float));
  {copies}
  k<<<(n + 255) / 256, 256>>>(x, n);
}}"""
    found = mistakes.of(source, text.entries(source)[0], "k", Values({}), {"x": 4})
    assert len(found) == count


@pytest.mark.parametrize("back", [True, False], ids=["read", "only timed"])
def test_a_launch_of_which_nothing_is_read_may_be_a_part(back: bool) -> None:
    source = f"""__global__ void k(float* x, int n) {{ {ONE} if (i < n) x[i] = 1; }}
void run(float* h) {{
  float* x;
  cudaMalloc(&x, 4096);
  k<<<1, 256>>>(x, 1024);
  {"cudaMemcpy(h, x, 4096, cudaMemcpyDeviceToHost);" if back else "cudaDeviceSynchronize();"}
}}"""
    found = mistakes.of(source, text.entries(source)[0], "k", Values({}), {"x": 4})
    assert [line for line in found if "left out" in line] == found[:back]
    assert len(found) == back


@pytest.mark.parametrize(
    ("body", "count"),
    [("atomicAdd(y, x[i]);", 1), ("y[i] = x[i];", 0), ("", 0)],
    ids=["atomic", "store", "none"],
)
def test_what_no_atomic_adds_to_needs_no_memset(body: str, count: int) -> None:
    source = f"""__global__ void k(const float* x, float* y, int n) {{ {ONE} if (i < n) {{ {body} }} }}
void run(const float* x, float* h, int n) {{
  float* y;
  cudaMalloc(&y, n * sizeof(float));
  k<<<(n + 255) / 256, 256>>>(x, y, n);
  cudaMemcpy(h, y, n * sizeof(float), cudaMemcpyDeviceToHost);
}}"""
    found = mistakes.of(source, text.entries(source)[0], "k", Values({}), {"x": 4, "y": 4})
    assert len(found) == count
