// What the kernels of this folder share: Hopper's instructions, and what is built of them
#include "hopper.cuh"

#define DEV static __device__ __forceinline__
typedef unsigned u32; typedef unsigned short u16;
template <int ID> DEV void named_sync(int n) { asm volatile("bar.sync %0, %1;" :: "n"(ID), "r"(n) : "memory"); }
template <int ID> DEV void named_arrive(int n) { asm volatile("bar.arrive %0, %1;" :: "n"(ID), "r"(n) : "memory"); }
DEV bool elect() {
  u32 p;
  asm volatile("{ .reg .pred q; elect.sync _|q, 0xffffffff; selp.u32 %0, 1, 0, q; }" : "=r"(p));
  return p; }

DEV void wait_cluster(u64* b, int parity) {
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra L; }"
               :: "r"(at(b)), "r"(parity) : "memory"); }
DEV void arrive_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEV void put(unsigned to, float v) { asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(to), "f"(v) : "memory"); }
DEV float get(unsigned from) {
  float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory"); return v; }

DEV void box_load(void* to, const Map* m, int x, int y, u64* b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    " [%0], [%1, {%2, %3}], [%4];" :: "r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)) : "memory"); }
DEV void box_store(const Map* m, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
    :: "l"(m), "r"(x), "r"(y), "r"(at(from)) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEV u64 desc128(const void* p) { return (u64)(at(p) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
DEV void mma16(float (&d)[8], u64 a, u64 b, int more) {      // 64 x 16 x 16
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1, 0, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
    : "l"(a), "l"(b), "r"(more)); }
DEV void mma16r(float (&d)[8], const u32 (&a)[4], u64 b, int more) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %13, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more)); }
DEV void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEV void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
DEV u32 pack(float a, float b) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a)); return r; }
