"""Kernels of CUDA cores as several engineers would write them, each with its faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Anew:
    """A kernel `k`, a function that makes its arguments and a check of them, and edits (old text, new text).

    faults: those that make it wrong
    same: those that leave it as right as it was
    """

    source: str
    make: Callable[[np.random.Generator], tuple[list[Any], Callable[[], bool]]]
    grid: int
    block: int
    faults: tuple[tuple[str, str], ...]
    same: tuple[tuple[str, str], ...] = ()
    shared: int = 0
    hopper: bool = False


def close(found: np.ndarray, wanted: Any) -> bool:
    """Return whether all elements are close."""
    return bool(np.allclose(found, wanted, rtol=1e-3, atol=1e-3))


ANEW: dict[str, Anew] = {}


def scan(rng: np.random.Generator) -> tuple[list[Any], Callable[[], bool]]:
    x = rng.integers(0, 99, 2900, dtype=np.int32)
    out = np.full(2900, -1, np.int32)
    tiles = [np.zeros(46, np.int32) for _ in range(3)]
    args = [x, out, np.int32(2900), np.zeros(1, np.int32), *tiles]
    return args, lambda: np.array_equal(out, np.cumsum(x))


ANEW["decoupled look-back"] = Anew(
    make=scan,
    grid=46,
    block=64,
    source="""
extern "C" __global__ void k(const int* in, int* out, int n, int* ticket, volatile int* state,
    volatile int* agg,
                             volatile int* pre) {
  __shared__ int tile, before, warps[2];
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  if (t == 0) tile = atomicAdd(ticket, 1);
  __syncthreads(); // ticket
  int i = tile * 64 + t, s = i < n ? in[i] : 0;
  for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(~0u, s, d); if (lane >= d) s += u; }
  if (lane == 31) warps[w] = s;
  __syncthreads(); // warps
  int total = warps[0] + warps[1], off = w ? warps[0] : 0;
  if (w == 0) {
    if (lane == 0) {
      if (tile == 0) { pre[0] = total; __threadfence(); state[0] = 2; before = 0; }
      else { agg[tile] = total; __threadfence(); state[tile] = 1; }
    }
    if (tile > 0) {
      int sum = 0, at = tile - 1 - lane;
      while (true) {
        int st = 2, x = 0;
        if (at >= 0) {
          do st = state[at]; while (st == 0);
          __threadfence(); // reader
          x = st == 2 ? pre[at] : agg[at];
        }
        unsigned done = __ballot_sync(~0u, st == 2);
        int first = done ? __ffs(done) - 1 : 31, y = lane <= first ? x : 0;
        for (int d = 16; d; d /= 2) y += __shfl_xor_sync(~0u, y, d);
        sum += y;
        if (done) break;
        at -= 32;
      }
      if (lane == 0) { before = sum; pre[tile] = sum + total; __threadfence(); state[tile] = 2; }
    }
  }
  __syncthreads(); // before
  if (i < n) out[i] = before + off + s;
}""",
    faults=(
        ("__syncthreads(); // ticket", ""),
        ("__syncthreads(); // warps", ""),
        ("__syncthreads(); // before", ""),
        ("agg[tile] = total; __threadfence();", "agg[tile] = total;"),
        ("sum + total; __threadfence();", "sum + total;"),
        ("sum + total; __threadfence(); state[tile] = 2;", "sum + total; state[tile] = 2; __threadfence();"),
        ("agg[tile] = total; __threadfence();", "agg[tile] = total; __threadfence_block();"),
        ("__threadfence(); // reader", ""),
        (
            "agg[tile] = total; __threadfence(); state[tile] = 1;",
            "state[tile] = 1; __threadfence(); agg[tile] = total;",
        ),
        ("if (i < n) out", "if (i <= n) out"),
        ("i < n ? in[i] : 0", "i <= n ? in[i] : 0"),
        ("lane <= first", "lane < first"),
        ("__ballot_sync(~0u,", "__ballot_sync(0xffffu,"),
        ("tile = atomicAdd(ticket, 1)", "tile = ticket[0]++"),
    ),
)


def radix(rng: np.random.Generator) -> tuple[list[Any], Callable[[], bool]]:
    n, blocks = 1000, 8
    x = rng.integers(0, 1 << 16, n, dtype=np.uint32)
    digit = x >> 4 & 15
    counts = np.array(
        [[np.sum(digit[b * 128 : b * 128 + 128] == d) for b in range(blocks)] for d in range(16)]
    )
    offset = np.concatenate([[0], np.cumsum(counts.reshape(-1))[:-1]]).astype(np.int32)
    out = np.zeros(n, np.uint32)
    wanted = x[np.argsort(digit, kind="stable")]
    return [x, out, offset, np.int32(n), np.int32(4)], lambda: np.array_equal(out, wanted)


ANEW["radix pass"] = Anew(
    make=radix,
    grid=8,
    block=128,
    source="""
