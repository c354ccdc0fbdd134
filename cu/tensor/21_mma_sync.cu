// Tensor cores: a warp multiplies two matrices with one instruction
//
// From sm_80 on one mma.sync of a warp multiplies 16 x 16 by 16 x 8 elements, for which each lane would need
// 64 multiply-adds. The operands are spread over the registers of the lanes in a fixed pattern. ldmatrix loads
// them in this pattern: four 8 x 8 matrices at once, from rows of 16 bytes whose addresses the lanes give; it
// also transposes B. The eight rows of a matrix lie below each other in the tile, and so on the same banks. So
// the 16-byte units of each row change places, in a way that differs from row to row: a swizzle, which needs
// no padding.
//
// /// kernel
// entry = "matmul"
// after = "14_warp_tiles"
// dtype = "bf16"
// min_arch = "sm_80"
// block = "32 * (BM // WM) * (BN // WN)"
// tile  = ["BM", "BN"]
// where = ["2 * WM == BM", "WN == 64 and BN >= 128 or WN == 32 and BN == 64", "BM <= BN <= 2 * BM",
//          "STAGES == 4 and BK == 32 or STAGES == 3 and BK == 64", "BK * (BM + BN) <= 16384"]
// shared = "2 * STAGES * BK * (BM + BN)"
// loads = "BM + BN"
// sums  = "mma"
// sass  = ["HMMA.16816.F32.BF16 in loop >= 16", "LDSM.M88.4 in loop >= 4", "LDSM.MT88.4 in loop >= 4",
//          "LDGSTS.128 in loop", "no LDL", "no STL"]
// claim = "32 instructions multiply 64 x 16 by 16 x 64, and 8 load the operands: no bank conflict, no padding."
// predict = ["conflicts == 0"]
//
// [params]
// BM = [128, 64]
// BN = [128, 256, 64]
// BK = [32, 64]
// WM = [64, 32]
// WN = [64, 32]
// STAGES = [4, 3]
// ///

#define ELEMENT Bf16
#include "cp_async.cuh"
#include "epilogue.cuh"
#include "mma_sync.cuh"
#include "vector.cuh"

#define THREADS (32 * (BM / WM) * (BN / WN))

// Return where a tile holds row r, columns c to c + 7: a unit of 16 bytes. Eight units cover all banks, so the order of
// the units changes every 128 bytes, and eight rows below each other are on different banks.
template <int COLUMNS>
__device__ inline int swizzled(int r, int c)
{
    constexpr int units = COLUMNS < 64 ? COLUMNS / 8 : 8;
    return r * COLUMNS + (c ^ r / (8 / units) % units * 8);
}

// Copy the first `count` of eight elements from any address to a 16-byte unit; the others become zero. It takes one
// store: four stores of a word each would have bank conflicts.
__device__ inline void copy_unit(Bf16* to, const Bf16* from, int count)
{
    unsigned word[4];
    for (int i = 0; i < 4; ++i) {
        word[i] = count > 2 * i ? from[2 * i].bits : 0;
        if (count > 2 * i + 1) word[i] |= from[2 * i + 1].bits << 16;
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "r"(shared_address(to)), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]) : "memory");
}

