// Mbarrier states: threads that leave drop out, the memory serves as data after inval
#include "styles.cuh"
extern "C" __global__ void k(const int* x, int* y, int rounds) {
  __shared__ int slot[64];
  __shared__ alignas(8) u64 bar;
  int t = threadIdx.x;
  if (t == 0) init(&bar, 64);
  __syncthreads();
  int mine = t < 32 ? rounds : rounds / 2, sum = 0;              // the second warp leaves earlier
  for (int i = 0; i < mine; i++) {
    slot[t] = x[i * 64 + t];
    u64 state;
    u32 done = 0;
    if (i == mine - 1 && t >= 32) {
      asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(&bar)) : "memory");
      break;
    }
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(&bar)) : "memory");
    while (!done)
      asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(at(&bar)), "l"(state) : "memory");
    sum += slot[t ^ 1];
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(&bar)) : "memory");
    do
      asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(at(&bar)), "l"(state) : "memory");
    while (!done);
  }
  __syncthreads();
  if (t == 0) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(&bar)) : "memory");
    *(volatile int*)&bar = rounds;
  }
  __syncthreads();
  y[t] = sum + *(int*)&bar;
}
