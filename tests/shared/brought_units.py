"""Kernels of `tests/data/brought` with barriers in shared memory, bulk copies, clusters and flags."""

from __future__ import annotations

import numpy as np

from shared.brought import Given, Rng, add, whole

f32, i32 = np.float32, np.int32


def _five(rng: Rng) -> Given:
    tiles, n = 3, 370
    x = np.zeros(392, f32)
    x[4 : n + 4] = whole(rng, n)
    y = np.zeros(n, f32)
    return [x, y, i32(tiles), i32(n)], [(y, sum(x[2 + d : 2 + d + n] for d in range(5)))]


add(
    "staged",
    make=_five,
    grid=(2,),
    block=(64,),
    units=True,
    headers=True,
    faults=(
        ("    pipe.consumer_wait();\n", ""),
        ("    pipe.producer_acquire();\n", ""),
        ("    pipe.consumer_release();\n", ""),
        ("    pipe.producer_commit();\n", ""),
        ("    fetch(i + S);\n", "    fetch(i + S + 1);\n"),
        ("stage[i % S], x", "stage[0], x"),
        ("if (i < tiles) cuda", "cuda"),
        ("(72 * 4)", "(64 * 4)"),
        ("if (at < n) y", "y"),
        ("x + (first + i) * 64", "x + (first + i) * 64 + 1"),
        ("stage[S][72]", "stage[S][68]"),
    ),
)


def _tokens(rng: Rng) -> Given:
    x, y = rng.integers(0, 99, (2, 5, 32)).astype(i32), np.zeros((2, 32), i32)
    return [x, y, i32(5)], [(y, x.sum(1))]


add(
    "tokens",
    make=_tokens,
    grid=(2,),
    block=(64,),
    units=True,
    headers=True,
    faults=(
        ("  __syncthreads(); // ready\n", ""),
        ("empty[i & 1].arrive_and_wait();", "(void)empty[i & 1].arrive();"),
        ("      (void)full[i & 1].arrive();\n", ""),
        ("      full[i & 1].wait(cuda::std::move(token));\n", ""),
        ("init(&full[t], 64)", "init(&full[t], 32)"),
        ("init(&empty[t], 64)", "init(&empty[t], 65)"),
        ("if (i + 2 < rounds) (void)empty", "if (i + 3 < rounds) (void)empty"),
        ("(void)empty[0].arrive(); (void)", "(void)"),
        ("full[i & 1].arrive();\n      full", "full[i & 1].arrive();\n      full[0].arrive_and_wait(); full"),
        ("buffer[2][32]", "buffer[2][31]"),
        ("auto token = full[i & 1]", "auto token = full[0]"),
    ),
)


def _rolled(rng: Rng) -> Given:
    n, rounds = 250, 3
    x, y = rng.integers(0, 9, n).astype(i32), np.zeros(n, i32)
    v = np.pad(x, (0, 256 - n)).reshape(4, 64)
    for _ in range(rounds):
        v = 3 * v + np.roll(v, -1, 1)
    other = v[[1, 0, 3, 2], :1]
    return [x, y, i32(rounds), i32(n)], [(y, (v + other).ravel()[:n])]


add(
    "states",
    make=_rolled,
    grid=(2,),
    block=(128,),
    units=True,
    faults=(
        ("  __syncthreads(); // made\n", ""),
        ("    wait_state(&bars[half], s);\n", ""),
        ("    wait_state(&bars[half], s); // again\n", ""),
        ("    s = arrive_state(&bars[half]);\n    wait_state(&bars[half], s); // again\n", ""),
        ("  __syncthreads(); // both\n", ""),
        ("init(&bars[t], 64)", "init(&bars[t], 63)"),
        ("init(&bars[t], 64)", "init(&bars[t], 128)"),
        ("wait_state(&bars[half], s);\n    v", "wait_state(&bars[half ^ 1], s);\n    v"),
        ("i < n ? x[i] : 0", "x[i]"),
        ("if (t < 2) {", "if (t < 1) {"),
        ("mine[2][64]", "mine[1][64]"),
    ),
)


def _twice(rng: Rng) -> Given:
    n = 1100
    x = whole(rng, n)
    return [x, f32(3), i32(n)], [(x, 3 * x)]


add(
    "in_out",
    make=_twice,
    grid=(2,),
    block=(128,),
    units=True,
    faults=(
        ("fence_init(); }", "}"),
        ("  __syncthreads(); // made\n", ""),
        ("      wait_read();\n", ""),
        ("    fence_async();\n", ""),
        ("    __syncthreads(); // scaled\n", ""),
        ("  if (t == 0) wait_all();\n", ""),
        ("i >> 1 & 1", "i & 1"),
        ("wait(&bars[s], i", "wait(&bars[0], i"),
        ("min(128, n - tile * 128) * 4", "128 * 4"),
        ("expect(&bars[s ^ 1], bytes(next))", "expect(&bars[s ^ 1], 512)"),
        ("stage[2][128]; __shared__", "stage[2][120]; __shared__"),
        ("x + tile * 128, stage[s]", "x + tile * 128, stage[s ^ 1]"),
        ("    wait(&bars[s], i >> 1 & 1);\n", "    if (t < 96) wait(&bars[s], i >> 1 & 1);\n"),
    ),
)


def _binned(rng: Rng) -> Given:
    x, bins = rng.integers(-5, 40, 500).astype(i32), np.zeros(33, i32)
    return [x, bins, i32(33), i32(500)], [(bins, np.bincount(np.clip(x, 0, 32), minlength=33))]


