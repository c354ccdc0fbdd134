"""Guessed buffers are as long as their kernel goes, where the numbers of its text explain that."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.problems.guessed.reach import Reach
from shared.sweeps import sweep

PLANES = """#define H 12
#define W 20
__global__ void planes(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  for (int h = 0; h < H; h++)
    for (int w = 0; w < W; w++) y[i * H * W + h * W + w] = x[i * H * W + h * W + w] + 1.f;
}
"""
ROWS = """#define N 300
__global__ void rows(const float* x, float* y) {
  int row = blockIdx.x, t = threadIdx.x;
  for (int i = t; i < N; i += blockDim.x) y[row * N + i] = 2.f * x[row * N + i];
}
int main() { float *x, *y; rows<<<64, 128>>>(x, y); }
"""
NORM = """constexpr int DIM = 256;
__global__ void norm(const float* x, float* y, int rows) {
  const int row = blockIdx.x;
  if (row >= rows) return;
  const float* in = x + row * DIM;
  __shared__ float s[DIM];
  s[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  for (int w = DIM / 2; w; w /= 2) {
    if (threadIdx.x < w) s[threadIdx.x] += s[threadIdx.x + w];
    __syncthreads();
  }
  y[row * DIM + threadIdx.x] = in[threadIdx.x] / s[0];
}
"""
BOTH = """__global__ void both(const float* a, const float* b, float* c, int n, int m) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, whole = n + m;
  for (; i < whole; i += gridDim.x * blockDim.x) c[i] = i < n ? a[i] : b[i - n];
}
"""
STAGED = """__global__ void staged(const float* in, float* out, float alpha, int batches) {
  for (int b = blockIdx.x; b < batches; b += gridDim.x) {
    const int at = b * blockDim.x + threadIdx.x;
    out[at] = in[at] * alpha;
  }
}
"""
PITCHED = """#define PITCH 1024
__global__ void pitched(const float* x, float* y, int rows, int cols) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
  float sum = 0;
  if (c < cols)
    for (int r = 0; r < rows; r++) sum += x[r * PITCH + c];
  if (c < cols && i < rows) y[i * cols + c] = sum;
}
"""


SQUARE = """const int SIDE = 100;
__global__ void square(float* field, const float* at, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int x = i; x < SIDE; x += gridDim.x * blockDim.x)
    for (int y = 0; y < SIDE; y++) {
      float sum = 0;
      for (int k = 0; k < count; k++) sum += at[k] * (x + y);
      field[y * SIDE + x] = sum;
    }
}
"""
POINTS = """__device__ float length(int at, const float* points) {
  float3 p = {points[3 * at], points[3 * at + 1], points[3 * at + 2]};
  float sum = p.x * p.x + p.y * p.y;
  return sqrtf(sum + p.z * p.z);
}
__global__ void lengths(const float* xyz, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = length(i, xyz);
}
"""
PADDED = """__global__ void padded(const float* x, float* y, int channels, int rows, int cols, int pad) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int wide = cols + 2 * pad, high = rows + 2 * pad;
  int whole = channels * high * wide;
  if (i < whole) {
    int c = i / (high * wide), r = i / wide % high - pad, q = i % wide - pad;
    y[i] = r >= 0 && r < rows && q >= 0 && q < cols ? x[(c * rows + r) * cols + q] : 0.f;
  }
}
void run(const float* x, float* y, int channels, int rows, int cols, int pad) {
  int whole = channels * (rows + 2 * pad) * (cols + 2 * pad);
  padded<<<(whole + 255) / 256, 256>>>(x, y, channels, rows, cols, pad);
}
"""


def check(folder: Path, source: str, *arguments: str) -> tuple[int, str]:
    path = folder / "k.cu"
    path.write_text(source)
    ran = CliRunner().invoke(main, ["check", str(path), *arguments], env={"COLUMNS": "200"})
    return ran.exit_code, ran.output


@pytest.mark.parametrize(
    ("source", "said", "right", "wrong"),
    [
        (PLANES, "-a x=240000 -a y=240000 -a n=1000", "w < W", "w <= W"),
        (PLANES, "-a x=240000 -a y=240000 -a n=1000", "  if (i >= n) return;\n", ""),
        (ROWS, "-a x=1200 -a y=1200", "i < N", "i <= N"),
        (NORM, "--grid 64,1,1 --block 256,1,1 -a x=16384 -a y=16384", "y[row * DIM", "y[row * DIM + 1"),
        (BOTH, "-a c=2000", "i < whole", "i <= whole"),
        (STAGED, "-a in=256000 -a out=256000", "b < batches", "b <= batches"),
        (PITCHED, "-a x=64576 -a y=4096", "r < rows", "r <= rows"),
        (PITCHED, "-a x=64576 -a y=4096", "  if (c < cols)\n    for", "  if (c <= cols)\n    for"),
        pytest.param(SQUARE, "-a field=10000", "y < SIDE", "y <= SIDE", marks=pytest.mark.slow),
        (POINTS, "-a xyz=3000", "points[3 * at + 2]", "points[3 * at + 3]"),
    ],
    ids=["planes", "guard", "rows", "norm", "sum", "blocks", "pitch", "columns", "square", "points"],
)
def test_a_buffer_is_as_long_as_its_kernel_goes(
    tmp_path: Path, source: str, said: str, right: str, wrong: str
) -> None:
    """And a kernel that goes further than it means to is found."""
    code, output = check(tmp_path, source)
    assert code == 0 and said in output and "As long as the kernel goes: " in output, output
    assert said.partition("-a")[2].split()[0] in output.partition("shapes:")[2].splitlines()[0]
    assert source.count(right) == 1
    code, output = check(tmp_path, source.replace(right, wrong))
    assert code == 1 and "out of bounds" in output, output


@pytest.mark.parametrize(
    ("right", "wrong"), [("y[i] = r", "y[i + 1] = r"), ("rows + r) * cols", "rows + r + 1) * cols")]
)
def test_a_buffer_is_as_long_as_the_product_that_its_index_stays_below(
    tmp_path: Path, right: str, wrong: str
) -> None:
    code, output = check(tmp_path, PADDED)
    assert code == 0 and "-a y=294912" in output, output
    assert PADDED.count(right) == 1
    code, output = check(tmp_path, PADDED.replace(right, wrong))
    assert code == 1 and "out of bounds" in output, output


def test_what_is_given_is_not_guessed(tmp_path: Path) -> None:
    code, output = check(tmp_path, PLANES, "-a", "x=12000")
    assert code == 1 and "-a x=12000 -a y=240000 -a n=1000" in output, output
    code, output = check(tmp_path, PLANES, "-a", "n=10")
    assert code == 0 and "-a x=2400 -a y=2400 -a n=10" in output, output


H, W = 12, 20
FACTORS = {"x": frozenset({"H", "W", "w"}), "y": frozenset(), "c": frozenset()}
SUMS = {"c": frozenset({("n", "w")})}
KNOWN = {"H": H, "W": W}


@pytest.mark.parametrize(
    ("pointer", "elements", "explained"),
    [
        ("x", 1000 * H * W, True),
        ("x", 1000 * H, True),
        ("x", 1000 * W * 300, True),  # w
        ("x", 1000 * H * H, False),  # each of them once
        ("x", 1_001, False),  # one too far
        ("x", 1_024, False),  # the end of the last block of 256
        ("x", 1_024 * H * W, False),
        ("x", 1000 * H * W + 1, False),
        ("x", 64 * H, True),  # a block has an item
        ("x", 4 * H, False),  # along the other axis it has none
        ("x", 1_300, False),
        ("c", 1_300, True),  # n + w
        ("c", 1_300 * H, False),
        ("y", 1000 * H, False),  # its indices have no factor
        ("y", 300, True),
        ("z", 1000 * H, False),
        ("x", 1000 * 300 * H * W, False),  # larger than a guess may be
        ("x", 0, False),
        ("x", 1, False),
    ],
)
def test_products(pointer: str, elements: int, explained: bool) -> None:
    reach = Reach(factors=FACTORS, sums=SUMS, values=KNOWN, items=frozenset("x"))
    assert (elements in reach.ends(pointer, {"n": 1000, "w": 300}, {"r": 3}, (64, 4, 1))) == explained


def test_without_sizes_it_is_the_launch_that_explains() -> None:
    reach = Reach(factors={"x": frozenset({"N", "r"})}, sums={}, values={"N": 300})
    ends = reach.ends("x", {}, {}, (4, 1, 1))
    assert 1200 in ends and 3600 in reach.ends("x", {}, {"r": 3}, (4, 1, 1))
    assert 1201 not in ends and 300 not in reach.ends("x", {}, {}, (1, 1, 1))
    assert 1200 not in reach.ends("x", {"n": 1000}, {}, (4, 1, 1)), "with sizes it is these"


IX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
MISSED = {  # faults that were hidden once, as other products explained them
    "a block's own threads": "void k(float* x) { int i = blockIdx.x * 200 + threadIdx.x; x[i] = 1; }",
    "a block is no row": """void k(float* x, int n, int blocks) { if (blockIdx.x >= blocks) return;
      int i = blockIdx.x * 256 + threadIdx.x; x[i] *= 2; }""",
    "rows have no guard": """void k(float* x, int rows, int cols) { int r = blockIdx.x * TPB + threadIdx.x;
      for (int c = 0; c < cols; c++) x[r * cols + c] = 1; }""",
    "nor have images": """void k(float* x, int N, int C, int HW) { int n = blockIdx.x * 256 + threadIdx.x;
      for (int c = 0; c < C; c++) for (int i = 0; i < HW; i++) x[(n * C + c) * HW + i] = 1; }""",
    "an input of a sum": f"""void k(const float* a, const float* b, float* o, int n, int m) {{
      {IX} if (i < n + m) o[i] = i < n ? a[i] : b[i]; }}""",
    "rows below": """void k(const float* in, float* out, int w, int h, int c) {
      int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
      if (x >= w || y >= h) return;
      float s = 0; for (int q = 0; q < 11; q++)
        for (int k = 0; k < 3; k++) s += in[(y + k) * w + x] * (q * 6);
      out[y * w + x] = s; }""",
    "a radius": """void k(const float* in, float* out, const float* f, int w, int h, int r) {
      int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
      if (x >= w || y >= h) return;
      float s = 0; for (int k = 0; k <= r; k++) s += in[(y + k) * w + x] * f[k];
      out[y * w + x] = s / (2 * r); }""",
    "one row too many": """void k(float* x, float* y, int rows, int cols) {
      int c = blockIdx.x * 256 + threadIdx.x; if (c >= cols) return;
      float a = 0; for (int r = 0; r <= rows; r++) a += x[r * cols + c];
      y[c] = a; }
      int main() { int rows = 8, cols = 1000; k<<<(cols + 255) / 256, 256>>>(x, y, rows, cols); }""",
    "a number of another function": f"""void k(float* x, int rows, int cols) {{ {IX}
      if (i < cols) for (int r = 0; r <= rows; r++) x[r * cols + i] = 1; }}
      int helper() {{ int rows = 2; return rows; }}
      void run(float* x, int rows, int cols) {{ k<<<(cols + 255) / 256, 256>>>(x, rows, cols); }}""",
    "a size that is not asked for": """void k(float* x, int rows, int cols) {
      int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
      if (c < cols) x[r * cols + c] += 1; }
      int main() { int rows = 10, cols = 1000; dim3 b(24, 24);
        k<<<dim3((cols + 23) / 24, (rows + 23) / 24), b>>>(x, rows, cols); }""",
}


@pytest.mark.parametrize("what", sweep(MISSED, lambda what: what in ("a radius", "rows have no guard")))
def test_no_other_product_hides_a_fault(tmp_path: Path, what: str) -> None:
    code, output = check(tmp_path, f"#define TPB 1024\n__global__ {MISSED[what]}\n")
    assert code == 1 and "out of bounds" in output, output


RIGHT = {  # and kernels that were found wrong
    "a lane": f"""__device__ int lane() {{ return (threadIdx.y * blockDim.x + threadIdx.x) & 31; }}
      __global__ void k(const float* x, float* y, int n) {{ {IX} if (i < n) y[i] = x[i] * lane(); }}""",
    "a class with other indices": f"""struct P {{ int n; __device__ int row() {{ return threadIdx.y; }}
        __device__ float twice(float x) {{ return 2 * x; }} }};
      __global__ void k(float* x, int n) {{ {IX} P p; if (i < n) x[i] = p.twice(x[i]); }}""",
    "an alias in a function": f"""template <typename T> __global__ void k(T* x, int n) {{
      {IX} if (i < n) x[i] = 1; }}
      void run(float* x, int n) {{ using T = float; k<T><<<(n + 255) / 256, 256>>>(x, n); }}""",
    "a logarithm": f"""__global__ void k(float* x, int n, int logn) {{ {IX}
      int j = __brev(i) >> (32 - logn);
      if (i < n && i < j) {{ float a = x[i]; x[i] = x[j]; x[j] = a; }} }}
      int main() {{ k<<<4, 256>>>(x, 1024, 10); }}""",
    "a stride": f"""__global__ void k(const float* x, float* y, int n, int incx) {{
      {IX} if (i < n) y[i] = x[i * incx]; }}
      int main() {{ k<<<4, 256>>>(x, y, 1000, 2); }}""",
    "heads": f"""__global__ void k(const float* q, const float* c, float* o,
      int T, int nh, int nkv, int hs) {{ {IX} int h = blockIdx.y;
      if (i >= T) return; int kv = h / (nh / nkv); float s = 0;
      for (int j = 0; j < hs; j++) s += q[h * hs + j] * c[(i * nkv + kv) * hs + j]; o[h * T + i] = s; }}
      int main() {{ k<<<dim3(4, 8), 256>>>(q, c, o, 1000, 8, 2, 64); }}""",
    "an octal stride": """__global__ void k(float* x, int n) {
      for (int i = threadIdx.x; i < n; i += blockDim.x) x[i * 017] = 1; }""",
}


@pytest.mark.parametrize("what", sweep(RIGHT, lambda what: what == "a lane"))
def test_right_kernels_are_clean(tmp_path: Path, what: str) -> None:
    code, output = check(tmp_path, RIGHT[what])
    assert code == (3 if what == "an octal stride" else 0), output  # it goes to 999 * 15 + 1, no product
    assert "Traceback" not in output


@pytest.mark.slow
def test_threads_that_are_counted_across_the_grid_have_no_dimensions(tmp_path: Path) -> None:
    flat = """__device__ int tid() { return blockIdx.z * gridDim.y * gridDim.x * blockDim.x
        + blockIdx.y * gridDim.x * blockDim.x + blockIdx.x * blockDim.x + threadIdx.x; }
      __global__ void k(float* x, int n) { GUARD x[tid()] = 1; }"""
    assert check(tmp_path, flat.replace("GUARD", "if (tid() < n)"))[0] == 0
    code, output = check(tmp_path, flat.replace("GUARD", ""))
    assert code == 1 and "out of bounds" in output and "--grid 4,1,1" in output, output
