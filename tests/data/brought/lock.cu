// Buckets in shared memory, each behind a lock that lane 0 of a warp takes; count, sum and largest of each
struct Bucket { int count, sum, largest; };
extern "C" __global__ void k(const int* x, int* out, int n) {
  __shared__ Bucket buckets[8]; __shared__ int locks[8];
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  if (t < 8) { buckets[t].count = 0; buckets[t].sum = 0; buckets[t].largest = -1; locks[t] = 0; }
  __syncthreads(); // made
  for (int i = w; i * 32 < n; i += blockDim.x / 32) {
    int v = i * 32 + lane < n ? x[i * 32 + lane] : -1, b = i & 7;
    int count = __popc(__ballot_sync(~0u, v >= 0)), sum = __reduce_add_sync(~0u, max(v, 0)), most = __reduce_max_sync(~0u, v);
    if (lane == 0) {
      while (atomicCAS(&locks[b], 0, 1) != 0);
      __threadfence_block(); // locked
      Bucket o = buckets[b];
      o.count += count; o.sum += sum; o.largest = max(o.largest, most);
      buckets[b] = o;
      __threadfence_block(); // unlock
      atomicExch(&locks[b], 0);
    }
  }
  __syncthreads(); // all
  if (t < 8) { out[t * 3] = buckets[t].count; out[t * 3 + 1] = buckets[t].sum; out[t * 3 + 2] = buckets[t].largest; }
}
