"""Extents of tensors that only host code tells: kernels that keep to them are clean, and faults are found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.kernels import catalog
from harness.problems.registry import resolve
from shared.checking import check

WINDOWS = """#include <torch/extension.h>
template <typename scalar_t>
__global__ void windows(const torch::PackedTensorAccessor32<scalar_t, 3, torch::RestrictPtrTraits> x,
                        torch::PackedTensorAccessor32<scalar_t, 3, torch::RestrictPtrTraits> sums, int reach)
{
    const int n = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= x.size(2)) return;
    const int wide = 2 * reach + 1;
    for (int k = 0; k < wide + 1; k++) {
        const int at = i - reach + k;
        if (at < 0 || at >= x.size(2)) continue;
        const scalar_t v = x[n][0][at];
        if (k > 0) sums[n][k - 1][i] += v;
        if (k < wide) sums[n][k][i] -= v;
    }
}
torch::Tensor run(torch::Tensor x, int radius)
{
    const auto batch = x.size(0);
    const int64_t length = x.size(2);
    auto sums = torch::zeros({batch, 2 * radius + 1, length}, x.options());
    const dim3 grid((length + 127) / 128, batch);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "windows", ([&] {
        windows<scalar_t><<<grid, 128>>>(x.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
                                         sums.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
                                         radius);
    }));
    return sums;
}
"""
COLUMNS = """#include <torch/extension.h>
using Rows = torch::PackedTensorAccessor32<float, 2>;
__global__ void turned(Rows in, Rows out, int H, int W, int all)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= all) return;
    out[i % W][i / W] = in[i / W][i % W];
}
torch::Tensor run(torch::Tensor in)
{
    const int H = in.size(0), W = in.size(1);
    auto out = at::empty({W, H}, in.options());
    auto from = in.packed_accessor32<float, 2>();
    auto to = out.packed_accessor32<float, 2>();
    const int threads = 128;
    turned<<<(H * W + threads - 1) / threads, threads>>>(from, to, H, W, H * W);
    return out;
}
"""


def extents(folder: Path, source: str, **axes: int) -> dict[str, Any]:
    path = folder / "k.cu"
    path.write_text(source)
    problem: Any = resolve(next(iter(catalog.find(str(path))))).from_axes(axes)
    return {name: vars(problem).get(name, n) for name, n in problem.axes.items()}


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (WINDOWS, "if (k < wide)", "if (k <= wide)"),
        pytest.param(WINDOWS, "i >= x.size(2)", "i > x.size(2)", marks=pytest.mark.slow),
        (COLUMNS, "out[i % W][i / W]", "out[i / W][i % W]"),
        pytest.param(COLUMNS, "i >= all", "i > all", marks=pytest.mark.slow),
        pytest.param(COLUMNS, "empty({W, H}", "empty({H, W}", marks=pytest.mark.slow),
    ],
    ids=["last window", "guard", "columns", "all", "host"],
)
def test_what_host_code_makes_is_as_long_as_it_says(tmp_path: Path, source: str, old: str, new: str) -> None:
    code, said = check(tmp_path, source)
    assert (code, "FAILED" in said) == (0, False), said
    assert old in source
    code, said = check(tmp_path, source.replace(old, new, 1))
    assert code == 1 and re.search("out of bounds|global race|hazard", said), said


def test_extents_follow_from_others(tmp_path: Path) -> None:
    given = extents(tmp_path, WINDOWS)
    assert [given[f"sums.{d}"] for d in range(3)] == [32, 2 * given["reach"] + 1, 32]
    given = extents(tmp_path, WINDOWS, reach=4, **{"x.2": 20})
    assert [given[f"sums.{d}"] for d in range(3)] == [32, 9, 20]
    given = extents(tmp_path, COLUMNS)
    assert (given["H"], given["W"], given["all"]) == (64, 64, 4096)


def test_what_depends_on_a_branch_is_not_told(tmp_path: Path) -> None:
    """Nor is what cannot be evaluated: the text alone says how long it is then."""
    more = "auto sums = torch::zeros({batch, 7, length}); if (radius > 3) sums = torch::ones({1, 1}); else"
    for source in (
        WINDOWS.replace("auto sums", f"{more} sums"),
        WINDOWS.replace("2 * radius + 1", "radius < 3 ? 5 : 2 * radius + 1"),
    ):
        given = extents(tmp_path, source)
        assert given["sums.1"] == 2 * given["reach"] + 1
