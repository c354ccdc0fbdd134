"""Programs of several files: each for itself, and with kernels that use each other's functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import EmulatorError
from harness.programs import Run, run_program
from harness.programs.runtime.linking import join
from shared.nvcc import kinds, needs_nvcc

HEADER = """
#include <cstdio>
template <int N> __device__ __noinline__ int times(int x) { return N * x; }
struct Shape { __device__ virtual int area() const { return 3; } };
"""

MAIN = """
#include "both.h"
#include <cuda_runtime.h>
extern __device__ int twice(int);
extern __device__ int table[32];
static __device__ int own = 5;
__global__ void use(int* to)
{
    int i = threadIdx.x;
    if (!i) printf("main %d\\n", times<3>(2));
    to[i] = twice(i) + table[i] + own + times<3>(i);
}
void fill(int);
int main(int argc, char**)
{
    int *d, host[32], wrong = 0;
    cudaMalloc(&d, sizeof host);
    fill(argc > 1 ? 33 : 32);
    use<<<1, 32>>>(d);
    cudaMemcpy(host, d, sizeof host, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 32; ++i) wrong += host[i] != 2 * i + 100 * i + 5 + 3 * i;
    return wrong;
}
"""

OTHER = """
#include "both.h"
__device__ int table[32];
static __device__ int own = 2;
__device__ int twice(int x) { return own * x + times<3>(x) - 3 * x; }
__global__ void set(int n)
{
    if (threadIdx.x < n) table[threadIdx.x] = 100 * threadIdx.x;
    if (!threadIdx.x) printf("other\\n");
}
void fill(int n) { set<<<1, 64>>>(n); }
"""


def linked(folder: Path, *arguments: str, other: str = OTHER) -> Run:
    """Build the two files apart and run them."""
    for name, text in {"both.h": HEADER, "main.cu": MAIN, "other.cu": other}.items():
        (folder / name).write_text(text)
    sources = [folder / "main.cu", folder / "other.cu"]
    return run_program(sources, arguments, flags=["-rdc=true"], quiet=True)


@needs_nvcc
@pytest.mark.slow
def test_kernels_use_functions_and_variables_of_other_files(tmp_path: Path) -> None:
    run = linked(tmp_path)
    assert (run.code, run.misuses, run.refusals, kinds(run)) == (0, {}, {}, set())
    assert [(one.launches, one.errors) for one in run.kernels.values()] == [(1, [])] * 2


@needs_nvcc
@pytest.mark.slow
def test_a_fault_in_another_file_is_found_there(tmp_path: Path) -> None:
    run = linked(tmp_path, "more")
    found = [f for one in run.kernels.values() for f, *_ in one.findings.values()]
    assert [f.kind for f in found] == ["out of bounds"]
    assert [Path(s.file).name for s in found[0].sources] == ["other.cu"]


def module(*lines: str) -> str:
    return "\n".join([".version 9.0", ".target sm_90a", ".address_size 64", *lines])


def test_what_is_weak_is_there_once_and_texts_stay_apart() -> None:
    one = module(
        '.file 1 "a.cu"',
        ".global .align 1 .b8 $str[2] = {65, 0};",
        ".weak .func f()\n{\n{\nret;\n}\n}",
        ".extern .func g\n(\n.param .b32 x\n)\n;",
        ".visible .entry k()\n{\n.loc 1 2 3\nmov.u64 %rd1, $str;\n}",
    )
    two = module(
        '.file 1 "b.cu"',
        ".global .align 1 .b8 $str[2] = {66, 0};",
        ".weak .func f()\n{\nret;\n}",
        ".visible .func g(\n.param .b32 x\n)\n{\n.loc 1 5 6\nret;\n}",
    )
    joined = join([one, two])
    assert joined.count(".func f()") == 1 and ".extern" not in joined and joined.count(".version") == 1
    assert "$str_0[2] = {65, 0}" in joined and "$str_1[2] = {66, 0}" in joined and "%rd1, $str_0;" in joined
    assert '.file 2 "b.cu"' in joined and ".loc 2 5 6" in joined and ".loc 1 2 3" in joined
    assert joined.index(".func g") < joined.index(".entry k")


def test_what_two_files_define_is_refused() -> None:
    text = module(".visible .func g()\n{\nret;\n}")
    with pytest.raises(EmulatorError, match="two files define g"):
        join([text, text])
