// A product of 8-bit floats by mma.sync, with a scale for each row of A and each column of B, and k in steps of 64
extern "C" __global__ void k(const unsigned* a, const unsigned* b, const float* sa, const float* sb, float* c,
                             int m, int n, int words) {
  __shared__ unsigned as[2][16][17], bs[2][16][17];
  int t = threadIdx.x, lane = t & 31, w = t >> 5, g = lane >> 2, q = lane & 3;
  int row = blockIdx.y * 16, col = blockIdx.x * 16;
  auto fetch = [&](int s, int step) {
    for (int i = t; i < 256; i += 64) {
      int r = i >> 4, j = i & 15;
      as[s][r][j] = row + r < m && step * 16 + j < words ? a[(row + r) * words + step * 16 + j] : 0;
      bs[s][r][j] = col + r < n && step * 16 + j < words ? b[(col + r) * words + step * 16 + j] : 0;
    }
  };
  float d[4] = {0, 0, 0, 0};
  int steps = (words + 15) / 16;
  fetch(0, 0);
  for (int step = 0; step < steps; step++) {
    __syncthreads(); // filled
    if (step + 1 < steps) fetch((step + 1) & 1, step + 1);
    int s = step & 1;
    for (int j = 0; j < 16; j += 8)
      asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(as[s][g][j + q]), "r"(as[s][g + 8][j + q]), "r"(as[s][g][j + q + 4]), "r"(as[s][g + 8][j + q + 4]),
          "r"(bs[s][w * 8 + g][j + q]), "r"(bs[s][w * 8 + g][j + q + 4]));
  }
  for (int i = 0; i < 4; i++) {
    int r = row + g + (i >> 1) * 8, j = col + w * 8 + q * 2 + (i & 1);
    if (r < m && j < n) c[r * n + j] = d[i] * sa[r] * sb[j];
  }
}
