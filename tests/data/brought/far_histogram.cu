// A histogram over the shared memory of a cluster: each block owns a part of the bins
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x, int* bins, int many, int n) {
  extern __shared__ int mine[];
  cg::cluster_group cluster = cg::this_cluster();
  int t = threadIdx.x, rank = cluster.block_rank(), each = (many + 1) / 2;
  for (int j = t; j < each; j += blockDim.x) mine[j] = 0;
  cluster.sync(); // zero
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) {
    int b = min(max(x[i], 0), many - 1);
    atomicAdd(cluster.map_shared_rank(mine, b / each) + b % each, 1);
  }
  cluster.sync(); // counted
  for (int j = t; j < each; j += blockDim.x)
    if (rank * each + j < many && mine[j]) atomicAdd(&bins[rank * each + j], mine[j]);
}
