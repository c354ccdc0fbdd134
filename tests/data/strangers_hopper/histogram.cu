// Programming guide style: histogram over distributed shared memory, cudaLaunchKernelEx with a cluster attribute
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <cstdio>

__global__ void clusterHist_kernel(int *bins, const int nbins, const int bins_per_block, const int *__restrict__ input,
                                   size_t array_size)
{
  extern __shared__ int smem[];
  namespace cg = cooperative_groups;
  int tid = cg::this_grid().thread_rank();

  cg::cluster_group cluster = cg::this_cluster();
  unsigned int clusterBlockRank = cluster.block_rank();
  int cluster_size = cluster.dim_blocks().x;

  for (int i = threadIdx.x; i < bins_per_block; i += blockDim.x)
  {
    smem[i] = 0;
  }
  cluster.sync();

  for (int i = tid; i < array_size; i += blockDim.x * gridDim.x)
  {
    int ldata = input[i];
    int binid = ldata;
    if (ldata < 0)
      binid = 0;
    else if (ldata >= nbins)
      binid = nbins - 1;
    int dst_block_rank = (int)(binid / bins_per_block);
    int dst_offset = binid % bins_per_block;
    int *dst_smem = cluster.map_shared_rank(smem, dst_block_rank);
    atomicAdd(dst_smem + dst_offset, 1);
  }
  cluster.sync();

  int *lbins = bins + cluster.block_rank() * bins_per_block;
  for (int i = threadIdx.x; i < bins_per_block; i += blockDim.x)
  {
    atomicAdd(&lbins[i], smem[i]);
  }
}

int main() {
  const size_t array_size = 1 << 16;
  const int threads_per_block = 128;
  const int nbins = 512;
  const int cluster_size = 2;
  int *input, *bins;
  cudaMalloc(&input, array_size * sizeof(int));
  cudaMalloc(&bins, nbins * sizeof(int));
  cudaMemset(bins, 0, nbins * sizeof(int));

  cudaLaunchConfig_t config = {0};
  config.gridDim = array_size / threads_per_block;
  config.blockDim = threads_per_block;
  int nbins_per_block = nbins / cluster_size;
  config.dynamicSmemBytes = nbins_per_block * sizeof(int);
  cudaFuncSetAttribute((void *)clusterHist_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, config.dynamicSmemBytes);

  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = cluster_size;
  attribute[0].val.clusterDim.y = 1;
  attribute[0].val.clusterDim.z = 1;
  config.numAttrs = 1;
  config.attrs = attribute;
  cudaLaunchKernelEx(&config, clusterHist_kernel, bins, nbins, nbins_per_block, (const int*)input, array_size);
  cudaDeviceSynchronize();
}
