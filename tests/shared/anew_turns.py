"""More kernels of Hopper's units: reductions by bulk copies, flags between blocks, wgmma in turns."""

from __future__ import annotations

import numpy as np

from shared.anew_hopper import PRELUDE, Made, matrix
from shared.anew_kernels import ANEW, Anew, close


def partial(rng: np.random.Generator) -> Made:
    x, out = rng.standard_normal((7, 256)).astype(np.float32), np.zeros(256, np.float32)
    return [x, out, np.zeros(1, np.int32), np.int32(7)], lambda: close(out, 2 * x.sum(0))


ANEW["reduce-add epilogue"] = Anew(
    make=partial,
    grid=4,
    block=128,
    hopper=True,
    source=PRELUDE
    + """
extern "C" __global__ void k(const float* x, float* out, int* arrived, int rows) {
  __shared__ __align__(128) float s[2][128];
  __shared__ int last;
  int t = threadIdx.x, n = 0;
  for (int r = blockIdx.x; r < rows; r += gridDim.x)
    for (int h = 0; h < 2; h++, n++) {
      if (t == 0) ASM("cp.async.bulk.wait_group.read 1;" ::);
      __syncthreads(); // free
      s[n & 1][t] = x[r * 256 + h * 128 + t];
      proxy();
      __syncthreads(); // stored
      if (t == 0) {
        ASM("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 512;"
            ::"l"(out + h * 128), "r"(at(s[n & 1])));
        ASM("cp.async.bulk.commit_group;" ::);
      }
    }
  if (t == 0) {
    ASM("cp.async.bulk.wait_group 0;" ::);
    ASM("fence.proxy.async;" ::);
    __threadfence(); // release
    last = atomicAdd(arrived, 1) == gridDim.x - 1;
    __threadfence(); // acquire
  }
  __syncthreads(); // last
  if (!last) return;
  out[t] *= 2;
  out[t + 128] *= 2;
  if (t == 0) *arrived = 0;
}""",
    faults=(
        ("wait_group.read 1", "wait_group.read 2"),
        ('      if (t == 0) ASM("cp.async.bulk.wait_group.read 1;" ::);\n', ""),
        ("      __syncthreads(); // free\n", ""),
        ("      __syncthreads(); // stored\n", ""),
        ("      proxy();\n", ""),
        ("wait_group 0;", "wait_group.read 0;"),
        ('    ASM("cp.async.bulk.wait_group 0;" ::);\n', ""),
        ("__threadfence(); // release", ""),
        ("__threadfence(); // release", "__threadfence_block();"),
        ("  __syncthreads(); // last\n", ""),
        ("gridDim.x - 1;", "gridDim.x - 2;"),
        ("[%1], 512;", "[%1], 1024;"),
        ("[%1], 512;", "[%1], 256;"),
        ('        ASM("cp.async.bulk.commit_group;" ::);\n', ""),
        ("r < rows;", "r <= rows;"),
        (
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32",
            "cp.async.bulk.global.shared::cta.bulk_group",
        ),
        ("last = atomicAdd(arrived, 1) ==", "last = (*arrived)++ =="),
    ),
    same=(
        ("__threadfence(); // acquire", ""),
        ("      proxy();\n      __syncthreads(); // stored\n", "      __syncthreads();\n      proxy();\n"),
    ),
)


def streamed(rng: np.random.Generator) -> Made:
    x, out = rng.standard_normal((35, 64)).astype(np.float32), np.full((5, 64), np.nan, np.float32)
    space, flags = np.full((4, 64), np.nan, np.float32), np.zeros(4, np.int32)
    return [x, out, space, flags, np.int32(35), np.int32(7)], lambda: close(out, x.reshape(5, 7, 64).sum(1))


