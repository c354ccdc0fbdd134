// Counters in global memory, by which blocks tell each other that something has been written.
#pragma once

// What the counter was before. What this block wrote before (and has seen others of it write, through a
// barrier), a block may read that has read this.
__device__ inline unsigned atomic_add_release(unsigned* counter, unsigned n)
{
    unsigned old;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(n) : "memory");
    return old;
}

__device__ inline unsigned load_acquire(const unsigned* counter)
{
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// The sums of the blocks from `low` to `high`, in their order, of every STEP-th quad from `at` to `end`;
// QUADS_AT_ONCE * BLOCKS_AT_ONCE reads are under way at a time, for each takes most of a microsecond.
template <int STEP, int QUADS_AT_ONCE, int BLOCKS_AT_ONCE, typename Part, typename Store>
__device__ inline void reduce_parts(Part part, unsigned low, unsigned high, unsigned at, unsigned end, Store store)
{
    #pragma unroll 1
    for (; at < end; at += QUADS_AT_ONCE * STEP) {
        float4 total[QUADS_AT_ONCE] = {};
        #pragma unroll 1
        for (unsigned first = low; first <= high; first += BLOCKS_AT_ONCE) {
            float4 v[BLOCKS_AT_ONCE][QUADS_AT_ONCE] = {};
            #pragma unroll
            for (int b = 0; b < BLOCKS_AT_ONCE; ++b)
                #pragma unroll
                for (int q = 0; q < QUADS_AT_ONCE; ++q)
                    if (first + b <= high && at + q * STEP < end)
                        v[b][q] = __ldcg(part(first + b) + at + q * STEP);
            #pragma unroll
            for (int b = 0; b < BLOCKS_AT_ONCE; ++b)
                #pragma unroll
                for (int q = 0; q < QUADS_AT_ONCE; ++q) {
                    total[q].x += v[b][q].x, total[q].y += v[b][q].y;
                    total[q].z += v[b][q].z, total[q].w += v[b][q].w;
                }
        }
        #pragma unroll
        for (int q = 0; q < QUADS_AT_ONCE; ++q)
            if (at + q * STEP < end) store(at + q * STEP, total[q]);
    }
}
