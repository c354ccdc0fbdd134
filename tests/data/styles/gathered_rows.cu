// Rows gathered by cp.async, which arrive at mbarriers, for a product of int8 by wgmma
#include "styles.cuh"
// 64 rows of 32 bytes without a swizzle: core matrices of 8 rows x 16 bytes
DEV u64 desc(const void* p, int lead, int stride) {
  return (u64)(at(p) >> 4 & 0x3fff) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32; }
DEV void mma(int (&d)[8], u64 a, u64 b, int more) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p; }"
    : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
    : "l"(a), "l"(b), "r"(more)); }
extern "C" __global__ void k(const signed char* a, const int* rows, const signed char* b, int* c, int k) {
  constexpr int S = 2;
  __shared__ alignas(128) signed char sa[S][64 * 32], sb[S][16 * 32];
  __shared__ alignas(8) u64 full[S], empty[S];
  int t = threadIdx.x, steps = k / 32;
  if (t == 0) {
    for (int s = 0; s < S; s++) { init(&full[s], 32); init(&empty[s], 1); }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (t >= 128) {
    int lane = t - 128;
    for (int i = 0; i < steps; i++) {
      int s = i % S;
      if (i >= S) wait(&empty[s], (i / S - 1) & 1);
      auto copy = [&](signed char* to, const signed char* from) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at(to)), "l"(from) : "memory"); };
      for (int j = lane; j < 128; j += 32) {      // 64 rows, two halves
        int r = j / 2, h = j % 2;
        copy(&sa[s][(r / 8) * 256 + h * 128 + r % 8 * 16], a + (long)rows[r] * k + i * 32 + h * 16);
      }
      {
        int r = lane / 2, h = lane % 2;
        copy(&sb[s][(r / 8) * 256 + h * 128 + r % 8 * 16], b + r * k + i * 32 + h * 16);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(at(&full[s])) : "memory");
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  } else {
    int d[8];
    for (int i = 0; i < steps; i++) {
      int s = i % S;
      wait(&full[s], i / S & 1);
      fence_async();
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      mma(d, desc(sa[s], 128, 256), desc(sb[s], 128, 256), i > 0);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (t == 0) arrive(&empty[s]);
    }
    int w = t / 32, q = t % 32;
    for (int j = 0; j < 8; j++) {
      int row = w * 16 + (j / 2 % 2) * 8 + q / 4, col = j / 4 * 8 + q % 4 * 2 + j % 2;
      c[row * 16 + col] = d[j];
    }
  }
}
