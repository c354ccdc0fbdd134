"""Tiles that host code counts, and kernels that hand all on: right ones are clean, and faults are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.kernels import text
from harness.kernels.cpp import elements, extents
from harness.kernels.cpp.host import launches, tiles
from harness.kernels.cpp.source import inlined, strided
from harness.kernels.expr import Expr
from harness.problems.guessed import sizes
from shared.checking import check

ATTENTION = """
__global__ void mix(const float* q, const float* k, float* o, int length, int width, int tiles, int rows)
{
    extern __shared__ float room[];
    float* near = room;
    int place = (blockIdx.x * gridDim.y + blockIdx.y) * length * width;
    for (int j = 0; j < tiles; j++) {
        for (int c = 0; c < width; c++)
            near[threadIdx.x * width + c] = k[place + rows * width * j + threadIdx.x * width + c];
        __syncthreads();
        for (int i = 0; i < tiles; i++) {
            for (int c = 0; c < width; c++) {
                float sum = 0, own = q[place + rows * width * i + threadIdx.x * width + c];
                for (int y = 0; y < rows; y++) sum += near[y * width + c] * own;
                o[place + rows * width * i + threadIdx.x * width + c] += sum;
            }
        }
        __syncthreads();
    }
}
torch::Tensor forward(torch::Tensor q, torch::Tensor k)
{
    const int rows = 32;
    const int batch = q.size(0), heads = q.size(1), length = q.size(2), width = q.size(3);
    const int tiles = ceil((float) length / rows);
    auto o = torch::zeros_like(q);
    const int room = rows * width * sizeof(float);
    dim3 grid(batch, heads), block(rows);
    mix<<<grid, block, room>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), o.data_ptr<float>(), length, width, tiles, rows);
    return o;
}
"""
HANDED = """
template <typename T>
__device__ void halve(const T* x, T* y, int rows, int columns)
{
    const T* row = x + blockIdx.x * columns;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) y[blockIdx.x * columns + i] = row[i] / T(2);
}
#define HALVE(T, NAME) \\
    extern "C" __global__ void halve_##NAME(const T* x, T* y, int rows, int columns) \\
    { halve<T>(x, y, rows, columns); }
