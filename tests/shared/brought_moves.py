"""Kernels of `tests/data/brought` in Hopper's styles that move data: pages, shards, tiles in rings."""

from __future__ import annotations

import numpy as np

from harness.emulator import Buffer
from harness.emulator.numbers.formats import encode
from shared.brought import Given, Rng, add, tensor, whole
from shared.brought_products import brain

f32, i32, u32 = np.float32, np.int32, np.uint32


def attended(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    scores = keys.astype(np.float64) @ q
    weights = np.exp2(scores - scores.max())
    return weights @ values / weights.sum()


def _pages(rng: Rng) -> Given:
    lengths, most, pages = np.array([40, 8, 17], i32), 6, 16
    store = rng.standard_normal((pages, 2, 8, 32)).astype(f32)
    table = rng.permutation(pages)[: 3 * 5].reshape(3, 5).astype(i32)
    table = np.pad(table, ((0, 0), (0, most - 5)), constant_values=1 << 20)
    q, y = rng.standard_normal((3, 32)).astype(f32) / 4, np.zeros((3, 32), f32)
    wanted = [
        attended(q[s], *(store[table[s, :5], side].reshape(-1, 32)[: lengths[s]] for side in (0, 1)))
        for s in range(3)
    ]
    return [q, store, table, lengths, y, i32(most)], [(y, np.array(wanted))]


add(
    "paged_keys",
    make=_pages,
    grid=(3,),
    block=(64,),
    units=True,
    tolerance=1e-4,
    faults=(
        ("fence_init();", ""),
        ("  __syncthreads(); // made\n", ""),
        ("    wait(&full[s], i / S & 1);\n", ""),
        ("if (i >= S) wait(&empty[s], (i / S - 1) & 1);", ""),
        ("init(&empty[s], 32)", "init(&empty[s], 1)"),
        ("    arrive(&empty[s]);\n", ""),
        ("expect(&full[s], sizeof kv[s])", "expect(&full[s], sizeof kv[s][0])"),
        ("(length + P - 1) / P", "length / P + 1"),
        (" && i * P + j < length", ""),
        ("table[seq * most + i]", "table[seq * most]"),
        ("(i / S - 1) & 1", "i / S & 1"),
        ("~0u, dot, o", "0xffff, dot, o"),
    ),
)


def _latent(rng: Rng) -> Given:
    keys, splits, batch = 192, 4, 2
    q, rows = (
        rng.standard_normal((batch, 32)).astype(f32) / 4,
        rng.standard_normal((batch, keys, 32)).astype(f32),
    )
    part = Buffer(array=np.zeros((batch, splits, 34), f32), name="part", initialised=False)
    y, arrived = np.zeros((batch, 32), f32), np.zeros(batch, i32)
    wanted = np.array([attended(q[s], rows[s], rows[s]) for s in range(batch)])
    return [q, rows, part, arrived, y, i32(keys)], [(y, wanted), (arrived, arrived * 0)]


add(
    "split_latent",
    make=_latent,
    grid=(4, 2),
    block=(64,),
    units=True,
    tolerance=1e-4,
    faults=(
        ("fence_init();", ""),
        ("  __syncthreads(); // made\n", ""),
        ("    wait(&full[s], i / 2 & 1);\n", ""),
        ("    __syncthreads(); // scores\n", ""),
        ("    __syncthreads(); // used\n", ""),
        ("    __threadfence(); // told\n", ""),
        ("  __syncthreads(); // all\n", ""),
        ("  __syncthreads(); // known\n", ""),
        ("== splits - 1", "== splits - 2"),
        ("  if (lane == 0) arrived[seq] = 0;\n", ""),
        ("i / 2 & 1", "i & 1"),
        ("atomicAdd(&arrived[seq], 1)", "atomicAdd(&arrived[0], 1)"),
        ("rows[2][R][D]", "rows[1][R][D]"),
    ),
    missed=(("  __threadfence(); // seen\n", ""),),  # behind __syncthreads()
)


def _scanned(rng: Rng) -> Given:
    blocks, chunks = 2, 5
    a = rng.integers(0, 2, (blocks, chunks * 16, 32)).astype(f32)
    x, y = whole(rng, blocks, chunks * 16, 32), np.zeros((blocks, chunks * 16, 32), f32)
    wanted, h = np.zeros_like(y), np.zeros((blocks, 32), f32)
    for i in range(chunks * 16):
        h = a[:, i] * h + x[:, i]
        wanted[:, i] = h
    return [a, x, y, i32(chunks)], [(y, wanted)]


add(
    "chunked_scan",
    make=_scanned,
    grid=(2,),
    block=(32,),
    units=True,
    faults=(
        ("fence_init();", ""),
        ("  __syncwarp(); // made\n", ""),
        ("    wait(&full[s], i / 2 & 1);\n", ""),
        ("    if (t == 0) read_but<1>();\n", ""),
        ("    __syncwarp(); // free\n", ""),
        ("    fence_async();\n", ""),
        ("    __syncwarp(); // scanned\n", ""),
        ("  if (t == 0) read_but<0>(); // stored\n", ""),
        ("read_but<1>", "read_but<2>"),
        ("2 * sizeof sa[s]", "sizeof sa[s]"),
        ("fetch(i + 2)", "fetch(i + 1)"),
        ("if (chunks > 1) fetch(1);", ""),
    ),
)


def _grouped(rng: Rng) -> Given:
    ends, n, k = np.array([64, 192, 220], i32), 32, 160
    rows = 256
    a, b = whole(rng, rows, k, high=4), whole(rng, 3, n, k, high=4)
    sa, sb = 2.0 ** rng.integers(-1, 2, (k // 32, rows)), 2.0 ** rng.integers(-1, 2, (3, k // 32))
    c, wanted = np.zeros((rows, n), f32), np.zeros((rows, n))
    for g, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        for i in range(k // 32):
            part = a[first:end, i * 32 : i * 32 + 32] @ b[g, :, i * 32 : i * 32 + 32].T
            wanted[first:end] += part * sb[g, i] * sa[i, first:end, None]

    def eight(values: np.ndarray) -> np.ndarray:
        return encode(values.astype(np.float64), "e4m3").astype(np.uint8)

    maps = [
        tensor(eight(a), "UINT8", (32, 64), swizzle=32),
        tensor(eight(b.reshape(-1, k)), "UINT8", (32, 16), swizzle=32),
    ]
    given = [*maps, sa.astype(f32), sb.astype(f32), ends, c, i32(rows), i32(n), i32(k // 32)]
    return given, [(c, wanted)]


add(
    "scaled_groups",
    make=_grouped,
    grid=(2, 4),
    block=(160,),
    units=True,
    faults=(
        ("init(&empty[s], 4)", "init(&empty[s], 1)"),
        ("init(&empty[s], 4)", "init(&empty[s], 5)"),
        ("if (i >= S) wait(&empty[s], (i / S - 1) & 1);", ""),
        ("    wait(&full[s], i / S & 1);\n", ""),
        ("sizeof ta[s] + sizeof tb[s]", "sizeof ta[s]"),
        ("group * n + col, &full", "col, &full"),
        ("sb[group * steps + i]", "sb[group + i]"),
        ("    wg_wait<0>();\n", ""),
        ("    wg_fence();\n", ""),
        ("if (r < ends[group]) ", ""),
        ("ends[group] <= row", "ends[group] < row"),
        ("t % 32 == 0", "t == 0"),
        ("desc(ta[s], 256, 3), desc(tb[s], 256, 3), 0)", "desc(ta[s], 256, 3), desc(tb[s], 256, 3), 1)"),
    ),
)


def _shards(rng: Rng) -> Given:
    ranks, n = 3, 64
    x, w, y = whole(rng, ranks, n, high=4), whole(rng, ranks * n, n, high=4), np.zeros((ranks, n), f32)
    boxes = [
        Buffer(array=np.zeros(ranks * n, f32), name=f"inbox{r}", initialised=False) for r in range(ranks)
    ]
    flags = [Buffer(array=np.zeros(ranks, i32), name=f"flags{r}") for r in range(ranks)]

    def table(behind: list[Buffer], name: str) -> Buffer:
        pointers = tuple((8 * i, b) for i, b in enumerate(behind))
        return Buffer(array=np.zeros(ranks, np.uint64), name=name, pointers=pointers)

    given = [x, table(boxes, "inbox"), table(flags, "flags"), w, y, i32(ranks)]
    return given, [(y, np.tile(x.ravel() @ w, (ranks, 1)))]


add(
    "gathered_shards",
    make=_shards,
    grid=(3,),
    block=(64,),
    units=True,
    faults=(
        (
            "  __threadfence_system(); // pushed\n  __syncthreads(); // all\n"
            '  if (t < ranks) asm volatile("st.release',
            '  __syncthreads(); // all\n  if (t < ranks) asm volatile("st.relaxed',
        ),
        ("  __syncthreads(); // all\n", ""),
        ("ld.acquire.sys", "ld.relaxed.sys"),
        ("ld.acquire.sys", "ld.acquire.cta"),
        ('      asm volatile("fence.proxy.async;" ::: "memory");\n', ""),
        ("    wait(&full, i & 1);\n", ""),
        ("    __syncthreads(); // read\n", ""),
        ("while (!ready)", "while (false)"),
        ("flags[t] + me", "flags[me] + t"),
        ("wait(&full, i & 1)", "wait(&full, 0)"),
        ("(from * N + j) * N", "(i * N + j) * N"),
    ),
)


def _units(rng: Rng) -> Given:
    m, n, k = 128, 32, 80
    a, b = whole(rng, m, k, high=3), whole(rng, n, k, high=3)
    c = Buffer(array=np.zeros((m, n), f32), name="c", initialised=False)
    turn, steps = np.zeros(m // 64 * n // 16, i32), k // 16
    maps = [tensor(brain(x), "BFLOAT16", (16, rows), swizzle=32) for x, rows in ((a, 64), (b, 16))]
    given = [*maps, c, turn, i32(n), i32(steps), i32(len(turn) * steps)]
    return given, [(c.array, a @ b.T), (turn, turn * 0)]


add(
    "ordered_units",
    make=_units,
    grid=(3,),
    block=(128,),
    units=True,
    faults=(
        ("    __syncthreads(); // my turn\n", ""),
        ("    __syncthreads(); // added\n", ""),
        ("    if (t == 0) while (acquire(&turn[tile]) != first) ;\n", ""),
        ("!= first) ;", "> first) ;"),
        ("release(&turn[tile], stop == steps ? 0 : stop)", "turn[tile] = stop == steps ? 0 : stop"),
        ("stop == steps ? 0 : stop", "stop"),
        ("first ? *to + d[j] : d[j]", "*to + d[j]"),
        ("      wait(&full[s], seen / 2 & 1);\n", ""),
        ("seen / 2 & 1", "j / 2 & 1"),
        ("j > first)", "1)"),
        ("      wg_wait<0>();\n", ""),
        ("stop == steps ? 0 : stop", "stop == steps ? 0 : stop - 1"),
    ),
    missed=(("acquire(&turn[tile])", "*(volatile int*)&turn[tile]"),),  # behind it is __syncthreads()
)


def _nibbles(rng: Rng) -> Given:
    m, n, k = 128, 32, 80
    codes, scales = rng.integers(0, 16, (m, k)), 2.0 ** rng.integers(-2, 2, (m, k // 16))
    x, y = whole(rng, n, k, high=4), np.zeros((m, n), f32)
    words = np.zeros((m, k // 8), u32)
    for j in range(8):
        words |= codes[:, j::8].astype(u32) << u32(4 * j)
    weights = (codes - 8) * np.repeat(scales, 16, 1)
    given = [words, scales.astype(f32), tensor(brain(x), "BFLOAT16", (16, 16), swizzle=32), y]
    return [*given, i32(m), i32(n), i32(k // 16)], [(y, weights @ x.T)]


add(
    "four_bits",
    make=_nibbles,
    grid=(2, 2),
    block=(128,),
    units=True,
    faults=(
        ("fence_init();", ""),
        ("  __syncthreads(); // made\n", ""),
        ("    wait(&full[i % S], i / S & 1);\n", ""),
        ("    wg_fence();\n", ""),
        ("    wg_wait<0>();\n", ""),
        ("    wg_commit();\n", ""),
        ("i < S - 1 && i < steps", "i < S && i < steps"),
        ("fetch(i + S - 1);\n    wait", "fetch(i + S - 2);\n    wait"),
        ("j % 2 * 8", "j / 2 * 8"),
        ("i * 2 + j / 2", "i * 2 + j % 2"),
        ("word >> 4 & 15", "word & 15"),
        ("expect(&full[i % S], 16 * 32)", "expect(&full[i % S], 16 * 16)"),
    ),
)


def _ahead(rng: Rng) -> Given:
    tiles = 9
    x, y, z = whole(rng, tiles, 256), whole(rng, tiles, 256), np.zeros((tiles, 256), f32)
    return [x, y, z, f32(3), i32(tiles)], [(z, y + 3 * x)]


add(
    "ahead",
    make=_ahead,
    grid=(2,),
    block=(64,),
    units=True,
    faults=(
        ("fence_init();", ""),
        ("  __syncthreads(); // made\n", ""),
        ("    wait(&full[s], i / S & 1);\n", ""),
        ("    fence_async();\n", ""),
        ("    __syncthreads(); // added\n", ""),
        ("read_but<0>(); fetch", "fetch"),
        ("  if (t == 0) wait_all(); // stored\n", ""),
        ("2 * sizeof sx[s]", "sizeof sx[s]"),
        ("fetch(tile + step, s ^ 1)", "fetch(tile + step, s)"),
        ("if (tile + step < tiles)", "if (true)"),
        ("if (first < tiles) fetch(first, 0);", "fetch(0, 0);"),
    ),
)


def _turned(rng: Rng) -> Given:
    m, n = 128, 192
    x, y = rng.integers(0, 1 << 16, (m, n)).astype(np.uint16), np.zeros((n, m), np.uint16)
    return [tensor(a, "UINT16", (64, 64), swizzle=128) for a in (x, y)], [(y, x.T)]


add(
    "turned",
    make=_turned,
    grid=(3, 2),
    block=(128,),
    units=True,
    faults=(
        ("init(&full, 1); fence_init();", "init(&full, 1);"),
        ("  __syncthreads(); // made\n", ""),
        ("  wait(&full, 0);\n", ""),
        ("  fence_async();\n", ""),
        ("  __syncthreads(); // turned\n", ""),
        (" read_but<0>(); }", " }"),
        (".x2.trans.shared", ".x2.shared"),
        ("(chunk ^ row & 7)", "(chunk ^ row & 3)"),
        ("(chunk ^ row & 7)", "chunk"),
        ("blockIdx.y * 64, blockIdx.x * 64, out", "blockIdx.x * 64, blockIdx.y * 64, out"),
        ("lane >> 3 & 1", "lane >> 4 & 1"),
        ("in[64 * 128], out[64 * 128]", "in[64 * 128], out[60 * 128]"),
    ),
)


def _handed(rng: Rng) -> Given:
    tiles = 11
    x, y, ticket = whole(rng, tiles, 128), np.zeros((tiles, 128), f32), np.zeros(1, i32)
    return [x, y, ticket, i32(tiles)], [(y, x * x)]


add(
    "handed_out",
    make=_handed,
    grid=(3,),
    block=(96,),
    units=True,
    faults=(
        ("fence_init();", ""),
        ("  __syncthreads(); // made\n", ""),
        ("if (i >= S) wait(&empty[s], (i / S - 1) & 1);", ""),
        ("init(&empty[s], 64)", "init(&empty[s], 32)"),
        ("    arrive(&empty[s]);\n", ""),
        ("    wait(&full[s], i / S & 1);\n", ""),
        ("{ arrive(&full[s]); break; }", "break;"),
        ("tile >= tiles) { arrive", "tile > tiles) { arrive"),
        ("number[s] = tile;", "number[0] = tile;"),
        ("    int tile = number[s];", "    int tile = number[s ^ 1];"),
        (
            "        number[s] = tile;\n        if (tile >= tiles) { arrive(&full[s]); break; }\n"
            "        expect(&full[s], sizeof data[s]);\n",
            "        expect(&full[s], sizeof data[s]); number[s] = tile;\n"
            "        if (tile >= tiles) { break; }\n",
        ),
        ("tile >= tiles) break;\n    for", "tile > tiles) break;\n    for"),
    ),
)
