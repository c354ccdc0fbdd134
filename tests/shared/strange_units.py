"""More of `strange_kernels`: intrinsics, control flow, CUDA's headers, and Hopper's asynchronous units."""

from __future__ import annotations

import numpy as np

from shared.hopper_kernels import PRELUDE
from shared.strange_kernels import K, add, ints, zeros

# Intrinsics


add(
    "dot products of bytes",
    source=f"""{K}(const int* a, const int* b, int* o, int n) {{
  int s = 0;
  for (int i = 0; i < n; i++) s = __dp4a(a[threadIdx.x * n + i], b[i], s);
  o[threadIdx.x] = s;
}}""",
    grid=1,
    block=32,
    given=lambda rng: (
        rng.integers(-(2**31), 2**31, 256).astype(np.int32),
        rng.integers(-(2**31), 2**31, 8).astype(np.int32),
        zeros(32),
        np.int32(8),
    ),
    right=lambda a, b, o, n: (
        a,
        b,
        a.view(np.int8).reshape(32, 32).astype(np.int32) @ b.view(np.int8).astype(np.int32),
    ),
    fault=(
        "__dp4a(a[threadIdx.x * n + i], b[i], s)",
        "__dp4a((unsigned)a[threadIdx.x * n + i], (unsigned)b[i], (unsigned)s)",
    ),
)

add(
    "bytes permuted, bits reversed and shifted through a funnel",
    source=f"""{K}(const unsigned* a, unsigned* o) {{
  int t = threadIdx.x;
  unsigned x = a[t], y = a[(t + 1) % 64];
  o[4 * t] = __byte_perm(x, y, 0x1406);
  o[4 * t + 1] = __brev(x) ^ __popc(y);
  o[4 * t + 2] = __funnelshift_l(x, y, t & 31);
  o[4 * t + 3] = __umulhi(x, y) + __clz(x) + __ffs(y);
}}""",
    grid=1,
    block=64,
    given=lambda rng: (rng.integers(0, 2**32, 64).astype(np.uint32), zeros(256, kind=np.uint32)),
    right=lambda a, o: (a, _bits(a)),
    fault=("__byte_perm(x, y, 0x1406)", "__byte_perm(x, y, 0x1404)"),
)


def _bits(a: np.ndarray) -> np.ndarray:
    out, mask = [], 2**32 - 1
    for t, (x, y) in enumerate(zip(a.tolist(), np.roll(a, -1).tolist(), strict=True)):
        both = (x | y << 32).to_bytes(8, "little")
        lead = 32 - x.bit_length()
        out += [
            int.from_bytes(bytes(both[i] for i in (6, 0, 4, 1)), "little"),
            int(f"{x:032b}"[::-1], 2) ^ y.bit_count(),
            ((y << 32 | x) << (t & 31) >> 32) & mask,
            ((x * y >> 32) + lead + (y & -y).bit_length()) & mask,
        ]
    return np.array(out, np.uint32)


add(
    "sums of doubles and of long integers by shuffles",
    source=f"""{K}(const double* a, const long long* b, double* x, long long* y) {{
  int i = blockIdx.x * 32 + threadIdx.x;
  double v = a[i]; long long w = b[i];
  for (int d = 16; d; d /= 2) {{ v += __shfl_xor_sync(~0u, v, d); w ^= __shfl_down_sync(~0u, w, d); }}
  if (threadIdx.x == 0) {{ x[blockIdx.x] = v; y[blockIdx.x] = w; }}
}}""",
    grid=3,
    block=32,
    given=lambda rng: (
        ints(rng, 96).astype(np.float64),
        rng.integers(-(2**62), 2**62, 96),
        zeros(3, kind=np.float64),
        zeros(3, kind=np.int64),
    ),
    right=lambda a, b, x, y: (a, b, a.reshape(3, 32).sum(1), np.bitwise_xor.reduce(b.reshape(3, 32), axis=1)),
    fault=("__shfl_xor_sync(~0u, v, d)", "__shfl_xor_sync(0xFFFFu, v, d)"),
)

