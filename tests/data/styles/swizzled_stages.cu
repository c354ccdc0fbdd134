// Product by ldmatrix and mma.sync from swizzled stages of cp.async
typedef unsigned u32;
static __device__ u32 at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
static __device__ void copy(void* to, const void* from, int size) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(at(to)), "l"(from), "r"(size)); }
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, float* c, int m, int n, int k) {
  constexpr int BM = 32, BN = 32, BK = 32, S = 3;      // rows of four 16-byte chunks
  __shared__ __align__(128) unsigned short sa[S][BM * BK], sb[S][BN * BK];
  int t = threadIdx.x, warp = t / 32, lane = t % 32, m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  auto place = [](int row, int chunk) { return row * BK + ((chunk ^ (row >> 1 & 3)) << 3); };
  auto fetch = [&](int s, int k0) {
    int row = t / 4, chunk = t % 4;
    bool ka = k0 + chunk * 8 < k;
    copy(&sa[s][place(row, chunk)], ka && m0 + row < m ? a + (m0 + row) * k + k0 + chunk * 8 : a, ka && m0 + row < m ? 16 : 0);
    copy(&sb[s][place(row, chunk)], ka && n0 + row < n ? b + (n0 + row) * k + k0 + chunk * 8 : b, ka && n0 + row < n ? 16 : 0);
  };
  int steps = (k + BK - 1) / BK;
  for (int s = 0; s < S - 1; s++) {
    if (s < steps) fetch(s, s * BK);
    asm volatile("cp.async.commit_group;");
  }
  int wm = warp / 2 * 16, wn = warp % 2 * 16;
  float d[2][4] = {};
  for (int i = 0; i < steps; i++) {
    asm volatile("cp.async.wait_group %0;" :: "n"(S - 2) : "memory");
    __syncthreads();
    if (i + S - 1 < steps) fetch((i + S - 1) % S, (i + S - 1) * BK);
    asm volatile("cp.async.commit_group;");
    int s = i % S;
    for (int kk = 0; kk < 2; kk++) {
      u32 x[4], y[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
        : "r"(at(&sa[s][place(wm + lane % 16, kk * 2 + lane / 16)])));
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3])
        : "r"(at(&sb[s][place(wn + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2)])));
      for (int j = 0; j < 2; j++)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
          : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[2 * j]), "r"(y[2 * j + 1]));
    }
  }
  for (int j = 0; j < 2; j++)
    for (int e = 0; e < 4; e++) {
      int row = m0 + wm + lane / 4 + e / 2 * 8, col = n0 + wn + j * 8 + lane % 4 * 2 + e % 2;
      if (row < m && col < n) c[row * n + col] = d[j][e];
    }
}
