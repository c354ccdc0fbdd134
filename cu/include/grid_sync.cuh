// Synchronisation between blocks anywhere on the GPU: counters in global memory that say that something has been
// written, and sums over what several blocks have written.
#pragma once

// Add n to the counter and return what it was before. Whoever reads the new value with load_acquire also sees what
// this thread wrote before, and what it saw of its block through a barrier.
__device__ inline unsigned atomic_add_release(unsigned* counter, unsigned n)
{
    unsigned old;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(n) : "memory");
    return old;
}

// The same, and the thread also sees what those wrote that added to the counter before.
__device__ inline unsigned atomic_add_acq_rel(unsigned* counter, unsigned n)
{
    unsigned old;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(n) : "memory");
    return old;
}

__device__ inline unsigned load_acquire(const unsigned* counter)
{
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// Return true in the block that comes last of `members`, which then sees what the others have written. Threads call it for
// which sync() is a barrier, thread 0 among them. The counter is zero before and after.
template <typename Sync>
__device__ inline bool last_of(unsigned members, unsigned* counter, Sync sync)
{
    __shared__ bool last;
    sync();
    if (threadIdx.x == 0) {
        last = atomic_add_acq_rel(counter, 1) == members - 1;
        if (last) *counter = 0;
    }
    sync();
    return last;
}

// Add up the partial sums of the blocks `low` to `high`, in this order, and pass each total to store(at, total).
// part(block) points to the float4s of a block; of these it takes every STEP-th from `at` to `end`. A load takes most
// of a microsecond, so QUADS_AT_ONCE * BLOCKS_AT_ONCE of them are in flight at a time.
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
