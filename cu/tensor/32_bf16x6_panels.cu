// float32 on tensor cores, split once: panels in global memory
//
// In rung 31 every block splits the floats of its tiles, so each is split as often as there are tiles beside it, and
// the producers are what the tensor cores wait for. Here all blocks first split A and B once, into a workspace, and
// wait for one another. A stage is then one contiguous piece of it, in the order and with the swizzle that shared
// memory wants: two bulk copies of one thread fill it, whatever layout, alignment and edges the matrices have.
//
// Where there are too few tiles for all blocks, several share one: each multiplies a part of k, and then they add up.
//
// That costs 10 bytes of traffic an element, and a workspace 1.5 times as large as A and B. Blocks that wait for each
// other must run at the same time: the launch is cooperative.
//
// /// kernel
// entry = "matmul"
// after = "31_bf16x6"
// dtype = "bf16x6"
// min_arch = "sm_90a"
// block = "384"
// tile  = ["BM", "BN"]
// grid  = "SMS"
// where = ["BM > 64 or BN == 64", "768 <= STAGES * (BM + BN) * (1 + 64 // BM) <= 1152"]
// shared = "STAGES * (192 * (1 + 64 // BM) * (BM + BN) + 16) + 256 * BN * (64 // BM)"
// cooperative = true
// workspace = "128 + 6 * ((M + BM - 1) // BM * BM + (N + BN - 1) // BN * BN) * ((K + 63) // 64 * 64) + 4 * BM * BN * SMS * min(1, SMS // (2 * TILES_X * TILES_Y))"
// loads = "BM + BN"
// sass  = ["HGMMA in loop >= 12", "UBLKCP", "no LDL", "no STL"]
// claim = "Each element is split once, not once a tile: nothing but products and additions beside the tensor cores."
// predict = ["conflicts == 0"]
//
// [params]
// BM = [256, 128, 64]
// BN = [128, 64]
// STAGES = [3, 4, 6]
// GROUP = [8, 4]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "epilogue.cuh"
#include "bf16x6.cuh"
#include "panels.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER, unsigned* workspace)
{
    multiply_panels<Unscaled>(A, B, C, M, N, K, lda, ldb, ldc, alpha, beta, workspace, MAKE_EPILOGUE(M, N, ldc));
}
