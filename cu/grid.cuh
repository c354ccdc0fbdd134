// Counters in global memory, by which blocks tell each other that something has been written.
#pragma once

// What the counter was before. What this block wrote before (and has seen others of it write, through a
// barrier), a block may read that has read this.
__device__ inline unsigned add_release(unsigned* counter, unsigned n)
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
