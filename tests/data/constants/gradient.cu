// sizes in constant memory set in another function
#include <cuda_runtime.h>
#include <stdio.h>
__constant__ int nx, ny;
__constant__ float hx;
__global__ void grad(float* gx, const float* u) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < nx * ny; i += blockDim.x * gridDim.x) {
    int x = i % nx;
    gx[i] = x + 1 < nx ? (u[i + 1] - u[i]) * hx : 0.0f;
  }
}
__global__ void rows(float* sums, const float* u) {
  int y = blockIdx.x;
  __shared__ float part[256];
  float s = 0;
  for (int x = threadIdx.x; x < nx; x += 256) s += u[y * nx + x];
  part[threadIdx.x] = s;
  __syncthreads();
  for (int d = 128; d; d >>= 1) { if (threadIdx.x < d) part[threadIdx.x] += part[threadIdx.x + d]; __syncthreads(); }
  if (threadIdx.x == 0 && y < ny) sums[y] = part[0];
}
void init(int w, int h) {
  float d = 1.0f / w;
  cudaMemcpyToSymbol(nx, &w, sizeof(int));
  cudaMemcpyToSymbol(ny, &h, sizeof(int));
  cudaMemcpyToSymbol(hx, &d, sizeof(float));
}
int main() {
  const int w = 640, h = 480;
  float *u, *g, *s;
  init(w, h);
  cudaMalloc(&u, w * h * 4); cudaMalloc(&g, w * h * 4); cudaMalloc(&s, h * 4);
  grad<<<64, 256>>>(g, u);
  rows<<<h, 256>>>(s, u);
}
