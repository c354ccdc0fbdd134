// A few columns: read A once, at the speed of memory
//
// With N from 1 to 16 it is A that has to be read once, and its rows run along k. So a warp reads whole rows,
// 128 floats a load. Its lanes split k: each has a partial sum for every output of the warp, and these are
// added at the end, in a fixed order. B is small: the block keeps the rows that belong to those 128 floats in
// shared memory, transposed, for all its warps.
//
// With TRANSB=1 it serves a few rows of A and a B that is stored transposed: (A B)^T has a few columns, and the
// matrix that is read once is B, which has k along its rows.
//
// /// kernel
// entry = "matmul"
// after = "17_skinny_rows"
// block = 256
// tile  = ["ROWS + TRANSB * (COLS - ROWS)", "COLS + TRANSB * (ROWS - COLS)"]
// loads = "ROWS + COLS"
// sass  = ["LDG.128 >= 4", "LDS.128", "no LDL", "no STL"]
// claim = "A is read from memory once, 512 bytes per warp and load: N = 1 takes 4 M K bytes of bandwidth."
// predict = ["sectors <= 8704 at M=256 N=1 K=256"]  # A is 8192 of them
//
// [params]
// ROWS = [32]
// COLS = [4, 2, 8, 16]
// TRANSB = [0, 1]
// ///

#include "epilogue.cuh"
#include "vector.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define EACH (ROWS / WARPS)  // rows of a warp
#define STEP 128  // of k: a quad for each lane
#define PAD 4     // floats: as few as keep 16-byte alignment

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    __shared__ __align__(16) float Bs[COLS][STEP + PAD];
    __shared__ float totals[ROWS][COLS];

#if TRANSB  // what is called A from here on is B, and has N rows
    const float* few = A;
    A = B, B = few;
    int swap = M;
    M = N, N = swap, swap = lda, lda = ldb, ldb = swap;
    const unsigned row = blockIdx.x * ROWS, col = blockIdx.y * COLS;
#else
    const unsigned row = blockIdx.y * ROWS, col = blockIdx.x * COLS;
#endif
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool quads = aligned16(A, lda);

    // Past the last row it reads the last one again: nobody stores those results.
    const float* a_row[EACH];
    for (int i = 0; i < EACH; ++i)
        a_row[i] = A + (long long)min(row + warp * EACH + i, M - 1u) * lda + 4 * lane;
    B += TRANSB ? (long long)col * ldb : col;

    float sum[EACH][COLS] = {};
    for (int left = K; left > 0; left -= STEP) {  // counts down: nothing to overflow near 2^31
        float4 a[EACH];
        if (quads && left >= STEP) {  // all loads first: none waits for another
            for (int i = 0; i < EACH; ++i) a[i] = *(const float4*)a_row[i];
        } else {  // the end of the rows, or unaligned rows: what is outside becomes zero
            for (int i = 0; i < EACH; ++i) a[i] = load4(a_row[i], left - 4 * lane);
        }
        for (int i = 0; i < EACH; ++i) a_row[i] += STEP;

        for (int i = 0; i < STEP * COLS / THREADS; ++i) {
            const int at = threadIdx.x + i * THREADS;
            const int k = TRANSB ? at % STEP : at / COLS, n = TRANSB ? at / STEP : threadIdx.x % COLS;
            const long long place = TRANSB ? (long long)n * ldb + k : (long long)k * ldb + n;
            Bs[n][k] = k < left && col + n < N ? B[place] : 0.f;
        }
        B += TRANSB ? STEP : (long long)STEP * ldb;
        __syncthreads();  // the rows of B are complete before anyone reads them

        #pragma unroll
        for (int n = 0; n < COLS; ++n) {
            const float4 b = *(const float4*)&Bs[n][4 * lane];
            #pragma unroll
            for (int i = 0; i < EACH; ++i) {
                sum[i][n] += a[i].x * b.x;
                sum[i][n] += a[i].y * b.y;
                sum[i][n] += a[i].z * b.z;
                sum[i][n] += a[i].w * b.w;
            }
        }
        __syncthreads();  // everyone has read them before they are overwritten
    }

    // All lanes of a warp, in the same order each time: the same bits.
    #pragma unroll
    for (int i = 0; i < EACH; ++i)
        #pragma unroll
        for (int n = 0; n < COLS; ++n) {
            #pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                sum[i][n] += __shfl_xor_sync(~0u, sum[i][n], distance);
            if (lane == 0) totals[warp * EACH + i][n] = sum[i][n];
        }
    __syncthreads();  // all totals are there

    const Epilogue epilogue = MAKE_EPILOGUE(TRANSB ? N : M, TRANSB ? M : N, ldc);  // of C as it is stored
    #pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * COLS; i += THREADS) {
        const unsigned r = row + i / COLS, s = col + i % COLS;
        if (r >= M || s >= N) continue;
        const float total = totals[i / COLS][i % COLS];
        // BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
        float* c = C + (TRANSB ? (long long)s * ldc + r : (long long)r * ldc + s);
        *c = epilogue(beta == 0.f ? alpha * total : alpha * total + beta * *c, TRANSB ? s : r, TRANSB ? r : s);
    }
}
