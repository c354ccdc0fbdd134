// References that are atomic: a warp tells the next one by release and acquire of a block, blocks by those of the device
#include <cuda/atomic>
extern "C" __global__ void k(const int* x, int* y, int* carry, int* turns, int n) {
  __shared__ int sums[5], flags[5];
  int t = threadIdx.x, lane = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t;
  if (t < 5) flags[t] = 0;
  __syncthreads(); // empty
  int s = i < n ? x[i] : 0;
  for (int d = 1; d < 32; d <<= 1) { int o = __shfl_up_sync(~0u, s, d); if (lane >= d) s += o; }
  if (t == 0) {
    if (b) {
      cuda::atomic_ref<int, cuda::thread_scope_device> turn(turns[b - 1]);
      while (turn.load(cuda::memory_order_acquire) == 0);
    }
    sums[0] = b ? carry[b - 1] : 0;
    cuda::atomic_ref<int, cuda::thread_scope_block>(flags[0]).store(1, cuda::memory_order_release);
  }
  if (lane == 31) {
    cuda::atomic_ref<int, cuda::thread_scope_block> mine(flags[w]);
    while (mine.load(cuda::memory_order_acquire) == 0);
    sums[w + 1] = sums[w] + s;
    cuda::atomic_ref<int, cuda::thread_scope_block> next(flags[w + 1]);
    next.store(1, cuda::memory_order_release);
    if (w == 3) {
      carry[b] = sums[4];
      cuda::atomic_ref<int, cuda::thread_scope_device>(turns[b]).store(1, cuda::memory_order_release);
    }
  }
  __syncthreads(); // all
  if (i < n) y[i] = s + sums[w];
}