extern "C" __global__ void k(const unsigned* in, unsigned* out, const int* offset, int n, int shift) {
  __shared__ int hist[4][16];
  int t = threadIdx.x, lane = t & 31, w = t >> 5, i = blockIdx.x * 128 + t;
  if (t < 64) hist[t >> 4][t & 15] = 0;
  __syncthreads(); // cleared
  bool live = i < n;
  unsigned active = __ballot_sync(~0u, live), key = 0;
  int digit = 0, rank = 0;
  if (live) {
    key = in[i];
    digit = key >> shift & 15;
    unsigned same = __match_any_sync(active, digit);
    rank = __popc(same & ((1u << lane) - 1));
    if (rank == 0) hist[w][digit] = __popc(same);
  }
  __syncthreads(); // counted
  if (t < 16) {
    int sum = offset[t * gridDim.x + blockIdx.x];
    for (int j = 0; j < 4; j++) { int c = hist[j][t]; hist[j][t] = sum; sum += c; }
  }
  __syncthreads(); // summed
  if (live) out[hist[w][digit] + rank] = key;
}""",
    faults=(
        ("__syncthreads(); // cleared", ""),
        ("__syncthreads(); // counted", ""),
        ("__syncthreads(); // summed", ""),
        ("__match_any_sync(active, digit)", "__match_any_sync(~0u, digit)"),
        ("bool live = i < n", "bool live = i <= n"),
        ("if (t < 16) {", "if (t <= 16) {"),
        ("j < 4; j++", "j < 3; j++"),
        ("if (rank == 0) hist[w][digit] = __popc(same)", "hist[w][digit] += 1"),
        ("(1u << lane) - 1", "(2u << lane) - 1"),
        ("hist[w][digit] = __popc", "hist[0][digit] = __popc"),
    ),
    same=(("if (t < 64) hist", "if (t < 48) hist"),),
)


def segments(rng: np.random.Generator) -> tuple[list[Any], Callable[[], bool]]:
    ids = np.sort(rng.integers(0, 40, 777, dtype=np.int32))
    x = rng.integers(-9, 9, 777, dtype=np.int32)
    out = np.zeros(40, np.int32)
    wanted = np.bincount(ids, x, 40).astype(np.int32)
    return [ids, x, out, np.int32(777)], lambda: np.array_equal(out, wanted)


ANEW["segmented reduction"] = Anew(
    make=segments,
    grid=4,
    block=256,
    source="""
extern "C" __global__ void k(const int* id, const int* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  bool live = i < n;
  int key = live ? id[i] : -1, v = live ? x[i] : 0;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    int otherKey = __shfl_down_sync(~0u, key, d), other = __shfl_down_sync(~0u, v, d);
    if (lane + d < 32 && otherKey == key) v += other;
  }
  int prev = __shfl_up_sync(~0u, key, 1);
  if (live && (lane == 0 || prev != key)) atomicAdd(out + key, v);
}""",
    faults=(
        ("atomicAdd(out + key, v)", "out[key] += v"),
        ("atomicAdd(out + key, v)", "out[key] = v"),
        ("lane + d < 32 && ", ""),
        ("live && (lane", "(lane"),
        ("bool live = i < n", "bool live = i <= n"),
        ("live ? x[i] : 0", "x[i]"),
        ("d <<= 1", "d += 2"),
        ("(lane == 0 || prev != key)", "prev != key"),
        ("__shfl_up_sync(~0u, key, 1)", "live ? __shfl_up_sync(~0u, key, 1) : 0"),
    ),
)


def table(rng: np.random.Generator) -> tuple[list[Any], Callable[[], bool]]:
    keys = rng.integers(0, 150, 500, dtype=np.int32)
    slots, counts = np.full(157, -1, np.int32), np.zeros(157, np.int32)
    wanted = dict(zip(*(a.tolist() for a in np.unique(keys, return_counts=True)), strict=True))

    def right() -> bool:
        full = slots[slots >= 0].tolist()
        found = dict(zip(full, counts[slots >= 0].tolist(), strict=True))
        return found == wanted and len(full) == len(found) and counts[slots < 0].sum() == 0

    return [keys, np.int32(500), slots, counts, np.int32(157)], right


ANEW["hash table"] = Anew(
    make=table,
    grid=3,
    block=96,
    source="""
