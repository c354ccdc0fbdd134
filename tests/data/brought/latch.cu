// A latch and a semaphore of libcu++ in shared memory: two warps at a time in a stage, all results when all are in
#include <cuda/latch>
#include <cuda/semaphore>
extern "C" __global__ void k(const int* x, int* y, int n) {
  __shared__ cuda::latch<cuda::thread_scope_block>* done;
  __shared__ alignas(16) char room[64], more[64];
  __shared__ int sums[4];
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  auto* l = reinterpret_cast<cuda::latch<cuda::thread_scope_block>*>(room);
  auto* s = reinterpret_cast<cuda::counting_semaphore<cuda::thread_scope_block, 4>*>(more);
  if (t == 0) {
    new (l) cuda::latch<cuda::thread_scope_block>(4); done = l;
    new (s) cuda::counting_semaphore<cuda::thread_scope_block, 4>(2);
  }
  __syncthreads(); // made
  int i = blockIdx.x * 128 + t, v = i < n ? x[i] : 0;
  v = __reduce_add_sync(~0u, v);
  if (lane == 0) {
    s->acquire();
    sums[w] = v;
    s->release();
    done->count_down();
  }
  done->wait();
  if (i < n) y[i] = x[i] + sums[0] + sums[1] + sums[2] + sums[3];
}
