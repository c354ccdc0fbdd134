// 3xTF32 by wgmma: parts in panels, all of them with k along their rows
//
// Rung 28 splits each float as often as there are warps that multiply it, and mma.sync feeds the tensor cores at two thirds
// of their rate. Here the floats are split once, as in rung 32, and wgmma reads the parts from shared memory. It reads 32-bit
// operands only with k along their rows; the pass that splits transposes what lies otherwise, so all layouts cost the same.
//
// Both parts are rounded to nearest, where 28 cuts the second one off. Infinities, NaN and overflow come out as in float32,
// slowly.
//
// /// kernel
// entry = "matmul"
// after = "32_bf16x6_panels"
// dtype = "3xtf32"
// min_arch = "sm_90a"
// block = "384"
// tile  = ["BM", "BN"]
// grid  = "SMS"
// where = ["BM > 64 or BN == 64 and PART_K == 16", "STAGES * PART_K * (BM + BN) * (1 + 64 // BM) == 24576"]
// shared = "STAGES * (8 * PART_K * (1 + 64 // BM) * (BM + BN) + 16) + 256 * BN * (64 // BM)"
// cooperative = true
// workspace = "128 + 8 * ((M + BM - 1) // BM * BM + (N + BN - 1) // BN * BN) * ((K + 31) // 32 * 32) + 4 * BM * BN * SMS * min(1, SMS // (2 * TILES_X * TILES_Y))"
// loads = "BM + BN"
// sass  = ["HGMMA in loop >= 6", "UBLKCP", "no LDL", "no STL"]
// claim = "Nothing but products and additions in the loop, at wgmma's rate: rung 28 splits floats there, for mma.sync."
// predict = ["conflicts == 0", "seconds <= 0.5 of 28_3xtf32 at N=4096", "seconds <= 0.5 of cuBLAS at N=4096"]
//
// [params]
// BM = [256, 128, 64]
// BN = [128, 64]
// PART_K = [16, 32]
// STAGES = [4, 2, 3, 6, 8]
// GROUP = [8, 4]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "epilogue.cuh"
#include "tf32x3.cuh"
#include "panels.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER, unsigned* workspace)
{
    multiply_panels<Unscaled>(A, B, C, M, N, K, lda, ldb, ldc, alpha, beta, workspace, MAKE_EPILOGUE(M, N, ldc));
}
