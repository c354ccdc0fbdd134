// A pattern in __constant__ memory, without host code.
#define PATTERN 12
__constant__ char pattern[PATTERN];
__constant__ int failure[PATTERN];

__global__ void search(const char* text, int* hits, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n - PATTERN + 1) return;
    int match = 1;
    for (int k = 0; k < PATTERN; k++)
        if (text[i + k] != pattern[k]) match = 0;
    hits[i] = match;
}

__global__ void table(int* out, int n)
{
    __shared__ int own[PATTERN];
    if (threadIdx.x < PATTERN) own[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x < PATTERN) own[failure[threadIdx.x]] = 1;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = own[i % PATTERN];
}
