// A tile of C of 16-bit elements on its way to memory where rows begin anywhere: each row lies in shared memory as its
// sectors lie in memory, so that 16 bytes are read and stored at once. Rung 37 uses it where there is hardly more to do
// than to store. Include it after small_tiles.cuh.
#pragma once

#define SECTOR 16  // elements

// Rows have room for a sector more than the tile, and a unit more keeps the banks of eight rows apart.
struct PackedRows {
    unsigned short at[BM][BN + SECTOR + UNIT];

    // Return how many elements of the sector in which a row begins, at c, lie before it.
    static __device__ int before(const void* c) { return (unsigned long long)c / 2 % SECTOR; }

    // Put two neighbours into row m, which begins at c, the first at column n, which is even. Where `before` is odd, the row
    // lies one element further left: words stay words.
    __device__ void put(int m, int n, const void* c, unsigned word) { *(unsigned*)&at[m][before(c) / 2 * 2 + n] = word; }

    // Store the tile, by all THREADS. C is at its corner; `rows` rows and `columns` columns exist there. Its sectors are those
    // from the first one that begins in it to that in the next tile; if it is the `first`, that before it, too.
    template <class T>
    __device__ void store(T* C, int ldc, int rows, int columns, bool first) const
    {
        constexpr int LANES = BN / UNIT;  // of a row
        const int unit = threadIdx.x % LANES * UNIT;
        int m = threadIdx.x / LANES;
        T* c = C + (long long)m * ldc;
        #pragma unroll 2
        for (; m < min(rows, BM); m += THREADS / LANES, c += THREADS / LANES * (long long)ldc) {
            const int skipped = before(c), next = skipped ? SECTOR : 0;
            const int begin = first ? skipped : next, end = min(skipped + columns, BN - OVERLAP + next);
            T* to = c - skipped + unit;
            const bool odd = skipped % 2;
            if (unit >= begin && unit + UNIT <= end) {
                const uint4 v = *(const uint4*)&at[m][unit];
                const unsigned left = odd ? *(const unsigned*)&at[m][unit - 2] : 0, by = odd * 16;
                *(uint4*)to = make_uint4(__funnelshift_l(left, v.x, by), __funnelshift_l(v.x, v.y, by),
                                         __funnelshift_l(v.y, v.z, by), __funnelshift_l(v.z, v.w, by));
            } else if (unit + UNIT > begin && unit < end) {
                #pragma unroll
                for (int e = 0; e < UNIT; ++e)
                    if (unit + e >= begin && unit + e < end) to[e].bits = at[m][unit + e - odd];
            }
        }
    }
};
