// Stream-K: the last tiles are divided along k, so that no SM is idle
//
// Rung 16 gives each SM whole tiles, and then 1.3 tiles an SM take as long as 2. Here the tiles that are left
// over after whole rounds, or all tiles if there are fewer than SMs, are cut along k into equal shares, one
// for each block: a tile begins in one block and ends in another. Blocks write the sums of such pieces to a
// workspace. When all pieces of a tile are there, each block adds up a part of it, in the order of the blocks,
// so that equal inputs give equal bits. Shares come first and whole tiles second, so that the sums of others
// have arrived when they are needed. (Osama et al., "Stream-K: Work-Centric Parallel Decomposition for Dense
// Matrix-Matrix Multiplication on the GPU", PPoPP 2023.)
//
// With SLICES = 2 one half of the warps takes the first half of each stage's k and the other half the second;
// they add up in shared memory. So a tile of half the size keeps as many warps busy, and half as many sums go
// through L2.
//
// An operand with k along its rows, an A or a B that is stored transposed, is transposed on its way, float by float.
// The 256 columns of a tile with 64 rows or fewer stay as they lie: a thread reads four k of a column at once
// (fp32_lines.cuh). So do 256 rows of A if WN = 32: the lanes of a warp then form a grid that is tall, not wide.
//
// Blocks that wait for each other must run at the same time: the launch is cooperative. Measurements and what
// did not help: docs/notes/20_stream_k.md.
//
// /// kernel
// entry = "matmul"
// after = "16_pipeline"
// min_arch = "sm_90a"
// block = "32 * (BM // WM) * (BN // WN) * SLICES + 128"
// tile  = ["BM", "BN"]
// grid  = "SMS"
// where = ["8192 <= BM * BN <= 32768", "(BM * BN * SLICES > 16384) <= (WM == 64)", "BM % WM == 0", "BN % WN == 0",
//          "(BN == 32) <= (WN == 32) <= (WM == 64 and BM == 256 and BN <= 64)", "(WM == 64) == (BN == 32) or BM * BN > 8192",
//          "BK * STAGES <= 64 + 64 * SLICES", "CHUNK < BK", "1 + (BM * BN == 8192) <= SLICES <= 2",
//          "(SLICES == 1 and WM == 64 or BM * BN == 8192) <= (CHUNK == 8)",
//          "(STAGES == 6) <= (SLICES == 2 and (BM == 128 or BM * BN == 8192))",
//          "SLICES == 1 or (BM * BN <= 16384 and BK == 32)", "(WN == 32) <= (SLICES == 1 + (BN == 32))"]
// shared = "4 * STAGES * BK * (BM + BN + 4 * (1 - TRANSA - TALL + TRANSB - LINES)) + 16 * STAGES"
// cooperative = true
// workspace = "16 * SMS + 8 * SMS * BM * BN"
// loads = "BM + BN"
// sass  = ["LDS.128 in loop >= 32", "FFMA share in loop >= 91% if not LINES and not TALL", "FFMA share in loop >= 89%",
//          "no LDGSTS in loop", "no BAR in loop", "UTMALDG if TRANSA or TALL or LINES or not TRANSB", "no LDL", "no STL"]
// claim = "All SMs finish together: the 45 tiles of 128 x 256 of n = 1025 keep 132 SMs busy, not 45."
// predict = ["seconds <= 0.6 of 16_pipeline at N=1024"]
//
// [names]
// LINES = "TRANSB * (BN > 2 * BM)"  # a B that stays as it lies
// TALL = "(1 - TRANSA) * (WN == 32)"  # an A that does
//
// [tensormaps]
// A = {box = ["BK + TALL * (BM - BK)", "BM + TALL * (BK - BM)"], swizzle = "TALL * 4 * BK", where = "TALL or TRANSA"}
// B = {box = ["BK + LINES * (BN - BK)", "BN + LINES * (BK - BN)"], swizzle = "LINES * 4 * BK", where = "LINES or not TRANSB"}
//
// [params]
// BM = [128, 64, 256, 32]
// BN = [256, 128, 64, 32]
// BK = [32, 16]
// WM = [64, 32]
// WN = [64, 32]
// STAGES = [4, 8, 6]
// CHUNK = [8, 16]
// GROUP = [8]
// LEAST = [4]
// SLICES = [1, 2]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#define A_IN_LINES (!TRANSA && WN == 32)
#define B_IN_LINES (TRANSB && BN > 2 * BM)

