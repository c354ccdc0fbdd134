// Nothing but multiply-adds: the ceiling that fp32 arithmetic sets
//
// Each thread computes eight independent chains, so that no multiply-add waits for the one before it: with a
// latency of four cycles and a full SM that is more than enough. Everything stays in registers; memory is
// accessed only at the beginning and at the end.
//
// /// kernel
// entry   = "ffma"
// problem = "fma"
// block   = "BLOCK"
// tile    = ["BLOCK"]
// sass    = ["FFMA share in loop >= 0.95", "no LDL", "no STL"]
// claim   = "One FFMA after the other in every lane: no fp32 kernel does more of them a second."
//
// [params]
// BLOCK = [256, 512, 1024]
// ///

#define CHAINS 8

extern "C" __global__ void __launch_bounds__(BLOCK) ffma(const float* x, float* y, float a, float b,
                                                         int n, int steps)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;

    float chain[CHAINS];
    for (int j = 0; j < CHAINS; ++j) chain[j] = x[i] + j;

#pragma unroll 32
    for (int step = 0; step < steps; ++step)
        for (int j = 0; j < CHAINS; ++j) chain[j] = fmaf(a, chain[j], b);

    float total = 0.f;
    for (int j = 0; j < CHAINS; ++j) total += chain[j];
    y[i] = total;
}
