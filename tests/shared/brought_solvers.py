"""Kernels of `tests/data/brought` of models and of numerics: attention, experts, decompositions, grids."""

from __future__ import annotations

import numpy as np

from shared.brought import Given, Rng, add, whole

f32, i32, u32 = np.float32, np.int32, np.uint32


def _paged(rng: Rng) -> Given:
    heads, pages, lengths = 2, 6, np.array([1, 19, 41], i32)
    q = (rng.standard_normal((3, heads, 32)) / 4).astype(f32)
    keys, values = rng.standard_normal((2, 18, 8, heads, 32)).astype(f32)
    table = rng.permutation(18).reshape(3, pages).astype(i32)
    angles = np.arange(48)[:, None] / 10.0 ** (np.arange(16) / 4)
    cosines = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(f32)
    out, wanted = np.zeros((3, heads, 32), f32), np.zeros((3, heads, 32))
    for s, n in enumerate(lengths):
        c, d = np.cos(angles[n - 1]), np.sin(angles[n - 1])
        a, b = q[s, :, :16], q[s, :, 16:]
        turned = np.concatenate([a * c - b * d, b * c + a * d], 1)
        k, v = (w[table[s]].reshape(48, heads, 32)[:n] for w in (keys, values))
        p = 2.0 ** np.einsum("hd,nhd->hn", turned, k)
        wanted[s] = np.einsum("hn,nhd->hd", p / p.sum(1, keepdims=True), v)
    return [q, keys, values, table, lengths, cosines, out, i32(heads), i32(pages)], [(out, wanted)]


add(
    "paged",
    make=_paged,
    grid=(2, 3),
    block=(128,),
    tolerance=1e-4,
    faults=(
        ("  __syncthreads(); // rotated\n", ""),
        ("  __syncthreads(); // merged\n", ""),
        ("j < 8 && b * 8 + j < n", "j < 8"),
        ("__shfl_xor_sync(~0u, v, 16)", "__shfl_xor_sync(~0u, v, 8)"),
        ("__shfl_xor_sync(~0u, s, d)", "__shfl_xor_sync(0xffffu, s, d)"),
        ("(n - 1) * 32 + (lane & 15)", "n * 32 + (lane & 15)"),
        ("acc * old + p", "acc + p"),
        ("ls[4], parts[4]", "ls[3], parts[4]"),
        ("table[seq * pages + b]", "table[seq * pages + b + 1]"),
        ("b += 4", "b += 3"),
    ),
)


def _routed(rng: Rng) -> Given:
    tokens, experts, width = 300, 6, 3
    chosen, x = rng.integers(0, experts, tokens).astype(i32), whole(rng, tokens, width * 4)
    y, source, starts = np.zeros_like(x), np.zeros(tokens, i32), np.zeros(experts, i32)
    totals = np.bincount(chosen, minlength=experts).astype(i32)
    order = np.argsort(chosen, kind="stable")
    chain, turn = np.zeros((5, 16), i32), np.zeros(1, i32)
    scalars = [i32(tokens), i32(experts), i32(width)]
    wanted = [(y, x[order]), (source, order), (starts, np.cumsum(totals) - totals)]
    return [chosen, x, y, source, starts, totals, chain, turn, *scalars], wanted


add(
    "experts",
    make=_routed,
    grid=(5,),
    block=(64,),
    faults=(
        ("  __syncthreads(); // zero\n", ""),
        ("    __syncthreads(); // turn\n", ""),
        ("      __syncwarp(__activemask());\n", ""),
        ("__threadfence(); /* seen */", ""),
        ("    __syncwarp(); // told\n", ""),
        ("    __threadfence(); // stored\n", ""),
        ("    __syncwarp(); // all\n", ""),
        ("  __syncthreads(); // based\n", ""),
        ("i < tokens ? chosen[i] : -1", "chosen[i]"),
        ("while (*turn != blockIdx.x);", "while (*turn < blockIdx.x - 1);"),
        ("counts[16], base[16]", "counts[16], base[5]"),
        ("counts[e] += __popc(peers)", "counts[e] += 1"),
    ),
)


def _convolved(rng: Rng) -> Given:
    c, h, w, f = 3, 7, 9, 18
    x, k = whole(rng, c, h, w), whole(rng, f, c, 3, 3)
    y, p = np.zeros((f, h, w), f32), np.pad(x, ((0, 0), (1, 1), (1, 1)))
    wanted = sum(
        np.einsum("fc,chw->fhw", k[:, :, i, j], p[:, i : i + h, j : j + w])
        for i in range(3)
        for j in range(3)
    )
    return [x, k, y, *(i32(n) for n in (c, h, w, f, h, w))], [(y, wanted)]


