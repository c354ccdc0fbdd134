// Ring all-reduce over the shared memory of a cluster

#include <cooperative_groups.h>
namespace cg = cooperative_groups;
constexpr int N = 64, C = 4;
extern "C" __global__ void __cluster_dims__(C, 1, 1) k(const float* in, float* out) {
    __shared__ float acc[C * N];
    auto cluster = cg::this_cluster();
    int r = cluster.block_rank(), t = threadIdx.x;
    for (int i = t; i < C * N; i += blockDim.x) acc[i] = in[r * C * N + i];
    cluster.sync();
    float* left = cluster.map_shared_rank(acc, (r + C - 1) % C);
    for (int s = 0; s < C - 1; ++s) {  // reduce-scatter
        int part = (r + C - 1 - s) % C;
        if (t < N) acc[part * N + t] += left[part * N + t];
        cluster.sync();
    }
    for (int s = 0; s < C - 1; ++s) {  // all-gather
        int part = (r + C - s) % C;
        if (t < N) acc[part * N + t] = left[part * N + t];
        cluster.sync();
    }
    for (int i = t; i < C * N; i += blockDim.x) out[r * C * N + i] = acc[i];
}
