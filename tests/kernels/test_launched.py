"""What a launch in the text says of a kernel: numbers of headers, small ones, classes, called functions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import text
from harness.kernels.cpp import calls
from harness.kernels.cpp.host import launches, values
from harness.kernels.cpp.source import cuts, items
from harness.kernels.cpp.source.anew import instances

TILES = """#include "sizes.h"
__global__ void tiles(const float* a, float* b, int n) {
  __shared__ float s[TILE];
  int i = blockIdx.x * TILE + threadIdx.x;
  s[threadIdx.x] = i < n ? a[i] : 0.f;
  __syncthreads();
  if (i < n) b[i] = s[TILE - 1 - threadIdx.x];
}
int main() { float *a, *b; int n = 1 << 20; tiles<<<(n + TILE - 1) / TILE, THREADS>>>(a, b, n); }
"""
TAPS = """__global__ void taps(const float* x, const float* w, float* y, int n, int r) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float s = 0;
  if (i + 2 * r < n) { for (int k = 0; k <= 2 * r; k++) s += w[k] * x[i + k]; y[i] = s; }
}
"""
SCALE = """template <typename T, int N> struct Vec { T v[N]; };
struct Twice { __device__ float operator()(float x) const { return 2 * x; } };
template <typename V, typename F> __global__ void scale(V* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) for (int k = 0; k < 4; k++) x[i].v[k] = F()(x[i].v[k]);
}
"""
CALLED = """__device__ int place(int n) { return blockIdx.y * n + blockIdx.x * blockDim.x + threadIdx.x; }
__global__ void add(const float* a, float* b, int n, int m) {
  int i = place(n);
  if (i < n * m) b[i] = a[i] + 1.f;
}
"""
PRINTS = """#include <stdio.h>
__global__ void where() { printf("%d %d %d\\n", blockIdx.x, blockIdx.y, blockIdx.z); }
"""
LARGE = """__global__ void add(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1.f;
}
int main() { float* x; int n = 4096; add<<<n / THREADS, THREADS>>>(x, n); }
"""

INDICES = """#pragma once
#define ROW() (blockIdx.y * blockDim.y + threadIdx.y)  // of the grid
#define COLUMN() blockIdx.x * blockDim.x + threadIdx.x
#define UP(x, y) (x + y - 1) / (y)
#define LONG(x) x \\
  + 1
"""
TURN = """#include "sizes.h"
__global__ void turn(const float* a, float* b, int n) {
  int row = ROW(), column = COLUMN();
  if (row < n && column < n) b[column * n + row] = a[row * n + column];
}
int main() { turn<<<dim3(UP(n, 32), UP(n, 8)), dim3(32, 8)>>>(a, b, n); }
"""
SQUARE = """__global__ void square(const float* a, float* b, int order) {
  int n = 1 << order, x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < n && y < n) b[x * n + y] = a[y * n + x];
}
int main() { dim3 block(16, 16), grid(((1 << order) + 15) / 16, ((1 << order) + 15) / 16);
  square<<<grid, block>>>(a, b, order); }
