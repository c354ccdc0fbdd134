// Nothing but wgmma: the ceiling that Hopper's tensor cores set
//
// Each block is one warpgroup and adds up products of 64 x 16 by 16 x 256 elements, the largest that one
// instruction multiplies. The operands stay in shared memory (of tf32, those of a in registers, as in
// 25_wgmma_tf32). One group of products is always under way behind the one that is waited for.
//
// /// kernel
// entry   = "chains"
// problem = "mma"
// min_arch = "sm_90a"
// block   = 128
// tile    = ["64", "256"]
// sass    = ["HGMMA in loop >= 4", "no LDL", "no STL"]
// claim   = "One HGMMA after the other, each of the largest shape."
//
// [params]
// TYPE = [0, 1, 2]
// ///

// The element type: 0 is fp16, 1 is bf16, 2 is tf32.
#include "tma.cuh"
#include "wgmma.cuh"

#define ROWS 64
#define COLUMNS 256
#define DEPTH 16
#define TOGETHER 4  // products in a group

#if TYPE == 2
typedef float Element;
__device__ inline Element element(float x) { return x; }
#elif TYPE == 1
typedef Bf16 Element;
__device__ inline Element element(float x) { return Bf16{(unsigned short)pack<Bf16>(x, 0.f)}; }
#else
typedef Fp16 Element;
__device__ inline Element element(float x) { return Fp16{(unsigned short)pack<Fp16>(x, 0.f)}; }
#endif

#define ROW (128 / sizeof(Element))  // elements of a row of shared memory, as wide as the swizzle

// Return where row r holds column c.
__device__ inline int swizzled(int r, int c)
{
    constexpr int unit = 16 / sizeof(Element);
    return r * ROW + (c / unit ^ r % 8) * unit + c % unit;
}

extern "C" __global__ void __launch_bounds__(128) chains(const float* A, const float* B, float* Y, int steps)
{
#if TYPE == 2
    __shared__ __align__(1024) Element Bs[COLUMNS * ROW];  // K-major, of which the first DEPTH columns are used
#else
    __shared__ __align__(1024) Element As[ROWS * ROW];  // K-major, likewise
    __shared__ __align__(1024) Element Bs[COLUMNS / 64][DEPTH * ROW];  // MN-major: boxes of 64 columns
#endif
    const int self = threadIdx.x, warp = self / 32, lane = self % 32, tile = blockIdx.y;
    A += tile * ROWS * DEPTH;
    B += tile * DEPTH * COLUMNS;
    Y += tile * ROWS * COLUMNS;

    for (int i = self; i < DEPTH * COLUMNS; i += 128) {
        const int k = i / COLUMNS, n = i % COLUMNS;
#if TYPE == 2
        Bs[swizzled(n, k)] = element(B[i]);
#else
        Bs[n / 64][swizzled(k, n % 64)] = element(B[i]);
#endif
    }
#if TYPE == 2
    unsigned a[2][4];
    for (int s = 0; s < 2; ++s)
        for (int r = 0; r < 4; ++r)
            a[s][r] = __float_as_uint(A[(16 * warp + lane / 4 + r % 2 * 8) * DEPTH + 8 * s + lane % 4 + r / 2 * 4]);
    const Descriptor b = make_descriptor(Bs, 0, 1024);
#else
    for (int i = self; i < ROWS * DEPTH; i += 128) As[swizzled(i / DEPTH, i % DEPTH)] = element(A[i]);
    const Descriptor a = make_descriptor(As, 0, 1024), b = make_descriptor(Bs, sizeof *Bs, 1024);
#endif
    fence_proxy_async();
    __syncthreads();

    float sum[COLUMNS / 2];
    const auto multiply = [&](bool accumulate) {
#if TYPE == 2
        wgmma(sum, a[0], b, accumulate);
        wgmma(sum, a[1], advance_descriptor(b, 32), true);
#else
        wgmma(Element(), sum, a, b, accumulate);
#endif
    };
    wgmma_fence();
    multiply(false);
    int step = 1;
    #pragma unroll 1
    for (; step + TOGETHER <= steps; step += TOGETHER) {
        wgmma_fence();
        #pragma unroll
        for (int i = 0; i < TOGETHER; ++i) multiply(true);
        wgmma_commit_group();
        wgmma_wait_group<1>();
    }
    #pragma unroll 1
    for (; step < steps; ++step) {
        wgmma_fence();
        multiply(true);
    }
    wgmma_commit_group();
    wgmma_wait_all(sum);

    for (int i = 0; i < COLUMNS / 2; ++i)
        Y[(16 * warp + lane / 4 + i / 2 % 2 * 8) * COLUMNS + i / 4 * 8 + lane % 4 * 2 + i % 2] = sum[i];
}
