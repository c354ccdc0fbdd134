"""Kernels of `tests/data/brought` whose warps tell each other by flags, locks and queues in shared memory."""

from __future__ import annotations

import numpy as np

from shared.brought import Given, Rng, add

i32, u32 = np.int32, np.uint32


def _mailed(rng: Rng) -> Given:
    x, y = rng.integers(0, 99, (4, 3, 32)).astype(i32), np.zeros((3, 32), i32)
    return [x, y, i32(4)], [(y, x.sum(0)[:, ::-1])]


add(
    "mailbox",
    make=_mailed,
    grid=(1,),
    block=(128,),
    # A lane that goes on would see the turn before; a store under a predicate lets nobody go on.
    missed=(("      __syncwarp(); // next\n", ""),),
    faults=(
        ("  __syncthreads(); // empty\n", ""),
        ("      __threadfence_block(); // free\n", ""),
        ("      __threadfence_block(); // put\n", ""),
        ("      __syncwarp(); // all\n", ""),
        ("      __threadfence_block(); // seen\n", ""),
        ("      __threadfence_block(); // taken\n", ""),
        ("      __syncwarp(); // done\n", ""),
        ("while (full[to] != 0);", ""),
        ("while (full[w - 1] != 1);", ""),
        ("if (lane == 0) full[to] = 1;", "if (lane == 0) full[0] = 1;"),
        ("slots[3][32]", "slots[3][31]"),
        ("volatile int slots[3][32], full[3]", "int slots[3][32], full[3]"),
    ),
)


