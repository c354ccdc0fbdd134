// Persistent product: two warpgroups take turns at wgmma, while the other stores its tile

#include "hopper.cuh"

PRODUCT_64X64(mma64, "bf16.bf16")
extern "C" __global__ void __launch_bounds__(384, 1) k(const __grid_constant__ CUtensorMap ta,
                                                       const __grid_constant__ CUtensorMap tb,
                                                       const __grid_constant__ CUtensorMap tc,
                                                       int* counter, int tiles_n, int tiles,
                                                       int K) {
    extern __shared__ __align__(1024) uint8_t smem[];
    constexpr int ST = 4;
    uint16_t* sA = (uint16_t*)smem;
    uint16_t* sB = sA + ST * 4096;
    uint16_t* sC = sB + ST * 4096;  // sC: 2 boxes of 64 x 64
    __shared__ __align__(8) uint64_t full[ST], empty[ST], tile_full[2], tile_empty[2];
    __shared__ int tile_of[2];
    const int wgid = threadIdx.x / 128, t = threadIdx.x % 128, warp = t / 32, lane = t % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < ST; ++i) {
            Barrier::init(full + i, 1);
            Barrier::init(empty + i, 1);
        }
        for (int i = 0; i < 2; ++i) {
            Barrier::init(tile_full + i, 1);
            Barrier::init(tile_empty + i, 128);
        }
        fence_barrier_init();
    }
    __syncthreads();
    const int steps = K / 64;
    if (wgid == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (t == 0) {
            int q = 0, p = 0;
            for (int n = 0;; ++n) {  // tile n goes to consumer n % 2
                Barrier::wait(tile_empty + n % 2, n / 2 & 1 ^ 1);
                int tile = atomicAdd(counter, 1);
                tile_of[n % 2] = tile;
                Barrier::arrive(tile_full + n % 2);
                if (tile >= tiles + 1) break;  // both consumers have to see an end
                if (tile >= tiles) continue;
                for (int s = 0; s < steps; ++s) {
                    Barrier::wait(empty + q, p ^ 1);
                    Barrier::arrive_tx(full + q, 16384);
                    tma_load_2d(&ta, full + q, sA + q * 4096, s * 64, tile / tiles_n * 64);
                    tma_load_2d(&tb, full + q, sB + q * 4096, s * 64, tile % tiles_n * 64);
                    if (++q == ST) q = 0, p ^= 1;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int me = wgid - 1;
        if (me == 1) { asm volatile("bar.arrive 2, 256;" ::: "memory"); }  // the first may begin
        int base = 0;
        for (int n = 0;; ++n) {
            Barrier::wait(tile_full + me, n & 1);
            const int tile = tile_of[me];
            Barrier::arrive(tile_empty + me);
            if (tile >= tiles) break;
            float d[32];
            asm volatile("bar.sync %0, 256;" ::"r"(2 + me) : "memory");  // my turn
            for (int s = 0; s < steps; ++s) {
                const int at = (2 * n + me) * steps + s, q = at % ST, p = at / ST & 1;
                Barrier::wait(full + q, p);
                wg_arrive();
                for (int kk = 0; kk < 4; ++kk)
                    mma64(d, desc<1, 1024, 1>(sA + q * 4096 + kk * 16),
                          desc<1, 1024, 1>(sB + q * 4096 + kk * 16), s + kk);
                wg_commit();
                wg_wait<0>();
                if (t == 0) Barrier::arrive(empty + q);
            }
            asm volatile("bar.arrive %0, 256;" ::"r"(3 - me) : "memory");  // the other's turn
            uint16_t* box = sC + me * 4096;
            if (t == 0) tma_wait<0>();
            asm volatile("bar.sync %0, 128;" ::"r"(4 + me) : "memory");
            for (int j = 0; j < 4; ++j) {
                uint32_t x[4] = {
                    pack_bf16(d[8 * j], d[8 * j + 1]), pack_bf16(d[8 * j + 2], d[8 * j + 3]),
                    pack_bf16(d[8 * j + 4], d[8 * j + 5]), pack_bf16(d[8 * j + 6], d[8 * j + 7])};
                int row = warp * 16 + lane % 16, chunk = (2 * j + lane / 16) ^ (row % 8);
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                        smem_u32(box + row * 64 + chunk * 8)),
                    "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                    : "memory");
            }
            fence_view_async_shared();
            asm volatile("bar.sync %0, 128;" ::"r"(4 + me) : "memory");
            if (t == 0) {
                tma_store_2d(&tc, box, tile % tiles_n * 64, tile / tiles_n * 64);
                tma_commit();
            }
        }
        if (t == 0) tma_wait<0>();
        if (me == 0) asm volatile("bar.sync 2, 256;" ::: "memory");
    }
}
