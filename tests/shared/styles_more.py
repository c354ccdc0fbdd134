"""Kernels of libcu++ and cooperative groups, PTX as Triton emits it, stream-K and fp8."""

from __future__ import annotations

import numpy as np

from shared.styles import (
    BOUNDS, HANG, LEFT, MISUSE, NEVER, OVERRUN, PROXY, RACE, RAW, WAR, WAW, WRONG,
    Given, Rng, add, f16, f32, i32, tensor, u32, whole,
)  # fmt: skip
from shared.styles_cores import CORES, K
from shared.styles_tma import ENTRY, HEAD

add(
    "stream-K: blocks take equal shares of all steps, parts are added in order by flags in global memory",
    source=f"""{HEAD}
{ENTRY}(const float* a, const float* b, float* c, float* parts, int* flags, int tiles, int steps, int share) {{
  // Each tile is 64 sums of `steps` slices; a block's share may begin and end inside of tiles
  __shared__ alignas(128) float sa[2][64], sb[2][64];
  __shared__ alignas(8) u64 full[2];
  int t = threadIdx.x, me = blockIdx.x, n = 0;
  if (t == 0) {{ init(&full[0], 1); init(&full[1], 1); fence_init(); }}
  __syncthreads();
  int first = me * share, end = min(first + share, tiles * steps);
  auto fetch = [&](int i) {{
    int s = (i - first) & 1;
    expect(&full[s], 512);
    load(sa[s], a + i * 64, 256, &full[s]);
    load(sb[s], b + i * 64, 256, &full[s]);
  }};
  if (t == 0 && first < end) fetch(first);
  for (int i = first; i < end;) {{
    int tile = i / steps, stop = min(end, (tile + 1) * steps);
    bool begins = i == tile * steps, finishes = stop == (tile + 1) * steps;
    float sum = 0;
    for (; i < stop; i++, n++) {{
      if (t == 0 && i + 1 < end) fetch(i + 1);
      wait(&full[n & 1], n >> 1 & 1);
      sum += sa[n & 1][t] * sb[n & 1][t];
      __syncthreads();
    }}
    if (!finishes) {{                         // leave a part for the block that finishes the tile
      parts[me * 64 + t] = sum;
      __syncthreads();
      if (t == 0) asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(flags + me) : "memory");
    }} else {{
      if (!begins) {{
        int from = tile * steps / share;
        for (int p = from; p < me; p++) {{
          if (t == 0) {{
            int seen;
            do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flags + p) : "memory");
            while (!seen);
          }}
          __syncthreads();
          sum += parts[p * 64 + t];
        }}
      }}
      c[tile * 64 + t] = sum;
    }}
  }}
}}""",
    make=lambda rng, tiles, steps, blocks: _streamed(rng, tiles, steps, blocks),
    shapes=((5, 7, 4), (1, 4, 4), (2, 3, 2)),
    grid=lambda tiles, steps, blocks: (blocks,),
    block=64,
    faults=(
        ("st.release.gpu", "st.relaxed.gpu", RACE),
        ("sum;\n      __syncthreads();\n      if", "sum;\n      if", RACE),
        ("          __syncthreads();\n          sum", "          sum", RACE),
        ("p < me; p++", "p < me - 1; p++", ""),
        ("tile * steps / share;", "tile * steps / share + 1;", ""),
        ("      __syncthreads();\n    }\n    if (!fin", "    }\n    if (!fin", ""),
        ("n >> 1 & 1", "n & 1", ""),
        ("flags + me", "flags + me + 1", ""),
        ("parts[me * 64 + t] = sum", "parts[t] = sum", ""),
        ("(i - first) & 1", "i & 1", ""),
        ("while (!seen);", "while (0);", ""),
    ),
)


