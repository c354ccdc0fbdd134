// A sorting network of one block, written for this test.
__global__ void bitonic(float* v, int n)
{
    extern __shared__ float s[];
    int t = threadIdx.x;
    s[t] = v[t];
    __syncthreads();
    for (int k = 2; k <= n; k <<= 1)
        for (int j = k >> 1; j > 0; j >>= 1) {
            int p = t ^ j;
            if (p > t) {
                bool up = (t & k) == 0;
                if ((s[t] > s[p]) == up) { float x = s[t]; s[t] = s[p]; s[p] = x; }
            }
            __syncthreads();
        }
    v[t] = s[t];
}
