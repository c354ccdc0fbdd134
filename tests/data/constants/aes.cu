// AES-like tables
#include <cstdint>
#include <cuda_runtime.h>
namespace aes {
static __constant__ uint8_t sbox[256];
static __constant__ uint32_t Te0[256];
static __device__ __constant__ uint32_t rk[44];
__constant__ int rounds;
__global__ void encrypt(const uint4* in, uint4* out, int blocks) {
  __shared__ uint32_t t[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) t[i] = Te0[i];
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= blocks) return;
  uint4 s = in[i];
  s.x ^= rk[0]; s.y ^= rk[1]; s.z ^= rk[2]; s.w ^= rk[3];
  for (int r = 1; r < rounds; r++) {
    s.x = t[s.x & 255] ^ t[(s.y >> 8) & 255] ^ rk[4 * r];
    s.y = t[s.y & 255] ^ t[(s.z >> 8) & 255] ^ rk[4 * r + 1];
    s.z = t[s.z & 255] ^ t[(s.w >> 8) & 255] ^ rk[4 * r + 2];
    s.w = t[s.w & 255] ^ t[(s.x >> 8) & 255] ^ rk[4 * r + 3];
  }
  s.x ^= sbox[s.x & 255];
  out[i] = s;
}
void run(const uint4* in, uint4* out, int n, const uint8_t* key) {
  uint32_t h_rk[44]; expand(key, h_rk);
  int nr = 10;
  cudaMemcpyToSymbol(rk, h_rk, sizeof(h_rk));
  cudaMemcpyToSymbol(sbox, host_sbox, 256);
  cudaMemcpyToSymbol(Te0, host_te0, sizeof(Te0));
  cudaMemcpyToSymbol(rounds, &nr, sizeof nr);
  encrypt<<<(n + 127) / 128, 128>>>(in, out, n);
}
}