extern "C" __global__ void k(const int* keys, int n, int* table, int* counts, int size) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    int key = keys[i], slot = ((unsigned)key * 2654435761u >> 8) % size;
    while (true) {
      int old = atomicCAS(table + slot, -1, key);
      if (old == -1 || old == key) break;
      slot = slot + 1 == size ? 0 : slot + 1;
    }
    atomicAdd(counts + slot, 1);
  }
}""",
    faults=(
        ("atomicAdd(counts + slot, 1)", "counts[slot]++"),
        (
            "int old = atomicCAS(table + slot, -1, key);",
            "int old = table[slot]; if (old == -1) table[slot] = key;",
        ),
        ("slot + 1 == size", "slot == size"),
        ("slot + 1 == size ? 0 : slot + 1", "slot + 1"),
        ("i < n;", "i <= n;"),
        ("atomicCAS(table + slot, -1, key)", "atomicCAS(table + slot, 0, key)"),
        ("old == -1 || old == key", "old == -1"),
        ("old == -1 || old == key", "old == key"),
        ("i += gridDim.x * blockDim.x", "i += blockDim.x"),
        ("atomicCAS(table", "atomicCAS_block(table"),
    ),
)


def steal(rng: np.random.Generator) -> tuple[list[Any], Callable[[], bool]]:
    sizes = rng.integers(0, 200, 30)
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    x = rng.integers(-9, 9, start[-1], dtype=np.int32)
    heads, ends = np.array([0, 20, 25, 28], np.int32), np.array([20, 25, 28, 30], np.int32)
    out = np.full(30, 1 << 30, np.int32)
    wanted = [x[a:b].sum() for a, b in itertools.pairwise(start)]
    return [ends, heads, start, x, out], lambda: np.array_equal(out, wanted)


ANEW["work stealing"] = Anew(
    make=steal,
    grid=4,
    block=64,
    source="""
extern "C" __global__ void k(const int* ends, int* heads, const int* start, const int* x, int* out) {
  __shared__ int task, part[64];
  int t = threadIdx.x, victim = blockIdx.x, tried = 0;
  while (true) {
    if (t == 0) {
      task = -1;
      while (tried < gridDim.x) {
        int h = atomicAdd(heads + victim, 1);
        if (h < ends[victim]) { task = h; break; }
        tried++;
        victim = victim + 1 == gridDim.x ? 0 : victim + 1;
      }
    }
    __syncthreads(); // task
    int now = task;
    if (now < 0) break;
    int s = 0;
    for (int j = start[now] + t; j < start[now + 1]; j += 64) s += x[j];
    part[t] = s;
    __syncthreads(); // parts
    for (int d = 32; d; d >>= 1) {
      if (t < d) part[t] += part[t + d];
      __syncthreads(); // tree
    }
    if (t == 0) out[now] = part[0];
  }
}""",
    faults=(
        ("__syncthreads(); // task", ""),
        ("__syncthreads(); // parts", ""),
        ("__syncthreads(); // tree", ""),
        ("      __syncthreads(); // tree\n    }", "    }\n    __syncthreads();"),
        ("atomicAdd(heads + victim, 1)", "heads[victim]++"),
        ("h < ends[victim]", "h <= ends[victim]"),
        ("atomicAdd(heads + victim, 1)", "atomicAdd_block(heads + victim, 1)"),
        ("int d = 32; d; d >>= 1", "int d = 32; d > 1; d >>= 1"),
        ("if (t < d) part", "if (t <= d) part"),
        ("victim + 1 == gridDim.x ? 0", "victim + 1 > gridDim.x ? 0"),
        ("if (now < 0) break", "if (t == 0 && now < 0) break"),
        ("    int now = task;\n", "    int now = task;\n    if (t == 63) continue;\n"),
        ("if (t == 0) out[now] = part[0]", "out[now] = part[t]"),
    ),
)
