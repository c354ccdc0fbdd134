// Sums of the rows of each expert, by tensor maps that the kernel makes of one that it is given

#include "hopper.cuh"

DEV void of_expert(uint64_t* map, const float* rows, int count) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(
                     smem_u32(map)),
                 "l"(rows)
                 : "memory");
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(
                     smem_u32(map)),
                 "r"(count)
                 : "memory");
}
extern "C" __global__ void k(const __grid_constant__ CUtensorMap given, const float* x, const int* first,
                             CUtensorMap* maps, float* out, int experts) {
    __shared__ __align__(128) uint64_t map[16];
    __shared__ __align__(128) float tile[16 * 32];
    __shared__ __align__(8) uint64_t full;
    const int t = threadIdx.x;
    CUtensorMap* mine = maps + blockIdx.x;
    if (t == 0) {
        Barrier::init(&full, 1);
        fence_barrier_init();
    }
    __syncthreads();
    int phase = 0;
    for (int e = blockIdx.x; e < experts; e += gridDim.x) {
        const int count = first[e + 1] - first[e];
        if (t < 32) {
            if (t < 16) map[t] = ((const uint64_t*)&given)[t];
            __syncwarp();
            if (t == 0) of_expert(map, x + first[e] * 32, count);
            __syncwarp();
            asm volatile(
                "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
                "[%0], [%1], 128;" ::"l"(mine),
                "r"(smem_u32(map))
                : "memory");
        }
        __syncthreads();
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(mine) : "memory");
        float sum = 0;
        for (int row = 0; row < count; row += 16) {
            if (t == 0) {
                Barrier::arrive_tx(&full, sizeof tile);
                tma_load_2d(mine, &full, tile, 0, row);
            }
            Barrier::wait(&full, phase);
            phase ^= 1;
            for (int r = t / 32; r < 16; r += 2) sum += tile[r * 32 + t % 32];  // rows past the last are zeros
            __syncthreads();
        }
        atomicAdd(&out[e * 32 + t % 32], sum);
    }
}
