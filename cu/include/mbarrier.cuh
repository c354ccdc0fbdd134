// Synchronisation between warps with different jobs: barriers in shared memory (mbarrier), named barriers, and the
// registers that one warpgroup hands to another (setmaxnreg, sm_90a). Hopper and later.
#pragma once

#include "cp_async.cuh"

// An mbarrier. Its phase ends when all expected arrivals have come and all expected bytes have landed; then the next
// phase begins.
typedef unsigned long long Mbarrier;

// Initialise the barrier: `arrivals` end each phase.
__device__ inline void mbarrier_init(Mbarrier* b, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(b)), "r"(arrivals) : "memory");
}

// Make initialised barriers visible to TMA and to the other blocks of the cluster.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive(Mbarrier* b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(b)) : "memory");
}

// Arrive when the cp.async copies that this thread has issued so far have landed. Does not wait for that.
__device__ inline void cp_async_mbarrier_arrive(Mbarrier* b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(shared_address(b)) : "memory");
}

// Let the current phase wait for `bytes` more, written by TMA. Does not arrive.
__device__ inline void mbarrier_expect_tx(Mbarrier* b, int bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(b)), "r"(bytes) : "memory");
}

// Arrive, and let the current phase wait for `bytes` more, written by TMA or st.async.
__device__ inline void mbarrier_arrive_expect_tx(Mbarrier* b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(b)), "r"(bytes) : "memory");
}

// Wait until the phase of this parity has ended; the first phase has parity 0. The phase before the first counts as
// ended, with parity 1: a producer that begins with parity 1 finds every stage empty and does not wait.
__device__ inline void mbarrier_wait(Mbarrier* b, int parity)
{
    unsigned ended;
    do {
        asm volatile("{ .reg .pred p;"
                     "  mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "  selp.u32 %0, 1, 0, p; }"
                     : "=r"(ended) : "r"(shared_address(b)), "r"(parity) : "memory");
    } while (!ended);
}

// Raise or lower the registers of each thread to N. All 128 threads of a warpgroup call it together.
template <int N>
__device__ inline void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N>
__device__ inline void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

// Synchronise THREADS threads of the block, such as the consumers alone. Barrier 0 is that of __syncthreads().
template <int THREADS, int ID = 1>
__device__ inline void named_barrier_sync()
{
    asm volatile("bar.sync %0, %1;" :: "n"(ID), "n"(THREADS) : "memory");
}

// Synchronise the four warps of a warpgroup: barrier 2 is the first one's, and so on.
__device__ inline void warpgroup_sync(int group)
{
    asm volatile("bar.sync %0, 128;" :: "r"(2 + group) : "memory");
}

// Two warpgroups take turns: one waits for its turn, which the other one gives it. Barrier 6 is the first one's.
__device__ inline void wait_for_turn(int group) { asm volatile("bar.sync %0, 256;" :: "r"(6 + group) : "memory"); }

__device__ inline void give_turn_to(int group) { asm volatile("bar.arrive %0, 256;" :: "r"(6 + group) : "memory"); }

// Publish what one thread of a warp has set up to all THREADS threads. Warps with `arrive_only`, among them the one
// that did the work, go on at once: the first loads are under way while the rest of the block still starts.
template <int THREADS>
__device__ inline void named_barrier_arrive_or_sync(bool arrive_only)
{
    __syncwarp();
    if (arrive_only) asm volatile("barrier.cta.arrive.aligned 15, %0;" :: "n"(THREADS) : "memory");
    else asm volatile("barrier.cta.sync.aligned 15, %0;" :: "n"(THREADS) : "memory");
}