#include "epilogue.cuh"
#include "grid_sync.cuh"
#include "fp32_lines.cuh"
#include "fp32_producer.cuh"
#include "vector.cuh"
#include "transpose.cuh"

#define LANES_M (WN == 32 ? 8 : 4)  // the grid of a warp's lanes
#define LANES_N (32 / LANES_M)
#define TM (WM / LANES_M)  // a thread's outputs: its quads of rows lie 4 * LANES_M apart, or its rows LANES_M,
#define TN (WN / LANES_N)  // and its quads of columns 4 * LANES_N
#define SLICE (32 * (BM / WM) * (BN / WN))  // threads that compute a whole tile, of a part of each stage's k
#define CONSUMERS (SLICE * SLICES)  // the producers follow them
#define DEEP (BK / SLICES)   // k of a stage for each slice
#define ROWS (TM / SLICES)   // of a thread's outputs that it keeps when slices add up
#define QUADS (ROWS * TN / 4)
// Whether producers leave registers to consumers.
#define MOVES_REGISTERS (CONSUMERS > 128 && (TM * TN > 64 || SLICES > 1 && (A_IN_LINES || B_IN_LINES)))

typedef Fp32Producer<BM, BN, BK, STAGES> Producer;

// A lane's place in that grid. Neighbours read the same of the side with eight, lanes two apart the same of the other one.
__device__ inline int lane_m(int lane) { return LANES_M == 4 ? lane / 2 % 4 : lane / 8 * 2 + lane % 2; }
__device__ inline int lane_n(int lane) { return LANES_N == 4 ? lane / 2 % 4 : lane / 8 * 2 + lane % 2; }

// The first row of a lane, the i-th one from there on, and its first column quad.
__device__ inline int first_row(int lane) { return A_IN_LINES ? lane_m(lane) : lane_m(lane) * 4; }
__device__ inline int row_after(int i) { return A_IN_LINES ? i * LANES_M : i / 4 * (4 * LANES_M) + i % 4; }
__device__ inline int quad_of(int lane)
{
#if B_IN_LINES
    return lines_quad(lane);
#else
    return lane_n(lane);
#endif
}

// The place of element e of quad q among the sums that a thread exchanges with one of the other slice.
__device__ inline int row_of_quad(int q, int e) { return A_IN_LINES ? q / (TN / 4) : q / TN * 4 + e; }
__device__ inline int column_of_quad(int q, int e) { return A_IN_LINES ? q % (TN / 4) * 4 + e : q % TN; }

struct Piece {
    unsigned tile, begin, end;  // the stages of the tile, along k
};

// How the work is divided, and which pieces this block computes. It lies in shared memory, because registers are for
// sums. All numbers have 32 bits, enough for the stages of operands below 2^40 bytes: 64-bit divisions are slow, and
// the first load waits for them.
struct Work {
    unsigned stages;         // of a tile
    unsigned tiles, shared;  // all tiles; how many of them, the first ones, are divided into shares
    unsigned each;           // stages in a share; the last share may have fewer
    unsigned span;           // from one tile to the next, in the numbering of stages by which shares are dealt out

    Piece shares[2];  // of this block
    unsigned count;   // how many it has

