// TMA, the tensor memory accelerator (sm_90): one thread asks for a box of a matrix, and hardware copies it between
// global and shared memory. A tensor map, made on the host, holds the address and the shape of the matrix, the shape
// of a box, and how its rows are swizzled. What is outside the matrix arrives as zeros and is not written.
#pragma once

#include "elements.cuh"
#include "mbarrier.cuh"
#include "vector.cuh"

// A CUtensorMap, as a kernel parameter. A matrix can have one if aligned16() holds.
struct __align__(64) TensorMap { unsigned long long opaque[16]; };

// Return true in one thread of the warp, the same one each time. All threads of the warp call it, in the condition of the
// branch that uses TMA: then the compiler knows that one thread is active, and takes the operands of TMA from uniform
// registers. With a condition on threadIdx.x it writes a loop around each TMA instruction, over the operands that the
// active threads might have, and a producer takes some 280 cycles for a stage of two boxes (H200). See docs/notes/23.
__device__ inline bool elect_one()
{
    unsigned elected;
    asm volatile("{ .reg .pred p;"
                 "  elect.sync _|p, 0xffffffff;"
                 "  selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected;
}

// Load the map into its cache, so that the first box need not wait for it.
__device__ inline void prefetch_tensormap(const TensorMap& map)
{
    asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

// Load the box whose first element is at (row, column). All its bytes count at the barrier, those outside the matrix
// too.
__device__ inline void tma_load(void* to, const TensorMap& map, int row, int column, Mbarrier* b)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 :: "r"(shared_address(to)), "l"(&map), "r"(shared_address(b)), "r"(column), "r"(row)
                 : "memory");
}

// Load the box for all blocks of the cluster whose bits are set in `blocks`, to the same place and with the same
// barrier in each.
__device__ inline void tma_load_multicast(unsigned short blocks, void* to, const TensorMap& map, int row,
                                          int column, Mbarrier* b)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
                 :: "r"(shared_address(to)), "l"(&map), "r"(shared_address(b)), "r"(column), "r"(row),
                    "h"(blocks)
                 : "memory");
}

// One of the matrices that a map of three dimensions describes, one behind the other: for a batch (see batch.cuh).
struct MatrixMap {
    const TensorMap& map;
    int matrix;
    bool there;  // a map can describe matrices so far apart
};
__device__ inline bool exists(const TensorMap&) { return true; }
__device__ inline bool exists(const MatrixMap& m) { return m.there; }

__device__ inline void tma_load(void* to, const MatrixMap& from, int row, int column, Mbarrier* b)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(shared_address(to)), "l"(&from.map), "r"(shared_address(b)), "r"(column), "r"(row),
                    "r"(from.matrix)
                 : "memory");
}
__device__ inline void tma_load_multicast(unsigned short blocks, void* to, const MatrixMap& from, int row, int column,
                                          Mbarrier* b)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
                 :: "r"(shared_address(to)), "l"(&from.map), "r"(shared_address(b)), "r"(column), "r"(row),
                    "r"(from.matrix), "h"(blocks)
                 : "memory");
}
__device__ inline void tma_store(const MatrixMap& to, int row, int column, const void* from)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 :: "l"(&to.map), "r"(shared_address(from)), "r"(column), "r"(row), "r"(to.matrix) : "memory");
}

// Of COUNT blocks of a cluster that share an operand, APART ranks from one another: which of them is `rank`.
template <int COUNT, int APART>
__device__ inline int sharer(int rank) { return rank / APART % COUNT; }

// Load the box for all of them.
template <int COUNT, int APART, class Map>
__device__ inline void tma_load_shared(int rank, void* to, const Map& map, int row, int column, Mbarrier* b)
{
    constexpr int BITS = ((1 << COUNT * APART) - 1) / ((1 << APART) - 1);  // those of the blocks, from 0 on
    if constexpr (COUNT == 1) tma_load(to, map, row, column, b);
    else tma_load_multicast(BITS << rank - sharer<COUNT, APART>(rank) * APART, to, map, row, column, b);
}

// Store a box to (row, column). The same thread closes stores in groups and waits for them.
__device__ inline void tma_store(const TensorMap& map, int row, int column, const void* from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 :: "l"(&map), "r"(shared_address(from)), "r"(column), "r"(row) : "memory");
}
__device__ inline void tma_store_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Wait until all but the PENDING youngest groups have been read from shared memory, which may then be written again.
template <int PENDING>
__device__ inline void tma_store_wait_group_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}

// Make this thread's writes to shared memory visible to TMA and wgmma, which read it through the async proxy.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copy a box by threads, for a matrix that cannot have a tensor map: HEIGHT rows of BYTES (128 or 64) bytes, with the
// swizzle of as many bytes that TMA would use. Of the box, `rows` rows and `columns` columns exist; the rest becomes zero.
// WARPS warps share the work, and this is number `warp`. A lane copies one 32-bit word of a row. A warp fills a line of
// 128 bytes at once, one row or two, and has BATCH lines in flight.
template <int HEIGHT, int WARPS, int BATCH, int BYTES = 128, class T>
__device__ inline void copy_box_swizzled(void* to, const T* from, int ld, int rows, int columns, int warp)
{
    constexpr int IN_LINE = 128 / BYTES, LINES = HEIGHT / IN_LINE, LANES = 32 / IN_LINE;  // of a row
    static_assert(LINES % (WARPS * BATCH) == 0 && WARPS * BATCH % 8 == 0, "whole batches, alike in swizzle");
    const int lane = threadIdx.x % 32, each = 4 / sizeof(T), own = lane % LANES, row = warp * IN_LINE + lane / LANES;
    const unsigned pitch = ld;  // unsigned: half the instructions for an address
    auto place = (unsigned char*)to + warp * 128 + lane / LANES * BYTES + lane % 4 * 4;
    from += row * (unsigned long long)pitch + own * each;
    columns -= own * each;
    rows -= row;
    #pragma unroll 1
    for (int batch = 0; batch < LINES; batch += WARPS * BATCH) {
        T word[BATCH][each];  // rounded after all loads: to round at once would wait for each load
        #pragma unroll
        for (int e = 0; e < each; ++e) {
            const int there = e < columns ? rows : 0;
            #pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                word[i][e] = T();
                if (i * WARPS * IN_LINE < there) word[i][e] = from[i * WARPS * IN_LINE * (unsigned long long)pitch + e];
            }
        }
        from += WARPS * BATCH * IN_LINE * (unsigned long long)pitch;
        rows -= WARPS * BATCH * IN_LINE;
        #pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            // The swizzle: 16-byte unit u of row r is at u ^ r % 8, or u ^ r / 2 % 4 of four units.
            const int unit = own / 4 ^ (warp + i * WARPS) % (8 / IN_LINE);
            *(unsigned*)(place + i * WARPS * 128 + unit * 16) =
                each == 1 ? operand_bits(word[i][0])
                          : operand_bits(word[i][0]) | operand_bits(word[i][each - 1]) << 16;
        }
        place += WARPS * BATCH * 128;
    }
}
