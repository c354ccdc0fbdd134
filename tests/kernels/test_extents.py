"""Tests of what indices say of how long the buffers of kernels without front matter are."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import text
from harness.kernels.cpp import extents
from harness.kernels.cpp.host import values
from harness.kernels.cpp.source import inlined, strided

NUMBERS = values.constants(["#define K 40\nconst int PAIR = 2;"], (), {})
THREAD = "int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;"


@pytest.mark.parametrize(
    ("index", "width"),
    [("i * 3 + 2", 3), ("3 * (i + j) + 2", 3), ("(a * n + i) * 4 + 3", 4), ("i * 3 + 1", 1), ("i * 2 + 1", 1),
     ("at + 2", 3), ("at", 1), ("twice + 2", 1), ("mixed + 2", 1),
     ("i * 64 + 63", 1), ("i * 3 + 2 + j", 1), ("i + 2", 1), ("n", 1), ("of[i] * 3 + 2", 3)],
)  # fmt: skip
def test_numbers_that_belong_together(index: str, width: int) -> None:
    given = "int at = (j * w + i) * 3, mixed = i * 3 + j, twice = i * 3; twice = j * 3;"
    assert extents.width(f"{given} y[i * 5 + 4] = x[{index}] + x[i * 3 + 1];", "x", NUMBERS) == width


@pytest.mark.parametrize(
    ("use", "width"),
    [("x[i * K + k]", 40), ("x[K * i]", 40), ("x[(i) * K]", 40), ("x[i * PAIR]", 2), ("x[4 * i + k]", 4),
     ("f(x + i * K)", 40), ("f(&x[i * K])", 40), ("x[2 * i + 1]", 1), ("x[t * K]", 1), ("x[i * n]", 1),
     ("x[blockIdx.x * K + t]", 1), ("x[i * 9999]", 1), ("y[i * K]", 1)],
)  # fmt: skip
def test_elements_of_a_thread(use: str, width: int) -> None:
    """Take a constant times the number of a thread in the grid; of a block's number it is a tile."""
    assert extents.width(f"{THREAD} {use};", "x", NUMBERS) == width


@pytest.mark.parametrize(
    ("use", "width"),
    [("x[tile * 128 + threadIdx.x]", 128), ("x[b * 128 + threadIdx.x]", 1), ("x[tile * n + threadIdx.x]", 1),
     ("f(x + at + i * 4)", 40), ("x[at + t]", 40), ("x[flat + t]", 1), ("x[whole + t]", 1), ("y[at]", 1),
     ("f(x + (size_t)(blockIdx.x + i * gridDim.x) * K, 4)", 40), ("x[(b + gridDim.x) * n]", 1)],
)  # fmt: skip
def test_elements_of_an_item(use: str, width: int) -> None:
    """An item is what a loop, or a block and a size, count; a block alone has a tile."""
    given = "int tile = next(), b = blockIdx.x, flat = blockIdx.x * K, whole = blockIdx.y * n;"
    given += " size_t at = (size_t)blockIdx.y * n * K;"
    assert extents.width(f"{given} {use};", "x", NUMBERS) == width


@pytest.mark.parametrize(
    ("use", "share"),
    [("f(x + blockIdx.x * 6 * K)", 240), ("x[blockIdx.x * 6 * K + c * K + t] = 0", 240),
     ("x[blockIdx.x * n]", 0), ("x[blockIdx.x * blockDim.x + t]", 0), ("y[blockIdx.x * K]", 0),
     ("x[blockIdx.x * 9999]", 0)],
)  # fmt: skip
def test_elements_of_a_block(use: str, share: int) -> None:
    assert extents.shares(f"{use};", "x", NUMBERS) == share


