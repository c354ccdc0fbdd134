// For products that are small or thin: tiles that are copied as they lie in memory, whatever the layout, and sums of
// blocks that share a tile, without a block that waits for another. It needs the parameters BM, BN, STAGES, TRANSA and
// TRANSB of the kernel. Used from rung 33 on.
#pragma once

#include "cp_async.cuh"
#include "grid_sync.cuh"
#include "vector.cuh"

#define BK 32        // of k in a stage: 128 bytes where it lies along the rows
#define THREADS 128  // of a block: four warps

// A tile of an operand, EXTENT of its rows or columns and BK of k. It keeps the order that it has in memory, so that
// cp.async can copy it: K-major, with k along the rows, or not. Rows are longer than the tile by as much as keeps banks
// apart: eight K-major rows read at the same k, or four others read at eight neighbours each.
template <int EXTENT, bool K_MAJOR>
struct Tile {
    static constexpr int height = K_MAJOR ? EXTENT : BK, width = K_MAJOR ? BK : EXTENT;
    float at[height][width + (K_MAJOR ? 4 : 8)];

    // Start copying the tile from `from`, by all THREADS. Only `rows` rows and `columns` columns exist; the rest becomes
    // zero. `units` says that every row in memory begins at a multiple of 16 bytes.
    __device__ void copy(const float* from, int ld, int rows, int columns, bool units)
    {
        constexpr int across = width / 4, step = THREADS / across, step1 = THREADS / width;
        if (units) {
            const int r = threadIdx.x / across, c = threadIdx.x % across * 4;
            const int bytes = 4 * min(max(columns - c, 0), 4);
            from += (long long)r * ld + c;
            #pragma unroll
            for (int i = 0; i < height; i += step, from += (long long)step * ld)
                cp_async16_first(&at[r + i][c], from, r + i < rows ? bytes : 0);
        } else {
            const int r = threadIdx.x / width, c = threadIdx.x % width;
            from += (long long)r * ld + c;
            #pragma unroll 4
            for (int i = 0; i < height; i += step1, from += (long long)step1 * ld)
                cp_async4(&at[r + i][c], from, r + i < rows && c < columns);
        }
    }
};

// Where blocks share a tile: the stages of k that number `split` of `splits` takes.
struct Share {
    int begin, end;
};
__device__ inline Share share_of(int stages, unsigned split, unsigned splits)
{
    return {int((long long)stages * split / splits), int((long long)stages * (split + 1) / splits)};
}

// Multiply the stages of k that are this block's, one after the other: multiply(a, b) gets their tiles, which are zero
// beyond the matrices. Up to STAGES - 1 are being copied meanwhile. (row, col) is the corner of the block's tile of C, and
// `memory` holds the tiles of STAGES stages.
template <typename Multiply>
__device__ inline void multiply_share(void* memory, const float* A, const float* B, int M, int N, int K, int lda, int ldb,
                                      unsigned row, unsigned col, Share share, Multiply multiply)
{
    const auto As = (Tile<BM, !TRANSA>*)memory;
    const auto Bs = (Tile<BN, TRANSB>*)(As + STAGES);
    const bool a_units = aligned16(A, lda), b_units = aligned16(B, ldb);
    const int rows = M - row, columns = N - col;
    A += TRANSA ? row : (long long)row * lda;
    B += TRANSB ? (long long)col * ldb : col;
    const auto copy = [&](int stage, int part) {
        const int k = part * BK, left = K - k;
        if (part < share.end) {
            if (TRANSA) As[stage].copy(A + (long long)k * lda, lda, left, rows, a_units);
            else As[stage].copy(A + k, lda, rows, left, a_units);
            if (TRANSB) Bs[stage].copy(B + k, ldb, columns, left, b_units);
            else Bs[stage].copy(B + (long long)k * ldb, ldb, left, columns, b_units);
        }
        cp_async_commit_group();
    };
    #pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) copy(i, share.begin + i);
    int now = 0, next = STAGES - 1;
    #pragma unroll 1
    for (int part = share.begin; part < share.end; ++part) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();  // everyone's copies of this stage have landed, and the last one has been read
        copy(next, part + STAGES - 1);
        multiply(As[now], Bs[now]);
        next = now;
        now = now + 1 == STAGES ? 0 : now + 1;
    }
    __syncthreads();  // the last stage has been read: its memory is free
}

// Return true in the block that comes last of `members`, which then sees what the others have written. All THREADS call it.
// The counter is zero before and after.
__device__ inline bool last_of(unsigned members, unsigned* counter)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomic_add_acq_rel(counter, 1) == members - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    return last;
}

// The tile of C on its way from registers to memory. Rows are longer by PAD floats, to keep banks apart. From here on code
// is in loops: what runs once waits for each of its instructions to be fetched.
#define MOST_SHARERS 1024u  // blocks that share tiles, in all
#define GROUP 8u            // blocks whose sums one of them adds
template <int PAD>
struct Staged {
    float at[BM][BN + PAD];

    // Store c = alpha * sum + beta * c, by all THREADS, where `splits` blocks share `tile` and this is number `split`.
    // `rows` rows and `columns` columns of C exist.
    //
    // No block waits for another. All write their sums, and of up to eight the one that comes last adds them up, always in
    // the same order; so it goes on with the sums of eight such groups. `workspace` begins with counters, which are zero
    // and are left so.
    __device__ void store(float* C, int ldc, int rows, int columns, float alpha, float beta, unsigned* workspace,
                          unsigned tile, unsigned split, unsigned splits)
    {
        const unsigned self = threadIdx.x;
        const auto quad_at = [&](int q) -> float4& { return *(float4*)&at[q / (BN / 4)][q % (BN / 4) * 4]; };
        if (splits > 1) {
            const auto parts = (float4(*)[BM * BN / 4])(workspace + 4 * MOST_SHARERS) + tile * splits;
            #pragma unroll 4
            for (int q = self; q < BM * BN / 4; q += THREADS) __stcg(&parts[split][q], quad_at(q));
            for (unsigned stride = 1; stride < splits; stride *= GROUP, workspace += MOST_SHARERS) {
                split -= split % (stride * GROUP);  // the group's first
                const unsigned members = min(GROUP, (splits - split + stride - 1) / stride);
                if (!last_of(members, workspace + tile * splits + split)) return;
                #pragma unroll 2
                for (int q = self; q < BM * BN / 4; q += THREADS) {
                    float4 v[GROUP], total = {};
                    #pragma unroll
                    for (unsigned m = 0; m < GROUP; ++m)
                        v[m] = m < members ? __ldcg(&parts[split + m * stride][q]) : float4{};
                    #pragma unroll
                    for (unsigned m = 0; m < GROUP; ++m)
                        total.x += v[m].x, total.y += v[m].y, total.z += v[m].z, total.w += v[m].w;
                    quad_at(q) = total;
                    if (stride * GROUP < splits) __stcg(&parts[split][q], total);
                }
            }
        }
        const bool quads = aligned16(C, ldc);
        #pragma unroll 1
        for (int q = self; q < BM * BN / 4; q += THREADS) {
            const int m = q / (BN / 4), n = q % (BN / 4) * 4;
            if (m < rows && n < columns)
                store4(C + (long long)m * ldc + n, &at[m][n], columns - n, quads, alpha, beta);
        }
    }
};
