"""Kernels as strangers bring them: small, of many kinds, each with what it computes and a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Given = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Strange:
    """A kernel `k`: its source, its launch, and the fault that makes it wrong.

    given: returns its arguments, arrays and scalars
    right: returns of the arguments, before the launch, what the first `len(right)` arrays hold after it;
      None for one that is not compared
    fault: the text to replace, and what replaces it
    shared: bytes of dynamic shared memory
    headers: it includes those of CUDA, which take seconds to compile
    """

    source: str
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    given: Callable[[np.random.Generator], Given]
    right: Callable[..., tuple[np.ndarray | None, ...]]
    fault: tuple[str, str]
    shared: int = 0
    headers: bool = False


STRANGE: dict[str, Strange] = {}


def add(name: str, **parts: Any) -> None:
    STRANGE[name] = Strange(**parts)


def ints(rng: np.random.Generator, *shape: int, low: int = 0, high: int = 100) -> np.ndarray:
    return rng.integers(low, high, shape).astype(np.int32)


def zeros(*shape: int, kind: Any = np.int32) -> np.ndarray:
    return np.zeros(shape, kind)


K = 'extern "C" __global__ void k'


# Atomics


add(
    "filter, its atomics aggregated by warp",
    source=f"""{K}(const int* a, int* o, int* count, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
  bool keep = i < n && a[i] > 50;
  unsigned who = __ballot_sync(~0u, keep);
  int leader = __ffs(who) - 1, base = 0;
  if (lane == leader) base = atomicAdd(count, __popc(who));
  if (!who) return;
  base = __shfl_sync(~0u, base, leader);
  if (keep) o[base + __popc(who & ((1u << lane) - 1))] = a[i];
}}""",
    grid=4,
    block=64,
    given=lambda rng: (ints(rng, 250), zeros(250), zeros(1), np.int32(250)),
    right=lambda a, o, count, n: (a, None, np.array([(a > 50).sum()])),
    fault=("base, leader", "base, 0"),
)

add(
    "histogram with a private copy for each warp",
    source=f"""{K}(const int* a, int* h, int n) {{
  __shared__ int mine[4][32];
  int t = threadIdx.x, w = t >> 5;
  mine[w][t & 31] = 0;
  __syncwarp();
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&mine[w][a[i] & 31], 1);
  __syncthreads();
  if (t < 32) {{
    int s = 0;
    for (int j = 0; j < 4; j++) s += mine[j][t];
    if (s) atomicAdd(&h[t], s);
  }}
}}""",
    grid=3,
    block=128,
    given=lambda rng: (ints(rng, 1000), zeros(32), np.int32(1000)),
    right=lambda a, h, n: (a, np.bincount(a & 31, minlength=32)),
    fault=("  __syncthreads();\n", ""),
)

add(
    "largest element and its place, packed into 64 bits",
    source=f"""{K}(const float* a, unsigned long long* best, int n) {{
  __shared__ unsigned long long b;
  if (threadIdx.x == 0) b = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {{
    unsigned bits = __float_as_uint(a[i]);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    atomicMax(&b, (unsigned long long)bits << 32 | (unsigned)i);
  }}
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(best, b);
}}""",
    grid=3,
    block=64,
    given=lambda rng: (rng.standard_normal(500).astype(np.float32), zeros(1, kind=np.uint64), np.int32(500)),
    right=lambda a, best, n: (
        a,
        np.array([(int(a.max().view(np.uint32)) | 0x80000000) << 32 | int(a.argmax())], np.uint64),
    ),
    fault=("atomicMax(best, b)", "if (*best < b) *best = b"),
)

add(
    "hash table with open addresses",
    source=f"""{K}(const int* keys, int* slots, int* counts, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int key = keys[i];
  unsigned h = (unsigned)key * 2654435761u >> 25;
  for (;;) {{
    int found = atomicCAS(&slots[h], -1, key);
    if (found == -1 || found == key) {{ atomicAdd(&counts[h], 1); return; }}
    h = (h + 1) & 127;
  }}
}}""",
    grid=4,
    block=64,
    given=lambda rng: (ints(rng, 240), np.full(128, -1, np.int32), zeros(128), np.int32(240)),
    right=lambda keys, slots, counts, n: (keys, None, None),
    fault=("atomicCAS(&slots[h], -1, key);", "slots[h]; if (found == -1) slots[h] = key;"),
)

add(
    "sum of doubles by compare and swap",
    source=f"""__device__ double sum(double* at, double v) {{
  unsigned long long* bits = (unsigned long long*)at, old = *bits, seen;
  do {{
    seen = old;
    old = atomicCAS(bits, seen, __double_as_longlong(v + __longlong_as_double(seen)));
  }} while (seen != old);
  return __longlong_as_double(old);
}}
{K}(const double* a, double* o, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) sum(o, a[i]);
}}""",
    grid=2,
    block=64,
    given=lambda rng: (ints(rng, 100).astype(np.float64), zeros(1, kind=np.float64), np.int32(100)),
    right=lambda a, o, n: (a, np.array([a.sum()])),
    fault=(
        "atomicCAS(bits, seen, __double_as_longlong(v + __longlong_as_double(seen)))",
        "seen; *bits = __double_as_longlong(v + __longlong_as_double(seen))",
    ),
)

add(
    "labels of components by the smallest neighbour",
    source=f"""{K}(const int* from, const int* to, int* label, int* changed, int edges) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= edges) return;
  volatile int* seen = label;
  int a = seen[from[i]], b = seen[to[i]];
  if (a == b) return;
  int before = atomicMin(&label[a > b ? from[i] : to[i]], a < b ? a : b);
  if (before > (a < b ? a : b)) atomicExch(changed, 1);
}}""",
    grid=2,
    block=64,
    given=lambda rng: (
        ints(rng, 100, high=40),
        ints(rng, 100, high=40),
        np.arange(40, dtype=np.int32),
        zeros(1),
        np.int32(100),
    ),
    right=lambda f, t, label, changed, n: (f, t, None, np.array([1])),
    fault=("volatile int* seen", "int* seen"),
)

# Scans, sorts, reductions


add(
    "prefix sums in one pass, which look back",
    source=f"""__device__ volatile int state[16], part[16], whole[16];
