// Thread block clusters: blocks that run at the same time and can access each other's shared memory. Hopper and
// later.
#pragma once

#include "mbarrier.cuh"

// Synchronise all threads of the cluster. What they wrote before is visible to all after.
__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The two halves of a barrier that does not publish writes, and is much faster for that. It is enough where blocks
// only have to know that all have begun, or that nobody leaves while others still read its memory.
__device__ inline void cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_sync_relaxed() { cluster_arrive_relaxed(), cluster_wait(); }

// Return about how many clusters of SIZE blocks find room at once if an SM has one block: fours and larger ones leave some
// SMs of each GPC free.
template <int SIZE>
__device__ unsigned clusters_with_room()
{
    unsigned sms;
    asm("mov.u32 %0, %%nsmid;" : "=r"(sms));
    return max(1u, SIZE < 4 ? sms / SIZE : 10 * sms / (11 * SIZE));
}

// Return the shared::cluster address of what block `rank` of the cluster has at the place of p. That block must have
// begun.
__device__ inline unsigned mapa(const void* p, int rank)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
    return there;
}

// Load four floats from the shared memory of block `rank`, at the place of p.
__device__ inline float4 ld_shared_cluster(const float* p, int rank)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(mapa(p, rank)));
    return v;
}

// Store four floats to the shared memory of another block, asynchronously. The 16 bytes count at `barrier` of that
// block (both addresses come from mapa): to wait there costs far less than cluster_sync(), before which everything
// ever written must have arrived. H200: about 17 bytes a cycle and SM if the threads of a warp write neighbours, less
// otherwise, and no more to the block itself.
__device__ inline void st_async(unsigned there, float4 v, unsigned barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(there), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier) : "memory");
}

// Arrive at the barrier that block `rank` has at this place. No release at cluster scope: none is needed where the
// arrival only says that memory may be overwritten, and it would cost a fence of all memory.
__device__ inline void mbarrier_arrive_cluster(Mbarrier* b, int rank)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(mapa(b, rank)) : "memory");
}

// Called by one thread of the producers, at the end: wait until all blocks of the cluster have released all stages.
// Until then a block must not exit, because others arrive at its barriers.
template <int NUM_STAGES>
__device__ inline void producer_tail(Mbarrier* empty, int stage, int parity)
{
    for (int i = 0; i < NUM_STAGES; ++i) {
        mbarrier_wait(empty + stage, parity);
        if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
    }
}
