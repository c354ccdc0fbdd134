// Cooperative Groups: labels share an atomic, what coalesced threads keep is packed, tiles of eight sum up
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const int* x, int* counts, int* kept, int* many, int* sums, int n) {
  cg::thread_block block = cg::this_thread_block();
  __shared__ int room[32];
  auto warp = cg::tiled_partition<32>(block);
  auto tile = cg::tiled_partition<8>(warp);
  int i = blockIdx.x * blockDim.x + threadIdx.x, v = i < n ? x[i] : 0;
  if (i < n) {
    auto active = cg::coalesced_threads();
    auto same = cg::labeled_partition(active, v & 7);
    if (same.thread_rank() == 0) atomicAdd(&counts[v & 7], same.size());
    if (v > 50) {
      auto more = cg::coalesced_threads();
      int base = 0;
      if (more.thread_rank() == 0) base = atomicAdd(many, more.size());
      kept[more.shfl(base, 0) + more.thread_rank()] = v;
    }
  }
  warp.sync();
  int s = cg::reduce(tile, v, cg::plus<int>());
  int before = cg::exclusive_scan(tile, v);
  if (tile.thread_rank() == 7) room[warp.meta_group_rank() * 4 + tile.meta_group_rank()] = s + 0 * before;
  block.sync();
  if (warp.meta_group_rank() == 0) {
    int all = cg::reduce(warp, room[warp.thread_rank()] , cg::plus<int>());
    if (warp.thread_rank() == 0) sums[blockIdx.x] = all;
  }
}
