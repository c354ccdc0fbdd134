// Perlin noise
#include <cuda_runtime.h>
#include <algorithm>
#include <numeric>
__constant__ int perm[512];
__device__ float fade(float t) { return t * t * t * (t * (t * 6 - 15) + 10); }
__device__ float noise(float x, float y) {
  int X = (int)floorf(x) & 255, Y = (int)floorf(y) & 255;
  int a = perm[X] + Y, b = perm[X + 1] + Y;
  return perm[a] * fade(x) + perm[b + 1] * fade(y) + perm[a + 1] + perm[b];
}
__global__ void fill(float* out, int w, int h, float scale) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < w && y < h) out[y * w + x] = noise(x * scale, y * scale);
}
void run(float* out, int w, int h) {
  int p[512];
  std::iota(p, p + 256, 0);
  std::random_shuffle(p, p + 256);
  for (int i = 0; i < 256; i++) p[256 + i] = p[i];
  cudaMemcpyToSymbol(perm, p, sizeof(p));
  fill<<<dim3((w + 15) / 16, (h + 15) / 16), dim3(16, 16)>>>(out, w, h, 0.1f);
}
