// Warps of a block that wait at two different barriers: what synccheck must find
//
// /// kernel
// entry  = "planted"
// block  = 64
// tile   = [64, 64]
// broken = "The two warps of a block wait at two different __syncthreads, which the hardware takes for one."
// ///

extern "C" __global__ void planted(const float* A, const float* B, float* C, int M, int N, int K,
                                   int lda, int ldb, int ldc, float alpha, float beta)
{
    if (threadIdx.x < 32) {
        __syncthreads();
        C[threadIdx.x] = 1;
    } else {
        C[threadIdx.x] = 2;
        __syncthreads();
    }
}