add(
    "votes, matches and reductions of a warp",
    source=f"""{K}(const int* a, int* o) {{
  int t = threadIdx.x, v = a[t];
  unsigned same = __match_any_sync(~0u, v & 7);
  int all;
  __match_all_sync(~0u, v & 1, &all);
  o[t] = __popc(same) + (__any_sync(~0u, v > 90) ? 1000 : 0) + (all ? 5000 : 0)
       + __reduce_max_sync(~0u, (unsigned)v) + (__all_sync(~0u, v >= 0) ? 200 : 0);
  if (v & 1) o[t] += __reduce_add_sync(__activemask(), 1);
}}""",
    grid=1,
    block=32,
    given=lambda rng: (ints(rng, 32), zeros(32)),
    right=lambda a, o: (
        a,
        np.array([(a % 8 == v % 8).sum() for v in a])
        + 1000 * (a > 90).any()
        + a.max()
        + 200
        + np.where(a & 1, (a & 1).sum(), 0),
    ),
    fault=("__reduce_max_sync(~0u,", "__reduce_max_sync(0x7FFFFFFFu,"),
)

add(
    "a matrix of a warp transposed by shuffles",
    source=f"""{K}(const int* a, int* o) {{
  int lane = threadIdx.x;
  int v[8];
  for (int i = 0; i < 8; i++) v[i] = a[i * 32 + lane];
  #pragma unroll
  for (int d = 1; d < 8; d *= 2)
    #pragma unroll
    for (int i = 0; i < 8; i++) if (!(i & d)) {{
      int give = lane & d ? v[i] : v[i | d];
      int got = __shfl_xor_sync(~0u, give, d);
      if (lane & d) v[i] = got; else v[i | d] = got;
    }}
  for (int i = 0; i < 8; i++) o[lane * 8 + i] = v[i];
}}""",
    grid=1,
    block=32,
    given=lambda rng: (ints(rng, 256), zeros(256)),
    right=lambda a, o: (a, a.reshape(8, 4, 8).transpose(1, 0, 2).ravel()),
    fault=("__shfl_xor_sync(~0u, give, d)", "__shfl_xor_sync(~0u, give, d, 4)"),
)

add(
    "bit-packed game of life",
    source=f"""__device__ unsigned row(const unsigned* g, int y, int x) {{
  return g[((y + 32) & 31) * 2 + (x & 1)]; }}
{K}(const unsigned* g, unsigned* o) {{
  int y = threadIdx.x / 2, x = threadIdx.x & 1;
  unsigned one = 0, two = 0, four = 0;
  for (int d = -1; d <= 1; d++) {{
    unsigned c = row(g, y + d, x), l = __funnelshift_l(row(g, y + d, x ^ 1), c, 1),
             r = __funnelshift_r(c, row(g, y + d, x ^ 1), 1);
    unsigned n[3] = {{l, r, d ? c : 0}};
    for (int i = 0; i < 3; i++) {{
      unsigned carry = one & n[i]; one ^= n[i];
      unsigned more = two & carry; two ^= carry;
      four |= more;
    }}
  }}
  o[threadIdx.x] = two & ~four & (one | row(g, y, x));
}}""",
    grid=1,
    block=64,
    given=lambda rng: (rng.integers(0, 2**32, 64).astype(np.uint32), zeros(64, kind=np.uint32)),
    right=lambda g, o: (g, _life(g)),
    fault=("d ? c : 0", "d > 0 ? c : 0"),
)


def _life(g: np.ndarray) -> np.ndarray:
    board = np.unpackbits(g.view(np.uint8), bitorder="little").reshape(32, 64).astype(int)
    near = sum(np.roll(board, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1)) - board
    alive = (near == 3) | ((near == 2) & (board == 1))
    return np.packbits(alive, bitorder="little").view(np.uint32)