    __device__ void plan(unsigned all_tiles, int K)
    {
        stages = (K - 1) / BK + 1u, tiles = all_tiles, shared = tiles % gridDim.x;
        const unsigned sharers = max(max(1u, shared), min(gridDim.x, shared * stages / LEAST));
        each = (shared * stages + sharers - 1) / sharers, span = stages;
        // Keep each share within one tile if that makes it longer by one stage at most.
        const unsigned of_tile = sharers / max(1u, shared), longer = (stages + of_tile - 1) / of_tile;
        if (longer <= each + 1) each = longer, span = longer * of_tile;
        const unsigned tile = blockIdx.x * each / span, begin = blockIdx.x * each - tile * span;
        count = 0;
        if (tile < shared && begin < stages) shares[count++] = {tile, begin, min(stages, begin + each)};
        if (tile + 1 < shared && begin + each > span) shares[count++] = {tile + 1, 0, begin + each - span};
    }

    // The first block that shares a tile,
    __device__ unsigned low(unsigned tile) const { return tile * span / each; }
    // and the last one. For the first block the tile may be its second share.
    __device__ unsigned high(unsigned tile) const { return (tile * span + stages - 1) / each; }
    __device__ bool second_of(unsigned block, unsigned tile) const { return block * each < tile * span; }