add(
    "convolution",
    make=_convolved,
    grid=(4, 2),
    block=(16, 16),
    faults=(
        ("  __syncthreads(); // first\n", ""),
        ("    __syncthreads(); // next\n", ""),
        ("fetch(at ^ 1, d + 16)", "fetch(at, d + 16)"),
        ("row < f && d1 < depth", "row < f"),
        ("row < f && d1 < depth", "d1 < depth"),
        ("iy >= 0 && ", ""),
        ("ix < wd;", "ix <= wd;"),
        ("d2 < depth && col", "col"),
        ("if (row < f && col < oh * ow)", "if (row < f)"),
        ("j < 16; j++", "j < 15; j++"),
        ("b[2][16][17]", "b[2][15][17]"),
    ),
)


def _transformed(rng: Rng) -> Given:
    x = (rng.standard_normal((3, 256)) + 1j * rng.standard_normal((3, 256))).astype(np.complex64)
    y = np.zeros_like(x)
    return [x, y, i32(3)], [(y, np.fft.fft(x))]


add(
    "fourier",
    make=_transformed,
    grid=(2,),
    block=(256,),
    tolerance=1e-3,
    faults=(
        ("    __syncthreads(); // there\n", ""),
        ("    __syncthreads(); // free\n", ""),
        ("rows[8][33]", "rows[7][33]"),
        ("half < 32; half <<= 1", "half < 16; half <<= 1"),
        ("__shfl_xor_sync(~0u, v.y, half)", "__shfl_xor_sync(0x7fffffffu, v.y, half)"),
        ("at < batches", "at <= batches"),
        ("/ half, &f.y", "/ (half + 1), &f.y"),
        ("rows[j][lane]", "rows[j][lane + 1]"),
        ("j < 8; j++", "j <= 8; j++"),
    ),
)


def _pivoted(rng: Rng) -> Given:
    m, n = 100, 7
    a = rng.permutation(m * n).reshape(m, n).astype(f32) / 64
    wanted, pivots = a.astype(np.float64), np.zeros(n, i32)
    places = []
    for j in range(n):
        p = j + int(np.abs(wanted[j:, j]).argmax())
        places.append(p)
        wanted[[j, p]] = wanted[[p, j]]
        wanted[j + 1 :, j] /= wanted[j, j]
        wanted[j + 1 :, j + 1 :] -= np.outer(wanted[j + 1 :, j], wanted[j, j + 1 :])
    return [a, pivots, i32(m), i32(n)], [(a, wanted), (pivots, np.array(places))]


add(
    "panel",
    make=_pivoted,
    grid=(1,),
    block=(128,),
    tolerance=1e-3,
    faults=(
        ("    __syncthreads(); // found\n", ""),
        ("    __syncthreads(); // chosen\n", ""),
        ("    __syncthreads(); // exchanged\n", ""),
        ("t >= j && t < m ? fabsf", "t >= j ? fabsf"),
        ("t >= j && t < m ? fabsf", "t < m ? fabsf"),
        ("t > j && t < m", "t >= j && t < m"),
        ("if (t < n) {", "if (t <= n) {"),
        ("__shfl_down_sync(~0u, at, d)", "__shfl_down_sync(0xffffu, at, d)"),
        ("line[16]", "line[6]"),
        ("i = 1; i < 4", "i = 1; i < 3"),
    ),
)


def _decomposed(rng: Rng) -> Given:
    n, many = 13, 3
    b = rng.standard_normal((many, n, n))
    a = (b @ b.transpose(0, 2, 1) + n * np.eye(n)).astype(f32)
    factor = np.zeros((many, n, n), f32)
    return [a, factor, i32(n)], [(factor, np.linalg.cholesky(a.astype(float)))]


add(
    "cholesky",
    make=_decomposed,
    grid=(3,),
    block=(64,),
    shared=13 * 14 * 4,
    tolerance=1e-3,
    faults=(
        ("    __syncthreads(); // root\n", ""),
        ("    __syncthreads(); // column\n", ""),
        ("pitch = n + 1", "pitch = n + 2"),
        ("j + 1 + t; i < n", "j + t; i < n"),
        ("if (c <= r)", "if (c < r)"),
        ("i < n * n; i += blockDim.x) s[", "i <= n * n; i += blockDim.x) s["),
        ("__syncthreads(); // column", "__syncwarp();"),
        ("rest = n - j - 1", "rest = n - j"),
    ),
)


def _moved(rng: Rng) -> Given:
    n, dt = 150, 0.25
    a, v = rng.standard_normal((n, 4)).astype(f32), rng.standard_normal((n, 3)).astype(f32)
    d = a[None, :, :3] - a[:, None, :3]
    r = (d**2).sum(2) + 1
    speeds = v + dt * (a[None, :, 3] / r**1.5)[..., None].__mul__(d).sum(1)
    b = np.zeros_like(a)
    moved = np.concatenate([a[:, :3] + dt * speeds, a[:, 3:]], 1)
    return [a, b, v, i32(n), f32(dt)], [(v, speeds), (b, moved)]


