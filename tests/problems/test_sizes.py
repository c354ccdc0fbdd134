"""Sizes and strides that are guessed: they show a guard that is wrong, and let no right kernel look wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import text
from harness.kernels.cpp.host import launches, tiles
from harness.kernels.cpp.host.values import Values
from harness.kernels.cpp.source.strided import ALONE, ENDLESS
from harness.kernels.expr import Expr
from harness.problems.guessed import sizes

XY = "int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;"
GEMM = """
__global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  if (row < M && col < N) {
    for (int k = 0; k < K; k++) sum += A[row * K + k] * B[k * N + col];
    C[row * N + col] = sum;
  }
}
"""
TRANSPOSE = f"""
__global__ void transpose(const float* in, float* out, int rows, int cols) {{
  {XY}
  if (x < cols && y < rows) out[x * rows + y] = in[y * cols + x];
}}
void run(float* a, float* b, int rows, int cols) {{
  dim3 block(16, 16), grid((cols + 15) / 16, (rows + 15) / 16);
  transpose<<<grid, block>>>(a, b, rows, cols);
}}
"""
BLUR = f"""
__global__ void blur(const float* in, float* out, int width, int height) {{
  __shared__ float tile[16][16];
  {XY}
  tile[threadIdx.y][threadIdx.x] = x < width && y < height ? in[y * width + x] : 0.f;
  __syncthreads();
  if (x < width && y < height) out[y * width + x] = tile[threadIdx.y][threadIdx.x ^ 1];
}}
"""
PITCHED = """
__global__ void scale(float* d, size_t pitch, int width, int height, float s) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  for (int r = blockIdx.y; r < height; r += gridDim.y) {
    float* row = (float*)((char*)d + r * pitch);
    if (c < width) row[c] *= s;
  }
}
void run(float* d, size_t pitch, int w, int h) {
  scale<<<dim3((w + 255) / 256, 64), 256>>>(d, pitch, w, h, 2.f);
}
"""
HEADS = """
__global__ void rotary(float* query, float* key, int query_stride, int key_stride, int heads, int head_size) {
  float *q = query + blockIdx.x * query_stride, *k = key + blockIdx.x * key_stride;
  for (int i = threadIdx.x; i < heads * head_size / 2; i += blockDim.x) {
    int at = i / (head_size / 2) * head_size + i % (head_size / 2);
    q[at] += q[at + head_size / 2];
    k[at] += k[at + head_size / 2];
  }
}
"""
FLOYD = f"""
__global__ void step(float* dist, int* next, int n, int k) {{
  {XY}
  if (y >= n || x >= n || y == k || x == k) return;
  float via = dist[y * n + k] + dist[k * n + x];
  if (via < dist[y * n + x]) {{ dist[y * n + x] = via; next[y * n + x] = next[y * n + k]; }}
}}
void all(float* d, int* p, int n) {{
  dim3 block(16, 16), grid((n + 15) / 16, (n + 15) / 16);
  for (int k = 0; k < n; k++) step<<<grid, block>>>(d, p, n, k);
}}
"""
TABLE = """
__global__ void insert(int* table, const int* keys, int capacity, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned slot = (unsigned)keys[i] * 2654435761u & (capacity - 1);
  while (atomicCAS(&table[slot], -1, keys[i]) >= 0) slot = (slot + 1) & (capacity - 1);
}
"""
ATTEND = """
__global__ void scores(const float* q, const float* keys, float* att, int pos, int dim) {
  for (int t = threadIdx.x; t <= pos; t += blockDim.x) {
    float sum = 0;
    for (int i = 0; i < dim; i++) sum += q[i] * keys[t * dim + i];
    att[t] = sum;
  }
}
"""
SCATTER = """
__global__ void scatter(const float* x, const int* to, float* y, int n, int cols) {
  int row = blockIdx.x, target = to[row];
  for (int c = threadIdx.x; c < cols; c += blockDim.x) y[target * cols + c] = x[row * cols + c];
}
"""
SYSTEMS = """
__global__ void systems(const float* a, float* x, int n) {
  extern float __shared__ s[];
  int t = threadIdx.x, at = t + blockIdx.x * n;
  s[t] = a[at];
  __syncthreads();
  x[at] = s[t] + s[t + 1 < n ? t + 1 : t];
}
void run(float* a, float* x, int n, int many) { systems<<<many, n, n * sizeof(float)>>>(a, x, n); }
"""


def slow(*case: str) -> Any:
    """Return a case that a newcomer's tests leave out."""
    return pytest.param(*case, marks=pytest.mark.slow)


