// Compares the outputs of two products, and looks whether the padding of the first was written
//
// The two lie in `count` sets, `stride` bytes apart, and blockIdx.y is the number of the set. Elements may differ
// by `bound` and by the rounding of either to the type. What was found in all sets is added up.
//
// /// kernel
// entry   = "compare"
// problem = "none"
// block   = 256
// tile    = ["1"]
// include = ["../../harness/launch/fresh"]
// ///

#include "decode.cuh"

// Sums over all elements: squared differences, squared elements of the reference, and squared halves of the
// distance between adjacent numbers there. `worst` holds the bits of the largest difference over its limit, and
// `first` the place of the first element beyond it, counted down from ~0.
struct Found {
    double differences, outputs, halves;
    u64 worst, bad, first, stray;
};

// `precision` is 0 where the type's own rounding is part of `bound`. Columns from N on held 0xFF bytes.
extern "C" __global__ void compare(u64 mine, u64 reference, u64 stride, Found* found, u64 M, u64 N, u64 ld,
                                   double bound, int precision, int emin, u32 kind)
{
    const u64 here = mine + blockIdx.y * stride, there = reference + blockIdx.y * stride, elements = M * ld;
    const u32 blank = kind == FLOAT32 ? 0xFFFFFFFF : 0xFFFF;
    double differences = 0, outputs = 0, halves = 0, worst = 0;
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step) {
        const u32 word = word_at(kind, here, i);
        if (ld != N && i % ld >= N) {
            if (word != blank) atomicAdd(&found->stray, 1ull);
            continue;
        }
        const double x = decode(kind, word), y = decode(kind, word_at(kind, there, i)), apart = fabs(x - y);
        double half = 0;
        if (precision) half = half_spacing(fmax(fabs(x), fabs(y)), precision, emin);
        const double share = apart / (bound + 2 * half);
        if (!(share <= 1)) {  // NaN, too
            atomicAdd(&found->bad, 1ull);
            atomicMax(&found->first, ~i);
        }
        worst = share <= worst ? worst : share == share ? share : __longlong_as_double(0x7FF0000000000000);
        differences += apart * apart;
        outputs += y * y;
        halves += half * half;
    }
    differences = sum_of_warp(differences);
    outputs = sum_of_warp(outputs);
    halves = sum_of_warp(halves);
    for (int down = 16; down; down /= 2) worst = fmax(worst, __shfl_down_sync(~0u, worst, down));
    if (threadIdx.x % 32) return;
    atomicAdd(&found->differences, differences);
    atomicAdd(&found->outputs, outputs);
    atomicAdd(&found->halves, halves);
    atomicMax(&found->worst, (u64)__double_as_longlong(worst));
}
