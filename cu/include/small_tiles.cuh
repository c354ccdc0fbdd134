// For products that are small or thin: tiles that are copied as they lie in memory, whatever the layout, and sums of
// blocks that share a tile, without a block that waits for one of another cluster. It needs the parameters BM, BN, STAGES,
// SPLIT, TRANSA and TRANSB of the kernel. Elements are floats, or the ELEMENT of 16 bits that the kernel defines. Used from
// rung 33 on; of 39, whose blocks may have other THREADS, for the sums only.
#pragma once

#include "cluster.cuh"
#include "cp_async.cuh"
#include "grid_sync.cuh"
#include "vector.cuh"

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef BK
#define BK (128 / (int)sizeof(ELEMENT))  // of k in a stage: 128 bytes where it lies along the rows
#endif
#define UNIT (16 / (int)sizeof(ELEMENT))
#ifndef THREADS
#define THREADS 128                      // of a block: four warps
#endif
#ifndef TURNING
#define TURNING false
#endif
#ifndef OWN
#define OWN 0
#endif
#define OVERLAP (OWN * 32 / (int)sizeof(ELEMENT))  // columns that a tile has in common with the next one: of a sector
#ifndef COVERING
#define COVERING (sizeof(ELEMENT) == 2)  // copy the units that cover a row which begins between two of them
#endif

// A tile of an operand, EXTENT of its rows or columns and BK of k. It keeps the order that it has in memory, so that
// cp.async can copy it: K-major, with k along the rows, or not. Rows are longer than the tile by as much as keeps banks
// apart: eight K-major rows read at the same k, or four others (of 16 bits: eight) read at eight neighbours each.
//
// Where TURNING, a tile of K-major floats is turned as it is copied, one by one: its rows are those of k, too.
template <int EXTENT, bool K_MAJOR>
struct Tile {
    static constexpr bool along_k = K_MAJOR && !TURNING;  // rows of the tile
    static constexpr int height = along_k ? EXTENT : BK, width = along_k ? BK : EXTENT;
    ELEMENT at[height][width + (K_MAJOR ? UNIT : 8)];

    // Start copying the tile from `from`, by all THREADS. Only `rows` rows and `columns` columns exist; the rest becomes
    // zero. `units` says that every row in memory begins at a multiple of 16 bytes.
    __device__ void copy(const ELEMENT* from, int ld, int rows, int columns, bool units)
    {
        constexpr int across = width / UNIT, step = THREADS / across;
        if constexpr (K_MAJOR && TURNING) {
            if (rows >= EXTENT && columns >= BK) copy_turned<true>(from, ld, rows, columns);
            else copy_turned<false>(from, ld, rows, columns);
        } else if (units) {
            const int r = threadIdx.x / across, c = threadIdx.x % across * UNIT;
            const int bytes = (int)sizeof(ELEMENT) * min(max(columns - c, 0), UNIT);
            from += (long long)r * ld + c;
            #pragma unroll
            for (int i = 0; i < height; i += step, from += (long long)step * ld)
                if (step <= height || r < height) cp_async16_first(&at[r + i][c], from, r + i < rows ? bytes : 0);
        } else if constexpr (!COVERING) {
            if (TURNING && rows >= height && columns >= width) copy_floats<true>(from, ld, rows, columns);
            else copy_floats<false>(from, ld, rows, columns);
        } else {
            copy_covering(from, ld, rows, columns);
        }
    }

    // The same, turned or one by one. If WHOLE, all rows and columns exist: an element then takes three instructions.
    template <bool WHOLE>
    __device__ void copy_turned(const float* from, int ld, int rows, int columns)
    {
        const int r = threadIdx.x / 8, k = threadIdx.x % 8;  // eight lanes read a sector: all banks differ
        from += (long long)r * ld + k;
        #pragma unroll (WHOLE ? 8 : 1)
        for (int i = 0; i < EXTENT; i += THREADS / 8, from += THREADS / 8 * (long long)ld)
            #pragma unroll
            for (int j = 0; j < BK; j += 8)
                cp_async4(&at[k + j][r + i], from + j, WHOLE || r + i < rows && k + j < columns);
    }
    template <bool WHOLE>
    __device__ void copy_floats(const float* from, int ld, int rows, int columns)
    {
        constexpr int beside = width < THREADS ? width : THREADS, down = THREADS / beside;
        const int r = threadIdx.x / beside, c = threadIdx.x % beside;
        from += (long long)r * ld + c;
        #pragma unroll (WHOLE ? 8 : 4)
        for (int i = 0; i < height; i += down, from += (long long)down * ld)
            #pragma unroll
            for (int j = 0; j < width; j += beside)
                cp_async4(&at[r + i][c + j], from + j, WHOLE || r + i < rows && c + j < columns);
    }

