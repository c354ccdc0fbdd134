// A convolution as a product: columns of the image are gathered tile by tile into shared memory, two buffers
extern "C" __global__ void k(const float* x, const float* w, float* y, int c, int h, int wd, int f, int oh, int ow) {
  __shared__ float a[2][16][17], b[2][16][17];
  int tx = threadIdx.x, ty = threadIdx.y, col = blockIdx.x * 16 + tx, row = blockIdx.y * 16 + ty, depth = c * 9;
  int oy = col / ow, ox = col % ow;
  auto fetch = [&](int s, int d) {
    int d1 = d + tx, d2 = d + ty;
    a[s][ty][tx] = row < f && d1 < depth ? w[row * depth + d1] : 0;
    int ch = d2 / 9, ky = d2 % 9 / 3, kx = d2 % 3, iy = oy + ky - 1, ix = ox + kx - 1;
    bool in = d2 < depth && col < oh * ow && iy >= 0 && iy < h && ix >= 0 && ix < wd;
    b[s][ty][tx] = in ? x[(ch * h + iy) * wd + ix] : 0;
  };
  fetch(0, 0);
  __syncthreads(); // first
  float s = 0;
  for (int d = 0, at = 0; d < depth; d += 16, at ^= 1) {
    if (d + 16 < depth) fetch(at ^ 1, d + 16);
    for (int j = 0; j < 16; j++) s += a[at][ty][j] * b[at][j][tx];
    __syncthreads(); // next
  }
  if (row < f && col < oh * ow) y[row * oh * ow + col] = s;
}
