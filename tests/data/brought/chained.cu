// Two steps in one grid: the first blocks make tiles, the last ones wait for those they need, by release and acquire
__device__ void release(int* p, int v) { asm volatile("st.release.gpu.global.s32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
__device__ int acquire(const int* p) {
  int v; asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
extern "C" __global__ void k(const float* x, float* half, float* y, int* flags, int tiles, int n) {
  __shared__ float s[64 + 2];
  int t = threadIdx.x, b = blockIdx.x;
  if (b < tiles) {
    int i = b * 64 + t;
    if (i < n) half[i] = x[i] * x[i] + (i ? x[i - 1] : 0);
    __syncthreads(); // made
    if (t == 0) release(&flags[b], 1);
    return;
  }
  int tile = b - tiles, i = tile * 64 + t;
  if (t < 3) {
    int need = tile + t - 1;
    if (need >= 0 && need < tiles) while (acquire(&flags[need]) == 0);
  }
  __syncthreads(); // there
  s[t + 1] = i < n ? half[i] : 0;
  if (t == 0) s[0] = tile ? half[i - 1] : 0;
  if (t == 63) s[65] = i + 1 < n ? half[i + 1] : 0;
  __syncthreads(); // loaded
  if (i < n) y[i] = s[t] + s[t + 1] + s[t + 2];
}