add(
    "bodies",
    make=_moved,
    grid=(3,),
    block=(64,),
    tolerance=1e-3,
    faults=(
        ("    __syncthreads(); // there\n", ""),
        ("    __syncthreads(); // used\n", ""),
        ("min(64, n - first)", "64"),
        ("if (first + t < n) tile", "tile"),
        ("i < n ? from[i] : make_float4(0, 0, 0, 0)", "from[i]"),
        ("  if (i < n) {\n    float3", "  {\n    float3"),
        ("tile[64]", "tile[63]"),
        ("to[i] = make", "((float4*)from)[i] = make"),
        ("first < n; first += 64", "first < n - 64; first += 64"),
    ),
)


def _crossed(rng: Rng) -> Given:
    nz, ny, nx = 6, 9, 11
    field = rng.standard_normal((nz, ny, nx)).astype(f32)
    corner = [
        field[z : nz - 1 + z, y : ny - 1 + y, x : nx - 1 + x] > -0.3
        for z in (0, 1)
        for y in (0, 1)
        for x in (0, 1)
    ]
    code = sum(c.astype(int) << i for i, c in enumerate(corner)).ravel()
    cut = np.nonzero((code > 0) & (code < 255))[0]
    cells, points, sizes = np.full(len(cut), -1, i32), np.zeros(len(cut), i32), np.zeros(2, u32)
    arguments = [cells, points, sizes, i32(nx), i32(ny), i32(nz), f32(-0.3)]
    return [field, *arguments], [(sizes, np.array([len(cut), 0])), (cells, cut), (points, code[cut])]


add(
    "cubes",
    make=_crossed,
    grid=(2,),
    block=(256,),
    unordered=True,
    faults=(
        ("  __syncthreads(); // counted\n", ""),
        ("  __syncthreads(); // placed\n", ""),
        ("if (z < nz - 1)", "if (z < nz)"),
        ("code && code != 255", "code"),
        ("if (lane < 8) sums[lane] = s - v;", "sums[lane] = s - v;"),
        ("atomicAdd(&sizes[0], s)", "(sizes[0] += s) - s"),
        ("(1u << lane) - 1", "(2u << lane) - 1"),
        ("lane < 8 ? sums[lane] : 0", "sums[lane]"),
        ("lane == 7) base", "lane == 8) base"),
        ("__ballot_sync(~0u, cut)", "__ballot_sync(__activemask() >> 1, cut)"),
    ),
)


def _found(rng: Rng) -> Given:
    n, m = 990, 5
    text = rng.integers(97, 99, n).astype(np.uint8)
    pattern = text[255:260].copy()
    same = np.array([i + m <= n and (text[i : i + m] == pattern).all() for i in range(992)])
    hits, count = np.zeros(31, u32), np.zeros(1, i32)
    words = (same.reshape(31, 32) * (1 << np.arange(32, dtype=np.uint64))).sum(1)
    return [text, pattern, hits, count, i32(n), i32(m)], [(hits, words), (count, np.array([same.sum()]))]


add(
    "strings",
    make=_found,
    grid=(4,),
    block=(256,),
    faults=(
        ("  __syncthreads(); // loaded\n", ""),
        ("  __syncthreads(); // counted\n", ""),
        ("i < n ? text[i] : 0", "text[i]"),
        ("i + 256 < n ? text[i + 256] : 0", "text[i + 256]"),
        ("if (t < m - 1)", "if (t < m - 2)"),
        ("s[256 + 32]", "s[256]"),
        ("  if (t == 0) sum = 0;\n", ""),
        ("if (t < m) p", "if (t <= m) p"),
        ("&& i < n) { hits", ") { hits"),
        ("atomicAdd(&sum, __popc(word))", "sum += __popc(word)"),
        ("atomicAdd(count, sum)", "*count += sum"),
    ),
)


def _stepped(rng: Rng) -> Given:
    blocks, steps = 4, 5
    x = whole(rng, blocks * 64, high=3)
    now = x.copy()
    for _ in range(steps):
        p = np.pad(now, 1)
        now = p[:-2] + p[2:] - now
    return [x, np.zeros((2, blocks, 2), f32), np.zeros(blocks, i32), i32(steps)], [(x, now)]


add(
    "rounds",
    make=_stepped,
    grid=(4,),
    block=(64,),
    faults=(
        ("  __syncthreads(); // loaded\n", ""),
        ("    __syncthreads(); // edges\n", ""),
        ("    __syncthreads(); // step\n", ""),
        ("__threadfence(); /* put */", ""),
        ("__threadfence(); /* left */", ""),
        ("__threadfence(); /* right */", "__threadfence_block();"),
        ("int side = step & 1;", "int side = 0;"),
        ("while (flags[b - 1] < step + 1);", "while (flags[b - 1] < step);"),
        ("if (b + 1 < blocks) {", "if (b < blocks) {"),
        ("s[at][0] = 0;\n", "\n"),
        ("s[2][66]", "s[2][65]"),
    ),
)
