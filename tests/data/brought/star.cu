// A star stencil in three dimensions: planes in a queue of registers along z, the plane's halo in shared memory
extern "C" __global__ void k(const float* u, float* v, int nx, int ny, int nz) {
  __shared__ float plane[12][20];
  int tx = threadIdx.x, ty = threadIdx.y, x = blockIdx.x * 16 + tx, y = blockIdx.y * 8 + ty;
  bool in = x < nx && y < ny;
  long long step = (long long)nx * ny, at = (long long)y * nx + x;
  float below2 = 0, below = 0, now = in ? u[at] : 0, above = in && nz > 1 ? u[at + step] : 0;
  for (int z = 0; z < nz; z++) {
    float above2 = in && z + 2 < nz ? u[at + 2 * step] : 0;
    plane[ty + 2][tx + 2] = now;
    if (tx < 2) {
      plane[ty + 2][tx] = y < ny && x >= 2 ? u[at - 2] : 0;
      plane[ty + 2][tx + 18] = y < ny && x + 16 < nx ? u[at + 16] : 0;
    }
    if (ty < 2) {
      plane[ty][tx + 2] = x < nx && y >= 2 ? u[at - 2 * nx] : 0;
      plane[ty + 10][tx + 2] = x < nx && y + 8 < ny ? u[at + 8 * nx] : 0;
    }
    __syncthreads(); // filled
    if (in) {
      float s = -12 * now + below + above + below2 + above2;
      for (int d = 1; d < 3; d++)
        s += plane[ty + 2][tx + 2 - d] + plane[ty + 2][tx + 2 + d] + plane[ty + 2 - d][tx + 2] + plane[ty + 2 + d][tx + 2];
      v[at] = s;
    }
    __syncthreads(); // used
    below2 = below; below = now; now = above; above = above2; at += step;
  }
}