@pytest.mark.parametrize(
    ("index", "width"),
    [("(y * w + x) * BINS + k", 9), ("i * 9 + l", 9), ("BINS * i + k", 9), ("i * 8 + k", 1), ("i * n + m", 1),
     ("i * BINS + j", 1), ("i * 99 + o", 1)],
)  # fmt: skip
def test_numbers_of_a_loop_belong_together(index: str, width: int) -> None:
    loops = "for (; k < BINS; ++k) for (; l < 9;) for (; m < n;) for (; o < 99;) for (; j <= 9;)"
    numbers = values.constants(["int BINS = n;", "constexpr int BINS = 9;"], {"n"}, {})
    own = 9 if "BINS" not in index and width == 9 else 1  # what the first text says of a name counts
    assert extents.width(f"{loops} x[{index}] = 1;", "x", numbers) == own
    numbers = values.constants(["", "constexpr int BINS = 9;"], {"n"}, {})
    assert extents.width(f"{loops} x[{index}] = 1;", "x", numbers) == width


@pytest.mark.parametrize(
    ("index", "factors"),
    [("x[z * n * n + y * n + i]", 2), ("x[n * n * z]", 2), ("x[i * n]", 1), ("x[0]; if (i < n * n) f()", 1),
     ("v(i, j)", 1), ("v.at(i, j, f(k, 1))", 2), ("v(i)", 0), ("v.set(i, j)", 0), ("f(v, i)", 0)],
)  # fmt: skip
def test_sizes_that_are_factors(index: str, factors: int) -> None:
    """A struct with an index operator has a product inside."""
    assert extents.factors(f"y = {index};", ["n", "v"]) == factors


@pytest.mark.parametrize(
    ("body", "offset"),
    [("x[at] = x[i + at] + x[i - at];", True), ("x[at] = x[at - 1 - i];", False),
     ("x[(y + at) * w] = 0;", True), ("x[i] = at;", False),
     ("if (i < at) x[at] = 1;", False), ("x[i * at + at] = 1;", False), ("x[i] = x[at % n];", False),
     ("f(x, at); x[at] = 1;", False), ("x[i] = 1;", False), ("x[matter + atom] = 1;", False),
     ("x[(i) + (at)] = 1;", True), ("x[(i) * (at) + (j)] = 1;", False)],
)  # fmt: skip
def test_what_is_only_added_in_indices_is_an_offset(body: str, offset: bool) -> None:
    assert strided.offset(body, "at") == offset
    assert strided.offsets(body, ["at", "n"]) == ({"at": 0} if offset else {})
    assert not strided.offsets(body, ["at"])  # one of a kernel's integers is a size


def test_what_is_called_an_offset_may_be_added_before() -> None:
    for body in ("i += offset; x[i] = n;", "int at = i + offset; x[at] = n;"):
        assert strided.offset(body, "offset")
        assert not strided.offset(body.replace("offset", "stride"), "stride")
    assert not strided.offset("i += offset; if (i < offset) x[i] = n;", "offset")
    assert strided.offset("int at = i + offset; if ((at - offset) < n) x[at] = n;", "offset")
    for factor in ("(k + 1) * i + k", "i * (k + 1) + k", "i*(k + 1)"):
        assert not strided.offset(f"x[{factor}] = 0;", "k")


def test_a_loop_goes_no_further_than_the_array_that_it_fills() -> None:
    for end, most in (("i < n", 7), ("i <= n", None), ("i < n + 1", 6)):  # <= may be the fault
        body = f"float a[7], b[9]; for (int i = 0; {end}; i++) a[i] = b[i];"
        assert extents.room(body, "n", values.Values({})) == most


@pytest.mark.parametrize(
    ("body", "window"),
    [
        ("int r = n / 2; for (int k = -r; k <= r; k++) s += x[i + k] * w[k + r];", True),
        ("const int half = n >> 1; for (int k = -half; k <= half; ++k) s += x[i + k];", True),
        ("int r = n / 2; for (int k = 0; k <= r; k++) s += x[i + k];", False),
        ("int r = m / 2; for (int k = -r; k <= r; k++) s += x[i + k] * w[n];", False),
    ],
)
def test_the_size_of_a_filter_is_twice_how_far_a_kernel_looks(body: str, window: bool) -> None:
    assert extents.window(body, "n") == window


@pytest.mark.parametrize(
    ("index", "border"),
    [("i + (n + 2) * j", 2), ("j * (n + 1)", 1), ("(n+2)*j + (n+3)*k", 3), ("n * 2", 0),
     ("(n + 255) / 256 * j", 0), ("i + n + 2", 0), ("(m + 2) * j", 0)],
)  # fmt: skip
def test_cells_of_a_border(index: str, border: int) -> None:
    assert extents.border(f"x[{index}] = 1;", "n") == border


