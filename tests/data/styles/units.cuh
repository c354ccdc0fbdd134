// What kernels for Hopper have of their own beside hopper.cuh: boxes, products of 64 x 16, clusters, fragments
#include "hopper.cuh"
#define DEV static __device__ __forceinline__
typedef unsigned u32;
typedef unsigned short u16;
DEV void box2(void* to, const Map* m, int x, int y, u64* b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               :: "r"(at(to)), "l"(m), "r"(at(b)), "r"(x), "r"(y) : "memory"); }
DEV void box2_all(void* to, const Map* m, int x, int y, u64* b, u16 mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%3, %4}], [%2], %5;"
               :: "r"(at(to)), "l"(m), "r"(at(b)), "r"(x), "r"(y), "h"(mask) : "memory"); }
DEV void column(void* to, const Map* m, int c, int w, int h, int n, int s, int r, u64* b) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" :: "r"(at(to)), "l"(m), "r"(at(b)), "r"(c), "r"(w),
               "r"(h), "r"(n), "h"((u16)s), "h"((u16)r) : "memory"); }
DEV void store2(const Map* m, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
               :: "l"(m), "r"(at(from)), "r"(x), "r"(y) : "memory"); }
DEV void add_bulk(float* to, const void* from, int n) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               :: "l"(to), "r"(at(from)), "r"(n) : "memory"); }
DEV void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEV void read_but() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory"); }
DEV void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEV void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
// A descriptor: bytes between eights of rows, and the code of the swizzle (1: 128 bytes, 2: 64, 3: 32)
DEV u64 desc(const void* p, int stride, int swizzle, int lead = 16) {
  return (u64)((at(p) & 0x3ffff) >> 4) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)swizzle << 62; }
#define EIGHT "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define OUT8(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define MMA(NAME, FORM, TAIL) \
  DEV void NAME(float (&d)[8], u64 a, u64 b, int more) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned." FORM " " EIGHT \
                 ", %8, %9, p, 1, 1" TAIL "; }" : OUT8(d) : "l"(a), "l"(b), "r"(more)); }
MMA(mma, "m64n16k16.f32.bf16.bf16", ", 0, 0")
MMA(mma_across, "m64n16k16.f32.bf16.bf16", ", 0, 1")
MMA(mma_e4m3, "m64n16k32.f32.e4m3.e4m3", "")
DEV void mma_from(float (&d)[8], const u32 (&a)[4], u64 b, int more) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 " EIGHT
               ", {%8, %9, %10, %11}, %12, p, 1, 1, 0; }"
               : OUT8(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more)); }
DEV void mma_sparse(float (&d)[8], u64 a, u64 b, u32 e, int more) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %11, 0; wgmma.mma_async.sp.sync.aligned.m64n16k32.f32.f16.f16 " EIGHT
               ", %8, %9, %10, 0, p, 1, 1, 0, 0; }" : OUT8(d) : "l"(a), "l"(b), "r"(e), "r"(more)); }
// Where the j-th of a thread's eight results lies
DEV int row_of(int t, int j) { return t / 32 * 16 + t % 32 / 4 + j / 2 % 2 * 8; }
DEV int col_of(int t, int j) { return j / 4 * 8 + t % 4 * 2 + j % 2; }
DEV void named(int id, int n) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(n) : "memory"); }
DEV void named_arrive(int id, int n) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(n) : "memory"); }
DEV u32 pair(float low, float high) {
  u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
DEV float wide(u16 x) { return __uint_as_float((u32)x << 16); }
DEV void put_far(u32 to, float v) { asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(to), "f"(v) : "memory"); }
DEV float get_far(u32 from) {
  float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory"); return v; }
DEV void wait_cluster(u64* b, int parity) {
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;"
               " @!p bra again; }" :: "r"(at(b)), "r"(parity) : "memory"); }
DEV int acquire(const int* p) { int v; asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
DEV void release(int* p, int v) { asm volatile("st.release.gpu.global.s32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
