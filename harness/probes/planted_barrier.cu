// A barrier that half a warp never reaches: what synccheck must find
//
// /// kernel
// entry  = "planted"
// block  = 32
// tile   = [32, 32]
// broken = "__syncthreads stands in code that only 16 of 32 threads run."
// ///

extern "C" __global__ void planted(const float* A, const float* B, float* C, int M, int N, int K,
                                   int lda, int ldb, int ldc, float alpha, float beta)
{
    if (threadIdx.x < 16) {
        __syncthreads();
        C[threadIdx.x] = 1;
    }
}