def test_macros_and_functions_of_one_line_are_read_in_indices() -> None:
    source = """
#define IX(i, j) ((i) + (N + 2) * \\
                  (j))
#define AGAIN(j) IX(j, 1)
__device__ inline int flat(int x, int y, int width) { return y * width + x; }
__device__ float no_index(float a) { float b = a; return b * a; }
__global__ void k(float* x, int N, int w) { x[AGAIN(f(w, 1))] = x[flat(3, N, w)] + no_index(2) + IX(1); }
"""
    (entry,) = text.entries(source)
    body = inlined.body(source, entry)
    assert "x[((((f(w, 1)) + (N + 2) *" in body and "x[(N * w + 3)]" in body
    assert "no_index(2)" in body and "IX(1)" in body, "neither an expression nor its arguments"
    assert (extents.border(body, "N"), extents.factors(body, ["N", "w"])) == (2, 2)


def test_a_guard_that_returns_is_no_function() -> None:
    source = """
__global__ void k(float* x, int w, int h)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= w || j >= h) { return; }
    while (i < w) { return; }
    x[j * w + i] = 1;
}
"""
    (entry,) = text.entries(source)
    assert inlined.body(source, entry) == entry.body


@pytest.mark.parametrize(
    ("body", "radius"),
    [
        ("for (int k = -r; k <= r; k++) s += x[i + k];", True),
        ("for (int k = -r; k < r; k++) s += x[i + k];", False),
        ("t = 1.0f / (float)((r << 1) + 1);", True),
        ("s[threadIdx.x + 2 * r + 1] = 0;", True),
        ("x[2 * r] = 0;", False),
        ("for (int k = 0; k <= r; k++) s += x[i + k];", False),
    ],
)
def test_a_radius_is_how_far_a_kernel_looks_to_both_sides(body: str, radius: bool) -> None:
    assert extents.radius(body, "r") == radius
    size = body.replace("r)", "n)").replace("r;", "n;").replace("r <", "n <").replace("* r", "* n")
    sides = "-r" in body and radius  # 2 * n + 1 may be a size
    assert extents.radius(size.replace("-r", "-n"), "n") == sides


ROWS = """
__global__ void spmv(const int* begin, const int* column, const float* value, const float* x, float* y, int n)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    float sum = 0;
    for (int k = begin[row]; k < begin[row + 1]; ++k) sum += value[k] * x[column[k]];
    y[row] = sum;
}
"""
BORDER = """
#define AT(i, j) ((j) * (N + 2) + (i))
__global__ void step(float* next, const float* now, int N)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x + 1, j = blockIdx.y * blockDim.y + threadIdx.y + 1;
    if (i <= N && j <= N) next[AT(i, j)] = now[AT(i - 1, j)] + now[AT(i + 1, j)] + now[AT(i, j + 1)];
}
"""
CUBE = """
__device__ int flat(int x, int y, int z, int w, int h) { return x + y * w + z * w * h; }
__global__ void fill(float* cells, int width, int height, int depth)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x < width && y < height && z < depth) cells[flat(x, y, z, width, height)] = 1;
}
"""
EACH = """
#define MOST 16
__device__ void list(float* own) { for (int k = 0; k < MOST; ++k) own[k] = k; }
__global__ void lists(float* all, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) list(&all[i * MOST]);
}
"""


