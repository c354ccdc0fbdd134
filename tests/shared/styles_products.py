"""Kernels around wgmma, stmatrix and reductions by bulk copies, and some written in PTX as Triton emits it."""

from __future__ import annotations

import numpy as np

from shared.styles import (
    BOUNDS, HANG, LEFT, MISUSE, NEVER, OVERRUN, PROXY, RACE, RAW, WAR, WAW, WRONG,
    Given, Rng, add, f16, f32, i32, tensor, u32, whole,
)  # fmt: skip
from shared.styles_clusters import MORE, entry
from shared.styles_tma import ENTRY, HEAD

BOXES = f"""{MORE}
DEV void box_load(void* to, const Map* m, int x, int y, u64* b) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    " [%0], [%1, {{%2, %3}}], [%4];" :: "r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)) : "memory"); }}
DEV void box_store(const Map* m, int x, int y, const void* from) {{
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {{%1, %2}}], [%3];"
    :: "l"(m), "r"(x), "r"(y), "r"(at(from)) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }}
DEV u64 desc128(const void* p) {{ return (u64)(at(p) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }}
DEV void mma16(float (&d)[8], u64 a, u64 b, int more) {{      // 64 x 16 x 16
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %10, 0;\\n"
    "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{%0,%1,%2,%3,%4,%5,%6,%7}}, %8, %9, p, 1, 1, 0, 0; }}"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
    : "l"(a), "l"(b), "r"(more)); }}
DEV void mma16r(float (&d)[8], const u32 (&a)[4], u64 b, int more) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %13, 0;\\n"
    "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{%0,%1,%2,%3,%4,%5,%6,%7}}, {{%8,%9,%10,%11}}, %12, p, 1, 1, 0; }}"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more)); }}
DEV void fence_products() {{ asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }}
DEV void commit() {{ asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }}
template <int N> DEV void wait_products() {{ asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }}
DEV u32 pack(float a, float b) {{ u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a)); return r; }}
"""


def bits(values: np.ndarray) -> np.ndarray:
    """Return the bits of small integers as bfloat16, which are exact."""
    return (values.astype(f32).view(u32) >> 16).astype(np.uint16)


add(
    "ping-pong: two warpgroups take turns by an ordered barrier, results by stmatrix and a TMA store",
    source=f"""{BOXES}
{ENTRY}(const __grid_constant__ Map ma, const __grid_constant__ Map mb, const __grid_constant__ Map mc, int tiles, int k) {{
  constexpr int S = 3;
  __shared__ alignas(1024) u16 a[S][64 * 64], b[S][16 * 64];
  __shared__ alignas(128) u16 out[2][64 * 16];
  __shared__ alignas(8) u64 full[S], empty[S], turn[2][2];     // of each group: mainloop, epilogue
  int t = threadIdx.x % 128, group = threadIdx.x / 128, steps = (k + 63) / 64;
  if (threadIdx.x == 0) {{
    for (int s = 0; s < S; s++) {{ init(&full[s], 1); init(&empty[s], 1); }}
    for (int i = 0; i < 4; i++) init(&turn[i / 2][i % 2], 128);
    fence_init();
  }}
  __syncthreads();
  if (group == 2) {{
    if (t == 0)
      for (int i = 0; i < tiles * steps; i++) {{
        int s = i % S, tile = i / steps, x = i % steps * 64;
        wait(&empty[s], i / S & 1 ^ 1);
        expect(&full[s], sizeof a[0] + sizeof b[0]);
        box_load(a[s], &ma, x, tile * 64, &full[s]);
        box_load(b[s], &mb, x, 0, &full[s]);
      }}
    return;
  }}
  int n = 0;                                                  // of the turns of this group
  if (group == 1) {{ arrive(&turn[0][0]); arrive(&turn[0][1]); }}
  for (int tile = group; tile < tiles; tile += 2, n++) {{
    float d[8];
    wait(&turn[group][0], n & 1);
    for (int j = 0; j < steps; j++) {{
      int i = tile * steps + j, s = i % S;
      wait(&full[s], i / S & 1);
      fence_products();
      for (int kk = 0; kk < 4; kk++) mma16(d, desc128(a[s]) + 2 * kk, desc128(b[s]) + 2 * kk, j | kk);
      commit();
      wait_products<0>();
      if (t == 0) arrive(&empty[s]);
    }}
    arrive(&turn[group ^ 1][0]);
    wait(&turn[group][1], n & 1);
    if (t == 0) wait_read();
    asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
    int w = t / 32, lane = t % 32;
    u16* to = &out[group][(w * 16 + lane % 16) * 16 + lane / 16 * 8];
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {{%1, %2, %3, %4}};" :: "r"(at(to)),
      "r"(pack(d[0], d[1])), "r"(pack(d[2], d[3])), "r"(pack(d[4], d[5])), "r"(pack(d[6], d[7])) : "memory");
    fence_async();
    asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
    if (t == 0) box_store(&mc, 0, tile * 64, out[group]);
    arrive(&turn[group ^ 1][1]);
  }}
  if (t == 0) wait_all();
}}""",
    make=lambda rng, tiles, k: _turns(rng, tiles, k),
    shapes=((5, 192), (1, 40), (2, 64)),
    grid=lambda tiles, k: (1,),
    block=288,
    faults=(
        ("i / S & 1 ^ 1", "i / S & 1", HANG),
        ("  if (group == 1) { arrive(&turn[0][0]); arrive(&turn[0][1]); }\n", "", HANG),
        ("    arrive(&turn[group ^ 1][0]);\n", "", HANG),
        ("    arrive(&turn[group ^ 1][0]);\n", "    arrive(&turn[group][0]);\n", ""),
        ("    wait(&turn[group][0], n & 1);\n", "", ""),
        ("    wait(&turn[group][1], n & 1);\n", "", ""),
        ("    if (t == 0) wait_read();\n", "", ""),
        ("    fence_async();\n    asm", "    asm", PROXY),
        ('    fence_async();\n    asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");\n', "    fence_async();\n", ""),
        ("    if (t == 0) wait_read();\n    asm", "    if (t == 1) wait_read();\n    asm", ""),
        ('"r"(group + 1) : "memory");\n    int w', '"r"(1) : "memory");\n    int w', ""),
        ("      wait_products<0>();\n", "      wait_products<1>();\n", ""),
        ("sizeof a[0] + sizeof b[0]", "sizeof a[0] + 2 * sizeof b[0]", HANG),
        ("lane % 16) * 16 + lane / 16 * 8", "lane % 16) * 16 + lane / 16 * 4", ""),
        ("wait(&full[s], i / S & 1);", "wait(&full[s], j / S & 1);", ""),
        ("64ull << 32", "32ull << 32", WRONG),
        ("desc128(b[s]) + 2 * kk", "desc128(b[s]) + kk", WRONG),
        ("  if (t == 0) wait_all();\n", "", LEFT),
        ("init(&turn[i / 2][i % 2], 128)", "init(&turn[i / 2][i % 2], 1)", MISUSE),
        ("j | kk", "kk", WRONG),
    ),
)


