// A read far out of bounds: what memcheck must find
//
// /// kernel
// entry  = "planted"
// block  = 32
// tile   = [32, 32]
// broken = "Thread 0 of a block reads an address that belongs to nothing."
// ///

extern "C" __global__ void planted(const float* A, const float* B, float* C, int M, int N, int K,
                                   int lda, int ldb, int ldc, float alpha, float beta)
{
    if (threadIdx.x == 0) C[0] = A[1LL << 38];
}