def check(folder: Path, source: str, old: str = "", new: str = "") -> tuple[int, str]:
    """Return what `harness check` says of a kernel that was edited."""
    assert old in source
    path = folder / "k.cu"
    path.write_text(source.replace(old, new, 1) if old else source)
    ran = CliRunner().invoke(main, ["check", str(path)])
    return ran.exit_code, " ".join(ran.output.split())


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (GEMM, "row < M && col < N", "row < N && col < M"),
        slow(GEMM, "row * N + col] = sum;\n  }", "row * N + col] = sum;\n  } else C[row * N + col] = 0;"),
        slow(TRANSPOSE, "x * rows + y", "x * cols + y"),
        slow(TRANSPOSE, "x < cols", "x <= cols"),
        (BLUR, "in[y * width + x]", "in[y * height + x]"),
        slow(BLUR, "  if (x < width && y < height) out", "  out"),
    ],
    ids=["swapped", "other branch", "transposed", "one too many", "height for width", "no guard"],
)
def test_uneven_sizes_show_a_guard_that_is_wrong(tmp_path: Path, source: str, old: str, new: str) -> None:
    code, said = check(tmp_path, source)
    assert (code, "out of bounds" in said, "race" in said) == (0, False, False)
    code, said = check(tmp_path, source, old, new)
    assert code == 1 and ("past the end" in said or "race" in said)
    assert "=50" in said  # with 64 alone nothing is wrong


@pytest.mark.parametrize(
    "source",
    [PITCHED, slow(HEADS), slow(FLOYD), SYSTEMS, TABLE, ATTEND, SCATTER],
    ids=[
        "a pitch in bytes",
        "strides of items",
        "the step of a loop",
        "a block that is an argument",
        "a power of two",
        "a position",
        "places to write to",
    ],
)
def test_right_kernels_with_strides_and_steps_have_no_finding(tmp_path: Path, source: str) -> None:
    code, said = check(tmp_path, source)
    assert (code, "FAILED" in said) == (0, False), said


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        slow(PITCHED, "r * pitch", "r * width"),
        slow(PITCHED, "r < height", "r <= height"),
        (HEADS, "+ blockIdx.x * key_stride", "+ blockIdx.x * head_size"),
        slow(FLOYD, "y == k || ", ""),
        slow(SYSTEMS, "  __syncthreads();\n", ""),
        slow(TABLE, "&table[slot]", "&table[slot + 1]"),
        slow(ATTEND, "keys[t * dim", "keys[(t + 1) * dim"),
        slow(SCATTER, "target * cols + c] =", "target / 2 * cols + c] ="),
    ],
    ids=[
        "a pitch in bytes",
        "a row too many",
        "strides of items",
        "the step of a loop",
        "a block that is an argument",
        "a power of two",
        "a position",
        "places to write to",
    ],
)
def test_and_their_planted_faults_are_found(tmp_path: Path, source: str, old: str, new: str) -> None:
    code, said = check(tmp_path, source, old, new)
    assert code == 1 and "FAILED" in said


