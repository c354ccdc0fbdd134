// 3xTF32: almost float32 accuracy from three products of tf32
//
// A float has 24 significant bits. It is the sum of a tf32 number `hi` (its upper 11 bits, rounded to
// nearest), another one `lo` (the remainder, cut to 11 bits) and a rest of at most 2^-23 of it. So a * b is hi
// * hi + hi * lo + lo * hi with an error of at most 2^-21 |a * b|: lo * lo is at most 2^-22, and the two rests
// 2^-23 each. That is three products instead of one, on units that are eight times as fast as those of
// float32. The dtype is called 3xtf32 and not float32, because float32 rounds nothing but the sum. Infinities,
// and floats that round to one, become NaN, because their remainder is.
//
// The tensor cores truncate what does not fit into a sum, which biases it towards zero, the more the longer
// the sum is. So their sums are only 8 k long; the threads add these up with rounding.
//
// /// kernel
// entry = "matmul"
// after = "21_mma_sync"
// dtype = "3xtf32"
// min_arch = "sm_80"
// block = "32 * (BM // WM) * (BN // WN)"
// tile  = ["BM", "BN"]
// where = ["2 * WM == BM", "BK == 16 or BM == 128 and BN == 128"]
// shared = "4 * STAGES * (BM * (BK + 4) + BK * (BN + 8))"
// loads = "BM + BN"
// sums  = "mma"
// sass  = ["HMMA.1688.F32.TF32 in loop >= 48", "LDGSTS in loop", "FADD in loop >= 64", "no LDL", "no STL"]
// claim = "Three tensor core products instead of one reduce the error of a product from 2^-10 to 2^-21."
// predict = ["conflicts == 0"]
//
// [params]
// BM = [128, 64]
// BN = [128, 64]
// BK = [16, 32]
// WM = [64, 32]
// WN = [32]
// STAGES = [4, 3]
// ///

#include "cp_async.cuh"
#include "epilogue.cuh"
#include "vector.cuh"

#define THREADS (32 * (BM / WM) * (BN / WN))
// Rows are padded: the 32 lanes that read a fragment, 8 rows of A or 4 of B, read from 32 different banks.
#define A_PITCH (BK + 4)
#define B_PITCH (BN + 8)

// A float as the sum of two tf32 numbers.
struct Pair { unsigned hi, lo; };

__device__ inline Pair split(float x)
{
    const unsigned hi = (__float_as_uint(x) + 0x1000) & 0xffffe000;
    return {hi, __float_as_uint(x - __uint_as_float(hi))};  // tensor cores ignore the lower 13 bits themselves
}

// Compute d = a * b + c for 16 x 8 elements and 8 k. A lane holds
// - of a: row lane / 4, k = lane % 4, then eight rows below, then both four k further on;
// - of b: k = lane % 4, column lane / 4, then four k further on;
// - of c and d: row lane / 4, columns 2 * (lane % 4) and the next, then eight rows below.
__device__ inline void mma_m16n8k8(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                   const float (&c)[4])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
                   "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// Copy ROWS x COLUMNS floats to shared memory by cp.async, by all threads. Only `rows` rows and `columns` columns
