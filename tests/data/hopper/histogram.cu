// Histogram whose bins are spread over the shared memory of a cluster

#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(int* bins, int nbins, int per,
                                                       const int* __restrict__ in, int n) {
    extern __shared__ int smem[];
    int tid = cg::this_grid().thread_rank();
    cg::cluster_group cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank();
    int size = cluster.dim_blocks().x;
    for (int i = threadIdx.x; i < per; i += blockDim.x) smem[i] = 0;
    cluster.sync();
    for (int i = tid; i < n; i += blockDim.x * gridDim.x) {
        int d = in[i];
        int bin = d < 0 ? 0 : d >= nbins ? nbins - 1 : d;
        int* dst = cluster.map_shared_rank(smem, bin / per);
        atomicAdd(dst + bin % per, 1);
    }
    cluster.sync();
    int* lb = bins + cluster.block_rank() * per;
    for (int i = threadIdx.x; i < per; i += blockDim.x) atomicAdd(&lb[i], smem[i]);
}
