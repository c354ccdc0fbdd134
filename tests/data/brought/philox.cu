// Dropout with Philox: four numbers a thread, vectors of four elements and a tail
__device__ uint4 draw(unsigned long long index, unsigned seed) {
  unsigned x = (unsigned)index, y = (unsigned)(index >> 32), z = 0, w = 0, a = seed, b = 0;
  for (int i = 0; i < 7; i++) {
    unsigned h0 = __umulhi(0xD2511F53u, x), l0 = 0xD2511F53u * x, h1 = __umulhi(0xCD9E8D57u, z), l1 = 0xCD9E8D57u * z;
    x = h1 ^ y ^ a; y = l1; z = h0 ^ w ^ b; w = l0;
    a += 0x9E3779B9u; b += 0xBB67AE85u;
  }
  return make_uint4(x, y, z, w);
}
extern "C" __global__ void k(const float* x, float* y, unsigned char* mask, int n, unsigned keep, float scale, unsigned seed) {
  int threads = gridDim.x * blockDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i * 4 < n; i += threads) {
    uint4 r = draw(i, seed);
    unsigned rs[4] = {r.x, r.y, r.z, r.w};
    if (i * 4 + 3 < n) {
      float4 v = ((const float4*)x)[i];
      float o[4] = {v.x, v.y, v.z, v.w};
      uchar4 m;
      m.x = rs[0] < keep; m.y = rs[1] < keep; m.z = rs[2] < keep; m.w = rs[3] < keep;
      ((float4*)y)[i] = make_float4(m.x ? o[0] * scale : 0, m.y ? o[1] * scale : 0,
                                   m.z ? o[2] * scale : 0, m.w ? o[3] * scale : 0);
      ((uchar4*)mask)[i] = m;
    } else
      for (int j = i * 4; j < n; j++) {
        bool m = rs[j & 3] < keep;
        y[j] = m ? x[j] * scale : 0;
        mask[j] = m;
      }
  }
}
