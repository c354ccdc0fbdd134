// A few inputs of a linear layer: rows times rows, read once at the speed of memory
//
// x W^T with a few rows of x is dot products of rows: both matrices have k along their rows. Rung 18 brings the few rows
// to shared memory: all warps wait for each other at every 128 floats, and 4096 weights are 128 blocks, an SM each. Here
// nobody waits. A warp reads four rows of the large matrix, two loads of 512 bytes of each ahead of the products. The few
// rows it reads where they are: the L1 cache has them. With fewer rows a block, its warps divide k, and add their sums at
// the end, in a fixed order. Tensor cores would not read faster: elements of 16 bits are multiplied as floats, too.
//
// FEW_ROWS=1: A has a few rows, and B many. FEW_ROWS=0: A has many, and the product a few columns. With TRANSB=1 these are
// rows of B. Columns of B (TRANSB=0) are loaded one element at a time, vectors are not. FEW is 1 there: for more rung 18
// is faster.
//
// /// kernel
// entry = "matmul"
// after = "18_skinny_columns"
// dtype = ["fp32", "bf16", "fp16"]
// min_arch = "sm_90"
// block = 256
// tile  = ["FEW_ROWS * FEW + (1 - FEW_ROWS) * ROWS", "FEW_ROWS * ROWS + (1 - FEW_ROWS) * FEW"]
// where = ["ROWS > FEW", "FEW_ROWS <= TRANSB", "TRANSB or FEW == 1"]
// programmatic = 1
// loads = "ROWS + FEW"
// sass  = ["LDG.128 in loop >= 8", "no LDS in loop", "no BAR in loop", "ACQBULK", "PREEXIT", "no LDL", "no STL"]
// claim = "The large matrix is read from memory once if FEW is enough, 16 bytes a load, and no warp waits for another."
// predict = ["sectors with FEW=1 <= 10272 at M=256 N=1 K=256",  # 8192 of A, 2048 of B by two warps a block
//            "global_requests with ROWS=4 FEW_ROWS=1 TRANSB=1 <= 41 at M=1 N=4 K=1024 transb=1"]  # a store beside units
//
// [params]
// ROWS = [8, 4, 16]
// FEW = [1, 2, 4]
// FEW_ROWS = [0, 1]
// TRANSB = [0, 1]
// ///

#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "vector.cuh"

#ifdef ELEMENT
typedef ELEMENT T;
#else
typedef float T;
#endif

#define THREADS 256
#define EACH 4                   // rows of a warp
#define GROUPS (ROWS / EACH)     // warps beside each other
#define PARTS (8 / GROUPS)       // warps that divide k
#define AHEAD 2                  // loads of a row before its products
#define UNIT (16 / (int)sizeof(T))  // elements of a load
#define STEP (32 * UNIT)         // of k: a unit for each lane
#define STRIDE (PARTS * STEP)

__device__ inline unsigned bits(float x) { return __float_as_uint(x); }
template <class H>
__device__ inline unsigned bits(H x) { return x.bits; }

