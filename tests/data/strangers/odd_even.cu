// Odd-even transposition of what fits into shared memory, written for this test.
__global__ void odd_even(int* v, int n)
{
    __shared__ int s[512];
    int t = threadIdx.x;
    for (int i = t; i < n; i += blockDim.x) s[i] = v[i];
    __syncthreads();
    for (int phase = 0; phase < n; ++phase) {
        for (int i = 2 * t + (phase & 1); i + 1 < n; i += 2 * blockDim.x)
            if (s[i] > s[i + 1]) { int x = s[i]; s[i] = s[i + 1]; s[i + 1] = x; }
        __syncthreads();
    }
    for (int i = t; i < n; i += blockDim.x) v[i] = s[i];
}
