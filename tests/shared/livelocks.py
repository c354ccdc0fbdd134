"""Kernels whose threads go on for ever and get nowhere, and their twins, in which the missing link is there.

p holds zeros, v are the same, volatile; t is the thread, w its warp and W how many of them a block has. TURNS
is how long a twin runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Livelock:
    """A kernel that is right, and the change by which it hangs.

    link: what is replaced by `broken`, once
    turns: of the twin, so that it takes a second or so; `long` so that it takes longer than a hang is told in
    """

    body: str
    link: str
    broken: str
    threads: int = 64
    blocks: int = 1
    turns: int = 20
    long: int = 400
    cluster: int = 1

    def source(self, turns: int = 0) -> str:
        """Return the kernel that hangs, or its twin with so many turns."""
        if self.body.count(self.link) != 1:
            raise LookupError(f"{self.link!r} is not there once")
        body = self.body if turns else self.body.replace(self.link, self.broken)
        body = re.sub("|".join(WORDS), lambda word: WORDS[word[0]], body)
        cluster = f"__cluster_dims__({self.cluster}, 1, 1) " if self.cluster > 1 else ""
        return f"""extern "C" __global__ void {cluster}k(int* p) {{
          int t = threadIdx.x, w = t / 32, W = blockDim.x / 32; volatile int* v = p;
          {body.replace("TURNS", str(turns or self.turns))}
        }}"""


# `a` is the address of the first of eight mbarriers for an arrival each, in shared memory.
WORDS = {
    "MBARRIERS": """__shared__ unsigned long long bars[8]; unsigned a = __cvta_generic_to_shared(bars);
      if (t == 0) for (int i = 0; i < 8; i++)
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(a + 8 * i));
      asm volatile("fence.mbarrier_init.release.cluster;"); __syncthreads();""",
    "ARRIVE": 'asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory");',
    "WAIT": """int ok; do asm volatile("{ .reg .pred q; mbarrier.try_wait.parity.shared.b64 q, [%1], %2; "
      "selp.s32 %0, 1, 0, q; }" : "=r"(ok) : "r"(at), "r"(parity) : "memory"); while (!ok);""",
    "TEST": """int ok; do { asm volatile("{ .reg .pred q; mbarrier.test_wait.parity.shared.b64 q, [%1], %2; "
      "selp.s32 %0, 1, 0, q; }" : "=r"(ok) : "r"(at), "r"(parity) : "memory"); tries++; } while (!ok);""",
    "CLUSTER_SYNC": """asm volatile("barrier.cluster.arrive.aligned;\\n barrier.cluster.wait.aligned;"
      ::: "memory");""",
}

LIVELOCKS = {
    "a rest by a size": Livelock(
        "int n = v[64] + 3; for (int i = t;; i++) { v[128 + t] = 1; if (i % n == 1 && i > TURNS) break; }",
        "== 1",
        "== 7",
    ),
    "a ring of warps": Livelock(
        """__shared__ volatile int f[33]; if (t < 33) f[t] = 0; __syncthreads();
        for (int i = 1; i <= TURNS; i++) {
          if (w) while (f[w] != i) ; else while (f[W] != i - 1) ;
          __syncwarp(); if (t % 32 == 0) f[w + 1] = i; __syncwarp();
        }""",
        "if (t % 32 == 0) f[w + 1] = i;",
        "if (t % 32 == 0 && (w != 3 || i < 7)) f[w + 1] = i;",
        threads=256,
        turns=100,
        long=1500,
    ),
    "a ring of sixteen warps in global memory, with heartbeats": Livelock(
        """for (int i = 1, n = 0; i <= TURNS; i++) {
          if (t % 32 == 0) {
            if (w) while (v[w] != i) v[64 + w] = ++n; else while (v[W] != i - 1) v[64 + w] = ++n;
            v[w + 1] = i;
          }
          __syncwarp();
        }""",
        "v[w + 1] = i;",
        "if (w != 3 || i < 7) v[w + 1] = i;",
        threads=512,
        turns=20,
        long=150,
    ),
    "a ring of blocks with heartbeats": Livelock(
        """int b = blockIdx.x, g = gridDim.x;
        for (int i = 1, n = 0; i <= TURNS; i++) {
          if (t == 0) {
            if (b) while (v[b] != i) v[64 + b] = ++n; else while (v[g] != i - 1) v[64 + b] = ++n;
            v[b + 1] = i;
          }
          __syncthreads();
        }""",
        "v[b + 1] = i;",
        "if (b != 3 || i < 7) v[b + 1] = i;",
        blocks=8,
        turns=20,
        long=300,
    ),
    "two warps in ping-pong": Livelock(
        """int m = 0, go = 1;
        while (go) {
          m++;
          if (w == 0) { v[0] = m; while (v[1] != m) ; } else { while (v[0] != m) ; v[1] = m; }
          __syncwarp(); go = m < TURNS; __syncwarp();
        }""",
        "go = m < TURNS;",
        "go = v[2] == 0;",
        turns=100,
        long=1500,
    ),
    "two warps in ping-pong beside an mbarrier": Livelock(
        """MBARRIERS unsigned at = a, parity = 0;
        if (w == 2) { WAIT v[2] = 1; return; }
        int m = 0;
        while (v[2] == 0) {
          m++;
          if (w == 0) { v[0] = m; while (v[1] != m && v[2] == 0) ; }
          else { while (v[0] != m && v[2] == 0) ; v[1] = m; if (t == 32 && m == TURNS) ARRIVE }
          __syncwarp();
        }""",
        "m == TURNS",
        "m == -1",
        threads=96,
        turns=100,
        long=1500,
    ),
    "pairs of warps in ping-pong beside an mbarrier, in eight blocks": Livelock(
        """MBARRIERS unsigned at = a, parity = 0; volatile int* f = v + 64 * blockIdx.x;
        if (w == 16) { WAIT f[60] = 1; return; }
        int m = 0;
        while (f[60] == 0) {
          m++;
          if (w % 2 == 0) { f[w] = m; while (f[w + 1] != m && f[60] == 0) ; }
          else { while (f[w - 1] != m && f[60] == 0) ; f[w] = m; if (t == 32 && m == TURNS) ARRIVE }
          __syncwarp();
        }""",
        "m == TURNS",
        "m == -1",
        threads=544,
        blocks=8,
        turns=10,
        long=200,
    ),
    "the same again and again in eight blocks beside an mbarrier": Livelock(
        """MBARRIERS unsigned at = a, parity = 0; volatile int* f = v + 64 * blockIdx.x;
        if (w == 2) { WAIT f[2] = 1; return; }
        int n = 0;
        while (f[2] == 0) {
          if (w == 0) { f[0] = 1; while (f[1] == 0 && f[2] == 0) ; f[0] = 0; while (f[1] && f[2] == 0) ; }
          else { while (f[0] == 0 && f[2] == 0) ; f[1] = 1; while (f[0] && f[2] == 0) ; f[1] = 0; n++;
            if (n == TURNS && t == 32) ARRIVE }
          __syncwarp();
        }""",
        "n++;",
        "",
        threads=96,
        blocks=8,
        turns=20,
        long=500,
    ),
    "a lock with growing backoff": Livelock(
        """if (t % 32 == 0) for (int i = 0; i < TURNS; i++) {
          int ns = 8; while (atomicCAS(p, 0, 1)) { __nanosleep(ns); if (ns < 4096) ns *= 2; }
          v[1] = v[1] + 1; __threadfence(); atomicExch(p, 0);
        }""",
        "atomicExch(p, 0);",
        "if (blockIdx.x != 2 || w != 1 || i != 3) atomicExch(p, 0);",
        threads=128,
        blocks=4,
        turns=10,
        long=80,
    ),
    "a lock with statistics of its waits": Livelock(
        """if (t % 32 == 0) for (int i = 0; i < TURNS; i++) {
          int ns = 8, n = 0;
          while (atomicCAS(p, 0, 1)) { __nanosleep(ns); ns = ns * 3 / 2 + 1; n++; atomicMax(p + 4, n);
            atomicAdd(p + 5, 1); }
          v[1] = v[1] + 1; __threadfence(); atomicExch(p, 0);
        }""",
        "atomicExch(p, 0);",
        "if (blockIdx.x != 2 || w != 1 || i != 3) atomicExch(p, 0);",
        threads=128,
        blocks=4,
        turns=10,
        long=60,
    ),
    "a queue of tickets that never empties": Livelock(
        """__shared__ int item; int all = TURNS * gridDim.x;
        while (true) {
          if (t == 0) item = atomicAdd(p, 1);
          __syncthreads(); int i = item; __syncthreads();
          if (i < all) { if (t == 0) { v[1024 + i % 4096] = i; atomicAdd(p + 1, 1); } }
          else if (*(v + 1) >= all) break;
        }""",
        "atomicAdd(p + 1, 1);",
        "if (i != 13) atomicAdd(p + 1, 1);",
        threads=128,
        blocks=8,
        turns=30,
        long=800,
    ),
    "a poll with timeouts": Livelock(
        """if (w == 0) {
          int n = 0;
          while (v[1] == 0) { long long c = clock64(); while (v[1] == 0 && clock64() - c < 500) ; n++; }
          if (t == 0) v[2] = n;
        } else if (t == 32) {
          for (int i = 1; i <= TURNS; i++) { v[3] = i; __nanosleep(100); }
          v[1] = 1;
        }""",
        "v[1] = 1;",
        "v[4] = 1;",
        turns=500,
        long=20000,
    ),
    "a consumer that waits for a stage too many while the producer goes on": Livelock(
        """MBARRIERS
        if (w == 0) {
          if (t == 0) for (int i = 1, n = 0; v[1] == 0; i++) {
            v[64 + i % 32] = i; if (i % TURNS == 0 && n < 3) { unsigned at = a + 8 * n++; ARRIVE }
          }
        } else {
          for (unsigned n = 0; n < 3; n++) { unsigned at = a + 8 * n, parity = 0; WAIT }
          __syncwarp(); if (t == 32) v[1] = 1;
        }""",
        "unsigned n = 0; n < 3;",
        "unsigned n = 0; n < 4;",
        turns=64,
        long=512,
    ),
    "a producer that counts while its ring is full": Livelock(
        """MBARRIERS
        if (w == 0) {
          if (t == 0) for (int i = 0, tries = 0; i < TURNS; i++) {
            if (i >= 4) { unsigned at = a + 32 + i % 4 * 8, parity = i / 4 + 1 & 1; TEST v[33] = tries; }
            v[64 + i % 32] = i; unsigned at = a + i % 4 * 8; ARRIVE
          }
        } else for (int i = 0, s = 0, tries = 0; i < TURNS; i++) {
          { unsigned at = a + i % 4 * 8, parity = i / 4 & 1; TEST } s += v[64 + i % 32]; __syncwarp();
          if (t == 32) { unsigned at = a + 32 + i % 4 * 8; v[2] = s; ARRIVE }
        }""",
        "v[2] = s; ARRIVE",
        "v[2] = s; if (i != 6) ARRIVE",
        turns=100,
        long=2000,
    ),
    "copies that go on while a stage never comes": Livelock(
        """MBARRIERS
        __shared__ __align__(128) int stage[4][32]; unsigned to = __cvta_generic_to_shared(stage);
        if (w == 0) {
          if (t == 0) for (int i = 0; v[1] == 0; i++) {
            unsigned at = a + i % 2 * 8;
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" :: "r"(at) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
              " [%0], [%1], 128, [%2];"
              :: "r"(to + i % 2 * 128), "l"(p + 128 + i % 32 * 32), "r"(at) : "memory");
            { unsigned parity = i / 2 & 1; WAIT }
            if (i == TURNS) { at = a + 32; ARRIVE }
          }
        } else { unsigned at = a + 32, parity = 0; WAIT __syncwarp(); if (t == 32) v[1] = 1; }""",
        "if (i == TURNS)",
        "if (i < 0)",
        turns=100,
        long=2000,
    ),
    "copies into a ring whose tickets never end": Livelock(
        """MBARRIERS
        __shared__ __align__(128) int stage[2][32]; unsigned to = __cvta_generic_to_shared(stage);
        __shared__ int slot[2];
        if (t == 0) for (int n = 0;; n++) {
          int s = n & 1, ticket; unsigned at = a + 16 + s * 8;
          { unsigned parity = n / 2 & 1 ^ 1; WAIT }
          slot[s] = ticket = atomicAdd(p, 1); at = a + s * 8;
          asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" :: "r"(at) : "memory");
          asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%0], [%1], 128, [%2];" :: "r"(to + s * 128), "l"(p + 128), "r"(at) : "memory");
          if (ticket > TURNS) break;
        }
        if (t == 32) for (int n = 0;; n++) {
          int s = n & 1; unsigned at = a + s * 8;
          { unsigned parity = n / 2 & 1; WAIT }
          int ticket = slot[s]; v[64] = stage[s][0] + n; at = a + 16 + s * 8; ARRIVE
          if (ticket > TURNS) break;
        }""",
        "atomicAdd(p, 1)",
        "v[2]",
        turns=100,
        long=2000,
    ),
    "a flag in another block of the cluster": Livelock(
        """__shared__ int flag, beats; unsigned mine = __cvta_generic_to_shared(&flag), far;
        unsigned b = blockIdx.x % 2; if (t == 0) flag = 0; MBARRIERS CLUSTER_SYNC
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(mine), "r"(1 - b));
        if (t == 0) for (int i = 1; i <= TURNS; i++) {
          asm volatile("st.release.cluster.shared::cluster.u32 [%0], %1;" :: "r"(far), "r"(i) : "memory");
          int f; do {
            asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(f) : "r"(mine) : "memory");
            v[16 + blockIdx.x] = v[16 + blockIdx.x] + 1; } while (f < i);
        }
        __syncthreads(); CLUSTER_SYNC""",
        '"r"(far), "r"(i) : "memory");',
        '"r"(i >= 9 && b ? mine : far), "r"(i) : "memory");',
        threads=64,
        blocks=4,
        cluster=2,
        turns=50,
        long=400,
    ),
    "a hot potato of sixteen warps": Livelock(
        """if (t == 0) v[0] = 1; __syncthreads();
        if (t % 32 == 0) while (v[64] == 0) {
          int x = atomicExch(p + w, 0);
          if (x) { if (x == TURNS) v[64] = 1; __threadfence(); atomicExch(p + (w + 1) % W, x + 1); }
        }""",
        "x == TURNS",
        "x == 0",
        threads=512,
        turns=100,
        long=2500,
    ),
    "a barrier of the grid with heartbeats": Livelock(
        """if (t == 0) for (int i = 1, n = 0; i <= TURNS; i++) {
          if (atomicAdd(p, 1) == gridDim.x * i - 1) atomicExch(p + 1, i);
          while (v[1] < i) { v[16 + blockIdx.x] = ++n; __nanosleep(20 * n); }
        } __syncthreads();""",
        "gridDim.x * i - 1",
        "gridDim.x * i - (i == 5 ? 0 : 1)",
        threads=128,
        blocks=16,
        turns=20,
        long=200,
    ),
    "a look back for a prefix that is never told": Livelock(
        """__shared__ int sum; int b = blockIdx.x;
        if (t == 0) { int s = 0; for (int i = 0; i < TURNS; i++) s += v[4096 + i];
          v[b] = 1; __threadfence();
          int n = 0; s = 0;
          for (int j = b - 1; j >= 0;) { int f = v[j]; n++; if (f == 0) { j = b - 1; s = 0; continue; }
            if (f == 2) break; s += f; j--; v[2048 + b] = n; }
          sum = s; __threadfence(); v[b] = 2; }
        __syncthreads(); v[1024 + t] = sum;""",
        "v[b] = 1; __threadfence();",
        "if (b != 5) v[b] = 1; else while (v[70] == 0) ; __threadfence();",
        threads=128,
        blocks=9,
        turns=30,
        long=2000,
    ),
    "readers of a writer that died": Livelock(
        """if (t % 32 == 0) { if (w == 0 && blockIdx.x == 0) {
            for (int i = 0; i < TURNS; i++) { v[0] = 2 * i + 1; v[1] = i; v[2] = i; v[0] = 2 * i + 2; }
            v[3] = 1;
          } else { int done = 0, n = 0; while (!done) {
            int q = v[0]; if (q & 1) { n++; v[64 + w] = n; continue; }
            int x = v[1], y = v[2]; if (v[0] != q || x != y) { atomicAdd(p + 4, 1); continue; }
            done = v[3]; } } }""",
        "v[0] = 2 * i + 2; }",
        "if (i == 7) return; v[0] = 2 * i + 2; }",
        threads=128,
        blocks=4,
        turns=200,
        long=6000,
    ),
    "named barriers in turns while a warp waits for an mbarrier": Livelock(
        """MBARRIERS unsigned at = a, parity = 0;
        if (w == 2) { WAIT __syncwarp(); if (t == 64) v[1] = 1; return; }
        for (int i = 0; ; i++) {
          if (w == 0) asm volatile("bar.arrive 1, 64; bar.sync 2, 64;");
          else { asm volatile("bar.sync 1, 64;"); if (t == 32) { v[2] = i; if (i == TURNS - 1) ARRIVE }
            v[4] = v[1]; asm volatile("bar.arrive 2, 64;"); }
          if (v[4]) break;
        }""",
        "if (t == 32) { v[2] = i; if (i == TURNS - 1) ARRIVE }",
        "if (t == 32) v[2] = i;",
        threads=96,
        turns=100,
        long=1000,
    ),
}

# Thread 0 counts until something else than its counter tells that it is enough, beside another warp.
_ENDS = {
    "a shift": "while ((i >> 9) != 1) v[2] = ++i;",
    "a quotient": "while (i / 400 != 1) v[2] = ++i;",
    "a bit of a counter": "while ((i & 512) == 0) v[2] = ++i;",
    "a short counter": "unsigned short c = 128; while (c != 0) v[2] = c += 128;",
    "a counter that goes round": "unsigned x = 0; do v[2] = x += 0x9E3779B9u; while (x > 1u << 23);",
    "a table": "v[4300] = 1; __threadfence(); while (v[4000 + i] == 0) i++;",
    "a generator": "unsigned x = 1; do v[2] = x = x * 1664525u + 1013904223u; while (x > 1u << 22);",
    "a float": "float x = 1024; while (x < 1600) { x += 1; v[2] = x; }",
    "compare and swap": "while (i < 500) i += atomicCAS(p + 5, i, i + 1) == i;",
    "a least number": "while (min(i, 500) != 500) v[2] = ++i;",
    "a greatest number in memory": "while (atomicMax(p + 6, ++i - 400) < 0 || v[6] <= 0) v[2] = i;",
    "a clock": "long long c = clock64(); while (clock64() - c < 200000) v[2] = ++i;",
    "arrivals": "while (v[4] == 0) { ARRIVE v[2] = ++i; }",
}
ENDS = {
    what: f"""__shared__ unsigned long long bar; unsigned at = __cvta_generic_to_shared(&bar), parity = 0;
      if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 500;" :: "r"(at)); __syncthreads();
      if (t == 0) {{ int i = 0; {body} v[1] = 1; }}
      else if (t == 32) {{ WAIT v[4] = 1; }}"""
    if what == "arrivals"
    else f"if (t == 0) {{ int i = 0; {body} v[1] = 1; }} else if (t == 32) while (v[1] == 0) v[3] = v[3] + 1;"
    for what, body in _ENDS.items()
}
