// Bits of 32 x 32 turned within a warp by shuffles, the words of a tile in shared memory
extern "C" __global__ void k(const unsigned* in, unsigned* out, int rows, int words) {
  __shared__ unsigned tile[4][33];
  int lane = threadIdx.x, w = threadIdx.y, row = blockIdx.y * 32 + lane, word = blockIdx.x * 4 + w;
  if (lane < 4) for (int j = w; j < 32; j += 4) {
    int r = blockIdx.y * 32 + j, c = blockIdx.x * 4 + lane;
    tile[lane][j] = r < rows && c < words ? in[r * words + c] : 0;
  }
  __syncthreads();
  unsigned x = tile[w][lane];
  for (int d = 16, mask = 0xffff; d; d >>= 1, mask ^= mask << d) {
    unsigned y = __shfl_xor_sync(~0u, x, d);
    x = lane & d ? (x & ~(unsigned)mask) | (y >> d & mask) : (x & mask) | (y << d & ~(unsigned)mask);
  }
  if (word < words) out[(word * 32 + lane) * gridDim.y + blockIdx.y] = x;
  (void)row;
}