    // A row that begins between two units of 16 bytes is copied with the units that cover it, one more than it has; the
    // tile's rows have room for that. Elements of 16 bits may lie at addresses that cp.async does not take, and floats
    // one by one take four times the instructions. A warp copies a quarter of the rows.
    __device__ void copy_covering(const ELEMENT* from, int ld, int rows, int columns)
    {
        constexpr int across = width / UNIT, beside = across < 32 ? across : 32, quarter = height / 4, step = 32 / beside;
        const int first = threadIdx.x / 32 * quarter, lane = threadIdx.x % 32;
        const auto copy_unit = [&](int r, int unit) {
            const auto begin = (unsigned long long)(from + (long long)r * ld);
            const int before = begin % 16, bytes = before + (int)sizeof(ELEMENT) * columns - 16 * unit;
            cp_async16_first(&at[r][unit * UNIT], (const void*)(begin - before + 16 * unit),
                             r < rows ? min(max(bytes, 0), 16) : 0);
        };
        #pragma unroll
        for (int i = 0; i < quarter; i += step)
            #pragma unroll
            for (int j = 0; j < across; j += beside) copy_unit(first + i + lane / beside, j + lane % beside);
        #pragma unroll
        for (int r = lane; r < quarter; r += 32) copy_unit(first + r, across);
    }

    // Shift the rows to where they belong, each warp those whose units it has copied. `from` is where the tile lies in
    // memory, but for multiples of 16 bytes.
    __device__ void shift(const ELEMENT* from, int ld)
    {
        constexpr int across = width / UNIT, parts = across < 4 ? across : 4, each = across / parts;
        constexpr int quarter = height / 4, rows = 32 / parts;
        const int first = threadIdx.x / 32 * quarter, lane = threadIdx.x % 32;
        const unsigned start = (unsigned long long)from / 2;
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < quarter; i += rows) {
            const int in_quarter = i + lane % rows, r = first + in_quarter;
            const auto row = (uint4*)at[r] + lane / rows * each;
            const unsigned before = (start + r * ld) % 8;  // elements
            unsigned word[4 * each + 4];
            if (quarter % rows == 0 || in_quarter < quarter)
                #pragma unroll
                for (int u = 0; u <= each; ++u) {
                    const uint4 v = row[u];
                    word[4 * u] = v.x, word[4 * u + 1] = v.y, word[4 * u + 2] = v.z, word[4 * u + 3] = v.w;
                }
            __syncwarp();  // another lane reads the unit that this one writes
            #pragma unroll
            for (int w = 0; w < 4 * each + 2; ++w) word[w] = before & 4 ? word[w + 2] : word[w];
            #pragma unroll
            for (int w = 0; w < 4 * each + 1; ++w) word[w] = before & 2 ? word[w + 1] : word[w];
            #pragma unroll
            for (int w = 0; w < 4 * each; ++w) word[w] = __funnelshift_r(word[w], word[w + 1], before % 2 * 16);
            if (quarter % rows == 0 || in_quarter < quarter)
                #pragma unroll
                for (int u = 0; u < each; ++u)
                    row[u] = make_uint4(word[4 * u], word[4 * u + 1], word[4 * u + 2], word[4 * u + 3]);
        }
    }
};

// The corner of a tile. Those of a row of tiles follow one another: what two of them write of the same sectors and lines then
// meets in L2. (H200, writes alone, tiles of 64 x 64: 4.1 TB/s, and 3.5 down the columns.)
struct Corner {
    unsigned row, col;
};
__device__ inline Corner corner_of(unsigned tile, unsigned tiles_n)
{
    return {tile / tiles_n * BM, tile % tiles_n * (BN - OVERLAP)};
}
__device__ inline unsigned tiles_across(int N) { return (N + (BN - OVERLAP) - 1u) / (BN - OVERLAP); }

