// float32 on tensor cores in small tiles, split on the way to shared memory: for small outputs
//
// The pass of rung 32 that writes panels, and the wait for all blocks, take longer than a small product. Rung 31
// splits in the kernel, but an SM has one block of it, and stands still for each batch of loads. Here an SM has several
// small blocks, which do without producers: all threads load floats one chunk of k ahead into registers, split them while
// the tensor cores multiply the last chunk, and write the parts to the other of two stages. What one block waits for, others
// hide.
//
// Parts lie in shared memory as the floats do in memory, with k along the rows or across: wgmma reads both. So each of the
// four layouts is read where it is, with 128-bit loads where rows are aligned.
//
// As in rung 33 blocks share tiles where there are few of them. Infinities, NaN and overflow come out as in float32, slowly.
//
// /// kernel
// entry = "matmul"
// after = "32_bf16x6_panels"
// dtype = "bf16x6"
// min_arch = "sm_90a"
// block = "2 * BM"
// tile  = ["BM", "BN"]
// where = ["BN * 2 % BM == 0"]
// grid  = ["TILES_X * TILES_Y * TILES_Z",
//          "SPLIT * max(1, min(8, K // (128 * SPLIT), min(1024, BLOCKS * SMS) // (TILES_X * TILES_Y * TILES_Z * SPLIT)))"]
// shared = "max(384 * (BM + BN), 4 * BM * (BN + 8))"
// workspace = "min(1, GRID_Y // SPLIT - 1) * (4096 + min(1024, BLOCKS * SMS) // SPLIT * 4 * BM * BN)"
// programmatic = 1
// loads = "BM + BN"
// sums  = "bf16x6"
// parts = "(BLOCKS == 0) * SPLIT"
// sass  = ["HGMMA in loop == 12", "F2FP.BF16.F32.PACK_AB in loop >= 24", "ACQBULK", "PREEXIT", "no LDL", "no STL"]
// claim = "No pass over the operands and no wait for all blocks: a k of 80 takes three chunks."
// predict = ["conflicts == 0"]
//
// [params]
// BM = [64, 128]
// BN = [64, 128, 96, 32]
// BLOCKS = [4, 3, 2, 1, 0]
// SPLIT = [1, 2, 4, 8]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "batch.cuh"
#include "bf16x6.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "tma.cuh"
#define STAGES 2
#define THREADS (2 * BM)  // a warpgroup for 64 rows
#include "small_tiles.cuh"

// One operand: EXTENT of its rows or columns, a chunk of BK k at a time. Its parts lie in shared memory as the floats do in
// memory. If it is K-major, each row or column has a line with its k; else BK of them share BK lines, with one k each. A line
// has 64 bytes, as wide as the swizzle: unit u of line r is at u ^ r / 2 % 4.
template <int EXTENT, bool K_MAJOR>
class Operand {
    static_assert(BK == 32 && EXTENT * 4 % THREADS == 0, "lines of four units, as many for each thread");
    static constexpr int STEP = THREADS / 4;           // lines from a thread's unit to its next
    static constexpr int EACH = EXTENT * 4 / THREADS;  // its units of a chunk

    static __device__ unsigned line() { return threadIdx.x / 4; }
    static __device__ unsigned column() { return threadIdx.x % 4 * 8; }
    static __device__ unsigned row() { return K_MAJOR ? line() : line() % BK; }  // in memory, from the chunk's first on
    static __device__ unsigned along() { return column() + (K_MAJOR ? 0 : line() / BK * BK); }  // in that row

    const float* from;  // the thread's first unit of the next chunk
    const int ld, extent;
    const bool quads;   // every row in memory begins at a multiple of 16 bytes
    Neighbours v[EACH];

public:
    struct Split {
        Element part[PARTS][EXTENT][BK];

        // Return where row or column `first` of the first part begins. Another part, or k, is `bytes` further on.
        __device__ Descriptor descriptor(int first) const
        {
            return make_descriptor(part[0][first], sizeof(Element[BK][BK]), sizeof(Element[8][BK]), 64);
        }
        static __device__ int bytes(int p, int k) { return p * (int)sizeof part[0] + (K_MAJOR ? 2 : 64) * k; }
    };

    // `first` is element 0 of the tile at k, and so many rows or columns exist from there on.
    __device__ Operand(const float* first, int ld, int extent, bool quads, int k)
        : from(first + (K_MAJOR ? k : (long long)k * ld) + (long long)row() * ld + along()), ld(ld), extent(extent),
          quads(quads) {}

    // Load the next chunk, of which `left` k exist. The rest becomes zero.
    __device__ void load(int left)
    {
        const auto at = [&](int j) { return from + (K_MAJOR ? (long long)ld * STEP * j : STEP * j); };
        if (quads && extent >= EXTENT && left >= BK)
            #pragma unroll
            for (int j = 0; j < EACH; ++j) v[j] = load_neighbours(at(j), 8, true);
        else
            #pragma unroll
            for (int j = 0; j < EACH; ++j) {
                const int r = row() + (K_MAJOR ? STEP * j : 0), begin = along() + (K_MAJOR ? 0 : STEP * j);
                const int rows = K_MAJOR ? extent : left, columns = K_MAJOR ? left : extent;
                v[j] = load_neighbours(at(j), r < rows ? min(columns - begin, 8) : 0, quads);
            }
        from += K_MAJOR ? BK : (long long)ld * BK;
    }

