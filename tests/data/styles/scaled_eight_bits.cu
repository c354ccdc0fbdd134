// Product of 8-bit floats by wgmma with scales by row and by block of k, as DeepGEMM promotes it
#include "styles.cuh"
DEV u64 desc(const void* p) { return (u64)(at(p) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
DEV void mma(float (&d)[8], u64 a, u64 b, int more) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
    : "l"(a), "l"(b), "r"(more)); }
DEV void box(void* to, const Map* m, int x, int y, u64* b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
    " [%0], [%1, {%2, %3}], [%4], %5;" :: "r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)), "l"(0x14F0000000000000ull) : "memory"); }
extern "C" __global__ void k(const __grid_constant__ Map ma, const __grid_constant__ Map mb, const float* sa, const float* sb, float* c, int m, int k) {
  constexpr int S = 2;
  extern __shared__ __align__(1024) unsigned char raw[];
  unsigned char *a = raw, *b = raw + S * 8192;
  float* scale = (float*)(b + S * 2048);                 // of 64 rows, S stages
  u64 *full = (u64*)(scale + S * 64), *empty = full + S;
  int t = threadIdx.x, steps = k / 128, m0 = blockIdx.x * 64;
  if (t == 128) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(&ma) : "memory");
    for (int s = 0; s < S; s++) { init(full + s, 1); init(empty + s, 4); }
    fence_init();
  }
  __syncthreads();
  if (t >= 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (t == 128)
      for (int i = 0; i < steps; i++) {
        int s = i % S;
        wait(empty + s, i / S & 1 ^ 1);
        expect(full + s, 8192 + 2048 + 256);
        box(a + s * 8192, &ma, i * 128, m0, full + s);
        box(b + s * 2048, &mb, i * 128, 0, full + s);
        load(scale + s * 64, sa + i * m + m0, 256, full + s);
      }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int w = t / 32, lane = t % 32, row = w * 16 + lane / 4;
    float sum[8] = {};
    for (int i = 0; i < steps; i++) {
      int s = i % S;
      float by = sb[i], d[8];
      wait(full + s, i / S & 1);
      float one = scale[s * 64 + row], other = scale[s * 64 + row + 8];
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int kk = 0; kk < 4; kk++) mma(d, desc(a + s * 8192) + 2 * kk, desc(b + s * 2048) + 2 * kk, kk);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      __syncwarp();
      if (lane == 0) arrive(empty + s);
      for (int j = 0; j < 8; j++) sum[j] += (j / 2 & 1 ? other : one) * by * d[j];
    }
    for (int j = 0; j < 8; j++)
      c[(m0 + row + (j / 2 & 1) * 8) * 16 + j / 4 * 8 + lane % 4 * 2 + j % 2] = sum[j];
  }
}
