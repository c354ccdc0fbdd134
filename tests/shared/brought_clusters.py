"""Kernels of `tests/data/brought` in Hopper's styles that work in clusters."""

from __future__ import annotations

import numpy as np

from shared.brought import Given, Rng, add, tensor, whole
from shared.brought_products import brain

f32, i32, u32 = np.float32, np.int32, np.uint32
RELAXED = 'asm volatile("barrier.cluster.arrive.relaxed; barrier.cluster.wait;" ::: "memory");\n'


def _dispatched(rng: Rng) -> Given:
    x, expert = whole(rng, 256, 8), rng.integers(0, 4, 256).astype(i32)
    scale, y = whole(rng, 2, 4, 8), np.zeros((256, 8), f32)
    return [x, expert, scale, y], [(y, x * scale[np.arange(256) // 128, expert])]


add(
    "dispatched",
    make=_dispatched,
    grid=(8,),
    block=(32,),
    units=True,
    faults=(
        ("  cluster_sync(); // begun\n", ""),
        ("  cluster_sync(); // sent\n", ""),
        ("  cluster_sync(); // worked\n", ""),
        ("  cluster_sync(); // end\n", ""),
        ("  cluster_sync(); // sent\n", "  __syncthreads();\n"),
        (
            "  cluster_sync(); // sent\n",
            RELAXED,
        ),
        (
            "  cluster_sync(); // worked\n",
            RELAXED,
        ),
        ("  if (t == 0) count = 0;\n", ""),
        ("far(&count, to)", "far(&count, me)"),
        ("queue[4 * T][D]", "queue[T][D]"),
        ("i < count * D", "i < count"),
        ("blockIdx.x / 4 * 4 + me", "blockIdx.x / 4 * 4 + to"),
        ("atom.shared::cluster.add.u32 %0, [%1], 1;", "ld.shared::cluster.u32 %0, [%1];"),
    ),
)


def _top(rng: Rng) -> Given:
    rows, n = 2, 300
    x = rng.permuted(np.tile(np.linspace(-6, 6, n).astype(f32), (rows, 1)), axis=1)
    x[0, [5, 133]], x[0, [0, 1]] = (8, 7), (-6, -6)  # both with one thread
    top, sums = np.zeros((rows, 2), f32), np.zeros(rows, f32)
    return [x, top, sums, i32(n)], [(top, -np.sort(-x, 1)[:, :2]), (sums, np.exp2(x).sum(1))]


add(
    "cluster_top",
    make=_top,
    grid=(8,),
    block=(32,),
    units=True,
    tolerance=1e-4,
    faults=(
        ("  cluster_sync(); // begun\n", ""),
        ("    wait_cluster(&there, 0);\n", ""),
        ("    wait_cluster(&there, 0);\n", "    wait(&there, 1);\n"),
        ("    wait_cluster(&there, 0);\n", "    wait(&there, 0);\n"),
        ("init(&there, 4)", "init(&there, 3)"),
        ("init(&there, 4)", "init(&there, 5)"),
        ("    arrive_far(far(&there, 0));\n", "    arrive(&there);\n"),
        ("far(&best[me][1], 0)", "far(&best[me][1], me)"),
        ("a > oa ? b : ob);\n    a", "b);\n    a"),
        ("best[4][2]", "best[3][2]"),
        ("put_far(far(&sums[me], 0), s);", "sums[me] = s;"),
        ("i < n; i += 128", "i <= n; i += 128"),
    ),
)


def _round(rng: Rng) -> Given:
    q, keys, y = whole(rng, 128, 32, high=3), whole(rng, 64, 32, high=3), np.zeros(128, f32)
    return [q, keys, y], [(y, ((q @ keys.T) ** 2).sum(1))]


add(
    "handed_round",
    make=_round,
    grid=(4,),
    block=(32,),
    units=True,
    faults=(
        ("fence_init();", ""),
        ("  cluster_sync(); // begun\n", ""),
        ("  cluster_sync(); // end\n", ""),
        ("    wait_cluster(&full[s], i / 2 & 1);\n", ""),
        ("      if (i > 0) wait_cluster(&empty[s ^ 1], (i - 1) / 2 & 1);\n", ""),
        ("    __syncwarp(); // used\n", ""),
        ("arrive_far(far(&empty[s ^ 1], (me + 2) % R)); // it has come", ";"),
        ("(me + 2) % R)); // it has come", "(me + 3) % R)); // it has come"),
        ("arrive_far(far(&empty[s], before))", "arrive_far(far(&empty[s], next))"),
        ("far(&full[s ^ 1], next)) :", "far(&full[s ^ 1], me)) :"),
        ("      expect(&full[s ^ 1], sizeof kv[0]);\n", ""),
        ("(i - 1) / 2 & 1", "i / 2 & 1"),
        ("sum += dot * dot;", "sum += dot;"),
    ),
)


def _columns(rng: Rng) -> Given:
    m, n, k = 128, 32, 80
    a, b, c = whole(rng, m, k, high=3), whole(rng, n, k, high=3), np.zeros((m, n), f32)
    maps = [tensor(brain(x), "BFLOAT16", (16, rows), swizzle=32) for x, rows in ((a, 64), (b, 8))]
    return [*maps, c, i32(n), i32(k // 16)], [(c, a @ b.T)]


add(
    "shared_columns",
    make=_columns,
    grid=(2, 2),
    block=(160,),
    units=True,
    faults=(
        ("fence_init();", ""),
        ("  cluster_sync(); // begun\n", ""),
        ("  cluster_sync(); // end\n", ""),
        ("&full[s], 3);", "&full[s], 1);"),
        ("init(&empty[s], 2)", "init(&empty[s], 1)"),
        ("if (t < 2) arrive_far(far(&empty[s], t))", "if (t == 0) { arrive(&empty[s]); arrive(&empty[s]); }"),
        ("64 * 32 + 16 * 32", "64 * 32 + 8 * 32"),
        ("if (i >= S) wait(&empty[s], (i / S - 1) & 1);", ""),
        ("col + me * 8, &full", "col, &full"),
        ("sb[s] + me * 8 * 16", "sb[s]"),
        ("      wg_wait<0>();\n", ""),
        ("i / S & 1);\n      wg", "i & 1);\n      wg"),
    ),
)


def _stencil(rng: Rng) -> Given:
    x, y, steps = whole(rng, 2, 256, high=4), np.zeros((2, 256), f32), 5
    u = x
    for _ in range(steps):
        u = np.roll(u, 1, 1) + np.roll(u, -1, 1) - u
    return [x, y, i32(steps)], [(y, u)]


add(
    "halos",
    make=_stencil,
    grid=(8,),
    block=(64,),
    units=True,
    faults=(
        ("  cluster_sync(); // begun\n", ""),
        (
            "  cluster_sync(); // begun\n",
            RELAXED,
        ),
        ("    wait_cluster(&full[s], i / 2 & 1);\n", ""),
        ("    wait_cluster(&full[s], i / 2 & 1);\n", "    wait_cluster(&full[s], i & 1);\n"),
        ("    __syncthreads(); // stepped\n", ""),
        ("expect(&full[s], 8)", "expect(&full[s], 4)"),
        ("u[2][N], halo[2][2]", "u[2][N], halo[1][2]"),
        ("far(&full[s], right)", "far(&full[s], me)"),
        ("far(&halo[s][1], left)", "far(&halo[s][0], left)"),
        ("steps & 1", "0"),
        ("int s = i & 1;", "int s = 0;"),
    ),
)


def _normed(rng: Rng) -> Given:
    rows, n = 5, 256
    x, y, scales = whole(rng, rows, n), np.zeros((rows, n), np.int8), np.zeros(rows, f32)
    rms = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(1))
    step = np.abs(x).max(1) * rms / 127
    return [x, tensor(y, "UINT8", (128, 1)), scales, i32(n), i32(rows)], [
        (y, np.rint(x * (rms / step)[:, None])),
        (scales, step),
    ]


add(
    "normed_rows",
    make=_normed,
    grid=(2, 2),
    block=(64,),
    units=True,
    tolerance=1e-4,
    faults=(
        ("fence_init();", ""),
        ("  cluster_sync(); // begun\n", ""),
        ("    wait(&full, i & 1);\n", ""),
        ("    __syncthreads(); // parts\n", ""),
        ("    cluster_sync(); // sums\n", "    __syncthreads();\n"),
        ("    __syncthreads(); // free\n", ""),
        ("    if (t == 0) read_but<0>();\n", ""),
        ("    fence_async();\n", ""),
        ("    __syncthreads(); // written\n", ""),
        ("    cluster_sync(); // used\n", ""),
        ("  if (t == 0) read_but<0>(); // stored\n", ""),
        ("far(&all[0], 1)", "far(&all[0], 0)"),
        ("commit(); }\n    cluster", "}\n    cluster"),
        ("me * N, row, out", "row, me * N, out"),
    ),
)


def _counts(rng: Rng) -> Given:
    x, y = rng.integers(0, 64, (4, 128)).astype(i32), np.zeros((4, 32), i32)
    counts = np.array([np.bincount(x[i : i + 2].ravel(), minlength=64) for i in (0, 2)])
    return [x, y, counts.reshape(4, 32).sum(1).astype(i32)], [(y, counts.reshape(4, 32))]


add(
    "far_counts",
    make=_counts,
    grid=(4,),
    block=(64,),
    units=True,
    faults=(
        ("  if (t < 32) bins[t] = 0;\n", ""),
        ("  cluster_sync(); // begun\n", ""),
        ("  cluster_sync(); // begun\n", RELAXED),
        ("  wait_cluster(&full, 0);\n", ""),
        ("expect(&full, 4 * items", "expect(&full, items"),
        ("far(&full, bin / 32)", "far(&full, me)"),
        ("far(&bins[bin % 32], bin / 32)", "far(&bins[bin % 32], me)"),
        ("bins[32]", "bins[31]"),
        ("i < 128", "i <= 128"),
        ("init(&full, 1)", "init(&full, 2)"),
    ),
)
