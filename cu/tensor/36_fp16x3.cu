// float32 products from three of fp16, with scales: half the products of bf16x6, nearly as exact
//
// Two fp16 hold 22 bits of a float where rung 32 has three bf16 for 24, and three products do where it has six. What fp16
// lacks is range. So a first pass finds the largest element of each row of op(A) and of each column of op(B). They are
// multiplied by powers of two on their way into the panels, and the sums by the inverse: both are exact.
//
// Elements of a row that are small beside its largest have fewer bits, from 2^-17 of it on. So the dtype is called fp16x3,
// not float32, and it is a dtype of its own beside 3xtf32 too: its error bound knows the largest elements. Infinities, NaN
// and overflow come out as in float32, slowly.
//
// /// kernel
// entry = "matmul"
// after = "32_bf16x6_panels"
// dtype = "fp16x3"
// min_arch = "sm_90a"
// block = "384"
// tile  = ["BM", "BN"]
// grid  = "SMS"
// where = ["BM > 64 or BN == 64", "STAGES * (BM + BN) * (1 + 64 // BM) == 1536"]
// shared = "STAGES * (128 * (1 + 64 // BM) * (BM + BN) + 16) + 256 * BN * (64 // BM)"
// cooperative = true
// workspace = "128 + 4 * ((M + BM - 1) // BM * BM + (N + BN - 1) // BN * BN) * (1 + (K + 63) // 64 * 64) + 4 * BM * BN * SMS * min(1, SMS // (2 * TILES_X * TILES_Y))"
// loads = "BM + BN"
// sass  = ["HGMMA in loop >= 6", "UBLKCP", "no LDL", "no STL"]
// claim = "Three products of half-precision parts, not six: half the work of the tensor cores, a third less to load."
// predict = ["conflicts == 0", "seconds <= 0.7 of 32_bf16x6_panels at N=4096"]
//
// [params]
// BM = [256, 128, 64]
// BN = [128, 64]
// STAGES = [4, 6, 8]
// GROUP = [8, 4]
// TRANSA = [0, 1]
// TRANSB = [0, 1]
// ///

#include "epilogue.cuh"
#include "fp16x3.cuh"
#include "panels.cuh"

#define ROWS 16    // of op(A), or columns of op(B), whose largest elements a block finds at a time
#define BATCH 16   // of those

// Atomically raise *to to the bits of a float that is not negative; they are in the order of the floats.
__device__ inline void raise(unsigned* to, float value)
{
    asm volatile("red.relaxed.cta.shared::cta.max.u32 [%0], %1;" :: "r"(shared_address(to)), "r"(__float_as_uint(value)) : "memory");
}

// Find the largest magnitudes of ROWS rows of op(A), or columns of op(B), of which warps take 64 k in turn. `stored` is the
// operand as it lies in memory; K_ALONG says that its lines have a k for each element. NaN is passed over: what it is
// multiplied by does not matter.
template <bool K_ALONG>
__device__ inline void find_largest(const Lines<false>& stored, unsigned row, unsigned* largest)
{
    const unsigned lane = threadIdx.x % 32;
    float most[8] = {};
    #pragma unroll 1
    for (unsigned k = threadIdx.x / 32 * 64; k < (K_ALONG ? stored.length : stored.count); k += THREADS / 32 * 64) {
        Neighbours v[4];
        #pragma unroll
        for (int j = 0; j < 4; ++j)
            v[j] = K_ALONG ? stored.load(row + lane / 4 + j % 2 * 8, k + lane % 4 * 8 + j / 2 * 32)
                           : stored.load(k + lane / 2 + j * 16, row + lane % 2 * 8);
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float e[] = {v[j].low.x, v[j].low.y, v[j].low.z, v[j].low.w,
                               v[j].high.x, v[j].high.y, v[j].high.z, v[j].high.w};
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
                float& m = most[K_ALONG ? j % 2 : i];
                m = fmaxf(m, fabsf(e[i]));
            }
        }
    }
    // What lanes have of the same row meets in the first of them: four neighbours, or sixteen lanes two apart.
    #pragma unroll
    for (int i = 0; i < (K_ALONG ? 2 : 8); ++i)
        #pragma unroll
        for (int apart = K_ALONG ? 1 : 2; apart < (K_ALONG ? 4 : 32); apart *= 2)
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], apart));
    if (K_ALONG ? lane % 4 != 0 : lane >= 2) return;
    #pragma unroll
    for (int i = 0; i < (K_ALONG ? 2 : 8); ++i) raise(largest + (K_ALONG ? lane / 4 + 8 * i : lane * 8 + i), most[i]);
}

