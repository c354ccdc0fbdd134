// New data for every timed launch, and the verification of what was computed from it
//
// `fill` writes random matrices, `signs`, `project` and `residual` verify their product by Freivalds' algorithm
// (freivalds.py derives the bounds), `fence` and `stray` write and check red zones, and `drain` displaces
// what the others have left in the L2 cache. A matrix is one of several sets: tables hold its address in each,
// and blockIdx.y is the number of the set.
//
// /// kernel
// entry   = "fill"
// problem = "none"
// block   = 256
// tile    = ["1"]
// ///

#include "decode.cuh"

const u64 GAMMA = 0x9E3779B97F4A7C15;

// The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): element i of the sequence of a key is
// mix(key + (i + 1) * GAMMA).
__device__ inline u64 mix(u64 z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

__device__ inline u64 key_of(u64 key, u32 set, u32 operand) { return mix(key + (8ull * set + operand + 1) * GAMMA); }

// A normal deviate but for its tails: the sum of four uniform ones of 16 bits, with 14 more bits below them, to
// deviation 1. Integers and two roundings only, so that NumPy gives the same bits.
__device__ inline float normal(u64 key, u64 i)
{
    const u64 z = mix(key + (i + 1) * GAMMA);
    const u32 low = (u32)z, high = (u32)(z >> 32);
    const u32 sum = (low & 0xFFFF) + (low >> 16) + (high & 0xFFFF) + (high >> 16);
    const u32 fine = (low ^ high) * 0x9E3779B9u >> 18;
    return __fmul_rn(__int2float_rn((int)((sum << 14) + fine - 2147459072u)), 1.61309798e-09f);
}

__device__ inline u32 encode(u32 kind, float value)
{
    const u32 bits = __float_as_uint(value);
    if (kind == FLOAT32) return bits;
    if (kind == BFLOAT16) return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

__device__ inline u32 nan_of(u32 kind) { return kind == FLOAT32 ? 0x7FC00000 : kind == BFLOAT16 ? 0x7FC0 : 0x7E00; }

// Element i of a matrix in memory as it was filled: columns from `columns` to `ld` are NaN.
__device__ inline u32 filled(u32 kind, u64 key, u64 i, u64 column, u64 columns, float scale)
{
    return column < columns ? encode(kind, __fmul_rn(normal(key, i), scale)) : nan_of(kind);
}

extern "C" __global__ void fill(const u64* table, u64 rows, u64 columns, u64 ld, u64 base, float scale,
                                u32 operand, u32 kind, u32 count)
{
    const u32 set = blockIdx.y;
    if (set >= count) return;
    const u64 matrix = table[set], key = key_of(base, set, operand), elements = rows * ld;
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step) {
        const u32 word = filled(kind, key, i, columns == ld ? 0 : i % ld, columns, scale);
        if (kind == FLOAT32) ((u32*)matrix)[i] = word;
        else ((unsigned short*)matrix)[i] = (unsigned short)word;
    }
}

// Bit j of the words is the sign of x_j.
extern "C" __global__ void signs(u32* words, u64 count, u64 key)
{
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        words[i] = (u32)(mix(key + (i + 1) * GAMMA) >> 32);
}

__device__ inline double signed_by(const u32* words, u64 j, double value)
{
    return words[j / 32] >> j % 32 & 1 ? -value : value;
}

// What was found in one set, all zero before. `first` ones are counted down from ~0, so that the largest is first.
struct Found {
    double residuals, products, outputs, halves;  // sums over the rows, freivalds.py says of what
    u64 bad, first_bad, worst;                    // rows beyond their bound; bits of the largest residual / bound
    u64 wrong_a, first_a, wrong_b, first_b;       // elements of inputs that are no longer what was filled in
    u64 stray;                                    // elements of C's padding that are not
};

__device__ inline void note(u64* wrong, u64* first, u64 i)
{
    atomicAdd(wrong, 1ull);
    atomicMax(first, ~i);
}

// Row k of B, a warp each: y_k = sum_j b_kj x_j and q_k = mean_j b_kj^2. A B that is stored transposed has rows beyond
// the last one, which are its padding.
extern "C" __global__ void project(const u64* table, const u32* words, double* y, double* q, Found* found, u64 K,
                                   u64 N, u64 ld, u64 base, u32 kind, u32 transposed, u32 count)
{
    const u32 set = blockIdx.y, lane = threadIdx.x % 32;
    if (set >= count) return;
    const u64 matrix = table[set], key = key_of(base, set, 1), warps = (u64)gridDim.x * blockDim.x / 32;
    const u64 rows = transposed ? ld : K, columns = transposed ? N : ld;
    for (u64 k = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; k < rows; k += warps) {
        double sum = 0, squares = 0;
        for (u64 j = lane; j < columns; j += 32) {
            const u64 i = transposed ? j * ld + k : k * ld + j;
            const u32 word = word_at(kind, matrix, i);
            if (word != filled(kind, key, i, transposed ? k : j, transposed ? K : N, 1))
                note(&found[set].wrong_b, &found[set].first_b, i);
            if (j < N && k < K) {
                const double b = decode(kind, word);
                sum += signed_by(words, j, b);
                squares += b * b;
            }
        }
        sum = sum_of_warp(sum);
        squares = sum_of_warp(squares);
        if (lane == 0 && k < K) {
            y[set * K + k] = sum;
            q[set * K + k] = squares / (double)N;
        }
    }
}

// Row i of A and C, a warp each: the residual of (C - alpha A B - beta C0) x, and the bound of it. An A that is stored
// transposed has rows beyond the last one, which are its padding.
extern "C" __global__ void residual(const u64* a_table, const u64* c_table, const u32* words, const double* y,
                                    const double* q, Found* found, u64 M, u64 N, u64 K, u64 lda, u64 ldc,
                                    u64 base, double alpha, double beta, double g, double v, double tiny,
                                    double sigmas, float scale, int precision, int emin, u32 kind, u32 transposed,
                                    u32 count)
{
    const u32 set = blockIdx.y, lane = threadIdx.x % 32;
    if (set >= count) return;
    const u64 rows = transposed ? lda : M, columns_a = transposed ? K : lda;
    const u64 a = a_table[set], c = c_table[set], warps = (u64)gridDim.x * blockDim.x / 32;
    const u64 key_a = key_of(base, set, 0), key_c = key_of(base, set, 2);
    Found* out = &found[set];
    for (u64 row = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
        double product = 0, typical = 0, projected = 0;
        for (u64 k = lane; k < columns_a; k += 32) {
            const u64 i = transposed ? k * lda + row : row * lda + k;
            const u32 word = word_at(kind, a, i);
            if (word != filled(kind, key_a, i, transposed ? row : k, transposed ? M : K, 1))
                note(&out->wrong_a, &out->first_a, i);
            if (k < K && row < M) {
                const double value = decode(kind, word), yk = y[set * K + k];
                product += value * yk;
                typical += value * value * q[set * K + k];
                projected += value * value * yk * yk;
            }
        }
        if (row >= M) continue;
        double got = 0, before = 0, squares = 0, halves = 0;
        for (u64 j = lane; j < ldc; j += 32) {
            const u64 i = row * ldc + j;
            const u32 word = word_at(kind, c, i);
            if (j >= N) {
                if (word != filled(kind, key_c, i, 0, ldc, scale)) atomicAdd(&out->stray, 1ull);
                continue;
            }
            const double value = decode(kind, word);
            got += signed_by(words, j, value);
            squares += value * value;
            if (precision) {
                const double half = half_spacing(value, precision, emin);
                halves += half * half;
            }
            if (beta != 0) before += signed_by(words, j, decode(kind, filled(kind, key_c, i, 0, ldc, scale)));
        }
        product = sum_of_warp(product);
        typical = alpha * alpha * sum_of_warp(typical);
        projected = alpha * alpha * sum_of_warp(projected);
        got = sum_of_warp(got);
        before = sum_of_warp(before);
        squares = sum_of_warp(squares);
        halves = sum_of_warp(halves);
        if (lane) continue;
        const double columns = (double)N, left = got - alpha * product - beta * before;
        const double summing = sqrt(columns) * (g * sqrt(typical + squares / columns) + tiny);
        const double reading = v * sqrt((projected + columns * typical) / 3);
        const double share = fabs(left) / (sigmas * (summing + reading + sqrt(halves)));
        atomicAdd(&out->residuals, left * left);
        atomicAdd(&out->products, columns * typical);
        atomicAdd(&out->outputs, squares);
        atomicAdd(&out->halves, halves);
        if (!(share <= 1)) note(&out->bad, &out->first_bad, row);  // NaN, too
        atomicMax(&out->worst, share == share ? __double_as_longlong(share) : 0x7FF0000000000000);
    }
}

__device__ inline unsigned char zone_byte(u64 key, u64 address) { return mix(key + address * GAMMA); }

// Red zones: `zone` bytes before and behind each of `count` buffers, whose addresses and sizes the table holds.
extern "C" __global__ void fence(const u64* table, u64 zone, u64 key, u32 count)
{
    for (u32 buffer = blockIdx.x; buffer < count; buffer += gridDim.x) {
        const u64 start = table[2 * buffer], end = start + table[2 * buffer + 1];
        for (u64 i = threadIdx.x; i < zone; i += blockDim.x) {
            *(unsigned char*)(start - 1 - i) = zone_byte(key, start - 1 - i);
            *(unsigned char*)(end + i) = zone_byte(key, end + i);
        }
    }
}

// nearest[2 * b] and [2 * b + 1]: zone - d for the changed byte that lies nearest to buffer b, d bytes before its
// first or behind its last byte; 0 where all are intact.
extern "C" __global__ void stray(const u64* table, u64 zone, u64 key, u32 count, u32* nearest)
{
    for (u32 buffer = blockIdx.x; buffer < count; buffer += gridDim.x) {
        const u64 start = table[2 * buffer], end = start + table[2 * buffer + 1];
        for (u64 i = threadIdx.x; i < zone; i += blockDim.x) {
            if (*(const unsigned char*)(start - 1 - i) != zone_byte(key, start - 1 - i))
                atomicMax(&nearest[2 * buffer], (u32)(zone - i));
            if (*(const unsigned char*)(end + i) != zone_byte(key, end + i))
                atomicMax(&nearest[2 * buffer + 1], (u32)(zone - i));
        }
    }
}

// Reads `bytes` of memory, so that they take the place of whatever is in the L2 cache, written lines included.
extern "C" __global__ void drain(const uint4* memory, u64 bytes, u32* never)
{
    const u64 step = (u64)gridDim.x * blockDim.x;
    u32 seen = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < bytes / 16; i += step) {
        const uint4 word = memory[i];
        seen |= word.x ^ word.y ^ word.z ^ word.w;
    }
    if (seen == 0x5A17C0DEu) *never = seen;  // a reader that has no effect would be compiled away
}
