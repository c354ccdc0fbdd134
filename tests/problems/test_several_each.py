"""Blocks that cover several elements for each thread, as reductions do; what only prints; large headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.kernels.cpp import includes
from shared.checking import check
from shared.sweeps import sweep

HALVES = """
__global__ void halves(const float* x, float* sums, int n) {
  __shared__ float part[256];
  INDEX
  part[threadIdx.x] = (i < n ? x[i] : 0) + (i + blockDim.x < n ? x[i + blockDim.x] : 0);
  __syncthreads();
  for (int k = 128; k > 0; k /= 2) {
    if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0] + x[i];
}
"""
CASES = [
    "int i = blockIdx.x * blockDim.x * 2 + threadIdx.x;",
    "int i = blockIdx.x * (blockDim.x * 2) + threadIdx.x;",
    "int i = 2 * blockIdx.x * blockDim.x + threadIdx.x;",
    "int t = blockDim.x, b = blockIdx.x; int i = b * t * 2 + threadIdx.x;",
    "int all = 2 * blockDim.x; int i = blockIdx.x * all + threadIdx.x;",
]


@pytest.mark.parametrize("index", sweep(CASES, lambda index: "all" in index))
def test_no_block_is_behind_the_last_element(tmp_path: Path, index: str) -> None:
    """The first thread of each has one, which needs no guard; in the last block others have none."""
    source = HALVES.replace("INDEX", index)
    code, said = check(tmp_path, source)
    assert code == 0 and "--grid 2,1,1" in said, said
    code, said = check(tmp_path, source.replace("i < n ? x[i] : 0", "x[i]"))
    assert code == 1 and "out of bounds" in said and "FAILED" in said, said


def test_a_variable_with_the_name_of_an_axis(tmp_path: Path) -> None:
    source = HALVES.replace("INDEX", CASES[0]).replace("x[", "v[").replace("* x,", "* v,")
    source = source.replace("__syncthreads();", "int x = 7; (void)x; __syncthreads();", 1)
    code, said = check(tmp_path, source)
    assert code == 0 and "--grid 2,1,1" in said, said


@pytest.mark.slow
def test_a_step_that_is_no_multiple_of_the_block_is_as_before(tmp_path: Path) -> None:
    _, said = check(tmp_path, HALVES.replace("INDEX", CASES[0].replace("* 2", "")))
    assert "--grid 4,1,1" in said


def test_what_a_kernel_only_reads_is_there(tmp_path: Path) -> None:
    """Without any other buffer it is no output."""
    source = """#include <cstdio>
__global__ void show(const int* x, int n) {
  volatile __shared__ int first[1];
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n && x[i] < 0) printf("%d", x[i]);
  if (FAULT) printf("%d", first[0]);
}"""
    assert check(tmp_path, source.replace("FAULT", "n < 0"))[0] == 0
    code, said = check(tmp_path, source.replace("FAULT", "i == 0"))
    assert code == 1 and "first at offset 0 was never written" in said, said


def test_headers_of_a_library_in_the_repository_are_not_all_read(tmp_path: Path) -> None:
    """Those that the file includes itself come first, and megabytes do not count."""
    (tmp_path / "large.h").write_text(
        '#include "deep.h"\n' + "inline int name() { return 1; }\n" * (includes._READ // 20)
    )
    (tmp_path / "deep.h").write_text("#define DEEP 1\n")
    (tmp_path / "near.h").write_text("#define WIDTH 64\n")
    source = tmp_path / "k.cu"
    source.write_text('#include "large.h"\n#include "near.h"\n')
    found = includes.included(source, source.read_text())
    assert len(found.own) == 3 and found.read == (b"#define WIDTH 64\n", b"#define DEEP 1\n")
