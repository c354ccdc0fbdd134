// Sums of products of rows, with copies that fill up with zeros, three stages in a ring
#define STAGES 3
__device__ void copy16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes) : "memory"); }
extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int pitch) {
  __shared__ __align__(16) float as[STAGES][16][16], bs[STAGES][16];
  int t = threadIdx.x, row = t >> 2, part = t & 3, at = blockIdx.x * 16 + row, steps = (n + 15) / 16;
  auto fetch = [&](int step) {
    int s = step % STAGES, j = step * 16 + part * 4;
    int left = at < m && step < steps ? min(16, max(0, (n - j) * 4)) : 0;
    copy16(&as[s][row][part * 4], left ? a + (long long)at * pitch + j : a, left);
    if (row == 0) { int l = step < steps ? min(16, max(0, (n - j) * 4)) : 0; copy16(&bs[s][part * 4], l ? b + j : b, l); }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int s = 0; s < STAGES - 1; s++) fetch(s);
  float sum = 0;
  for (int step = 0; step < steps; step++) {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
    __syncthreads();
    fetch(step + STAGES - 1);
    int s = step % STAGES;
    for (int j = 0; j < 4; j++) sum += as[s][row][part * 4 + j] * bs[s][part * 4 + j];
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (part == 0 && at < m) c[at] = sum;
}