    // Split what was loaded.
    __device__ void store(Split& to) const
    {
        #pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const unsigned r = line() + STEP * j;
            const Units units = split(v[j]);
            #pragma unroll
            for (int p = 0; p < PARTS; ++p) *(uint4*)&to.part[p][r][column() ^ r / 2 % 4 * 8] = units.of(p);
        }
    }
};

#define LEAST_BLOCKS ((6 - BN / 32) * 64 / BM)  // of an SM, that registers must suffice for

typedef Operand<BM, !TRANSA> OperandA;
typedef Operand<BN, TRANSB> OperandB;

struct Stage {
    OperandA::Split a;
    OperandB::Split b;

    // Start the products for 64 rows from `row` on.
    __device__ void multiply(float (&sum)[BN / 2], int row) const
    {
        const Descriptor of_a = a.descriptor(row), of_b = b.descriptor(0);
        #pragma unroll
        for (int k = 0; k < BK; k += STEP_K)
            each_product([&](int x, int y, bool first) {
                wgmma<TRANSA, !TRANSB>(Element(), sum, advance_descriptor(of_a, a.bytes(x, k)),
                                       advance_descriptor(of_b, b.bytes(y, k)), k > 0 || !first);
            });
    }
};

#if SPLIT > 1
extern "C" __global__ void __cluster_dims__(1, SPLIT, 1) __launch_bounds__(THREADS, LEAST_BLOCKS)
#else
extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
#endif
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER BATCH_PARAMETERS,
                              unsigned* workspace)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const auto stages = (Stage*)memory;
    const auto staged = (Staged<8>*)memory;
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // uniform in a warp
    TAKE_PRODUCT(A, B, C, M, N, K, lda, ldb, ldc);
    const unsigned tiles_m = (M + BM - 1u) / BM, tile = TILE_OF_MATRIX(tiles_m * ((N + BN - 1u) / BN));
    const unsigned row = tile % tiles_m * BM, col = tile / tiles_m * BN;
    const int rows = M - row, columns = N - col;
    const bool a_quads = aligned16(A, lda), b_quads = aligned16(B, ldb);
    const Share share = share_of((K - 1) / BK + 1, blockIdx.y, gridDim.y);

    OperandA a(A + (TRANSA ? row : (long long)row * lda), lda, rows, a_quads, share.begin * BK);
    OperandB b(B + (TRANSB ? (long long)col * ldb : col), ldb, columns, b_quads, share.begin * BK);
    float sum[BN / 2] = {}, part[BN / 2] = {};
    const auto add = [&] {
        wgmma_wait_all(part);
        #pragma unroll
        for (int i = 0; i < BN / 2; ++i) sum[i] += part[i];
    };
    const auto load = [&](int chunk) {
        if (chunk < share.end) a.load(K - chunk * BK), b.load(K - chunk * BK);
    };
    wait_for_prerequisites();
    load(share.begin);
    #pragma unroll 1
    for (int chunk = share.begin; chunk < share.end; ++chunk) {
        Stage& stage = stages[chunk % STAGES];
        a.store(stage.a);
        b.store(stage.b);
        fence_proxy_async();  // before loads: it might wait for them
        load(chunk + 1);
        add();                // the products of the last chunk are done
        __syncthreads();      // for all warps, whose parts of this chunk are there
        wgmma_fence();
        stage.multiply(part, warp / 4 * 64);
        wgmma_commit_group();
    }
    add();

    launch_dependents();  // not before: the next kernel's blocks would crowd where there is room now
    __syncthreads();      // the last stage has been read: its memory is free
    const auto row_of = [&](int i) { return 16 * warp + i / 2 % 2 * 8 + lane / 4; };
    const auto col_of = [&](int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; };
    bool whole = true;    // no sum is NaN
    #pragma unroll
    for (int i = 0; i < BN / 2; i += 2) {
        *(float2*)&staged->at[row_of(i)][col_of(i)] = make_float2(sum[i], sum[i + 1]);
        whole &= sum[i] == sum[i] && sum[i + 1] == sum[i + 1];
    }
    // A part of an infinity is NaN, and so is the product: such sums are computed again, over the k of this block.
    if (!whole)
        #pragma unroll 1
        for (int i = 0; i < BN / 2; ++i) {
            const unsigned m = row + row_of(i), n = col + col_of(i), k = share.begin * BK;
            float& to = staged->at[m - row][n - col];
            if (to == to) continue;
            to = m >= M || n >= N ? 0.f
                 : dot(A + (TRANSA ? (long long)k * lda + m : (long long)m * lda + k), TRANSA ? lda : 1,
                       B + (TRANSB ? (long long)n * ldb + k : (long long)k * ldb + n), TRANSB ? 1 : ldb,
                       min(K, share.end * BK) - k);
        }
    __syncthreads();
    staged->store(C + (long long)row * ldc + col, ldc, rows, columns, alpha, beta, workspace,
                  blockIdx.x, blockIdx.y / SPLIT, gridDim.y / SPLIT, MAKE_EPILOGUE(M, N, ldc), row, col);
}
