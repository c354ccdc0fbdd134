// The same in fp16
//
// Three bits more of a number, and three fewer of its exponent: at most 65504. Same code, same speed.
//
// /// kernel
// entry = "matmul"
// dtype = "fp16"
// min_arch = "sm_90a"
// block = "2 * BM + 128"
// tile  = ["BM", "BN"]
// grid  = "SMS // CLUSTER * CLUSTER"
// where = ["1024 <= STAGES * (BM + BN) <= 1536", "BN % (64 * CLUSTER) == 0"]
// shared = "STAGES * (128 * (BM + BN) + 16) + 128 * BM * (1 + (BN > 64))"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "STSM", "UTMASTG", "no LDL", "no STL"]
// claim = "The machine code of rung 23, but for the type in its products and its rounding."
// predict = ["registers == 1 of 23_wgmma_pipeline", "shared == 1 of 23_wgmma_pipeline"]
//
// [tensormaps]
// A = {box = ["BM", 64], swizzle = 128}
// B = {box = [64, 64], swizzle = 128}
// C = {box = [16, 64], swizzle = 128}
//
// [params]
// BM = [128, 64]
// BN = [256, 128, 192, 64]
// STAGES = [4, 3, 6, 8, 12]
// CLUSTER = [1]
// GROUP = [8, 1, 2, 4]
// ///

#define ELEMENT Fp16
#include "23_wgmma_pipeline.cu"
