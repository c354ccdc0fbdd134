__global__ void init_heads(int* head, int buckets) {
  int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b < buckets) head[b] = -1;
}
__global__ void insert(const int* keys, int* head, int* next, int n, int buckets) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) next[i] = atomicExch(&head[keys[i] % buckets], i);
}
__global__ void lookup(const int* keys, const int* head, const int* next, const int* asked, int* found, int n,
                       int buckets) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int at = head[asked[i] % buckets];
  while (at != -1 && keys[at] != asked[i]) at = next[at];
  found[i] = at;
}
void join(const int* keys, const int* asked, int* found, int n, int buckets) {
  int *head, *next;
  cudaMalloc(&head, buckets * sizeof(int));
  cudaMalloc(&next, n * sizeof(int));
  init_heads<<<(buckets + 255) / 256, 256>>>(head, buckets);
  insert<<<(n + 255) / 256, 256>>>(keys, head, next, n, buckets);
  lookup<<<(n + 255) / 256, 256>>>(keys, head, next, asked, found, n, buckets);
}
