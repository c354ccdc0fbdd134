"""More of `strange_kernels`: CUDA's asynchronous interfaces, objects and memory of the device, algorithms."""

from __future__ import annotations

import numpy as np

from harness.emulator import Texture
from shared.strange_kernels import K, add, ints, zeros

# CUDA's interfaces


add(
    "cuda::pipeline of two stages",
    headers=True,
    source=f"""#include <cooperative_groups.h>
#include <cuda/pipeline>
{K}(const float* a, float* o, int tiles) {{
  __shared__ float s[2][64];
  auto pipe = cuda::make_pipeline();
  int t = threadIdx.x;
  auto get = [&](int i) {{
    pipe.producer_acquire();
    cuda::memcpy_async(&s[i & 1][t], a + i * 64 + t, sizeof(float), pipe);
    pipe.producer_commit();
  }};
  get(0);
  float sum = 0;
  for (int i = 0; i < tiles; i++) {{
    if (i + 1 < tiles) {{ get(i + 1); cuda::pipeline_consumer_wait_prior<1>(pipe); }}
    else cuda::pipeline_consumer_wait_prior<0>(pipe);
    __syncthreads();
    sum += s[i & 1][63 - t];
    pipe.consumer_release();
    __syncthreads(); // all have read
  }}
  o[t] = sum;
}}""",
    grid=1,
    block=64,
    given=lambda rng: (ints(rng, 448).astype(np.float32), zeros(64, kind=np.float32), np.int32(7)),
    right=lambda a, o, tiles: (a, a.reshape(7, 64).sum(0)[::-1]),
    fault=("    __syncthreads(); // all have read\n", ""),
)

add(
    "copies of a group, and a cluster of cooperative groups",
    headers=True,
    source="""#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* a, int* o) {
  __shared__ int s[64];
  auto block = cg::this_thread_block();
  auto cluster = cg::this_cluster();
  cg::memcpy_async(block, s, a + blockIdx.x * 64, sizeof(s));
  cg::wait(block);
  cluster.sync();
  int* other = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
  o[blockIdx.x * 64 + threadIdx.x] = other[63 - threadIdx.x] + s[threadIdx.x];
  cluster.sync(); // before a block leaves
}""",
    grid=4,
    block=64,
    given=lambda rng: (ints(rng, 256), zeros(256)),
    right=lambda a, o: (a, (a + a.reshape(2, 2, 64)[:, ::-1, ::-1].ravel())),
    fault=("  cg::wait(block);\n", ""),
)

add(
    "coalesced threads and labelled partitions",
    headers=True,
    source=f"""#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
{K}(const int* a, int* count, int* o) {{
  int v = a[blockIdx.x * 32 + threadIdx.x];
  if (v & 1) {{
    auto odd = cg::coalesced_threads();
    if (odd.thread_rank() == 0) atomicAdd(count, odd.num_threads());
  }}
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  auto same = cg::labeled_partition(warp, v & 3);
  o[blockIdx.x * 32 + threadIdx.x] = cg::reduce(same, v, cg::plus<int>());
}}""",
    grid=2,
    block=32,
    given=lambda rng: (ints(rng, 64), zeros(1), zeros(64)),
    right=lambda a, count, o: (
        a,
        np.array([(a & 1).sum()]),
        np.concatenate([[w[w % 4 == v % 4].sum() for v in w] for w in a.reshape(2, 32)]),
    ),
    fault=("atomicAdd(count, odd.num_threads())", "*count += odd.num_threads()"),
)

