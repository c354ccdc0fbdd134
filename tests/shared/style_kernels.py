"""Kernels in the styles of known libraries, in `tests/data/styles`: what they compute, and planted faults.

They are written as one does who knows CUTLASS 3.x, DeepGEMM, ThunderKittens, libcu++, CUB and Triton.
"""

from __future__ import annotations

import numpy as np

from shared.styles import (
    BOUNDS,
    CORES,
    HANG,
    LEFT,
    MISUSE,
    NEVER,
    OVERRUN,
    PROXY,
    RACE,
    RAW,
    WAR,
    WAW,
    WRONG,
    Given,
    Rng,
    add,
    f16,
    f32,
    i32,
    tensor,
    u32,
    whole,
)  # fmt: skip


def _scaled(rng: Rng, n: int) -> Given:
    x, y = rng.standard_normal(n).astype(f32), np.zeros(n, f32)
    return [x, y, i32(n // 128), f32(3)], [(y, 3 * x)]


def _squares(rng: Rng, m: int, n: int) -> Given:
    a, out = whole(rng, m, n), np.zeros((m, n), f32)
    maps = [tensor(x, "FLOAT32", (32, 16)) for x in (a, out)]
    across, down = -(-n // 32), -(-m // 16)
    return [*maps, i32(across), i32(across * down)], [(out, a * a + np.arange(n) % 32)]


def _split(rng: Rng, tiles: int, k: int) -> Given:
    parts, sums, bias = whole(rng, k, tiles, 64), np.zeros((tiles, 64), f32), whole(rng, 64)
    y = np.zeros((tiles, 64), f32)
    return [parts, sums, bias, y, np.zeros(tiles, u32), i32(k)], [(y, parts.sum(0) + bias)]


def _gathered(rng: Rng, k: int) -> Given:
    a, b = (rng.integers(-128, 128, (n, k)).astype(np.int8) for n in (100, 16))
    rows, c = rng.integers(0, 100, 64).astype(i32), np.zeros((64, 16), i32)
    return [a, rows, b, c, i32(k)], [(c, a[rows].astype(i32) @ b.astype(i32).T)]


def _product(rng: Rng, m: int, n: int, k: int) -> Given:
    a, b, c = whole(rng, m, k), whole(rng, n, k), np.zeros((m, n), f32)
    maps = [tensor(x, "FLOAT32", (8, 8)) for x in (a, b)]
    return [*maps, c, i32(n), i32(k)], [(c, a @ b.T)]


def _norm(rng: Rng, rows: int, n: int) -> Given:
    x, gamma, y = whole(rng, rows, n), whole(rng, n), np.zeros((rows, n), f32)
    wide = x.astype(float)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * gamma
    return [x, gamma, y, i32(rows), i32(n)], [(y, wanted)]


def _passed(rng: Rng, clusters: int, rounds: int) -> Given:
    x = whole(rng, clusters, 4, 128)
    y = np.zeros_like(x)
    return [x, y, i32(rounds)], [(y, sum(np.roll(x, i, 1) for i in range(rounds + 1)))]


def _told(rng: Rng, tiles: int) -> Given:
    x, y = whole(rng, tiles, 100), np.zeros((tiles, 100), f32)
    return [x, y, np.zeros(1, i32), i32(tiles)], [(y, 2 * x + np.arange(tiles)[:, None])]


def _decoded(rng: Rng, heads: int, n: int) -> Given:
    q, (keys, values) = rng.standard_normal((heads, 32)), rng.standard_normal((2, heads, n, 32))
    given = [a.astype(f32) for a in (q, keys, values)]
    s = np.einsum("hd,hnd->hn", q, keys)
    p = 2.0 ** (s - s.max(1, keepdims=True))
    out = np.zeros((heads, 32), f32)
    return [*given, out, i32(n)], [(out, np.einsum("hn,hnd->hd", p / p.sum(1, keepdims=True), values))]


def _turned(rng: Rng, n: int) -> Given:
    x, y = whole(rng, n, n), np.zeros((n, n), f32)
    return [x, y, i32(n)], [(y, x.T)]


def bits(values: np.ndarray) -> np.ndarray:
    """Return the bits of small integers as bfloat16, which are exact."""
    return (values.astype(f32).view(u32) >> 16).astype(np.uint16)


def _turns(rng: Rng, tiles: int, k: int) -> Given:
    a, b = rng.integers(-3, 4, (tiles * 64 - 7, k)), rng.integers(-3, 4, (16, k))
    c = np.zeros((len(a), 16), np.uint16)
    x, y = bits(a), bits(b)
    maps = [tensor(x, "BFLOAT16", (64, 64), swizzle=128), tensor(y, "BFLOAT16", (64, 16), swizzle=128)]
    exact = (a @ b.T).astype(f32)
    rounded = exact.view(u32)
    rounded = ((rounded + 0x7FFF + (rounded >> 16 & 1)) >> 16).astype(np.uint16)
    return [*maps, tensor(c, "BFLOAT16", (16, 64)), i32(tiles), i32(k)], [(c, rounded)]


def _mixed(rng: Rng, k: int) -> Given:
    a, b, scales = (
        rng.integers(-9, 9, (64, k)).astype(np.int8),
        rng.integers(-3, 4, (16, k)),
        whole(rng, k // 64),
    )
    c, y = np.zeros((64, 16), f32), bits(b)
    parts = [scales[i // 64] * (a[:, i : i + 64].astype(int) @ b[:, i : i + 64].T) for i in range(0, k, 64)]
    return [a, scales, tensor(y, "BFLOAT16", (64, 16), swizzle=128), c, i32(k)], [(c, sum(parts))]


def _added(rng: Rng, n: int) -> Given:
    x, y = rng.integers(-99, 99, (n, 64)).astype(i32), np.zeros(64, i32)
    return [x, y, i32(n)], [(y, x.sum(0))]


def _jacobi(rng: Rng, blocks: int, steps: int) -> Given:
    x, y = whole(rng, blocks, 64), np.zeros((blocks, 64), f32)
    now = x.copy()
    for _ in range(steps):
        now = np.roll(now, 1, 0) + np.roll(now, -1, 0) - now[:, np.arange(64) ^ 1]
    return [x, y, np.zeros(1, u32), i32(steps)], [(y if steps % 2 else x, now)]


def _dropped(rng: Rng, rounds: int) -> Given:
    x, y = rng.integers(0, 99, (rounds, 64)).astype(i32), np.zeros(64, i32)
    pairs = x[:, np.arange(64) ^ 1]
    late = pairs[: max(0, rounds // 2 - 1), 32:].sum(0)
    return [x, y, i32(rounds)], [(y, np.concatenate([pairs[:, :32].sum(0), late]) + rounds)]


def _streamed(rng: Rng, tiles: int, steps: int, blocks: int) -> Given:
    a, b = whole(rng, tiles, steps, 64), whole(rng, tiles, steps, 64)
    c, parts, flags = np.zeros((tiles, 64), f32), np.zeros((blocks, 64), f32), np.zeros(blocks + 1, i32)
    share = -(-tiles * steps // blocks)
    return [a, b, c, parts, flags, i32(tiles), i32(steps), i32(share)], [(c, (a * b).sum(1))]


def _soft(rng: Rng, rows: int, n: int) -> Given:
    x, y = rng.standard_normal((rows, n)).astype(f32), np.zeros((rows, n), f32)
    e = 2.0 ** (x - x.max(1, keepdims=True))
    return [x, y, i32(n)], [(y, e / e.sum(1, keepdims=True))]


def _piped(rng: Rng, tiles: int) -> Given:
    x, y = whole(rng, tiles, 64), np.zeros(64, f32)
    return [x, y, i32(tiles)], [(y, x.sum(0)[::-1])]


def _slots(rng: Rng, rounds: int) -> Given:
    x, y = rng.integers(0, 99, (rounds, 32)).astype(i32), np.zeros(64, i32)
    return [x, y, i32(rounds)], [(y, np.tile(x.sum(0)[::-1], 2))]


def _eighths(rng: Rng, m: int, k: int) -> Given:
    def eight(rows: int) -> tuple[np.ndarray, np.ndarray]:
        raw = (rng.integers(0, 2, (rows, k)) << 7 | rng.integers(48, 64, (rows, k))).astype(np.uint8)
        value = np.where(raw >> 7, -1.0, 1.0) * (1 + (raw & 7) / 8) * 2.0 ** ((raw >> 3 & 15).astype(int) - 7)
        return raw, value

    (a, av), (b, bv) = eight(m), eight(16)
    sa, sb, c = whole(rng, k // 128, m), whole(rng, k // 128), np.zeros((m, 16), f32)
    wanted = sum(
        sa[i][:, None] * sb[i] * (av[:, i * 128 : i * 128 + 128] @ bv[:, i * 128 : i * 128 + 128].T)
        for i in range(k // 128)
    )
    maps = [tensor(a, "UINT8", (128, 64), swizzle=128), tensor(b, "UINT8", (128, 16), swizzle=128)]
    return [*maps, sa, sb, c, i32(m), i32(k)], [(c, wanted)]


def _summed(rng: Rng, n: int) -> Given:
    x, y = whole(rng, n), np.zeros(1, f32)
    return [x, np.zeros(3, f32), y, np.zeros(1, u32), i32(n)], [(y, x.sum(keepdims=True))]


def _halves(rng: Rng, m: int, n: int, k: int) -> Given:
    a, b, c = whole(rng, m, k).astype(f16), whole(rng, n, k).astype(f16), np.zeros((m, n), f32)
    return [a, b, c, i32(m), i32(n), i32(k)], [(c, a.astype(f32) @ b.astype(f32).T)]


def _digits(rng: Rng, n: int) -> Given:
    keys, out = rng.integers(0, 2**32, n).astype(u32), np.zeros(n, u32)
    tiles = -(-n // 128)
    wanted = keys[np.argsort(keys >> 8 & 15, kind="stable")]
    return [keys, out, np.zeros(tiles * 16, u32), np.zeros(1, u32), i32(n), i32(8)], [(out, wanted)]


def _stencil(rng: Rng, nx: int, ny: int, nz: int) -> Given:
    a, out = whole(rng, nz, ny, nx), np.zeros((nz, ny, nx), f32)
    padded = np.pad(np.pad(a, ((0, 0), (2, 2), (2, 2)), mode="edge"), ((2, 2), (0, 0), (0, 0)))
    wanted = -12 * a
    for r in (1, 2, -1, -2):
        for axis in range(3):
            wanted = wanted + np.roll(padded, r, axis)[2:-2, 2:-2, 2:-2]
    return [a, out, i32(nx), i32(ny), i32(nz)], [(out, wanted)]


def _merged(rng: Rng, rows: int, entries: int) -> Given:
    which = np.sort(rng.integers(0, rows, entries))
    ends = np.searchsorted(which, np.arange(rows), side="right").astype(i32)
    cols, values, x = rng.integers(0, 50, entries).astype(i32), whole(rng, entries), whole(rng, 50)
    y, threads = np.zeros(rows, f32), 64
    each = -(-(rows + entries) // threads)
    wanted = np.bincount(which, values * x[cols], minlength=rows)
    more = [i32(rows), i32(entries), i32(each), np.zeros(threads, i32), np.zeros(threads, f32)]
    return [ends, cols, values, x, y, *more], [(y, wanted)]


def _buckets(rng: Rng, n: int) -> Given:
    keys = rng.integers(1, 1000, n).astype(i32)
    bucket = (keys.astype(np.uint64) * 0x9E3779B1 & 0xFFFFFFFF) >> 27
    found = np.zeros(32, i32)
    wanted = np.bincount(bucket.astype(int), keys, minlength=32)
    return [keys, np.full(32, -1, i32), np.zeros(n, i32), found, np.zeros(1, i32), i32(n)], [(found, wanted)]


def _queue(rng: Rng, tiles: int) -> Given:
    a, out = rng.integers(0, 99, (tiles, 32)).astype(i32), np.zeros((tiles, 32), i32)
    wanted = 3 * a[:, np.arange(32) ^ 1]
    return [a, out, np.zeros(128, i32), np.zeros(1, i32), np.zeros(1, i32), i32(tiles)], [(out, wanted)]


def _top(rng: Rng, rows: int, n: int) -> Given:
    x = rng.permutation(rows * n).reshape(rows, n).astype(f32)
    best, which = np.zeros((rows, 4), f32), np.zeros((rows, 4), i32)
    order = np.argsort(-x, axis=1)[:, :4]
    return [x, best, which, i32(rows), i32(n)], [(best, np.take_along_axis(x, order, 1)), (which, order)]


def _attention(rng: Rng, n: int) -> Given:
    q, key, value = rng.standard_normal((3, n, 16)).astype(f32)
    s = q.astype(float) @ key.T
    p, out = 2.0 ** (s - s.max(1, keepdims=True)), np.zeros((n, 16), f32)
    return [q, key, value, out, i32(n)], [(out, p / p.sum(1, keepdims=True) @ value)]


add(
    "three_roles",
    make=lambda rng, tiles: _scaled(rng, tiles * 128),
    shapes=((7,), (1,), (4,)),
    grid=lambda tiles: (1,),
    block=128,
    faults=(
        ("wait(&empty[s], (turn & 1) ^ 1)", "wait(&empty[s], turn & 1)", HANG),
        ("wait(&full[s], i / S & 1);", "wait(&full[s], 0);", HANG),
        ("init(&empty[s], 2)", "init(&empty[s], 1)", MISUSE),
        ("init(&empty[s], 2)", "init(&empty[s], 64)", HANG),
        ("expect(&full[s], N * 4)", "expect(&full[s], N * 2)", HANG),
        ("      fence_async();\n", "", PROXY),
        ("      __syncwarp();\n      if (lane == 0) arrive", "      if (lane == 0) arrive", WAR),
        ("if (i & 1) named_sync<2>(96); else named_sync<1>(96);", "named_sync<1>(96);", HANG),
        ("wait_group.read 1", "wait_group.read 2", WAR),
        (
            "if (i & 1) named_sync<4>(96); else named_sync<3>(96);",
            "if (i & 1) named_sync<3>(96); else named_sync<4>(96);",
            HANG,
        ),
        ("    if (lane == 0) wait_read();\n", "", LEFT),
        ("named_arrive<1>(96)", "named_arrive<1>(64)", HANG),
        ("int s = i % S, turn", "int s = (i + 1) % S, turn", HANG),
        ("for (int s = 0; s < S; s++) {", "for (int s = 0; s < S - 1; s++) {", MISUSE),
    ),
)


add(
    "in_place",
    make=_squares,
    shapes=((80, 96), (33, 52), (16, 32)),
    grid=lambda m, n: (2,),
    block=128,
    faults=(
        ('      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");\n', "", WAR),
        ("    fence_async();\n", "", PROXY),
        (
            "    __syncthreads();\n    if (t == 0) {\n      send_box",
            "    if (t == 0) {\n      send_box",
            RAW,
        ),
        ('      asm volatile("cp.async.bulk.commit_group;" ::: "memory");\n', "", WAR),
        ("wait(&bar[b], n >> 1 & 1)", "wait(&bar[b], n & 1)", RAW),
        ("  if (t == 0) wait_all();\n", "", LEFT),
        ("sizeof tile[0]", "sizeof tile", HANG),
        ("fetch(i + step, b ^ 1)", "fetch(i + step, b)", HANG),
        ("i % across * 32, i / across * 16, tile[b]", "i % across * 32, i / across * 16 + 1, tile[b]", WRONG),
        ("init(&bar[1], 1);", "", MISUSE),
    ),
)


add(
    "split_k_bias",
    make=_split,
    shapes=((2, 7), (3, 3), (1, 1)),
    grid=lambda tiles, k: (tiles, 3),
    block=64,
    faults=(
        ('wait_group 0;" ::: "memory");\n    asm', 'wait_group.read 0;" ::: "memory");\n    asm', RACE),
        ('    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");\n', "", RACE),
        ("  fence_async();\n", "", PROXY),
        ("  __syncthreads();\n  if (t == 0) {", "  if (t == 0) {", RAW),
        ("    __threadfence();\n    last", "    last", RACE),
        ("== gridDim.y - 1", "== gridDim.y - 2", RACE),
        ("reduce_add(sums + tile * 64, mine, 256)", "reduce_add(sums + tile * 64, mine, 128)", WRONG),
        ("  }\n  __syncthreads();\n  if (last)", "  }\n  if (last)", WAR),
    ),
)


add(
    "gathered_rows",
    make=_gathered,
    shapes=((160,), (32,), (96,)),
    grid=lambda k: (1,),
    block=160,
    faults=(
        ("      fence_async();\n", "", PROXY),
        ("arrive.noinc.", "arrive.", HANG),
        ("init(&full[s], 32)", "init(&full[s], 16)", "cp misuse"),
        ("(i / S - 1) & 1", "(i / S) & 1", RAW),
        ("i / S & 1);\n      fence", "i & 1);\n      fence", HANG),
        ("      wait(&full[s], i / S & 1);\n", "", HANG),
        ("desc(sa[s], 128, 256)", "desc(sa[s], 256, 128)", WRONG),
        ("i > 0);", "1);", NEVER),
        ("aligned 0;", "aligned 1;", "missing wgmma wait"),
        ('      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n', "", "missing wgmma.fence"),
        ("      if (t == 0) arrive(&empty[s]);\n", "", HANG),
        ("      if (i >= S) wait(&empty[s], (i / S - 1) & 1);\n", "", RAW),
    ),
)


add(
    "cluster_product",
    make=_product,
    shapes=((32, 64, 44), (32, 32, 8), (64, 32, 100)),
    grid=lambda m, n, k: (n // 16, m // 16),
    block=160,
    faults=(
        ("3 * 4)", "4)", OVERRUN),
        ("3 * 4)", "4 * 4)", HANG),
        ("  }\n  arrive_cluster();\n  wait_for_cluster();\n  if", "  }\n  __syncthreads();\n  if", MISUSE),
        ("  __syncwarp();\n  arrive_cluster();\n  wait_for_cluster();\n}", "}", LEFT),
        ("3 << 2 * y", "3 << y", HANG),
        ("5 << x", "5 << y", WAR),
        ("        if (i >= S) wait_cluster(&empty[s], i / S - 1 & 1);\n", "", HANG),
        ("i / S - 1 & 1", "i / S & 1", HANG),
        ("      __syncwarp();\n      int lane", "      int lane", WAR),
        ("lane == (me ^ 1) || ", "", HANG),
        ("lane == (me ^ 1) ||", "lane == (me ^ 3) ||", RAW),
        ("arrive_far(far(&empty[s], lane))", "arrive_far(far(&empty[s ^ 1], lane))", OVERRUN),
        ("&ma, i * K, blockIdx.y * T + x * 8", "&ma, i * K, blockIdx.y * T + y * 8", WRONG),
        ("2 * T * K * 4)", "T * K * 4)", NEVER),
        ("wait_cluster(&full[s], i / S & 1);", "", HANG),
    ),
)


add(
    "layer_norm",
    make=_norm,
    shapes=((9, 400), (1, 4), (6, 1200)),
    grid=lambda rows, n: (8,),
    block=128,
    faults=(
        ("__shared__ float2 got[2][4];", "__shared__ float2 got[1][4];", BOUNDS),
        ("int b = turn & 1;", "int b = 0;", HANG),
        ("wait_cluster(&bar[b], turn >> 1 & 1);", "wait_cluster(&bar[b], turn & 1);", HANG),
        ("  fence_init();\n  cluster_sync();", "  fence_init();\n  __syncthreads();", "block not begun"),
        ("    __syncthreads();\n    int b", "    int b", RAW),
        ("    __syncthreads();\n  }\n  cluster_sync();\n", "  }\n  cluster_sync();\n", WAR),
        ("init(&bar[t], 4)", "init(&bar[t], 3)", HANG),
        ("far(&got[b][me], t)", "far(&got[b][t], t)", WAW),
        (
            "arrive_far(far(&bar[b], t));",
            'asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" :: '
            '"r"(far(&bar[b], t)) : "memory");',
            RAW,
        ),
        ("s.y += __shfl_xor_sync(~0u, s.y, d);", "s.y += __shfl_xor_sync(0xffff, s.y, d);", "warp mask"),
    ),
)


add(
    "async_ring",
    make=_passed,
    shapes=((2, 7), (1, 1), (1, 2)),
    grid=lambda clusters, rounds: (4 * clusters,),
    block=32,
    faults=(
        ("wait_cluster(&empty[s], parity ^ 1);", "", WAR),
        ("parity ^ 1", "parity", HANG),
        ("init(&empty[s], 32)", "init(&empty[s], 1)", MISUSE),
        ("    wait_cluster(&full[s], parity);\n", "", RAW),
        ("if (s < rounds) expect(&full[s], 512)", "if (s < rounds) expect(&full[s], 256)", HANG),
        ('"r"(far(&full[s], next))', '"r"(far(&full[s], me))', "st misuse"),
        ("arrive_far(far(&empty[s], before))", "arrive_far(far(&empty[s], next))", WAR),
        ("arrive_far(far(&empty[s], before))", "arrive(&empty[s])", WAR),
        ("  }\n  cluster_sync();\n  float4", "  }\n  __syncthreads();\n  float4", "st misuse"),
    ),
)


add(
    "roles_by_rank",
    make=_told,
    shapes=((11,), (1,), (6,)),
    grid=lambda tiles: (6,),
    block=64,
    faults=(
        ("        if (i >= 2) wait_cluster(&heard[s], (i >> 1) - 1 & 1);\n", "", HANG),
        ("(i >> 1) - 1 & 1", "i >> 1 & 1", HANG),
        ("wait_cluster(&told[s], i >> 1 & 1)", "wait_cluster(&told[s], i & 1)", HANG),
        ("      __syncthreads();\n      if (t == 0) arrive_far", "      if (t == 0) arrive_far", WAR),
        ("init(&heard[s], 2)", "init(&heard[s], 1)", HANG),
        ("arrive_far(far(&heard[s], 0))", "arrive(&heard[s])", HANG),
        ("  }\n  cluster_sync();\n}", "  }\n}", LEFT),
        ("r < 3; r++", "r < 2; r++", HANG),
        ("next = atomicAdd(counter, 1)", "next = (*counter)++", RACE),
        ('"r"(far(&tile[s], r)), "r"(next)', '"r"(far(&tile[s ^ 1], r)), "r"(next)', HANG),
        ("if (mine >= tiles) break;\n      for", "if (mine > tiles) break;\n      for", HANG),
    ),
)


add(
    "decoding",
    make=_decoded,
    shapes=((2, 37), (1, 1), (3, 8)),
    grid=lambda heads, n: (2 * heads,),
    block=128,
    tolerance=1e-4,
    faults=(
        ("  __syncthreads();\n  if (w == 0) {", "  if (w == 0) {", RAW),
        ("  }\n  cluster_sync();\n  if (me", "  }\n  __syncthreads();\n  if (me", "block not begun"),
        ("  }\n  cluster_sync();\n}", "  }\n}", LEFT),
        ("get(far(&gm, 1))", "get(far(&gm, me))", WRONG),
        ("sum = sum * keep + p;", "sum = sum + p;", WRONG),
        ("float s = ql", "if (j & 32) continue; float s = ql", WRONG),
        ("s += __shfl_xor_sync(~0u, s, d)", "s += __shfl_down_sync(~0u, s, d)", WRONG),
    ),
)


add(
    "transposed",
    make=_turned,
    shapes=((64,), (45,), (5,)),
    grid=lambda n: (-(-n // 32) * 2, -(-n // 32) * 2),
    block=256,
    faults=(
        ("  cluster_sync();                       // all blocks have started\n", "", "block not begun"),
        ("v);\n  cluster_sync();", "v);\n  __syncthreads();", RAW),
        ("far(&tile[tx][ty], other)", "far(&tile[tx][ty], me)", WRONG),
        ("(me & 1) << 1 | me >> 1", "me ^ 1", WRONG),
        ("far(&tile[tx][ty], other)", "far(&tile[tx][tx], other)", WAW),
    ),
)


add(
    "ordered_ping_pong",
    make=_turns,
    shapes=((5, 192), (1, 40), (2, 64)),
    grid=lambda tiles, k: (1,),
    block=288,
    faults=(
        ("i / S & 1 ^ 1", "i / S & 1", HANG),
        ("  if (group == 1) { arrive(&turn[0][0]); arrive(&turn[0][1]); }\n", "", HANG),
        ("    arrive(&turn[group ^ 1][0]);\n", "", HANG),
        ("    arrive(&turn[group ^ 1][0]);\n", "    arrive(&turn[group][0]);\n", HANG),
        ("    wait(&turn[group][0], n & 1);\n", "", HANG),
        ("    if (t == 0) wait_read();\n", "", WAR),
        ("    fence_async();\n    asm", "    asm", PROXY),
        (
            '    fence_async();\n    asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");\n',
            "    fence_async();\n",
            RAW,
        ),
        ("    if (t == 0) wait_read();\n    asm", "    if (t == 1) wait_read();\n    asm", WAR),
        (
            "    wait(&turn[group][1], n & 1);\n    if (t == 0) wait_read();\n"
            '    asm volatile("bar.sync %0, 128;" :: "r"(group + 1)',
            '    if (t == 0) wait_read();\n    asm volatile("bar.sync %0, 128;" :: "r"(1)',
            "barrier misuse",
        ),
        ("      wait_products<0>();\n", "      wait_products<1>();\n", "missing wgmma wait"),
        ("sizeof a[0] + sizeof b[0]", "sizeof a[0] + 2 * sizeof b[0]", HANG),
        ("lane % 16) * 16 + lane / 16 * 8", "lane % 16) * 16 + lane / 16 * 4", "misaligned"),
        ("wait(&full[s], i / S & 1);", "wait(&full[s], j / S & 1);", HANG),
        ("desc128(a[s])", "desc128(a[s] + 64)", WRONG),
        ("desc128(b[s]) + 2 * kk", "desc128(b[s]) + kk", WRONG),
        ("  if (t == 0) wait_all();\n", "", LEFT),
        ("init(&turn[i / 2][i % 2], 128)", "init(&turn[i / 2][i % 2], 1)", MISUSE),
        ("j | kk", "kk", WRONG),
    ),
)


add(
    "mixed_input",
    make=_mixed,
    shapes=((320,), (64,), (128,)),
    grid=lambda k: (1,),
    block=128,
    faults=(
        ("    wait_products<0>();\n", "", "missing wgmma wait"),
        ("    commit();\n", "", "missing wgmma wait"),
        ("    fence_products();\n", "", "missing wgmma.fence"),
        ("wait(&full[i & 1], i >> 1 & 1)", "wait(&full[i & 1], i & 1)", RAW),
        ("    wait(&full[i & 1], i >> 1 & 1);\n", "", RAW),
        ("    fetch(i + 1);\n    u32", "    fetch(i + 2);\n    u32", HANG),
        ("2 * kk, kk);", "2 * kk, 1);", NEVER),
        ("j % 2 * 8, col", "j / 2 * 8, col", WRONG),
        (
            "    wait_products<0>();\n    for (int j = 0; j < 8; j++) sum[j] += scales[i] * d[j];",
            "    for (int j = 0; j < 8; j++) sum[j] += scales[i] * d[j];\n    wait_products<0>();",
            "missing wgmma wait",
        ),
        ("sizeof b[0]); box", "sizeof b[0] / 2); box", HANG),
    ),
)


add(
    "cluster_sums",
    make=_added,
    shapes=((8,), (1,), (3,)),
    grid=lambda n: (3,),
    block=64,
    faults=(
        ("  fence_async();\n  cluster_sync();", "  cluster_sync();", PROXY),
        ("3 * 256); }", "2 * 256); }", WRONG),
        ("3 * 256); }", "4 * 256); }", HANG),
        ("wait_cluster(&bar, 0); ", "", RAW),
        ("  all[t] = 0;\n", "", NEVER),
        ("y[t] = all[t]; }\n  cluster_sync();", "y[t] = all[t]; }", LEFT),
        ("  fence_async();\n  cluster_sync();", "  fence_async();\n  __syncthreads();", "cp misuse"),
        ("far(&bar, 0))", "far(&bar, me))", HANG),
        ("far(all, 0)", "far(all, me)", WRONG),
    ),
)


add(
    "jacobi",
    make=_jacobi,
    shapes=((4, 3), (1, 2), (5, 1)),
    grid=lambda blocks, steps: (blocks,),
    block=64,
    faults=(
        ("red.release.gpu", "red.relaxed.gpu", RACE),
        ("blocks * (i + 1)", "blocks * i", RACE),
        ('memory");\n    __syncthreads();\n    if', 'memory");\n    if', RACE),
        ("wait(&bar, i & 1)", "wait(&bar, 0)", RACE),
        ("3 * N * 4", "2 * N * 4", RACE),
    ),
)


add(
    "states",
    make=_dropped,
    shapes=((6,), (2,), (9,)),
    grid=lambda rounds: (1,),
    block=64,
    faults=(
        ("arrive_drop.", "arrive.", HANG),
        ("init(&bar, 64)", "init(&bar, 63)", MISUSE),
        ("  __syncthreads();\n  if (t == 0) {\n    asm", "  if (t == 63) {\n    asm", MISUSE),
        ("  }\n  __syncthreads();\n  y", "  }\n  y", WAR),
        (
            '    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(&bar)) : "memory");\n',
            "",
            MISUSE,
        ),
        ("slot[t ^ 1]", "slot[t ^ 32]", WRONG),
        ("    while (!done)\n", "    if (0)\n", RAW),
    ),
)


add(
    "stream_k",
    make=_streamed,
    shapes=((5, 7, 4), (1, 4, 4), (2, 3, 2)),
    grid=lambda tiles, steps, blocks: (blocks,),
    block=64,
    faults=(
        ("st.release.gpu", "st.relaxed.gpu", RACE),
        ("sum;\n      __syncthreads();\n      if", "sum;\n      if", RACE),
        ("          __syncthreads();\n          sum", "          sum", RACE),
        ("p < me; p++", "p < me - 1; p++", WRONG),
        ("tile * steps / share;", "tile * steps / share + 1;", WRONG),
        ("      __syncthreads();\n    }\n    if (!fin", "    }\n    if (!fin", PROXY),
        ("n >> 1 & 1", "n & 1", RAW),
        ("flags + me", "flags + me + 1", HANG),
        ("parts[me * 64 + t] = sum", "parts[t] = sum", WRONG),
        ("(i - first) & 1", "i & 1", HANG),
        ("while (!seen);", "while (0);", RACE),
    ),
)


add(
    "triton_softmax",
    make=_soft,
    shapes=((3, 200), (1, 256), (2, 2)),
    grid=lambda rows, n: (rows,),
    block=128,
    shared=16,
    schedules=CORES,
    tolerance=1e-4,
    faults=(
        ("  bar.sync 0;\n  setp.lt.s32 %p3", "  setp.lt.s32 %p3", RAW),
        ("  bar.sync 0;\n  ld.shared.b32 %r22", "  ld.shared.b32 %r22", RAW),
        ("  bar.sync 0;\n  add.f32 %f12, %f10", "  add.f32 %f12, %f10", WAR),
        ("  bar.sync 0;\n  ld.shared.v4", "  ld.shared.v4", RAW),
        ("@%p3 ld.shared.b32 %r19", "ld.shared.b32 %r19", BOUNDS),
        (
            "shfl.sync.bfly.b32 %r24, %r23, 16, 31, -1",
            "shfl.sync.bfly.b32 %r24, %r23, 16, 31, 65535",
            "warp mask",
        ),
        ("  @%p1 st.global", "  st.global", RACE),
        ("@%p1 ld.global", "ld.global", BOUNDS),
        ("shl.b32 %r14, %r5, 2", "shl.b32 %r14, %r5, 1", NEVER),
    ),
)


add(
    "pipeline_roles",
    make=_piped,
    shapes=((5,), (1,)),
    grid=lambda tiles: (1,),
    block=96,
    headers=True,
    schedules=("late",),
    faults=(
        ("      pipe.producer_acquire();\n", "", RAW),
        ("      pipe.consumer_wait();\n", "", HANG),
        ("      pipe.consumer_release();\n", "", HANG),
        (
            "      sum += stage[i % S][N - 1 - t];\n      pipe.consumer_release();\n",
            "      pipe.consumer_release();\n      sum += stage[i % S][N - 1 - t];\n",
            WAR,
        ),
        ("stage[i % S][2", "stage[(i + 1) % S][2", RAW),
    ),
)


add(
    "semaphores",
    make=_slots,
    shapes=((5,), (1,)),
    grid=lambda rounds: (1,),
    block=64,
    headers=True,
    schedules=("lockstep", "backward"),
    faults=(
        ("      if (lane == 0) empty.acquire();\n", "", WRONG),
        ("      if (lane == 0) ready.acquire();\n", "", RAW),
        ("      sum += slot[31 - lane];\n      __syncwarp();\n", "      sum += slot[31 - lane];\n", WAR),
        ("  done.arrive_and_wait();\n", "  if (w == 1) done.arrive_and_wait();\n", HANG),
        ("thread_scope_block>(64)", "thread_scope_block>(32)", HANG),
        (
            "      slot[lane] = x[i * 32 + lane];\n      __syncwarp();\n",
            "      slot[lane] = x[i * 32 + lane];\n",
            RAW,
        ),
        ("2>(1)", "2>(2)", WRONG),
    ),
)


add(
    "scaled_eight_bits",
    make=_eighths,
    shapes=((128, 640), (64, 128)),
    grid=lambda m, k: (m // 64,),
    block=256,
    shared=2 * (8192 + 2048 + 256) + 32,
    tolerance=1e-2,
    faults=(
        ("8192 + 2048 + 256)", "8192 + 2048)", HANG),
        ("        wait(empty + s, i / S & 1 ^ 1);\n", "", HANG),
        ("      __syncwarp();\n      if (lane == 0) arrive(empty + s);\n", "", HANG),
        ("init(empty + s, 4)", "init(empty + s, 1)", MISUSE),
        ("empty = full + S", "empty = full + S - 1", MISUSE),
        ("float* scale = (float*)(b + S * 2048)", "float* scale = (float*)(b + (S - 1) * 2048)", RAW),
        (
            '      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n'
            "      __syncwarp();\n      if (lane == 0) arrive(empty + s);",
            "      if (lane == 0) arrive(empty + s);\n"
            '      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");',
            WAR,
        ),
        ("? other : one", "? one : other", WRONG),
        ("2 * kk, kk);", "2 * kk, i | kk);", WRONG),
        ("sa + i * m + m0", "sa + i * m", WRONG),
        ("fence_init();\n  }\n  __syncthreads();", "fence_init();\n  }", HANG),
    ),
)


add(
    "last_block",
    make=_summed,
    shapes=((1000,), (3,), (512,)),
    grid=lambda n: (3,),
    block=128,
    schedules=CORES,
    faults=(
        ("? parts[t]", "? __ldg(&parts[t])", RACE),
        ("    __threadfence();\n", "", RACE),
        ("  __syncthreads();\n  if (last)", "  if (last)", RACE),
        ("    __syncthreads();\n    return", "    return", RAW),
        ("atomicInc(count, gridDim.x - 1)", "(*count)++", RACE),
    ),
)


add(
    "swizzled_stages",
    make=_halves,
    shapes=((64, 32, 136), (40, 50, 32), (7, 9, 200)),
    grid=lambda m, n, k: (-(-n // 32), -(-m // 32)),
    block=128,
    schedules=CORES,
    faults=(
        ('"n"(S - 2)', '"n"(S - 1)', "missing cp.async wait"),
        ("    __syncthreads();\n    if (i + S", "    if (i + S", RAW),
        ("fetch((i + S - 1) % S, (i", "fetch((i + S) % S, (i", "missing cp.async wait"),
        (
            'BK);\n    asm volatile("cp.async.commit_group;");\n    int s',
            "BK);\n    int s",
            "missing cp.async wait",
        ),
        (
            "place(wm + lane % 16, kk * 2 + lane / 16)",
            "place(wm + lane % 16, kk * 2 + lane / 16 + 1)",
            "missing cp.async wait",
        ),
        ("(row >> 1 & 3)) << 3", "(row & 7)) << 3", "missing cp.async wait"),
        ('y[2 * j]), "r"(y[2 * j + 1])', 'y[j]), "r"(y[j + 2])', WRONG),
        (
            "__align__(128) unsigned short sa[S][BM * BK]",
            "__align__(128) unsigned short sa[S - 1][BM * BK]",
            BOUNDS,
        ),
        ("int s = i % S;", "int s = (i + 1) % S;", "missing cp.async wait"),
    ),
)


add(
    "radix_pass",
    make=_digits,
    shapes=((700,), (128,), (77,)),
    grid=lambda n: (-(-n // 128),),
    block=128,
    schedules=CORES,
    faults=(
        ("  __syncthreads();\n  // The", "  // The", RAW),
        ("__popc(same);\n  __syncthreads();", "__popc(same);", RAW),
        ("  }\n  __syncthreads();\n  if (at", "  }\n  if (at", RACE),
        ("__match_any_sync(~0u, digit)", "__match_any_sync(0xffff, digit)", RACE),
        ("__shfl_up_sync(0xffff,", "__shfl_up_sync(~0u,", "warp mask"),
        ("volatile unsigned* s", "unsigned* s", HANG),
        ("counts[j][t] = mine; mine += c;", "mine += c; counts[j][t] = mine;", RACE),
        ("if (v >> 30 == 2) break;", "", RACE),
        ("&& !before)", "&& before)", RACE),
        ("__popc(before)] = key", "__popc(same)] = key", WAW),
        ("if (tile > 0) {", "if (tile > 1) {", RACE),
    ),
)


add(
    "planes",
    make=_stencil,
    shapes=((35, 17, 5), (16, 8, 1), (3, 30, 4)),
    grid=lambda x, y, z: (-(-x // 16), -(-y // 8)),
    block=128,
    schedules=CORES,
    faults=(
        ("    __syncthreads();\n    float s", "    float s", RAW),
        ("    __syncthreads();\n  }\n}", "  }\n}", WAR),
        ("if (tx < R) { plane", "if (tx < R - 1) { plane", NEVER),
        ("plane[Y + 2 * R][X + 2 * R]", "plane[Y + 2 * R][X + R]", WAW),
        ("if (inside) out", "out", RACE),
        ("z + R + 1)", "z + R)", WRONG),
        ("if (inside) out", "if (!inside) return; out", "divergent barrier"),
        ("tx + X + R] = at(x + X, y, z)", "tx + X + R] = at(x + X + 1, y, z)", WRONG),
    ),
)


add(
    "merge_csr",
    make=_merged,
    shapes=((40, 300), (5, 500), (90, 20)),
    grid=lambda rows, entries: (2,),
    block=32,
    schedules=CORES,
    faults=(
        ("red.release.gpu", "red.relaxed.gpu", RACE),
        (
            "static __device__ void cooperative(int) {\n  __syncthreads();",
            "static __device__ void cooperative(int) {",
            RACE,
        ),
        ("while (seen < gridDim.x)", "while (seen < gridDim.x - 1)", RACE),
        ("while (seen < gridDim.x)", "while (seen <= gridDim.x)", HANG),
        ("ends[middle] <= d", "ends[middle] < d", WRONG),
        ("release.gpu", "release.cta", RACE),
        ("    y[row] = s;\n    s = 0;", "    y[row] = s;", WRONG),
    ),
)


add(
    "hash_lists",
    make=_buckets,
    shapes=((150,), (64,), (1,)),
    grid=lambda n: (-(-n // 64),),
    block=64,
    schedules=CORES,
    faults=(
        ("  __syncthreads();\n  if (last)", "  if (last)", WAR),
        (
            "int seen = atomicCAS(&heads[h], old, i);",
            "int seen = heads[h]; if (seen == old) heads[h] = i;",
            RACE,
        ),
        ("      old = seen;\n", "", HANG),
        ("== gridDim.x - 1", "== gridDim.x - 2", WRONG),
        (">> 27", ">> 26", BOUNDS),
    ),
)


add(
    "ticket_queue",
    make=_queue,
    shapes=((13,), (1,), (4,)),
    grid=lambda tiles: (2,),
    block=32,
    schedules=CORES,
    faults=(
        ("st.release.gpu", "st.relaxed.gpu", RACE),
        ("ld.acquire.gpu", "ld.acquire.cta", RACE),
        (">= S)", "> S)", WRONG),
        ("* 3;\n      __syncthreads();", "* 3;", RACE),
        ("(t ^ 1)];\n      __syncthreads();", "(t ^ 1)];", RACE),
        ("__nanosleep(20);\n      __syncthreads();\n      out", "__nanosleep(20);\n      out", RACE),
        ("put(head, i + 1)", "put(head, i)", HANG),
        ("get(head) <= i", "get(head) < i", WRONG),
        ("ld.acquire.gpu.s32", "ld.s32", RACE),
    ),
)


add(
    "top_four",
    make=_top,
    shapes=((5, 100), (1, 4), (9, 33)),
    grid=lambda rows, n: (-(-rows // 2),),
    block=64,
    schedules=CORES,
    faults=(
        ("o = __shfl_xor_sync(~0u, top, d)", "o = __shfl_xor_sync(0xffff, top, d)", "warp mask"),
        ("if (row >= rows) return;", "if (row > rows) return;", BOUNDS),
        (
            "int oa = __shfl_xor_sync(~0u, at, d);",
            "int oa = d > 8 ? at : __shfl_xor_sync(~0u, at, d);",
            WRONG,
        ),
        ("j < n; j += 32", "j <= n; j += 32", BOUNDS),
    ),
)


add(
    "two_stages",
    make=_attention,
    shapes=((70,), (16,), (33,)),
    grid=lambda n: (-(-n // 64),),
    block=64,
    schedules=("lockstep", "backward"),
    headers=True,
    tolerance=1e-4,
    faults=(
        ("__pipeline_wait_prior(1)", "__pipeline_wait_prior(2)", "missing cp.async wait"),
        ("else __pipeline_wait_prior(0);", "", "missing cp.async wait"),
        ("    __syncthreads();\n    for (int j", "    for (int j", RAW),
        ("    __syncthreads();\n  }\n  if (row", "  }\n  if (row", WAR),
        ("    __pipeline_commit();\n", "", "missing cp.async wait"),
        ("l = l * keep + p; m = now;", "l = l + p; m = now;", WRONG),
    ),
)
