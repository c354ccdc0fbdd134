"""Kernels of PyTorch's extensions, which take accessors: right ones are clean, and faults are found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BuildError
from harness.kernels import catalog
from harness.kernels.compiler import compile_kernel
from harness.kernels.cpp import elements, includes
from harness.kernels.cpp.source import macros
from harness.problems.guessed import accessors
from harness.problems.registry import resolve
from harness.support.cache import Cache
from harness.support.files import SHIPPED
from shared.checking import check

TORCH = "#include <torch/extension.h>\n"
HEADER = SHIPPED / "cu" / "include" / "std" / includes.ACCESSORS
XY = "int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;"
SCALE = """
template <typename scalar_t>
__global__ void scale(torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> in,
                      torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> out, float s)
{
    const int n = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < in.size(1)) out[n][c] = in[n][c] * s;
}
torch::Tensor run(torch::Tensor x, float s)
{
    auto y = torch::empty_like(x);
    const int threads = 256;
    const dim3 blocks((x.size(1) + threads - 1) / threads, x.size(0));
    AT_DISPATCH_FLOATING_TYPES(x.type(), "scale", ([&] {
        scale<scalar_t><<<blocks, threads>>>(
            x.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
            y.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(), s);
    }));
    return y;
}
"""
CELL = """
template <typename scalar_t> __device__ scalar_t squash(scalar_t z) { return 1.0 / (1.0 + exp(-z)); }
template <typename scalar_t>
__global__ void cell(const torch::PackedTensorAccessor<scalar_t, 3, torch::RestrictPtrTraits, size_t> gates,
                     const torch::PackedTensorAccessor<scalar_t, 2, torch::RestrictPtrTraits, size_t> old,
                     torch::PackedTensorAccessor<scalar_t, 2, torch::RestrictPtrTraits, size_t> kept)
{
    const int n = blockIdx.y;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column < gates.size(2)) {
        auto gate = gates[n];
        const auto open = squash(gate[0][column]);
        kept[n][column] = open * old[n][column] + squash(gate[1][column]) * gate[2][column];
    }
}
void run(torch::Tensor gates, torch::Tensor old, torch::Tensor kept)
{
    const auto batch = old.size(0), state = old.size(1);
    const dim3 blocks((state + 1023) / 1024, batch);
    cell<float><<<blocks, 1024>>>(
        gates.packed_accessor<float, 3, torch::RestrictPtrTraits, size_t>(),
        old.packed_accessor<float, 2, torch::RestrictPtrTraits, size_t>(),
        kept.packed_accessor<float, 2, torch::RestrictPtrTraits, size_t>());
}
"""
PRODUCT = f"""
using Matrix = torch::PackedTensorAccessor32<float, 2>;
__global__ void product(const Matrix a, const Matrix b, Matrix c)
{{
    {XY}
    if (y >= c.size(0) || x >= c.size(1)) return;
    float sum = 0;
    for (int k = 0; k < a.size(1); ++k) sum += a[y][k] * b[k][x];
    c[y][x] = sum;
}}
"""
FILTER = """
__global__ void filter(at::PackedTensorAccessor64<float, 4> in, at::PackedTensorAccessor64<float, 4> weight,
                       at::PackedTensorAccessor64<float, 4> out)
{
    const int w = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y * blockDim.y + threadIdx.y;
    const int n = blockIdx.z;
    if (h >= out.size(2) || w >= out.size(3)) return;
    for (int k = 0; k < weight.size(0); k++) {
        float sum = 0;
        for (int c = 0; c < weight.size(1); c++)
            for (int i = 0; i < weight.size(2); i++)
                for (int j = 0; j < weight.size(3); j++) sum += in[n][c][h + i][w + j] * weight[k][c][i][j];
        out[n][k][h][w] = sum;
    }
}
"""
POOL = """
template <typename T>
__global__ void pool(const int64_t total, const torch::PackedTensorAccessor64<T, 4> in,
                     torch::PackedTensorAccessor64<T, 4> out, int size, int stride, int pad)
{
    const auto H = out.size(2), W = out.size(3), C = out.size(1);
    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += blockDim.x * gridDim.x) {
        const auto w = i % W, h = (i / W) % H, c = (i / (W * H)) % C, n = i / (W * H * C);
        T best = -1e30;
        for (int a = 0; a < size; a++)
            for (int b = 0; b < size; b++) {
                const auto y = h * stride - pad + a, x = w * stride - pad + b;
                if (y >= 0 && y < in.size(2) && x >= 0 && x < in.size(3)) best = max(best, in[n][c][y][x]);
            }
        out[n][c][h][w] = best;
    }
}
"""
SUMS = """
template <typename T>
__global__ void sums(const torch::PackedTensorAccessor32<T, 2, torch::RestrictPtrTraits> x,
                     torch::PackedTensorAccessor32<T, 1, torch::RestrictPtrTraits> out)
{
    __shared__ T part[256];
    const auto row = x[blockIdx.x];
    T mine = 0;
    for (int i = threadIdx.x; i < row.size(0); i += blockDim.x) mine += row[i];
    part[threadIdx.x] = mine;
    __syncthreads();
    for (int d = blockDim.x / 2; d > 0; d /= 2) {
        if (threadIdx.x < d) part[threadIdx.x] += part[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
"""
NEAREST = """
#define ACCESSOR(T, n) torch::PackedTensorAccessor32<T, n, torch::RestrictPtrTraits>
template <typename scalar_t>
__global__ void nearest(const ACCESSOR(scalar_t, 3) a, const ACCESSOR(scalar_t, 3) b, ACCESSOR(int, 2) which)
{
    const int batch = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.size(1)) return;
    scalar_t best = 1e30;
    for (int j = 0; j < b.size(1); j++) {
        scalar_t far = 0;
        for (int k = 0; k < 3; k++) far += abs(a[batch][i][k] - b[batch][j][k]);
        if (far < best) { best = far; which[batch][i] = j; }
    }
}
"""
TURN = """
__global__ void turn(torch::PackedTensorAccessor32<float, 2> in, torch::PackedTensorAccessor32<float, 2> out)
{
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    if (y < in.size(0) && x < in.size(1)) tile[threadIdx.y][threadIdx.x] = in[y][x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    if (y < out.size(0) && x < out.size(1)) out[y][x] = tile[threadIdx.x][threadIdx.y];
}
"""
TILED = """
__global__ void tiled(torch::PackedTensorAccessor32<float, 2> A, torch::PackedTensorAccessor32<float, 2> B,
                      torch::PackedTensorAccessor32<float, 2> C)
{
    __shared__ float a[16][16], b[16][16];
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    const int M = A.size(0), K = A.size(1), N = B.size(1);
    float sum = 0;
    for (int t = 0; t < (K + 15) / 16; t++) {
        a[threadIdx.y][threadIdx.x] = row < M && t * 16 + threadIdx.x < K ? A[row][t * 16 + threadIdx.x] : 0;
        b[threadIdx.y][threadIdx.x] = col < N && t * 16 + threadIdx.y < K ? B[t * 16 + threadIdx.y][col] : 0;
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += a[threadIdx.y][k] * b[k][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) C[row][col] = sum;
}
"""
HEADS = """
__global__ void heads(const torch::PackedTensorAccessor32<float, 4, torch::RestrictPtrTraits> q,
                      const torch::PackedTensorAccessor32<float, 4, torch::RestrictPtrTraits> k,
                      torch::PackedTensorAccessor32<float, 4, torch::RestrictPtrTraits> scores)
{
    const int b = blockIdx.z / q.size(1), h = blockIdx.z % q.size(1);
    const int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= scores.size(2) || j >= scores.size(3)) return;
    float sum = 0;
    for (int d = 0; d < q.size(3); d++) sum += q[b][h][i][d] * k[b][h][j][d];
    scores[b][h][i][j] = sum;
}
"""
ROWS = """
__global__ void rows(torch::PackedTensorAccessor64<int64_t, 1> begins,
                     torch::PackedTensorAccessor64<int, 1> at,
                     torch::PackedTensorAccessor64<float, 1> x, torch::PackedTensorAccessor64<float, 1> y)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= y.size(0)) return;
    float sum = 0;
    for (auto k = begins[row]; k < begins[row + 1]; k++) sum += x[at[k]];
    y[row] = sum;
}
"""
BORDER = f"""
__global__ void blur(const torch::PackedTensorAccessor32<float, 2> in,
                     torch::PackedTensorAccessor32<float, 2> out,
                     const int rows, const int cols)
{{
    {XY}
    if (x < 1 || y < 1 || x >= cols - 1 || y >= rows - 1) return;
    out[y][x] = (in[y - 1][x] + in[y + 1][x] + in[y][x - 1] + in[y][x + 1]) / 4;
}}
"""
FOUND = "out of bounds|global race"


def checked(folder: Path, source: str, *options: str) -> tuple[int, str]:
    """Return the exit code of `harness check`, and what it says."""
    return check(folder, TORCH + source, *options)


def slow(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("source", "old", "new", "finding"),
    [
        (SCALE, "if (c < in.size(1)) ", "", FOUND),
        (CELL, "column < gates", "column <= gates", FOUND),
        (PRODUCT, "y >= c.size(0) || x >= c.size(1)", "x >= c.size(0) || y >= c.size(1)", FOUND),
        slow(FILTER, "i < weight.size(2)", "i <= weight.size(2)", "out of bounds"),
        slow(POOL, "i < total", "i <= total", "out of bounds"),
        (SUMS, "        __syncthreads();\n", "", "hazard"),
        slow(NEAREST, "j < b.size(1)", "j <= b.size(1)", "out of bounds"),
        (TURN, "    __syncthreads();\n", "", "hazard"),
        (TURN, "x < out.size(1)", "x <= out.size(1)", FOUND),
        slow(TILED, "col < N && t", "col <= N && t", "out of bounds"),
        slow(HEADS, "d < q.size(3)", "d <= q.size(3)", "out of bounds"),
        slow(ROWS, "row >= y.size(0)", "row > y.size(0)", "out of bounds"),
        slow(BORDER, "y >= rows - 1", "y >= rows", "out of bounds"),
    ],
    ids=[
        "guard",
        "gates",
        "swapped",
        "filter",
        "total",
        "shared",
        "macro",
        "tile",
        "turned",
        "tiles",
        "heads",
        "rows",
        "border",
    ],
)
def test_right_kernels_are_clean_and_faults_are_found(
    tmp_path: Path, source: str, old: str, new: str, finding: str
) -> None:
    code, said = checked(tmp_path, source)
    assert (code, "FAILED" in said) == (0, False), said
    assert old in source
    code, said = checked(tmp_path, source.replace(old, new, 1))
    assert code == 1 and re.search(finding, said), said


def problem(folder: Path, source: str, **axes: int) -> Any:
    path = folder / "k.cu"
    path.write_text(TORCH + source)
    return resolve(next(iter(catalog.find(str(path))))).from_axes(axes)


@pytest.mark.parametrize(
    ("source", "sizes"),
    [
        (CELL, {"gates": (32, 3, 32), "old": (32, 32), "kept": (32, 32)}),
        (FILTER, {"in": (12, 6, 14, 14), "weight": (6, 6, 3, 3), "out": (12, 6, 12, 12)}),
        (NEAREST, {"a": (32, 32, 3), "b": (32, 32, 3), "which": (32, 32)}),
        (ROWS, {"begins": (1001,), "at": (1000,), "x": (1000,), "y": (1000,)}),
    ],
    ids=["gates", "filter", "macro", "rows"],
)
def test_sizes_follow_from_the_indices(
    tmp_path: Path, source: str, sizes: dict[str, tuple[int, ...]]
) -> None:
    given = problem(tmp_path, source).axes
    assert {name: tuple(given[f"{name}.{d}"] for d in range(len(n))) for name, n in sizes.items()} == sizes


def test_what_is_alike_has_the_size_that_is_given(tmp_path: Path) -> None:
    """The last rows are the argument's bytes: a pointer, the sizes and the strides."""
    given = vars(problem(tmp_path, PRODUCT, **{"a.1": 7, "c.0": 5}))
    assert [given[f"{x}.{d}"] for x in "abc" for d in (0, 1)] == [5, 7, 7, 64, 5, 64]
    assert [given[f"{x}.elements"] for x in "abc"] == [35, 448, 320]
    given = problem(tmp_path, SCALE, **{"in.1": 7})
    packed = given.arguments()[0].pack(lambda name: {"in.elements": 1}[name])
    assert [int.from_bytes(packed[at : at + 4], "little") for at in range(0, 24, 4)] == [1, 0, 64, 7, 7, 1]
    given = problem(tmp_path, FILTER, **{"weight.3": 5})
    assert given.__dict__["in.3"] == 16
    packed = given.arguments()[1].pack(lambda name: 0)
    assert len(packed) == 72 and int.from_bytes(packed[-32:-24], "little") == 6 * 3 * 5


@pytest.mark.parametrize(
    ("source", "axes"),
    [
        (SCALE, [{"in.0": 50, "in.1": 55}]),
        (PRODUCT, [{"a.0": 50, "a.1": 55, "b.1": 59}]),
        (BORDER, [{"rows": 50, "cols": 55}]),
        (TURN, [{"in.0": 50, "in.1": 50}]),
        (TILED, [{"A.0": 50, "A.1": 55, "B.1": 59}]),
        (TILED.replace("(K + 15) / 16", "K / 16"), []),
        (ROWS, []),
    ],
    ids=["two", "three", "parameters", "set anew", "tiles", "whole tiles", "one"],
)
def test_other_sizes_differ_where_that_is_right(
    tmp_path: Path, source: str, axes: list[dict[str, int]]
) -> None:
    assert list(type(problem(tmp_path, source)).verify_axes) == [{}, *axes]


def test_a_count_of_elements_follows_their_sizes(tmp_path: Path) -> None:
    given = problem(tmp_path, POOL)
    assert given.axes["total"] == 12**4 and given.axes["size"] == 3
    ((_, uneven),) = [type(given).verify_axes]
    other = type(given).from_axes(uneven)
    sizes = [vars(other)[f"out.{d}"] for d in range(4)]
    assert uneven["total"] == sizes[0] * sizes[1] * sizes[2] * sizes[3] and len({*sizes}) == 4


@pytest.mark.parametrize(
    ("source", "extents"),
    [(SCALE, (64, 64)), (FILTER, (12, 12, 12)), (POOL, (12**4,)), (SUMS, (64,)), (HEADS, (144, 12, 12))],
    ids=["host", "items", "total", "rows", "parts"],
)
def test_blocks_cover_the_sizes(tmp_path: Path, source: str, extents: tuple[int, ...]) -> None:
    assert problem(tmp_path, source).extents == extents


def test_the_stand_in_lies_as_its_type_says(tmp_path: Path) -> None:
    texts = [HEADER.read_text()]
    types = [
        "torch::PackedTensorAccessor32<float, 3>",
        "at::PackedTensorAccessor64<double, 1>",
        "PackedTensorAccessor<float, 2, at::RestrictPtrTraits, size_t>",
        "at::GenericPackedTensorAccessor<const int, 2, torch::DefaultPtrTraits, int>",
    ]
    kinds = [elements.of(t, texts) for t in types]
    assert [accessors.rank(kind) for kind in kinds] == [3, 1, 2, 2]
    sizes = [
        f'static_assert(sizeof({t}) == {elements.size(k)}, "");'
        for t, k in zip(types, kinds, strict=True)
        if k
    ]
    path = tmp_path / "k.cu"
    path.write_text(
        "\n".join([TORCH, "using namespace at;", "__global__ void k(int* x) { *x = 1; }", *sizes])
    )
    (kernel,) = catalog.load_each(path)
    assert compile_kernel(kernel.variant(), "sm_80", Cache(tmp_path / "cache")).code


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("x[0][0] = y[1][0] + x[0].size(0) + y.stride(1) + *y[1].data();", ""),
        ("y[0][0] = 1;", "expression must be a modifiable lvalue"),
        ("x[0] = 1;", 'no operator "="'),
    ],
    ids=["right", "of a constant", "of a row"],
)
def test_the_stand_in_takes_what_pytorch_takes(tmp_path: Path, body: str, error: str) -> None:
    path = tmp_path / "k.cu"
    types = "torch::PackedTensorAccessor32<float, 2> x, const torch::PackedTensorAccessor64<float, 2> y"
    path.write_text(f"{TORCH}__global__ void k({types}) {{ {body} }}")
    (kernel,) = catalog.load_each(path)
    try:
        compile_kernel(kernel.variant(), "sm_80", Cache(tmp_path / "cache"))
    except BuildError as e:
        assert error and error in e.log
    else:
        assert not error