BLUR = """
__device__ float around(const float* x, int i, int n, int r)
{
    float sum = 0;
    for (int k = -r; k <= r; k++) sum += x[min(max(i + k, 0), n - 1)];
    return sum / (2 * r + 1);
}
__global__ void blur(const float* x, float* y, int n, int r)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    y[i] = r < i && i < n - r ? x[i - r] + x[i + r] : around(x, i, n, r);
}
"""
BINS = """
__global__ void count(const float* value, float* bins, int w, int h)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h)
        for (int k = 0; k < 5; ++k) bins[(y * w + x) * 5 + k] = value[y * w + x] * k;
}
"""
CHOSEN = """
__global__ void product(const unsigned long long* x, unsigned long long* high, int n, int at)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) high[i] = (unsigned __int128)x[i] * x[at] >> 64;
}
"""
SQUARES = """
__global__ void shift(const float* x, float* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    int k = blockIdx.z * blockDim.z + threadIdx.z;
    if (i < n && j < n && k < n) y[k * n * n + j * n + i] = x[k * n * n + j * n + i];
}
"""


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        pytest.param(CHOSEN, "x[at]", "x[at + n]", id="chosen"),
        pytest.param(BLUR, "i < n - r", "i <= n - r", id="blur"),
        pytest.param(BINS, "k < 5; ++k", "k <= 5; ++k", id="bins", marks=pytest.mark.slow),
        pytest.param(SQUARES, "y[k * n * n", "y[(k + 1) * n * n", id="squares", marks=pytest.mark.slow),
        pytest.param(ROWS, "row >= n", "row > n", id="rows", marks=pytest.mark.slow),
        pytest.param(BORDER, "now[AT(i, j + 1)]", "now[AT(i, j + 2)]", id="border", marks=pytest.mark.slow),
        pytest.param(CUBE, "cells[flat(x, y, z,", "cells[flat(x, y, z + 1,", id="cube"),
        pytest.param(EACH, "k < MOST", "k <= MOST", id="each", marks=pytest.mark.slow),
    ],
)
def test_kernels_run_in_bounds_and_their_faults_are_found(
    tmp_path: Path, source: str, right: str, wrong: str
) -> None:
    """Find what goes past the last row, border, plane and list."""
    assert right in source
    path = tmp_path / "k.cu"
    for changed, code, said in (
        (source, 0, "no reference"),
        (source.replace(right, wrong), 1, "out of bounds"),
    ):
        path.write_text(changed)
        ran = CliRunner().invoke(main, ["check", str(path)])
        assert ran.exit_code == code and said in ran.stdout, ran.output


@pytest.mark.parametrize(
    ("body", "width"),
    [
        ("int i = (z * ny + y) * nx + c; int e = 2 * i; s += x[e] + x[e + 1];", 2),
        ("int i = nx * (z * ny + y) + c; int e = i * 2; s += x[e] + x[e+1];", 2),
        ("int i = (z * ny + y) * nx + c; int e = 2 * i; s += x[e];", 1),
        ("int i = blockIdx.x * blockDim.x + threadIdx.x; int e = 2 * i; s += x[e] + x[e + 1];", 1),
        ("int e = 2 * threadIdx.x; s += x[e] + x[e + 1];", 1),
    ],
)
def test_complex_numbers_at_twice_an_index_of_several_dimensions(body: str, width: int) -> None:
    """Pairs of a thread may be halves of a block; twice the number of a cell is none."""
    assert extents.width(body, "x", values.Values({})) == width


@pytest.mark.parametrize(
    ("body", "dimension"),
    [
        ("for (int r = 0; r < n; r++) y[c] += x[r * w + c];", True),
        ("if (row >= n) return; x[w * row + c] = 0;", True),
        ("x[threadIdx.x + blockIdx.y * n] = 0;", True),
        ("x[n * blockIdx.x + threadIdx.x] = 0;", True),
        ("for (int k = 0; k <= 2 * n; k++) y[c] += x[c + k];", False),
        ("for (int c = 0; c < n; c++) y[i] += x[i * n + c];", True),
        ("y[i] = x[n * (i + 1)];", True),
        ("for (int r = 0; r < nn; r++) y[c] += x[r * w + c];", False),
    ],
)
def test_a_dimension_bounds_what_is_multiplied(body: str, dimension: bool) -> None:
    assert extents.dimension(body, "n") == dimension


@pytest.mark.parametrize(
    ("body", "bits"),
    [
        ("int m = 1 << n;", True),
        ("x[i] >>= n;", True),
        ("j = __brev(i) >> (32 - n);", True),
        ("j = i << (n - 1 - b);", True),
        ("j = 1 << n * 2;", False),
        ("j = n << 2;", False),
        ("j = 1 << nn;", False),
    ],
)
def test_a_number_of_bits_is_what_is_shifted_by(body: str, bits: bool) -> None:
    assert extents.shift(body, "n") == bits
