"""Kernels of clusters: multicast, distributed shared memory, st.async, roles by rank, remote mbarriers."""

from __future__ import annotations

import numpy as np

from shared.styles import (
    HANG, LEFT, MISUSE, NEVER, OVERRUN, PROXY, RACE, RAW, WAR, WAW, WRONG,
    Given, Rng, add, f32, i32, tensor, u32, whole,
)  # fmt: skip
from shared.styles_tma import HEAD

MORE = f"""{HEAD}
DEV void wait_cluster(u64* b, int parity) {{
  asm volatile("{{ .reg .pred p; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra L; }}"
               :: "r"(at(b)), "r"(parity) : "memory"); }}
DEV void arrive_cluster() {{ asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }}
DEV void wait_for_cluster() {{ asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }}
DEV void put(unsigned to, float v) {{ asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(to), "f"(v) : "memory"); }}
DEV float get(unsigned from) {{
  float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory"); return v; }}
"""


def entry(x: int, y: int = 1) -> str:
    return f'extern "C" __global__ void __cluster_dims__({x}, {y}, 1) k'


add(
    "product in clusters of 2 x 2: both operands by multicast, stages freed over the whole cluster",
    source=f"""{MORE}
DEV void cast(void* to, const Map* m, int x, int y, u64* b, u16 mask) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    " [%0], [%1, {{%2, %3}}], [%4], %5;" :: "r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)), "h"(mask) : "memory"); }}
{entry(2, 2)}(const __grid_constant__ Map ma, const __grid_constant__ Map mb, float* c, int n, int k) {{
  constexpr int S = 2, T = 16, K = 8;
  __shared__ alignas(128) float a[S][T][K], b[S][T][K];
  __shared__ alignas(8) u64 full[S], empty[S];
  int t = threadIdx.x, me = rank(), x = me & 1, y = me >> 1, steps = (k + K - 1) / K;
  if (t == 0) {{
    for (int s = 0; s < S; s++) {{ init(&full[s], 1); init(&empty[s], 3 * 4); }}   // this row and column
    fence_init();
  }}
  arrive_cluster();
  wait_for_cluster();
  if (t < 32) {{
    if (t == 0)
      for (int i = 0; i < steps; i++) {{
        int s = i % S;
        if (i >= S) wait_cluster(&empty[s], i / S - 1 & 1);
        expect(&full[s], 2 * T * K * 4);
        // Half of A's rows for both blocks of this row, half of B's for both of this column
        cast(a[s][x * 8], &ma, i * K, blockIdx.y * T + x * 8, &full[s], 3 << 2 * y);
        cast(b[s][y * 8], &mb, i * K, blockIdx.x * T + y * 8, &full[s], 5 << x);
      }}
  }} else {{
    int q = t - 32, row = q / 16, col = q % 16;
    float sum[2] = {{0, 0}};
    for (int i = 0; i < steps; i++) {{
      int s = i % S;
      wait_cluster(&full[s], i / S & 1);
      for (int kk = 0; kk < K; kk++)
        for (int j = 0; j < 2; j++) sum[j] += a[s][row + 8 * j][kk] * b[s][col][kk];
      __syncwarp();
      int lane = q & 31;
      if (lane < 4 && (lane == me || lane == (me ^ 1) || lane == (me ^ 2))) arrive_far(far(&empty[s], lane));
    }}
    for (int j = 0; j < 2; j++) c[(blockIdx.y * T + row + 8 * j) * n + blockIdx.x * T + col] = sum[j];
  }}
  __syncwarp();
  arrive_cluster();
  wait_for_cluster();
}}""",
    make=lambda rng, m, n, k: _product(rng, m, n, k),
    shapes=((32, 64, 44), (32, 32, 8), (64, 32, 100)),
    grid=lambda m, n, k: (n // 16, m // 16),
    block=160,
    faults=(
        ("3 * 4)", "4)", OVERRUN),
        ("3 * 4)", "4 * 4)", HANG),
        ("  }\n  arrive_cluster();\n  wait_for_cluster();\n  if", "  }\n  __syncthreads();\n  if", MISUSE),
        ("  __syncwarp();\n  arrive_cluster();\n  wait_for_cluster();\n}", "}", LEFT),
        ("3 << 2 * y", "3 << y", HANG),
        ("5 << x", "5 << y", HANG),
        ("        if (i >= S) wait_cluster(&empty[s], i / S - 1 & 1);\n", "", ""),
        ("i / S - 1 & 1", "i / S & 1", ""),
        ("      __syncwarp();\n      int lane", "      int lane", WAR),
        ("lane == (me ^ 1) || ", "", HANG),
        ("lane == (me ^ 1) ||", "lane == (me ^ 3) ||", ""),
        ("arrive_far(far(&empty[s], lane))", "arrive_far(far(&empty[s ^ 1], lane))", ""),
        ("&ma, i * K, blockIdx.y * T + x * 8", "&ma, i * K, blockIdx.y * T + y * 8", ""),
        ("2 * T * K * 4)", "T * K * 4)", ""),
        ("wait_cluster(&full[s], i / S & 1);", "", ""),
    ),
)


def _product(rng: Rng, m: int, n: int, k: int) -> Given:
    a, b, c = whole(rng, m, k), whole(rng, n, k), np.zeros((m, n), f32)
    maps = [tensor(x, "FLOAT32", (8, 8)) for x in (a, b)]
    return [*maps, c, i32(n), i32(k)], [(c, a @ b.T)]


add(
    "layer norm of rows that a cluster shares: sums pushed to every block, which count arrivals",
    source=f"""{MORE}
{entry(4)}(const float* x, const float* gamma, float* y, int rows, int n) {{
  __shared__ float2 got[2][4];
  __shared__ float2 part[4];
  __shared__ alignas(8) u64 bar[2];
  int t = threadIdx.x, lane = t & 31, me = rank(), share = n / 4;
  if (t < 2) init(&bar[t], 4);
  fence_init();
  cluster_sync();
  int turn = 0;
  for (int r = blockIdx.x / 4; r < rows; r += gridDim.x / 4, turn++) {{
    const float* row = x + (long)r * n + me * share;
    float2 s = {{0, 0}};
    for (int i = t; i < share; i += 128) {{ float v = row[i]; s.x += v; s.y += v * v; }}
    for (int d = 16; d; d >>= 1) {{ s.x += __shfl_xor_sync(~0u, s.x, d); s.y += __shfl_xor_sync(~0u, s.y, d); }}
    if (lane == 0) part[t / 32] = s;
    __syncthreads();
    int b = turn & 1;
    if (t < 4) {{
      float2 all = {{0, 0}};
      for (int w = 0; w < 4; w++) {{ all.x += part[w].x; all.y += part[w].y; }}
      asm volatile("st.shared::cluster.v2.f32 [%0], {{%1, %2}};" :: "r"(far(&got[b][me], t)), "f"(all.x), "f"(all.y) : "memory");
      arrive_far(far(&bar[b], t));
    }}
    wait_cluster(&bar[b], turn >> 1 & 1);
    float2 sum = {{0, 0}};
    for (int q = 0; q < 4; q++) {{ sum.x += got[b][q].x; sum.y += got[b][q].y; }}
    float mean = sum.x / n, scale = rsqrtf(sum.y / n - mean * mean + 1e-5f);
    for (int i = t; i < share; i += 128) y[(long)r * n + me * share + i] = (row[i] - mean) * scale * gamma[me * share + i];
    __syncthreads();
  }}
  cluster_sync();
}}""",
    make=lambda rng, rows, n: _norm(rng, rows, n),
    shapes=((9, 400), (1, 4), (6, 1200)),
    grid=lambda rows, n: (8,),
    block=128,
    faults=(
        ("__shared__ float2 got[2][4];", "__shared__ float2 got[1][4];", ""),
        ("int b = turn & 1;", "int b = 0;", ""),
        ("wait_cluster(&bar[b], turn >> 1 & 1);", "wait_cluster(&bar[b], turn & 1);", ""),
        ("  fence_init();\n  cluster_sync();", "  cluster_sync();", ""),
        ("  fence_init();\n  cluster_sync();", "  fence_init();\n  __syncthreads();", ""),
        ("    __syncthreads();\n    int b", "    int b", RAW),
        ("    __syncthreads();\n  }\n  cluster_sync();\n", "  }\n  cluster_sync();\n", ""),
        ("    __syncthreads();\n  }\n  cluster_sync();\n", "    __syncthreads();\n  }\n", LEFT),
        ("init(&bar[t], 4)", "init(&bar[t], 3)", MISUSE),
        ("far(&got[b][me], t)", "far(&got[b][t], t)", ""),
        ("wait_cluster(&bar[b], turn >> 1 & 1);", "wait(&bar[b], turn >> 1 & 1);", ""),
        ("arrive_far(far(&bar[b], t));",
         'asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" :: "r"(far(&bar[b], t)) : "memory");', RAW),
        ("s.y += __shfl_xor_sync(~0u, s.y, d);", "s.y += __shfl_xor_sync(0xffff, s.y, d);", ""),
    ),
)


def _norm(rng: Rng, rows: int, n: int) -> Given:
    x, gamma, y = whole(rng, rows, n), whole(rng, n), np.zeros((rows, n), f32)
    wide = x.astype(float)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * gamma
    return [x, gamma, y, i32(rows), i32(n)], [(y, wanted)]


add(
    "ring of blocks that pass tiles on by st.async, each with a full and a remote empty mbarrier",
    source=f"""{MORE}
{entry(4)}(const float* x, float* y, int rounds) {{
  __shared__ alignas(16) float box[2][128];
  __shared__ alignas(8) u64 full[2], empty[2];
  int t = threadIdx.x, me = rank(), next = (me + 1) & 3, before = (me + 3) & 3;
  if (t == 0) {{
    for (int s = 0; s < 2; s++) {{ init(&full[s], 1); init(&empty[s], 32); }}
    fence_init();
    for (int s = 0; s < 2; s++) if (s < rounds) expect(&full[s], 512);
  }}
  cluster_sync();
  float4 v = ((const float4*)x)[blockIdx.x * 32 + t], sum = v;
  for (int i = 0; i < rounds; i++) {{
    int s = i & 1, parity = i >> 1 & 1;
    wait_cluster(&empty[s], parity ^ 1);
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {{%1, %2, %3, %4}}, [%5];"
      :: "r"(far(&box[s][4 * t], next)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(far(&full[s], next)) : "memory");
    wait_cluster(&full[s], parity);
    v = *(float4*)&box[s][4 * t];
    sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
    if (t == 0 && i + 2 < rounds) expect(&full[s], 512);
    __syncwarp();
    if (i + 2 < rounds) arrive_far(far(&empty[s], before));
  }}
  ((float4*)y)[blockIdx.x * 32 + t] = sum;
  cluster_sync();
}}""",
    make=lambda rng, clusters, rounds: _passed(rng, clusters, rounds),
    shapes=((2, 7), (1, 1), (1, 2)),
    grid=lambda clusters, rounds: (4 * clusters,),
    block=32,
    faults=(
        ("wait_cluster(&empty[s], parity ^ 1);", "", ""),
        ("parity ^ 1", "parity", HANG),
        ("init(&empty[s], 32)", "init(&empty[s], 1)", ""),
        ("    wait_cluster(&full[s], parity);\n", "", RAW),
        ("if (t == 0 && i + 2 < rounds) expect(&full[s], 512);\n    __syncwarp();\n    if (i + 2 < rounds) arrive_far(far(&empty[s], before));",
         "if (i + 2 < rounds) arrive_far(far(&empty[s], before));\n    if (t == 0 && i + 2 < rounds) expect(&full[s], 512);", ""),
        ("if (s < rounds) expect(&full[s], 512)", "if (s < rounds) expect(&full[s], 256)", ""),
        ('"r"(far(&full[s], next))', '"r"(far(&full[s], me))', "st misuse"),
        ("arrive_far(far(&empty[s], before))", "arrive_far(far(&empty[s], next))", ""),
        ("arrive_far(far(&empty[s], before))", "arrive(&empty[s])", ""),
        ("sum;\n  cluster_sync();", "sum;", LEFT),
        ("  }\n  cluster_sync();\n  float4", "  }\n  __syncthreads();\n  float4", ""),
        ("    if (i + 2 < rounds) arrive_far", "    arrive_far", ""),
    ),
)


def _passed(rng: Rng, clusters: int, rounds: int) -> Given:
    x = whole(rng, clusters, 4, 128)
    y = np.zeros_like(x)
    return [x, y, i32(rounds)], [(y, sum(np.roll(x, i, 1) for i in range(rounds + 1)))]


add(
    "roles by rank: block 0 of a cluster takes tiles from a counter and tells the others, which work",
    source=f"""{MORE}
{entry(3)}(const float* x, float* y, int* counter, int tiles) {{
  __shared__ int tile[2];
  __shared__ alignas(8) u64 told[2], heard[2];
  int t = threadIdx.x, me = rank();
  if (t == 0) {{
    for (int s = 0; s < 2; s++) {{ init(&told[s], 1); init(&heard[s], 2); }}
    fence_init();
  }}
  cluster_sync();
  if (me == 0) {{
    if (t == 0)
      for (int i = 0;; i++) {{
        int s = i & 1;
        if (i >= 2) wait_cluster(&heard[s], (i >> 1) - 1 & 1);
        int next = atomicAdd(counter, 1);
        for (int r = 1; r < 3; r++) {{
          asm volatile("st.shared::cluster.s32 [%0], %1;" :: "r"(far(&tile[s], r)), "r"(next) : "memory");
          arrive_far(far(&told[s], r));
        }}
        if (next >= tiles) break;
      }}
    __syncwarp();
  }} else {{
    for (int i = 0;; i++) {{
      int s = i & 1;
      wait_cluster(&told[s], i >> 1 & 1);
      int mine = tile[s];
      __syncthreads();
      if (t == 0) arrive_far(far(&heard[s], 0));
      if (mine >= tiles) break;
      for (int j = t; j < 50; j += 64) {{
        int at = mine * 100 + (me - 1) * 50 + j;
        y[at] = 2 * x[at] + mine;
      }}
    }}
  }}
  cluster_sync();
}}""",
    make=lambda rng, tiles: _told(rng, tiles),
    shapes=((11,), (1,), (6,)),
    grid=lambda tiles: (6,),
    block=64,
    faults=(
        ("        if (i >= 2) wait_cluster(&heard[s], (i >> 1) - 1 & 1);\n", "", ""),
        ("(i >> 1) - 1 & 1", "i >> 1 & 1", ""),
        ("wait_cluster(&told[s], i >> 1 & 1)", "wait_cluster(&told[s], i & 1)", ""),
        ("      __syncthreads();\n      if (t == 0) arrive_far", "      if (t == 0) arrive_far", WAR),
        ("init(&heard[s], 2)", "init(&heard[s], 1)", MISUSE),
        ("arrive_far(far(&heard[s], 0))", "arrive(&heard[s])", HANG),
        ("    __syncwarp();\n  } else", "  } else", ""),
        ("  }\n  cluster_sync();\n}", "  }\n}", LEFT),
        ("r < 3; r++", "r < 2; r++", HANG),
        ("next = atomicAdd(counter, 1)", "next = (*counter)++", RACE),
        ('"r"(far(&tile[s], r)), "r"(next)', '"r"(far(&tile[s ^ 1], r)), "r"(next)', ""),
        ("if (mine >= tiles) break;\n      for", "if (mine > tiles) break;\n      for", ""),
    ),
)


def _told(rng: Rng, tiles: int) -> Given:
    x, y = whole(rng, tiles, 100), np.zeros((tiles, 100), f32)
    return [x, y, np.zeros(1, i32), i32(tiles)], [(y, 2 * x + np.arange(tiles)[:, None])]


add(
    "decoding attention: a cluster shares the keys of a query, and combines maxima, sums and outputs",
    source=f"""{MORE}
{entry(2)}(const float* q, const float* keys, const float* values, float* out, int n) {{
  constexpr int D = 32;
  __shared__ float m[4], l[4], o[4][D];        // of each warp
  __shared__ float gm, gl, go[D];              // of the block
  int t = threadIdx.x, w = t / 32, lane = t % 32, me = rank(), head = blockIdx.x / 2;
  float ql = q[head * D + lane], mx = -INFINITY, sum = 0, acc = 0;
  for (int j = me * 4 + w; j < n; j += 8) {{
    float s = ql * keys[((long)head * n + j) * D + lane];
    for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
    float now = fmaxf(mx, s), keep = exp2f(mx - now), p = exp2f(s - now);
    sum = sum * keep + p;
    acc = acc * keep + p * values[((long)head * n + j) * D + lane];
    mx = now;
  }}
  o[w][lane] = acc;
  if (lane == 0) {{ m[w] = mx; l[w] = sum; }}
  __syncthreads();
  if (w == 0) {{
    float all = fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3])), a = 0, b = 0;
    for (int i = 0; i < 4; i++) {{
      float f = m[i] == -INFINITY ? 0 : exp2f(m[i] - all);
      a += f * l[i];
      b += f * o[i][lane];
    }}
    go[lane] = b;
    if (lane == 0) {{ gm = all; gl = a; }}
  }}
  cluster_sync();
  if (me == 0 && w == 0) {{
    float om = get(far(&gm, 1)), ol = get(far(&gl, 1)), oo = get(far(&go[lane], 1));
    float all = fmaxf(gm, om), f = exp2f(gm - all), g = om == -INFINITY ? 0 : exp2f(om - all);
    out[head * D + lane] = (f * go[lane] + g * oo) / (f * gl + g * ol);
  }}
  cluster_sync();
}}""".replace("INFINITY", '__int_as_float(0x7f800000)'),
    make=lambda rng, heads, n: _decoded(rng, heads, n),
    shapes=((2, 37), (1, 1), (3, 8)),
    grid=lambda heads, n: (2 * heads,),
    block=128,
    tolerance=1e-4,
    faults=(
        ("  __syncthreads();\n  if (w == 0) {", "  if (w == 0) {", RAW),
        ("  }\n  cluster_sync();\n  if (me", "  }\n  __syncthreads();\n  if (me", RAW),
        ("  }\n  cluster_sync();\n}", "  }\n}", LEFT),
        ("get(far(&gm, 1))", "get(far(&gm, me))", WRONG),
        ("sum = sum * keep + p;", "sum = sum + p;", WRONG),
        ("float s = ql", "if (j & 32) continue; float s = ql", WRONG),
        ("s += __shfl_xor_sync(~0u, s, d)", "s += __shfl_down_sync(~0u, s, d)", WRONG),
    ),
)


def _decoded(rng: Rng, heads: int, n: int) -> Given:
    q, (keys, values) = rng.standard_normal((heads, 32)), rng.standard_normal((2, heads, n, 32))
    given = [a.astype(f32) for a in (q, keys, values)]
    s = np.einsum("hd,hnd->hn", q, keys)
    p = 2.0 ** (s - s.max(1, keepdims=True))
    out = np.zeros((heads, 32), f32)
    return [*given, out, i32(n)], [(out, np.einsum("hn,hnd->hd", p / p.sum(1, keepdims=True), values))]


add(
    "a transposition over a cluster: tiles exchanged through memory of the other blocks",
    source=f"""{MORE}
{entry(2, 2)}(const float* x, float* y, int n) {{
  __shared__ float tile[16][17];
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16, me = rank(), other = (me & 1) << 1 | me >> 1;
  int col = blockIdx.x * 16 + tx, row = blockIdx.y * 16 + ty;
  cluster_sync();                       // all blocks have started
  float v = row < n && col < n ? x[row * n + col] : 0.f;
  put(far(&tile[tx][ty], other), v);
  cluster_sync();
  int cx = blockIdx.x / 2 * 2, cy = blockIdx.y / 2 * 2;      // of the cluster
  row = cx * 16 + (blockIdx.y - cy) * 16 + ty;
  col = cy * 16 + (blockIdx.x - cx) * 16 + tx;
  if (row < n && col < n) y[row * n + col] = tile[ty][tx];
}}""",
    make=lambda rng, n: _turned(rng, n),
    shapes=((64,), (45,), (5,)),
    grid=lambda n: (-(-n // 32) * 2, -(-n // 32) * 2),
    block=256,
    faults=(
        ("  cluster_sync();                       // all blocks have started\n", "", ""),
        ("v);\n  cluster_sync();", "v);\n  __syncthreads();", ""),
        ("far(&tile[tx][ty], other)", "far(&tile[tx][ty], me)", WRONG),
        ("(me & 1) << 1 | me >> 1", "me ^ 1", WRONG),
        ("far(&tile[tx][ty], other)", "far(&tile[tx][tx], other)", WAW),
    ),
)


def _turned(rng: Rng, n: int) -> Given:
    x, y = whole(rng, n, n), np.zeros((n, n), f32)
    return [x, y, i32(n)], [(y, x.T)]
