"""Kernels in the styles of CUTLASS 3.x, DeepGEMM and ThunderKittens: TMA, mbarriers, named barriers, wgmma."""

from __future__ import annotations

import numpy as np

from shared.hopper_kernels import PRELUDE
from shared.styles import (
    BOUNDS, HANG, LEFT, MISUSE, NEVER, OVERRUN, PROXY, RACE, RAW, WAR, WAW, WRONG,
    Given, Rng, add, f16, f32, i32, tensor, u32, whole,
)  # fmt: skip

HEAD = f"""{PRELUDE}
#define DEV static __device__ __forceinline__
typedef unsigned u32; typedef unsigned short u16;
template <int ID> DEV void named_sync(int n) {{ asm volatile("bar.sync %0, %1;" :: "n"(ID), "r"(n) : "memory"); }}
template <int ID> DEV void named_arrive(int n) {{ asm volatile("bar.arrive %0, %1;" :: "n"(ID), "r"(n) : "memory"); }}
DEV bool elect() {{
  u32 p;
  asm volatile("{{ .reg .pred q; elect.sync _|q, 0xffffffff; selp.u32 %0, 1, 0, q; }}" : "=r"(p));
  return p; }}
"""
ENTRY = 'extern "C" __global__ void k'

add(
    "three roles: a warp loads by TMA, two scale, one stores by TMA, with named barriers",
    source=f"""{HEAD}
{ENTRY}(const float* x, float* y, int tiles, float by) {{
  constexpr int N = 128, S = 3;
  __shared__ alignas(128) float in[S][N], out[2][N];
  __shared__ u64 full[S], empty[S];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {{
    for (int s = 0; s < S; s++) {{ init(&full[s], 1); init(&empty[s], 2); }}
    fence_init();
  }}
  __syncthreads();
  if (warp == 0) {{                       // producer
    if (elect())
      for (int i = 0; i < tiles; i++) {{
        int s = i % S, turn = i / S;
        wait(&empty[s], (turn & 1) ^ 1);
        expect(&full[s], N * 4);
        load(in[s], x + i * N, N * 4, &full[s]);
      }}
  }} else if (warp <= 2) {{               // math
    for (int i = 0; i < tiles; i++) {{
      int s = i % S;
      wait(&full[s], i / S & 1);
      float v[2];
      for (int j = 0; j < 2; j++) v[j] = in[s][(warp - 1) * 64 + j * 32 + lane];
      __syncwarp();
      if (lane == 0) arrive(&empty[s]);
      if (i & 1) named_sync<4>(96); else named_sync<3>(96);   // the box is free
      for (int j = 0; j < 2; j++) out[i & 1][(warp - 1) * 64 + j * 32 + lane] = v[j] * by;
      fence_async();
      if (i & 1) named_arrive<2>(96); else named_arrive<1>(96);
    }}
  }} else {{                              // epilogue
    named_arrive<3>(96);
    if (tiles > 1) named_arrive<4>(96);
    for (int i = 0; i < tiles; i++) {{
      if (i & 1) named_sync<2>(96); else named_sync<1>(96);
      if (lane == 0) {{
        store(y + i * N, out[i & 1], N * 4);
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      }}
      __syncwarp();
      if (i > 0 && i + 1 < tiles) {{ if (i & 1) named_arrive<3>(96); else named_arrive<4>(96); }}
    }}
    if (lane == 0) wait_read();
  }}
}}""",
    make=lambda rng, tiles: _scaled(rng, tiles * 128),
    shapes=((7,), (1,), (4,)),
    grid=lambda tiles: (1,),
    block=128,
    faults=(
        ("wait(&empty[s], (turn & 1) ^ 1)", "wait(&empty[s], turn & 1)", HANG),
        ("wait(&full[s], i / S & 1);", "wait(&full[s], 0);", RAW),
        ("init(&empty[s], 2)", "init(&empty[s], 1)", MISUSE),
        ("init(&empty[s], 2)", "init(&empty[s], 64)", HANG),
        ("expect(&full[s], N * 4)", "expect(&full[s], N * 2)", MISUSE),
        ("      fence_async();\n", "", PROXY),
        ("      __syncwarp();\n      if (lane == 0) arrive", "      if (lane == 0) arrive", WAR),
        ("if (i & 1) named_sync<2>(96); else named_sync<1>(96);", "named_sync<1>(96);", HANG),
        ("wait_group.read 1", "wait_group.read 2", WAR),
        ("if (i & 1) named_sync<4>(96); else named_sync<3>(96);",
         "if (i & 1) named_sync<3>(96); else named_sync<4>(96);", WAR),
        ("    if (lane == 0) wait_read();\n", "", LEFT),
        ("named_arrive<1>(96)", "named_arrive<1>(64)", HANG),
        ("int s = i % S, turn", "int s = (i + 1) % S, turn", HANG),
        ("for (int s = 0; s < S; s++) {", "for (int s = 0; s < S - 1; s++) {", MISUSE),
        ("      __syncwarp();\n      if (i > 0 &&", "      if (i > 0 &&", WAR),
    ),
)