// exist; the rest becomes zero. If `quads`, each four floats are aligned to 16 bytes and exist all or not at all.
template <int ROWS, int COLUMNS, int PITCH>
__device__ inline void copy_tile(float* to, const float* from, int ld, int rows, int columns, bool quads)
{
    const int r = threadIdx.x / (COLUMNS / 4), c = threadIdx.x % (COLUMNS / 4) * 4;
    const int below = THREADS / (COLUMNS / 4);
    from += (long long)r * ld + c;
    to += r * PITCH + c;
    rows -= r, columns -= c;
    #pragma unroll
    for (int i = 0; i < ROWS; i += below, from += (long long)below * ld)
        if (quads)
            cp_async16(to + i * PITCH, from, i < rows && columns > 0);
        else
            for (int e = 0; e < 4; ++e) cp_async4(to + i * PITCH + e, from + e, i < rows && e < columns);
}

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    extern __shared__ __align__(16) float memory[];
    auto As = (float(*)[BM][A_PITCH])memory;
    auto Bs = (float(*)[BK][B_PITCH])(As + STAGES);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, within = lane % 4;
    const int tile_m = warp / (BN / WN) * WM + group, tile_n = warp % (BN / WN) * WN + group;
    const unsigned row = blockIdx.y * BM, col = blockIdx.x * BN;
    A += (long long)row * lda;
    B += col;

    const bool a_quads = aligned16(A, lda) && K % 4 == 0, b_quads = aligned16(B, ldb) && N % 4 == 0;
    const auto load = [&](int stage, int k) {
        copy_tile<BM, BK, A_PITCH>(As[stage][0], A + k, lda, M - row, K - k, a_quads);
        copy_tile<BK, BN, B_PITCH>(Bs[stage][0], B + (long long)k * ldb, ldb, K - k, N - col, b_quads);
    };

    unsigned ahead = 0;  // the k to load next, maybe past the last one
    for (int stage = 0; stage < STAGES - 1; ++stage, ahead += BK) {
        if (ahead < K) load(stage, ahead);
        cp_async_commit_group();
    }

    float sum[WM / 16][WN / 8][4] = {};
    int now = 0, next = STAGES - 1;
    for (unsigned k = 0; k < K; k += BK, ahead += BK) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();  // this tile has landed, and the one before has been read
        if (ahead < K) load(next, ahead);
        cp_async_commit_group();

        #pragma unroll
        for (int step = 0; step < BK; step += 8) {
            unsigned b_hi[WN / 8][2], b_lo[WN / 8][2];
            #pragma unroll
            for (int j = 0; j < WN / 8; ++j)
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const Pair b = split(Bs[now][step + within + 4 * e][tile_n + 8 * j]);
                    b_hi[j][e] = b.hi, b_lo[j][e] = b.lo;
                }
            #pragma unroll
            for (int i = 0; i < WM / 16; ++i) {
                unsigned a_hi[4], a_lo[4];
                #pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const Pair a = split(As[now][tile_m + 16 * i + 8 * (e % 2)][step + within + 4 * (e / 2)]);
                    a_hi[e] = a.hi, a_lo[e] = a.lo;
                }
                const float zero[4] = {};
                float part[WN / 8][4];  // the small products first: nothing truncates them yet
                #pragma unroll
                for (int j = 0; j < WN / 8; ++j) mma_m16n8k8(part[j], a_lo, b_hi[j], zero);
                #pragma unroll
                for (int j = 0; j < WN / 8; ++j) mma_m16n8k8(part[j], a_hi, b_lo[j], part[j]);
                #pragma unroll
                for (int j = 0; j < WN / 8; ++j) mma_m16n8k8(part[j], a_hi, b_hi[j], part[j]);
                #pragma unroll
                for (int j = 0; j < WN / 8; ++j)
                    #pragma unroll
                    for (int e = 0; e < 4; ++e) sum[i][j][e] += part[j][e];
            }
        }
        next = now;
        now = now + 1 == STAGES ? 0 : now + 1;
    }

    const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
    #pragma unroll  // registers cannot be indexed: every index of sum must be a constant
    for (int i = 0; i < WM / 16; ++i)
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned r = row + tile_m + 16 * i + 8 * half;
            if (r >= M) continue;
            #pragma unroll
            for (int j = 0; j < WN / 8; ++j)
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const unsigned s = col + tile_n - group + 8 * j + 2 * within + e;
                    float* c = C + (long long)r * ldc + s;
                    const float value = alpha * sum[i][j][2 * half + e];
                    if (s < N) *c = epilogue(beta == 0.f ? value : value + beta * *c, r, s);
                }
        }
}
