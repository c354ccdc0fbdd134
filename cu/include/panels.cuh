// The product of panels: A and B split into parts once, in global memory, and multiplied by blocks that stay on their SM.
// The including file says what parts are (parts.cuh, or tf32x3.cuh), and has the parameters BM, BN, STAGES, GROUP, TRANSA and
// TRANSB. Used from rung 32 on.
//
// A panel holds the parts of BM rows of op(A), or of BN columns of op(B), stage by stage of k. What a stage needs of it is
// one piece, in the order and with the swizzle that shared memory wants.
//
// A Scale says what rows of op(A) and columns of op(B) are multiplied by before they are split, and undoes that. Unscaled is
// the one that does nothing.
#pragma once

#include "grid_sync.cuh"
#include "raster.cuh"
#include "stage16.cuh"

#define CONSUMERS 256
#define PRODUCERS 128
#define THREADS (CONSUMERS + PRODUCERS)
#define LEAST 8  // stages of k that a block has of a tile, if blocks share it
#define WIDTH (16 / (int)sizeof(Element))  // neighbours that a lane splits at a time, to 16 bytes of each part
#define UNIT (32 / WIDTH)  // times WIDTH, which it does at once: a warp 32 lines of 32

// Two warpgroups share a tile: each has half of its rows, in passes of 64. If there are only 64, each has half of the k.
#define SHARE_K (BM == 64)
#define PASSES (SHARE_K ? 1 : BM / 128)
#define BK (SHARE_K ? 2 * PART_K : PART_K)
#define LEAST_K (BK < 32 ? 32 : BK)  // of whose multiples panels are

typedef Parts<BM, BN, BK> Tile;

// Copy `bytes` from global to shared memory by one bulk copy; they count at the barrier.
__device__ inline void bulk_load(void* to, const void* from, int bytes, Mbarrier* b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)) : "memory");
}

// Order writes to global memory by threads before reads of the same by bulk copies.
__device__ inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Wait until all blocks of a cooperative launch have come here, each with its first COUNT threads. What they wrote before is
// visible after it.
template <int COUNT = THREADS>
__device__ inline void grid_sync(unsigned* counter)
{
    named_barrier_sync<COUNT>();
    if (threadIdx.x == 0) {
        // Block 0 adds so much that all blocks together flip the highest bit and leave 0 below it: see rung 29.
        const unsigned before = atomic_add_release(counter, blockIdx.x ? 1 : 0x80000000 - (gridDim.x - 1));
        while ((load_acquire(counter) ^ before) >> 31 == 0) {}
    }
    named_barrier_sync<COUNT>();
}

// An operand as lines of `length` elements: rows of op(A), and rows or columns of op(B). They lie along the rows in memory, or
// ACROSS them.
template <bool ACROSS>
struct Lines {
    // Lanes that read 32 lines write 16 bytes of each. Of 32-bit parts that is half of what a sector of memory holds, and so
    // these are transposed before, in shared memory.
    enum { TRANSPOSED = ACROSS && sizeof(Element) == 4 };
    enum { PITCH = 36 };  // floats: eight lanes access all banks

    const float* first;
    int ld;
    unsigned count, length;
    bool quads;  // rows in memory are aligned to 16 bytes

