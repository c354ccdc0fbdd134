// An operand with k along its rows, multiplied as it lies (rung 20: an A, or a B that is stored transposed). Its tile
// need not be transposed: a thread reads four k of a row of A, or of a column of B, at once, 16 bytes, where it would
// read four columns of a k. So TMA can load the tile, swizzled, and eight lanes with eight lines side by side read it
// without a bank conflict.
#pragma once

#include "tma.cuh"

// A tile of SIDE rows of A or columns of op(B), a line each, of TILE_K floats. As TMA's swizzle has it, 16-byte unit u of
// a line lies at u ^ lines_swizzle<TILE_K>(line).
template <int TILE_K>
__device__ inline int lines_swizzle(int line)
{
    static_assert(TILE_K == 32 || TILE_K == 16, "a swizzle of 128 or 64 bytes");
    return line / (32 / TILE_K) % (TILE_K / 4);
}

// The same as Fp32Tile, for such a tile.
template <int SIDE, int TILE_K, int THREADS, class Map>
struct Fp32Lines {
    static constexpr int PITCH = 0, COPIES = SIDE / (THREADS / 8);  // lines of which a thread copies every 8th float
    typedef float Memory[SIDE][TILE_K];

    const Map& map;
    const float* matrix;
    unsigned first;  // line
    int last, ld;    // the last one that exists, counted from `first`
    bool mapped, pairs;
    const float* from;  // where this thread's part of the next stage begins

    __device__ Fp32Lines(const Map& map, const float* matrix, unsigned first, int count, int ld)
        : map(map), matrix(matrix), first(first), last(count - 1 - first), ld(ld),
          mapped(exists(map) && aligned16(matrix, ld)), pairs(aligned8(matrix, ld))
    {
    }

    // Called by one thread: ask for the tile from k on. What is past the end of k, or of the lines, is zeros.
    __device__ void ask(Memory& to, int k, Mbarrier* full) const
    {
        mbarrier_expect_tx(full, sizeof to);
        tma_load(to, map, first, k, full);
    }

    __device__ bool addresses_fit() const { return mapped || ld <= 0x7fffffff / SIDE; }
    __device__ int whole(int end, int) const { return end; }
    __device__ void begin(int lane, int k) { from = matrix + (long long)first * ld + k; }

    static __device__ float* place(Memory& to, int line, int k)
    {
        return &to[line][(k / 4 ^ lines_swizzle<TILE_K>(line)) * 4 + k % 4];
    }

    // Copy the tile of a whole stage, unless TMA does, and go on to the next one. Lines past the last one repeat one.
    __device__ void copy(Memory& to, int lane)
    {
        if (!mapped) {
            if (pairs) copy_lines<2>(to, lane);
            else copy_lines<1>(to, lane);
        }
        from += TILE_K;
    }

    // Eight lanes copy a line, and each one float or two side by side.
    template <int FLOATS>
    __device__ void copy_lines(Memory& to, int lane) const
    {
        const float* at = from + min(lane / 8, last) * ld + lane % 8 * FLOATS;
        #pragma unroll 4
        for (int i = 0; i < COPIES; ++i) {
            const int line = lane / 8 + i * (THREADS / 8);
            #pragma unroll
            for (int k = 0; k < TILE_K; k += 8 * FLOATS)
                cp_async_floats<FLOATS>(place(to, line, lane % 8 * FLOATS + k), at + k);
            if (line + THREADS / 8 <= last) at += THREADS / 8 * (long long)ld;  // else once more the same one
        }
    }

    // Copy the tile from k on, of which `left` k exist, unless TMA does.
    __device__ void copy_tested(Memory& to, int lane, int k, int left) const
    {
        if (!mapped)
            #pragma unroll 1
            for (int i = 0; i < COPIES; ++i) {
                const int line = lane / 8 + i * (THREADS / 8);
                const float* at = matrix + (long long)(first + min(line, last)) * ld + k;
                for (int j = lane % 8; j < TILE_K; j += 8) cp_async4(place(to, line, j), at + j, j < left);
            }
    }
};

// Of a row of sums a thread has the columns that lie eight apart, from lane / 8 * 2 + lane % 2 on. Exchange them among the
// eight lanes of the row, so that it has four side by side, and four more 32 columns on, from 4 * lines_quad(lane) on.
__device__ inline int lines_quad(int lane) { return lane / 8 % 2 * 4 + lane % 2 * 2 + lane / 16; }

template <int WIDE>
__device__ inline void lines_to_quads(float (&sum)[WIDE])
{
    static_assert(WIDE == 8, "64 columns of eight lanes");
    const auto exchange = [](float& low, float& high, int lane_bit) {  // columns with the bit go to the lane with it
        const bool upper = threadIdx.x & lane_bit;
        const float got = __shfl_xor_sync(~0u, upper ? low : high, lane_bit);
        (upper ? low : high) = got;
    };
    // Columns are 8 * j + lane_col: bit 1 of j and bit 1 of lane_col (8 of the lane) change places, and their bits 0.
    exchange(sum[0], sum[2], 8), exchange(sum[1], sum[3], 8), exchange(sum[4], sum[6], 8), exchange(sum[5], sum[7], 8);
    exchange(sum[0], sum[1], 1), exchange(sum[2], sum[3], 1), exchange(sum[4], sum[5], 1), exchange(sum[6], sum[7], 1);
}
