"""Kernels of `tests/data/brought` of warps and of numbers: shuffles, packed elements, copies in stages."""

from __future__ import annotations

import numpy as np

from shared.brought import Given, Rng, add, whole

f32, i32, u32, u8 = np.float32, np.int32, np.uint32, np.uint8


def _grouped(rng: Rng) -> Given:
    n = 300
    x = rng.integers(0, 100, n).astype(i32)
    counts, kept, many, sums = np.zeros(8, i32), np.zeros(n, i32), np.zeros(1, i32), np.zeros(2, i32)
    wanted = [(counts, np.bincount(x & 7, minlength=8)), (many, np.array([(x > 50).sum()]))]
    parts = np.pad(x, (0, 512 - n)).reshape(2, 256).sum(1)
    return [x, counts, kept, many, sums, i32(n)], [*wanted, (sums, parts)]


add(
    "groups",
    make=_grouped,
    grid=(2,),
    block=(256,),
    headers=True,
    faults=(
        ("  block.sync();\n", ""),
        ("  block.sync();\n", "  warp.sync();\n"),
        ("i < n ? x[i] : 0", "x[i]"),
        ("same.thread_rank() == 0", "active.thread_rank() == 0"),
        ("more.shfl(base, 0)", "more.shfl(base, 1)"),
        ("atomicAdd(many, more.size())", "(*many += more.size()) - more.size()"),
        ("room[32]", "room[31]"),
        ("tile.thread_rank() == 7", "tile.thread_rank() == 8"),
        ("warp.meta_group_rank() * 4", "warp.meta_group_rank() * 3"),
        ("int base = 0;", "int base;  auto wrong = cg::tiled_partition<16>(warp); wrong.sync();"),
    ),
)


def _filled(rng: Rng) -> Given:
    m, n, pitch = 37, 70, 72
    a, b, c = whole(rng, m, pitch), whole(rng, pitch), np.zeros(m, f32)
    return [a, b, c, i32(m), i32(n), i32(pitch)], [(c, a[:, :n] @ b[:n])]


add(
    "zfill",
    make=_filled,
    grid=(3,),
    block=(64,),
    faults=(
        ("    __syncthreads();\n", ""),
        ('"n"(STAGES - 2)', '"n"(STAGES - 1)'),
        ("fetch(step + STAGES - 1);\n", "fetch(step + STAGES);\n"),
        ("at < m && step < steps ?", "step < steps ?"),
        (
            "int left = at < m && step < steps ? min(16, max(0, (n - j) * 4)) : 0;",
            "int left = at < m && step < steps ? 16 : 0;",
        ),
        ("left ? a + (long long)at * pitch + j : a", "a + (long long)at * pitch + j + 1"),
        ('    asm volatile("cp.async.commit_group;" ::: "memory");\n', ""),
        ("part == 0 && at < m", "part == 0"),
        ("int s = step % STAGES;\n    for", "int s = (step + 1) % STAGES;\n    for"),
        ("step + STAGES - 1);\n    int s", "step + STAGES - 2);\n    int s"),
    ),
)


def _turned(rng: Rng) -> Given:
    rows, words = 70, 6
    bits = rng.integers(0, 2, (rows, words * 32))
    weights = 1 << np.arange(32, dtype=np.uint64)
    packed = (bits.reshape(rows, words, 32) * weights).sum(2).astype(u32)
    padded = np.pad(bits, ((0, 96 - rows), (0, 0))).T.reshape(words * 32, 3, 32)
    out = np.zeros((words * 32, 3), u32)
    return [packed, out, i32(rows), i32(words)], [(out, (padded * weights).sum(2))]


add(
    "transpose_bits",
    make=_turned,
    grid=(2, 3),
    block=(32, 4),
    faults=(
        ("  __syncthreads();\n", ""),
        ("r < rows && c < words", "c < words"),
        ("r < rows && c < words", "r < rows"),
        ("if (word < words) out", "out"),
        ("tile[4][33]", "tile[4][31]"),
        ("j < 32; j += 4", "j < 31; j += 4"),
        ("lane & d ?", "lane & 16 ?"),
        ("__shfl_xor_sync(~0u, x, d)", "__shfl_xor_sync(0x7fffffffu, x, d)"),
        ("d = 16, mask = 0xffff", "d = 8, mask = 0xff00ff"),
    ),
)


