// A Cholesky decomposition of a small matrix in shared memory, a matrix for each block
extern "C" __global__ void k(const float* a, float* l, int n) {
  extern __shared__ float s[];
  int t = threadIdx.x, pitch = n + 1;
  for (int i = t; i < n * n; i += blockDim.x) s[i / n * pitch + i % n] = a[blockIdx.x * n * n + i];
  __syncthreads(); // loaded
  for (int j = 0; j < n; j++) {
    if (t == 0) s[j * pitch + j] = sqrtf(s[j * pitch + j]);
    __syncthreads(); // root
    for (int i = j + 1 + t; i < n; i += blockDim.x) s[i * pitch + j] /= s[j * pitch + j];
    __syncthreads(); // column
    int rest = n - j - 1;
    for (int e = t; e < rest * rest; e += blockDim.x) {
      int r = j + 1 + e / rest, c = j + 1 + e % rest;
      if (c <= r) s[r * pitch + c] -= s[r * pitch + j] * s[c * pitch + j];
    }
    __syncthreads(); // update
  }
  for (int i = t; i < n * n; i += blockDim.x)
    l[blockIdx.x * n * n + i] = i % n <= i / n ? s[i / n * pitch + i % n] : 0;
}