__device__ int ticket;
{K}(const int* a, int* o) {{
  __shared__ int s[64], before, b;
  int t = threadIdx.x;
  if (t == 0) b = atomicAdd(&ticket, 1);
  __syncthreads();
  int i = b * 64 + t;
  s[t] = a[i];
  __syncthreads();
  for (int d = 1; d < 64; d *= 2) {{
    int v = t >= d ? s[t - d] : 0;
    __syncthreads();
    s[t] += v;
    __syncthreads();
  }}
  if (t == 0) {{
    int sum = s[63];
    part[b] = sum;
    __threadfence();
    state[b] = 1;
    int all = 0;
    for (int p = b - 1; p >= 0; ) {{
      int f = state[p];
      if (f == 0) continue;
      __threadfence();
      if (f == 2) {{ all += whole[p]; break; }}
      all += part[p--];
    }}
    whole[b] = all + sum;
    __threadfence();
    state[b] = 2;
    before = all;
  }}
  __syncthreads();
  o[i] = s[t] + before;
}}""",
    grid=9,
    block=64,
    given=lambda rng: (ints(rng, 576), zeros(576)),
    right=lambda a, o: (a, np.cumsum(a)),
    fault=("    __syncthreads();\n    s[t] += v;", "    s[t] += v;"),
)

add(
    "bitonic sort of a block",
    source=f"""{K}(int* a) {{
  __shared__ int s[128];
  int t = threadIdx.x;
  s[t] = a[blockIdx.x * 128 + t];
  for (int size = 2; size <= 128; size *= 2)
    for (int d = size / 2; d > 0; d /= 2) {{
      __syncthreads();
      int other = t ^ d;
      if (other > t && (s[t] > s[other]) == !(t & size)) {{ int x = s[t]; s[t] = s[other]; s[other] = x; }}
    }}
  __syncthreads();
  a[blockIdx.x * 128 + t] = s[t];
}}""",
    grid=2,
    block=128,
    given=lambda rng: (ints(rng, 256, low=-1000, high=1000),),
    right=lambda a: (np.sort(a.reshape(2, 128)).ravel(),),
    fault=("      __syncthreads();\n", "      __syncwarp();\n"),
)

add(
    "radix sort by splitting on each bit",
    source=f"""{K}(unsigned* a) {{
  __shared__ unsigned s[128];
  __shared__ int sums[4];
  int t = threadIdx.x, w = t >> 5, lane = t & 31;
  s[t] = a[t];
  __syncthreads();
  for (int bit = 0; bit < 7; bit++) {{
    unsigned v = s[t], ones = __ballot_sync(~0u, !(v >> bit & 1));
    if (lane == 0) sums[w] = __popc(ones);
    __syncthreads();
    int before = __popc(ones & ((1u << lane) - 1)), all = 0;
    for (int j = 0; j < 4; j++) {{ if (j < w) before += sums[j]; all += sums[j]; }}
    s[v >> bit & 1 ? all + t - before : before] = v;
    __syncthreads();
  }}
  a[t] = s[t];
}}""",
    grid=1,
    block=128,
    given=lambda rng: (ints(rng, 128, high=128).view(np.uint32),),
    right=lambda a: (np.sort(a),),
    fault=(" = v;\n    __syncthreads();", " = v;"),
)

add(
    "segmented sums of warps",
    source=f"""{K}(const float* a, const int* head, float* o) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
  unsigned heads = __ballot_sync(~0u, head[i]) | 1u;
  int first = 31 - __clz(heads & (0xFFFFFFFFu >> (31 - lane)));
  float v = a[i];
  for (int d = 1; d < 32; d *= 2) {{
    float other = __shfl_up_sync(~0u, v, d);
    if (lane - d >= first) v += other;
  }}
  o[i] = v;
}}""",
    grid=2,
    block=64,
    given=lambda rng: (
        ints(rng, 128).astype(np.float32),
        (ints(rng, 128) < 20).astype(np.int32),
        zeros(128, kind=np.float32),
    ),
    right=lambda a, head, o: (a, head, _segments(a, head)),
    fault=("lane - d >= first", "lane >= d"),
)


def _segments(a: np.ndarray, head: np.ndarray) -> np.ndarray:
    out = np.zeros_like(a)
    for i in range(len(a)):
        out[i] = a[i] + (out[i - 1] if i % 32 and not head[i] else 0)
    return out


add(
    "mean and variance, combined by warps and by the last block",
    source=f"""struct M {{ float n, mean, m2; }};
