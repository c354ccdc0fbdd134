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