HALVE(float, f32)
HALVE(double, f64)
"""
PACKED = """
__global__ void norm(const float* x, float* y, int rows, int columns)
{
    const int row = blockIdx.x;
    const int packs = columns / 1;
    for (int i = threadIdx.x; i < packs; i += blockDim.x) y[row * packs + i] = 2 * x[row * packs + i];
}
"""
WINDOW = """
__global__ void near(const float* x, float* y, int n, int window)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int first = max(0, i - window), last = min(n - 1, i + window);
    float kept[33];
    for (int j = first, at = 0; j <= last; j++, at++) kept[at] = x[j];
    float sum = 0;
    for (int at = 0; at <= last - first; at++) sum += kept[at];
    y[i] = sum;
}
"""
ROTARY = """
__global__ void turn(float* q, const float* angle, int pitch_stride, int heads, int width)
{
    int token = blockIdx.x;
    for (int i = threadIdx.x; i < heads * width; i += blockDim.x) {
        int head = i / width;
        int at = token * pitch_stride + head * width;
        q[at + i % width] *= angle[i % width];
    }
}
"""
ACTIVATE = """
enum Kind { NONE_GIVEN, SQUARE, DOUBLE };
__device__ float activated(float v, Kind kind)
{
    switch (kind) {
        case SQUARE: return v * v;
        case DOUBLE: return 2 * v;
        case NONE_GIVEN:
        default: __trap();
    }
    return v;
}
__global__ void apply(const float* x, float* y, int n, Kind kind)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = activated(x[i], kind);
}
"""
LOADED = """
__global__ void copy(const float* x, float* y, int width, int height)
{
    int i = blockIdx.x * 16 + threadIdx.x, j = blockIdx.y * 16 + threadIdx.y;
    if (i < width && j < height) y[j * width + i] = x[j * width + i];
}
int main(int argc, char** argv)
{
    int width = 0, height = 0;
    float* x = load(argv[1], &width, &height);
    copy<<<dim3((width + 15) / 16, (height + 15) / 16), dim3(16, 16)>>>(x, x + 1, width, height);
}
"""
GROUPED = """
__global__ void scaled(const float* x, const float* scale, float* y, int rows, int columns, int group)
{
    int i = blockIdx.x * 16 + threadIdx.x, j = blockIdx.y * 16 + threadIdx.y;
    if (i >= columns || j >= rows) return;
    int groups = (columns + group - 1) / group;
    y[j * columns + i] = x[j * columns + i] * scale[j / group * groups + i / group];
}
"""
RIGHT = {
    "attention": (ATTENTION, "-a length=96 -a width=32 -a tiles=3 -a rows=32"),
    "handed": (HANDED, "--grid 64,1,1"),
    "packed": (PACKED, "--grid 64,1,1"),
    "window": (WINDOW, "-a window=2"),
    "rotary": (ROTARY, "-a pitch_stride=1024"),
    "activated": (ACTIVATE, "-a kind=1"),
    "grouped": (GROUPED, "-a rows=50 -a columns=55 -a group=16"),
    "loaded": (LOADED, "-a width=64 -a height=64"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_clean(name: str, tmp_path: Path) -> None:
    source, said = RIGHT[name]
    code, output = check(tmp_path, source)
    assert code == 0 and said in output, output


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "attention",
            "        }\n        __syncthreads();\n    }\n}",
            "        }\n    }\n}",
            "hazard",
        ),  # comes around
        pytest.param("attention", "j < tiles", "j <= tiles", "out of bounds", marks=pytest.mark.slow),
        ("handed", "i < columns", "i <= columns", "out of bounds"),
        ("packed", "i < packs", "i <= packs", "out of bounds"),
        ("window", "i + window)", "i + window + 1)", ""),
        ("window", "kept[33]", "kept[4]", "out of bounds"),
        ("window", "min(n - 1, i", "min(n, i", "out of bounds"),
        ("rotary", "i % width] *=", "i % width + heads] *=", "out of bounds"),
        ("activated", "i < n)", "i <= n)", "out of bounds"),
        ("grouped", "i >= columns", "i > columns", "out of bounds"),
        ("grouped", "y[j * columns + i]", "y[j * rows + i]", "race"),
        ("loaded", "i < width && j", "j", "out of bounds"),
    ],
)
def test_a_fault_is_found(name: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    source = RIGHT[name][0]
    assert old in source
    code, output = check(tmp_path, source.replace(old, new, 1))
    assert code == bool(said) and said in output, output


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        ("ceil((float) n / rows)", "(((  n ) + ( rows) - 1) / ( rows))"),
        ("std::ceil(n / 256.0f)", "(((n ) + ( 256) - 1) / ( 256))"),
        ("ceil(n / 256)", "ceil(n / 256)"),
        ("ceil((float)(n / 256))", "ceil((float)(n / 256))"),
        ("ceil(0.5f * n)", "ceil(0.5f * n)"),
        ("ceilf(float(a + b) / 32) * 2", "((((a + b) ) + ( 32) - 1) / ( 32)) * 2"),
    ],
)
def test_what_a_function_rounds_up_is_a_division_of_integers(written: str, whole: str) -> None:
    assert inlined.ceiled(written).replace(" ", "") == whole.replace(" ", "")


def test_a_row_of_pixels_is_no_item_of_its_own(tmp_path: Path) -> None:
    """Its stride is as long as a row: only what another size of the kernel multiplies is apart."""
    source = """
