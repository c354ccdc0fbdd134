// Rung 26 in fp16
//
// /// kernel
// entry = "matmul"
// dtype = "fp16"
// min_arch = "sm_90a"
// block = "2 * BM + 128"
// tile  = ["BM", "BN"]
// grid  = ["TILES_X", "TILES_Y", "SPLIT"]
// where = ["768 <= STAGES * (BM + BN) <= 1536", "BM + BN <= 320",
//          "128 * STAGES * (BM + BN) + 32 * BM * SPLIT * ((BN // 8 + SPLIT - 1) // SPLIT) <= 231936"]
// shared = "STAGES * (128 * (BM + BN) + 16) + 32 * BM * SPLIT * ((BN // 8 + SPLIT - 1) // SPLIT) + 16"
// loads = "BM + BN"
// sass  = ["HGMMA == 4", "HGMMA in loop == 4", "WARPGROUP.DEPBAR in loop == 1", "no BAR in loop",
//          "UTMALDG", "UCGABAR_WAIT", "no LDL", "no STL"]
// claim = "The machine code of rung 26, but for the type in its products and its rounding."
// predict = ["registers == 1 of 26_wgmma_split", "shared == 1 of 26_wgmma_split"]
//
// [tensormaps]
// A = {box = ["BM", 64], swizzle = 128}
// B = {box = [64, 64], swizzle = 128}
//
// [params]
// BM = [64, 128]
// BN = [64, 128, 256]
// STAGES = [8, 6, 4, 12]
// SPLIT = [2, 3, 4, 5, 6, 7, 8, 1]
// ///

#define ELEMENT Fp16
#include "26_wgmma_split.cu"
