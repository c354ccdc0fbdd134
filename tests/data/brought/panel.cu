// A panel of an LU decomposition with pivots: the largest of a column by the block, rows exchanged, the rest updated
extern "C" __global__ void k(float* a, int* pivots, int m, int n) {
  __shared__ float best[4], line[16]; __shared__ int where[4], pivot;
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  for (int j = 0; j < n; j++) {
    float v = t >= j && t < m ? fabsf(a[t * n + j]) : -1; int at = t;
    for (int d = 16; d; d >>= 1) {
      float o = __shfl_down_sync(~0u, v, d); int p = __shfl_down_sync(~0u, at, d);
      if (o > v) { v = o; at = p; }
    }
    if (lane == 0) { best[w] = v; where[w] = at; }
    __syncthreads(); // found
    if (t == 0) {
      int b = 0;
      for (int i = 1; i < 4; i++) if (best[i] > best[b]) b = i;
      pivot = where[b]; pivots[j] = pivot;
    }
    __syncthreads(); // chosen
    if (t < n) {
      float p = a[pivot * n + t], o = a[j * n + t];
      line[t] = p; a[pivot * n + t] = o; a[j * n + t] = p;
    }
    __syncthreads(); // exchanged
    if (t > j && t < m) {
      float f = a[t * n + j] / line[j];
      a[t * n + j] = f;
      for (int i = j + 1; i < n; i++) a[t * n + i] -= f * line[i];
    }
    __syncthreads(); // updated
  }
}
