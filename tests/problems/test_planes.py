"""Arrays of several planes, pairs and rows that fit an array of a thread; and how parameters are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.kernels.cpp import extents
from harness.kernels.cpp.host.values import Values
from shared.checking import check

THREAD = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
POINTS = f"""
__global__ void points(const int* edge, const float* at, float* pull, int count, int edges)
{{
    {THREAD}
    if (i >= edges) return;
    int a = edge[2 * i], b = edge[2 * i + 1];
    float dx = at[a] - at[b], dy = at[a + count] - at[b + count];
    atomicAdd(&pull[a], dx);
    atomicAdd(&pull[count + a], dy);
}}
"""
BEST = f"""
__global__ void best(const float* x, float* kept, int k, int n)
{{
    {THREAD}
    if (i >= n) return;
    float own[8];
    for (int e = 0; e < k; e++) own[e] = 1e30f;
    for (int j = 0; j < n; j++)
        for (int e = 0; e < k; e++)
            if (x[j] * x[i] < own[e]) {{ own[e] = x[j] * x[i]; break; }}
    for (int e = 0; e < k; e++) kept[i * k + e] = own[e];
}}
"""
SPLICED = f"""
__global__ void spliced(const float* x, \\
                        float* y, int n)
{{
    {THREAD}
    if (i < n) y[i] = x[i];
}}
"""
ALIAS = f"""#include <torch/types.h>
using namespace torch;
#define ROWS PackedTensorAccessor32<scalar_t, 2, RestrictPtrTraits>
template <typename scalar_t>
__global__ void alias(const ROWS x, ROWS y)
{{
    {THREAD}
    if (i < x.size(0))
        for (int c = 0; c < x.size(1); c++) y[i][c] = x[i][c];
}}
"""
MASKS = f"""#include <THC/THCDeviceUtils.cuh>
__global__ void masks(const float* x, unsigned long long* mask, int n)
{{
    {THREAD}
    if (i >= n) return;
    mask[i] = x[i] > THCCeilDiv(n, 64);
}}
"""


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (POINTS, "i >= edges", "i > edges"),
        pytest.param(POINTS, "count + a]", "count + i * 2]", marks=pytest.mark.slow),
        pytest.param(BEST, "e++) own[e] = 1e30f", "e++) own[e + 1] = 1e30f", marks=pytest.mark.slow),
        (SPLICED, "i < n", "i <= n"),
        (ALIAS, "i < x.size(0)", "i <= x.size(0)"),
        pytest.param(MASKS, "i >= n", "i > n", marks=pytest.mark.slow),
    ],
    ids=["pairs", "planes", "own array", "spliced", "alias", "ceil"],
)
def test_right_kernels_are_clean_and_faults_are_found(
    tmp_path: Path, source: str, old: str, new: str
) -> None:
    code, said = check(tmp_path, source)
    assert (code, "FAILED" in said) == (0, False), said
    assert old in source
    code, said = check(tmp_path, source.replace(old, new, 1))
    assert code == 1 and re.search("out of bounds|hazard|global race|uninitialised", said), said


@pytest.mark.parametrize(
    ("body", "width"),
    [
        ("if (i < n) y = x[i] * x[n + i];", 2),
        ("if (i >= n) return; y = x[i] + x[i + n] + x[i + 2 * n];", 3),
        ("int a = i; if (i >= n) return; y = x[a] + x[n + a];", 2),
        ("int a = at[i]; y = x[a] + x[a + n];", 2),
        ("if (i < n) y = x[2 * i + 1];", 2),
        ("if (i < n / 2) y = x[2 * i + 1];", 1),
        ("for (int n = 8; n; n /= 2) if (i < n) x[i] += x[i + n];", 1),
        ("if (i < n - 1) y = x[i + n];", 1),
        ("y = x[i] + x[i + n];", 1),
        ("if (i < n) y = x[n + i];", 1),
    ],
    ids=["planes", "three", "copy", "read", "pairs", "half", "steps", "fewer", "no end", "one alone"],
)
def test_planes_and_pairs(body: str, width: int) -> None:
    assert extents.width(f"{THREAD} {body}", "x", Values({})) == width


def test_a_size_is_no_longer_than_an_array_of_a_thread() -> None:
    body = "float own[8]; for (int e = 0; e < k; e++) own[e] = 0;"
    assert extents.room(body, "k", Values({})) == 8
    assert extents.room(body.replace("8", "n"), "k", Values({})) is None
    assert extents.room(body, "n", Values({})) is None