"""
OWNED = """template <typename T> class Image {
  size_t pitch;
public:
  T* data; size_t height, width;
  Image() {}
  __host__ __device__ Image(const Image& x) { data = x.data; height = x.height; width = x.width; }
  __device__ T& at(int row, int column) { return data[row * pitch + column]; }
};
template class Image<float>;
namespace box { typedef unsigned count; using uint = unsigned; }
__global__ void fill(Image<float> image, float value, box::count times, box::uint more) {
  int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < image.height && column < image.width) image.at(row, column) = value * times + more;
}
"""


def check(folder: Path, source: str, *arguments: str, code: int = 0) -> str:
    (folder / "k.cu").write_text(source)
    ran = CliRunner().invoke(main, ["check", str(folder / "k.cu"), *arguments], env={"COLUMNS": "200"})
    assert ran.exit_code == code, ran.output
    return ran.output


@pytest.mark.parametrize(
    "header",
    [
        "#define TILE 96\n#define THREADS TILE\n",
        "constexpr int TILE = 96;  // const int TILE = 32;\nstatic const unsigned THREADS = TILE;\n",
        "/* #define TILE 1 */\nenum { TILE = 96, THREADS = 96 };\n",
    ],
)
def test_numbers_of_headers(tmp_path: Path, header: str) -> None:
    (tmp_path / "sizes.h").write_text(header)
    output = check(tmp_path, TILES)
    assert "--grid 11,1,1 --block 96,1,1" in output and "(block and grid as in line 9)" in output, output


HEADER = b"""#define TILE 4
#define OTHER (2 * 16)
#define F(x) x
inline int f() { int n = 8; return n; }
"""


def test_the_text_has_the_last_word_on_its_names() -> None:
    source = "#define TILE 8\nint main() { k<<<TILE, OTHER>>>(); }"
    whole = launches.with_headers(source, (HEADER,))
    assert whole.startswith(source) and launches.launches(whole)[0].grid == (8,)
    assert launches.launches(whole)[0].block == (32,)
    assert "n 8" not in whole and "#define F(x) x" in whole, "not what stands in functions"


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("int n = 1 << 20, r = 3; taps<<<(n + 255) / 256, 256>>>(x, w, y, n, r);", "-a n=1000 -a r=3"),
        ("taps<<<(n + 255) / 256, 256>>>(x, w, y, n, 16);", "-a n=1000 -a r=16"),
        ("taps<<<(n + 255) / 256, 256>>>(x, w, y, n, 17);", "-a n=256 -a r=256"),  # it may be a size
        ("taps<<<1, 256>>>(x, w, y, 16, 3);", "-a n=256 -a r=256"),  # all are small: sizes, then
    ],
)
@pytest.mark.slow
def test_small_numbers_are_no_sizes(tmp_path: Path, host: str, said: str) -> None:
    idle = "r=256" in said  # i + 512 < 256 lets no thread in, which is told
    output = check(tmp_path, f"{TAPS}int main() {{ {host} }}\n", code=3 if idle else 0)
    assert f"{said} (block" in output and ("NOTHING DONE" in output) == idle, output


@pytest.mark.parametrize("given", ["<Vec<float, 4>, Twice>", "<Vec<float, WIDE>, Twice>"])
@pytest.mark.slow
def test_a_template_over_classes_of_the_text(tmp_path: Path, given: str) -> None:
    source = f"#define WIDE 4\n{SCALE}int main() {{ scale{given}<<<4, 128>>>(x, n); }}\n"
    (entry,) = text.entries(source)
    assert instances.launched(source, entry) == ["scale<Vec<float, 4>, Twice>"]
    assert "--block 128,1,1" in check(tmp_path, source)


@pytest.mark.parametrize("given", ["<Other, Twice>", "<Vec<Other, 4>, Twice>", "<Vec<float, 4>, f>"])
def test_what_is_no_class_of_the_text_is_no_argument(given: str) -> None:
    source = f"{SCALE}int main() {{ scale{given}<<<4, 128>>>(x, n); }}\n"
    assert instances.launched(source, text.entries(source)[0]) == []


def test_the_indices_of_called_functions_count(tmp_path: Path) -> None:
    (entry,) = text.entries(CALLED)
    assert (entry.dimensions, calls.with_called(entry, (CALLED,)).dimensions) == (1, 2)
    assert "--grid 1,32,1 --block 256,1,1" in check(tmp_path, CALLED)


def test_blocks_along_three_axes_are_few_where_no_size_says_how_many(tmp_path: Path) -> None:
    assert "--grid 4,4,4 --block 1,1,1" in check(tmp_path, PRINTS)  # of one thread, for it asks for none


@pytest.mark.parametrize(("threads", "told"), [(1024, False), (1025, True), (2048, True)])
def test_more_threads_than_any_gpu_takes_are_told(tmp_path: Path, threads: int, told: bool) -> None:
    output = check(tmp_path, f"#define THREADS {threads}\n{LARGE}")
    assert ("no GPU takes that" in output) == told == (f"(line 6 has {threads:,} threads" in output), output


def test_of_a_class_in_one_line_the_functions_of_the_host_go() -> None:
    one = "class C { public: __host__ C() : n(0) {} __device__ int get() { return n; } int n; };"
    found = list(items.items(one, 0, len(one)))
    assert [item.name for item in cuts._of_host(found, 0, len(one))] == ["C"]
    (whole,) = items.items("struct H { std::string s; };", 0, 28)
    assert [item.name for item in cuts._of_host([whole], 0, 28)] == ["H"]


def test_macros_of_headers_are_read_in_indices_and_grids(tmp_path: Path) -> None:
    (tmp_path / "sizes.h").write_text(INDICES)
    output = check(tmp_path, TURN)
    assert "--grid 2,8,1 --block 32,8,1" in output and "(block and grid as in line 6)" in output, output


@pytest.mark.parametrize(("arguments", "order"), [([], 6), (["-a", "order=5"], 5)])
def test_a_number_of_bits_is_no_size(tmp_path: Path, arguments: list[str], order: int) -> None:
    output = check(tmp_path, SQUARE, *arguments)
    blocks = 2**order // 16
    assert f"--grid {blocks},{blocks},1 --block 16,16,1" in output, output
    assert f"-a a=4096 -a b=4096 -a order={order}" in output, output


@pytest.mark.slow
def test_more_bits_than_an_integer_has_are_refused(tmp_path: Path) -> None:
    """The guess was 64, of which the grid was made, and its error a traceback."""
    (tmp_path / "k.cu").write_text(SQUARE)
    ran = CliRunner().invoke(main, ["check", str(tmp_path / "k.cu"), "-a", "order=64"])
    assert ran.exit_code != 0 and "shift by 64" in ran.output and "Traceback" not in ran.output, ran.output


@pytest.mark.slow
def test_an_explicit_instance_of_a_class_is_no_other_class(tmp_path: Path) -> None:
    output = check(tmp_path, OWNED)
    assert "-a image.data=" in output and "--block 16,16,1" in output, output
    special = "template <> class Image<float> : Base<int> { float* data; };"
    (tmp_path / "k.cu").write_text(OWNED.replace("template class Image<float>;", special))
    ran = CliRunner().invoke(main, ["check", str(tmp_path / "k.cu")])
    assert ran.exit_code != 0 and "no value can be guessed" in ran.output, ran.output


@pytest.mark.parametrize(
    ("loop", "number"),
    [
        ("for (int k = 0; k < n; k++)", 1),
        ("for (int k = 0; k < n; ++k) {", 1),
        ("for (int i = 0; i < n; i++) for (int k = 3; k < n; k += 2)", 3),
        ("for (k = 2; k <= n; k <<= 1)", 2),
        ("for (int k = first(n); k < n; k++)", None),
        ("for (int i = 0; i < n; i++)", None),
        ("for (int k = 0; k < n; k++) other();", None),
    ],
)
def test_an_argument_that_a_loop_counts_has_an_early_number(loop: str, number: int | None) -> None:
    source = (
        f"void run(float* x, int n) {{ int i, k; {loop} step<<<4, 256>>>(x, n, k); {'}' * loop.count('{')} }}"
    )
    assert launches.launches(source)[0].numbers == (None, None, number)


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("imin(32, (33 * 1024 + 255) / 256)", 32),
        ("std::min<int>(7, 9)", 7),
        ("MAX(3, 5)", 5),
        ("::max<unsigned int>(3, 5)", 5),
        ("sizeof(unsigned long long) * 8", 64),
        ("sizeof(float4)", 16),
    ],
)
def test_numbers_of_host_code(written: str, number: int) -> None:
    assert values.Values({}).number(written) == number
    assert values.Values({}).number("argmax(3, 9)") is None


@pytest.mark.parametrize("around", ["{}", "CHECK({})", "OK(({}))"])
def test_the_arguments_of_a_launch_within_a_macro_end_where_they_are_closed(around: str) -> None:
    launch = around.format("step<<<n / 256, 256>>>(x, rows * f(columns), n)")
    (found,) = launches.launches(f"void run(float* x, int rows, int columns, int n) {{ {launch}; }}")
    assert found.arguments == ("x", "rows * f(columns)", "n")
    assert found.blocks == ("(n + (256) - 1) // (256)",)


@pytest.mark.parametrize(
    ("filled", "number"),
    [
        ("load(path, &n);", None),
        ("read(open(path), n, &n);", None),
        ("std::swap(&m, &n);", None),
        ("cudaMalloc(&n, 4);", 8),
        ("CHECK(cudaMemcpyToSymbol(size, &n, 4));", 8),
        ("show(n & n);", 8),
        ("void* list[] = {&x, &n};", 8),
    ],
)
def test_a_number_that_a_function_of_the_host_fills_is_not_known(filled: str, number: int | None) -> None:
    source = f"void run(float* x) {{ int n = 8; {filled} step<<<1, 32>>>(x, n); }}"
    assert launches.launches(source)[0].numbers == (None, number)


def test_a_function_that_returns_a_vector_is_no_vector() -> None:
    given = values.given("std::vector<int> sizes(); std::vector<int> more( );")
    assert not any(value for _, _, value in given)


def test_the_grid_of_a_size_that_a_loop_counts_and_of_the_less_of_two() -> None:
    source = """void run(float* x) {
      for (int n = 1; n <= 4096; n *= 2) step<<<(n + 255) / 256, 256>>>(x, n, 7);
      int blocks = std::min(65535, (m + 255) / 256);
      step<<<blocks, 256>>>(x, m, 7);
    }"""
    counted, least = launches.launches(source)
    assert (counted.numbers, counted.blocks) == ((None, None, 7), ("(n + 255) // 256",))
    assert least.over(["x", "m", "k"], least.blocks) == ["(min(65535, (m + 255) // 256))"]


def test_many_launches_in_loops_take_no_time() -> None:
    many = "".join(
        f"void run{i}(float* x, int n) {{ for (int k = 0; k < n; k++) step<<<4, 256>>>(x, n, k, k, k); }}\n"
        for i in range(400)
    )
    begin = time.perf_counter()
    assert {launch.numbers[2] for launch in launches.launches(many)} == {1}
    assert time.perf_counter() - begin < 5


COPY = """
template <typename T, int VEC> __global__ void copy(const T* in, T* out, int n) {}
template <int VEC, typename scalar_t> void run(int n) { copy<scalar_t, VEC><<<1, 256>>>(a, b, n); }
"""


@pytest.mark.parametrize(
    ("host", "entry"),
    [
        ("int main() { run<4, double>(1 << 20); }", "copy<double, 4>"),
        ("int main() { constexpr int V = 2; run<V, half>(1 << 20); run<8, int>(9); }", "copy<half, 2>"),
        ("int main() { other<4, double>(1 << 20); }", "copy"),  # nobody calls it
    ],
)
def test_template_arguments_of_host_functions_are_those_of_a_call(host: str, entry: str) -> None:
    assert launches.launches(COPY + host)[0].entry == entry


@pytest.mark.slow
def test_functions_of_headers_are_read_in_indices(tmp_path: Path) -> None:
    """Read those of one line that belong to no class; a group of threads says nothing of blocks."""
    (tmp_path / "flat.h").write_text("""namespace own {
struct Rows { int size; __device__ int flat(int a) const { return a * size; } };
__device__ inline int flat(int a, int b, int c, int rows, int cols) { return (a * rows + b) * cols + c; }
}
""")
    path = tmp_path / "k.cu"
    source = """#include <cooperative_groups.h>
#include "flat.h"
namespace cg = cooperative_groups;
__global__ void twice(const float* x, float* y, int rows, int cols) {
  auto block = cg::this_thread_block();
  for (int r = threadIdx.y; r < rows; r += blockDim.y)
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
      y[own::flat(blockIdx.x, r, c, rows, cols)] = 2 * x[own::flat(blockIdx.x, r, c, rows, cols)];
}
void run(const float* x, float* y, int batch, int rows, int cols) {
  dim3 grid(batch), block(32, 8);
  twice<<<grid, block>>>(x, y, rows, cols);
}
"""
    path.write_text(source)
    ran = CliRunner().invoke(main, ["check", str(path)])
    assert ran.exit_code == 0 and ",1,1 --block 32,8,1" in ran.output, ran.output
    path.write_text(source.replace("r < rows", "r <= rows"))
    ran = CliRunner().invoke(main, ["check", str(path)])
    assert ran.exit_code == 1 and "out of bounds" in ran.output, ran.output
    whole = text.entries(source.replace("this_thread_block", "this_grid"))
    assert ("y" in text.entries(source)[0].flat, "y" in whole[0].flat) == (True, False)