// Where blocks share a tile: the stages of k that number `split` of `splits` takes.
struct Share {
    int begin, end;
};
__device__ inline Share share_of(int stages, unsigned split, unsigned splits)
{
    return {int((long long)stages * split / splits), int((long long)stages * (split + 1) / splits)};
}

// Multiply the stages of k that are this block's, one after the other: multiply(a, b, depth) gets their tiles, which are
// zero beyond the matrices, and of how many k they are worth the work. Up to STAGES - 1 are being copied meanwhile. (row,
// col) is the corner of the block's tile of C, and `memory` holds the tiles of STAGES stages.
//
// With STAGES=1 nothing is copied meanwhile: where k is a stage or two, there is nothing to copy ahead, and in the memory
// of three more stages other blocks do their copying. No work is done there for k that do not exist.
template <typename Multiply>
__device__ inline void multiply_share(void* memory, const ELEMENT* A, const ELEMENT* B, int M, int N, int K, int lda, int ldb,
                                      unsigned row, unsigned col, Share share, Multiply multiply)
{
    const auto As = (Tile<BM, !TRANSA>*)memory;
    const auto Bs = (Tile<BN, TRANSB>*)(As + STAGES);
    const bool a_units = aligned16(A, lda), b_units = aligned16(B, ldb);
    const int rows = M - row, columns = N - col;
    A += TRANSA ? row : (long long)row * lda;
    B += TRANSB ? (long long)col * ldb : col;
    const auto copy = [&](int stage, int part) {
        if (part < share.end) {
            const int k = part * BK, left = K - k;
            if (TRANSA) As[stage].copy(A + (long long)k * lda, lda, left, rows, a_units);
            else As[stage].copy(A + k, lda, rows, left, a_units);
            if (TRANSB) Bs[stage].copy(B + k, ldb, columns, left, b_units);
            else Bs[stage].copy(B + (long long)k * ldb, ldb, left, columns, b_units);
        }
        cp_async_commit_group();
    };
    if constexpr (STAGES == 1) {
        #pragma unroll 1
        for (int part = share.begin; part < share.end; ++part) {
            if (part > share.begin) __syncthreads();  // the last one has been read
            copy(0, part);
            cp_async_wait_group<0>();
            if constexpr (sizeof(ELEMENT) == 2) {
                if (!a_units) As[0].shift(A, lda);
                if (!b_units) Bs[0].shift(B, ldb);
            }
            __syncthreads();
            multiply(As[0], Bs[0], min(BK, K - part * BK));
        }
    } else {
        #pragma unroll 1
        for (int i = 0; i < STAGES - 1; ++i) copy(i, share.begin + i);
        int now = 0, next = STAGES - 1;
        #pragma unroll 1
        for (int part = share.begin; part < share.end; ++part) {
            cp_async_wait_group<STAGES - 2>();
            if constexpr (sizeof(ELEMENT) == 2) {
                if (!a_units) As[now].shift(A, lda);
                if (!b_units) Bs[now].shift(B, ldb);
            }
            __syncthreads();  // everyone's copies of this stage have landed, and the last one has been read
            copy(next, part + STAGES - 1);
            multiply(As[now], Bs[now], BK);
            next = now;
            now = now + 1 == STAGES ? 0 : now + 1;
        }
    }
    __syncthreads();  // the last stage has been read: its memory is free
}

// The tile of C on its way from registers to memory. Rows are longer by PAD floats, to keep banks apart. From here on code
// is in loops: what runs once waits for each of its instructions to be fetched.
#define QUADS (BM * BN / 4)
#define MOST_PARTS 8u        // that the SPLIT blocks of a cluster, as one, share a tile with
#define MOST_SHARERS 1024u   // blocks that share tiles, in all
// If SWAPPED, the two of each pair of neighbours have changed places.
template <int PAD, bool SWAPPED = false>
struct Staged {
    float at[BM][BN + PAD];

    // Return four sums of a row, in their order.
    __device__ float4 quad(int r, int c) const
    {
        const float4 v = *(const float4*)&at[r][c];
        return SWAPPED ? make_float4(v.y, v.x, v.w, v.z) : v;
    }

