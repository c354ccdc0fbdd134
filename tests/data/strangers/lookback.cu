#include <cuda/atomic>
// Decoupled look-back inclusive scan, 64-bit status words
struct Tile { unsigned long long* state; unsigned* ticket; };
__global__ void lookback(const int* in, int* out, Tile tile, int n) {
  __shared__ int sums[8]; __shared__ int prefix; __shared__ unsigned id;
  if (threadIdx.x == 0) id = atomicAdd(tile.ticket, 1u);
  __syncthreads();
  int bid = id, i = bid * 256 + threadIdx.x, lane = threadIdx.x & 31, w = threadIdx.x >> 5;
  int v = i < n ? in[i] : 0;
  for (int d = 1; d < 32; d <<= 1) { int o = __shfl_up_sync(~0u, v, d); if (lane >= d) v += o; }
  if (lane == 31) sums[w] = v;
  __syncthreads();
  if (w == 0) {
    int s = lane < 8 ? sums[lane] : 0;
    for (int d = 1; d < 8; d <<= 1) { int o = __shfl_up_sync(~0u, s, d); if (lane >= d) s += o; }
    if (lane < 8) sums[lane] = s;
  }
  __syncthreads();
  if (w) v += sums[w - 1];
  if (threadIdx.x == 255) {
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> me(tile.state[bid]);
    me.store(((unsigned long long)(bid ? 1 : 2) << 32) | (unsigned)v, cuda::memory_order_release);
    int run = 0;
    for (int p = bid - 1; p >= 0;) {
      cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> r(tile.state[p]);
      unsigned long long s = r.load(cuda::memory_order_acquire);
      if ((s >> 32) == 0) continue;
      run += (int)(unsigned)s;
      if ((s >> 32) == 2) break;
      p--;
    }
    if (bid) me.store((2ull << 32) | (unsigned)(run + v), cuda::memory_order_release);
    prefix = run;
  }
  __syncthreads();
  if (i < n) out[i] = v + prefix;
}