def entry(body: str, parameters: str = "float* a, float* b, int rows, int cols") -> text.Entry:
    return text.entries(f"__global__ void k({parameters}) {{ {body} }}")[0]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("if (r < rows && c < cols) a[r * cols + c] = 0;", {"rows": 50, "cols": 55}),
        ("if (r >= rows) return; a[r * cols + c] = 0;", {"rows": 50, "cols": 50}),  # cols may be a pitch
        ("a[r * cols + c] = rows;", {}),  # nothing is guarded
        ("for (int r = 0; r < rows; r++) a[r * cols] = 0;", {}),
        ("if (r < rows && c < cols / 4) a[r * cols + c] = 0;", {}),  # a multiple of four
        ("if (r < rows && c < cols) ((float4*)a)[r * cols + c] = x;", {}),
        ("a[r * cols + c] *= static_cast<float>(cols) + p->rows + (1 << cols);", {}),
        ("for (size_t r = (size_t)blockIdx.x; r < rows; ++r) a[r * cols] = 0;", {}),
        ("if (r < rows) for (int c = 0; c < cols; c += TILE) a[r * cols + c] = 0;", {}),
        ("if (r < rows) for (int c = t; c < cols; c += blockDim.x) a[c] = 0;", {"rows": 55, "cols": 50}),
        ("if (r < rows && (c & (cols - 1)) < 3) a[r * cols + c] = 0;", {}),
        ("if (r < rows - 1 && c < cols - 1) a[r * cols + c] = 0;", {"rows": 50, "cols": 55}),
    ],
)
def test_when_sizes_are_uneven(body: str, found: dict[str, int]) -> None:
    usual, one = {"rows": 64, "cols": 64}, entry(body)
    assert sizes.ragged(one, body, usual, 2, None, {}) == ([found] if found else [])
    assert not sizes.ragged(one, body, usual, 1, None, {})
    assert not sizes.ragged(one, body, usual | {"rows": 80}, 2, None, {})
    assert not sizes.ragged(one, body + "float4 v = *(float4*)row;", usual, 2, None, {})


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("int h = 4096, w = 1024; k<<<8, 32>>>(a, b, h, w);", {"rows": 55, "cols": 50}),
        ("int h = 1024, w = 4096; k<<<8, 32>>>(a, b, h, w);", {"rows": 50, "cols": 55}),
        ("int w = atoi(x); k<<<8, 32>>>(a, b, 4096, w);", {"rows": 50, "cols": 55}),
        ("int n = 1024; k<<<8, 32>>>(a, b, n, n);", {"rows": 50, "cols": 50}),
        ("k<<<8, 32>>>(a, b, 1024, 1024);", {"rows": 50, "cols": 55}),
    ],
)
def test_uneven_sizes_are_in_the_order_of_the_hosts(host: str, found: dict[str, int]) -> None:
    one = entry("if (r < rows && c < cols) a[r * cols + c] = 0;")
    launched = launches.launches(f"void run(float* a, float* b) {{ {host} }}")[0]
    assert sizes.ragged(one, "", {"rows": 64, "cols": 64}, 2, launched, {}) == [found]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("float* row = (float*)((char*)a + y * pitch); if (x < w) row[x] = h;", {"pitch": 256}),
        ("row = reinterpret_cast<char*>(a) + y * pitch;", {"pitch": 256}),
        ("if (x < pitch) c = *((const unsigned char*)a + y * pitch + x);", {}),
        ("c = ((const unsigned char*)a + base)[i] + pitch * h;", {}),
        ("a[y * pitch + x] = w + h;", {}),
        ("a[b * stride + h * w + x] = 0;", {"stride": 4096}),
        ("int at = blockIdx.x; float* p = a + at * (int64_t)stride;", {"stride": 4096}),
        ("a[y * stride + x] = w + h;", {}),  # a row's pitch
        ("r = y * stride + i; a[r * w + c] = h;", {}),  # a convolution's
        ("if (x < stride) a[b * stride + h * w] = 0;", {}),
        ("a[b * stride + h * stride_w + w] = 0;", {}),  # one within the other
    ],
)
def test_strides(body: str, found: dict[str, int]) -> None:
    names = ["w", "h", *(n for n in ("pitch", "stride", "stride_w") if n in body)]
    one = entry(body, "float* a, " + ", ".join(f"int {n}" for n in names))
    apart, pitches, _ = sizes.strides(one, names, {"a": ("f4", 1)}, 64, {}, Values({}))
    assert apart | pitches == found and pitches.keys() <= {"pitch"}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("for (int r = 0; r < 12; r++) a[(blockIdx.x * 12 + r) * cols + c] = 0;", {"rows": 72}),
        ("for (int r = 0; r < 12; r++) if (blockIdx.x * 12 + r < rows) a[r * cols] = 0;", {}),
    ],
    ids=["no guard", "guard"],
)
def test_rows_that_nothing_guards_fill_the_blocks_that_cover_them(body: str, found: dict[str, int]) -> None:
    grid = [Expr.parse("(rows + 12 - 1) // 12"), Expr.parse("cols * rows")]
    assert tiles.covered(grid, [128], entry(body), {"rows": 64, "cols": 64}) == found
    assert not tiles.covered(grid, [32, 12], entry(body), {"rows": 64, "cols": 64})  # a row for each thread
    beside = tiles.covered([Expr.parse("cols * rows"), grid[0]], [12], entry(body), {"rows": 64, "cols": 64})
    assert beside == found  # threads are along x, and rows along y
    wide = tiles.covered([Expr.parse("(rows + 99) // 100")], [128], entry(body), {"rows": 64, "cols": 64})
    assert wide == ({"rows": 100} if found else {})


STRIDED = "c[h * stride_h + i * stride_i + j] = 0;"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (STRIDED, ["stride_h", "stride_i", ENDLESS]),
        (f"if (j < end) {STRIDED}", ["stride_h", "stride_i", ALONE]),
        ("iy = i * stride_h + h; ix = j * stride_i + h; c[iy * width + ix] = 0;", []),  # a filter's steps
        ("for (y = i * stride_h; y < end; y++) c[y * width + j * stride_i] = 0;", []),
        ("c[(i * stride_h + h) * width + (j * stride_i + h)] = 0;", []),
        (
            f"float* row = c + h * stride_h; s = a * row[i] + *row; y = s * a; {STRIDED}",
            ["stride_h", "stride_i", ENDLESS],
        ),
    ],
    ids=["array", "ended", "filter", "loop", "index", "rows"],
)
def test_steps_of_a_filter_are_no_strides(body: str, found: list[str]) -> None:
    names = ["stride_h", "stride_i"]
    one = entry(body, "float* c, int stride_h, int stride_i, int width, int end")
    assert sizes.layouts(one, names, None) == ({"c": found} if found else {})


