// Work stealing: each warp owns a deque in shared memory; who has nothing takes from the other end of a neighbour's
struct Deque { int top, bottom; int items[64]; };
extern "C" __global__ void k(const int* work, int* out, int* steals, int n) {
  __shared__ Deque queues[4]; __shared__ int left;
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  Deque* mine = &queues[w];
  if (lane == 0) { mine->top = 0; mine->bottom = 0; }
  if (t == 0) left = n;
  __syncthreads();
  if (w == 0) {                                           // all begins with the first warp
    for (int j = lane; j < n; j += 32) mine->items[j] = j;
    __syncwarp(); // filled
    if (lane == 0) { __threadfence_block(); atomicExch(&mine->bottom, n); }
  }
  for (int turn = 1; ; turn = turn % 3 + 1) {
    int item = -1;
    for (int j = 0; lane == 0 && item < 0 && j < 2; j++) {  // one's own, then a neighbour's
      Deque* from = &queues[(w + j * turn) & 3];
      int top = atomicAdd(&from->top, 0), bottom = atomicAdd(&from->bottom, 0);
      __threadfence_block(); // seen
      if (top < bottom) {
        item = from->items[top];
        if (atomicCAS(&from->top, top, top + 1) != top) item = -1;
        else if (j) atomicAdd(steals, 1);
      }
    }
    item = __shfl_sync(~0u, item, 0);
    if (item >= 0) {
      int v = work[item * 32 + lane];
      for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
      if (lane == 0) { out[item] = v; atomicSub(&left, 1); }
    }
    int rest = lane == 0 ? atomicAdd(&left, 0) : 0;
    if (__shfl_sync(~0u, rest, 0) == 0) break;
  }
}