__device__ M both(M a, M b) {{
  float n = a.n + b.n, d = b.mean - a.mean;
  if (n == 0) return a;
  return {{n, a.mean + d * b.n / n, a.m2 + b.m2 + d * d * a.n * b.n / n}};
}}
__device__ M from(M a, int d) {{
  return {{__shfl_down_sync(~0u, a.n, d), __shfl_down_sync(~0u, a.mean, d), __shfl_down_sync(~0u, a.m2, d)}};
}}
__device__ M block(M v) {{
  __shared__ M part[2];
  for (int d = 16; d; d /= 2) v = both(v, from(v, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  return both(part[0], part[1]);
}}
__device__ M parts[8];
__device__ unsigned done;
{K}(const float* a, float* o, int n) {{
  __shared__ bool last;
  M v = {{0, 0, 0}};
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    v = both(v, {{1, a[i], 0}});
  v = block(v);
  if (threadIdx.x == 0) {{
    parts[blockIdx.x] = v;
    __threadfence();
    last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
  }}
  __syncthreads();
  if (!last) return;
  __threadfence();
  v = block(threadIdx.x < gridDim.x ? parts[threadIdx.x] : M{{0, 0, 0}});
  if (threadIdx.x == 0) {{ o[0] = v.mean; o[1] = v.m2 / v.n; }}
}}""",
    grid=5,
    block=64,
    given=lambda rng: (rng.standard_normal(700).astype(np.float32), zeros(2, kind=np.float32), np.int32(700)),
    right=lambda a, o, n: (a, np.array([a.mean(dtype=np.float64), a.var(dtype=np.float64)])),
    fault=("    __threadfence();\n    last", "    last"),
)

add(
    "top four of a block, one after the other",
    source=f"""{K}(const int* a, int* o) {{
  __shared__ int value[64], place[64];
  int t = threadIdx.x, mine = a[t];
  for (int round = 0; round < 4; round++) {{
    value[t] = mine; place[t] = t;
    __syncthreads();
    for (int d = 32; d; d /= 2) {{
      if (t < d && value[t + d] > value[t]) {{ value[t] = value[t + d]; place[t] = place[t + d]; }}
      __syncthreads();
    }}
    if (t == 0) o[round] = value[0];
    if (place[0] == t) mine = -1;
    __syncthreads();
  }}
}}""",
    grid=1,
    block=64,
    given=lambda rng: (rng.permutation(64).astype(np.int32), zeros(4)),
    right=lambda a, o: (a, np.sort(a)[::-1][:4]),
    fault=("mine = -1;\n    __syncthreads();", "mine = -1;"),
)

# Locks, queues and barriers


add(
    "spin lock that sleeps",
    source=f"""__device__ int lock;
{K}(int* sum, int* most) {{
  if (threadIdx.x == 0) {{
    unsigned ns = 8;
    while (atomicCAS(&lock, 0, 1)) {{ __nanosleep(ns); if (ns < 256) ns *= 2; }}
    __threadfence();
    sum[0] += blockIdx.x;
    if (most[0] < blockIdx.x) most[0] = blockIdx.x;
    __threadfence();
    atomicExch(&lock, 0);
  }}
}}""",
    grid=12,
    block=32,
    given=lambda rng: (zeros(1), zeros(1)),
    right=lambda s, m: (np.array([66]), np.array([11])),
    fault=("    __threadfence();\n    atomicExch", "    atomicExch"),
)

add(
    "ticket lock",
    source=f"""__device__ unsigned next; __device__ volatile unsigned serving;
{K}(float* a) {{
  unsigned mine = 0;
  if (threadIdx.x == 0) {{
    mine = atomicAdd(&next, 1);
    while (serving != mine) ;
    __threadfence();
  }}
  __syncthreads();
  a[threadIdx.x] = a[threadIdx.x] * 2 + 1;
  __syncthreads();
  if (threadIdx.x == 0) {{ __threadfence(); serving = mine + 1; }}
}}""",
    grid=6,
    block=32,
    given=lambda rng: (ints(rng, 32).astype(np.float32),),
    right=lambda a: (a * 64 + 63,),
    fault=(
        "  a[threadIdx.x] = a[threadIdx.x] * 2 + 1;\n  __syncthreads();",
        "  a[threadIdx.x] = a[threadIdx.x] * 2 + 1;",
    ),
)

add(
    "sense-reversing barrier of the grid",
    source=f"""__device__ unsigned count; __device__ volatile unsigned sense;
__device__ void meet(unsigned& mine) {{
  mine ^= 1;
  __syncthreads();
  if (threadIdx.x == 0) {{
    __threadfence();
    if (atomicAdd(&count, 1) == gridDim.x - 1) {{ count = 0; __threadfence(); sense = mine; }}
    else while (sense != mine) ;
    __threadfence();
  }}
  __syncthreads();
}}
{K}(int* a, int* b, int n) {{
  unsigned mine = 0;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int step = 0; step < 4; step++) {{
    b[i] = a[(i + 1) % n] + a[i];
    meet(mine);
    a[i] = b[(i + n - 1) % n];
    meet(mine);
  }}
}}""",
    grid=4,
    block=32,
    given=lambda rng: (ints(rng, 128, high=4), zeros(128), np.int32(128)),
    right=lambda a, b, n: (_steps(a),),
    fault=("    meet(mine);\n    a[i]", "    __syncthreads();\n    a[i]"),
)


def _steps(a: np.ndarray) -> np.ndarray:
    for _ in range(4):
        a = np.roll(np.roll(a, -1) + a, 1)
    return a


add(
    "work queue whose tiles a block takes in turn",
    source=f"""__device__ int next_tile;
{K}(const int* a, int* o, int tiles) {{
  __shared__ int tile;
  for (;;) {{
    if (threadIdx.x == 0) tile = atomicAdd(&next_tile, 1);
    __syncthreads();
    int mine = tile;
    __syncthreads();
    if (mine >= tiles) return;
    o[mine * 64 + threadIdx.x] = 3 * a[mine * 64 + threadIdx.x];
  }}
}}""",
    grid=3,
    block=64,
    given=lambda rng: (ints(rng, 640), zeros(640), np.int32(10)),
    right=lambda a, o, n: (a, 3 * a),
    fault=("    int mine = tile;\n    __syncthreads();", "    int mine = tile;"),
)

add(
    "breadth-first search by a queue",
    source=f"""{K}(const int* rows, const int* columns, int* level, const int* queue, int count,
                    int* found, int* many, int depth) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int v = queue[i];
  for (int e = rows[v]; e < rows[v + 1]; e++)
    if (atomicCAS(&level[columns[e]], -1, depth) == -1) found[atomicAdd(many, 1)] = columns[e];
}}""",
    grid=2,
    block=32,
    given=lambda rng: (
        4 * np.arange(65, dtype=np.int32),
        ints(rng, 256, high=64),
        np.where(np.arange(64) < 40, 0, -1).astype(np.int32),
        np.arange(40, dtype=np.int32),
        np.int32(40),
        zeros(64),
        zeros(1),
        np.int32(1),
    ),
    right=lambda rows, columns, level, *rest: (
        rows,
        columns,
        np.where((level < 0) & np.isin(np.arange(64), columns[:160]), 1, level),
    ),
    fault=(
        "atomicCAS(&level[columns[e]], -1, depth) == -1)",
        "level[columns[e]] == -1 && (level[columns[e]] = depth))",
    ),
)

add(
    "ring between two halves of a block, by named barriers",
    source=f"""{K}(const int* a, int* o) {{
  __shared__ int ring[2][32];
  int t = threadIdx.x & 31;
  if (threadIdx.x < 32)
    for (int i = 0; i < 6; i++) {{
      if (i >= 2) asm volatile("bar.sync %0, 64;" :: "r"(3 + (i & 1)) : "memory");
      ring[i & 1][t] = a[i * 32 + t] + i;
      asm volatile("bar.arrive %0, 64;" :: "r"(1 + (i & 1)) : "memory");
    }}
  else
    for (int i = 0; i < 6; i++) {{
      asm volatile("bar.sync %0, 64;" :: "r"(1 + (i & 1)) : "memory");
      o[i * 32 + 31 - t] = ring[i & 1][31 - t];
      if (i < 4) asm volatile("bar.arrive %0, 64;" :: "r"(3 + (i & 1)) : "memory");
    }}
}}""",
    grid=1,
    block=64,
    given=lambda rng: (ints(rng, 192), zeros(192)),
    right=lambda a, o: (a, a + np.arange(192) // 32),
    fault=('if (i >= 2) asm volatile("bar.sync %0, 64;"', 'if (i >= 2) asm volatile("bar.arrive %0, 64;"'),
)