// Copy ROWS x COLUMNS elements to shared memory, by all threads. Only `rows` rows and `columns` columns exist; the rest
// becomes zero. If `units`, each 16-byte unit is aligned and exists as a whole or not at all: it is copied by cp.async.
template <int ROWS, int COLUMNS>
__device__ inline void copy_tile(Bf16* to, const Bf16* from, int ld, int rows, int columns, bool units)
{
    const int r = threadIdx.x / (COLUMNS / 8), c = threadIdx.x % (COLUMNS / 8) * 8;
    constexpr int below = THREADS / (COLUMNS / 8);
    from += (long long)r * ld + c;
    rows -= r, columns -= c;
    if (units) {
        #pragma unroll
        for (int i = 0; i < ROWS; i += below, from += (long long)below * ld)
            cp_async16(to + swizzled<COLUMNS>(r + i, c), from, i < rows && columns > 0);
    } else {
        #pragma unroll 1
        for (int i = 0; i < ROWS; i += below, from += (long long)below * ld)
            copy_unit(to + swizzled<COLUMNS>(r + i, c), from, i < rows ? columns : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const Bf16* A, const Bf16* B, OUT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    extern __shared__ __align__(128) unsigned char memory[];
    auto As = (Bf16(*)[BM * BK])memory;
    auto Bs = (Bf16(*)[BK * BN])(As + STAGES);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tile_m = warp / (BN / WN) * WM, tile_n = warp % (BN / WN) * WN;
    const unsigned row = blockIdx.y * BM, col = blockIdx.x * BN;
    A += (long long)row * lda;
    B += col;

    const bool a_units = aligned16(A, lda) && K % 8 == 0, b_units = aligned16(B, ldb) && N % 8 == 0;
    const auto load = [&](int stage, int k) {
        copy_tile<BM, BK>(As[stage], A + k, lda, M - row, K - k, a_units);
        copy_tile<BK, BN>(Bs[stage], B + (long long)k * ldb, ldb, K - k, N - col, b_units);
    };

    unsigned ahead = 0;  // the k to load next, maybe past the last one
    for (int stage = 0; stage < STAGES - 1; ++stage, ahead += BK) {
        if (ahead < K) load(stage, ahead);
        cp_async_commit_group();
    }

    float sum[WM / 16][WN / 8][4] = {};
    unsigned a[2][WM / 16][4], b[2][WN / 16][4];  // fragments of 16 k, and of the next 16
    const auto read = [&](int which, int stage, int k) {
        const int down = lane % 16, right = lane / 16 * 8;  // two matrices in a column, two to its right
        for (int i = 0; i < WM / 16; ++i)
            LDMATRIX_X4("", a[which][i], As[stage] + swizzled<BK>(tile_m + 16 * i + down, k + right));
        for (int j = 0; j < WN / 16; ++j)
            LDMATRIX_X4(".trans", b[which][j], Bs[stage] + swizzled<BN>(k + down, tile_n + 16 * j + right));
    };

    cp_async_wait_group<STAGES - 2>();
    __syncthreads();  // everyone's copies of the first tile have landed
    read(0, 0, 0);
    int now = 0, next = STAGES - 1;
    for (unsigned k = 0; k < K; k += BK, ahead += BK) {
        if (ahead < K) load(next, ahead);
        cp_async_commit_group();
        next = now;

        #pragma unroll  // the index of the fragment must be a constant: registers cannot be indexed
        for (int step = 0; step < BK / 16; ++step) {
            if (step == BK / 16 - 1) {
                if (k + BK < K) now = now + 1 == STAGES ? 0 : now + 1;  // else what is read now is not used
                cp_async_wait_group<STAGES - 2>();
                __syncthreads();  // the next tile has landed, and this one has been read
            }
            read((step + 1) % 2, now, (step + 1) % (BK / 16) * 16);
            for (int i = 0; i < WM / 16; ++i)
                for (int j = 0; j < WN / 8; ++j)
                    mma_m16n8k16(ELEMENT(), sum[i][j], a[step % 2][i], &b[step % 2][j / 2][j % 2 * 2]);
        }
    }

    const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
    const bool pairs = (unsigned long long)C % sizeof(OUT[2]) == 0 && ldc % 2 == 0;
    #pragma unroll  // registers cannot be indexed: every index of sum must be a constant
    for (int i = 0; i < WM / 16; ++i)
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned r = row + tile_m + 16 * i + 8 * half + lane / 4;
            if (r >= M) continue;
            #pragma unroll
            for (int j = 0; j < WN / 8; ++j) {
                const unsigned s = col + tile_n + 8 * j + lane % 4 * 2;
                const float* pair = &sum[i][j][2 * half];
                store2(C + (long long)r * ldc + s, pair[0], pair[1], N - (int)s, pairs, alpha, beta, epilogue, r, s);
            }
        }
}
