// 3 x 3 convolution of NHWC images: a box shifted by each tap, its outside zero, times its filters

#include "hopper.cuh"

DEV void mma16(float (&d)[8], uint64_t a, uint64_t b, int s) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, "
        "0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "l"(a), "l"(b), "r"(s));
}
extern "C" __global__ void __launch_bounds__(128) k(const __grid_constant__ CUtensorMap tx,
                                                    const __grid_constant__ CUtensorMap tw,
                                                    float* y, int H, int W) {
    __shared__ __align__(256)
        uint16_t sx[2][64 * 16];  // 8 x 8 pixels of 16 channels: 32 bytes each
    __shared__ __align__(256) uint16_t sw[2][16 * 16];  // 16 filters of 16 channels
    __shared__ uint64_t bar[2];
    int t = threadIdx.x, x0 = blockIdx.x * 8, y0 = blockIdx.y * 8, n = blockIdx.z;
    if (t == 0) {
        Barrier::init(bar, 1);
        Barrier::init(bar + 1, 1);
        fence_barrier_init();
    }
    __syncthreads();
    float d[8];
    for (int tap = 0; tap < 9; ++tap) {
        int b = tap & 1;
        if (t == 0) {
            Barrier::arrive_tx(bar + b, sizeof sx[0] + sizeof sw[0]);
            asm volatile(
                "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(smem_u32(sx[b])),
                "l"(&tx), "r"(smem_u32(bar + b)), "r"(0), "r"(x0 + tap % 3 - 1),
                "r"(y0 + tap / 3 - 1), "r"(n)
                : "memory");
            asm volatile(
                "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(smem_u32(sw[b])),
                "l"(&tw), "r"(smem_u32(bar + b)), "r"(0), "r"(0), "r"(tap)
                : "memory");
        }
        Barrier::wait(bar + b, tap / 2 & 1);
        wg_arrive();
        mma16(d, desc<1, 256, 3>(sx[b]), desc<1, 256, 3>(sw[b]), tap != 0);
        wg_commit();
        wg_wait<0>();
        __syncthreads();
    }
    for (int i = 0; i < 8; ++i) {
        int p = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, f = i / 4 * 8 + t % 4 * 2 + i % 2;
        int yy = y0 + p / 8, xx = x0 + p % 8;
        if (yy < H && xx < W) y[((n * H + yy) * W + xx) * 16 + f] = d[i];
    }
}