add(
    "last block by cuda::atomic_ref",
    headers=True,
    source=f"""#include <cuda/atomic>
__device__ unsigned done; __device__ int parts[16];
{K}(const int* a, int* o) {{
  __shared__ int s; __shared__ bool last;
  if (threadIdx.x == 0) s = 0;
  __syncthreads();
  cuda::atomic_ref<int, cuda::thread_scope_block> sum(s);
  sum.fetch_add(a[blockIdx.x * 64 + threadIdx.x], cuda::memory_order_relaxed);
  __syncthreads();
  if (threadIdx.x == 0) {{
    parts[blockIdx.x] = s;
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> d(done);
    last = d.fetch_add(1, cuda::memory_order_acq_rel) == gridDim.x - 1;
    if (last) {{ int all = 0; for (int i = 0; i < gridDim.x; i++) all += parts[i]; *o = all; }}
  }}
}}""",
    grid=6,
    block=64,
    given=lambda rng: (ints(rng, 384), zeros(1)),
    right=lambda a, o: (a, np.array([a.sum()])),
    fault=("memory_order_acq_rel", "memory_order_acquire"),
)

add(
    "conversions to eight-bit floats",
    headers=True,
    source=f"""#include <cuda_fp8.h>
{K}(const float* a, unsigned char* o, float* p) {{
  __nv_fp8_e4m3 x(a[threadIdx.x]);
  o[threadIdx.x] = x.__x;
  p[threadIdx.x] = float(x) + float(__nv_fp8_e5m2(a[(threadIdx.x + 1) % 32]));
}}""",
    grid=1,
    block=32,
    given=lambda rng: (
        np.array(
            [0, 1, -1, 448, 500, -1e9, 0.0019, 0.00098, 0.0625, 17, 1.0625, 1.1875, 0.3, 240, 57344, 61441]
            * 2,
            np.float32,
        ),
        zeros(32, kind=np.uint8),
        zeros(32, kind=np.float32),
    ),
    right=lambda a, o, p: (a, _e4m3(a), None),
    fault=("__nv_fp8_e4m3 x(", "__nv_fp8_e5m2 x("),
)


