// Blocks of a cluster: they run at the same time, and each may read the shared memory of the others. Hopper
// and later.

#pragma once

#include "mbarrier.cuh"

// Until all blocks of the cluster are here; what they wrote before, each may read after.
__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same, but for what they wrote: that need not have arrived. A good deal sooner therefore, where it is only
// that nobody leaves before others have read (and used what they read: nothing else says that it is there), or
// that all have begun.
__device__ inline void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_sync_relaxed() { cluster_arrive_relaxed(), cluster_wait(); }

// Where another block of the cluster, which must have begun, has what this block has at p.
__device__ inline unsigned mapa(int rank, const void* p)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
    return there;
}

// Four floats at p of this block's shared memory, but in that of another block of the cluster.
__device__ inline float4 ld_shared_cluster(int rank, const float* p)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(mapa(rank, p)));
    return v;
}

// Four floats to such an address. They count at a barrier of that block, 16 bytes: to wait there costs far less
// than a cluster_sync(), before which all that was ever written must have arrived. (At some 17 bytes a cycle and
// SM, if a warp's lie side by side; more slowly else, and no faster to the block itself.)
__device__ inline void st_async(unsigned there, float4 v, unsigned barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(there), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier) : "memory");
}

// Arrives at the barrier that another block of the cluster has at this place. (To say that it is a release to
// the cluster, which it is not meant to be, would cost a fence of all memory.)
__device__ inline void mbarrier_arrive_cluster(int rank, Mbarrier* b)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(mapa(rank, b)) : "memory");
}