ANEW["stream-K with flags"] = Anew(
    make=streamed,
    grid=4,
    block=64,
    hopper=True,
    source=PRELUDE
    + """
extern "C" __global__ void k(const float* x, float* out, float* space, int* flags, int items, int per) {
  __shared__ __align__(128) float s[2][64];
  __shared__ Bar full[2];
  int t = threadIdx.x, share = (items + gridDim.x - 1) / gridDim.x, b = blockIdx.x;
  int first = b * share, end = first + share < items ? first + share : items;
  if (t == 0) {
    init(full, 1);
    init(full + 1, 1);
    begun();
  }
  __syncthreads(); // begun
  auto load = [&](int i) {
    if (t == 0 && i < end) {
      int n = i - first;
      expect(full + (n & 1), 256);
      bulk(s[n & 1], x + i * 64, 256, full + (n & 1));
    }
  };
  load(first);
  float sum = 0;
  for (int i = first; i < end; i++) {
    int n = i - first;
    load(i + 1);
    wait(full + (n & 1), n / 2 & 1);
    sum += s[n & 1][t];
    __syncthreads(); // read
    if ((i + 1) % per == 0 || i + 1 == end) {
      int tile = i / per;
      if (tile * per < first) {
        space[b * 64 + t] = sum;
        __threadfence(); // partial
        __syncthreads(); // partials
        if (t == 0) atomicExch(flags + b, 1);
      } else {
        int stop = i + 1, other = b;
        while (stop < (tile + 1) * per) {
          other++;
          if (t == 0) while (atomicAdd(flags + other, 0) == 0);
          __syncthreads(); // seen
          __threadfence(); // other
          sum += space[other * 64 + t];
          stop = (other + 1) * share;
        }
        out[tile * 64 + t] = sum;
      }
      sum = 0;
    }
  }
}""",
    faults=(
        ("__threadfence(); // partial\n", "\n"),
        ("__syncthreads(); // partials", ""),
        ("__syncthreads(); // seen", ""),
        ("          if (t == 0) while (atomicAdd(flags + other, 0) == 0);\n", ""),
        ("flags + other, 0)", "flags + other - 1, 0)"),
        ("    __syncthreads(); // read\n", ""),
        ("    wait(full + (n & 1), n / 2 & 1);\n", ""),
        ("n / 2 & 1)", "n & 1)"),
        ("expect(full + (n & 1), 256)", "expect(full + (n & 1), 128)"),
        ("x + i * 64, 256,", "x + i * 64, 512,"),
        ("i < end) {", "i <= end) {"),
        ("tile * per < first)", "tile * per <= first)"),
        (
            "space[b * 64 + t] = sum;\n        __threadfence(); // partial\n"
            "        __syncthreads(); // partials\n        if (t == 0) atomicExch(flags + b, 1);",
            "if (t == 0) atomicExch(flags + b, 1);\n        __threadfence();\n"
            "        __syncthreads();\n        space[b * 64 + t] = sum;",
        ),
        ("space[other * 64 + t]", "space[b * 64 + t]"),
        ("    begun();\n", ""),
        ("  __syncthreads(); // begun\n", ""),
        ("__threadfence(); // partial\n", "__threadfence_block();\n"),
        ("atomicExch(flags + b, 1)", "flags[b] = 1"),
        ("      sum = 0;\n", ""),
    ),
)


