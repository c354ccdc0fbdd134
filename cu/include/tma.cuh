// Boxes of matrices, copied between global and shared memory as a whole by the TMA unit (sm_90): one thread
// says which. A map, made on the host, says where the matrix is, how large, how large a box, and how its rows
// are swizzled. What is outside the matrix arrives as zeros, and is not written.
#pragma once

#include "elements.cuh"
#include "mbarrier.cuh"

struct __align__(64) TensorMap { unsigned long long opaque[16]; };

// Whether the matrix can have a map: it begins, and so do all its rows, at a multiple of 16 bytes.
template <class T>
__device__ inline bool aligned16(const T* matrix, int ld)
{
    return (unsigned long long)matrix % 16 == 0 && ld % (16 / (int)sizeof(T)) == 0;
}

// A map is read from global memory like anything else: soon, so that the first box need not wait for it.
__device__ inline void prefetch_tensormap(const TensorMap& map)
{
    asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

// The box whose first element stands in this row and column. Counts at the barrier, also for what is outside.
__device__ inline void tma_load(void* to, const TensorMap& map, int row, int column, Mbarrier* b)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 :: "r"(shared_address(to)), "l"(&map), "r"(shared_address(b)), "r"(column), "r"(row)
                 : "memory");
}

// The same for all blocks of the cluster whose bits are set in `blocks`: at the same place and barrier in each.
__device__ inline void tma_load_multicast(unsigned short blocks, void* to, const TensorMap& map, int row,
                                     int column, Mbarrier* b)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
                 :: "r"(shared_address(to)), "l"(&map), "r"(shared_address(b)), "r"(column), "r"(row),
                    "h"(blocks)
                 : "memory");
}

// Stores are closed in groups, like copies, by the thread that issues them.
__device__ inline void tma_store(const TensorMap& map, int row, int column, const void* from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 :: "l"(&map), "r"(shared_address(from)), "r"(column), "r"(row) : "memory");
}
__device__ inline void tma_store_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until the boxes have been read, so that their memory may be written again, but for the PENDING youngest
// groups.
template <int PENDING>
__device__ inline void tma_store_wait_group_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}

// What this thread has written to shared memory, TMA and tensor cores will see: they read past the threads.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// What one thread of the producers has set up before, its warp and all who wait may use after. Producers that
// go ahead do not wait: the first boxes are on their way while the block still starts.
template <int THREADS>
__device__ inline void named_barrier_arrive_or_sync(bool go_ahead)
{
    __syncwarp();
    if (go_ahead) asm volatile("barrier.cta.arrive.aligned 15, %0;" :: "n"(THREADS) : "memory");
    else asm volatile("barrier.cta.sync.aligned 15, %0;" :: "n"(THREADS) : "memory");
}

// Stands in for a box of 128-byte rows, swizzled, of a matrix that cannot have a map: HEIGHT rows of the
// matrix, of which `rows` exist, and of each `columns` elements. By WARPS warps, of which this is number
// `warp`; a lane has one word of 32 bits in each row, and BATCH rows on their way at once.
template <int HEIGHT, int WARPS, int BATCH, class T>
__device__ inline void copy_box_swizzled(void* to, const T* from, int ld, int rows, int columns, int warp)
{
    static_assert(HEIGHT % (WARPS * BATCH) == 0 && WARPS * BATCH % 8 == 0, "whole batches, alike in swizzle");
    const int lane = threadIdx.x % 32, each = 4 / sizeof(T);
    const unsigned pitch = ld;  // without a sign: half the instructions for an address
    auto place = (unsigned char*)to + warp * 128 + lane % 4 * 4;
    from += warp * (unsigned long long)pitch + lane * each;
    columns -= lane * each;
    rows -= warp;
    #pragma unroll 1
    for (int batch = 0; batch < HEIGHT; batch += WARPS * BATCH) {
        T word[BATCH][each];  // as they are: rounding at once would wait for each
        #pragma unroll
        for (int e = 0; e < each; ++e) {
            const int there = e < columns ? rows : 0;
            #pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                word[i][e] = T();
                if (i * WARPS < there) word[i][e] = from[i * WARPS * (unsigned long long)pitch + e];
            }
        }
        from += WARPS * BATCH * (unsigned long long)pitch;
        rows -= WARPS * BATCH;
        #pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int unit = lane / 4 ^ (warp + i * WARPS) % 8;
            *(unsigned*)(place + i * WARPS * 128 + unit * 16) =
                each == 1 ? operand_bits(word[i][0]) : operand_bits(word[i][0]) | operand_bits(word[i][each - 1]) << 16;
        }
        place += WARPS * BATCH * 128;
    }
}