__global__ void invert(const unsigned char* in, unsigned char* out, int width, int height, int stride)
{
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x >= width || y >= height) return;
    int at = y * stride + x * 1;
    out[at] = 255 - in[at];
}
"""
    code, output = check(tmp_path, source)
    assert code == 0 and "stride=4096" not in output, output
    code, output = check(tmp_path, source.replace("y * stride", "(y + 1) * stride"))
    assert code == 1 and "out of bounds" in output, output


def test_a_window_goes_as_far_to_both_sides() -> None:
    body = "int first = max(0, i - w); int last = min(n - 1, i + w);"
    assert extents.radius(body, "w")
    assert not extents.radius(body.replace("i + w", "j + w"), "w")
    assert not extents.radius(body.replace("i + w", "i"), "w")


def test_of_several_functions_none_is_the_body_of_a_kernel() -> None:
    (entry,) = text.entries("__global__ void k(float* x, int n) { f(x, n); }")
    one = "__device__ void f(float* y, int m) { y[blockIdx.y * m] = s.m; }\n"
    found = inlined.called(one, entry)
    assert "x[blockIdx.y * n] = s.m" in found.body and found.dimensions == 2
    assert inlined.called(one + one.replace("float", "int"), entry) == entry
    for part in ("x[f(x, n)] = 1;", "if (n) f(x, n);", "return f(x, n) + 1;"):
        (other,) = text.entries(f"__global__ void k(float* x, int n) {{ {part} }}")
        assert inlined.called(one, other) == other
    (named,) = text.entries("__global__ void k(float* x, int n) { own::f(x, n); }")
    assert "x[blockIdx.y * n]" in inlined.called(one, named).body
    assert inlined.called("void g() { LOOP(i, n) { x[i] = 1; } }", entry) == entry


def test_tiles_that_host_code_counts() -> None:
    (launched,) = launches.launches(ATTENTION)
    (entry,) = text.entries(ATTENTION)
    derived = sizes.derived(launched, entry, ["length", "width", "tiles", "rows"])
    tiled = tiles.divisors(derived)
    assert tiled == {"tiles": "rows"} and tiles.by_host(launched, entry, tiled, {}) == {"rows": 32}
    usual = {"length": 32, "width": 32, "tiles": 32}
    assert tiles.around(usual, {"rows": 32}, derived, tiled, entry.body) == {"length": 96}
    assert not tiles.around(usual, {"rows": 8}, derived, tiled, entry.body)  # it comes around
    assert not tiles.around(usual, {"rows": 32}, derived, tiled, "x[tiles] = 1;")
    assert not tiles.divisors({"half": Expr.parse("n // 2")})


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("", 0),
        ("switch (m) { case FAR: f(); break; case NEAR: g(); }", 4),
        ("switch (m) { case Mode::OFF: assert(false); case Mode::LATE: f(); }", 5),
    ],
)
def test_an_enumerator_that_a_switch_takes(body: str, value: int) -> None:
    texts = ("enum class Mode { OFF, NEAR = 4, LATE, FAR };",)
    assert elements.enumerator("Mode", texts, body) == value
    assert elements.enumerator("Other", texts, body) is None


def test_what_is_added_to_the_number_of_a_block_is_an_offset() -> None:
    body = "int row = blockIdx.x + first_offset; if (row < n) x[row] = 1;"
    assert strided.offset(body, "first_offset") and not strided.offset(body, "n")
    assert not strided.offset(body.replace("+ first", "* first"), "first_offset")


BORDERED = """
#define R 4
__global__ void sums(const float* x, float* y, int nx, int ny)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x + R, j = blockIdx.y * blockDim.y + threadIdx.y + R;
    float sum = 0;
    for (int k = -R; k <= R; k++) sum += x[(j + k) * nx + i] + x[j * nx + i + k];
    y[j * nx + i] = sum;
}
void run(const float* x, float* y, int nx, int ny)
{
    dim3 blocks((nx - 2 * 4) / 16, (ny - 2 * 4) / 16, 1), threads(16, 16, 1);
    sums<<<blocks, threads>>>(x, y, nx, ny);
}
"""


def test_blocks_inside_of_a_border_are_whole(tmp_path: Path) -> None:
    code, said = check(tmp_path, BORDERED)
    assert code == 0 and "-a nx=72 -a ny=72" in said, said
    for old, new in (
        ("k <= R;", "k <= R + 1;"),
        ("y[j * nx + i]", "y[i * nx]"),
        ("threadIdx.y + R", "threadIdx.y + 2 * R"),
    ):
        code, said = check(tmp_path, BORDERED.replace(old, new))
        assert code == 1, said
