// Cells that a surface crosses, packed: bits of corners, a scan of counts in the block, one atomic a block
extern "C" __global__ void k(const float* field, int* cells, int* points, unsigned* sizes,
                             int nx, int ny, int nz, float level) {
  __shared__ int sums[8], base[2];
  int t = threadIdx.x, lane = t & 31, w = t >> 5, i = blockIdx.x * 256 + t;
  int cx = nx - 1, cy = ny - 1, x = i % cx, y = i / cx % cy, z = i / (cx * cy), code = 0;
  if (z < nz - 1)
    for (int c = 0; c < 8; c++)
      if (field[((z + (c >> 2)) * ny + y + (c >> 1 & 1)) * nx + x + (c & 1)] > level) code |= 1 << c;
  bool cut = code && code != 255;
  unsigned who = __ballot_sync(~0u, cut);
  if (lane == 0) sums[w] = __popc(who);
  __syncthreads(); // counted
  if (w == 0) {
    int v = lane < 8 ? sums[lane] : 0, s = v;
    for (int d = 1; d < 8; d <<= 1) { int o = __shfl_up_sync(~0u, s, d); if (lane >= d) s += o; }
    if (lane < 8) sums[lane] = s - v;
    if (lane == 7) base[0] = atomicAdd(&sizes[0], s);
  }
  __syncthreads(); // placed
  if (cut) {
    int at = base[0] + sums[w] + __popc(who & ((1u << lane) - 1));
    cells[at] = i; points[at] = code;
  }
}
