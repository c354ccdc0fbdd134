"""Kernels of `tests/data/brought` whose blocks tell each other where they are, and irregular ones."""

from __future__ import annotations

import numpy as np

from shared.brought import Given, Rng, add, whole

f32, i32, u32 = np.float32, np.int32, np.uint32


def _scan(rng: Rng) -> Given:
    x, y = rng.integers(0, 9, 5000).astype(i32), np.zeros(5000, i32)
    return [x, y, np.zeros((40, 4), i32), np.zeros(1, u32), i32(5000)], [(y, np.cumsum(x))]


add(
    "look_back",
    make=_scan,
    grid=(40,),
    block=(128,),
    faults=(
        ("__threadfence(); /* first */", ""),
        ("__threadfence(); /* part */", ""),
        ("__threadfence(); /* all */", "__threadfence_block();"),
        ("__threadfence(); // seen", ""),
        ("  __syncthreads(); // told\n", ""),
        ("if (lane > last) part = 0;", ""),
        ("lane >= d) s += o", "lane > d) s += o"),
        ("struct Tile { volatile int flag, sum", "struct Tile { int pad1; volatile int sum; int flag"),
        ("i < n ? x[i] : 0", "x[i]"),
        ("at -= 32", "at -= 31"),
    ),
)


def _segments(rng: Rng) -> Given:
    keys = np.repeat(np.arange(60), rng.choice([1, 3, 20, 70, 300], 60, p=[0.3, 0.3, 0.2, 0.1, 0.1]))
    keys, x = keys.astype(i32), whole(rng, len(keys))
    sums = np.zeros(60, f32)
    return [keys, x, sums, i32(len(keys))], [(sums, np.bincount(keys, x, 60))]


add(
    "segments",
    make=_segments,
    grid=(14,),
    block=(256,),
    faults=(
        ("  __syncthreads();\n", ""),
        ("__shfl_up_sync(~0u, v, d)", "__shfl_up_sync(0xffffu, v, d)"),
        ("lane >= d && k == key", "k == key"),
        ("i < n ? keys[i] : -1", "keys[i]"),
        ("i + 1 >= n || keys", "keys"),
        ("w == 7 || ", ""),
        ("atomicAdd(&sums[key], v)", "sums[key] += v"),
        ("last_key[8]", "last_key[7]"),
        ("j = w - 1", "j = w"),
    ),
)


def _radix(rng: Rng) -> Given:
    n, shift = 600, 4
    keys = rng.integers(0, 2**12, n).astype(u32)
    digits = (keys >> shift & 15).astype(int)
    counts = np.array([np.bincount(digits[i : i + 128], minlength=16) for i in range(0, n, 128)])
    flat = counts.T.ravel()
    offsets = np.ascontiguousarray((np.cumsum(flat) - flat).reshape(16, -1).T).astype(i32)
    out = np.zeros(n, u32)
    return [keys, out, offsets, i32(shift), i32(n)], [(out, keys[np.argsort(digits, kind="stable")])]


add(
    "radix",
    make=_radix,
    grid=(5,),
    block=(128,),
    faults=(
        ("  __syncthreads(); // counted\n", ""),
        ("  __syncthreads(); // scanned\n", ""),
        ("  __syncthreads(); // gathered\n", ""),
        ("(1u << lane) - 1", "(2u << lane) - 1"),
        ("__shfl_up_sync(0xffffu, s, d, 16)", "__shfl_up_sync(0xffu, s, d, 16)"),
        ("counts[j >> 4][j & 15] = 0", "counts[j >> 4][j & 7] = 0"),
        ("t < here ? keys[first + t] : ~0u", "keys[first + t]"),
        ("shift & 15 : 15", "shift & 15 : 0"),
        ("if (t < here) {\n    unsigned", "{\n    unsigned"),
        ("sorted[128]", "sorted[127]"),
    ),
)


def _hashed(rng: Rng) -> Given:
    keys, values = rng.integers(1, 60, 500).astype(u32), rng.integers(-9, 9, 500).astype(i32)
    found, room = np.zeros(60, i32), 59
    done = np.zeros(1, u32)
    arguments = [keys, values, np.zeros(room, u32), np.zeros(room, i32), done, found, i32(500), i32(room)]
    return arguments, [(found, np.bincount(keys, values, 60)), (done, np.zeros(1))]


add(
    "hash",
    make=_hashed,
    grid=(4,),
    block=(128,),
    faults=(
        ("  __threadfence();\n  __syncthreads();\n", "  __syncthreads();\n"),
        ("  __threadfence();\n  __syncthreads();\n", "  __threadfence();\n"),
        ("  __syncthreads(); // last\n", ""),
        ("atomicAdd(&sums[at], values[i])", "sums[at] += values[i]"),
        (
            "unsigned old = atomicCAS(&slots[at], 0u, key);",
            "unsigned old = slots[at]; if (!old) slots[at] = key;",
        ),
        ("if (old == 0 || old == key) break;", "if (old == 0) break;"),
        ("at + 1 == room ? 0 : at + 1", "at + 1"),
        ("if (i < n) {", "if (i <= n) {"),
        ("*done = 0", "done[1] = 0"),
        ("gridDim.x - 1", "gridDim.x - 2"),
    ),
)


def _stolen(rng: Rng) -> Given:
    work = rng.integers(0, 99, (40, 32)).astype(i32)
    out = np.zeros(40, i32)
    return [work, out, np.zeros(1, i32), i32(40)], [(out, work.sum(1))]