def _scaled(rng: Rng, n: int) -> Given:
    x, y = rng.standard_normal(n).astype(f32), np.zeros(n, f32)
    return [x, y, i32(n // 128), f32(3)], [(y, 3 * x)]


add(
    "a tile updated in place: loaded by TMA, changed, stored by TMA, and its memory used again",
    source=f"""{HEAD}
DEV void box_load(void* to, const Map* m, int x, int y, u64* b) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    " [%0], [%1, {{%2, %3}}], [%4];" :: "r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)) : "memory"); }}
DEV void box_store(const Map* m, int x, int y, const void* from) {{
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {{%1, %2}}], [%3];"
    :: "l"(m), "r"(x), "r"(y), "r"(at(from)) : "memory"); }}
{ENTRY}(const __grid_constant__ Map in, const __grid_constant__ Map out, int across, int tiles) {{
  __shared__ alignas(128) float tile[2][16][32];
  __shared__ alignas(8) u64 bar[2];
  int t = threadIdx.x, n = 0;
  if (t == 0) {{ init(&bar[0], 1); init(&bar[1], 1); fence_init(); }}
  __syncthreads();
  auto fetch = [&](int i, int b) {{
    expect(&bar[b], sizeof tile[0]);
    box_load(tile[b], &in, i % across * 32, i / across * 16, &bar[b]);
  }};
  int first = blockIdx.x, step = gridDim.x;
  if (t == 0 && first < tiles) fetch(first, 0);
  for (int i = first; i < tiles; i += step, n++) {{
    int b = n & 1;
    if (t == 0 && i + step < tiles) {{
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      fetch(i + step, b ^ 1);
    }}
    wait(&bar[b], n >> 1 & 1);
    for (int j = t; j < 512; j += 128) {{
      float& v = tile[b][j / 32][j % 32];
      v = v * v + (j % 32);
    }}
    fence_async();
    __syncthreads();
    if (t == 0) {{
      box_store(&out, i % across * 32, i / across * 16, tile[b]);
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }}
  }}
  if (t == 0) wait_all();
}}""",
    make=lambda rng, m, n: _squares(rng, m, n),
    shapes=((80, 96), (33, 52), (16, 32)),
    grid=lambda m, n: (2,),
    block=128,
    faults=(
        ('      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");\n', "", WAW),
        ("    fence_async();\n", "", PROXY),
        ("    __syncthreads();\n    if (t == 0) {\n      box_store", "    if (t == 0) {\n      box_store", RAW),
        ('      asm volatile("cp.async.bulk.commit_group;" ::: "memory");\n', "", WAW),
        ("wait(&bar[b], n >> 1 & 1)", "wait(&bar[b], n & 1)", RAW),
        ("  if (t == 0) wait_all();\n", "", LEFT),
        ("sizeof tile[0]", "sizeof tile", HANG),
        ("fetch(i + step, b ^ 1)", "fetch(i + step, b)", WAW),
        ("i % across * 32, i / across * 16, tile[b]", "i % across * 32, i / across * 16 + 1, tile[b]", WRONG),
        ("init(&bar[1], 1);", "", MISUSE),
    ),
)


def _squares(rng: Rng, m: int, n: int) -> Given:
    a, out = whole(rng, m, n), np.zeros((m, n), f32)
    maps = [tensor(x, "FLOAT32", (32, 16)) for x in (a, out)]
    across, down = -(-n // 32), -(-m // 16)
    return [*maps, i32(across), i32(across * down)], [(out, a * a + np.arange(n) % 32)]


add(
    "split over k by TMA's sums, and the last block adds a bias",
    source=f"""{HEAD}
DEV void reduce_add(float* to, const float* from, int n) {{
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
    :: "l"(to), "r"(at(from)), "r"(n) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }}
{ENTRY}(const float* parts, float* sums, const float* bias, float* y, unsigned* count, int k) {{
  __shared__ alignas(128) float mine[64];
  __shared__ bool last;
  int t = threadIdx.x, tile = blockIdx.x;
  float s = 0;
  for (int i = blockIdx.y; i < k; i += gridDim.y) s += parts[(i * gridDim.x + tile) * 64 + t];
  mine[t] = s;
  fence_async();
  __syncthreads();
  if (t == 0) {{
    reduce_add(sums + tile * 64, mine, 256);
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async.global;" ::: "memory");
    __threadfence();
    last = atomicAdd(&count[tile], 1) == gridDim.y - 1;
    __threadfence();
  }}
  __syncthreads();
  if (last) y[tile * 64 + t] = __ldcg(&sums[tile * 64 + t]) + bias[t];
}}""",
    make=lambda rng, tiles, k: _split(rng, tiles, k),
    shapes=((2, 7), (3, 3), (1, 1)),
    grid=lambda tiles, k: (tiles, 3),
    block=64,
    faults=(
        ("wait_group 0;\" ::: \"memory\");\n    asm", "wait_group.read 0;\" ::: \"memory\");\n    asm", RACE),
        ('    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");\n', "", RACE),
        ("  fence_async();\n", "", PROXY),
        ("  __syncthreads();\n  if (t == 0) {", "  if (t == 0) {", RAW),
        ("    __threadfence();\n    last", "    last", RACE),
        ("== gridDim.y - 1;\n    __threadfence();", "== gridDim.y - 1;", ""),
        ("== gridDim.y - 1", "== gridDim.y - 2", RACE),
        ("reduce_add(sums + tile * 64, mine, 256)", "reduce_add(sums + tile * 64, mine, 128)", WRONG),
        ("  }\n  __syncthreads();\n  if (last)", "  }\n  if (last)", RAW),
    ),
)


def _split(rng: Rng, tiles: int, k: int) -> Given:
    parts, sums, bias = whole(rng, k, tiles, 64), np.zeros((tiles, 64), f32), whole(rng, 64)
    y = np.zeros((tiles, 64), f32)
    return [parts, sums, bias, y, np.zeros(tiles, u32), i32(k)], [(y, parts.sum(0) + bias)]


add(
    "rows gathered by cp.async, which arrive at mbarriers, for a product of int8 by wgmma",
    source=f"""{HEAD}
// 64 rows of 32 bytes without a swizzle: core matrices of 8 rows x 16 bytes
DEV u64 desc(const void* p, int lead, int stride) {{
  return (u64)(at(p) >> 4 & 0x3fff) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32; }}
DEV void mma(int (&d)[8], u64 a, u64 b, int more) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %10, 0;\\n"
    "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {{%0,%1,%2,%3,%4,%5,%6,%7}}, %8, %9, p; }}"
    : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
    : "l"(a), "l"(b), "r"(more)); }}
{ENTRY}(const signed char* a, const int* rows, const signed char* b, int* c, int k) {{
  constexpr int S = 2;
  __shared__ alignas(128) signed char sa[S][64 * 32], sb[S][16 * 32];
  __shared__ alignas(8) u64 full[S], empty[S];
  int t = threadIdx.x, steps = k / 32;
  if (t == 0) {{
    for (int s = 0; s < S; s++) {{ init(&full[s], 32); init(&empty[s], 1); }}
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  __syncthreads();
  if (t >= 128) {{
    int lane = t - 128;
    for (int i = 0; i < steps; i++) {{
      int s = i % S;
      if (i >= S) wait(&empty[s], (i / S - 1) & 1);
      auto copy = [&](signed char* to, const signed char* from) {{
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at(to)), "l"(from) : "memory"); }};
      for (int j = lane; j < 128; j += 32) {{      // 64 rows, two halves
        int r = j / 2, h = j % 2;
        copy(&sa[s][(r / 8) * 256 + h * 128 + r % 8 * 16], a + (long)rows[r] * k + i * 32 + h * 16);
      }}
      {{
        int r = lane / 2, h = lane % 2;
        copy(&sb[s][(r / 8) * 256 + h * 128 + r % 8 * 16], b + r * k + i * 32 + h * 16);
      }}
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(at(&full[s])) : "memory");
    }}
    asm volatile("cp.async.wait_all;" ::: "memory");
  }} else {{
    int d[8];
    for (int i = 0; i < steps; i++) {{
      int s = i % S;
      wait(&full[s], i / S & 1);
      fence_async();
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      mma(d, desc(sa[s], 128, 256), desc(sb[s], 128, 256), i > 0);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (t == 0) arrive(&empty[s]);
    }}
    int w = t / 32, q = t % 32;
    for (int j = 0; j < 8; j++) {{
      int row = w * 16 + (j / 2 % 2) * 8 + q / 4, col = j / 4 * 8 + q % 4 * 2 + j % 2;
      c[row * 16 + col] = d[j];
    }}
  }}
}}""",
    make=lambda rng, k: _gathered(rng, k),
    shapes=((160,), (32,), (96,)),
    grid=lambda k: (1,),
    block=160,
    faults=(
        ("      fence_async();\n", "", PROXY),
        ("arrive.noinc.", "arrive.", HANG),
        ("init(&full[s], 32)", "init(&full[s], 16)", ""),
        ("(i / S - 1) & 1", "(i / S) & 1", ""),
        ("i / S & 1);\n      fence", "i & 1);\n      fence", ""),
        ("      wait(&full[s], i / S & 1);\n", "", RAW),
        ("desc(sa[s], 128, 256)", "desc(sa[s], 256, 128)", WRONG),
        ("i > 0);", "1);", NEVER),
        ("aligned 0;", "aligned 1;", ""),
        ('      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n', "", ""),
        ("      if (t == 0) arrive(&empty[s]);\n", "", HANG),
        ("      if (i >= S) wait(&empty[s], (i / S - 1) & 1);\n", "", ""),
    ),
)


def _gathered(rng: Rng, k: int) -> Given:
    a, b = (rng.integers(-128, 128, (n, k)).astype(np.int8) for n in (100, 16))
    rows, c = rng.integers(0, 100, 64).astype(i32), np.zeros((64, 16), i32)
    return [a, rows, b, c, i32(k)], [(c, a[rows].astype(i32) @ b.astype(i32).T)]