def _turns(rng: Rng, tiles: int, k: int) -> Given:
    a, b = rng.integers(-3, 4, (tiles * 64 - 7, k)), rng.integers(-3, 4, (16, k))
    c = np.zeros((len(a), 16), np.uint16)
    x, y = bits(a), bits(b)
    maps = [tensor(x, "BFLOAT16", (64, 64), swizzle=128), tensor(y, "BFLOAT16", (64, 16), swizzle=128)]
    exact = (a @ b.T).astype(f32)
    rounded = exact.view(u32)
    rounded = ((rounded + 0x7FFF + (rounded >> 16 & 1)) >> 16).astype(np.uint16)
    return [*maps, tensor(c, "BFLOAT16", (16, 64)), i32(tiles), i32(k)], [(c, rounded)]


add(
    "mixed input: bytes are widened in registers for A of a wgmma, B by TMA, products promoted by scale",
    source=f"""{BOXES}
{ENTRY}(const signed char* a, const float* scales, const __grid_constant__ Map mb, float* c, int k) {{
  __shared__ alignas(1024) u16 b[2][16 * 64];
  __shared__ alignas(8) u64 full[2];
  int t = threadIdx.x, w = t / 32, lane = t % 32, steps = k / 64;
  if (t == 0) {{ init(&full[0], 1); init(&full[1], 1); fence_init(); }}
  __syncthreads();
  auto fetch = [&](int i) {{
    if (t == 0 && i < steps) {{ expect(&full[i & 1], sizeof b[0]); box_load(b[i & 1], &mb, i * 64, 0, &full[i & 1]); }} }};
  fetch(0);
  float sum[8] = {{}};
  for (int i = 0; i < steps; i++) {{
    fetch(i + 1);
    u32 x[4][4];
    for (int kk = 0; kk < 4; kk++)
      for (int j = 0; j < 4; j++) {{
        int row = w * 16 + lane / 4 + j % 2 * 8, col = i * 64 + kk * 16 + lane % 4 * 2 + j / 2 * 8;
        x[kk][j] = pack((float)a[row * k + col], (float)a[row * k + col + 1]);
      }}
    wait(&full[i & 1], i >> 1 & 1);
    float d[8];
    fence_products();
    for (int kk = 0; kk < 4; kk++) mma16r(d, x[kk], desc128(b[i & 1]) + 2 * kk, kk);
    commit();
    wait_products<0>();
    for (int j = 0; j < 8; j++) sum[j] += scales[i] * d[j];
    __syncthreads();
  }}
  for (int j = 0; j < 8; j++)
    c[(w * 16 + lane / 4 + j / 2 % 2 * 8) * 16 + j / 4 * 8 + lane % 4 * 2 + j % 2] = sum[j];
}}""",
    make=lambda rng, k: _mixed(rng, k),
    shapes=((320,), (64,), (128,)),
    grid=lambda k: (1,),
    block=128,
    faults=(
        ("    wait_products<0>();\n", "", "missing wgmma wait"),
        ("    commit();\n", "", "missing wgmma wait"),
        ("    fence_products();\n", "", "missing wgmma.fence"),
        ("    __syncthreads();\n  }\n  for", "  }\n  for", ""),
        ("wait(&full[i & 1], i >> 1 & 1)", "wait(&full[i & 1], i & 1)", ""),
        ("    wait(&full[i & 1], i >> 1 & 1);\n", "", RAW),
        ("    fetch(i + 1);\n    u32", "    fetch(i + 2);\n    u32", ""),
        ("2 * kk, kk);", "2 * kk, 1);", ""),
        ("j % 2 * 8, col", "j / 2 * 8, col", WRONG),
        ("    wait_products<0>();\n    for (int j = 0; j < 8; j++) sum[j] += scales[i] * d[j];",
         "    for (int j = 0; j < 8; j++) sum[j] += scales[i] * d[j];\n    wait_products<0>();", ""),
        ("sizeof b[0]); box", "sizeof b[0] / 2); box", ""),
    ),
)