add(
    "random numbers of Philox",
    source=f"""{K}(unsigned* o, unsigned key) {{
  unsigned c[4] = {{threadIdx.x, blockIdx.x, 7, 9}}, k0 = key, k1 = key ^ 0x1234567;
  for (int i = 0; i < 10; i++) {{
    unsigned h0 = __umulhi(0xD2511F53, c[0]), l0 = 0xD2511F53 * c[0];
    unsigned h1 = __umulhi(0xCD9E8D57, c[2]), l1 = 0xCD9E8D57 * c[2];
    c[0] = h1 ^ c[1] ^ k0; c[1] = l1; c[2] = h0 ^ c[3] ^ k1; c[3] = l0;
    k0 += 0x9E3779B9; k1 += 0xBB67AE85;
  }}
  ((uint4*)o)[blockIdx.x * blockDim.x + threadIdx.x] = make_uint4(c[0], c[1], c[2], c[3]);
}}""",
    grid=2,
    block=32,
    given=lambda rng: (zeros(256, kind=np.uint32), np.uint32(99)),
    right=lambda o, key: (_philox(int(key)),),
    fault=("((uint4*)o)[", "((uint4*)(o + 1))["),
)


def _philox(key: int) -> np.ndarray:
    out, mask = [], 2**32 - 1
    for block in range(2):
        for thread in range(32):
            c, k0, k1 = [thread, block, 7, 9], key, key ^ 0x1234567
            for _ in range(10):
                a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
                c = [b >> 32 ^ c[1] ^ k0, b & mask, a >> 32 ^ c[3] ^ k1, a & mask]
                k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
            out += c
    return np.array(out, np.uint32)


# Control flow and the stack


add(
    "insertion sort of an array of each thread",
    source=f"""{K}(const int* a, int* o, int n) {{
  int v[12];
  for (int i = 0; i < n; i++) v[i] = a[threadIdx.x * n + i];
  for (int i = 1; i < n; i++) {{
    int x = v[i], j = i;
    for (; j > 0 && v[j - 1] > x; j--) v[j] = v[j - 1];
    v[j] = x;
  }}
  for (int i = 0; i < n; i++) o[threadIdx.x * n + i] = v[i];
}}""",
    grid=1,
    block=40,
    given=lambda rng: (ints(rng, 400), zeros(400), np.int32(10)),
    right=lambda a, o, n: (a, np.sort(a.reshape(40, 10)).ravel()),
    fault=("for (int i = 1; i < n; i++) {", "for (int i = 1; i <= n; i++) {"),
)

add(
    "small machine whose opcodes are a table of jumps",
    source=f"""{K}(const int* code, int* o, int n) {{
  int acc = threadIdx.x, other = 1;
  for (int pc = 0; pc < n; pc++)
    switch (code[pc] + (threadIdx.x & 1)) {{
      case 0: acc += 3; break;
      case 1: acc *= 5; break;
      case 2: other ^= acc; break;
      case 3: acc -= other; break;
      case 4: acc = acc >> 1 | acc << 31; break;
      case 5: other += pc; break;
      case 6: acc ^= 0x55; break;
      case 7: {{ int x = acc; acc = other; other = x; }} break;
      default: acc = ~acc;
    }}
  o[threadIdx.x] = acc;
}}""",
    grid=1,
    block=32,
    given=lambda rng: (ints(rng, 30, high=9), zeros(32), np.int32(30)),
    right=lambda code, o, n: (code, np.array([_machine(code, t) for t in range(32)], np.int32)),
    fault=("acc *= 5; break;", "acc *= 5;"),
)


def _machine(code: np.ndarray, thread: int) -> int:
    def wrap(x: int) -> int:
        return (x + 2**31) % 2**32 - 2**31

    acc, other = thread, 1
    for pc, op in enumerate(code.tolist()):
        match op + (thread & 1):
            case 0:
                acc += 3
            case 1:
                acc *= 5
            case 2:
                other ^= acc
            case 3:
                acc -= other
            case 4:
                acc = acc >> 1 | acc << 31
            case 5:
                other += pc
            case 6:
                acc ^= 0x55
            case 7:
                acc, other = other, acc
            case _:
                acc = ~acc
        acc, other = wrap(acc), wrap(other)
    return acc


