// One thread per output, coalesced: neighbouring lanes in one row
//
// The same loop with the two thread indices swapped: threadIdx.x selects the column. The 32 lanes of a warp
// now read 32 neighbouring elements of B, which are 4 sectors in one request. All read the same element of A,
// a single sector that is broadcast to them.
//
// /// kernel
// entry = "matmul"
// after = "01_naive"
// block = ["BX", "BY"]
// tile  = ["BY", "BX"]
// loads = "2 * BX * BY"
// sass  = ["FFMA in loop", "no LDS", "no LDL", "no STL"]
// claim = "Two indices swapped: a step of k costs a warp 5 sectors instead of 33 (BX = 32)."
// predict = ["sectors <= 0.16 of 01_naive"]
//
// [params]
// BX = [32, 16]
// BY = [32, 16, 8]
// ///

extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    // Unsigned like the built-ins: the last block of a row may reach past 2^31 without wrapping.
    const unsigned row = blockIdx.y * BY + threadIdx.y;
    const unsigned col = blockIdx.x * BX + threadIdx.x;
    if (row >= M || col >= N) return;  // ragged edge

    // 64 bits once, for the start of a row; inside the loop the pointers only advance.
    const float* a = A + (long long)row * lda;
    const float* b = B + col;

    float sum = 0.f;
    for (int k = 0; k < K; ++k) {
        sum += *a * *b;
        a += 1;
        b += ldb;
    }

    // BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
    float* c = C + (long long)row * ldc + col;
    *c = beta == 0.f ? alpha * sum : alpha * sum + beta * *c;
}
