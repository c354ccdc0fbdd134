// A few rows: read B once, at the speed of memory
//
// With M from 1 to 16 an element of B serves only M products: keeping it in shared memory gains nothing, and
// the time is that of reading B. So each of many small blocks reads a stripe of B, one cache line wide. Its
// threads divide the rows of the stripe: k is split over lanes and warps, four rows a thread, read four floats
// at a time. The partial sums are added at the end, in a fixed order.
//
// /// kernel
// entry = "matmul"
// after = "15_split_k"
// block = "THREADS"
// tile  = ["ROWS", "32"]
// where = ["ROWS * THREADS <= 4096"]  # registers for the sums
// loads = "ROWS + 32"
// sass  = ["LDG.128 >= 5", "no LDS in loop", "no LDL", "no STL"]
// claim = "B is read from memory once, 16 bytes a load: M = 1 takes 4 K N bytes of bandwidth."
// predict = ["sectors with ROWS=1 <= 8704 at M=1 N=256"]  # B is 8192 of them
//
// [params]
// ROWS    = [4, 1, 2, 8]
// THREADS = [512, 256, 1024]
// ///

#include "epilogue.cuh"
#include "vector.cuh"

#define COLS 32  // columns of a block: eight lanes with a quad each, 128 bytes of a row of B
#define STRIDE (THREADS / 8 * 4)  // rows of B that the threads of a block read at a time, four each

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    __shared__ float parts[THREADS / 32][ROWS][COLS];  // a sum for each warp

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned row = blockIdx.y * ROWS;
    const unsigned col = blockIdx.x * COLS;
    const int n = lane % 8 * 4;           // this thread's column quad
    const int k0 = threadIdx.x / 8 * 4;  // and its first rows of B
    const bool quads = col + COLS <= N && aligned16(A, lda) && aligned16(B, ldb);

    // Past the last row it reads the last one again: nobody stores those results.
    const float* a_row[ROWS];
    for (int m = 0; m < ROWS; ++m) a_row[m] = A + (long long)min(row + m, M - 1u) * lda + k0;
    B += (long long)k0 * ldb + col + n;

    float sum[ROWS][4] = {};
    for (int left = K - k0; left > 0; left -= STRIDE) {
        float a[ROWS][4], b[4][4];
        const float* b_row = B;
        if (quads && left >= 4) {  // all loads first: none waits for another
            for (int k = 0; k < 4; ++k, b_row += ldb) *(float4*)b[k] = *(const float4*)b_row;
            for (int m = 0; m < ROWS; ++m) *(float4*)a[m] = *(const float4*)a_row[m];
        } else {  // ragged edge, or unaligned rows: what is outside becomes zero
            for (int k = 0; k < 4; ++k, b_row += ldb)
                *(float4*)b[k] = load4(b_row, k < left ? N - (int)(col + n) : 0);
            for (int m = 0; m < ROWS; ++m) *(float4*)a[m] = load4(a_row[m], left);
        }
        for (int m = 0; m < ROWS; ++m) {
            for (int k = 0; k < 4; ++k)
                for (int j = 0; j < 4; ++j) sum[m][j] += a[m][k] * b[k][j];
            a_row[m] += STRIDE;
        }
        B += (long long)STRIDE * ldb;
    }

    // The four lanes of a warp that hold the same columns, then the warps, in order: the same bits each time.
    for (int m = 0; m < ROWS; ++m)
        for (int j = 0; j < 4; ++j) {
            sum[m][j] += __shfl_xor_sync(~0u, sum[m][j], 8);
            sum[m][j] += __shfl_xor_sync(~0u, sum[m][j], 16);
            if (lane < 8) parts[warp][m][n + j] = sum[m][j];
        }
    __syncthreads();  // all parts are there

    const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
    for (int i = threadIdx.x; i < ROWS * COLS; i += THREADS) {
        const unsigned r = row + i / COLS, s = col + i % COLS;
        if (r >= M || s >= N) continue;
        float total = 0.f;
        #pragma unroll 4
        for (int w = 0; w < THREADS / 32; ++w) total += parts[w][i / COLS][i % COLS];
        // BLAS: with beta == 0, C is output only and may hold NaN; 0 * NaN would let it through.
        float* c = C + (long long)r * ldc + s;
        *c = epilogue(beta == 0.f ? alpha * total : alpha * total + beta * *c, r, s);
    }
}
