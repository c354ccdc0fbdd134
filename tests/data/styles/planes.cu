// Stencil of 25 points' kind: planes go through registers, a plane in shared memory
extern "C" __global__ void k(const float* in, float* out, int nx, int ny, int nz) {
  constexpr int R = 2, X = 16, Y = 8;
  __shared__ float plane[Y + 2 * R][X + 2 * R];
  int tx = threadIdx.x % X, ty = threadIdx.x / X, x = blockIdx.x * X + tx, y = blockIdx.y * Y + ty;
  bool inside = x < nx && y < ny;
  auto at = [&](int i, int j, int l) {
    i = min(max(i, 0), nx - 1); j = min(max(j, 0), ny - 1);
    return l < 0 || l >= nz ? 0.f : in[(l * ny + j) * nx + i]; };
  float behind[R], now, ahead[R];
  for (int r = 0; r < R; r++) { behind[r] = 0; ahead[r] = at(x, y, r + 1); }
  now = at(x, y, 0);
  for (int z = 0; z < nz; z++) {
    plane[ty + R][tx + R] = now;
    if (tx < R) { plane[ty + R][tx] = at(x - R, y, z); plane[ty + R][tx + X + R] = at(x + X, y, z); }
    if (ty < R) { plane[ty][tx + R] = at(x, y - R, z); plane[ty + Y + R][tx + R] = at(x, y + Y, z); }
    __syncthreads();
    float s = -12 * now;
    for (int r = 1; r <= R; r++)
      s += plane[ty + R][tx + R - r] + plane[ty + R][tx + R + r] + plane[ty + R - r][tx + R] + plane[ty + R + r][tx + R]
         + behind[r - 1] + ahead[r - 1];
    if (inside) out[(z * ny + y) * nx + x] = s;
    for (int r = R - 1; r > 0; r--) behind[r] = behind[r - 1];
    behind[0] = now; now = ahead[0];
    for (int r = 0; r < R - 1; r++) ahead[r] = ahead[r + 1];
    ahead[R - 1] = at(x, y, z + R + 1);
    __syncthreads();
  }
}
