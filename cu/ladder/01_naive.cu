// One thread per output, uncoalesced: neighbouring lanes in one column
//
// The textbook loop, with the thread index mapped the wrong way round: threadIdx.x, which counts the lanes of
// a warp, selects the row. At every step of k the 32 lanes of a warp read 32 elements of A that lie a whole
// row apart, so each lane needs a memory sector of its own.
//
// /// kernel
// entry = "matmul"
// block = ["BX", "BY"]
// tile  = ["BX", "BY"]
// loads = "2 * BX * BY"
// sass  = ["FFMA in loop", "no LDS", "no LDL", "no STL"]
// claim = "With BX = 32, each step of k costs a warp 33 sectors: 32 of A, 1 of B."
// predict = ["sectors_per_request >= 16"]
//
// [params]
// BX = [32, 16]
// BY = [32, 16, 8]
// ///

extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    // Unsigned like the built-ins: the last block of a row may reach past 2^31 without wrapping.
    const unsigned row = blockIdx.y * BX + threadIdx.x;
    const unsigned col = blockIdx.x * BY + threadIdx.y;
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
