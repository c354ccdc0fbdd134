"""Small kernels that tests write into files of their own, and the parameter sets that they visit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from harness.kernels.spec import Kernel, Variant

KERNEL = """\
// {title}
//
// /// kernel
// entry = "matmul"
// block = ["TILE", "TILE"]
// tile  = ["TILE", "TILE"]
{extra}//
// [params]
// TILE = [16, 8]
// ///
{body}
"""
BODY = """\
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * lda + k] * B[k * ldb + col];
    C[row * ldc + col] = beta == 0 ? alpha * sum : alpha * sum + beta * C[row * ldc + col];
}
"""


TILED = """\
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    float sum = 0;
    for (int k = 0; k < K; k += TILE) {
        As[y][x] = row < M && k + x < K ? A[row * lda + k + x] : 0.f;
        Bs[y][x] = k + y < K && col < N ? B[(k + y) * ldb + col] : 0.f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += As[y][i] * Bs[i][x];
        __syncthreads();
    }
    if (row < M && col < N)
        C[row * ldc + col] = beta == 0 ? alpha * sum : alpha * sum + beta * C[row * ldc + col];
}
"""


LARGE = 12  # parameter sets of a kernel


RARE = """// An instruction that is not emulated
// /// kernel
// entry = "matmul"
// block = 32
// tile = [16, 16]
// min_arch = "sm_90a"
// ///
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    asm volatile("{ .reg .s32 a; INSTRUCTION; }" ::: "memory");
}
"""
MAD, MEMBAR = "mad.hi.sat.s32", "membar.proxy.alias"


def refused(folder: Path, name: str, instruction: str = MEMBAR) -> str:
    """The path of a kernel file that the emulator refuses."""
    operands = " a, 1, 2, 3" if instruction == MAD else ""
    file = folder / f"{name}.cu"
    file.write_text(RARE.replace("INSTRUCTION", instruction + operands), encoding="utf-8")
    return str(file)


def parameter_sets(kernel: Kernel, arch: str) -> Iterator[Variant]:
    """Yield the sets of the kernel's space on sm_90a, which the records come from, and the default elsewhere:
    compiling all sets for all architectures takes half an hour, and running them on a GPU as long. With
    HARNESS_ALL_SETS=1 it does. Of a large space it yields the sets with a value that none before them has.
    """
    everything = list(kernel.variants())
    if os.environ.get("HARNESS_ALL_SETS") == "1":
        yield from everything
    elif arch != "sm_90a":
        yield kernel.variant()
    else:
        seen: set[tuple[str, int]] = set()
        for variant in everything:
            values = set(variant.params.items())
            if len(everything) <= LARGE or not values <= seen:
                yield variant
            seen |= values
