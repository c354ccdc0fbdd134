"""A small bf16 kernel that copies A by TMA: what tests tensor maps, and the paths around them."""

from __future__ import annotations

from pathlib import Path

SOURCE = r"""// A by TMA, B as it lies
//
// /// kernel
// entry = "matmul"
// min_arch = "sm_90a"
// dtype = "bf16"
// block = [16, 16]
// tile = [16, 16]
//
// [tensormaps]
// A = {box = ["ROWS", "COLUMNS"], swizzle = 128}
//
// [params]
// ROWS = 16
// COLUMNS = 64
// ///

struct __align__(64) TensorMap { unsigned long long words[16]; };
typedef unsigned short bf16;

static __device__ float wide(bf16 x) { return __uint_as_float((unsigned)x << 16); }

static __device__ bf16 narrow(float x)
{
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}

extern "C" __global__ void __launch_bounds__(256)
matmul(const __grid_constant__ TensorMap map_a, const bf16* A, const bf16* B, bf16* C, int M, int N, int K,
       int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ __align__(1024) bf16 tile[ROWS * COLUMNS];
    __shared__ __align__(8) unsigned long long barrier;
    const int x = threadIdx.x, y = threadIdx.y, thread = 16 * y + x;
    const int column = 16 * blockIdx.x + x, row = 16 * blockIdx.y + y;
    const bool mapped = ((unsigned long long)A | 2ull * lda) % 16 == 0;
    const unsigned to = __cvta_generic_to_shared(tile), bar = __cvta_generic_to_shared(&barrier);
    if (thread == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    float sum = 0;
    int parity = 0;
    for (int k = 0; k < K; k += COLUMNS, parity ^= 1) {
        if (mapped) {
            if (thread == 0) {
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                             :: "r"(bar), "n"(2 * ROWS * COLUMNS) : "memory");
                asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
                             ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                             :: "r"(to), "l"(&map_a), "r"(k), "r"(16 * (int)blockIdx.y), "r"(bar) : "memory");
            }
            asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
                         " @!p bra again; }" :: "r"(bar), "r"(parity) : "memory");
        } else {
            for (int i = thread; i < ROWS * COLUMNS; i += 256) {
                const int r = i / COLUMNS, c = i % COLUMNS;
                const bool inside = 16 * (int)blockIdx.y + r < M && k + c < K;
                const long long at = (16 * (long long)blockIdx.y + r) * lda + k + c;
                tile[r * COLUMNS + ((c / 8 ^ r % 8) * 8 + c % 8)] = inside ? A[at] : (bf16)0;
            }
            __syncthreads();
        }
        // No bound on k for A: beyond K the copy has written zeros. B is read where it is.
        for (int i = 0; i < COLUMNS; ++i)
            if (column < N)
                sum += wide(tile[y * COLUMNS + ((i / 8 ^ y % 8) * 8 + i % 8)])
                       * (k + i < K ? wide(B[(long long)(k + i) * ldb + column]) : 1.f);
        __syncthreads();
    }
    if (row >= M || column >= N) return;
    bf16* c = C + (long long)row * ldc + column;
    *c = narrow(beta == 0 ? alpha * sum : alpha * sum + beta * wide(*c));
}
"""

SIZES = (128, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4)  # of its parameters, in bytes


def write(folder: Path) -> Path:
    """Write the kernel to a file in `folder`."""
    path = folder / "tma.cu"
    path.write_text(SOURCE)
    return path