def _mixed(rng: Rng, k: int) -> Given:
    a, b, scales = rng.integers(-9, 9, (64, k)).astype(np.int8), rng.integers(-3, 4, (16, k)), whole(rng, k // 64)
    c, y = np.zeros((64, 16), f32), bits(b)
    parts = [scales[i // 64] * (a[:, i : i + 64].astype(int) @ b[:, i : i + 64].T) for i in range(0, k, 64)]
    return [a, scales, tensor(y, "BFLOAT16", (64, 16), swizzle=128), c, i32(k)], [(c, sum(parts))]


add(
    "sums of a cluster by bulk copies that add, into the first block's memory, which completes an mbarrier",
    source=f"""{MORE}
{entry(3)}(const int* x, int* y, int n) {{
  __shared__ alignas(128) int mine[64], all[64];
  __shared__ alignas(8) u64 bar;
  int t = threadIdx.x, me = rank();
  int s = 0;
  for (int i = me; i < n; i += 3) s += x[i * 64 + t];
  mine[t] = s;
  all[t] = 0;
  if (t == 0) {{ init(&bar, 1); fence_init(); if (me == 0) expect(&bar, 3 * 256); }}
  fence_async();
  cluster_sync();
  if (t == 0)
    asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.s32 [%0], [%1], %2, [%3];"
      :: "r"(far(all, 0)), "r"(at(mine)), "r"(256), "r"(far(&bar, 0)) : "memory");
  if (me == 0) {{ wait_cluster(&bar, 0); y[t] = all[t]; }}
  cluster_sync();
}}""",
    make=lambda rng, n: _added(rng, n),
    shapes=((8,), (1,), (3,)),
    grid=lambda n: (3,),
    block=64,
    faults=(
        ("  fence_async();\n  cluster_sync();", "  cluster_sync();", PROXY),
        ("3 * 256); }", "2 * 256); }", ""),
        ("3 * 256); }", "4 * 256); }", HANG),
        ("wait_cluster(&bar, 0); ", "", ""),
        ("  all[t] = 0;\n", "", ""),
        ("y[t] = all[t]; }\n  cluster_sync();", "y[t] = all[t]; }", LEFT),
        ("  fence_async();\n  cluster_sync();", "  fence_async();\n  __syncthreads();", ""),
        ("far(&bar, 0))", "far(&bar, me))", ""),
        ("far(all, 0)", "far(all, me)", ""),
    ),
)


def _added(rng: Rng, n: int) -> Given:
    x, y = rng.integers(-99, 99, (n, 64)).astype(i32), np.zeros(64, i32)
    return [x, y, i32(n)], [(y, x.sum(0))]


add(
    "Jacobi steps over a grid: rows by TMA that other blocks have written before a barrier of the grid",
    source=f"""{HEAD}
{ENTRY}(float* x, float* y, unsigned* count, int steps) {{
  constexpr int N = 64;
  __shared__ alignas(128) float row[3][N];
  __shared__ alignas(8) u64 bar;
  int t = threadIdx.x, me = blockIdx.x, blocks = gridDim.x;
  if (t == 0) {{ init(&bar, 1); fence_init(); }}
  __syncthreads();
  for (int i = 0; i < steps; i++) {{
    float *from = i & 1 ? y : x, *to = i & 1 ? x : y;
    if (t == 0) {{
      expect(&bar, 3 * N * 4);
      for (int j = 0; j < 3; j++) load(row[j], from + (me + j + blocks - 1) % blocks * N, N * 4, &bar);
    }}
    wait(&bar, i & 1);
    to[me * N + t] = row[0][t] + row[2][t] - row[1][t ^ 1];
    asm volatile("fence.proxy.async.global;" ::: "memory");
    __syncthreads();
    if (t == 0) {{
      unsigned seen;
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(count) : "memory");
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
      while (seen < blocks * (i + 1));
      asm volatile("fence.proxy.async.global;" ::: "memory");
    }}
    __syncthreads();
  }}
}}""",
    make=lambda rng, blocks, steps: _jacobi(rng, blocks, steps),
    shapes=((4, 3), (1, 2), (5, 1)),
    grid=lambda blocks, steps: (blocks,),
    block=64,
    faults=(
        ('    asm volatile("fence.proxy.async.global;" ::: "memory");\n    __sync', "    __sync", ""),
        ('      asm volatile("fence.proxy.async.global;" ::: "memory");\n    }', "    }", ""),
        ("red.release.gpu", "red.relaxed.gpu", RACE),
        ("ld.acquire.gpu", "ld.relaxed.gpu", ""),
        ("blocks * (i + 1)", "blocks * i", RACE),
        ("memory\");\n    __syncthreads();\n    if", "memory\");\n    if", RACE),
        ("    }\n    __syncthreads();\n  }\n}", "    }\n  }\n}", ""),
        ("wait(&bar, i & 1)", "wait(&bar, 0)", ""),
        ("3 * N * 4", "2 * N * 4", ""),
    ),
)


def _jacobi(rng: Rng, blocks: int, steps: int) -> Given:
    x, y = whole(rng, blocks, 64), np.zeros((blocks, 64), f32)
    now = x.copy()
    for _ in range(steps):
        now = np.roll(now, 1, 0) + np.roll(now, -1, 0) - now[:, np.arange(64) ^ 1]
    return [x, y, np.zeros(1, u32), i32(steps)], [(y if steps % 2 else x, now)]


add(
    "mbarrier states: threads that leave drop out, the memory serves as data after inval",
    source=f"""{HEAD}
{ENTRY}(const int* x, int* y, int rounds) {{
  __shared__ int slot[64];
  __shared__ alignas(8) u64 bar;
  int t = threadIdx.x;
  if (t == 0) init(&bar, 64);
  __syncthreads();
  int mine = t < 32 ? rounds : rounds / 2, sum = 0;              // the second warp leaves earlier
  for (int i = 0; i < mine; i++) {{
    slot[t] = x[i * 64 + t];
    u64 state;
    u32 done = 0;
    if (i == mine - 1 && t >= 32) {{
      asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(&bar)) : "memory");
      break;
    }}
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(&bar)) : "memory");
    while (!done)
      asm volatile("{{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }}"
        : "=r"(done) : "r"(at(&bar)), "l"(state) : "memory");
    sum += slot[t ^ 1];
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(&bar)) : "memory");
    do
      asm volatile("{{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }}"
        : "=r"(done) : "r"(at(&bar)), "l"(state) : "memory");
    while (!done);
  }}
  __syncthreads();
  if (t == 0) {{
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(&bar)) : "memory");
    *(volatile int*)&bar = rounds;
  }}
  __syncthreads();
  y[t] = sum + *(int*)&bar;
}}""",
    make=lambda rng, rounds: _dropped(rng, rounds),
    shapes=((6,), (2,), (9,)),
    grid=lambda rounds: (1,),
    block=64,
    faults=(
        ("arrive_drop.", "arrive.", HANG),
        ("init(&bar, 64)", "init(&bar, 63)", ""),
        ("  __syncthreads();\n  if (t == 0) {\n    asm", "  if (t == 63) {\n    asm", MISUSE),
        ("  }\n  __syncthreads();\n  y", "  }\n  y", ""),
        ('    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(&bar)) : "memory");\n', "", ""),
        ("slot[t ^ 1]", "slot[t ^ 32]", ""),
        ("    while (!done)\n", "    if (0)\n", RAW),
    ),
)


def _dropped(rng: Rng, rounds: int) -> Given:
    x, y = rng.integers(0, 99, (rounds, 64)).astype(i32), np.zeros(64, i32)
    pairs = x[:, np.arange(64) ^ 1]
    late = pairs[: max(0, rounds // 2 - 1), 32:].sum(0)
    return [x, y, i32(rounds)], [(y, np.concatenate([pairs[:, :32].sum(0), late]) + rounds)]
