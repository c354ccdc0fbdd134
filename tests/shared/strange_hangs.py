"""Kernels that hang in the ways of strangers: what a producer, a lock, a queue or a loop of theirs forgot."""

from __future__ import annotations

from dataclasses import dataclass

from shared.hopper_kernels import PRELUDE


@dataclass(frozen=True)
class Hang:
    """A kernel that hangs: p holds zeros, v are the same, volatile; t is the thread."""

    body: str
    blocks: int = 1
    threads: int = 64
    cluster: int = 0

    @property
    def source(self) -> str:
        dims = f"__cluster_dims__({self.cluster}, 1, 1)" if self.cluster else ""
        return f"""{PRELUDE}
          extern "C" __global__ void {dims} __launch_bounds__({self.threads}) k(int* p) {{
            int t = threadIdx.x, s = 0; volatile int* v = p; {self.body.replace("RING", RING)}
            if (s == 12345) p[0] = s; }}"""


# Four stages: one thread fills, a warp empties.
RING = """__shared__ alignas(8) u64 full[4], empty[4];
  if (t == 0) { for (int i = 0; i < 4; i++) { init(full + i, 1); init(empty + i, 32); } fence_init(); }
  __syncthreads();"""
FORGOTTEN = {
    "producer forgets an arrival": Hang(
        """RING
      if (t < 32) for (int i = 0; i < 40; i++) { if (i >= 4) wait(empty + i%4, (i/4-1)&1); if (t == 0
      && i != 17) arrive(full + i%4); __syncwarp(); }
      else for (int i = 0; i < 40; i++) { wait(full + i%4, i/4&1); s += i; arrive(empty + i%4); }""",
        1,
        64,
    ),
    "consumer starts with wrong parity": Hang(
        """RING
      if (t < 32) for (int i = 0; i < 40; i++) { wait(empty + i%4, i/4&1); if (t == 0) arrive(full +
      i%4); __syncwarp(); }
      else for (int i = 0; i < 40; i++) { wait(full + i%4, i/4&1); s += i; arrive(empty + i%4); }""",
        1,
        64,
    ),
    "ticket lock whose release increments the ticket": Hang(
        """if (t == 0) { int mine = atomicAdd(p, 1); while (v[1] != mine) ; p[5]++; __threadfence();
      atomicAdd(p, 1); }""",
        8,
        32,
    ),
    "ticket never published": Hang(
        """__shared__ int tile; for (;;) { if (t == 0) { int x = atomicAdd(p, 1); if (x < 5) tile = x; }
      __syncthreads(); int w = tile; __syncthreads(); if (w >= 6) break; p[100 + w * 64 + t] += 1; }""",
        2,
        64,
    ),
    "grid barrier counts threads not blocks": Hang(
        """for (int r = 0; r < 3; r++) { __syncthreads(); if (t == 0) { __threadfence(); atomicAdd(p, 1);
      while (atomicAdd(p, 0) < (r + 1) * (int)(gridDim.x * blockDim.x)) ; } __syncthreads(); }""",
        6,
        64,
    ),
    "sense-reversing barrier, sense never flipped": Hang(
        """if (t == 0) { int sense = v[1]; if (atomicAdd(p, 1) == gridDim.x - 1) { p[0] = 0;
      __threadfence(); v[2] = !sense; } else while (v[1] == sense) __nanosleep(20); } __syncthreads();""",
        12,
        64,
    ),
    "backoff by busy loop that grows": Hang(
        """int wait_ = 1; while (atomicCAS(p, 0, 1) != 0) { for (int i = 0; i < wait_; i++) s += v[9]; wait_
      = wait_ < 512 ? wait_ * 2 : 1; } p[1]++;""",
        4,
        32,
    ),
    "a step of zero by integer division": Hang(
        """int step = blockDim.x / 128; for (int i = t; i < 4096; i += step) s += p[i];""", 4, 64
    ),
    "shift of zero": Hang("""for (int d = p[3]; d < 64; d <<= 1) { __syncthreads(); s += p[d]; }""", 2, 64),
    "halving that stops at 1": Hang(
        """for (int d = 32; d > 0; d = (d + 1) / 2) { __syncthreads(); if (t < d) p[t] += p[t + d]; }""",
        2,
        64,
    ),
    "clock32 wait that can not be": Hang("""unsigned c = clock(); while (clock() - c >= 0u) s++;""", 1, 64),
    "host flag in mapped memory, plus timeout never reset": Hang(
        """int tries = 0; while (v[0] != 1) { if (++tries > 1000) { tries = 0; __nanosleep(100); } }""", 4, 64
    ),
    "heartbeat while waiting for the host": Hang(
        """while (v[0] != 1) { if (t == 0) atomicAdd(p + 1, 1); __nanosleep(1000); }""", 4, 64
    ),
    "cluster: remote arrival to the wrong rank": Hang(
        """RING
      cluster_sync(); unsigned r = rank(); if (t == 0) arrive_far(far(full, r)); wait(full, 0);
      wait(full + 1, 0); cluster_sync();""",
        4,
        64,
        2,
    ),
    "try_wait with a suspend time hint": Hang(
        """RING
      int ok = 0; while (!ok) asm volatile(
      "{ .reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2, %3; selp.s32 %0,1,0,q; }"
      : "=r"(ok) : "r"(at(full)), "r"(0), "r"(1000000));""",
        2,
        128,
    ),
    "unequal rounds of named barriers": Hang(
        """if (t < 64) for (int i = 0; i < 9; i++) { asm volatile("bar.sync 1, 128;" ::: "memory"); p[t] +=
      i; }
      else for (int i = 0; i < 8; i++) { p[t] += i; asm volatile("bar.sync 1, 128;" ::: "memory"); }""",
        2,
        128,
    ),
    "look-back that waits for its own": Hang(
        """__shared__ int sum; if (t == 0) { int b = blockIdx.x, j = b; int acc = 0; while (j >= 0) { int f
      = v[64 + j]; if (f == 2) { acc += v[128 + j]; break; } if (f == 1) { acc += v[128 + j]; j--; } }
      v[128 + b] = acc; __threadfence(); v[64 + b] = 2; sum = acc; } __syncthreads(); p[512 + t] = sum;""",
        16,
        64,
    ),
    "work stealing with a count that never falls": Hang(
        """while (atomicAdd(p + 1, 0) < 64) { int i = atomicAdd(p, 1); if (i < 64) { p[64 + i] = i; if (i !=
      13) atomicAdd(p + 1, 1); } }""",
        4,
        32,
    ),
    "BFS whose frontier never empties": Hang(
        """__shared__ int again; do { __syncthreads(); if (t == 0) again = 0; __syncthreads(); int o = p[100
      + t]; p[100 + t] = o ^ 1; if (p[100 + t] != o) again = 1; __syncthreads(); } while (again);""",
        1,
        256,
    ),
    "Jacobi until converged, never": Hang(
        """__shared__ float x[66], e; if (t == 0) { x[0] = 1; x[65] = 0; } x[t + 1] = t; __syncthreads();
      do { if (t == 0) e = 0; __syncthreads(); float y = 0.5f * (x[t] + x[t + 2]) + 0.001f * (t & 1);
      float d = fabsf(y - x[t + 1]) + 1e-3f; __syncthreads(); x[t + 1] = y; atomicMax((int*)&e,
      __float_as_int(d)); __syncthreads(); } while (e > 1e-4f);""",
        1,
        64,
    ),
    "rejection sampling that rejects all": Hang(
        """unsigned x = 1234 + t, n = 0; float u; do { x = x * 747796405u + 2891336453u; u = (x >> 8) *
      5.96e-8f; n++; } while (u < 1.5f); p[t] = n;""",
        4,
        128,
    ),
    "dining philosophers": Hang(
        """int l = blockIdx.x, r = (l + 1) % gridDim.x; if (t == 0) { while (atomicCAS(p + l, 0, 1)) ; while
      (v[100] < (int)gridDim.x) { if (!v[200 + l]) { v[200 + l] = 1; atomicAdd(p + 100, 1); } } while
      (atomicCAS(p + r, 0, 1)) ; p[300 + l] = 1; atomicExch(p + r, 0); atomicExch(p + l, 0); }""",
        5,
        32,
    ),
    "persistent loop over a command word": Hang(
        """__shared__ int cmd; int seq = 0; for (;;) { if (t == 0) { int c; while ((c = v[0]) == seq) ; cmd
      = c; } __syncthreads(); if (cmd < 0) break; seq = cmd; p[64 + t] += cmd; __syncthreads(); }""",
        4,
        128,
    ),
    "ping pong over global memory, off by one": Hang(
        """if (t == 0) { int me = blockIdx.x; for (int i = 0; i < 100; i++) { while (v[0] != 2 * i + me + (i
      == 57)) ; __threadfence(); v[0] = 2 * i + me + 1; } }""",
        2,
        32,
    ),
    "DSMEM flag that the peer never sets": Hang(
        """__shared__ volatile int f; if (t == 0) f = 0; cluster_sync(); unsigned a = far((const void*)&f, 1
      - rank()); int x; do asm volatile("ld.volatile.shared::cluster.s32 %0, [%1];" : "=r"(x) :
      "r"(a)); while (x == 0); cluster_sync();""",
        2,
        64,
        2,
    ),
    "bulk copy expects too much, ring goes on until it is full": Hang(
        """RING
      __shared__ alignas(128) int buf[4][32];
      if (t < 32) { if (t == 0) for (int i = 0; i < 40; i++) { if (i >= 4) wait(empty + i%4,
      (i/4-1)&1); expect(full + i%4, i == 21 ? 144 : 128); load(buf[i%4], p + 32 * i, 128, full + i%4);
      } }
      else for (int i = 0; i < 40; i++) { wait(full + i%4, i/4&1); s += buf[i%4][t-32]; arrive(empty +
      i%4); }""",
        1,
        64,
    ),
    "warp-specialised, one warp exits early": Hang(
        """RING
      if (t < 32) for (int i = 0; i < 40; i++) { if (i >= 4) wait(empty + i%4, (i/4-1)&1); if (t == 0)
      arrive(full + i%4); __syncwarp(); }
      else for (int i = 0; i < 40; i++) { wait(full + i%4, i/4&1); if (i == 20 && t == 40) return; s +=
      i; arrive(empty + i%4); }""",
        1,
        64,
    ),
    "poll with count in shared memory of all warps": Hang(
        """__shared__ int polls[32]; polls[t / 32] = 0; __syncthreads(); while (v[0] == 0) { if (t % 32 ==
      0) polls[t / 32]++; __syncwarp(); } p[t] = polls[0];""",
        4,
        512,
    ),
    "global barrier generation wraps at wrong value": Hang(
        """for (int g = 0; g < 12; g++) { __syncthreads(); if (t == 0) { __threadfence(); int o =
      atomicInc((unsigned*)p, gridDim.x - (g < 9)); if (o == (int)gridDim.x - 1) atomicAdd(p + 1, 1);
      else while (v[1] <= g) ; } __syncthreads(); }""",
        4,
        64,
    ),
    "64 blocks look back over all others": Hang(
        """if (t < 32) { int b = blockIdx.x, acc = 0, j = b - 1; unsigned tries = 0; while (j >= -1) { int f
      = j < 0 ? 0 : v[j]; if (f) { acc += f; j -= 1; if (j < 0) break; } else tries++; } v[b] = acc +
      1; p[300 + b] = tries; }""",
        64,
        32,
    ),
    "8 blocks beside an mbarrier, heartbeats": Hang(
        """RING while (v[0] == 0) if (t % 32 == 0) v[16 + blockIdx.x * 2 + t / 32] += 1 + blockIdx.x;""",
        8,
        64,
    ),
    "32 warps, 2 blocks, heartbeats of several steps": Hang(
        """int w = t / 32; while (v[0] == 0) { if (t % 32 == 0) { v[16 + w] += w + 1; v[64 + w] = v[16 + w]
      * 3; } __syncwarp(); }""",
        2,
        1024,
    ),
    "scheduler on mbarriers, equality": Hang(
        """RING __shared__ volatile int tile[4];
      if (t < 32) { for (int i = 0;; i++) { if (i >= 4) wait(empty + i%4, (i/4-1)&1); int w = 0; if (t
      == 0) { w = atomicAdd(p, 1); tile[i%4] = w; arrive(full + i%4); } w = __shfl_sync(~0u, w, 0); if
      (w == 37) break; } }
      else for (int i = 0;; i++) { wait(full + i%4, i/4&1); int w = tile[i%4]; arrive(empty + i%4); if
      (w == 37) break; p[1000 + w % 64 * 64 + t] = w; }""",
        4,
        64,
    ),
    "cp.async ring, step zero": Hang(
        """__shared__ int buf[4][64]; unsigned a = at(buf); int k = 0, i = 0; while (k < 1024) { asm
      volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.commit_group; cp.async.wait_group 0;"
      :: "r"(a + (i % 4 * 64 + t) * 4), "l"(p + 64 + t)); __syncthreads(); s += buf[i % 4][63 - t];
      __syncthreads(); k += p[7]; i++; }""",
        2,
        64,
    ),
    "grid barrier, error never falls": Hang(
        """float x = t * 0.1f; for (int it = 0;; it++) { x = 3.9f * x * (1 - x); if (!(x > 0 && x < 1)) x =
      0.3f; float e = fabsf(x - 0.5f) + 1e-3f; atomicMax(p + 10 + it % 3, __float_as_int(e));
      __syncthreads(); if (t == 0) { __threadfence(); atomicAdd(p, 1); while (atomicAdd(p, 0) < (it +
      1) * (int)gridDim.x) ; } __syncthreads(); float m = __int_as_float(v[10 + it % 3]); if (t == 0 &&
      blockIdx.x == 0) v[10 + (it + 1) % 3] = 0; if (m < 1e-4f) break; }""",
        8,
        64,
    ),
    "token ring of blocks for ever": Hang(
        """if (t == 0) for (int i = 0;; i++) { while (v[0] != i * (int)gridDim.x + (int)blockIdx.x) ;
      __threadfence(); v[0] = v[0] + 1; }""",
        8,
        32,
    ),
    "two warps in turns, chaos": Hang(
        """float x = 0.1f + t * 0.01f; __shared__ float y[64]; for (;;) { if (t < 32) { asm
      volatile("bar.sync 1, 64;" ::: "memory"); x = y[t + 32]; } x = 3.99f * x * (1 - x); y[t] = x; if
      (t < 32) asm volatile("bar.arrive 2, 64;" ::: "memory"); else { asm volatile("bar.arrive 1, 64;"
      ::: "memory"); asm volatile("bar.sync 2, 64;" ::: "memory"); x = y[t - 32]; } if (x > 2) break; }""",
        2,
        64,
    ),
    "TMA ring for ever, done never set": Hang(
        """RING __shared__ alignas(128) int buf[4][32]; __shared__ volatile int done; if (t == 0) done = 0;
      __syncthreads();
      if (t < 32) { for (int i = 0; !done; i++) { if (i >= 4) wait(empty + i%4, (i/4-1)&1); if (t == 0)
      { expect(full + i%4, 128); load(buf[i%4], p + 32 * (i % 64), 128, full + i%4); } __syncwarp(); } }
      else for (int i = 0; !done; i++) { wait(full + i%4, i/4&1); s += buf[i%4][t-32] * s + i;
      arrive(empty + i%4); }""",
        2,
        64,
    ),
    "many warps with different periods": Hang(
        """int w = t / 32 + 2; for (int i = 0; v[0] == 0; i++) { if (i % w == 0 && t % 32 == 0) v[32 + w]++;
      __syncwarp(); }""",
        1,
        512,
    ),
    "blocks with heartbeats of different periods": Hang(
        """int w = blockIdx.x + 2; for (int i = 0; v[0] == 0; i++) if (i % w == 0) v[32 + w]++;""", 12, 32
    ),
    "kmeans that swaps": Hang(
        """__shared__ float c[2]; __shared__ int ch; if (t == 0) { c[0] = 1; c[1] = 2; } int as = 0; do {
      __syncthreads(); if (t == 0) ch = 0; __syncthreads(); int n = fabsf(t - c[0]) < fabsf(t - c[1]);
      if (n == as) ; else { as = n; } atomicAdd(&ch, 1); __syncthreads(); if (t == 0) { float q = c[0];
      c[0] = c[1] + 0.01f; c[1] = q; } __syncthreads(); } while (ch);""",
        1,
        128,
    ),
    "seqlock reader, writer died": Hang(
        """if (blockIdx.x == 0) { if (t == 0) v[0] = 1; } else { int a, b, d; do { a = v[0];
      __threadfence(); d = v[1]; __threadfence(); b = v[0]; } while ((a & 1) || a != b); p[100 + t] =
      d; }""",
        4,
        64,
    ),
    "MCS lock, next never linked": Hang(
        """if (t == 0) { int me = blockIdx.x + 1; v[100 + me] = 0; v[200 + me] = 1; int prev = atomicExch(p,
      me); if (prev) { /* v[100 + prev] = me; */ while (v[200 + me]) ; } p[5]++; if (atomicCAS(p, me,
      0) != me) { int n; while ((n = v[100 + me]) == 0) ; v[200 + n] = 0; } }""",
        6,
        32,
    ),
    "bakery": Hang(
        """if (t == 0) { int b = blockIdx.x; v[b] = 1; int m = 0; for (int i = 0; i < gridDim.x; i++) m =
      max(m, v[50 + i]); v[50 + b] = m + 1; for (int j = 0; j < gridDim.x; j++) { while (v[50 + j] &&
      (v[50 + j] < v[50 + b] || (v[50 + j] == v[50 + b] && j < b))) ; while (v[j] && j != b) ; }
      p[300]++; v[50 + b] = 0; }""",
        4,
        32,
    ),
    "dot of mma over k with step 0": Hang(
        """float d[4] = {}; unsigned a[4] = {1,2,3,4}, b[2] = {5,6}; for (int k = 0; k < 64; k += p[3]) asm
      volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3])
      : "r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]),"r"(b[0]),"r"(b[1])); p[t] = d[0];""",
        4,
        128,
    ),
    "odd-even sort with NaN": Hang(
        """__shared__ float a[64]; __shared__ int sw; a[t] = t == 7 ? __int_as_float(0x7fc00000) : 64 - t;
      do { __syncthreads(); if (t == 0) sw = 0; __syncthreads(); for (int ph = 0; ph < 2; ph++) { int i
      = 2 * t + ph; if (i + 1 < 64 && !(a[i] <= a[i + 1])) { float x = a[i]; a[i] = a[i + 1]; a[i + 1]
      = x; sw = 1; } __syncthreads(); } } while (sw);""",
        2,
        64,
    ),
}
# They end, after much work.
LASTING = {
    "long polynomial": Hang("""for (int i = 0; i < 60000; i++) s = s * 31 + p[i & 1023] + i;""", 4, 128),
    "xorshift until hit": Hang(
        """unsigned x = t + 1, n = 0; do { x ^= x << 13; x ^= x >> 17; x ^= x << 5; n++; } while ((x & 8191)
      != 77 && n < 12000); p[t] = n;""",
        2,
        64,
    ),
    "tiles of persistent work": Hang(
        """for (int i = blockIdx.x; i < 400; i += gridDim.x) { for (int k = 0; k < 40; k++) {
      __syncthreads(); p[t + 64 * blockIdx.x] += k * i; __syncthreads(); } }""",
        4,
        64,
    ),
    "ring of 3000 steps": Hang(
        """RING
      if (t < 32) for (int i = 0; i < 3000; i++) { if (i >= 4) wait(empty + i%4, (i/4-1)&1); if (t ==
      0) arrive(full + i%4); __syncwarp(); }
      else for (int i = 0; i < 3000; i++) { wait(full + i%4, i/4&1); s += i; arrive(empty + i%4); }""",
        1,
        64,
    ),
    "collatz of long ones": Hang(
        """unsigned long long n = 837799; int c = 0; for (int r = 0; r < 40; r++) { n = 837799 - 2 * r;
      while (n != 1) { n = n & 1 ? 3 * n + 1 : n / 2; c++; } } p[t] = c;""",
        2,
        64,
    ),
    "lock in turn": Hang(
        """if (t == 0) for (int i = 0; i < 60; i++) { while (atomicCAS(p, 0, 1)) __nanosleep(20);
      __threadfence(); v[1] = v[1] + 1; __threadfence(); atomicExch(p, 0); }""",
        16,
        32,
    ),
    "bubble sort": Hang(
        """__shared__ int a[150]; if (t == 0) for (int i = 0; i < 150; i++) a[i] = i * 7919 % 307;
      __syncthreads(); if (t == 0) { bool sw; do { sw = false; for (int i = 0; i + 1 < 150; i++) if
      (a[i] > a[i + 1]) { int x = a[i]; a[i] = a[i + 1]; a[i + 1] = x; sw = true; } } while (sw); }
      __syncthreads(); p[t] = a[t];""",
        1,
        64,
    ),
}