def wide(rng: np.random.Generator) -> Made:
    def bf16(shape: tuple[int, int]) -> np.ndarray:
        return (rng.integers(-8, 9, shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    a, b = bf16((150, 152)), bf16((56, 152))
    c = np.full((150, 56), np.nan, np.float32)
    x, y = ((m.astype(np.uint32) << 16).view(np.float32) for m in (a, b))
    maps = [matrix(a, (64, 64), "BFLOAT16", 128), matrix(b, (64, 64), "BFLOAT16", 128)]
    return [*maps, c, np.int32(150), np.int32(56), np.int32(152)], lambda: close(c, x @ y.T)


OUT = ", ".join(f"%{i}" for i in range(32))
SUMS = ", ".join(f'"+f"(d[{i}])' for i in range(32))
ANEW["ping-pong wgmma"] = Anew(
    make=wide,
    grid=1,
    block=384,
    shared=4 * 16384 + 1024,
    hopper=True,
    source=PRELUDE
    + f"""
__device__ unsigned long long desc(const void* p) {{
  return (unsigned long long)(at(p) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}}
__device__ void mma(float* d, unsigned long long a, unsigned long long b) {{
  ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{OUT}}}, %32, %33, 1, 1, 1, 0, 0;"
      : {SUMS} : "l"(a), "l"(b));
}}
"""
    + """
extern "C" __global__ __launch_bounds__(384, 1) void k(const __grid_constant__ Map A,
    const __grid_constant__ Map B, float* c,
                                                       int m, int n, int depth) {
  extern __shared__ char raw[];
  char* s = raw + (1024 - at(raw) % 1024) % 1024;
  __shared__ Bar full[4], empty[4], turn[2];
  int t = threadIdx.x, group = t / 128, tiles = (m + 63) / 64, steps = (depth + 63) / 64;
  if (t == 0) {
    for (int i = 0; i < 4; i++) { init(full + i, 1); init(empty + i, 128); }
    init(turn, 128);
    init(turn + 1, 128);
    begun();
  }
  __syncthreads(); // begun
  if (group == 0) {
    ASM("setmaxnreg.dec.sync.aligned.u32 40;" ::);
    if (t == 0)
      for (int q = 0; q < tiles * steps; q++) {
        int st = q % 4;
        if (q >= 4) wait(empty + st, (q / 4 - 1) & 1);
        expect(full + st, 16384);
        tile(s + st * 16384, &A, q % steps * 64, q / steps * 64, full + st);
        tile(s + st * 16384 + 8192, &B, q % steps * 64, 0, full + st);
      }
    return;
  }
  ASM("setmaxnreg.inc.sync.aligned.u32 232;" ::);
  int me = group - 1, round = 0;
  if (me == 1) arrive(turn);
  for (int j = me; j < tiles; j += 2, round++) {
    float d[32] = {};
    wait(turn + me, round & 1);
    for (int step = 0; step < steps; step++) {
      int q = j * steps + step, st = q % 4;
      wait(full + st, q / 4 & 1);
      ASM("wgmma.fence.sync.aligned;" ::);
      for (int h = 0; h < 4; h++) mma(d, desc(s + st * 16384) + h * 2, desc(s + st * 16384 + 8192) + h * 2);
      ASM("wgmma.commit_group.sync.aligned;" ::);
      ASM("wgmma.wait_group.sync.aligned 0;" ::);
      arrive(empty + st);
    }
    arrive(turn + 1 - me);
    int row = j * 64 + t % 128 / 32 * 16 + t % 32 / 4, col = t % 4 * 2;
    for (int i = 0; i < 32; i++) {
      int r = row + i / 2 % 2 * 8, w = col + i / 4 * 8 + i % 2;
      if (r < m && w < n) c[r * n + w] = d[i];
    }
  }
}""",
    faults=(
        ("init(empty + i, 128)", "init(empty + i, 256)"),
        ("init(empty + i, 128)", "init(empty + i, 64)"),
        ("(q / 4 - 1) & 1", "q / 4 & 1"),
        ("if (q >= 4) wait", "if (q >= 5) wait"),
        ("expect(full + st, 16384)", "expect(full + st, 8192)"),
        ("expect(full + st, 16384)", "expect(full + st, 32768)"),
        ("+ 8192, &B, q % steps * 64, 0, full + st)", "+ 8192, &B, q % steps * 64, 0, full)"),
        ("      wait(full + st, q / 4 & 1);\n", ""),
        ('      ASM("wgmma.fence.sync.aligned;" ::);\n', ""),
        ('      ASM("wgmma.commit_group.sync.aligned;" ::);\n', ""),
        ("sync.aligned 0;", "sync.aligned 1;"),
        (
            '      ASM("wgmma.wait_group.sync.aligned 0;" ::);\n      arrive(empty + st);\n',
            '      arrive(empty + st);\n      ASM("wgmma.wait_group.sync.aligned 0;" ::);\n',
        ),
        ("+ h * 2, desc(s + st * 16384 + 8192) + h * 2", "+ h * 2, desc(s + st * 16384 + 8192) + h"),
        ("1ull << 62", "2ull << 62"),
        ("64ull << 32", "32ull << 32"),
        ("(1024 - at(raw) % 1024) % 1024", "512"),
        ("  if (me == 1) arrive(turn);\n", ""),
        ("    wait(turn + me, round & 1);\n", ""),
        ("arrive(turn + 1 - me)", "arrive(turn + me)"),
        ("if (r < m && w < n)", "if (r < m)"),
        ("if (r < m && w < n)", "if (w < n)"),
        ("    begun();\n", ""),
        ("  __syncthreads(); // begun\n", ""),
        ("u32 232", "u32 240"),
        ("int q = j * steps + step", "int q = step"),
        ("      arrive(empty + st);\n", ""),
    ),
)
