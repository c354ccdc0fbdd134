// Three-point stencil: neighbours send their edges between the halves of a cluster's barrier

#include <cooperative_groups.h>
namespace cg = cooperative_groups;
constexpr int B = 64;
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float* in, float* out, int steps) {
    __shared__ float a[2][B + 2];
    auto cl = cg::this_cluster();
    const int r = cl.block_rank(), last = cl.num_blocks() - 1, t = threadIdx.x,
              base = blockIdx.x * B;
    a[0][t + 1] = in[base + t];
    if (t < 2) {
        a[t][0] = 0;
        a[t][B + 1] = 0;
    }
    cl.sync();
    for (int s = 0; s < steps; ++s) {
        float* cur = a[s & 1];
        float* next = a[~s & 1];
        if (t == 0 && r > 0) cl.map_shared_rank(cur, r - 1)[B + 1] = cur[1];
        if (t == B - 1 && r < last) cl.map_shared_rank(cur, r + 1)[0] = cur[B];
        cl.barrier_arrive();
        float v = 0;
        if (t > 0 && t < B - 1) v = cur[t] + cur[t + 1] + cur[t + 2];
        cl.barrier_wait();
        if (t == 0 || t == B - 1) v = cur[t] + cur[t + 1] + cur[t + 2];
        next[t + 1] = v;
        __syncthreads();
    }
    out[base + t] = a[steps & 1][t + 1];
    cl.sync();
}
