// Barriers in shared memory by their states: threads arrive, work on, and wait later; one for each half of a block
#include "hopper.cuh"
__device__ u64 arrive_state(u64* b) {
  u64 s; asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(s) : "r"(at(b)) : "memory"); return s; }
__device__ void wait_state(u64* b, u64 s) {
  asm volatile("{ .reg .pred p; L: mbarrier.test_wait.shared::cta.b64 p, [%0], %1; @!p bra L; }"
               :: "r"(at(b)), "l"(s) : "memory"); }
extern "C" __global__ void k(const int* x, int* y, int rounds, int n) {
  __shared__ u64 bars[2]; __shared__ int mine[2][64], sums[2];
  int t = threadIdx.x, half = t >> 6, r = t & 63, i = blockIdx.x * 128 + t;
  if (t < 2) { init(&bars[t], 64); }
  __syncthreads(); // made
  int v = i < n ? x[i] : 0;
  for (int round = 0; round < rounds; round++) {
    mine[half][r] = v;
    u64 s = arrive_state(&bars[half]);
    int own = v * 3;                                         // what needs nobody
    wait_state(&bars[half], s);
    v = own + mine[half][(r + 1) & 63];
    s = arrive_state(&bars[half]);
    wait_state(&bars[half], s); // again
  }
  if (r == 0) sums[half] = v;
  __syncthreads(); // both
  if (i < n) y[i] = v + sums[half ^ 1];
}