// Powers of two, one for each row of op(A) and each column of op(B), padded to whole tiles.
class Scaled {
    float *of_a, *of_b;

    static __device__ int exponent(float power) { return (int)(__float_as_uint(power) >> 23) - 127; }

    // Return 2^n for n from -126 to 127, and 0 for -127.
    static __device__ float power(int n) { return __uint_as_float((n + 127) << 23); }

public:
    __device__ Scaled(const Panels& panels, void* memory) : of_a((float*)memory), of_b(of_a + panels.tiles_m * BM) {}

    // Return how many there are.
    static __device__ long long words(const Panels& panels)
    {
        return panels.tiles_m * (long long)BM + panels.tiles_n * (long long)BN;
    }

    // Find all of them, by all threads of all blocks, and wait until that is done.
    __device__ void find(const Panels& panels, unsigned* counter) const
    {
        __shared__ unsigned largest[BATCH * ROWS];
        const auto& a = panels.a;
        const auto& b = panels.b;
        const Lines<false> stored_a{a.first, a.ld, TRANSA ? a.length : a.count, TRANSA ? a.count : a.length, a.quads};
        const Lines<false> stored_b{b.first, b.ld, TRANSB ? b.length : b.count, TRANSB ? b.count : b.length, b.quads};
        const unsigned groups_a = panels.tiles_m * (BM / ROWS), groups = groups_a + panels.tiles_n * (BN / ROWS);
        const unsigned self = threadIdx.x;
        for (unsigned first = blockIdx.x; first < groups; first += BATCH * gridDim.x) {
            if (self < BATCH * ROWS) largest[self] = 0;
            __syncthreads();
            #pragma unroll 1
            for (int i = 0; i < BATCH; ++i) {
                const unsigned group = first + i * gridDim.x;
                if (group < groups_a) find_largest<!TRANSA>(stored_a, group * ROWS, largest + i * ROWS);
                else if (group < groups) find_largest<TRANSB>(stored_b, (group - groups_a) * ROWS, largest + i * ROWS);
            }
            __syncthreads();
            const unsigned group = first + self / ROWS * gridDim.x;
            // The largest element has the exponent 14 then, or less where 2^127 does not bring it there: it is subnormal
            // or nearly so, and multiples of 2^-149 become multiples of 2^-22, of which fp16 loses none.
            if (self < BATCH * ROWS && group < groups)
                of_a[group * ROWS + self % ROWS] = power(min(14 - exponent(__uint_as_float(largest[self])), 127));
        }
        grid_sync(counter);
    }

    __device__ void row(unsigned m, Neighbours& v) const
    {
        const float s = of_a[m];
        times(v, make_float4(s, s, s, s), make_float4(s, s, s, s));
    }
    __device__ void columns(unsigned n, Neighbours& v) const
    {
        times(v, *(const float4*)(of_b + n), *(const float4*)(of_b + n + 4));
    }
    static __device__ void times(Neighbours& v, float4 low, float4 high)
    {
        v.low = make_float4(v.low.x * low.x, v.low.y * low.y, v.low.z * low.z, v.low.w * low.w);
        v.high = make_float4(v.high.x * high.x, v.high.y * high.y, v.high.z * high.z, v.high.w * high.w);
    }

    // Divide the sums of a thread by the scales of their rows and columns, which begin at `row` and `col`. That takes two
    // factors: their product may be 2^226. A sum is at least 2^-48, or 0, so the first of them loses no bit that matters.
    template <int HEIGHT, int COUNT>
    __device__ void undo(float (&sum)[HEIGHT][COUNT], unsigned row, unsigned col) const
    {
        #pragma unroll
        for (int pass = 0; pass < HEIGHT; ++pass)
            #pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int n = -exponent(of_a[row + 64 * pass + i / 2 % 2 * 8]) - exponent(of_b[col + i / 4 * 8 + i % 2]);
                sum[pass][i] *= power(n >> 1);
                sum[pass][i] *= power(n - (n >> 1));
            }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
                       matmul(const float* A, const float* B, float* C, int M, int N, int K,
                              int lda, int ldb, int ldc, float alpha, float beta EPILOGUE_PARAMETER, unsigned* workspace)
{
    multiply_panels<Scaled>(A, B, C, M, N, K, lda, ldb, ldc, alpha, beta, workspace, MAKE_EPILOGUE(M, N, ldc));
}
