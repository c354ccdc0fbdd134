// What kernels of strangers bring along: their wrappers of Hopper's instructions
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned short uint16_t;
typedef unsigned char uint8_t;
struct alignas(64) CUtensorMap {
    uint64_t opaque[16];
};
#define DEV static __device__ __forceinline__
DEV uint32_t smem_u32(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
DEV uint32_t elect_one() {
    uint32_t pred = 0;
    asm volatile(
        "{\n.reg .b32 %%rx;\n.reg .pred %%px;\n elect.sync %%rx|%%px, %1;\n@%%px mov.s32 %0, "
        "1;\n}\n"
        : "+r"(pred)
        : "r"(0xFFFFFFFF));
    return pred;
}
struct Barrier {
    uint64_t storage;
    DEV void init(uint64_t* b, uint32_t n) {
        asm volatile("mbarrier.init.shared::cta.b64 [%1], %0; \n" ::"r"(n), "r"(smem_u32(b)));
    }
    DEV void wait(uint64_t* b, uint32_t phase) {
        asm volatile(
            "{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1, "
            "%2;\n@P1 bra DONE;\nbra LAB_WAIT;\nDONE:\n}" ::"r"(smem_u32(b)),
            "r"(phase), "r"(0x989680));
    }
    DEV bool test(uint64_t* b, uint32_t phase) {
        uint32_t ok;
        asm volatile(
            "{\n.reg .pred P1;\nmbarrier.test_wait.parity.shared::cta.b64 P1, [%1], %2;\nselp.b32 "
            "%0, 1, 0, P1;\n}"
            : "=r"(ok)
            : "r"(smem_u32(b)), "r"(phase));
        return ok;
    }
    DEV void arrive(uint64_t* b) {
        asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(
            smem_u32(b)));
    }
    DEV void arrive_tx(uint64_t* b, uint32_t n) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], %0; \n" ::"r"(n),
                     "r"(smem_u32(b)));
    }
    DEV void arrive_remote(uint64_t* b, uint32_t cta, uint32_t pred = 1) {
        asm volatile(
            "{\n.reg .pred p;\n.reg .b32 remAddr32;\nsetp.eq.u32 p, %2, 1;\n@p "
            "mapa.shared::cluster.u32 remAddr32, %0, %1;\n@p mbarrier.arrive.shared::cluster.b64 "
            "_, [remAddr32];\n}" ::"r"(smem_u32(b)),
            "r"(cta), "r"(pred));
    }
};
DEV void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster; \n" ::); }
DEV void fence_view_async_shared() {
    asm volatile("fence.proxy.async.shared::cta; \n" ::: "memory");
}
DEV void tma_load_2d(const CUtensorMap* d, uint64_t* b, void* s, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%3, %4}], [%2];" ::"r"(smem_u32(s)),
        "l"((uint64_t)d), "r"(smem_u32(b)), "r"(x), "r"(y)
        : "memory");
}
DEV void tma_load_2d_mc(const CUtensorMap* d, uint64_t* b, uint16_t mask, void* s, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster.L2::cache_hint [%0], [%1, {%4, %5}], [%2], %3, %6;" ::"r"(smem_u32(s)),
        "l"((uint64_t)d), "r"(smem_u32(b)), "h"(mask), "r"(x), "r"(y), "l"(0x1000000000000000ull)
        : "memory");
}
DEV void tma_store_2d(const CUtensorMap* d, void const* s, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
            (uint64_t)d),
        "r"(smem_u32(s)), "r"(x), "r"(y)
        : "memory");
}
DEV void tma_commit() { asm volatile("cp.async.bulk.commit_group;"); }
template <int N>
DEV void tma_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
DEV void wg_arrive() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
DEV void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int N>
DEV void wg_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}
DEV uint64_t enc(uint64_t x) { return (x & 0x3FFFF) >> 4; }
template <int LBO, int SBO, int SWZ>
DEV uint64_t desc(const void* p) {
    uint64_t d = 0;
    d |= enc(smem_u32(p));
    d |= enc(LBO) << 16;
    d |= enc(SBO) << 32;
    d |= (uint64_t)SWZ << 62;
    return d;
}
DEV uint32_t cluster_ctarank() {
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
DEV void cl_arrive() { asm volatile("barrier.cluster.arrive.aligned;\n" ::); }
DEV void cl_wait() { asm volatile("barrier.cluster.wait.aligned;\n" ::); }
DEV float lo(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }
DEV uint32_t pack_bf16(float a, float b) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
DEV uint32_t pack_f16(float a, float b) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
// A product of 64 x 64 outputs and k of 16, both operands in shared memory
#define PRODUCT_64X64(NAME, TYPES) \
    DEV void NAME(float (&d)[32], uint64_t a, uint64_t b, int s) { \
        asm volatile( \
            "{\n.reg .pred p;\nsetp.ne.b32 p, %34, " \
            "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " {%0, %1, %2, %3, %4, %5, %6, %7, " \
            "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
            "%26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}\n" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), \
              "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), \
              "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
              "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
              "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) \
            : "l"(a), "l"(b), "r"(s)); \
    }
