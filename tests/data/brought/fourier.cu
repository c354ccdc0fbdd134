// Transforms of 256 points: 32 by shuffles within a warp, twiddles, then 8 across warps through shared memory
__device__ float2 times(float2 a, float2 b) { return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
extern "C" __global__ void k(const float2* x, float2* y, int batches) {
  __shared__ float2 rows[8][33];
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  for (int at = blockIdx.x; at < batches; at += gridDim.x) {
    float2 v = x[at * 256 + (__brev(lane) >> 27) * 8 + w];  // this warp has every eighth element, from w
    for (int half = 1; half < 32; half <<= 1) {
      float2 o = make_float2(__shfl_xor_sync(~0u, v.x, half), __shfl_xor_sync(~0u, v.y, half));
      float2 f; sincospif(-(float)(lane & (half - 1)) / half, &f.y, &f.x);
      float2 low = lane & half ? o : v, high = times(lane & half ? v : o, f);
      v = lane & half ? make_float2(low.x - high.x, low.y - high.y) : make_float2(low.x + high.x, low.y + high.y);
    }
    float2 f; sincospif(-(float)(lane * w) / 128, &f.y, &f.x);
    rows[w][lane] = times(v, f);
    __syncthreads(); // there
    float2 s = make_float2(0, 0);                            // output w * 32 + lane
    for (int j = 0; j < 8; j++) {
      sincospif(-(float)(j * w) / 4, &f.y, &f.x);
      float2 p = times(rows[j][lane], f);
      s.x += p.x; s.y += p.y;
    }
    y[at * 256 + w * 32 + lane] = s;
    __syncthreads(); // free
  }
}
