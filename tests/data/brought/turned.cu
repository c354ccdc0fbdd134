// A matrix turned: a tile of 64 x 64 by TMA, 8 x 8 by ldmatrix and stmatrix with a swizzle by hand, out by TMA
#include "units.cuh"
DEV int spot(int row, int chunk) { return row * 128 + ((chunk ^ row & 7) << 4); }
extern "C" __global__ void k(const __grid_constant__ Map x, const __grid_constant__ Map y) {
  __shared__ __align__(1024) unsigned char in[64 * 128], out[64 * 128];
  __shared__ u64 full;
  int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  if (t == 0) {
    init(&full, 1); fence_init();
    expect(&full, sizeof in);
    box2(in, &x, blockIdx.x * 64, blockIdx.y * 64, &full);
  }
  __syncthreads(); // made
  wait(&full, 0);
  for (int c = 0; c < 8; c++) {
    u32 r[2], from = at(in) + spot(warp * 16 + (lane & 15), c);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(from) : "memory");
    u32 to = at(out) + spot(c * 8 + (lane & 7), warp * 2 + (lane >> 3 & 1));
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" :: "r"(to), "r"(r[0]), "r"(r[1]) : "memory");
  }
  fence_async();
  __syncthreads(); // turned
  if (t == 0) { store2(&y, blockIdx.y * 64, blockIdx.x * 64, out); commit(); read_but<0>(); }
}
