// Largest four of each row: a warp's lists merged by shuffles
extern "C" __global__ void k(const float* x, float* best, int* which, int rows, int n) {
  int lane = threadIdx.x % 32, row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;
  float v[4]; int id[4];
  for (int i = 0; i < 4; i++) { v[i] = -1e30f; id[i] = -1; }
  for (int j = lane; j < n; j += 32) {
    float y = x[row * n + j]; int at = j;
    for (int i = 0; i < 4; i++)
      if (y > v[i]) { float f = v[i]; v[i] = y; y = f; int q = id[i]; id[i] = at; at = q; }
  }
  for (int r = 0; r < 4; r++) {
    float top = v[0]; int at = id[0];
    for (int d = 16; d; d /= 2) {
      float o = __shfl_xor_sync(~0u, top, d); int oa = __shfl_xor_sync(~0u, at, d);
      if (o > top || (o == top && oa < at)) { top = o; at = oa; }
    }
    if (id[0] == at) { for (int i = 0; i < 3; i++) { v[i] = v[i + 1]; id[i] = id[i + 1]; } v[3] = -1e30f; id[3] = -1; }
    if (lane == 0) { best[row * 4 + r] = top; which[row * 4 + r] = at; }
  }
}