// Load the first `count` elements of a unit, `step` apart. The others become zero, and their memory is not touched.
__device__ inline uint4 gather(const T* p, int count, long long step)
{
    unsigned words[4] = {};
    #pragma unroll
    for (int e = 0; e < UNIT; ++e)
        if (e < count) words[e * 4 / UNIT] |= bits(p[e * step]) << (e % (UNIT / 4) * 16);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ inline float element(unsigned word, int, float) { return __uint_as_float(word); }
template <class H>
__device__ inline float element(unsigned word, int half, H) { return to_float(H{(unsigned short)(word >> half * 16)}); }

__device__ inline void unpack(uint4 unit, float (&v)[UNIT])
{
    const unsigned words[4] = {unit.x, unit.y, unit.z, unit.w};
    #pragma unroll
    for (int e = 0; e < UNIT; ++e) v[e] = element(words[e * 4 / UNIT], e % (UNIT / 4), T{});
}

extern "C" __global__ void __launch_bounds__(THREADS)
                       matmul(const T* A, const T* B, OUT* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER)
{
    __shared__ float totals[PARTS][ROWS][FEW];

    const int rows = FEW_ROWS ? N : M, few = FEW_ROWS ? M : N, ld = FEW_ROWS ? ldb : lda, ld_few = FEW_ROWS ? lda : ldb;
    const unsigned row = (FEW_ROWS ? blockIdx.x : blockIdx.y) * ROWS, first = (FEW_ROWS ? blockIdx.y : blockIdx.x) * FEW;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group = warp % GROUPS, part = warp / GROUPS;
    const int begin = part * STEP + UNIT * lane;  // of this thread's k
    const T *large = FEW_ROWS ? B : A, *small = FEW_ROWS ? A : B;
    const int along = TRANSB ? 1 : ld_few;  // from k to k + 1 of the few: 1 of a vector, too
    const bool large_units = aligned16(large, ld), few_units = along == 1 && aligned16(small, TRANSB ? ld_few : 0);

    // Past the last row it reads the last one again: nobody stores those results.
    const T *from[EACH], *with[FEW];
    #pragma unroll
    for (int i = 0; i < EACH; ++i)
        from[i] = large + (long long)min(row + group * EACH + i, rows - 1u) * ld + begin;
    #pragma unroll
    for (int n = 0; n < FEW; ++n) {
        const long long which = min(first + n, few - 1u);
        with[n] = small + (TRANSB ? which * ld_few + begin : which + (long long)begin * ld_few);
    }

    wait_for_prerequisites();
    float sum[EACH][FEW] = {};
    #pragma unroll 1
    for (int left = K - begin; left > 0; left -= AHEAD * STRIDE) {  // counts down: nothing to overflow near 2^31
        uint4 a[AHEAD][EACH];
        const auto is_whole = [&](int j) { return left - j * STRIDE >= UNIT; };  // not the end of the rows
        if (large_units && is_whole(AHEAD - 1)) {  // all loads first: none waits for another
            #pragma unroll
            for (int j = 0; j < AHEAD; ++j)
                #pragma unroll
                for (int i = 0; i < EACH; ++i) a[j][i] = __ldcs((const uint4*)(from[i] + j * STRIDE));
        } else {  // the last loads, or unaligned rows: of a unit at the end what is outside becomes zero
            #pragma unroll
            for (int j = 0; j < AHEAD; ++j)
                if (large_units && is_whole(j)) {
                    #pragma unroll
                    for (int i = 0; i < EACH; ++i) a[j][i] = __ldcs((const uint4*)(from[i] + j * STRIDE));
                } else {
                    #pragma unroll
                    for (int i = 0; i < EACH; ++i) a[j][i] = gather(from[i] + j * STRIDE, left - j * STRIDE, 1);
                }
        }
        #pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            float b[FEW][UNIT];
            #pragma unroll
            for (int n = 0; n < FEW; ++n) {
                const T* p = with[n] + (long long)j * STRIDE * along;
                unpack(few_units && is_whole(j) ? *(const uint4*)p : gather(p, left - j * STRIDE, along), b[n]);
            }
            #pragma unroll
            for (int i = 0; i < EACH; ++i) {
                float v[UNIT];
                unpack(a[j][i], v);
                #pragma unroll
                for (int n = 0; n < FEW; ++n)
                    #pragma unroll
                    for (int e = 0; e < UNIT; ++e) sum[i][n] += v[e] * b[n][e];
            }
        }
        #pragma unroll
        for (int i = 0; i < EACH; ++i) from[i] += AHEAD * STRIDE;
        #pragma unroll
        for (int n = 0; n < FEW; ++n) with[n] += (long long)AHEAD * STRIDE * along;
    }
    launch_dependents();

    // All lanes of a warp, in the same order each time: the same bits.
    #pragma unroll
    for (int i = 0; i < EACH; ++i)
        #pragma unroll
        for (int n = 0; n < FEW; ++n) {
            #pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                sum[i][n] += __shfl_xor_sync(~0u, sum[i][n], distance);
            if (lane == 0) totals[part][group * EACH + i][n] = sum[i][n];
        }
    __syncthreads();  // all totals are there

    const Epilogue epilogue = MAKE_EPILOGUE(M, N, ldc);
    for (int i = threadIdx.x; i < ROWS * FEW; i += THREADS) {
        const int r = FEW_ROWS ? i % ROWS : i / FEW, n = FEW_ROWS ? i / ROWS : i % FEW;  // along a row of C
        if (row + r >= rows || first + n >= few) continue;
        float total = 0.f;
        #pragma unroll
        for (int p = 0; p < PARTS; ++p) total += totals[p][r][n];
        const unsigned m = FEW_ROWS ? first + n : row + r, column = FEW_ROWS ? row + r : first + n;
        store2(C + (long long)m * ldc + column, total, 0.f, 1, false, alpha, beta, epilogue, m, column);
    }
}
