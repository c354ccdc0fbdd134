// A plain copy: the ceiling that memory bandwidth sets
//
// It reads every float once and writes it once, and does nothing else. Wide accesses keep the number of
// instructions small, and streaming hints say that no line will be used again. Several loads in flight per
// thread (VEC) were expected to hide the latency of DRAM better. At full occupancy they do not: on an H200 one
// float4 a thread is the fastest.
//
// /// kernel
// entry   = "copy"
// problem = "copy"
// block   = "BLOCK"
// tile    = ["BLOCK * VEC * 4"]
// sass    = ["LDG.128", "STG.128", "no LDL", "no STL"]
// claim   = "8 bytes a float, none moved twice: nothing that reads and writes as much is faster."
//
// [params]
// BLOCK = [256, 512, 1024]
// VEC   = [1, 2, 4, 8]
// ///

#define SPAN (BLOCK * VEC * 4)  // floats a block copies

extern "C" __global__ void __launch_bounds__(BLOCK) copy(const float* src, float* dst, long long n)
{
    const long long first = (long long)blockIdx.x * SPAN;
    src += first;
    dst += first;
    n -= first;  // what is left from this block on

    // A float4 access faults on an address that is no multiple of 16 bytes.
    const bool aligned = ((unsigned long long)src | (unsigned long long)dst) % 16 == 0;

    if (n >= SPAN && aligned) {
        const float4* s = (const float4*)src + threadIdx.x;
        float4* d = (float4*)dst + threadIdx.x;
        float4 v[VEC];
        for (int i = 0; i < VEC; ++i) v[i] = __ldcs(s + i * BLOCK);  // all loads first: none waits for another
        for (int i = 0; i < VEC; ++i) __stcs(d + i * BLOCK, v[i]);
    } else {
        // The last, partial block, or a view that starts in the middle of 16 bytes.
        for (int i = threadIdx.x; i < SPAN && i < n; i += BLOCK) __stcs(dst + i, __ldcs(src + i));
    }
}