    // Get the n-th piece of this block: shares first, then whole tiles. Return false when there is none left.
    __device__ bool get(unsigned n, Piece& piece) const
    {
        if (n < count) piece = shares[n];
        else piece = {shared + blockIdx.x + (n - count) * gridDim.x, 0, stages};
        return piece.tile < tiles;
    }
};

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
                       matmul(MAP_PARAMETERS const float* A, const float* B, float* C,
                              int M, int N, int K, int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER,
                              unsigned* workspace)
{
    extern __shared__ __align__(1024) float memory[];
    auto Bs = (Producer::TileB*)memory;
    auto As = (Producer::TileA*)(Bs + STAGES);
    auto full = (Mbarrier*)(As + STAGES), empty = full + STAGES;
    auto exchanged = (float4(*)[CONSUMERS])memory;  // sums from one slice to the other, where stages were

    // For each shared tile: how many blocks have written their sums and, in the upper half, how many have read them.
    unsigned* counters = workspace;
    auto parts = (float4(*)[QUADS][CONSUMERS])(workspace + 4 * gridDim.x);  // the sums of each block, for two pieces

    // Tiles are taken in bands of GROUP rows, as in 16. (Written out: grouped_raster() compiles differently here.)
    const unsigned tiles_m = (M + BM - 1u) / BM, tiles_n = (N + BN - 1u) / BN;
    const auto row_of = [&](unsigned tile) {
        const unsigned band = tile / (GROUP * tiles_n) * GROUP;
        return (band + tile % (GROUP * tiles_n) % min(GROUP, tiles_m - band)) * BM;
    };
    const auto col_of = [&](unsigned tile) {
        const unsigned band = tile / (GROUP * tiles_n) * GROUP;
        return tile % (GROUP * tiles_n) / min(GROUP, tiles_m - band) * BN;
    };
    __shared__ Work work;
    const int self = threadIdx.x;
    if (self == 0) work.plan(tiles_m * tiles_n, K);
    // Every consumer arrives: racecheck would not understand that one arrives for its warp.
    if (self == 32) Producer::init_barriers(full, empty, CONSUMERS);
    __syncthreads();  // the plan and the barriers exist
    Piece piece;
    if (!work.get(0, piece)) return;  // more SMs than shares

    if (self >= CONSUMERS) {
        // Fewer would do, but ptxas then allocates worse for the consumers.
        if (MOVES_REGISTERS) setmaxnreg_dec<88>();
        int stage = 0, parity = 1;
        for (unsigned n = 0; work.get(n, piece); ++n) {
            // Until the exchanged sums have been read, no stage may be loaded.
            if (SLICES > 1 && n > 0) named_barrier_sync<CONSUMERS + PRODUCERS, 2>();
            Producer::load(As, Bs, full, empty, stage, parity, MAPS, A, B, row_of(piece.tile), col_of(piece.tile),
                           piece.begin * BK, min((long long)K, piece.end * (long long)BK), M, N, K, lda, ldb);
        }
        return;
    }

    if (MOVES_REGISTERS) setmaxnreg_inc<208>();
    const int warp = __shfl_sync(~0u, self % SLICE / 32, 0), lane = self % 32;  // uniform in a warp
    const int slice = SLICES > 1 ? self / SLICE : 0;
    const int warp_m = warp / (BN / WN) * WM, tile_m = warp_m + first_row(lane);  // this thread's first row
    const int warp_n = warp % (BN / WN) * WN, tile_n = warp_n + quad_of(lane) * 4;  // and column quad
    const int kept_m = tile_m + slice * (WM / SLICES);  // of the outputs it keeps

    // Fragments: of one k, and of the next; of lines four k of each, of which the first is given here.
#if A_IN_LINES
    const int line_a = warp_m + lane_m(lane), swizzle_a = lines_swizzle<BK>(line_a);
    float a[TM][4];
    const auto begin_of_a = [&](int stage) { return As[stage][line_a]; };
    const auto read_a = [](int, const float*) {};
    const auto read_line_a = [&](int i, const float* as, int unit) {
        *(float4*)a[i] = *(const float4*)&as[i * LANES_M * BK + (unit ^ swizzle_a) * 4];
    };
    const auto a_of = [&](int i, int k) { return a[i][k % 4]; };
#else
    float a[2][TM];
    const auto begin_of_a = [&](int stage) { return &As[stage][slice * DEEP][tile_m]; };
    const auto read_a = [&](int which, const float* as) {
        for (int i = 0; i < TM; i += 4) *(float4*)&a[which][i] = *(const float4*)&as[i * LANES_M];
    };
    const auto read_line_a = [](int, const float*, int) {};
    const auto a_of = [&](int i, int k) { return a[k % 2][i]; };
#endif
#if B_IN_LINES
    const int line_b = warp_n + lane_n(lane), swizzle_b = lines_swizzle<BK>(line_b);
    float b[TN][4];
    const auto begin_of_b = [&](int stage) { return Bs[stage][line_b]; };
    const auto read_b = [](int, const float*) {};
    const auto read_line_b = [&](int j, const float* bs, int unit) {
        *(float4*)b[j] = *(const float4*)&bs[j * LANES_N * BK + (unit ^ swizzle_b) * 4];
    };
    const auto b_of = [&](int j, int k) { return b[j][k % 4]; };
#else
    float b[2][TN];
    const auto begin_of_b = [&](int stage) { return &Bs[stage][slice * DEEP][tile_n]; };
    const auto read_b = [&](int which, const float* bs) {
        for (int j = 0; j < TN; j += 4) *(float4*)&b[which][j] = *(const float4*)&bs[j * LANES_N];
    };
    const auto read_line_b = [](int, const float*, int) {};
    const auto b_of = [&](int j, int k) { return b[k % 2][j]; };
#endif
    const int first_unit = slice * DEEP / 4;

    int stage = 0, parity = 0;
    const float *as, *bs;
    const auto begin = [&] {
        mbarrier_wait(full + stage, parity);
        as = begin_of_a(stage), bs = begin_of_b(stage);
        read_a(0, as), read_b(0, bs);
        for (int i = 0; i < TM; ++i) read_line_a(i, as, first_unit);
        for (int j = 0; j < TN; ++j) read_line_b(j, bs, first_unit);
    };
    begin();
    bool more = true;
    for (unsigned n = 0; more; ++n) {
        const Piece now = piece;
        more = work.get(n + 1, piece);
        if (SLICES > 1 && n > 0) {
            if (++stage == STAGES) stage = 0, parity ^= 1;
            begin();
        }
        float sum[TM][TN] = {};
        for (unsigned left = now.end - now.begin; left > 0; --left) {
            // Wait for the next stage now, so that the loop can read ahead into it. After the very last stage there
            // is none, and before slices add up it must not be touched: what is read ahead then is not used.
            const int done = stage;
            if (left > 1 || (more && SLICES == 1)) {
                if (++stage == STAGES) stage = 0, parity ^= 1;
                mbarrier_wait(full + stage, parity);
            }
            #pragma unroll 1  // all of BK = 32 would be 67 KB of code, too much for the instruction cache
            for (int chunk = CHUNK; chunk <= DEEP; chunk += CHUNK) {
                #pragma unroll  // the index of the fragment must be a constant: registers cannot be indexed
                for (int k = 1; k <= CHUNK; ++k) {
                    if (k < CHUNK) {
                        read_a(k % 2, as + k * Producer::PITCH_A), read_b(k % 2, bs + k * Producer::PITCH_B);
                    } else {
                        as = chunk < DEEP ? as + CHUNK * Producer::PITCH_A : begin_of_a(stage);
                        bs = chunk < DEEP ? bs + CHUNK * Producer::PITCH_B : begin_of_b(stage);
                        read_a(0, as), read_b(0, bs);
                    }
                    const int next_unit = first_unit + (k < CHUNK || chunk < DEEP ? (chunk - CHUNK + k) / 4 : 0);
                    // Back and forth, so that an operand is reused, and lines of the next four k when these are done.
#if A_IN_LINES
                    for (int i = 0; i < TM; ++i)
                        for (int j = 0; j < TN; ++j) {
                            const int n = i % 2 ? TN - 1 - j : j;
                            sum[i][n] += a_of(i, k - 1) * b_of(n, k - 1);
                            if (k % 4 == 0 && j == TN - 1) read_line_a(i, as, next_unit);
                        }
#else
                    for (int j = 0; j < TN; ++j)
                        for (int i = 0; i < TM; ++i) {
                            const int m = j % 2 ? TM - 1 - i : i;
                            sum[m][j] += a_of(m, k - 1) * b_of(j, k - 1);
                            if (k % 4 == 0 && i == TM - 1) read_line_b(j, bs, next_unit);
                        }
#endif
                }
            }
            mbarrier_arrive(empty + done);  // may be filled again
        }

        float mine[ROWS][TN];  // the sums it keeps: all, or a half, and the other half goes to the other slice
        if (SLICES > 1) {
            named_barrier_sync<CONSUMERS>();  // all have read the last stage
            // Four sums of a column, or of a row if A lies in lines, swapped in pairs: so the registers of sum[m][n] and
            // a[m], or b[n], differ in parity, and lie in different register banks.
            #pragma unroll
            for (int to = 0; to < 2; ++to)
                if (slice != to)
                    #pragma unroll
                    for (int q = 0; q < QUADS; ++q) {
                        const auto v = [&](int e) { return sum[to * ROWS + row_of_quad(q, e)][column_of_quad(q, e)]; };
                        exchanged[q][(self + SLICE) % CONSUMERS] = make_float4(v(1), v(0), v(3), v(2));
                    }
            named_barrier_sync<CONSUMERS>();
        }
        #pragma unroll
        for (int i = 0; i < ROWS; ++i)
            #pragma unroll
            for (int j = 0; j < TN; ++j) mine[i][j] = slice ? sum[TM - ROWS + i][j] : sum[i][j];
        if (SLICES > 1)
            #pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                const float4 v = exchanged[q][self];
                const auto add = [&](int e, float x) { mine[row_of_quad(q, e)][column_of_quad(q, e)] += x; };
                add(1, v.x), add(0, v.y), add(3, v.z), add(2, v.w);
            }
#if B_IN_LINES
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) lines_to_quads(mine[i]);
#endif
        if (SLICES > 1 && more) {
            fence_proxy_async();
            named_barrier_sync<CONSUMERS + PRODUCERS, 2>();  // stages may be loaded where sums were exchanged
        }
        if (now.end - now.begin < work.stages) {
            const auto part = parts[2 * blockIdx.x + (n > 0)];
            #pragma unroll
            for (int i = 0; i < ROWS; ++i)
                #pragma unroll
                for (int j = 0; j < TN; j += 4)
                    part[(i * TN + j) / 4][self] = make_float4(alpha * mine[i][j], alpha * mine[i][j + 1],
                                                               alpha * mine[i][j + 2], alpha * mine[i][j + 3]);
            named_barrier_sync<CONSUMERS>();  // the stores of all threads precede the release below
            if (self == 0) atomic_add_release(counters + now.tile, 1);
            continue;
        }
        const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
        const unsigned row = row_of(now.tile) + kept_m, col = col_of(now.tile) + tile_n;
        float* c = C + (long long)row * ldc + col;
        const auto below = [&](int i) { return (row_after(i) - row_after(i - 1)) * (long long)ldc; };  // from the row before
        if (row - kept_m + BM <= M && col - tile_n + BN <= N && aligned16(C, ldc) && beta == 0.f && !EPILOGUE) {
            #pragma unroll
            for (int i = 0; i < ROWS; c += below(++i))  // no branches: few instructions to fetch
                #pragma unroll
                for (int j = 0; j < TN; j += 4)
                    *(float4*)(c + j * LANES_N) = make_float4(alpha * mine[i][j], alpha * mine[i][j + 1],
                                                              alpha * mine[i][j + 2], alpha * mine[i][j + 3]);
            continue;
        }
        if (LANES_M == 4 && !aligned16(C, ldc)) {
            store_transposed(C, ldc, row, col, mine, M, N, alpha, beta, epilogue);
            continue;
        }
        #pragma unroll  // registers cannot be indexed: i and j must be constants
        for (int i = 0; i < ROWS; c += below(++i)) {
            const unsigned m = row + row_after(i);
            if (m >= M) continue;
            #pragma unroll
            for (int j = 0; j < TN; j += 4)
                store4(c + j * LANES_N, &mine[i][j], N - (int)(col + j * LANES_N), LANES_M == 4 || aligned16(C, ldc),
                       alpha, beta, epilogue, m, col + j * LANES_N);
        }
    }

    // For each tile of which this block has computed a piece: add up its part of the outputs.
    for (unsigned n = 0; n < 2 && work.get(n, piece) && piece.end - piece.begin < work.stages; ++n) {
        // The blocks from `low` to `high` share this tile.
        const unsigned low = work.low(piece.tile), high = work.high(piece.tile), sharers = high - low + 1;
        const bool second = work.second_of(low, piece.tile);  // of `low`; for the others it is the first piece

        if (self == 0)
            while ((load_acquire(counters + piece.tile) & 0xffff) < sharers) {}
        named_barrier_sync<CONSUMERS>();
        const unsigned begin = (blockIdx.x - low) * (QUADS * CONSUMERS) / sharers;
        const unsigned end = (blockIdx.x - low + 1) * (QUADS * CONSUMERS) / sharers;
        const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
        const unsigned tile_row = row_of(piece.tile), tile_col = col_of(piece.tile);
        const auto store = [&](unsigned at, const float4& v) {
            const unsigned quad = at / CONSUMERS, thread = at % CONSUMERS;  // whose sums they are
            const int w = thread % SLICE / 32, l = thread % 32, i = quad / (TN / 4), j = quad % (TN / 4) * 4;
            const unsigned row = tile_row + w / (BN / WN) * WM + thread / SLICE * (WM / SLICES) + first_row(l) + row_after(i);
            const unsigned col = tile_col + w % (BN / WN) * WN + quad_of(l) * 4 + j * LANES_N;
            const float total[4] = {v.x, v.y, v.z, v.w};
            if (row < M)
                store4(C + (long long)row * ldc + col, total, N - (int)col, aligned16(C, ldc), 1.f, beta,
                       epilogue, row, col);
        };
        const auto part = [&](unsigned block) { return &parts[2 * block + (block == low && second)][0][0]; };
        if (sharers <= 4) reduce_parts<CONSUMERS, 4, 4>(part, low, high, begin + self, end, store);
        else reduce_parts<CONSUMERS, 1, 16>(part, low, high, begin + self, end, store);
        named_barrier_sync<CONSUMERS>();  // all have read
        if (self == 0 && atomic_add_release(counters + piece.tile, 0x10000) >> 16 == sharers - 1)
            counters[piece.tile] = 0;  // as the next launch expects it
    }
}