    // Return neighbours of a line, from `at` on; zeros stand for those that do not exist.
    __device__ Neighbours load(unsigned line, unsigned at) const
    {
        const int exist = line < count && at < length ? min(length - at, (unsigned)WIDTH) : 0;
        if (!ACROSS) return load_neighbours(first + (long long)line * ld + at, exist, quads);
        const float* p = first + (long long)at * ld + line;
        float v[WIDTH];
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i) v[i] = i < exist ? __ldg(p + (long long)i * ld) : 0.f;
        return gather_neighbours(v);
    }

    // Split 32 lines of 32 elements by a warp. place(line, at) says where neighbours go, of whose parts one lies `apart`
    // elements behind the other, and scale(line, at, v) multiplies them before. A warp has 32 rows of PITCH in `space`.
    template <class Place, class Multiply>
    __device__ void split(unsigned line, unsigned at, int apart, Place place, Multiply scale, float* space) const
    {
        // Lanes that are neighbours read neighbours in memory: of a line, or of 32 lines.
        const int lane = threadIdx.x % 32;
        const auto line_of = [&](int j, bool across) { return across ? lane : lane / UNIT + WIDTH * j; };
        const auto at_of = [&](int j, bool across) { return WIDTH * (across ? j : lane % UNIT); };
        Neighbours v[UNIT];
        #pragma unroll
        for (int j = 0; j < UNIT; ++j) v[j] = load(line + line_of(j, ACROSS), at + at_of(j, ACROSS));
        if (TRANSPOSED) {
            __syncwarp();  // the last ones have been read
            #pragma unroll
            for (int j = 0; j < UNIT; ++j) *(float4*)(space + PITCH * line_of(j, true) + at_of(j, true)) = v[j].low;
            __syncwarp();
            #pragma unroll
            for (int j = 0; j < UNIT; ++j) v[j].low = *(float4*)(space + PITCH * line_of(j, false) + at_of(j, false));
        }
        #pragma unroll
        for (int j = 0; j < UNIT; ++j) {
            const unsigned l = line + line_of(j, ACROSS && !TRANSPOSED), e = at + at_of(j, ACROSS && !TRANSPOSED);
            scale(l, e, v[j]);
            const Units units = ::split(v[j]);
            Element* to = place(l, e);
            #pragma unroll
            for (int p = 0; p < PARTS; ++p) *(uint4*)(to + p * (long long)apart) = units.of(p);
        }
    }
};

struct Panels {
    enum { B_ACROSS = Tile::B_ACROSS };

    const Lines<TRANSA> a;              // a line has a k for each element
    const Lines<TRANSB == B_ACROSS> b;  // and here, or there is one for each k
    unsigned tiles_m, tiles_n, tiles_k;
    Element *to_a, *to_b;

    __device__ Panels(const float* A, const float* B, int M, int N, int K, int lda, int ldb)
        : a{A, lda, (unsigned)M, (unsigned)K, aligned16(A, lda)},
          b{B, ldb, unsigned(B_ACROSS ? K : N), unsigned(B_ACROSS ? N : K), aligned16(B, ldb)},
          tiles_m((M + BM - 1u) / BM), tiles_n((N + BN - 1u) / BN),
          tiles_k((K + LEAST_K - 1u) / LEAST_K * (LEAST_K / BK)) {}

    __device__ void lie_at(void* memory)
    {
        to_a = (Element*)memory;
        to_b = to_a + tiles_m * (long long)tiles_k * (PARTS * BM * BK);
    }
    __device__ void* end() const { return to_b + tiles_n * (long long)tiles_k * (PARTS * BN * BK); }

    // Return the first stage of a panel.
    __device__ const Element* of_a(unsigned row) const { return to_a + row * (long long)tiles_k * (PARTS * BM * BK); }
    __device__ const Element* of_b(unsigned col) const { return to_b + col * (long long)tiles_k * (PARTS * BN * BK); }

    // Split A and B, by all threads of all blocks. `memory` is shared, and used where lines are transposed.
    template <class Scale>
    __device__ void split(const Scale& scale, void* memory) const
    {
        const unsigned warp = (blockIdx.x * THREADS + threadIdx.x) / 32, warps = gridDim.x * (THREADS / 32);
        const unsigned parts_k = tiles_k / (LEAST_K / BK) * (LEAST_K / 32), columns = tiles_n * (BN / 32);
        const unsigned rows = tiles_m * (BM / 32), units_a = rows * parts_k, units = units_a + columns * parts_k;
        const unsigned along_b = B_ACROSS ? columns : parts_k;
        float* space = (float*)memory + threadIdx.x / 32 * 32 * a.PITCH;
        const auto place_a = [&](unsigned m, unsigned k) {
            const unsigned r = m % BM, half = Tile::half_a(r);
            return to_a + (m / BM * (long long)tiles_k + k / BK) * (PARTS * BM * BK)
                   + Tile::row_a(r) + Tile::column_a(r, k % BK, half);
        };
        const auto place_b = [&](unsigned line, unsigned at) {
            const unsigned n = B_ACROSS ? at : line, k = B_ACROSS ? line : at, r = k % BK;
            return to_b + (n / BN * (long long)tiles_k + k / BK) * (PARTS * BN * BK)
                   + Tile::box_b(n % BN) + Tile::row_b(r) + Tile::column_b(n % BN, r);
        };
        // Warps that follow each other take pieces of the same lines or, if they are transposed, of the next ones: what they
        // read then lies side by side.
        for (unsigned unit = warp; unit < units; unit += warps) {
            if (unit < units_a)
                a.split((a.TRANSPOSED ? unit % rows : unit / parts_k) * 32,
                        (a.TRANSPOSED ? unit / rows : unit % parts_k) * 32, BM * BK, place_a,
                        [&](unsigned m, unsigned, Neighbours& v) { scale.row(m, v); }, space);
            else
                b.split((b.TRANSPOSED ? (unit - units_a) % columns : (unit - units_a) / along_b) * 32,
                        (b.TRANSPOSED ? (unit - units_a) / columns : (unit - units_a) % along_b) * 32, BN * BK, place_b,
                        [&](unsigned, unsigned n, Neighbours& v) { scale.columns(n, v); }, space);
        }
        if (a.TRANSPOSED || b.TRANSPOSED) fence_proxy_async();  // stages are copied to where warps have transposed
    }
};

