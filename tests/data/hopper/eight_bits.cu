// Product of e4m3 and e5m2 with a scale for each, operands without swizzle

#include "hopper.cuh"

DEV void mma8(float (&d)[8], uint64_t a, uint64_t b, int s) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, "
        "0;\nwgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e5m2 {%0, %1, %2, %3, %4, %5, %6, "
        "%7}, %8, %9, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "l"(a), "l"(b), "r"(s));
}
extern "C" __global__ void k(const uint8_t* a, const uint8_t* b, float* c, float sa, float sb) {
    __shared__ __align__(128) uint8_t sA[64 * 32], sB[16 * 32];
    const int t = threadIdx.x;
    // core matrices of 8 rows x 16 bytes, k first
    for (int i = t; i < 64 * 32 / 4; i += 128) {
        int r = i / 8, w = i % 8;
        *(uint32_t*)(sA + r / 8 * 256 + w / 4 * 128 + r % 8 * 16 + w % 4 * 4) =
            ((const uint32_t*)a)[i];
    }
    for (int i = t; i < 16 * 32 / 4; i += 128) {
        int r = i / 8, w = i % 8;
        *(uint32_t*)(sB + r / 8 * 256 + w / 4 * 128 + r % 8 * 16 + w % 4 * 4) =
            ((const uint32_t*)b)[i];
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    float d[8];
    wg_arrive();
    mma8(d, desc<128, 256, 0>(sA), desc<128, 256, 0>(sB), 0);
    wg_commit();
    wg_wait<0>();
    for (int i = 0; i < 8; ++i)
        c[(t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8) * 16 + i / 4 * 8 + t % 4 * 2 + i % 2] =
            d[i] * sa * sb;
}