add(
    "deque",
    make=_stolen,
    grid=(1,),
    block=(128,),
    # In the run whoever steals has seen what the owner has written since.
    missed=(("__threadfence_block(); atomicExch", "atomicExch"),),
    faults=(
        ("    __syncwarp(); // filled\n", ""),
        ("atomicExch(&mine->bottom, n)", "mine->bottom = n"),
        ("      __threadfence_block(); // seen\n", ""),
        ("atomicCAS(&from->top, top, top + 1) != top", "(from->top = top + 1) == 0"),
        ("  __syncthreads();\n", ""),
        ("top < bottom", "top <= bottom"),
        ("atomicSub(&left, 1)", "left--"),
        ("__shfl_sync(~0u, item, 0)", "__shfl_sync(~1u, item, 0)"),
        ("mine->top = 0; ", ""),
    ),
)


def _searched(rng: Rng) -> Given:
    n, each = 300, 3
    ends = rng.integers(0, n, n * each).astype(i32)
    rows = (np.arange(n + 1) * each).astype(i32)
    levels, wanted = np.full(n, -1, i32), np.full(n, -1, i32)
    levels[0] = wanted[0] = 0
    front, level = [0], 0
    while front:
        level += 1
        front = [int(e) for e in np.unique(np.concatenate([ends[v * each : v * each + each] for v in front]))]
        front = [v for v in front if wanted[v] < 0]
        wanted[front] = level
    queues, sizes = np.zeros(2 * n, i32), np.array([1, 0, 0], i32)
    return [rows, ends, levels, queues, sizes, np.zeros(2, u32), i32(n)], [(levels, wanted)]


add(
    "bfs",
    make=_searched,
    grid=(3,),
    block=(32,),
    # A barrier of the block is taken for the reader's fence.
    missed=(("    __threadfence(); // gone\n", ""),),
    faults=(
        ("  __syncthreads(); // before\n", ""),
        ("  __syncthreads(); // after\n", ""),
        ("    __threadfence();\n    if", "    if"),
        ("__threadfence(); /* go */", ""),
        ("*count = 0; ", ""),
        ("    __syncthreads(); // emptied\n", ""),
        ("    __syncthreads(); // listed\n", ""),
        ("    __syncthreads(); // placed\n", ""),
        (
            "atomicCAS(&levels[ends[e]], -1, level + 1) == -1",
            "levels[ends[e]] == -1 && (levels[ends[e]] = level + 1)",
        ),
        ("sizes[(level + 2) % 3] = 0", "sizes[(level + 1) % 3] = 0"),
        ("e < rows[v + 1]", "e <= rows[v + 1]"),
    ),
)


def _sparse(rng: Rng) -> Given:
    m, n = 50, 130
    lengths = rng.choice([0, 1, 7, 8, 9, 40], m)
    rows = np.concatenate([[0], np.cumsum(lengths)]).astype(i32)
    columns, values = rng.integers(0, n, rows[-1]).astype(i32), whole(rng, rows[-1])
    x, y = whole(rng, n), np.full(m, 77, f32)
    parts = np.repeat(np.arange(m), lengths)
    return [rows, columns, values, x, y, i32(m), i32(n)], [(y, np.bincount(parts, values * x[columns], m))]


add(
    "spmv",
    make=_sparse,
    grid=(4,),
    block=(128,),
    faults=(
        ("  __syncthreads();\n", ""),
        ("if (row < m) {", "if (row <= m) {"),
        ("lane == 0 && row < m", "lane == 0"),
        ("c < 96 ? near[c] : x[c]", "c <= 96 ? near[c] : x[c]"),
        ("min(n, 96)", "n"),
        ("d = 4; d", "d = 2; d"),
        ("s, d, 8)", "s, d, 4)"),
        ("__shfl_down_sync(~0u", "__shfl_down_sync(0xffu"),
        ("e < end", "e <= end"),
        ("lane == 0 && row", "row"),
    ),
)


def _star(rng: Rng) -> Given:
    nz, ny, nx = 5, 17, 37
    u, v = whole(rng, nz, ny, nx), np.zeros((nz, ny, nx), f32)
    p = np.pad(u, 2)
    s = -12 * u
    for d in (-2, -1, 1, 2):
        for axis in range(3):
            s = s + np.roll(p, d, axis)[2:-2, 2:-2, 2:-2]
    return [u, v, i32(nx), i32(ny), i32(nz)], [(v, s)]


add(
    "star",
    make=_star,
    grid=(3, 3),
    block=(16, 8),
    faults=(
        ("    __syncthreads(); // filled\n", ""),
        ("    __syncthreads(); // used\n", ""),
        ("z + 2 < nz", "z + 2 <= nz"),
        ("x < nx && y < ny;", "x <= nx && y < ny;"),
        ("y < ny && x + 16 < nx", "y < ny"),
        ("x < nx && y + 8 < ny", "x < nx && y + 8 <= ny"),
        ("if (tx < 2) {", "if (tx < 1) {"),
        ("plane[12][20]", "plane[11][20]"),
        ("plane[ty + 2][tx + 18] =", "plane[ty + 2][tx + 17] ="),
        ("x < nx && y >= 2 ? u[at - 2 * nx]", "x < nx ? u[at - 2 * nx]"),
    ),
)
