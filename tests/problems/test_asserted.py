"""Take what a kernel asserts of its threads as said, and rows to be as long as a constant says."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.kernels import text
from harness.kernels.cpp.host import tiles
from harness.kernels.cpp.host.values import Values
from shared.checking import check
from shared.sweeps import sweep

FUSED = """#include <cassert>
__global__ void fused(const float* a, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(i < n && "as many threads as elements");
    out[i] = 2 * a[i];
}
"""
PAIRS = """#include <cassert>
__global__ void turned(float* x, int n, float angle)
{
    int pair = blockIdx.x * blockDim.x + threadIdx.x;
    int i = 2 * pair;
    assert(i < n);
    float a = x[i], b = x[i + 1];
    x[i] = a * cosf(angle) - b * sinf(angle);
    x[i + 1] = a * sinf(angle) + b * cosf(angle);
}
"""
ROWS = """template <int kDim>
__global__ void copied(const float* x, float* out, int rows, int stride)
{
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    for (int c = threadIdx.x; c < kDim; c += blockDim.x) out[row * stride + c] = x[row * kDim + c];
}
void run(const float* x, float* out, int rows, int stride)
{
    copied<96><<<(rows + 3) / 4, dim3(32, 4)>>>(x, out, rows, stride);
}
"""
SAID = {
    FUSED: "-a a=1024 -a out=1024 -a n=1024",
    PAIRS: "-a x=1024 -a n=1024",
    ROWS: "-a rows=50 -a stride=96",
}
FAULTS = [
    (FUSED, "out[i] = 2", "out[i + 1] = 2"),
    (FUSED, "assert(i < n &&", "assert(i < n / 2 &&"),
    (FUSED, "2 * a[i]", "2 * a[i + 1]"),
    (PAIRS, "x[i + 1] = a", "x[i + 2] = a"),
    (PAIRS, "x[i] = a", "x[pair] = a"),
    (ROWS, "row >= rows", "row > rows"),
    (ROWS, "row * stride", "row"),
    (ROWS, "c < kDim", "c <= kDim"),
]


@pytest.mark.parametrize("source", SAID)
def test_a_right_kernel_is_clean(source: str, tmp_path: Path) -> None:
    code, said = check(tmp_path, source)
    assert code == 0 and SAID[source] in said, said


@pytest.mark.parametrize(("source", "old", "new"), sweep(FAULTS, lambda source, *_: source == FUSED))
def test_a_planted_fault_is_found(source: str, old: str, new: str, tmp_path: Path) -> None:
    assert source.count(old) == 1
    assert check(tmp_path, source.replace(old, new))[0] == 1


def test_an_assertion_of_the_host_s_own_launch_fails(tmp_path: Path) -> None:
    """Leave threads and sizes to host code where that says how many there are."""
    host = "int main() { float *a, *o; fused<<<4, 256>>>(a, o, 1000); }\n"
    code, said = check(tmp_path, FUSED + host, "-a", "n=1000")
    assert code == 1 and "assertion `i < n && " in said, said


def test_what_is_asserted_to_be_a_multiple_is_one() -> None:
    (entry,) = text.entries("""__global__ void k(float* x, int n, int m, int row, int rows) {
        assert(n % 32 == 0); CUDA_KERNEL_ASSERT((m % blockDim.x) == 0); assert(n % VEC == 0);
        assert(row < rows); }""")
    assert tiles.asserted(entry, 256, Values({"VEC": "12"})) == {"n": 96, "m": 256}
    assert tiles.of_thread("{ int i = threadIdx.x * 4; assert(i < n); }") == 4
    assert tiles.of_thread("{ int i = blockIdx.x * 4; assert(i < n); }") == 1
