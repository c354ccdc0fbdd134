// Warps take tiles by a ticket in shared memory and append what they keep in the order of tiles, each in its turn
extern "C" __global__ void k(const int* x, int* kept, int* count, int n) {
  __shared__ int ticket; __shared__ volatile int turn, base;
  int t = threadIdx.x, lane = t & 31;
  if (t == 0) { ticket = 0; turn = 0; base = 0; }
  __syncthreads(); // made
  while (true) {
    int tile = lane == 0 ? atomicAdd(&ticket, 1) : 0;
    tile = __shfl_sync(~0u, tile, 0);
    if (tile * 32 >= n) break;
    int i = tile * 32 + lane, v = i < n ? x[i] : 0;
    unsigned keep = __ballot_sync(~0u, v % 3 == 1);
    int at = 0;
    if (lane == 0) {
      while (turn != tile);
      __threadfence_block(); // seen
      at = base;
      base = at + __popc(keep);
      __threadfence_block(); // put
      turn = tile + 1;
    }
    at = __shfl_sync(~0u, at, 0);
    if (keep >> lane & 1) kept[at + __popc(keep & ((1u << lane) - 1))] = v;
  }
  __syncthreads(); // all
  if (t == 0) *count = base;
}
