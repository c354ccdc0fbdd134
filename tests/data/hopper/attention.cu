// Flash attention: Q K^T by wgmma, softmax in registers, and P V with P from registers

#include "hopper.cuh"

PRODUCT_64X64(qk, "f16.f16")
DEV void pv(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int s) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, "
        "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
        "%26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(s));
}
extern "C" __global__ void __launch_bounds__(160) k(const __grid_constant__ CUtensorMap tq,
                                                    const __grid_constant__ CUtensorMap tk,
                                                    const __grid_constant__ CUtensorMap tv,
                                                    float* O, int T, float scale) {
    __shared__ __align__(1024) uint16_t sq[4096];
    __shared__ __align__(1024) uint16_t sk[1][4096];
    __shared__ __align__(1024) uint16_t sv[1][4096];
    __shared__ uint64_t qf, kf, ke, vf, ve;
    if (threadIdx.x == 0) {
        Barrier::init(&qf, 1);
        Barrier::init(&kf, 1);
        Barrier::init(&vf, 1);
        Barrier::init(&ke, 128);
        Barrier::init(&ve, 128);
        fence_barrier_init();
        fence_view_async_shared();
    }
    __syncthreads();
    int q0 = blockIdx.x * 64, bh = blockIdx.y;
    auto load3 = [](const CUtensorMap* m, uint64_t* b, void* s, int y, int z) {
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
            "[%1, {%3, %4, %5}], [%2];" ::"r"(smem_u32(s)),
            "l"(m), "r"(smem_u32(b)), "r"(0), "r"(y), "r"(z)
            : "memory");
    };
    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128) {
            Barrier::arrive_tx(&qf, 8192);
            load3(&tq, &qf, sq, q0, bh);
            for (int j = 0, p = 1; j < T; j += 64, p ^= 1) {
                Barrier::wait(&ke, p);
                Barrier::arrive_tx(&kf, 8192);
                load3(&tk, &kf, sk[0], j, bh);
                Barrier::wait(&ve, p);
                Barrier::arrive_tx(&vf, 8192);
                load3(&tv, &vf, sv[0], j, bh);
            }
        }
        return;
    }
    const int t = threadIdx.x;
    float o[32];
    for (int i = 0; i < 32; ++i) o[i] = 0;
    float m[2] = {-1e30f, -1e30f}, l[2] = {0, 0};
    Barrier::wait(&qf, 0);
    for (int j = 0, p = 0; j < T; j += 64, p ^= 1) {
        float s[32];
        Barrier::wait(&kf, p);
        wg_arrive();
        for (int kk = 0; kk < 4; ++kk)
            qk(s, desc<1, 1024, 1>(sq + kk * 16), desc<1, 1024, 1>(sk[0] + kk * 16), kk > 0);
        wg_commit();
        wg_wait<0>();
        Barrier::arrive(&ke);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float best = m[h];
            for (int i = 0; i < 8; ++i)
                for (int e = 0; e < 2; ++e) {
                    float& x = s[4 * i + 2 * h + e];
                    x = j + 8 * i + t % 4 * 2 + e < T ? x * scale : -1e30f;
                    best = fmaxf(best, x);
                }
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
            float c = exp2f(m[h] - best), sum = 0;
            m[h] = best;
            for (int i = 0; i < 8; ++i)
                for (int e = 0; e < 2; ++e) {
                    float& x = s[4 * i + 2 * h + e];
                    x = exp2f(x - best);
                    sum += x;
                    o[4 * i + 2 * h + e] *= c;
                }
            l[h] = l[h] * c + sum;
        }
        uint32_t P[4][4];
        for (int kk = 0; kk < 4; ++kk)
            for (int i = 0; i < 4; ++i)
                P[kk][i] = pack_f16(s[8 * kk + 2 * i], s[8 * kk + 2 * i + 1]);
        Barrier::wait(&vf, p);
        wg_arrive();
        for (int kk = 0; kk < 4; ++kk)
            pv(o, P[kk][0], P[kk][1], P[kk][2], P[kk][3], desc<1, 1024, 1>(sv[0] + kk * 1024), 1);
        wg_commit();
        wg_wait<0>();
        Barrier::arrive(&ve);
    }
    for (int h = 0; h < 2; ++h) {
        l[h] += __shfl_xor_sync(~0u, l[h], 1);
        l[h] += __shfl_xor_sync(~0u, l[h], 2);
    }
    for (int i = 0; i < 8; ++i)
        for (int e = 0; e < 4; ++e) {
            int r = q0 + t / 32 * 16 + t % 32 / 4 + e / 2 * 8;
            if (r < T) O[(bh * T + r) * 64 + 8 * i + t % 4 * 2 + e % 2] = o[4 * i + e] / l[e / 2];
        }
}
