__global__ void init(int* parent, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) parent[i] = i;
}
__device__ int root(int* parent, int i) {
  volatile int* p = parent;
  while (p[i] != i) i = p[i];
  return i;
}
__global__ void link(int* parent, const int* from, const int* to, int m) {
  int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= m) return;
  int a = root(parent, from[e]), b = root(parent, to[e]);
  while (a != b) {
    if (a < b) {
      int t = a;
      a = b;
      b = t;
    }
    int old = atomicCAS(&parent[a], a, b);
    if (old == a) break;
    a = root(parent, old);
    b = root(parent, b);
  }
}
__global__ void flatten(const int* parent, int* label, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int r = i;
  while (parent[r] != r) r = parent[r];
  label[i] = r;
}
void components(const int* h_from, const int* h_to, int n, int m) {
  int *parent, *from, *to, *label;
  cudaMalloc(&parent, n * sizeof(int));
  cudaMalloc(&label, n * sizeof(int));
  cudaMalloc(&from, m * sizeof(int));
  cudaMalloc(&to, m * sizeof(int));
  cudaMemcpy(from, h_from, m * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemcpy(to, h_to, m * sizeof(int), cudaMemcpyHostToDevice);
  init<<<(n + 255) / 256, 256>>>(parent, n);
  link<<<(m + 255) / 256, 256>>>(parent, from, to, m);
  flatten<<<(n + 255) / 256, 256>>>(parent, label, n);
}
