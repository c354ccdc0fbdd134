// Nothing but mma.sync: the ceiling that tensor cores set from sm_80 on
//
// Each block of four warps adds up products of 64 x 16 by 16 x 256 elements. The operands stay in registers, and
// each warp has 32 independent sums of 16 x 8, so that no instruction waits for the one before it. On Hopper
// wgmma_chains is faster: mma.sync reaches some two thirds of it.
//
// /// kernel
// entry   = "chains"
// problem = "mma"
// min_arch = "sm_80"
// block   = 128
// tile    = ["64", "256"]
// sass    = ["HMMA in loop >= 32", "HMMA share in loop >= 0.9", "no LDL", "no STL"]
// claim   = "One HMMA after the other in every warp."
//
// [params]
// TYPE = [0, 1, 2]
// ///

// The element type: 0 is fp16, 1 is bf16, 2 is tf32.
#include "elements.cuh"

#define ROWS 64
#define COLUMNS 256
#define DEPTH 16
#define STEPS (TYPE == 2 ? 2 : 1)  // instructions for 16 k

// Return one element of tf32, or two neighbours along k of 16 bits, which lie `stride` floats apart.
__device__ inline unsigned operand(const float* x, int stride)
{
#if TYPE == 2
    return __float_as_uint(*x);
#elif TYPE == 1
    return pack<Bf16>(x[0], x[stride]);
#else
    return pack<Fp16>(x[0], x[stride]);
#endif
}

__device__ inline void mma(float (&d)[4], const unsigned* a, const unsigned* b)
{
#if TYPE == 2
#define SHAPE_AND_TYPES "m16n8k8.row.col.f32.tf32.tf32.f32"
#elif TYPE == 1
#define SHAPE_AND_TYPES "m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define SHAPE_AND_TYPES "m16n8k16.row.col.f32.f16.f16.f32"
#endif
    asm volatile("mma.sync.aligned." SHAPE_AND_TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void __launch_bounds__(128) chains(const float* A, const float* B, float* Y, int steps)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.y;
    A += tile * ROWS * DEPTH;
    B += tile * DEPTH * COLUMNS + 64 * warp;
    Y += tile * ROWS * COLUMNS + 64 * warp;

    // A register holds k = 2 * (lane % 4) and the next, or for tf32 k = lane % 4; the next register of the same row
    // or column is half of the instruction's k further on.
    const int k = lane % 4 * (2 / STEPS), half = 8 / STEPS;
    unsigned a[STEPS][4][4], b[STEPS][8][2];
    #pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            #pragma unroll
            for (int r = 0; r < 4; ++r)
                a[s][i][r] = operand(A + (16 * i + lane / 4 + r % 2 * 8) * DEPTH + 8 * s + k + r / 2 * half, 1);
        #pragma unroll
        for (int j = 0; j < 8; ++j)
            #pragma unroll
            for (int r = 0; r < 2; ++r)
                b[s][j][r] = operand(B + (8 * s + k + r * half) * COLUMNS + 8 * j + lane / 4, COLUMNS);
    }

    float sum[4][8][4] = {};
    #pragma unroll 4
    for (int step = 0; step < steps; ++step)
        #pragma unroll
        for (int s = 0; s < STEPS; ++s)
            #pragma unroll
            for (int i = 0; i < 4; ++i)
                #pragma unroll
                for (int j = 0; j < 8; ++j) mma(sum[i][j], a[s][i], b[s][j]);

    #pragma unroll
    for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int j = 0; j < 8; ++j)
            #pragma unroll
            for (int r = 0; r < 4; ++r)
                Y[(16 * i + lane / 4 + r / 2 * 8) * COLUMNS + 8 * j + lane % 4 * 2 + r % 2] = sum[i][j][r];
}