def _streamed(rng: Rng, tiles: int, steps: int, blocks: int) -> Given:
    a, b = whole(rng, tiles, steps, 64), whole(rng, tiles, steps, 64)
    c, parts, flags = np.zeros((tiles, 64), f32), np.zeros((blocks, 64), f32), np.zeros(blocks + 1, i32)
    share = -(-tiles * steps // blocks)
    return [a, b, c, parts, flags, i32(tiles), i32(steps), i32(share)], [(c, (a * b).sum(1))]


add(
    "softmax of rows in PTX as Triton emits it",
    source="""
.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry k(.param .u64 .ptr .global .align 1 p0, .param .u64 .ptr .global .align 1 p1, .param .u32 p2)
.reqntid 128, 1, 1
{
  .reg .pred %p<9>;
  .reg .b32 %r<60>;
  .reg .f32 %f<60>;
  .reg .b64 %rd<9>;
$L__func_begin0:
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  ld.param.u32 %r1, [p2];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %tid.x;
  and.b32 %r4, %r3, 31;
  shr.u32 %r5, %r3, 5;
  shl.b32 %r6, %r3, 1;
  setp.lt.s32 %p1, %r6, %r1;
  mul.lo.s32 %r7, %r2, %r1;
  add.s32 %r8, %r7, %r6;
  mad.wide.s32 %rd3, %r8, 4, %rd1;
  mov.u32 %r9, 0xff800000;
  // begin inline asm
  mov.u32 %r10, %r9;
  mov.u32 %r11, %r9;
  @%p1 ld.global.v2.b32 { %r10, %r11 }, [ %rd3 + 0 ];
  // end inline asm
  mov.b32 %f1, %r10;
  mov.b32 %f2, %r11;
  max.f32 %f3, %f1, %f2;
  mov.b32 %r12, %f3;
  shfl.sync.bfly.b32 %r13, %r12, 16, 31, -1;
  mov.b32 %f4, %r13;
  max.f32 %f3, %f3, %f4;
  mov.b32 %r12, %f3;
  shfl.sync.bfly.b32 %r13, %r12, 8, 31, -1;
  mov.b32 %f4, %r13;
  max.f32 %f3, %f3, %f4;
  mov.b32 %r12, %f3;
  shfl.sync.bfly.b32 %r13, %r12, 4, 31, -1;
  mov.b32 %f4, %r13;
  max.f32 %f3, %f3, %f4;
  mov.b32 %r12, %f3;
  shfl.sync.bfly.b32 %r13, %r12, 2, 31, -1;
  mov.b32 %f4, %r13;
  max.f32 %f3, %f3, %f4;
  mov.b32 %r12, %f3;
  shfl.sync.bfly.b32 %r13, %r12, 1, 31, -1;
  mov.b32 %f4, %r13;
  max.f32 %f3, %f3, %f4;
  mov.b32 %r12, %f3;
  setp.eq.s32 %p2, %r4, 0;
  shl.b32 %r14, %r5, 2;
  mov.u32 %r15, global_smem;
  add.s32 %r16, %r15, %r14;
  @%p2 st.shared.b32 [ %r16 + 0 ], %r12;
  bar.sync 0;
  setp.lt.s32 %p3, %r3, 4;
  shl.b32 %r17, %r3, 2;
  add.s32 %r18, %r15, %r17;
  @%p3 ld.shared.b32 %r19, [ %r18 + 0 ];
  shfl.sync.bfly.b32 %r20, %r19, 2, 31, -1;
  mov.b32 %f5, %r19;
  mov.b32 %f6, %r20;
  max.f32 %f5, %f5, %f6;
  mov.b32 %r19, %f5;
  shfl.sync.bfly.b32 %r20, %r19, 1, 31, -1;
  mov.b32 %f6, %r20;
  max.f32 %f5, %f5, %f6;
  mov.b32 %r21, %f5;
  setp.eq.s32 %p4, %r3, 0;
  @%p4 st.shared.b32 [ %r18 + 0 ], %r21;
  bar.sync 0;
  ld.shared.b32 %r22, [ global_smem ];
  mov.b32 %f7, %r22;
  sub.f32 %f8, %f1, %f7;
  sub.f32 %f9, %f2, %f7;
  ex2.approx.f32 %f10, %f8;
  ex2.approx.f32 %f11, %f9;
  bar.sync 0;
  add.f32 %f12, %f10, %f11;
  mov.b32 %r23, %f12;
  shfl.sync.bfly.b32 %r24, %r23, 16, 31, -1;
  mov.b32 %f13, %r24;
  add.f32 %f12, %f12, %f13;
  mov.b32 %r23, %f12;
  shfl.sync.bfly.b32 %r24, %r23, 8, 31, -1;
  mov.b32 %f13, %r24;
  add.f32 %f12, %f12, %f13;
  mov.b32 %r23, %f12;
  shfl.sync.bfly.b32 %r24, %r23, 4, 31, -1;
  mov.b32 %f13, %r24;
  add.f32 %f12, %f12, %f13;
  mov.b32 %r23, %f12;
  shfl.sync.bfly.b32 %r24, %r23, 2, 31, -1;
  mov.b32 %f13, %r24;
  add.f32 %f12, %f12, %f13;
  mov.b32 %r23, %f12;
  shfl.sync.bfly.b32 %r24, %r23, 1, 31, -1;
  mov.b32 %f13, %r24;
  add.f32 %f12, %f12, %f13;
  mov.b32 %r23, %f12;
  @%p2 st.shared.b32 [ %r16 + 0 ], %r23;
  bar.sync 0;
  ld.shared.v4.b32 { %r25, %r26, %r27, %r28 }, [ global_smem ];
  mov.b32 %f14, %r25;
  mov.b32 %f15, %r26;
  mov.b32 %f16, %r27;
  mov.b32 %f17, %r28;
  add.f32 %f18, %f14, %f15;
  add.f32 %f19, %f16, %f17;
  add.f32 %f20, %f18, %f19;
  div.full.f32 %f21, %f10, %f20;
  div.full.f32 %f22, %f11, %f20;
  mov.b32 %r29, %f21;
  mov.b32 %r30, %f22;
  mad.wide.s32 %rd4, %r8, 4, %rd2;
  @%p1 st.global.v2.b32 [ %rd4 + 0 ], { %r29, %r30 };
  ret;
$L__func_end0:
}
""".lstrip(),
    make=lambda rng, rows, n: _soft(rng, rows, n),
    shapes=((3, 200), (1, 256), (2, 2)),
    grid=lambda rows, n: (rows,),
    block=128,
    shared=16,
    schedules=CORES,
    tolerance=1e-4,
    faults=(
        ("  bar.sync 0;\n  setp.lt.s32 %p3", "  setp.lt.s32 %p3", RAW),
        ("  bar.sync 0;\n  ld.shared.b32 %r22", "  ld.shared.b32 %r22", RAW),
        ("  bar.sync 0;\n  add.f32 %f12, %f10", "  add.f32 %f12, %f10", WAR),
        ("  bar.sync 0;\n  ld.shared.v4", "  ld.shared.v4", RAW),
        ("@%p3 ld.shared.b32 %r19", "ld.shared.b32 %r19", BOUNDS),
        ("shfl.sync.bfly.b32 %r24, %r23, 16, 31, -1", "shfl.sync.bfly.b32 %r24, %r23, 16, 31, 65535", ""),
        ("  @%p1 st.global", "  st.global", ""),
        ("@%p1 ld.global", "ld.global", ""),
        ("shl.b32 %r14, %r5, 2", "shl.b32 %r14, %r5, 1", ""),
    ),
)


def _soft(rng: Rng, rows: int, n: int) -> Given:
    x, y = rng.standard_normal((rows, n)).astype(f32), np.zeros((rows, n), f32)
    e = 2.0 ** (x - x.max(1, keepdims=True))
    return [x, y, i32(n)], [(y, e / e.sum(1, keepdims=True))]


add(
    "cuda::pipeline whose first warp produces, and the others consume",
    source=f"""#include <cuda/pipeline>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
{K}(const float* x, float* y, int tiles) {{
  constexpr auto scope = cuda::thread_scope_block;
  constexpr int S = 2, N = 64;
  __shared__ cuda::pipeline_shared_state<scope, S> state;
  __shared__ __align__(16) float stage[S][N];
  auto block = cg::this_thread_block();
  auto role = block.thread_rank() < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
  auto pipe = cuda::make_pipeline(block, &state, role);
  if (role == cuda::pipeline_role::producer) {{
    for (int i = 0; i < tiles; i++) {{
      pipe.producer_acquire();
      cuda::memcpy_async(&stage[i % S][2 * threadIdx.x], &x[i * N + 2 * threadIdx.x], cuda::aligned_size_t<8>(8), pipe);
      pipe.producer_commit();
    }}
  }} else {{
    int t = threadIdx.x - 32;
    float sum = 0;
    for (int i = 0; i < tiles; i++) {{
      pipe.consumer_wait();
      sum += stage[i % S][N - 1 - t];
      pipe.consumer_release();
    }}
    y[t] = sum;
  }}
}}""",
    make=lambda rng, tiles: _piped(rng, tiles),
    shapes=((5,), (1,)),
    grid=lambda tiles: (1,),
    block=96,
    headers=True,
    schedules=("late",),
    faults=(
        ("      pipe.producer_acquire();\n", "", ""),
        ("      pipe.consumer_wait();\n", "", RAW),
        ("      pipe.consumer_release();\n", "", HANG),
        ("      sum += stage[i % S][N - 1 - t];\n      pipe.consumer_release();\n",
         "      pipe.consumer_release();\n      sum += stage[i % S][N - 1 - t];\n", WAR),
        ("stage[i % S][2", "stage[(i + 1) % S][2", ""),
    ),
)


def _piped(rng: Rng, tiles: int) -> Given:
    x, y = whole(rng, tiles, 64), np.zeros(64, f32)
    return [x, y, i32(tiles)], [(y, x.sum(0)[::-1])]


add(
    "semaphore and latch of libcu++ between the warps of a block",
    source=f"""#include <cuda/semaphore>
#include <cuda/latch>
#include <cuda/atomic>
{K}(const int* x, int* y, int rounds) {{
  __shared__ cuda::counting_semaphore<cuda::thread_scope_block, 2> ready, empty;
  __shared__ __align__(16) char room[sizeof(cuda::latch<cuda::thread_scope_block>)];
  auto& done = *reinterpret_cast<cuda::latch<cuda::thread_scope_block>*>(room);
  __shared__ int slot[32];
  int w = threadIdx.x / 32, lane = threadIdx.x % 32, sum = 0;
  if (threadIdx.x == 0) {{
    new (&ready) cuda::counting_semaphore<cuda::thread_scope_block, 2>(0);
    new (&empty) cuda::counting_semaphore<cuda::thread_scope_block, 2>(1);
    new (&done) cuda::latch<cuda::thread_scope_block>(64);
  }}
  __syncthreads();
  for (int i = 0; i < rounds; i++) {{
    if (w == 0) {{
      if (lane == 0) empty.acquire();
      __syncwarp();
      slot[lane] = x[i * 32 + lane];
      __syncwarp();
      if (lane == 0) ready.release();
    }} else {{
      if (lane == 0) ready.acquire();
      __syncwarp();
      sum += slot[31 - lane];
      __syncwarp();
      if (lane == 0) empty.release();
    }}
  }}
  if (w == 1) y[lane] = sum;
  done.arrive_and_wait();
  if (w == 0) y[32 + lane] = y[lane];
}}""",
    make=lambda rng, rounds: _slots(rng, rounds),
    shapes=((5,), (1,)),
    grid=lambda rounds: (1,),
    block=64,
    headers=True,
    schedules=("lockstep", "backward"),
    faults=(
        ("      if (lane == 0) empty.acquire();\n", "", ""),
        ("      if (lane == 0) ready.acquire();\n", "", RAW),
        ("      sum += slot[31 - lane];\n      __syncwarp();\n", "      sum += slot[31 - lane];\n", WAR),
        ("  done.arrive_and_wait();\n", "  if (w == 1) done.arrive_and_wait();\n", ""),
        ("thread_scope_block>(64)", "thread_scope_block>(32)", ""),
        ("      slot[lane] = x[i * 32 + lane];\n      __syncwarp();\n", "      slot[lane] = x[i * 32 + lane];\n", RAW),
        ("2>(1)", "2>(2)", ""),
    ),
)


def _slots(rng: Rng, rounds: int) -> Given:
    x, y = rng.integers(0, 99, (rounds, 32)).astype(i32), np.zeros(64, i32)
    return [x, y, i32(rounds)], [(y, np.tile(x.sum(0)[::-1], 2))]


add(
    "product of 8-bit floats by wgmma with scales by row and by block of k, as DeepGEMM promotes it",
    source=f"""{HEAD}
DEV u64 desc(const void* p) {{ return (u64)(at(p) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }}
DEV void mma(float (&d)[8], u64 a, u64 b, int more) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %10, 0;\\n"
    "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {{%0,%1,%2,%3,%4,%5,%6,%7}}, %8, %9, p, 1, 1; }}"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
    : "l"(a), "l"(b), "r"(more)); }}
DEV void box(void* to, const Map* m, int x, int y, u64* b) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
    " [%0], [%1, {{%2, %3}}], [%4], %5;" :: "r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)), "l"(0x14F0000000000000ull) : "memory"); }}
{ENTRY}(const __grid_constant__ Map ma, const __grid_constant__ Map mb, const float* sa, const float* sb, float* c, int m, int k) {{
  constexpr int S = 2;
  extern __shared__ __align__(1024) unsigned char raw[];
  unsigned char *a = raw, *b = raw + S * 8192;
  float* scale = (float*)(b + S * 2048);                 // of 64 rows, S stages
  u64 *full = (u64*)(scale + S * 64), *empty = full + S;
  int t = threadIdx.x, steps = k / 128, m0 = blockIdx.x * 64;
  if (t == 128) {{
    asm volatile("prefetch.tensormap [%0];" :: "l"(&ma) : "memory");
    for (int s = 0; s < S; s++) {{ init(full + s, 1); init(empty + s, 4); }}
    fence_init();
  }}
  __syncthreads();
  if (t >= 128) {{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (t == 128)
      for (int i = 0; i < steps; i++) {{
        int s = i % S;
        wait(empty + s, i / S & 1 ^ 1);
        expect(full + s, 8192 + 2048 + 256);
        box(a + s * 8192, &ma, i * 128, m0, full + s);
        box(b + s * 2048, &mb, i * 128, 0, full + s);
        load(scale + s * 64, sa + i * m + m0, 256, full + s);
      }}
  }} else {{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int w = t / 32, lane = t % 32, row = w * 16 + lane / 4;
    float sum[8] = {{}};
    for (int i = 0; i < steps; i++) {{
      int s = i % S;
      float by = sb[i], d[8];
      wait(full + s, i / S & 1);
      float one = scale[s * 64 + row], other = scale[s * 64 + row + 8];
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int kk = 0; kk < 4; kk++) mma(d, desc(a + s * 8192) + 2 * kk, desc(b + s * 2048) + 2 * kk, kk);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      __syncwarp();
      if (lane == 0) arrive(empty + s);
      for (int j = 0; j < 8; j++) sum[j] += (j / 2 & 1 ? other : one) * by * d[j];
    }}
    for (int j = 0; j < 8; j++)
      c[(m0 + row + (j / 2 & 1) * 8) * 16 + j / 4 * 8 + lane % 4 * 2 + j % 2] = sum[j];
  }}
}}""",
    make=lambda rng, m, k: _eighths(rng, m, k),
    shapes=((128, 640), (64, 128)),
    grid=lambda m, k: (m // 64,),
    block=256,
    shared=2 * (8192 + 2048 + 256) + 32,
    tolerance=1e-2,
    faults=(
        ("8192 + 2048 + 256)", "8192 + 2048)", ""),
        ("        wait(empty + s, i / S & 1 ^ 1);\n", "", ""),
        ("      __syncwarp();\n      if (lane == 0) arrive(empty + s);\n",
         "", HANG),
        ("init(empty + s, 4)", "init(empty + s, 1)", ""),
        ("      float one = scale[s * 64 + row], other = scale[s * 64 + row + 8];\n      asm",
         "      asm", "COMPILE"),
        ("empty = full + S", "empty = full + S - 1", ""),
        ("float* scale = (float*)(b + S * 2048)", "float* scale = (float*)(b + (S - 1) * 2048)", ""),
        ("      asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n      __syncwarp();\n      if (lane == 0) arrive(empty + s);",
         "      if (lane == 0) arrive(empty + s);\n      asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");", ""),
        ("? other : one", "? one : other", WRONG),
        ("2 * kk, kk);", "2 * kk, i | kk);", ""),
        ("u32 232", "u32 256", ""),
        ("sa + i * m + m0", "sa + i * m", WRONG),
        ("fence_init();\n  }\n  __syncthreads();", "fence_init();\n  }", ""),
    ),
)


def _eighths(rng: Rng, m: int, k: int) -> Given:
    def eight(rows: int) -> tuple[np.ndarray, np.ndarray]:
        raw = (rng.integers(0, 2, (rows, k)) << 7 | rng.integers(48, 64, (rows, k))).astype(np.uint8)
        value = np.where(raw >> 7, -1.0, 1.0) * (1 + (raw & 7) / 8) * 2.0 ** ((raw >> 3 & 15).astype(int) - 7)
        return raw, value

    (a, av), (b, bv) = eight(m), eight(16)
    sa, sb, c = whole(rng, k // 128, m), whole(rng, k // 128), np.zeros((m, 16), f32)
    wanted = sum(
        sa[i][:, None] * sb[i] * (av[:, i * 128 : i * 128 + 128] @ bv[:, i * 128 : i * 128 + 128].T)
        for i in range(k // 128)
    )
    maps = [tensor(a, "UINT8", (128, 64), swizzle=128), tensor(b, "UINT8", (128, 16), swizzle=128)]
    return [*maps, sa, sb, c, i32(m), i32(k)], [(c, wanted)]


add(
    "sums that the last block reads through the read-only cache",
    source=f"""{K}(const float* x, float* parts, float* y, unsigned* count, int n) {{
  __shared__ float warp[4];
  __shared__ bool last;
  int t = threadIdx.x;
  float s = 0;
  for (int i = blockIdx.x * 128 + t; i < n; i += gridDim.x * 128) s += x[i];
  auto all = [&](float v) {{
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
    if (t % 32 == 0) warp[t / 32] = v;
    __syncthreads();
    return warp[0] + warp[1] + warp[2] + warp[3];
  }};
  s = all(s);
  if (t == 0) {{
    parts[blockIdx.x] = s;
    __threadfence();
    last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
  }}
  __syncthreads();
  if (last) {{
    s = all(t < gridDim.x ? parts[t] : 0.f);
    if (t == 0) *y = s;
  }}
}}""",
    make=lambda rng, n: _summed(rng, n),
    shapes=((1000,), (3,), (512,)),
    grid=lambda n: (3,),
    block=128,
    schedules=CORES,
    faults=(
        ("? parts[t]", "? __ldg(&parts[t])", ""),
        ("    __threadfence();\n", "", RACE),
        ("  __syncthreads();\n  if (last)", "  if (last)", ""),
        ("    __syncthreads();\n    return", "    return", ""),
        ("gridDim.x - 1) ==", "gridDim.x) ==", ""),
        ("atomicInc(count, gridDim.x - 1)", "(*count)++", RACE),
    ),
)


def _summed(rng: Rng, n: int) -> Given:
    x, y = whole(rng, n), np.zeros(1, f32)
    return [x, np.zeros(3, f32), y, np.zeros(1, u32), i32(n)], [(y, x.sum(keepdims=True))]