def test_a_file_that_defines_accessors_keeps_its_own(tmp_path: Path) -> None:
    own = "namespace torch { template <class T, int N> struct PackedTensorAccessor32 { T* x; int n; }; }\n"
    kernel = (
        "__global__ void k(torch::PackedTensorAccessor32<float, 2> a) { if (threadIdx.x < a.n) a.x[0] = 1; }"
    )
    path = tmp_path / "k.cu"
    path.write_text(TORCH + own + kernel)
    (found,) = catalog.load_each(path)
    assert includes.ACCESSORS not in {file.name for file in includes.of(found).own}
    assert problem(tmp_path, own + kernel).axes.keys() == {"a", "a.x"}


@pytest.mark.parametrize(
    "declared",
    ["torch::PackedTensorAccessor32<at::Quantized, 2>", "torch::TensorAccessor<float, 1>"],
    ids=["element", "of the host"],
)
def test_what_no_value_is_known_for_is_told_in_a_line(tmp_path: Path, declared: str) -> None:
    code, said = checked(tmp_path, f"__global__ void k({declared} x) {{ }}")
    assert code == 2 and f"x of k is a {declared}, for which no value can be guessed" in said
    assert "harness new" in said


def test_too_many_elements_are_told(tmp_path: Path) -> None:
    code, said = checked(tmp_path, PRODUCT, "-a", "a.0=100000", "-a", "a.1=100000")
    assert code == 2 and "a.elements would have 10,000,000,000 elements" in said and "-a a.0=16" in said


def test_calls_of_macros_stand_for_types() -> None:
    source = "#define ACC(T, n) at::Accessor<T, n>\n"
    calls = {"ACC(float, 2)": "at::Accessor<float, 2>", "two": "two", "": ""}
    calls["ACC(float, 2) x"] = "ACC(float, 2) x"
    assert {call: macros.meant(source, call) for call in calls} == calls