def _locked(rng: Rng) -> Given:
    n = 500
    x, out = rng.integers(0, 99, n).astype(i32), np.zeros((8, 3), i32)
    wanted = np.zeros((8, 3), i32)
    for b in range(8):
        mine = np.concatenate([x[i : i + 32] for i in range(0, n, 32) if i // 32 % 8 == b])
        wanted[b] = len(mine), mine.sum(), mine.max()
    return [x, out, i32(n)], [(out, wanted)]


add(
    "lock",
    make=_locked,
    grid=(1,),
    block=(160,),
    faults=(
        ("  __syncthreads(); // made\n", ""),
        ("  __syncthreads(); // all\n", ""),
        ("      __threadfence_block(); // locked\n", ""),
        ("      __threadfence_block(); // unlock\n", ""),
        ("      while (atomicCAS(&locks[b], 0, 1) != 0);\n", ""),
        ("      atomicExch(&locks[b], 0);\n", ""),
        ("atomicExch(&locks[b], 0)", "locks[b] = 0"),
        ("&locks[b], 0, 1", "&locks[b & 3 | 4], 0, 1"),
        ("i * 32 + lane < n ?", "i * 32 < n ?"),
        ("locks[8];", "locks[7];"),
        ("locks[t] = 0; }", "}"),
        ("__ballot_sync(~0u, v >= 0)", "__ballot_sync(0xffffu, v >= 0)"),
    ),
)


def _summed(rng: Rng) -> Given:
    x = rng.integers(0, 99, 900).astype(i32)
    total, count = np.zeros(1, i32), np.zeros(1, u32)
    return [x, np.zeros(4, i32), total, count, i32(900)], [
        (total, x.sum(keepdims=True)),
        (count, np.zeros(1)),
    ]


add(
    "old_sum",
    make=_summed,
    grid=(4,),
    block=(128,),
    faults=(
        ("  __syncthreads(); // loaded\n", ""),
        ("  __syncthreads(); // half\n", ""),
        ("  __syncthreads(); // half\n", "  __syncwarp();\n"),
        ("      __syncwarp(); // read\n", ""),
        ("      __syncwarp(); // written\n", ""),
        ("      __threadfence(); // stored\n", ""),
        ("      __threadfence(); // stored\n", "      __threadfence_block();\n"),
        ("  __syncthreads(); // last\n", ""),
        ("i + 128 < n ? x", "i < n ? x"),
        ("if (t < 32) {", "if (t < 64) {"),
        ("s[128]", "s[120]"),
        ("atomicInc(count, gridDim.x - 1)", "atomicInc(count, gridDim.x)"),
    ),
)


def _visited(rng: Rng) -> Given:
    limit = 50
    visits = np.zeros(limit, i32)
    return [np.array([0], i32), visits, i32(1), i32(limit)], [(visits, np.ones(limit))]


add(
    "queue",
    make=_visited,
    grid=(1,),
    block=(96,),
    faults=(
        ("  __syncthreads(); // made\n", ""),
        ("    __threadfence_block(); // put\n", ""),
        ("      __threadfence_block(); // seen\n", ""),
        ("    slots[at & 63].turn = at + 1;\n", ""),
        ("struct Slot { volatile int turn;", "struct Slot { int turn;"),
        ("atomicCAS(&head, at, at + 1) != at", "(head = at + 1) == 0"),
        ("int at = atomicAdd(&tail, 1);", "int at = tail++;"),
        ("atomicAdd(&open, 1); push", "push"),
        ("if (next < limit)", "if (next <= limit)"),
        ("slots[64];", "slots[32];"),
        ("atomicSub(&open, 1)", "open--"),
    ),
)


def _scanned(rng: Rng) -> Given:
    n = 700
    x = rng.integers(0, 99, n).astype(i32)
    y = np.zeros(n, i32)
    return [x, y, i32(n)], [(y, np.concatenate([np.cumsum(x[i : i + 256]) for i in range(0, n, 256)]))]


add(
    "warp_chain",
    make=_scanned,
    grid=(3,),
    block=(256,),
    faults=(
        ("  __syncthreads(); // empty\n", ""),
        ("volatile unsigned long long", "unsigned long long"),
        ("if (t < 8) words", "if (t < 6) words"),
        ("words[8]", "words[7]"),
        ("if (state) { before", "{ before"),
        ("state == 2 ? -1 : j - 1", "j - 1"),
        ("(w ? 1 : 2)", "2"),
        ("__shfl_sync(~0u, before, 0)", "__shfl_sync(~0u, before, 1)"),
        ("lane >= d", "lane > d"),
        ("__shfl_sync(~0u, s, 31)", "__shfl_sync(~0u, s, 30)"),
        ("i < n ? x[i] : 0", "x[i]"),
    ),
)


def _referred(rng: Rng) -> Given:
    n = 600
    x, y = rng.integers(0, 99, n).astype(i32), np.zeros(n, i32)
    return [x, y, np.zeros(5, i32), np.zeros(5, i32), i32(n)], [(y, np.cumsum(x))]


add(
    "refs",
    make=_referred,
    grid=(5,),
    block=(128,),
    headers=True,
    faults=(
        ("  __syncthreads(); // empty\n", ""),
        ("  __syncthreads(); // all\n", ""),
        ("turn.load(cuda::memory_order_acquire)", "turn.load(cuda::memory_order_relaxed)"),
        ("mine.load(cuda::memory_order_acquire)", "mine.load(cuda::memory_order_relaxed)"),
        ("next.store(1, cuda::memory_order_release)", "next.store(1, cuda::memory_order_relaxed)"),
        (
            "(turns[b]).store(1, cuda::memory_order_release)",
            "(turns[b]).store(1, cuda::memory_order_relaxed)",
        ),
        ("cuda::thread_scope_device> turn(", "cuda::thread_scope_block> turn("),
        ("cuda::thread_scope_device>(turns[b])", "cuda::thread_scope_block>(turns[b])"),
        (
            "(flags[0]).store(1, cuda::memory_order_release)",
            "(flags[0]).store(1, cuda::memory_order_relaxed)",
        ),
        ("sums[5], flags[5]", "sums[4], flags[5]"),
        ("      carry[b] = sums[4];\n", "      carry[b] = sums[3];\n"),
    ),
)


def _latched(rng: Rng) -> Given:
    n = 250
    x, y = rng.integers(0, 99, n).astype(i32), np.zeros(n, i32)
    sums = np.repeat(np.pad(x, (0, 6)).reshape(2, 128).sum(1), 128)[:n]
    return [x, y, i32(n)], [(y, x + sums)]


add(
    "latch",
    make=_latched,
    grid=(2,),
    block=(128,),
    headers=True,
    faults=(
        ("  __syncthreads(); // made\n", ""),
        ("  done->wait();\n", ""),
        ("    done->count_down();\n", ""),
        (
            "    sums[w] = v;\n    s->release();\n    done->count_down();",
            "    done->count_down();\n    sums[w] = v;\n    s->release();",
        ),
        ("    s->release();\n", ""),
        ("cuda::latch<cuda::thread_scope_block>(4)", "cuda::latch<cuda::thread_scope_block>(3)"),
        ("cuda::latch<cuda::thread_scope_block>(4)", "cuda::latch<cuda::thread_scope_block>(5)"),
        ("int sums[4]", "int sums[3]"),
        ("i < n ? x[i] : 0", "x[i]"),
    ),
)


def _appended(rng: Rng) -> Given:
    n = 400
    x = rng.integers(0, 99, n).astype(i32)
    wanted = x[x % 3 == 1]
    kept, count = np.zeros(len(wanted), i32), np.zeros(1, i32)
    return [x, kept, count, i32(n)], [(kept, wanted), (count, np.array([len(wanted)]))]


add(
    "turns",
    make=_appended,
    grid=(1,),
    block=(128,),
    faults=(
        ("  __syncthreads(); // made\n", ""),
        ("  __syncthreads(); // all\n", ""),
        ("      __threadfence_block(); // seen\n", ""),
        ("      __threadfence_block(); // put\n", ""),
        ("      while (turn != tile);\n", ""),
        ("turn = tile + 1;", "turn = tile;"),
        ("__shared__ volatile int turn, base", "__shared__ volatile int base; __shared__ int turn"),
        ("atomicAdd(&ticket, 1)", "ticket++"),
        ("i < n ? x[i] : 0", "x[i]"),
        ("__shfl_sync(~0u, at, 0)", "__shfl_sync(keep, at, 0)"),
    ),
)
