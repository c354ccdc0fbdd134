__global__ void heads(const int* keys, int* flags, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) flags[i] = i == 0 || keys[i] != keys[i - 1];
}
__global__ void starts(const int* flags, const int* ids, int* begin, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && flags[i]) begin[ids[i] - 1] = i;
  if (i == n - 1) begin[ids[i]] = n;
}
__global__ void sums(const float* x, const int* begin, const int* ids, float* y, int n) {
  int s = blockIdx.x * blockDim.x + threadIdx.x;
  if (s >= ids[n - 1]) return;
  float sum = 0.0f;
  for (int i = begin[s]; i < begin[s + 1]; i++) sum += x[i];
  y[s] = sum;
}
void segmented(const int* h_keys, const float* h_x, int n) {
  thrust::device_vector<int> keys(n), flags(n), ids(n), begin(n + 1);
  thrust::device_vector<float> x(n), y(n);
  int blocks = (n + 255) / 256;
  heads<<<blocks, 256>>>(thrust::raw_pointer_cast(keys.data()), thrust::raw_pointer_cast(flags.data()), n);
  thrust::inclusive_scan(flags.begin(), flags.end(), ids.begin());
  starts<<<blocks, 256>>>(thrust::raw_pointer_cast(flags.data()), thrust::raw_pointer_cast(ids.data()),
                          thrust::raw_pointer_cast(begin.data()), n);
  sums<<<blocks, 256>>>(thrust::raw_pointer_cast(x.data()), thrust::raw_pointer_cast(begin.data()),
                        thrust::raw_pointer_cast(ids.data()), thrust::raw_pointer_cast(y.data()), n);
}