add(
    "far_histogram",
    make=_binned,
    grid=(4,),
    block=(64,),
    shared=17 * 4,
    units=True,
    headers=True,
    faults=(
        ("  cluster.sync(); // zero\n", ""),
        ("  cluster.sync(); // zero\n", "  __syncthreads();\n"),
        ("  cluster.sync(); // counted\n", ""),
        ("  cluster.sync(); // counted\n", "  __syncthreads();\n"),
        ("min(max(x[i], 0), many - 1)", "min(max(x[i], 0), many + 1)"),
        (
            "atomicAdd(cluster.map_shared_rank(mine, b / each) + b % each, 1)",
            "(*(cluster.map_shared_rank(mine, b / each) + b % each))++",
        ),
        ("(many + 1) / 2", "many / 2"),
        ("mine[j] = 0;", "mine[j] += 0;"),
        ("i < n; i +=", "i <= n; i +="),
        ("map_shared_rank(mine, b / each)", "map_shared_rank(mine, 0)"),
    ),
)


def _rows(rng: Rng) -> Given:
    lengths = rng.choice([0, 4, 8, 36, 64], 17)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(i32)
    x, sums = whole(rng, starts[-1]), np.full(17, 7, f32)
    wanted = np.bincount(np.repeat(np.arange(17), lengths), x, 17)
    return [x, starts, sums, i32(17)], [(sums, wanted)]


add(
    "ragged",
    make=_rows,
    grid=(2,),
    block=(96,),
    units=True,
    faults=(
        ("  if (t == 0) fence_init();\n", ""),
        ("  __syncthreads(); // made\n", ""),
        ("        wait(&empty[s], i / 3 & 1 ^ 1);\n", ""),
        ("i / 3 & 1 ^ 1", "i / 3 & 1"),
        ("      wait(&full[s], i / 3 & 1);\n", ""),
        ("wait(&full[s], i / 3 & 1)", "wait(&full[s], i & 1)"),
        ("init(&empty[s], 2)", "init(&empty[s], 1)"),
        ("        else arrive(&full[s]);\n", ""),
        (
            "        lengths[s] = n;\n        if (n) { expect(&full[s], n * 4);",
            "        if (n) { expect(&full[s], n * 4); lengths[s] = n;",
        ),
        ('      asm volatile("bar.sync 1, 64;" ::: "memory"); // parts\n', ""),
        ('      asm volatile("bar.sync 1, 64;" ::: "memory"); // free\n', ""),
        ("j < n ? ring", "j <= n ? ring"),
        ("      __syncwarp(); // read\n", ""),
        ("expect(&full[s], n * 4)", "expect(&full[s], n * 2)"),
        ("ring[3][64]", "ring[3][60]"),
    ),
)


def _chained(rng: Rng) -> Given:
    n, tiles = 300, 5
    x = whole(rng, n)
    half = x * x + np.pad(x, (1, 0))[:-1]
    p = np.pad(half, 1)
    y = np.zeros(n, f32)
    arguments = [x, np.zeros(n, f32), y, np.zeros(tiles, i32), i32(tiles), i32(n)]
    return arguments, [(y, p[:-2] + p[1:-1] + p[2:])]


add(
    "chained",
    make=_chained,
    grid=(10,),
    block=(64,),
    missed=(("ld.acquire.gpu", "ld.relaxed.gpu"),),  # as in `bfs`
    faults=(
        ("    __syncthreads(); // made\n", ""),
        ("st.release.gpu", "st.relaxed.gpu"),
        ("st.release.gpu", "st.release.cta"),
        ("ld.acquire.gpu", "ld.acquire.cta"),
        ("st.release.gpu.global.s32", "st.global.s32"),
        ("  __syncthreads(); // there\n", ""),
        ("  __syncthreads(); // loaded\n", ""),
        ("if (t < 3) {", "if (t < 2) {"),
        ("need >= 0 && need < tiles", "need < tiles"),
        ("i + 1 < n ? half[i + 1] : 0", "half[i + 1]"),
        ("if (i < n) half[i]", "half[i]"),
        ("s[64 + 2]", "s[64 + 1]"),
        ("release(&flags[b], 1)", "release(&flags[b + 1], 1)"),
    ),
)


def _softmax(rng: Rng) -> Given:
    x = rng.standard_normal((2, 230)).astype(f32)
    y = np.zeros_like(x)
    e = 2.0 ** (x - x.max(1, keepdims=True))
    return [x, y, i32(230)], [(y, e / e.sum(1, keepdims=True))]


add(
    "far_softmax",
    make=_softmax,
    grid=(8,),
    block=(64,),
    units=True,
    faults=(
        ("  __syncthreads(); // there\n", ""),
        ("  cluster_sync(); // begun\n", ""),
        ("  cluster_sync(); // maxima\n", ""),
        ("  cluster_sync(); // maxima\n", "  __syncthreads();\n"),
        ("  cluster_sync(); // sums\n", ""),
        ("  cluster_sync(); // end\n", ""),
        ("if (t < 4) put", "if (t < 3) put"),
        ("i < n ? x[row * n + i] : -1e30f", "x[row * n + i]"),
        ("get(far(&sums[j], j))", "get(far(&sums[j], me))"),
        ("maxima[4], sums[4]", "maxima[4], sums[3]"),
        ("if (i < n) y", "y"),
        ("if (t == 0) sums", "if (t == 1 && me) sums"),
    ),
)
