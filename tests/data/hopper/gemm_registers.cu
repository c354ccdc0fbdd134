// Product of A, by ldmatrix from a box swizzled in 64 bytes, and B as it lies; three stages

#include "hopper.cuh"

DEV void mma_rs(float (&d)[16], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                int s) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, "
        "0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(s));
}
extern "C" __global__ void __launch_bounds__(160) k(const __grid_constant__ CUtensorMap ta,
                                                    const __grid_constant__ CUtensorMap tb,
                                                    float* C, int K) {
    __shared__ __align__(1024) uint16_t sA[3][64 * 32];  // swizzle 64: rows of 64 bytes
    __shared__ __align__(1024) uint16_t sB[3][32 * 32];  // k rows of 32 columns, 64 bytes
    __shared__ uint64_t full[3], empty[3];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3; ++i) {
            Barrier::init(&full[i], 1);
            Barrier::init(&empty[i], 4);
        }
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (warp == 4) {
        if (elect_one()) {
            asm volatile("prefetch.tensormap [%0];" ::"l"(&ta));
            asm volatile("prefetch.tensormap [%0];" ::"l"(&tb));
            int stage = 0;
            uint32_t phase = 1;
            for (int k0 = 0; k0 < K; k0 += 32) {
                while (!Barrier::test(&empty[stage], phase)) __nanosleep(20);
                Barrier::arrive_tx(&full[stage], 64 * 32 * 2 + 32 * 32 * 2);
                tma_load_2d(&ta, &full[stage], sA[stage], k0, blockIdx.y * 64);
                tma_load_2d(&tb, &full[stage], sB[stage], blockIdx.x * 32, k0);
                if (++stage == 3) {
                    stage = 0;
                    phase ^= 1;
                }
            }
        }
        return;
    }
    float d[16] = {};
    int stage = 0;
    uint32_t phase = 0;
    for (int k0 = 0; k0 < K; k0 += 32) {
        Barrier::wait(&full[stage], phase);
        uint32_t a[2][4];
        for (int kk = 0; kk < 2; ++kk) {
            int row = warp * 16 + lane % 16, chunk = (kk * 2 + lane / 16) ^ (row / 2 % 4);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[kk][0]), "=r"(a[kk][1]), "=r"(a[kk][2]), "=r"(a[kk][3])
                         : "r"(smem_u32(&sA[stage][row * 32 + chunk * 8])));
        }
        wg_arrive();
        mma_rs(d, a[0][0], a[0][1], a[0][2], a[0][3], desc<1, 512, 2>(&sB[stage][0]), 1);
        mma_rs(d, a[1][0], a[1][1], a[1][2], a[1][3], desc<1, 512, 2>(&sB[stage][16 * 32]), 1);
        wg_commit();
        wg_wait<0>();
        if (lane == 0) Barrier::arrive(&empty[stage]);
        if (++stage == 3) {
            stage = 0;
            phase ^= 1;
        }
    }
    float* c = C + (blockIdx.y * 64 + warp * 16 + lane / 4) * gridDim.x * 32 + blockIdx.x * 32 +
               lane % 4 * 2;
    for (int j = 0; j < 4; ++j)
        for (int i = 0; i < 4; ++i) c[i / 2 * 8 * gridDim.x * 32 + 8 * j + i % 2] = d[4 * j + i];
}