add(
    "recursion: Ackermann's function and a tree",
    source=f"""__device__ __noinline__ int ack(int m, int n) {{
  return m == 0 ? n + 1 : n == 0 ? ack(m - 1, 1) : ack(m - 1, ack(m, n - 1));
}}
__device__ __noinline__ int leaves(int depth, int seed) {{
  if (depth == 0 || seed % 5 == 0) return 1;
  int left = leaves(depth - 1, seed * 3 + 1);
  return left + leaves(depth - 1, seed * 2 + left);
}}
{K}(int* o) {{ o[threadIdx.x] = ack(threadIdx.x % 3, 2) * 1000 + leaves(4, threadIdx.x); }}""",
    grid=1,
    block=32,
    given=lambda rng: (zeros(32),),
    right=lambda o: (np.array([(3, 4, 7)[t % 3] * 1000 + _leaves(4, t) for t in range(32)]),),
    fault=("ack(m, n - 1)", "ack(m, n)"),
)


def _leaves(depth: int, seed: int) -> int:
    if depth == 0 or seed % 5 == 0:
        return 1
    left = _leaves(depth - 1, seed * 3 + 1)
    return left + _leaves(depth - 1, seed * 2 + left)


add(
    "functions by pointer",
    source=f"""typedef float (*F)(float, float);
__device__ float plus(float a, float b) {{ return a + b; }}
__device__ float times(float a, float b) {{ return a * b; }}
__device__ float larger(float a, float b) {{ return a > b ? a : b; }}
__device__ F table[3] = {{plus, times, larger}};
{K}(const float* a, const int* which, float* o) {{
  F f = table[which[threadIdx.x]];
  o[threadIdx.x] = f(a[threadIdx.x], 3.0f);
}}""",
    grid=1,
    block=32,
    given=lambda rng: (ints(rng, 32).astype(np.float32), ints(rng, 32, high=3), zeros(32, kind=np.float32)),
    right=lambda a, which, o: (a, which, np.choose(which, [a + 3, a * 3, np.maximum(a, 3)])),
    fault=("table[which[threadIdx.x]]", "table[which[threadIdx.x] + 1]"),
)