// Floats as they are. (A Scale that is not needs a panel of B whose lines have one k each.)
struct Unscaled {
    __device__ Unscaled(const Panels&, void*) {}
    __device__ void find(const Panels&, unsigned*) const {}
    __device__ void row(unsigned, Neighbours&) const {}
    __device__ void columns(unsigned, Neighbours&) const {}
    template <int HEIGHT, int COUNT>
    __device__ void undo(float (&)[HEIGHT][COUNT], unsigned, unsigned) const {}
    static __device__ long long words(const Panels&) { return 0; }
};

// Sums of a tile in memory, as threads have them: float4 i of a thread is two neighbours of a row, and those eight rows below.
struct TileSums {
    static constexpr int OWNERS = SHARE_K ? 128 : CONSUMERS, QUADS = PASSES * BN / 8;
    float4 of[QUADS][OWNERS];

    // Return the place in the tile of float4 `i` of a thread.
    static __device__ TileIndex place(unsigned thread, unsigned i)
    {
        return {BM / 2 * (thread / 128) + 16 * (thread / 32 % 4) + thread % 32 / 4 + 64 * (i / (BN / 8)),
                thread % 4 * 2 + i % (BN / 8) * 8};
    }
};

// The kernel. The launch is cooperative, and the workspace has a counter in 128 bytes, the words of Scale, the panels, and
// if tiles are shared, the sums of each block.
//
// Where there are tiles for half of the blocks at most, several share one: each multiplies a part of k. When all have
// written their sums, each adds up a part of the tile, always in the same order.
template <class Scale, class After>
__device__ inline void multiply_panels(const float* A, const float* B, float* C, int M, int N, int K, int lda, int ldb,
                                       int ldc, float alpha, float beta, unsigned* workspace, After after)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Tile*)memory;
    const auto exchange = (float4(*)[128])(stages + STAGES);  // the sums of a warpgroup, if they share k
    const auto full = (Mbarrier*)(exchange + (SHARE_K ? BN / 8 : 0)), empty = full + STAGES;
    const int self = threadIdx.x, warp = __shfl_sync(~0u, self / 32, 0);  // uniform in a warp

    Panels panels(A, B, M, N, K, lda, ldb);
    const Scale scale(panels, workspace + 32);
    panels.lie_at(workspace + 32 + Scale::words(panels));
    const unsigned tiles = panels.tiles_m * panels.tiles_n, tiles_k = panels.tiles_k;
    const unsigned sharers = max(1u, min(gridDim.x / tiles, tiles_k / LEAST));
    const unsigned first = blockIdx.x / sharers, step = gridDim.x / sharers, rank = blockIdx.x % sharers;
    const unsigned begin = tiles_k * (unsigned long long)rank / sharers;
    const unsigned depth = tiles_k * (rank + 1ull) / sharers - begin;
    const auto sums = (TileSums*)panels.end();
    const auto place_of = [&](unsigned tile) { return grouped_raster(tile, panels.tiles_m, panels.tiles_n, GROUP); };

    if (self < STAGES) mbarrier_init(full + self, 1), mbarrier_init(empty + self, CONSUMERS / 128);
    if (self < STAGES) fence_mbarrier_init();
    scale.find(panels, workspace);
    panels.split(scale, memory);
    fence_proxy_async_global();
    grid_sync(workspace);

    if (self >= CONSUMERS) {
        setmaxnreg_dec<24>();  // the consumers take over the rest
        if (self > CONSUMERS) return;
        fence_proxy_async_global();
        int stage = 0, parity = 1;  // all stages are empty: the first waits end at once
        for (unsigned tile = first; tile < tiles; tile += step) {
            const auto [row, col] = place_of(tile);
            const Element* a = panels.of_a(row) + begin * (long long)(PARTS * BM * BK);
            const Element* b = panels.of_b(col) + begin * (long long)(PARTS * BN * BK);
            for (unsigned k = 0; k < depth; ++k) {
                mbarrier_wait(empty + stage, parity);
                mbarrier_arrive_expect_tx(full + stage, sizeof(Tile));
                bulk_load(stages[stage].a, a, sizeof stages[stage].a, full + stage);
                bulk_load(stages[stage].b, b, sizeof stages[stage].b, full + stage);
                a += PARTS * BM * BK, b += PARTS * BN * BK;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        return;
    }

    setmaxnreg_inc<240>();
    const int half = warp / 4;
    constexpr bool BESIDE = SHARE_K || Tile::A_SIDE_BY_SIDE;  // what the two warpgroups have of A: in the same rows
    const auto place_in_c = [&](unsigned tile, TileIndex within) -> TileIndex {
        const auto [row, col] = place_of(tile);
        return {row * BM + within.row, col * BN + within.col};
    };
    int stage = 0, parity = 0;
    for (unsigned tile = first; tile < tiles; tile += step) {
        float sum[PASSES][BN / 2] = {};
        #pragma unroll 1
        for (unsigned left = depth; left > 0; --left) {
            mbarrier_wait(full + stage, parity);
            #pragma unroll
            for (int pass = 0; pass < PASSES; ++pass) {
                float part[BN / 2];
                wgmma_fence();
                #pragma unroll
                for (int k = 0; k < PART_K; k += STEP_K)
                    multiply(part, stages[stage], (BESIDE ? 0 : BM / 2 * half) + 64 * pass, (BESIDE ? PART_K * half : 0) + k,
                             SHARE_K ? PART_K * half + k : k, k > 0);
                wgmma_commit_group();
                wgmma_wait_all(part);
                if (pass == PASSES - 1) consumer_release<1>(empty + stage, self, warp);
                #pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[pass][i] += part[i];
            }
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        if (SHARE_K) {
            named_barrier_sync<CONSUMERS>();  // what was exchanged for the last tile has been read
            #pragma unroll
            for (int i = 0; i < BN / 2; i += 4)
                if (half == 1) exchange[i / 4][self % 128] = *(float4*)(sum[0] + i);
            named_barrier_sync<CONSUMERS>();
            if (half == 1) continue;
            #pragma unroll
            for (int i = 0; i < BN / 2; i += 4) {
                const float4 v = exchange[i / 4][self];
                sum[0][i] += v.x, sum[0][i + 1] += v.y, sum[0][i + 2] += v.z, sum[0][i + 3] += v.w;
            }
        }
        if (sharers == 1) {
            const TileIndex at = place_in_c(tile, TileSums::place(self, 0));
            scale.undo(sum, at.row, at.col);
            store_sums<TRANSA, TRANSB>(sum, at.row, at.col, A, B, C, M, N, K, lda, ldb, ldc, alpha, beta, after);
            continue;
        }
        #pragma unroll
        for (int i = 0; i < TileSums::QUADS; ++i)
            __stcg(&sums[blockIdx.x].of[i][self], *(float4*)(sum[i / (BN / 8)] + i % (BN / 8) * 4));
    }
    if (sharers == 1) return;
    grid_sync<CONSUMERS>(workspace);
    if (first >= tiles) return;  // more blocks than shares
    const unsigned all = TileSums::QUADS * TileSums::OWNERS;
    const auto part = [&](unsigned i) { return sums[first * sharers + i].of[0]; };
    reduce_parts<CONSUMERS, 1, 8>(part, 0, sharers - 1, all * rank / sharers + self, all * (rank + 1) / sharers,
                                  [&](unsigned i, float4 v) {
        float sum[1][4] = {{v.x, v.y, v.z, v.w}};
        const TileIndex at = place_in_c(first, TileSums::place(i % TileSums::OWNERS, i / TileSums::OWNERS));
        scale.undo(sum, at.row, at.col);
        store_sums<TRANSA, TRANSB>(sum, at.row, at.col, A, B, C, M, N, K, lda, ldb, ldc, alpha, beta, after);
    });
}
