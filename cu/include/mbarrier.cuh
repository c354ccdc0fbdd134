// Barriers in shared memory between warps that fetch and warps that compute, and the registers that the
// former give to the latter. Hopper and later; setmaxnreg needs sm_90a.
#pragma once

#include "cp_async.cuh"

typedef unsigned long long Mbarrier;  // an mbarrier: a phase ends when `arrivals` have arrived

__device__ inline void mbarrier_init(Mbarrier* b, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(b)), "r"(arrivals) : "memory");
}

// Barriers that were made, TMA and the other blocks of the cluster will see.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive(Mbarrier* b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(b)) : "memory");
}

// Arrives when the copies that this thread has issued so far have landed. It does not wait for that.
__device__ inline void cp_async_mbarrier_arrive(Mbarrier* b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(shared_address(b)) : "memory");
}

// The phase ends no sooner than so many bytes more, of boxes, have landed.
__device__ inline void mbarrier_expect_tx(Mbarrier* b, int bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(b)), "r"(bytes) : "memory");
}

// Arrives at the barrier, whose phase then ends no sooner than so many bytes, of boxes or given, have landed.
__device__ inline void mbarrier_arrive_expect_tx(Mbarrier* b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(b)), "r"(bytes) : "memory");
}

// Until the phase of this parity has ended: 0 for the first one. One that has not begun yet counts as
// parity 1 ended, so that a first wait for an empty buffer, with parity 1, does not wait.
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

// A warpgroup (128 threads) takes or gives back registers: N a thread from here on.
template <int N>
__device__ inline void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N>
__device__ inline void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

// Until THREADS of the block are here: those that multiply, say, and the others need not come. Other meetings that
// may be under way have other numbers.
template <int THREADS, int NUMBER = 1>
__device__ inline void named_barrier_sync()
{
    asm volatile("bar.sync %0, %1;" :: "n"(NUMBER), "n"(THREADS) : "memory");
}