    // Store c = after(alpha * sum + beta * c), by all THREADS, where `parts` clusters share `tile`, and this is a block of
    // `part`. C is at the tile's corner, which is at (row, col); `rows` rows and `columns` columns exist there. `workspace` begins with counters, which are zero and are left so.
    //
    // Each block of a cluster adds up a piece of the tile, which it reads from the others' shared memory. Of the blocks of
    // several clusters that have the same piece, the one that comes last adds it up again, from global memory. No block
    // waits for those of another cluster, and the order of sums is always the same.
    template <class After>
    __device__ void store(OUT* C, int ldc, int rows, int columns, float alpha, float beta, unsigned* workspace,
                          unsigned tile, unsigned part, unsigned parts, After after, unsigned row, unsigned col)
    {
        static_assert(BM % SPLIT == 0, "each block of a cluster has whole rows");
        const unsigned rank = blockIdx.y % SPLIT;
        const int first = QUADS * rank / SPLIT + threadIdx.x, end = QUADS * (rank + 1) / SPLIT;
        const auto quad_at = [&](int q) -> float4& { return *(float4*)&at[q / (BN / 4)][q % (BN / 4) * 4]; };
        const auto add = [](float4& to, float4 v) { to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w; };
        if (SPLIT > 1) {
            cluster_sync();  // all sums of the cluster have been written
            #pragma unroll 1
            for (int q = first; q < end; q += THREADS) {
                float4 total = {};
                #pragma unroll
                for (int other = 0; other < SPLIT; ++other) add(total, ld_shared_cluster(&quad_at(q).x, other));
                quad_at(q) = total;
            }
            cluster_sync_relaxed();  // no block exits while others read its memory
        }
        if (parts > 1) {
            const auto sums = (float4(*)[QUADS])(workspace + MOST_SHARERS) + tile * parts;
            #pragma unroll 4
            for (int q = first; q < end; q += THREADS) __stcg(&sums[part][q], quad_at(q));
            if (!last_of(parts, workspace + tile * SPLIT + rank, [] { __syncthreads(); })) return;
            #pragma unroll 2
            for (int q = first; q < end; q += THREADS) {
                float4 v[MOST_PARTS], total = {};
                #pragma unroll
                for (unsigned p = 0; p < MOST_PARTS; ++p) v[p] = p < parts ? __ldcg(&sums[p][q]) : float4{};
                #pragma unroll
                for (unsigned p = 0; p < MOST_PARTS; ++p) add(total, v[p]);
                quad_at(q) = total;
            }
        }
        const bool quads = !OWN && (unsigned long long)C % sizeof(OUT[4]) == 0 && ldc % 4 == 0;
        if (quads) {
            store_units<BN / 4>(C, ldc, rows, columns, alpha, beta, after, row, col);
        } else {
            __syncthreads();  // what this thread stores are not the quads that it has added up
            if constexpr (sizeof(OUT) == 4) store_floats(C, ldc, rows, columns, alpha, beta, after, row, col);
            else store_units<BN / 4 + 1>(C, ldc, rows, columns, alpha, beta, after, row, col);
        }
    }

    // Store what this warp has written of the tile, ROWS x COLUMNS from (m, n) on, where no other block has a part of it: in
    // units of four elements if all rows of C begin at one, else one by one, side by side.
    template <int ROWS, int COLUMNS, class After>
    __device__ void store_own(OUT* C, int ldc, int rows, int columns, float alpha, float beta, After after, unsigned row,
                              unsigned col, int m, int n)
    {
        __syncwarp();
        if ((unsigned long long)C % sizeof(OUT[4]) == 0 && ldc % 4 == 0)
            store_own_units<ROWS, COLUMNS, 4>(C, ldc, rows, columns, alpha, beta, after, row, col, m, n);
        else
            store_own_units<ROWS, COLUMNS, 1>(C, ldc, rows, columns, alpha, beta, after, row, col, m, n);
    }
    template <int ROWS, int COLUMNS, int WIDTH, class After>
    __device__ void store_own_units(OUT* C, int ldc, int rows, int columns, float alpha, float beta, After after, unsigned row,
                                    unsigned col, int m, int n)
    {
        constexpr int across = COLUMNS / WIDTH, beside = across < 32 ? across : 32, down = 32 / beside;
        const int first = m + threadIdx.x % 32 / beside, end = min(m + ROWS, rows);
        #pragma unroll
        for (int j = 0; j < across; j += beside) {
            const int c = n + (j + threadIdx.x % beside) * WIDTH;
            if (c >= columns) break;
            const int count = WIDTH == 1 ? 1 : min(columns - c, WIDTH);
            OUT* to = C + (long long)first * ldc + c;
            #pragma unroll 4
            for (int r = first; r < end; r += down, to += (long long)down * ldc) {
                float sum[4] = {at[r][c ^ (int)SWAPPED]};
                if (WIDTH == 4) *(float4*)sum = quad(r, c);
                store4(to, sum, count, WIDTH == 4, alpha, beta, after, row + r, col + c);
            }
        }
    }

