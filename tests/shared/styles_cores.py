"""Kernels of CUDA cores and of mma.sync, in the styles of CUTLASS 2.x, CUB, cuda-samples and Triton."""

from __future__ import annotations

import numpy as np

from shared.styles import (
    BOUNDS, HANG, NEVER, RACE, RAW, WAR, WAW, WRONG, Given, Rng, add, f16, f32, i32, u32, whole,
)  # fmt: skip

K = 'extern "C" __global__ void k'
CORES = ("lockstep", "backward", "delayed")

add(
    "product by ldmatrix and mma.sync from swizzled stages of cp.async",
    source=f"""typedef unsigned u32;
static __device__ u32 at(const void* p) {{ return (u32)__cvta_generic_to_shared(p); }}
static __device__ void copy(void* to, const void* from, int size) {{
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(at(to)), "l"(from), "r"(size)); }}
{K}(const unsigned short* a, const unsigned short* b, float* c, int m, int n, int k) {{
  constexpr int BM = 32, BN = 32, BK = 32, S = 3;      // rows of four 16-byte chunks
  __shared__ __align__(128) unsigned short sa[S][BM * BK], sb[S][BN * BK];
  int t = threadIdx.x, warp = t / 32, lane = t % 32, m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  auto place = [](int row, int chunk) {{ return row * BK + ((chunk ^ (row >> 1 & 3)) << 3); }};
  auto fetch = [&](int s, int k0) {{
    int row = t / 4, chunk = t % 4;
    bool ka = k0 + chunk * 8 < k;
    copy(&sa[s][place(row, chunk)], ka && m0 + row < m ? a + (m0 + row) * k + k0 + chunk * 8 : a, ka && m0 + row < m ? 16 : 0);
    copy(&sb[s][place(row, chunk)], ka && n0 + row < n ? b + (n0 + row) * k + k0 + chunk * 8 : b, ka && n0 + row < n ? 16 : 0);
  }};
  int steps = (k + BK - 1) / BK;
  for (int s = 0; s < S - 1; s++) {{
    if (s < steps) fetch(s, s * BK);
    asm volatile("cp.async.commit_group;");
  }}
  int wm = warp / 2 * 16, wn = warp % 2 * 16;
  float d[2][4] = {{}};
  for (int i = 0; i < steps; i++) {{
    asm volatile("cp.async.wait_group %0;" :: "n"(S - 2) : "memory");
    __syncthreads();
    if (i + S - 1 < steps) fetch((i + S - 1) % S, (i + S - 1) * BK);
    asm volatile("cp.async.commit_group;");
    int s = i % S;
    for (int kk = 0; kk < 2; kk++) {{
      u32 x[4], y[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
        : "r"(at(&sa[s][place(wm + lane % 16, kk * 2 + lane / 16)])));
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
        : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3])
        : "r"(at(&sb[s][place(wn + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2)])));
      for (int j = 0; j < 2; j++)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
          : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
          : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[2 * j]), "r"(y[2 * j + 1]));
    }}
  }}
  for (int j = 0; j < 2; j++)
    for (int e = 0; e < 4; e++) {{
      int row = m0 + wm + lane / 4 + e / 2 * 8, col = n0 + wn + j * 8 + lane % 4 * 2 + e % 2;
      if (row < m && col < n) c[row * n + col] = d[j][e];
    }}
}}""",
    make=lambda rng, m, n, k: _halves(rng, m, n, k),
    shapes=((64, 32, 136), (40, 50, 32), (7, 9, 200)),
    grid=lambda m, n, k: (-(-n // 32), -(-m // 32)),
    block=128,
    schedules=CORES,
    faults=(
        ('"n"(S - 2)', '"n"(S - 1)', ""),
        ("    __syncthreads();\n    if (i + S", "    if (i + S", ""),
        ("fetch((i + S - 1) % S, (i", "fetch((i + S) % S, (i", ""),
        ('BK);\n    asm volatile("cp.async.commit_group;");\n    int s', "BK);\n    int s", ""),
        ("place(wm + lane % 16, kk * 2 + lane / 16)", "place(wm + lane % 16, kk * 2 + lane / 16 + 1)", ""),
        ("(row >> 1 & 3)) << 3", "(row & 7)) << 3", ""),
        ("y[2 * j]), \"r\"(y[2 * j + 1])", "y[j]), \"r\"(y[j + 2])", WRONG),
        ("ka && m0 + row < m ? 16 : 0);", "m0 + row < m ? 16 : 0);", ""),
        ("if (i + S - 1 < steps) fetch", "fetch", ""),
        ("__align__(128) unsigned short sa[S][BM * BK]", "__align__(128) unsigned short sa[S - 1][BM * BK]", ""),
        ("int s = i % S;", "int s = (i + 1) % S;", ""),
    ),
)


def _halves(rng: Rng, m: int, n: int, k: int) -> Given:
    a, b, c = whole(rng, m, k).astype(f16), whole(rng, n, k).astype(f16), np.zeros((m, n), f32)
    return [a, b, c, i32(m), i32(n), i32(k)], [(c, a.astype(f32) @ b.astype(f32).T)]


add(
    "one pass of a radix sort: ranks by match_any, digits' offsets by a scan, tiles by look-back",
    source=f"""{K}(const unsigned* in, unsigned* out, unsigned* status, unsigned* ticket, int n, int shift) {{
  constexpr int R = 16, W = 4;                       // digits, warps
  __shared__ unsigned counts[W][R], base[R], tile, all[R];
  int t = threadIdx.x, w = t / 32, lane = t % 32;
  if (t == 0) tile = atomicAdd(ticket, 1);
  for (int i = t; i < W * R; i += 128) counts[i / R][i % R] = 0;
  if (t < R) all[t] = 0;
  __syncthreads();
  // The histogram of the whole input, by every block (it is small)
  for (int i = t; i < n; i += 128) atomicAdd(&all[in[i] >> shift & 15], 1);
  int at = tile * 128 + t;
  unsigned key = at < n ? in[at] : 0xffffffffu, digit = at < n ? key >> shift & 15 : 99;
  unsigned same = __match_any_sync(~0u, digit), before = same & ((1u << lane) - 1);
  if (at < n && !before) counts[w][digit] = __popc(same);
  __syncthreads();
  if (t < R) {{
    unsigned mine = 0;
    for (int j = 0; j < W; j++) {{ unsigned c = counts[j][t]; counts[j][t] = mine; mine += c; }}
    volatile unsigned* s = status;
    unsigned sum = 0;
    if (tile > 0) {{
      s[tile * R + t] = 1u << 30 | mine;             // an aggregate
      for (int b = tile - 1; b >= 0; b--) {{
        unsigned v;
        do v = s[b * R + t]; while (v >> 30 == 0);
        sum += v & 0x3fffffff;
        if (v >> 30 == 2) break;
      }}
    }}
    s[tile * R + t] = 2u << 30 | (sum + mine);
    unsigned first = all[t];
    for (int d = 1; d < R; d *= 2) {{
      unsigned o = __shfl_up_sync(0xffff, first, d);
      if (t >= d) first += o;
    }}
    base[t] = first - all[t] + sum;
  }}
  __syncthreads();
  if (at < n) out[base[digit] + counts[w][digit] + __popc(before)] = key;
}}""",
    make=lambda rng, n: _digits(rng, n),
    shapes=((700,), (128,), (77,)),
    grid=lambda n: (-(-n // 128),),
    block=128,
    schedules=CORES,
    faults=(
        ("  __syncthreads();\n  // The", "  // The", ""),
        ("__popc(same);\n  __syncthreads();", "__popc(same);", ""),
        ("  }\n  __syncthreads();\n  if (at", "  }\n  if (at", ""),
        ("__match_any_sync(~0u, digit)", "__match_any_sync(0xffff, digit)", ""),
        ("__shfl_up_sync(0xffff,", "__shfl_up_sync(~0u,", ""),
        ("volatile unsigned* s", "unsigned* s", ""),
        ("counts[j][t] = mine; mine += c;", "mine += c; counts[j][t] = mine;", WRONG),
        ("if (v >> 30 == 2) break;", "", WRONG),
        ("if (t == 0) tile = atomicAdd(ticket, 1);", "tile = blockIdx.x;", ""),
        ("if (!before", "if (before", ""),
        ("__popc(before)] = key", "__popc(same)] = key", ""),
        ("if (tile > 0) {", "if (tile > 1) {", ""),
    ),
)


def _digits(rng: Rng, n: int) -> Given:
    keys, out = rng.integers(0, 2**32, n).astype(u32), np.zeros(n, u32)
    tiles = -(-n // 128)
    wanted = keys[np.argsort(keys >> 8 & 15, kind="stable")]
    return [keys, out, np.zeros(tiles * 16, u32), np.zeros(1, u32), i32(n), i32(8)], [(out, wanted)]


add(
    "stencil of 25 points' kind: planes go through registers, a plane in shared memory",
    source=f"""{K}(const float* in, float* out, int nx, int ny, int nz) {{
  constexpr int R = 2, X = 16, Y = 8;
  __shared__ float plane[Y + 2 * R][X + 2 * R];
  int tx = threadIdx.x % X, ty = threadIdx.x / X, x = blockIdx.x * X + tx, y = blockIdx.y * Y + ty;
  bool inside = x < nx && y < ny;
  auto at = [&](int i, int j, int l) {{
    i = min(max(i, 0), nx - 1); j = min(max(j, 0), ny - 1);
    return l < 0 || l >= nz ? 0.f : in[(l * ny + j) * nx + i]; }};
  float behind[R], now, ahead[R];
  for (int r = 0; r < R; r++) {{ behind[r] = 0; ahead[r] = at(x, y, r + 1); }}
  now = at(x, y, 0);
  for (int z = 0; z < nz; z++) {{
    plane[ty + R][tx + R] = now;
    if (tx < R) {{ plane[ty + R][tx] = at(x - R, y, z); plane[ty + R][tx + X + R] = at(x + X, y, z); }}
    if (ty < R) {{ plane[ty][tx + R] = at(x, y - R, z); plane[ty + Y + R][tx + R] = at(x, y + Y, z); }}
    __syncthreads();
    float s = -12 * now;
    for (int r = 1; r <= R; r++)
      s += plane[ty + R][tx + R - r] + plane[ty + R][tx + R + r] + plane[ty + R - r][tx + R] + plane[ty + R + r][tx + R]
         + behind[r - 1] + ahead[r - 1];
    if (inside) out[(z * ny + y) * nx + x] = s;
    for (int r = R - 1; r > 0; r--) behind[r] = behind[r - 1];
    behind[0] = now; now = ahead[0];
    for (int r = 0; r < R - 1; r++) ahead[r] = ahead[r + 1];
    ahead[R - 1] = at(x, y, z + R + 1);
    __syncthreads();
  }}
}}""",
    make=lambda rng, x, y, z: _stencil(rng, x, y, z),
    shapes=((35, 17, 5), (16, 8, 1), (3, 30, 4)),
    grid=lambda x, y, z: (-(-x // 16), -(-y // 8)),
    block=128,
    schedules=CORES,
    faults=(
        ("    __syncthreads();\n    float s", "    float s", ""),
        ("    __syncthreads();\n  }\n}", "  }\n}", ""),
        ("if (tx < R) { plane", "if (tx < R - 1) { plane", ""),
        ("plane[Y + 2 * R][X + 2 * R]", "plane[Y + 2 * R][X + R]", ""),
        ("if (inside) out", "out", ""),
        ("z + R + 1)", "z + R)", WRONG),
        ("if (inside) out", "if (!inside) return; out", ""),
        ("tx + X + R] = at(x + X, y, z)", "tx + X + R] = at(x + X + 1, y, z)", WRONG),
    ),
)


def _stencil(rng: Rng, nx: int, ny: int, nz: int) -> Given:
    a, out = whole(rng, nz, ny, nx), np.zeros((nz, ny, nx), f32)
    padded = np.pad(np.pad(a, ((0, 0), (2, 2), (2, 2)), mode="edge"), ((2, 2), (0, 0), (0, 0)))
    wanted = -12 * a
    for r in (1, 2, -1, -2):
        for axis in range(3):
            wanted = wanted + np.roll(padded, r, axis)[2:-2, 2:-2, 2:-2]
    return [a, out, i32(nx), i32(ny), i32(nz)], [(out, wanted)]


add(
    "matrix of CSR times a vector, its entries and rows split evenly as a merge",
    source=f"""{K}(const int* ends, const int* cols, const float* values, const float* x, float* y,
               int rows, int entries, int each, int* carry_row, float* carry) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  int diagonal = min(i * each, rows + entries), end = min(diagonal + each, rows + entries);
  auto split = [&](int d, int& row, int& entry) {{
    int low = max(d - entries, 0), high = min(d, rows);
    while (low < high) {{
      int middle = (low + high) / 2;
      if (ends[middle] <= d - middle - 1) low = middle + 1; else high = middle;
    }}
    row = low; entry = d - low;
  }};
  int row, entry, last_row, last;
  split(diagonal, row, entry);
  split(end, last_row, last);
  float s = 0;
  for (; row < last_row; row++) {{
    for (; entry < ends[row]; entry++) s += values[entry] * x[cols[entry]];
    y[row] = s;
    s = 0;
  }}
  for (; entry < last; entry++) s += values[entry] * x[cols[entry]];
  carry_row[i] = last_row; carry[i] = s;
  cooperative(threads);
  if (i == 0)
    for (int j = 0; j < threads; j++) if (carry_row[j] < rows) y[carry_row[j]] += carry[j];
}}
""".replace("{K}", K).replace(K, """static __device__ unsigned arrived;
static __device__ void cooperative(int) {
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned seen;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(&arrived) : "memory");
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&arrived) : "memory");
    while (seen < gridDim.x);
  }
  __syncthreads();
}
""" + K),
    make=lambda rng, rows, entries: _merged(rng, rows, entries),
    shapes=((40, 300), (5, 500), (90, 20)),
    grid=lambda rows, entries: (2,),
    block=32,
    schedules=CORES,
    faults=(
        ("red.release.gpu", "red.relaxed.gpu", RACE),
        ("ld.acquire.gpu", "ld.relaxed.gpu", RACE),
        ("static __device__ void cooperative(int) {\n  __syncthreads();", "static __device__ void cooperative(int) {", ""),
        ("    while (seen < gridDim.x);\n  }\n  __syncthreads();", "    while (seen < gridDim.x);\n  }", ""),
        ("while (seen < gridDim.x)", "while (seen < gridDim.x - 1)", ""),
        ("while (seen < gridDim.x)", "while (seen <= gridDim.x)", HANG),
        ("ends[middle] <= d", "ends[middle] < d", ""),
        ("release.gpu", "release.cta", ""),
        ("    y[row] = s;\n    s = 0;", "    y[row] = s;", WRONG),
    ),
)


def _merged(rng: Rng, rows: int, entries: int) -> Given:
    which = np.sort(rng.integers(0, rows, entries))
    ends = np.searchsorted(which, np.arange(rows), side="right").astype(i32)
    cols, values, x = rng.integers(0, 50, entries).astype(i32), whole(rng, entries), whole(rng, 50)
    y, threads = np.zeros(rows, f32), 64
    each = -(-(rows + entries) // threads)
    wanted = np.bincount(which, values * x[cols], minlength=rows)
    more = [i32(rows), i32(entries), i32(each), np.zeros(threads, i32), np.zeros(threads, f32)]
    return [ends, cols, values, x, y, *more], [(y, wanted)]


add(
    "lists of hash buckets, pushed without locks by exchanges, then counted",
    source=f"""{K}(const int* keys, int* heads, int* next, int* found, int* done, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __shared__ bool last;
  if (i < n) {{
    unsigned h = (unsigned)keys[i] * 0x9e3779b1u >> 27;
    int old = heads[h];
    for (;;) {{
      *(volatile int*)&next[i] = old;
      __threadfence();
      int seen = atomicCAS(&heads[h], old, i);
      if (seen == old) break;
      old = seen;
    }}
  }}
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(done, 1) == gridDim.x - 1;
  __syncthreads();
  if (last) {{
    __threadfence();
    for (int h = threadIdx.x; h < 32; h += blockDim.x) {{
      int c = 0;
      for (int j = *(volatile int*)&heads[h]; j >= 0; j = *(volatile int*)&next[j]) c += keys[j];
      found[h] = c;
    }}
  }}
}}""",
    make=lambda rng, n: _buckets(rng, n),
    shapes=((150,), (64,), (1,)),
    grid=lambda n: (-(-n // 64),),
    block=64,
    schedules=CORES,
    faults=(
        ("  __threadfence();\n  __syncthreads();\n  if (threadIdx.x == 0) last", "  if (threadIdx.x == 0) last", ""),
        ("  __syncthreads();\n  if (last)", "  if (last)", ""),
        ("int seen = atomicCAS(&heads[h], old, i);", "int seen = heads[h]; if (seen == old) heads[h] = i;", ""),
        ("      old = seen;\n", "", HANG),
        ("== gridDim.x - 1", "== gridDim.x - 2", ""),
        (">> 27", ">> 26", ""),
    ),
)


def _buckets(rng: Rng, n: int) -> Given:
    keys = rng.integers(1, 1000, n).astype(i32)
    bucket = (keys.astype(np.uint64) * 0x9E3779B1 & 0xFFFFFFFF) >> 27
    found = np.zeros(32, i32)
    wanted = np.bincount(bucket.astype(int), keys, minlength=32)
    return [keys, np.full(32, -1, i32), np.zeros(n, i32), found, np.zeros(1, i32), i32(n)], [(found, wanted)]


add(
    "queue between two blocks, of tickets with acquire and release",
    source=f"""static __device__ int get(int* p) {{
  int v; asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }}
static __device__ void put(int* p, int v) {{ asm volatile("st.release.gpu.s32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }}
{K}(const int* in, int* out, int* ring, int* head, int* tail, int tiles) {{
  constexpr int S = 4;
  int t = threadIdx.x;
  for (int i = 0; i < tiles; i++) {{
    if (blockIdx.x == 0) {{
      if (t == 0) while (i - get(tail) >= S) __nanosleep(20);
      __syncthreads();
      ring[i % S * 32 + t] = in[i * 32 + t] * 3;
      __syncthreads();
      if (t == 0) put(head, i + 1);
    }} else {{
      if (t == 0) while (get(head) <= i) __nanosleep(20);
      __syncthreads();
      out[i * 32 + t] = ring[i % S * 32 + (t ^ 1)];
      __syncthreads();
      if (t == 0) put(tail, i + 1);
    }}
  }}
}}""",
    make=lambda rng, tiles: _queue(rng, tiles),
    shapes=((13,), (1,), (4,)),
    grid=lambda tiles: (2,),
    block=32,
    schedules=CORES,
    faults=(
        ("ld.acquire.gpu", "ld.relaxed.gpu", ""),
        ("st.release.gpu", "st.relaxed.gpu", ""),
        ("ld.acquire.gpu", "ld.acquire.cta", ""),
        (">= S)", "> S)", ""),
        ("* 3;\n      __syncthreads();", "* 3;", ""),
        ("(t ^ 1)];\n      __syncthreads();", "(t ^ 1)];", ""),
        ("__nanosleep(20);\n      __syncthreads();\n      out", "__nanosleep(20);\n      out", ""),
        ("put(head, i + 1)", "put(head, i)", HANG),
        ("get(head) <= i", "get(head) < i", ""),
        ("ld.acquire.gpu.s32", "ld.s32", ""),
    ),
)


def _queue(rng: Rng, tiles: int) -> Given:
    a, out = rng.integers(0, 99, (tiles, 32)).astype(i32), np.zeros((tiles, 32), i32)
    wanted = 3 * a[:, np.arange(32) ^ 1]
    return [a, out, np.zeros(128, i32), np.zeros(1, i32), np.zeros(1, i32), i32(tiles)], [(out, wanted)]


add(
    "largest four of each row: a warp's lists merged by shuffles",
    source=f"""{K}(const float* x, float* best, int* which, int rows, int n) {{
  int lane = threadIdx.x % 32, row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;
  float v[4]; int id[4];
  for (int i = 0; i < 4; i++) {{ v[i] = -1e30f; id[i] = -1; }}
  for (int j = lane; j < n; j += 32) {{
    float y = x[row * n + j]; int at = j;
    for (int i = 0; i < 4; i++)
      if (y > v[i]) {{ float f = v[i]; v[i] = y; y = f; int q = id[i]; id[i] = at; at = q; }}
  }}
  for (int r = 0; r < 4; r++) {{
    float top = v[0]; int at = id[0];
    for (int d = 16; d; d /= 2) {{
      float o = __shfl_xor_sync(~0u, top, d); int oa = __shfl_xor_sync(~0u, at, d);
      if (o > top || (o == top && oa < at)) {{ top = o; at = oa; }}
    }}
    if (id[0] == at) {{ for (int i = 0; i < 3; i++) {{ v[i] = v[i + 1]; id[i] = id[i + 1]; }} v[3] = -1e30f; id[3] = -1; }}
    if (lane == 0) {{ best[row * 4 + r] = top; which[row * 4 + r] = at; }}
  }}
}}""",
    make=lambda rng, rows, n: _top(rng, rows, n),
    shapes=((5, 100), (1, 4), (9, 33)),
    grid=lambda rows, n: (-(-rows // 2),),
    block=64,
    schedules=CORES,
    faults=(
        ("o = __shfl_xor_sync(~0u, top, d)", "o = __shfl_xor_sync(0xffff, top, d)", ""),
        ("if (lane == 0) { best", "if (lane < 2) { best", ""),
        ("if (lane == 0) { best", "if (at % 32 == lane) { best", ""),
        ("if (row >= rows) return;", "if (row > rows) return;", BOUNDS),
        ("int oa = __shfl_xor_sync(~0u, at, d);", "int oa = d > 8 ? at : __shfl_xor_sync(~0u, at, d);", WRONG),
        ("j < n; j += 32", "j <= n; j += 32", ""),
        ("(o == top && oa < at)", "o == top", WRONG),
    ),
)


def _top(rng: Rng, rows: int, n: int) -> Given:
    x = rng.permutation(rows * n).reshape(rows, n).astype(f32)
    best, which = np.zeros((rows, 4), f32), np.zeros((rows, 4), i32)
    order = np.argsort(-x, axis=1)[:, :4]
    return [x, best, which, i32(rows), i32(n)], [(best, np.take_along_axis(x, order, 1)), (which, order)]


add(
    "flash attention on CUDA cores, keys and values two stages ahead by __pipeline_memcpy_async",
    source=f"""#include <cuda_pipeline.h>
{K}(const float* q, const float* key, const float* value, float* out, int n) {{
  constexpr int D = 16, T = 16;
  __shared__ __align__(16) float ks[2][T][D], vs[2][T][D];
  int t = threadIdx.x, row = blockIdx.x * 64 + t, tiles = (n + T - 1) / T;
  auto fetch = [&](int i) {{
    int r = t / 4, c = t % 4 * 4, at = i * T + r;
    int zero = at < n ? 0 : 16;
    __pipeline_memcpy_async(&ks[i & 1][r][c], key + min(at, n - 1) * D + c, 16, zero);
    __pipeline_memcpy_async(&vs[i & 1][r][c], value + min(at, n - 1) * D + c, 16, zero);
    __pipeline_commit();
  }};
  float mine[D], o[D] = {{}}, m = -1e30f, l = 0;
  for (int d = 0; d < D; d++) mine[d] = row < n ? q[row * D + d] : 0;
  fetch(0);
  for (int i = 0; i < tiles; i++) {{
    if (i + 1 < tiles) {{ fetch(i + 1); __pipeline_wait_prior(1); }} else __pipeline_wait_prior(0);
    __syncthreads();
    for (int j = 0; j < T && i * T + j < n; j++) {{
      float s = 0;
      for (int d = 0; d < D; d++) s += mine[d] * ks[i & 1][j][d];
      float now = fmaxf(m, s), keep = exp2f(m - now), p = exp2f(s - now);
      for (int d = 0; d < D; d++) o[d] = o[d] * keep + p * vs[i & 1][j][d];
      l = l * keep + p; m = now;
    }}
    __syncthreads();
  }}
  if (row < n) for (int d = 0; d < D; d++) out[row * D + d] = o[d] / l;
}}""",
    make=lambda rng, n: _attention(rng, n),
    shapes=((70,), (16,), (33,)),
    grid=lambda n: (-(-n // 64),),
    block=64,
    schedules=("lockstep", "backward"),
    headers=True,
    tolerance=1e-4,
    faults=(
        ("__pipeline_wait_prior(1)", "__pipeline_wait_prior(2)", ""),
        ("else __pipeline_wait_prior(0);", "", ""),
        ("    __syncthreads();\n    for (int j", "    for (int j", ""),
        ("    __syncthreads();\n  }\n  if (row", "  }\n  if (row", ""),
        ("    __pipeline_commit();\n", "", ""),
        ("l = l * keep + p; m = now;", "l = l + p; m = now;", WRONG),
        ("c, 16, zero);\n    __pipeline_commit", "c, 16);\n    __pipeline_commit", ""),
        ("min(at, n - 1) * D + c, 16, zero);\n    __pipeline_memcpy", "at * D + c, 16, zero);\n    __pipeline_memcpy", ""),
    ),
)


def _attention(rng: Rng, n: int) -> Given:
    q, key, value = rng.standard_normal((3, n, 16)).astype(f32)
    s = q.astype(float) @ key.T
    p, out = 2.0 ** (s - s.max(1, keepdims=True)), np.zeros((n, 16), f32)
    return [q, key, value, out, i32(n)], [(out, p / p.sum(1, keepdims=True) @ value)]