def _e4m3(a: np.ndarray) -> np.ndarray:
    codes = np.arange(127)
    values = np.where(codes < 8, codes / 512, (1 + codes % 8 / 8) * 2.0 ** (codes // 8 - 7))
    found = []
    for x in a.tolist():
        gaps = np.abs(values - min(abs(x), 448))
        best = [c for c in codes.tolist() if gaps[c] == gaps.min()]
        found.append(min(best, key=lambda c: c % 2) | (0x80 if x < 0 else 0))
    return np.array(found, np.uint8)


add(
    "atomics of pairs and of four floats",
    headers=True,
    source=f"""#include <cuda_fp16.h>
#include <cuda_bf16.h>
{K}(const float* a, __half2* h, __nv_bfloat162* b, float4* f) {{
  float v = a[threadIdx.x];
  atomicAdd(&h[threadIdx.x & 1], __floats2half2_rn(v, 1.0f));
  atomicAdd(&b[threadIdx.x & 1], __floats2bfloat162_rn(1.0f, v));
  atomicAdd(&f[threadIdx.x & 3], make_float4(v, 2 * v, 1, 0));
}}""",
    grid=1,
    block=32,
    given=lambda rng: (
        ints(rng, 32, high=8).astype(np.float32),
        zeros(4, kind=np.float16),
        zeros(4, kind=np.uint16),
        zeros(16, kind=np.float32),
    ),
    right=lambda a, h, b, f: (
        a,
        np.array([a[::2].sum(), 16, a[1::2].sum(), 16], np.float16),
        None,
        np.stack([a.reshape(8, 4).sum(0), 2 * a.reshape(8, 4).sum(0), np.full(4, 8), np.zeros(4)], 1).ravel(),
    ),
    fault=("make_float4(v, 2 * v, 1, 0)", "make_float4(v, v, 1, 0)"),
)

# Objects and memory of the device


add(
    "virtual functions",
    source=f"""struct Shape {{
  __device__ virtual float area() const = 0;
  __device__ virtual float twice() const {{ return 2 * area(); }} }};
struct Square : Shape {{ float a; __device__ Square(float a) : a(a) {{}}
  __device__ float area() const override {{ return a * a; }} }};
struct Box : Shape {{ float a, b; __device__ Box(float a, float b) : a(a), b(b) {{}}
  __device__ float area() const override {{ return a * b; }}
  __device__ float twice() const override {{ return a + b; }} }};
__device__ __noinline__ float sum(const Shape* s) {{ return s->area() + s->twice(); }}
{K}(const float* a, float* o) {{
  int t = threadIdx.x;
  Square s(a[t]); Box b(a[t], 3);
  const Shape* which = t & 1 ? (const Shape*)&s : (const Shape*)&b;
  o[t] = sum(which);
}}""",
    grid=1,
    block=32,
    given=lambda rng: (ints(rng, 32).astype(np.float32), zeros(32, kind=np.float32)),
    right=lambda a, o: (a, np.where(np.arange(32) & 1, 3 * a * a, 4 * a + 3)),
    fault=("return a + b; }", "return a - b; }"),
)

add(
    "lists made with new and taken apart",
    source=f"""struct Node {{ int value; Node* next; }};
__device__ Node* heads[8];
{K}(const int* a, int* o) {{
  int t = threadIdx.x;
  Node* mine = new Node{{a[t], nullptr}};
  unsigned long long* head = (unsigned long long*)&heads[a[t] & 7];
  unsigned long long seen = *(volatile unsigned long long*)head, old;
  do {{
    old = seen;
    mine->next = (Node*)old;
    __threadfence();
    seen = atomicCAS(head, old, (unsigned long long)mine);
  }} while (seen != old);
  __syncthreads();
  if (t < 8) {{
    int s = 0, n = 0;
    for (Node* p = heads[t]; p; ) {{ s += p->value; n++; Node* next = p->next; delete p; p = next; }}
    o[t] = 1000 * n + s;
  }}
}}""",
    grid=1,
    block=64,
    given=lambda rng: (ints(rng, 64), zeros(8)),
    right=lambda a, o: (a, 1000 * np.bincount(a & 7, minlength=8) + np.bincount(a & 7, a, 8).astype(int)),
    fault=(
        "seen = atomicCAS(head, old, (unsigned long long)mine);",
        "*(volatile unsigned long long*)head = (unsigned long long)mine;",
    ),
)

add(
    "struct of arrays by value, and a table in constant memory",
    source=f"""struct Many {{ int weight[60]; short small[8]; double scale; }};
__constant__ int table[4] = {{3, 1, 4, 1}};
{K}(const int* a, int* o, Many m) {{
  int t = threadIdx.x;
  o[t] = m.weight[a[t] % 60] * table[t & 3] + m.small[t & 7] + (int)m.scale;
}}""",
    grid=1,
    block=32,
    given=lambda rng: (ints(rng, 32), zeros(32), _many()),
    right=lambda a, o, m: (a, a % 60 * 2 * np.tile([3, 1, 4, 1], 8) + np.tile(np.arange(8), 4) + 9),
    fault=("a[t] % 60", "a[t] % 61"),
)


def _many() -> np.void:
    kind = np.dtype([("weight", np.int32, 60), ("small", np.int16, 8), ("scale", np.float64)])
    one = np.zeros(1, kind)
    one["weight"], one["small"], one["scale"] = 2 * np.arange(60), np.arange(8), 9.5
    return np.void(one.tobytes())


PICTURE = np.arange(48, dtype=np.float32).reshape(6, 8)

add(
    "a picture turned over, through a surface",
    source=f"""{K}(cudaTextureObject_t from, int* o, cudaSurfaceObject_t to) {{
  int x = threadIdx.x, y = threadIdx.y;
  float v = tex2D<float>(from, x + 0.5f, 5 - y + 0.5f);
  surf2Dwrite(2 * v, to, x * 4, y);
  __syncthreads();
  float back;
  surf2Dread(&back, to, (7 - x) * 4, y);
  o[y * 8 + x] = (int)back;
}}""",
    grid=1,
    block=(8, 6),
    given=lambda rng: (Texture(array=PICTURE), zeros(48), Texture(array=zeros(6, 8, kind=np.float32))),
    right=lambda picture, o, to: (None, 2 * PICTURE[::-1, ::-1].ravel().astype(int)),
    fault=("(7 - x) * 4, y", "(8 - x) * 4, y"),
)

# Algorithms


add(
    "counts of whole blocks",
    source=f"""{K}(const int* a, int* o) {{
  int t = threadIdx.x, v = a[blockIdx.x * 96 + t];
  int many = __syncthreads_count(v > 50), some = __syncthreads_or(v == 7), every = __syncthreads_and(v >= 0);
  if (t == 95) o[blockIdx.x] = many * 10 + (some ? 2 : 0) + (every ? 1 : 0);
}}""",
    grid=3,
    block=96,
    given=lambda rng: (ints(rng, 288), zeros(3)),
    right=lambda a, o: (a, (a.reshape(3, 96) > 50).sum(1) * 10 + (a.reshape(3, 96) == 7).any(1) * 2 + 1),
    fault=("v = a[blockIdx.x * 96 + t];", "v = a[blockIdx.x * 96 + t]; if (t == 3) return;"),
)

add(
    "number-theoretic transform",
    source=f"""typedef unsigned long long u64;
#define P 0xFFFFFFFF00000001ull
__device__ u64 times(u64 a, u64 b) {{
  u64 high = __umul64hi(a, b), low = a * b, top = high >> 32, mid = high & 0xFFFFFFFFu;
  u64 r = low - top; if (low < top) r -= 0xFFFFFFFFu;
  u64 m = (mid << 32) - mid, s = r + m; if (s < m) s += 0xFFFFFFFFu;
  return s >= P ? s - P : s;
}}
__device__ u64 power(u64 a, unsigned n) {{
  u64 r = 1;
  for (; n; n >>= 1, a = times(a, a)) if (n & 1) r = times(r, a);
  return r;
}}
{K}(u64* a, u64 root) {{
  __shared__ u64 s[64];
  int t = threadIdx.x;
  s[__brev(t) >> 26] = a[t];
  s[__brev(t + 32) >> 26] = a[t + 32];
  for (int half = 1; half < 64; half *= 2) {{
    __syncthreads();
    int j = t & (half - 1), i = 2 * t - j;
    u64 w = power(root, 32 / half * j), x = s[i], y = times(s[i + half], w), sum = x + y;
    if (sum < x || sum >= P) sum -= P;
    s[i] = sum;
    s[i + half] = x >= y ? x - y : x + P - y;
  }}
  __syncthreads();
  a[t] = s[t]; a[t + 32] = s[t + 32];
}}""",
    grid=1,
    block=32,
    given=lambda rng: (
        rng.integers(0, 2**63, 64).astype(np.uint64),
        np.uint64(pow(7, (2**64 - 2**32) // 64, 2**64 - 2**32 + 1)),
    ),
    right=lambda a, root: (_ntt(a, int(root)),),
    fault=("    __syncthreads();\n    int j", "    int j"),
)


def _ntt(a: np.ndarray, root: int) -> np.ndarray:
    p = 2**64 - 2**32 + 1
    return np.array(
        [sum(int(x) * pow(root, i * j, p) for i, x in enumerate(a)) % p for j in range(64)], np.uint64
    )


add(
    "alignment of two strings by antidiagonals",
    source=f"""{K}(const char* a, const char* b, int* best, int n) {{
  __shared__ int row[3][65];
  int t = threadIdx.x, most = 0;
  for (int i = 0; i < 3; i++) row[i][t] = 0;
  if (t < 3) row[t][64] = 0;
  __syncthreads();
  for (int d = 0; d < 2 * n - 1; d++) {{
    int* now = row[d % 3]; const int* one = row[(d + 2) % 3]; const int* two = row[(d + 1) % 3];
    int j = d - t, v = 0;
    if (t < n && j >= 0 && j < n) {{
      v = max(0, max(max(one[t + 1], one[t]) - 1, two[t] + (a[t] == b[j] ? 2 : -1)));
      most = max(most, v);
    }}
    now[t + 1] = v;
    __syncthreads();
  }}
  atomicMax(best, most);
}}""",
    grid=1,
    block=64,
    given=lambda rng: (
        ints(rng, 60, high=4).astype(np.int8),
        ints(rng, 60, high=4).astype(np.int8),
        zeros(1),
        np.int32(60),
    ),
    right=lambda a, b, best, n: (a, b, np.array([_align(a, b)])),
    fault=("row[(d + 1) % 3]", "row[(d + 0) % 3]"),
)


def _align(a: np.ndarray, b: np.ndarray) -> int:
    h = np.zeros((len(a) + 1, len(b) + 1), int)
    for i in range(len(a)):
        for j in range(len(b)):
            h[i + 1, j + 1] = max(0, h[i, j] + (2 if a[i] == b[j] else -1), h[i, j + 1] - 1, h[i + 1, j] - 1)
    return int(h.max())


add(
    "sparse rows times a vector, a warp each",
    source=f"""{K}(const int* start, const int* column, const float* value, const float* x, float* y,
                    int rows) {{
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31;
  if (row >= rows) return;
  float s = 0;
  for (int e = start[row] + lane; e < start[row + 1]; e += 32) s += value[e] * x[column[e]];
  for (int d = 16; d; d /= 2) s += __shfl_down_sync(~0u, s, d);
  if (lane == 0) y[row] = s;
}}""",
    grid=4,
    block=96,
    given=lambda rng: (
        np.arange(0, 441, 40, dtype=np.int32),
        ints(rng, 440, high=50),
        ints(rng, 440).astype(np.float32),
        ints(rng, 50).astype(np.float32),
        zeros(11, kind=np.float32),
        np.int32(11),
    ),
    right=lambda start, column, value, x, y, rows: (
        start,
        column,
        value,
        x,
        (value * x[column]).reshape(11, 40).sum(1),
    ),
    fault=("if (row >= rows) return;", "if (row > rows) return;"),
)

add(
    "Fourier transform in shared memory",
    source=f"""{K}(float2* a) {{
  __shared__ float2 s[2][64];
  int t = threadIdx.x, in = 0;
  s[0][t] = a[t]; s[0][t + 32] = a[t + 32];
  __syncthreads();
  for (int n = 1; n < 64; n *= 2) {{
    int k = t & (n - 1), j = 2 * t - k;
    float2 x = s[in][t], y = s[in][t + 32]; float c, d;
    sincospif(-(float)k / n, &d, &c);
    float2 w = {{y.x * c - y.y * d, y.x * d + y.y * c}};
    s[in ^ 1][j] = {{x.x + w.x, x.y + w.y}};
    s[in ^ 1][j + n] = {{x.x - w.x, x.y - w.y}};
    __syncthreads();
    in ^= 1;
  }}
  a[t] = s[in][t]; a[t + 32] = s[in][t + 32];
}}""",
    grid=1,
    block=32,
    given=lambda rng: (rng.standard_normal(128).astype(np.float32),),
    right=lambda a: (np.fft.fft(a.astype(np.float64).view(np.complex128)).view(np.float64),),
    fault=("    __syncthreads();\n    in ^= 1;", "    in ^= 1;"),
)

add(
    "sequence lock whose readers try again",
    source=f"""__device__ volatile unsigned version; __device__ volatile int pair[2];
{K}(int* o, int* ended) {{
  if (blockIdx.x == 0) {{
    for (int i = 1; i <= 5; i++) {{
      version = 2 * i - 1; __threadfence();
      pair[0] = i; pair[1] = 10 * i;
      __threadfence(); version = 2 * i;
    }}
    *ended = 1;
  }} else {{
    unsigned before, after; int x, y;
    do {{
      before = version; __threadfence();
      x = pair[0]; y = pair[1];
      __threadfence(); after = version;
    }} while (before != after || (before & 1));
    o[blockIdx.x - 1] = y - 10 * x;
  }}
}}""",
    grid=4,
    block=1,
    given=lambda rng: (np.full(3, 7, np.int32), zeros(1)),
    right=lambda o, ended: (np.zeros(3, int), np.array([1])),
    fault=("__device__ volatile int pair[2];", "__device__ int pair[2];"),
)

add(
    "queue lock of Mellor-Crummey and Scott",
    source=f"""__device__ int tail = -1, next_of[8]; __device__ volatile int locked[8];
{K}(int* sum) {{
  int me = blockIdx.x;
  next_of[me] = -1; locked[me] = 1;
  __threadfence();
  int before = atomicExch(&tail, me);
  __threadfence();
  if (before >= 0) {{ atomicExch(&next_of[before], me); while (locked[me]) ; }}
  __threadfence();
  *sum = *sum * 2 + 1;
  __threadfence();
  if (atomicCAS(&tail, me, -1) != me) {{
    int heir;
    while ((heir = atomicAdd(&next_of[me], 0)) < 0) ;
    locked[heir] = 0;
  }}
}}""",
    grid=6,
    block=1,
    given=lambda rng: (zeros(1),),
    right=lambda s: (np.array([63]),),
    fault=("while (locked[me]) ;", "locked[me];"),
)

add(
    "state machine with jumps into loops",
    source=f"""{K}(const int* a, int* o, int n) {{
  int i = 0, s = 0, t = threadIdx.x;
  if (t % 3 == 0) goto inside;
again:
  s += a[i] + 1;
  if (s % 5 == t % 5) goto skip;
inside:
  s ^= a[(i + t) % n];
  if (s % 7 == 3 && i + 2 < n) {{ i += 2; goto inside; }}
skip:
  if (++i < n) goto again;
  o[t] = s;
}}""",
    grid=1,
    block=32,
    given=lambda rng: (ints(rng, 20), zeros(32), np.int32(20)),
    right=lambda a, o, n: (a, np.array([_jumps(a.tolist(), t) for t in range(32)])),
    fault=("if (++i < n)", "if (++i <= n)"),
)


def _jumps(a: list[int], t: int) -> int:
    i, s, at = 0, 0, "inside" if t % 3 == 0 else "again"
    while True:
        if at == "again":
            s += a[i] + 1
            at = "skip" if s % 5 == t % 5 else "inside"
        elif at == "inside":
            s ^= a[(i + t) % 20]
            if s % 7 == 3 and i + 2 < 20:
                i += 2
            else:
                at = "skip"
        else:
            i += 1
            if i >= 20:
                return s
            at = "again"


add(
    "reduction whose last warp goes on by itself",
    source=f"""{K}(const int* a, int* o) {{
  __shared__ int s[128];
  int t = threadIdx.x;
  s[t] = a[blockIdx.x * 128 + t];
  __syncthreads();
  if (t < 64) s[t] += s[t + 64];
  __syncthreads();
  if (t < 32) {{
    s[t] += s[t + 32]; __syncwarp();
    for (int d = 16; d; d /= 2) {{ int v = s[t + d]; __syncwarp(); s[t] += v; __syncwarp(); }}
    if (t == 0) o[blockIdx.x] = s[0];
  }}
}}""",
    grid=2,
    block=128,
    given=lambda rng: (ints(rng, 256), zeros(2)),
    right=lambda a, o: (a, a.reshape(2, 128).sum(1)),
    fault=("int v = s[t + d]; __syncwarp();", "int v = s[t + d];"),
)
