// Rung 29 in fp16
//
// /// kernel
// entry = "matmul"
// dtype = "fp16"
// min_arch = "sm_90a"
// block = "2 * BM + 128"
// tile  = ["BM", "BN"]
// grid  = "SMS // CLUSTER * CLUSTER"
// where = ["1024 <= STAGES * (BM + BN) <= 1536", "BN % (64 * CLUSTER) == 0"]
// shared = "STAGES * (128 * (BM + BN) + 16)"
// cooperative = true
// workspace = "16 * SMS + 4 * SMS * BM * BN"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "no LDL", "no STL"]
// claim = "The machine code of rung 29, but for the type in its products and its rounding."
// predict = ["registers == 1 of 29_wgmma_grid_split", "shared == 1 of 29_wgmma_grid_split"]
//
// [tensormaps]
// A = {box = ["BM", 64], swizzle = 128}
// B = {box = [64, 64], swizzle = 128}
//
// [params]
// BM = [128, 64]
// BN = [128, 64, 256]
// STAGES = [6, 4, 8, 12]
// CLUSTER = [2, 1]
// ///

#define ELEMENT Fp16
#include "29_wgmma_grid_split.cu"
