// Semaphore and latch of libcu++ between the warps of a block
#include <cuda/semaphore>
#include <cuda/latch>
#include <cuda/atomic>
extern "C" __global__ void k(const int* x, int* y, int rounds) {
  __shared__ cuda::counting_semaphore<cuda::thread_scope_block, 2> ready, empty;
  __shared__ __align__(16) char room[sizeof(cuda::latch<cuda::thread_scope_block>)];
  auto& done = *reinterpret_cast<cuda::latch<cuda::thread_scope_block>*>(room);
  __shared__ int slot[32];
  int w = threadIdx.x / 32, lane = threadIdx.x % 32, sum = 0;
  if (threadIdx.x == 0) {
    new (&ready) cuda::counting_semaphore<cuda::thread_scope_block, 2>(0);
    new (&empty) cuda::counting_semaphore<cuda::thread_scope_block, 2>(1);
    new (&done) cuda::latch<cuda::thread_scope_block>(64);
  }
  __syncthreads();
  for (int i = 0; i < rounds; i++) {
    if (w == 0) {
      if (lane == 0) empty.acquire();
      __syncwarp();
      slot[lane] = x[i * 32 + lane];
      __syncwarp();
      if (lane == 0) ready.release();
    } else {
      if (lane == 0) ready.acquire();
      __syncwarp();
      sum += slot[31 - lane];
      __syncwarp();
      if (lane == 0) empty.release();
    }
  }
  if (w == 1) y[lane] = sum;
  done.arrive_and_wait();
  if (w == 0) y[32 + lane] = y[lane];
}
