"""Hopper programs: tensor maps that host code encodes, and kernels that copy by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.nvcc import kinds, needs_nvcc, ran

pytestmark = [needs_nvcc, pytest.mark.slow]

TMA = """
#include <cstdlib>
#include <cuda.h>
#include <cuda_runtime.h>
#include <omp.h>

__global__ void copy(const __grid_constant__ CUtensorMap map, float* out, int wait)
{
    __shared__ alignas(128) float tile[8][16];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned at = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(tile);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(at) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3}], [%4];"
                     ::"r"(to), "l"(&map), "r"(16 * (int)blockIdx.x), "r"(0), "r"(at) : "memory");
    }
    if (wait)
        asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
                     " @!p bra again; }" ::"r"(at) : "memory");
    for (int i = threadIdx.x; i < 128; i += 32)
        out[(i / 16) * 32 + blockIdx.x * 16 + i % 16] = 2 * tile[i / 16][i % 16];
}

int main(int argc, char** argv)
{
    int fault = argc > 1 ? atoi(argv[1]) : 0, wrong = 0;
    float host[8][32], *in, *out;
    #pragma omp parallel for
    for (int i = 0; i < 256; ++i) host[i / 32][i % 32] = i + 0 * omp_get_thread_num();
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    void* found;
    cudaDriverEntryPointQueryResult status;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
    auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
    CUtensorMap map;
    cuuint64_t extents[] = {32, 8}, strides[] = {fault == 2 ? 130u : 128u};
    cuuint32_t box[] = {16, 8}, steps[] = {1, 1};
    encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, in, extents, strides, box, steps,
           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (fault == 2) return 0;
    copy<<<2, 32>>>(map, out, fault != 1);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 256; ++i) wrong += host[i / 32][i % 32] != 2 * i;
    return wrong;
}
"""


def test_a_copy_by_a_tensor_map_arrives(tmp_path: Path) -> None:
    run = ran(tmp_path, TMA)
    assert (run.code, run.misuses, run.refusals, kinds(run)) == (0, {}, {}, set())
    assert all(not one.errors for one in run.kernels.values())


def test_a_copy_that_nobody_waits_for_is_found(tmp_path: Path) -> None:
    assert kinds(ran(tmp_path, TMA, "1"))


def test_a_map_that_the_driver_refuses_is_told(tmp_path: Path) -> None:
    run = ran(tmp_path, TMA, "2")
    assert any("strides of (130,) bytes" in event.what for event in run.misuses), run.misuses


COLUMNS = """
#include <cstdlib>
#include <cuda.h>
#include <cuda_runtime.h>

__global__ void columns(const __grid_constant__ CUtensorMap map, float* out)
{
    __shared__ alignas(128) float tile[32][8];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned at = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(tile);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(at) : "memory");
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%3, %4, %4, %3}], [%2], {%5, %6};"
                     ::"r"(to), "l"(&map), "r"(at), "r"(0), "r"(-1), "h"((short)blockIdx.x),
                     "h"((short)blockIdx.y) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
                 " @!p bra again; }" ::"r"(at) : "memory");
    for (int i = threadIdx.x; i < 256; i += 32) atomicAdd(out + i, tile[i / 8][i % 8]);
}

int main(int argc, char** argv)
{
    int fault = argc > 1 ? atoi(argv[1]) : 0, wrong = 0;
    static float host[2][4][4][8], sum[2][4][4][8], *in, *out;
    for (int i = 0; i < 256; ++i) (&host[0][0][0][0])[i] = i % 13;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemset(out, 0, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    void* found;
    cudaDriverEntryPointQueryResult status;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeIm2col", &found, 12000, cudaEnableDefault, &status);
    auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeIm2col)>(found);
    CUtensorMap map;
    cuuint64_t extents[] = {8, 4, 4, 2}, strides[] = {32, 128, 512};
    cuuint32_t steps[] = {1, 1, 1, 1};
    int lower[] = {-1, -1}, upper[] = {-1, fault == 1 ? -6 : -1};
    encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, in, extents, strides, lower, upper, 8, 32, steps,
           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (fault) return 0;
    columns<<<dim3(3, 3), 32>>>(map, out);
    cudaMemcpy(sum, out, sizeof host, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 256; ++i) {
        int n = i / 128, h = i / 32 % 4, w = i / 8 % 4, c = i % 8;
        float s = 0;
        for (int y = h - 1; y <= h + 1; ++y) for (int x = w - 1; x <= w + 1; ++x)
            s += y < 0 || y > 3 || x < 0 || x > 3 ? 0 : host[n][y][x][c];
        wrong += s != sum[n][h][w][c];
    }
    return wrong;
}
"""


def test_columns_by_an_im2col_map_arrive(tmp_path: Path) -> None:
    run = ran(tmp_path, COLUMNS)
    assert (run.code, run.misuses, run.refusals, kinds(run)) == (0, {}, {}, set())


def test_an_im2col_map_that_the_driver_refuses_is_told(tmp_path: Path) -> None:
    run = ran(tmp_path, COLUMNS, "1")
    assert any("no pixel between them" in event.what for event in run.misuses), run.misuses