add(
    "printf and assert",
    source=f"""#undef NDEBUG
extern "C" __device__ int printf(const char*, ...);
__device__ void __assert_fail(const char*, const char*, unsigned, const char*);
#define assert(x) ((x) ? (void)0 : __assert_fail(#x, "k.cu", __LINE__, "k"))
{K}(const int* a, int* o, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  assert(n <= 40);
  if (i < n) {{
    if (a[i] > 95) printf("%d: %d %s %.2f\\n", i, a[i], "large", a[i] / 4.0);
    o[i] = a[i] / 2;
  }}
}}""".replace('extern "C" __device__ int printf(const char*, ...);\n', "").replace(
        "__device__ void __assert_fail", 'extern "C" __device__ void __assert_fail'
    ),
    grid=2,
    block=32,
    given=lambda rng: (ints(rng, 40), zeros(40), np.int32(40)),
    right=lambda a, o, n: (a, a // 2),
    fault=("n <= 40", "n < 40"),
)

add(
    "three arrays carved from dynamic shared memory",
    source=f"""{K}(const short* a, double* o, int n) {{
  extern __shared__ __align__(16) unsigned char raw[];
  double* d = (double*)raw; int* i4 = (int*)(d + n); short* s = (short*)(i4 + n);
  int t = threadIdx.x;
  s[t] = a[t];
  __syncthreads();
  i4[t] = s[t] + s[n - 1 - t];
  __syncthreads();
  d[t] = i4[(t + 1) % n] * 0.5;
  __syncthreads();
  o[t] = d[n - 1 - t] + s[t];
}}""",
    grid=1,
    block=48,
    shared=48 * 14,
    given=lambda rng: (ints(rng, 48).astype(np.int16), zeros(48, kind=np.float64), np.int32(48)),
    right=lambda a, o, n: (
        a,
        np.roll(a.astype(float) + a[::-1], -1)[::-1] * 0.5 + a,
    ),
    fault=("(short*)(i4 + n)", "(short*)(i4 + n - 1)"),
)

add(
    "Floyd and Warshall's paths in a tile",
    source=f"""{K}(int* d) {{
  __shared__ int s[16][16];
  int x = threadIdx.x, y = threadIdx.y;
  s[y][x] = d[y * 16 + x];
  __syncthreads();
  for (int k = 0; k < 16; k++) {{
    int through = s[y][k] + s[k][x];
    __syncthreads();
    if (through < s[y][x]) s[y][x] = through;
    __syncthreads();
  }}
  d[y * 16 + x] = s[y][x];
}}""",
    grid=1,
    block=(16, 16),
    given=lambda rng: (ints(rng, 256, low=1),),
    right=lambda d: (_paths(d),),
    fault=("= through;\n    __syncthreads();", "= through;"),
)


def _paths(d: np.ndarray) -> np.ndarray:
    s = d.reshape(16, 16).copy()
    for k in range(16):
        s = np.minimum(s, s[:, k : k + 1] + s[k])
    return s.ravel()


# CUDA's headers


add(
    "tiles of two warps of cooperative groups",
    headers=True,
    source=f"""#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
{K}(const int* a, int* o) {{
  auto tile = cg::tiled_partition<64>(cg::this_thread_block());
  __shared__ int rows[128];
  rows[threadIdx.x] = a[threadIdx.x];
  tile.sync();
  int turned = rows[threadIdx.x ^ 63];
  o[threadIdx.x] = turned * 1000 + cg::reduce(tile, turned, cg::plus<int>());
}}""",
    grid=1,
    block=128,
    given=lambda rng: (ints(rng, 128), zeros(128)),
    right=lambda a, o: (
        a,
        a.reshape(2, 64)[:, ::-1].reshape(-1) * 1000 + np.repeat(a.reshape(2, 64).sum(1), 64),
    ),
    fault=("tile.sync();", "__syncwarp();"),
)

add(
    "tiles of four and sixteen lanes of cooperative groups",
    headers=True,
    source=f"""#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
{K}(const int* a, int* o) {{
  auto block = cg::this_thread_block();
  auto four = cg::tiled_partition<4>(block);
  auto wide = cg::tiled_partition<16>(block);
  int v = a[block.thread_rank()];
  int s = cg::reduce(four, v, cg::plus<int>());
  int m = cg::reduce(wide, v, cg::greater<int>());
  int first = wide.shfl(v, 0);
  __shared__ int rows[16];
  if (four.thread_rank() == 0) rows[four.meta_group_rank()] = s;
  cg::sync(block);
  o[block.thread_rank()] = rows[15 - four.meta_group_rank()] + m * 1000 + first;
}}""",
    grid=1,
    block=64,
    given=lambda rng: (ints(rng, 64), zeros(64)),
    right=lambda a, o: (
        a,
        np.repeat(a.reshape(16, 4).sum(1)[::-1], 4)
        + np.repeat(a.reshape(4, 16).max(1), 16) * 1000
        + np.repeat(a.reshape(4, 16)[:, 0], 16),
    ),
    fault=("cg::sync(block);", "cg::sync(wide);"),
)

add(
    "half2 and bfloat16 arithmetic",
    headers=True,
    source=f"""#include <cuda_fp16.h>
#include <cuda_bf16.h>
{K}(const __half2* a, const __half2* b, __half2* o, const __nv_bfloat162* c, __nv_bfloat162* p) {{
  int t = threadIdx.x;
  o[t] = __hfma2(a[t], b[t], __half2half2(__float2half(0.5f)));
  __nv_bfloat162 x = __hmul2(c[t], c[(t + 1) % 32]);
  p[t] = __hmax2(x, __float2bfloat162_rn(0.25f));
}}""",
    grid=1,
    block=32,
    given=lambda rng: (
        rng.standard_normal(64).astype(np.float16),
        rng.standard_normal(64).astype(np.float16),
        zeros(64, kind=np.float16),
        _bfloats(rng.standard_normal(64)),
        zeros(64, kind=np.uint16),
    ),
    right=lambda a, b, o, c, p: (
        a,
        b,
        (a.astype(np.float64) * b + 0.5).astype(np.float16),
        c,
        _bfloats(np.maximum(_floats(c) * np.roll(_floats(c), -2), 0.25)),
    ),
    fault=("(t + 1) % 32", "t + 1"),
)


def _bfloats(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _floats(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


add(
    "flag of cuda::atomic_ref between blocks",
    headers=True,
    source=f"""#include <cuda/atomic>
{K}(int* data, int* flag, int* o) {{
  cuda::atomic_ref<int, cuda::thread_scope_device> f(*flag);
  if (blockIdx.x == 0) {{
    data[threadIdx.x] = 3 * threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) f.store(1, cuda::memory_order_release);
  }} else {{
    if (threadIdx.x == 0) while (f.load(cuda::memory_order_acquire) == 0) ;
    __syncthreads();
    o[(blockIdx.x - 1) * 32 + threadIdx.x] = data[31 - threadIdx.x];
  }}
}}""",
    grid=3,
    block=32,
    given=lambda rng: (zeros(32), zeros(1), zeros(64)),
    right=lambda data, flag, o: (3 * np.arange(32), np.array([1]), np.tile(3 * np.arange(32)[::-1], 2)),
    fault=("memory_order_release", "memory_order_relaxed"),
)

add(
    "cuda::barrier whose halves arrive and wait apart",
    headers=True,
    source=f"""#include <cuda/barrier>
using barrier = cuda::barrier<cuda::thread_scope_block>;
{K}(const int* a, int* o) {{
  __shared__ barrier ready;
  __shared__ int s[64];
  if (threadIdx.x == 0) init(&ready, 64);
  __syncthreads();
  for (int i = 0; i < 3; i++) {{
    s[threadIdx.x] = a[i * 64 + threadIdx.x];
    auto token = ready.arrive();
    int mine = a[i * 64 + 63 - threadIdx.x];
    ready.wait(static_cast<barrier::arrival_token&&>(token));
    o[i * 64 + threadIdx.x] = mine + s[(threadIdx.x + 1) & 63];
    ready.arrive_and_wait();
  }}
}}""",
    grid=1,
    block=64,
    given=lambda rng: (ints(rng, 192), zeros(192)),
    right=lambda a, o: (a, (a.reshape(3, 64)[:, ::-1] + np.roll(a.reshape(3, 64), -1, axis=1)).ravel()),
    fault=("    ready.arrive_and_wait();\n", ""),
)

add(
    "CUB's scan, reduction and sort of a block",
    headers=True,
    source=f"""#include <cub/block/block_scan.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_radix_sort.cuh>
{K}(const int* a, int* sums, int* sorted, int* all) {{
  using Scan = cub::BlockScan<int, 64>;
  using Reduce = cub::BlockReduce<int, 64>;
  using Sort = cub::BlockRadixSort<int, 64, 2>;
  __shared__ union {{ Scan::TempStorage scan; Reduce::TempStorage reduce; Sort::TempStorage sort; }} temp;
  int t = threadIdx.x, v = a[t], before, keys[2] = {{a[2 * t], a[2 * t + 1]}};
  Scan(temp.scan).ExclusiveSum(v, before);
  sums[t] = before;
  __syncthreads();
  int total = Reduce(temp.reduce).Sum(v);
  if (t == 0) *all = total;
  __syncthreads(); // before the sort
  Sort(temp.sort).Sort(keys);
  sorted[2 * t] = keys[0]; sorted[2 * t + 1] = keys[1];
}}""",
    grid=1,
    block=64,
    given=lambda rng: (ints(rng, 128), zeros(64), zeros(128), zeros(1)),
    right=lambda a, sums, ordered, total: (
        a,
        np.cumsum(a[:64]) - a[:64],
        np.sort(a),
        np.array([a[:64].sum()]),
    ),
    fault=("  __syncthreads(); // before the sort\n", ""),
)

# Asynchronous units


add(
    "tiles copied two ahead by cp.async",
    source=f"""{K}(const float* a, float* o, int tiles) {{
  __shared__ float s[3][64];
  int t = threadIdx.x;
  auto get = [&](int i) {{
    if (i < tiles) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::
      "r"((unsigned)__cvta_generic_to_shared(&s[i % 3][t])), "l"(a + i * 64 + t) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  }};
  get(0); get(1);
  float sum = 0;
  for (int i = 0; i < tiles; i++) {{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    get(i + 2);
    sum += s[i % 3][63 - t];
  }}
  o[t] = sum;
}}""",
    grid=1,
    block=64,
    given=lambda rng: (ints(rng, 448).astype(np.float32), zeros(64, kind=np.float32), np.int32(7)),
    right=lambda a, o, tiles: (a, a.reshape(7, 64).sum(0)[::-1]),
    fault=("wait_group 1", "wait_group 2"),
)

_CLUSTER = f"""{PRELUDE}
__device__ float far_float(const float* p, int r) {{
  float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(far(p, r)) : "memory");
  return v; }}
extern "C" __global__ void __cluster_dims__(4, 1, 1) k"""

add(
    "sum of a cluster through distributed shared memory",
    source=f"""{_CLUSTER}(const float* a, float* o) {{
  __shared__ float part;
  float v = a[blockIdx.x * 32 + threadIdx.x];
  for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  if (threadIdx.x == 0) part = v;
  cluster_sync();
  float all = 0;
  for (int r = 0; r < 4; r++) all += far_float(&part, r);
  cluster_sync(); // nobody leaves before
  o[blockIdx.x * 32 + threadIdx.x] = all;
}}""",
    grid=8,
    block=32,
    given=lambda rng: (ints(rng, 256).astype(np.float32), zeros(256, kind=np.float32)),
    right=lambda a, o: (a, np.repeat(a.reshape(2, 128).sum(1), 128)),
    fault=("  cluster_sync(); // nobody leaves before\n", ""),
)

add(
    "histogram of a cluster, a share of the bins in each block",
    source=f"""{_CLUSTER}(const int* a, int* o) {{
  __shared__ int bins[8];
  if (threadIdx.x < 8) bins[threadIdx.x] = 0;
  cluster_sync();
  int v = a[blockIdx.x * 32 + threadIdx.x] & 31;
  asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;"
               :: "r"(far(&bins[v & 7], v >> 3)) : "memory");
  cluster_sync(); // all have counted
  if (threadIdx.x < 8) atomicAdd(&o[rank() * 8 + threadIdx.x], bins[threadIdx.x]);
}}""",
    grid=8,
    block=32,
    given=lambda rng: (ints(rng, 256), zeros(32)),
    right=lambda a, o: (a, np.bincount(a & 31, minlength=32)),
    fault=("  cluster_sync(); // all have counted\n", ""),
)

add(
    "one producer and two consumers of tiles by bulk copies",
    source=f"""{PRELUDE}
{K}(const float* a, float* o, int tiles) {{
  __shared__ __align__(128) float s[2][64];
  __shared__ u64 full[2], empty[2];
  int t = threadIdx.x, w = t / 32;
  if (t == 0) {{
    for (int i = 0; i < 2; i++) {{ init(&full[i], 1); init(&empty[i], 64); }}
    fence_init();
  }}
  __syncthreads();
  if (w == 2) {{
    if (t == 64)
      for (int i = 0; i < tiles; i++) {{
        if (i >= 2) wait(&empty[i & 1], i / 2 - 1 & 1);
        expect(&full[i & 1], 256);
        load(s[i & 1], a + i * 64, 256, &full[i & 1]);
      }}
  }} else {{
    float sum = 0;
    for (int i = 0; i < tiles; i++) {{
      wait(&full[i & 1], i / 2 & 1);
      sum += s[i & 1][63 - t];
      arrive(&empty[i & 1]);
    }}
    o[t] = sum;
  }}
}}""",
    grid=1,
    block=96,
    given=lambda rng: (ints(rng, 448).astype(np.float32), zeros(64, kind=np.float32), np.int32(7)),
    right=lambda a, o, tiles: (a, a.reshape(7, 64).sum(0)[::-1]),
    fault=("init(&empty[i], 64)", "init(&empty[i], 32)"),
)
