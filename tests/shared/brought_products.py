"""Kernels of `tests/data/brought` in Hopper's styles with products by wgmma."""

from __future__ import annotations

import numpy as np

from harness.emulator import TensorMap
from shared.brought import Given, Rng, add, tensor, whole

f32, i32, u32 = np.float32, np.int32, np.uint32


def brain(values: np.ndarray) -> np.ndarray:
    """Return numbers that bf16 holds, as its bits."""
    return (np.ascontiguousarray(values, f32).view(u32) >> 16).astype(np.uint16)


def _convolution(rng: Rng) -> Given:
    n, h, w = 3, 5, 6
    x, f = whole(rng, n, h, w, 16, high=3), whole(rng, 16, 3, 3, 16, high=3)
    y = np.zeros((n * h * w, 16), f32)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [padded[:, r : r + h, s : s + w] for r in range(3) for s in range(3)]
    wanted = sum(tap.reshape(-1, 16) @ f[:, i // 3, i % 3].T for i, tap in enumerate(taps))
    image = brain(x)
    pixels = TensorMap(
        array=image,
        element="BFLOAT16",
        extents=(16, w, h, n),
        strides=(32, 32 * w, 32 * w * h),
        box=(16, 64),
        lower=(-1, -1),
        upper=(-1, -1),
        swizzle=32,
    )
    weights = tensor(brain(f.reshape(16, -1)), "BFLOAT16", (16, 16), swizzle=32)
    return [pixels, weights, y, i32(w), i32(h), i32(n * h * w)], [(y, wanted)]


add(
    "conv_im2col",
    make=_convolution,
    grid=(2,),
    block=(160,),
    units=True,
    faults=(
        ("fence_init();", ""),
        ("  __syncthreads(); // made\n", ""),
        ("if (i >= S) wait(&empty[s], (i / S - 1) & 1);", ""),
        ("(i / S - 1) & 1", "i / S & 1"),
        ("64 * 32 + 16 * 32", "64 * 32"),
        ("    wg_fence();\n", ""),
        ("    wg_wait<0>();\n", "    wg_wait<1>();\n"),
        ("    wg_commit();\n", ""),
        ("q - 1, p - 1", "q, p - 1"),
        ("i % 3, i / 3,", "i / 3, i % 3,"),
        ("desc(a[s], 256, 3)", "desc(a[s], 256, 2)"),
        ("i / S & 1);\n    wg", "i & 1);\n    wg"),
        ("if (row < pixels) ", ""),
    ),
)


def _sparse(rng: Rng) -> Given:
    m, n, k = 128, 32, 96
    full, stored = np.zeros((m, k), f32), np.zeros((m, k // 2), f32)
    codes = np.zeros((m, k // 4), u32)
    for row in range(m):
        for g in range(k // 4):
            low, high = sorted(rng.choice(4, 2, replace=False).tolist())
            codes[row, g] = low | high << 2
            for j, index in enumerate((low, high)):
                full[row, 4 * g + index] = stored[row, 2 * g + j] = rng.integers(-4, 5)
    words = np.zeros((m // 64, k // 32, 128), u32)
    for tile, step, thread in np.ndindex(*words.shape):
        first = tile * 64 + thread // 32 * 16 + thread % 32 // 4
        if thread % 4 < 2:
            at = step * 8 + thread % 2 * 4
            groups = [*codes[first, at : at + 4], *codes[first + 8, at : at + 4]]
            words[tile, step, thread] = sum(int(code) << 4 * i for i, code in enumerate(groups))
    b, c = whole(rng, n, k, high=4), np.zeros((m, n), f32)
    half = np.float16
    maps = [
        tensor(stored.astype(half), "FLOAT16", (16, 64), swizzle=32),
        tensor(b.astype(half), "FLOAT16", (32, 16), swizzle=64),
    ]
    return [*maps, words, c, i32(n), i32(k // 32)], [(c, full @ b.T)]


add(
    "sparse_product",
    make=_sparse,
    grid=(2, 2),
    block=(128,),
    units=True,
    faults=(
        ("fence_init();", ""),
        ("    wait(&full[i % S], i / S & 1);\n", ""),
        ("i / S & 1", "i & 1"),
        ("64 * 32 + 16 * 64", "64 * 32 + 16 * 32"),
        ("    wg_fence();\n", ""),
        ("    wg_wait<0>();\n", ""),
        ("desc(sb[i % S], 512, 2)", "desc(sb[i % S], 512, 3)"),
        ("(blockIdx.y * steps + i) * 128 + t", "(blockIdx.y * steps + i) * 128 + (t ^ 1)"),
        ("(blockIdx.y * steps + i) * 128 + t", "(i) * 128 + t"),
        ("i * 32, col", "i * 16, col"),
        ("sb[S][16 * 32]", "sb[S][16 * 16]"),
    ),
)


def _gradients(rng: Rng) -> Given:
    queries, keys = 192, 48
    ds, k = whole(rng, queries, keys, high=3), whole(rng, keys, 16, high=3)
    dq = np.zeros((queries, 16), f32)
    maps = [
        tensor(brain(ds), "BFLOAT16", (16, 64), swizzle=32),
        tensor(brain(k), "BFLOAT16", (16, 16), swizzle=32),
    ]
    return [*maps, dq, i32(queries // 64)], [(dq, ds @ k)]


add(
    "query_gradients",
    make=_gradients,
    grid=(3,),
    block=(128,),
    units=True,
    faults=(
        ("  wait(&there, 0);\n", ""),
        ("    wait(&full[s], i / 2 & 1);\n", ""),
        ("    fence_async();\n", ""),
        ("    __syncthreads(); // written\n", ""),
        ("    if (t == 0) read_but<1>();\n", ""),
        ("    __syncthreads(); // free\n", ""),
        ("  if (t == 0) read_but<0>();\n", ""),
        ("      commit();\n", ""),
        ("    wg_wait<0>();\n", ""),
        ("    mma_across(", "    mma("),
        ("sizeof out[s]", "sizeof out"),
        ("init(&there, 1)", "init(&there, 2)"),
        ("add_bulk(dq + i * 64 * 16", "store(dq + i * 64 * 16"),
    ),
)


def _turns(rng: Rng) -> Given:
    m, n, k = 128, 48, 48
    a, b, c = whole(rng, m, k, high=3), whole(rng, n, k, high=3), np.zeros((m, n), f32)
    maps = [
        tensor(brain(a), "BFLOAT16", (16, 64), swizzle=32),
        tensor(brain(b), "BFLOAT16", (16, 16), swizzle=32),
        tensor(c, "FLOAT32", (16, 64)),
    ]
    return [*maps, i32(n // 16), i32(m // 64 * n // 16), i32(k // 16)], [(c, a @ b.T)]


add(
    "turns_of_two",
    make=_turns,
    grid=(2,),
    block=(288,),
    units=True,
    faults=(
        ("    named(1 + (group ^ 1), 256); // my turn\n", ""),
        ("    named_arrive(1 + group, 256); // the other's turn\n", ""),
        ("  if (group == 1) named_arrive(2, 256);\n", ""),
        ("if (group == 1) named_arrive(2, 256)", "if (group == 1) named_arrive(2, 128)"),
        ("    named(3 + group, 128); // free\n", ""),
        ("    named(3 + group, 128); // written\n", ""),
        ("named(3 + group, 128); // free", "named(3, 128); // free"),
        ("    fence_async();\n", ""),
        ("    if (w == 0) read_but<0>();\n", ""),
        ("  if (w == 0) read_but<0>();\n}", "}"),
        ("if (w == 0) arrive(&empty[s]);", "arrive(&empty[s]);"),
        ("if (i >= S) wait(&empty[s], (i / S - 1) & 1);", ""),
        ("int i = n * steps + j", "int i = n / 2 * steps + j"),
        ("tile % across * 16, tile / across * 64, out", "tile % across * 16, tile / across * 16, out"),
        ("commit(); }", "}"),
    ),
)


def _consumers(rng: Rng) -> Given:
    m, n, k = 128, 32, 320
    a, b, c = whole(rng, m, k, high=3), whole(rng, n, k, high=3), np.zeros((m, n), f32)
    maps = [tensor(brain(x), "BFLOAT16", (64, rows), swizzle=128) for x, rows in ((a, 128), (b, 16))]
    return [*maps, c, i32(n), i32(k // 64)], [(c, a @ b.T)]


add(
    "two_consumers",
    make=_consumers,
    grid=(2, 1),
    block=(384,),
    shared=3 * (128 + 16) * 128,
    units=True,
    faults=(
        ("fence_init();", ""),
        ("  __syncthreads(); // made\n", ""),
        ("(i / S & 1) ^ 1", "i / S & 1"),
        ("init(&empty[s], 2)", "init(&empty[s], 1)"),
        ("arrive(&empty[(i - 1) % S])", "arrive(&empty[i % S])"),
        ("    wg_wait<1>();\n", ""),
        ("    wg_wait<1>();\n", "    wg_wait<2>();\n"),
        ("  wg_wait<0>();\n", ""),
        ("    wg_fence();\n", ""),
        ("    wg_commit();\n", ""),
        ("left + j * 2", "left + j * 4"),
        ("right + j * 2", "right"),
        ("(group - 1) * 64) * 64, 1024, 1)", "(group - 1) * 64) * 64, 512, 1)"),
        ("(128 + 16) * 128", "128 * 128"),
        ("if (w < 32 && chosen())", "if (w < 32)"),
        ("u32 232", "u32 240"),
        ("S * 128 * 64;", "S * 64 * 64;"),
    ),
)


def _causal(rng: Rng) -> Given:
    n = 128
    q, k, v = (rng.integers(-2, 3, (n, 16)).astype(f32) for _ in range(3))
    q /= 2
    out, scores = np.zeros((n, 16), f32), q @ k.T
    scores[np.triu_indices(n, 1)] = -np.inf
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    wanted = weights @ v / weights.sum(1, keepdims=True)
    maps = [tensor(brain(x), "BFLOAT16", (16, rows), swizzle=32) for x, rows in ((q, 64), (k, 16), (v, 16))]
    return [*maps, out, i32(n)], [(out, wanted)]


add(
    "masked_scores",
    make=_causal,
    grid=(2,),
    block=(128,),
    units=True,
    tolerance=2e-2,
    faults=(
        ("  wait(&ready, 0);\n", ""),
        ("    wait(&full[i % S], i / S & 1);\n", ""),
        ("    wg_wait<0>();\n    for", "    for"),
        ("    wg_fence(); // weights\n", ""),
        ("    wg_wait<0>(); // values\n", ""),
        ("    wg_commit(); // values\n", ""),
        ("> first + row_of(t, j)", ">= first + row_of(t, j)"),
        ("        o[j] *= scale;\n", ""),
        ("pair(s[2], s[3]), pair(s[4], s[5])", "pair(s[4], s[5]), pair(s[2], s[3])"),
        ("%12, 1, 1, 1, 1;", "%12, 1, 1, 1, 0;"),
        ("min(length, first + 64)", "min(length, first + 48)"),
        ("2 * 16 * 32", "16 * 32"),
        ("int d = 1; d < 4; d *= 2) best", "int d = 1; d < 2; d *= 2) best"),
    ),
)
