__global__ void keys_of(const float* depth, int* key, int* id, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  key[i] = (int)(fabsf(depth[i]) * 4.0f);
  if (key[i] > 31) key[i] = 31;
  id[i] = i;
}
__global__ void ranges(const int* key, int2* range, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  if (i == 0) range[key[i]].x = 0;
  else if (key[i] != key[i - 1]) {
    range[key[i - 1]].y = i;
    range[key[i]].x = i;
  }
  if (i == n - 1) range[key[i]].y = n;
}
__global__ void blend(const int2* range, const int* id, const float* depth, float* out) {
  int2 r = range[blockIdx.x];
  float sum = 0.0f;
  for (int i = r.x + threadIdx.x; i < r.y; i += 32) sum += depth[id[i]];
  atomicAdd(&out[blockIdx.x], sum);
}
void render(const float* depth, float* out, int n) {
  int *key, *id;
  int2* range;
  cudaMalloc(&key, n * sizeof(int));
  cudaMalloc(&id, n * sizeof(int));
  cudaMalloc(&range, 32 * sizeof(int2));
  cudaMemset(range, 0, 32 * sizeof(int2));
  keys_of<<<(n + 255) / 256, 256>>>(depth, key, id, n);
  thrust::sort_by_key(thrust::device, key, key + n, id);
  ranges<<<(n + 255) / 256, 256>>>(key, range, n);
  blend<<<32, 32>>>(range, id, depth, out);
}