def _philox(rng: Rng) -> Given:
    n, keep, seed = 1003, 3 << 30, 42
    x, y, mask = whole(rng, n), np.zeros(n, f32), np.zeros(n, u8)
    r = np.zeros((4, -(-n // 4)), np.uint64)
    r[0] = np.arange(r.shape[1])
    a, b, low = seed, 0, 2**32 - 1
    for _ in range(7):
        p, q = r[0] * 0xD2511F53, r[2] * 0xCD9E8D57
        r = np.stack([q >> 32 ^ r[1] ^ np.uint64(a), q & low, p >> 32 ^ r[3] ^ np.uint64(b), p & low])
        a, b = a + 0x9E3779B9 & low, b + 0xBB67AE85 & low
    wanted = r.T.ravel()[:n] < keep
    arguments = [x, y, mask, i32(n), u32(keep), f32(4 / 3), u32(seed)]
    return arguments, [(y, np.where(wanted, x * f32(4 / 3), 0)), (mask, wanted.astype(u8))]


add(
    "philox",
    make=_philox,
    grid=(2,),
    block=(64,),
    faults=(
        ("if (i * 4 + 3 < n)", "if (i * 4 < n)"),
        ("j < n; j++", "j <= n; j++"),
        ("((const float4*)x)[i]", "*(const float4*)(x + i * 4 + 1)"),
        ("i += threads", "i += threads + 1"),
        ("rs[j & 3] < keep", "rs[j & 1] < keep"),
        ("i < 7; i++", "i < 6; i++"),
        ("uchar4*)mask)[i] = m", "uchar4*)(mask + 1))[i] = m"),
        ("gridDim.x * blockDim.x", "blockDim.x"),
    ),
)


def _backward(rng: Rng) -> Given:
    rows, n = 13, 100
    x, dy, gamma = (rng.standard_normal(s).astype(f32) for s in ((rows, n), (rows, n), n))
    mean, inv = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    stats = np.stack([mean, inv], 1).astype(f32)
    h, g = (x - mean[:, None]) * inv[:, None], dy * gamma
    wanted = inv[:, None] * (g - g.mean(1, keepdims=True) - h * (g * h).mean(1, keepdims=True))
    dx, dgamma, count = np.zeros((rows, n), f32), np.zeros(n, f32), np.zeros(1, u32)
    arguments = [x, dy, gamma, stats, dx, np.zeros((4, n), f32), dgamma, count, i32(rows), i32(n)]
    return arguments, [(dx, wanted), (dgamma, (dy * h).sum(0)), (count, np.zeros(1))]


add(
    "norm_backward",
    make=_backward,
    grid=(4,),
    block=(64,),
    shared=4 * 104,
    tolerance=1e-4,
    faults=(
        ("    __syncthreads(); // free\n", ""),
        ("    __syncthreads(); // there\n", ""),
        ("  __threadfence(); // stored\n", ""),
        ("  __threadfence(); // stored\n", "  __threadfence_block();\n"),
        ("  __syncthreads(); // all\n", ""),
        ("  __syncthreads(); // last\n", ""),
        ("atomicInc(count, gridDim.x - 1)", "atomicAdd(count, 1)"),
        ("mine[j] = 0;", "if (j) mine[j] = 0;"),
        ("blockDim.x / 32; j++", "blockDim.x / 32 + 1; j++"),
        ("parts[blockIdx.x * n + j] = mine", "parts[j] = mine"),
        ("r < rows; r += gridDim.x", "r <= rows; r += gridDim.x"),
        ("float* warps = mine + n;", "float* warps = mine + n - 1;"),
    ),
)


def _largest(rng: Rng) -> Given:
    rows, n = 12, 301
    x = rng.permutation(rows * n).reshape(rows, n).astype(f32)
    order = np.argsort(-x, axis=1)[:, :8]
    best, places = np.zeros((rows, 8), f32), np.zeros((rows, 8), i32)
    wanted = [(best, np.take_along_axis(x, order, 1)), (places, order)]
    return [x, best, places, i32(rows), i32(n)], wanted


add(
    "top_heap",
    make=_largest,
    grid=(12,),
    block=(128,),
    faults=(
        ("  __syncthreads();\n", ""),
        ("  __syncthreads();\n  if (w) return;", "  if (w) return;\n  __syncthreads();"),
        ("at < n ? x[row * n + at] : -3e38f", "x[row * n + at]"),
        ("lane == 0 || y <= before", "y <= before"),
        ("__ballot_sync(~0u, mine", "__ballot_sync(0xffu, mine"),
        ("values[4][8]", "values[3][8]"),
        ("j < n; j += 128", "j + lane < n; j += 128"),
        ("p = first ? q : old;", "p = q;"),
        (
            "put(values[lane >> 3][lane & 7], where[lane >> 3][lane & 7])",
            "put(values[lane >> 3][lane & 7], where[lane >> 2][lane & 7])",
        ),
    ),
)


def _nibbles(rng: Rng) -> Given:
    n, words = 10, 36
    q = rng.integers(0, 16, (n, words * 8))
    groups = words // 4
    zeros = rng.integers(0, 16, (n, groups + 1))
    packed = (
        (q.reshape(n, words, 8).astype(np.uint64) << 4 * np.arange(8, dtype=np.uint64)).sum(2).astype(u32)
    )
    pairs = (zeros[:, ::2] | zeros[:, 1::2] << 4).astype(u8)
    scales, x, y = whole(rng, n, groups), whole(rng, words * 8), np.zeros(n, f32)
    full = (q - np.repeat(zeros[:, :groups], 32, 1)) * np.repeat(scales, 32, 1)
    return [packed, scales, pairs, x, y, i32(n), i32(words)], [(y, full @ x)]


add(
    "int4",
    make=_nibbles,
    grid=(3,),
    block=(128,),
    shared=36 * 8 * 4,
    faults=(
        ("  __syncthreads();\n", ""),
        ("  __syncthreads();\n  if (row >= n) return;", "  if (row >= n) return;\n  __syncthreads();"),
        ("if (row >= n)", "if (row > n)"),
        ("j < words; j += 32", "j <= words; j += 32"),
        ("(groups + 1) / 2", "groups / 2"),
        ("(g & 1) * 4 & 15", "(g & 1) * 4"),
        ("j < words * 8; j += blockDim.x", "j < words * 7; j += blockDim.x"),
        ("__shfl_down_sync(~0u", "__shfl_down_sync(0xffffu"),
        ("if (lane == 0) y", "y"),
        ("word >> 4 * e & 15", "word >> 4 * e & 7"),
    ),
)


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Return the bits, as e4m3, of integers from -8 to 8."""
    size = np.abs(values)
    exponent = np.floor(np.log2(np.maximum(size, 1))).astype(int)
    fraction = np.round((size / 2.0**exponent - 1) * 8).astype(int)
    return np.where(size == 0, 0, (values < 0) * 128 + (exponent + 7) * 8 + fraction).astype(u8)


def _scaled(rng: Rng) -> Given:
    m, n, k = 21, 19, 148
    a, b = rng.integers(-8, 9, (m, k)), rng.integers(-8, 9, (n, k))
    sa, sb, c = 2.0 ** rng.integers(-2, 3, m), 2.0 ** rng.integers(-2, 3, n), np.zeros((m, n), f32)
    arguments = [
        _eight_bits(a),
        _eight_bits(b),
        sa.astype(f32),
        sb.astype(f32),
        c,
        i32(m),
        i32(n),
        i32(k // 4),
    ]
    return arguments, [(c, (a @ b.T) * sa[:, None] * sb)]


add(
    "fp8",
    make=_scaled,
    grid=(2, 2),
    block=(64,),
    faults=(
        ("    __syncthreads(); // filled\n", ""),
        ("as[2][16][17]", "as[1][16][17]"),
        ("fetch((step + 1) & 1, step + 1)", "fetch(step & 1, step + 1)"),
        ("row + r < m && step", "step"),
        ("col + r < n && step * 16 + j < words", "col + r < n"),
        ("if (r < m && j < n)", "if (r < m && j <= n)"),
        ("j < 16; j += 8", "j < 8; j += 8"),
        ("sa[r] * sb[j]", "sa[r] * sb[j + 1]"),
        ("int steps = (words + 15) / 16;", "int steps = words / 16;"),
        ("bs[s][w * 8 + g][j + q + 4]", "bs[s][g][j + q + 4]"),
    ),
)