def test_strides_that_host_code_computes_are_known(tmp_path: Path) -> None:
    guard, host = "if (h < rows && i < cols && j < more)", "int rows, int cols, int more, int h, int i"
    kernel = f"""__global__ void k(float* c, int rows, int cols, int more, int stride_h, int stride_i) {{
        int h = blockIdx.z, i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x; {guard} {STRIDED} }}
        void run({host}) {{ float* c; cudaMalloc(&c, rows * cols * more * sizeof(float));
        k<<<dim3(1, cols, rows), 64>>>(c, rows, cols, more, ARGUMENTS); }}"""
    path = tmp_path / "k.cu"
    for given in ("cols * more, more", "h, i"):
        path.write_text(kernel.replace("ARGUMENTS", given))
        ran = CliRunner().invoke(main, ["check", str(path)])
        assert ran.exit_code == 0 and "out of bounds" not in ran.output, ran.output
    path.write_text(path.read_text().replace("j < more", "j <= more"))
    assert "out of bounds" in CliRunner().invoke(main, ["check", str(path)]).output


def test_strides_reach_as_far_as_unequal_sizes_do() -> None:
    one = entry(f"if (h < rows && i < cols && j < more) {STRIDED}", "float* c, int rows, int cols, int more")
    usual = dict.fromkeys(("rows", "cols", "more"), 32)
    axes = sizes.ragged(one, "", usual, 3, None, {"c": ["stride_h", "stride_i", ""]})[-1]
    assert len(sizes.ragged(one, "", usual, 3, None, {"c": ["stride_h", "stride_i", ""]}, tight=True)) == 1
    most = max(axes[name] for name in usual)
    assert most > 32 and (axes["stride_h"], axes["stride_i"]) == (most * most, most)


@pytest.mark.parametrize(("count", "found"), [("m", 8), ("4", 8), ("32", 1000)])
def test_a_size_of_the_host_is_not_cut_to_an_array_that_is_too_small(count: str, found: int) -> None:
    one = entry("float own[8]; for (int e = 0; e < k; e++) own[e] = 0;", "float* y, int k")
    launched = launches.launches(f"void run(float* y, int m) {{ k<<<8, 256>>>(y, {count}); }}")[0]
    assert sizes.usual(one, ["k"], 1000, 256, Values({}), launched) == {"k": found}


CLASSES = """
__global__ void softmax(const float* x, float* y, int rows, int classes) {
  extern __shared__ float own[];
  int row = blockIdx.x, t = threadIdx.x;
  if (row >= rows) return;
  if (t < classes) own[t] = expf(x[row * classes + t]);
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < classes; i++) sum += own[i];
  if (t < classes) y[row * classes + t] = own[t] / sum;
}
void run(const float* x, float* y, int rows) {
  softmax<<<rows, 32, CLASSES * sizeof(float)>>>(x, y, rows, CLASSES);
}
"""
FILTER = f"""
__global__ void blurred(const float* in, const float* w, float* out, int width, int height, int taps) {{
  {XY}
  if (x >= width || y >= height) return;
  int half = taps / 2;
  float sum = 0;
  for (int k = -half; k <= half; k++) sum += w[k + half] * in[y * width + min(max(x + k, 0), width - 1)];
  out[y * width + x] = sum;
}}
void run(float* in, float* w, float* out, int width, int height, int taps) {{
  cudaMalloc(&w, taps * sizeof(float));
  dim3 block(16, 16), grid((width + 15) / 16, (height + 15) / 16);
  blurred<<<grid, block>>>(in, w, out, width, height, taps);
}}
"""


@pytest.mark.parametrize(
    ("source", "said", "old", "new"),
    [
        (f"#define CLASSES 10\n{CLASSES}", "-a classes=31", "if (t < classes) y", "if (t <= classes) y"),
        (f"#define CLASSES 10\n{CLASSES}", "-a classes=31", "CLASSES 10", "CLASSES 40"),  # than threads
        (FILTER, "-a taps=5", "k <= half", "k <= half + 1"),
    ],
    ids=["classes", "more classes", "filter"],
)
def test_sizes_of_which_each_element_has_a_thread_and_of_filters(
    tmp_path: Path, source: str, said: str, old: str, new: str
) -> None:
    path = tmp_path / "k.cu"
    path.write_text(source)
    ran = CliRunner().invoke(main, ["check", str(path)], env={"COLUMNS": "200"})
    assert ran.exit_code == 0 and said in ran.output, ran.output
    assert source.count(old) == 1
    path.write_text(source.replace(old, new))
    ran = CliRunner().invoke(main, ["check", str(path)])
    assert ran.exit_code == 1 and "FAILED" in ran.output, ran.output