    // Store this block's rows in units of four elements as memory has them: with rows that begin elsewhere than at such a
    // unit, the first and the last of a row belong to it in part. ACROSS units cover a row. With OWN as in store_floats().
    template <int ACROSS, class After>
    __device__ void store_units(OUT* C, int ldc, int rows, int columns, float alpha, float beta, After after, unsigned row,
                                unsigned col)
    {
        const int first = BM / SPLIT * (blockIdx.y % SPLIT);
        #pragma unroll 1
        for (int i = threadIdx.x; i < BM / SPLIT * ACROSS; i += THREADS) {
            const int m = first + i / ACROSS;
            OUT* c = C + (long long)m * ldc;
            const int begin = i % ACROSS * 4 - (ACROSS > BN / 4 ? (int)((unsigned long long)c / sizeof(OUT) % 4) : 0);
            const int lead = (0 - (unsigned long long)c) / sizeof(OUT) % (32 / sizeof(OUT));
            const int n = max(begin, OWN && col > 0 ? lead : 0);
            const int count = min(begin + 4, min(columns, OWN ? BN - OVERLAP + lead : BN)) - n;
            if (m >= rows || count <= 0) continue;
            float sum[4];
            if (ACROSS == BN / 4) {
                *(float4*)sum = quad(m, n);
            } else
                #pragma unroll
                for (int e = 0; e < 4; ++e) sum[e] = at[m][min(n + e, BN - 1) ^ (int)SWAPPED];
            store4(c + n, sum, count, true, alpha, beta, after, row + m, col + n);
        }
    }

    // Store this block's rows of floats, which begin anywhere, from the begin of a sector of 32 bytes on, side by side: units
    // of four, read float by float, have four-way bank conflicts. (With 16 bits, two a lane, units are 20% faster.)
    //
    // With OWN, sectors of a row belong to one tile: from the first one that begins in it to that in the next tile. L2 takes
    // far fewer bytes a second where two blocks write parts of a sector. (H200, writes alone, tiles of 64 x 128 at an odd
    // pitch: 2.6 TB/s, and 3.6 with OWN.)
    template <class After>
    __device__ void store_floats(float* C, int ldc, int rows, int columns, float alpha, float beta, After after, unsigned row,
                                 unsigned col)
    {
        constexpr int SECTOR = 8, LANES = BN < 64 ? BN / 2 : 32;  // of a row
        const int first = BM / SPLIT * (blockIdx.y % SPLIT), last = min(first + BM / SPLIT, rows);
        int m = first + threadIdx.x / LANES;
        float* c = C + (long long)m * ldc;
        #pragma unroll 1
        for (; m < last; m += THREADS / LANES, c += THREADS / LANES * (long long)ldc) {
            const int before = (unsigned long long)c / 4 % SECTOR, lead = -before & SECTOR - 1;
            const int begin = OWN && col > 0 ? lead : 0, end = min(columns, OWN ? BN - OVERLAP + lead : BN);
            const unsigned width = max(end - begin, 0);
            int n = threadIdx.x % LANES - before;
            #pragma unroll
            for (int i = 0; i < BN / LANES + 1 - OWN; ++i, n += LANES)
                if ((unsigned)(n - begin) < width)
                    store2(c + n, at[m][n ^ (int)SWAPPED], 0.f, 1, false, alpha, beta, after, row + m, col + n);
        }
    }
};
