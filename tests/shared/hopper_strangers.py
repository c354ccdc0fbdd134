"""Hopper kernels as strangers bring them, in `tests/data/hopper`: what they compute, and planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from harness.emulator import TensorMap

FOLDER = Path(__file__).parents[1] / "data" / "hopper"
Given = tuple[list[Any], list[tuple[Any, np.ndarray]]]
Rng = np.random.Generator
WRONG = "wrong numbers"
f16, f32, i32 = np.float16, np.float32, np.int32


@dataclass(frozen=True, kw_only=True)
class Brought:
    """The kernel `k` of the file `name`.

    make: returns its arguments, and of each array that it writes what it holds then
    faults: (text, what replaces it, the kind of a finding that is wanted, or `WRONG`)
    headers: it includes those of CUDA, which take seconds to compile
    bf16: the results are bfloat16
    """

    name: str
    make: Callable[[Rng], Given]
    faults: tuple[tuple[str, str, str], ...]
    grid: tuple[int, ...] = (1,)
    block: int = 128
    shared: int = 0
    headers: bool = False
    bf16: bool = False
    tolerance: float = 1e-5

    @property
    def source(self) -> str:
        return (FOLDER / f"{self.name}.cu").read_text()


def tensor(array: Any, element: str, box: tuple[int, ...], **parts: Any) -> TensorMap:
    """Return the map of a whole array."""
    strides = tuple(int(stride) for stride in array.strides[-2::-1])
    return TensorMap(
        array=array, element=element, extents=array.shape[::-1], strides=strides, box=box, **parts
    )


def rounded(values: np.ndarray) -> np.ndarray:
    """Return the bits of the nearest bfloat16."""
    bits = values.astype(f32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def wide(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(f32).astype(np.float64)


def small(bits: np.ndarray, mantissa: int, bias: int) -> np.ndarray:
    """Return the values of floats of 8 bits; none of them is subnormal or special."""
    exponent, fraction = bits >> mantissa & (1 << 7 - mantissa) - 1, bits & (1 << mantissa) - 1
    sign = np.where(bits >> 7, -1.0, 1.0)
    return sign * (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent.astype(float) - bias)


def scale(rng: Rng) -> Given:
    a = rng.standard_normal((60, 100)).astype(f32)
    return [tensor(a, "FLOAT32", (32, 16)), f32(3)], [(a, a * 3)]


def saxpy(rng: Rng) -> Given:
    x, y = rng.standard_normal((2, 2048)).astype(f32)
    return [i32(2048), f32(2), x, y], [(y, 2 * x + y)]


def turned(rng: Rng) -> Given:
    a, out = rng.integers(0, 99, (3, 5, 128)).astype(i32), np.zeros((3, 128), i32)
    return [a, out, i32(5)], [(out, sum(np.roll(a[:, i], -i, 1) for i in range(5)))]


def histogram(rng: Rng) -> Given:
    a, bins = rng.integers(-9, 110, 3000).astype(i32), np.zeros(100, i32)
    wanted = np.bincount(np.clip(a, 0, 99), minlength=100)
    return [bins, i32(100), i32(25), a, i32(3000)], [(bins, wanted)]


def all_sums(blocks: int, count: int) -> Callable[[Rng], Given]:
    """Return a function that makes a row for each block; each gets the sum of all."""

    def make(rng: Rng) -> Given:
        a, out = rng.integers(-9, 9, (blocks, count)).astype(f32), np.zeros((blocks, count), f32)
        return [a, out], [(out, np.broadcast_to(a.sum(0), a.shape))]

    return make


def stencil(rng: Rng) -> Given:
    a, out = rng.integers(0, 9, 512).astype(f32), np.zeros(512, f32)
    rows = a.reshape(2, 256)  # one for each cluster
    for _ in range(3):
        padded = np.pad(rows, ((0, 0), (1, 1)))
        rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return [a, out, i32(3)], [(out, rows.ravel())]


def gemm(m: int, n: int, k: int, columns: int = 64) -> Callable[[Rng], Given]:
    """Return a function that makes A, a B of N x K whose boxes have so many columns, and C."""

    def make(rng: Rng) -> Given:
        a, b = (rounded(rng.standard_normal(shape)) for shape in ((m, k), (n, k)))
        c = np.zeros((m, n), f32)
        maps = [tensor(x, "BFLOAT16", (64, w), swizzle=128) for x, w in ((a, 64), (b, columns))]
        return [*maps, c, i32(n), i32(k)], [(c, wide(a) @ wide(b).T)]

    return make


def gemm_halves(rng: Rng) -> Given:
    a, b = (rng.standard_normal(shape).astype(f16) for shape in ((128, 224), (224, 64)))
    c = np.zeros((128, 64), f32)
    maps = [tensor(x, "FLOAT16", (32, rows), swizzle=64) for x, rows in ((a, 64), (b, 32))]
    return [*maps, c, i32(224)], [(c, a.astype(f32) @ b.astype(f32))]


def ping_pong(rng: Rng) -> Given:
    a, b = (rounded(rng.standard_normal(shape)) for shape in ((192, 192), (128, 192)))
    c = np.zeros((192, 128), np.uint16)
    maps = [tensor(x, "BFLOAT16", (64, 64), swizzle=128) for x in (a, b, c)]
    return [*maps, np.zeros(1, i32), i32(2), i32(6), i32(192)], [(c, wide(a) @ wide(b).T)]


def pairs(rng: Rng) -> Given:
    a, b = (rounded(rng.standard_normal((rows, 192))) for rows in (256, 128))
    c = np.zeros((256, 128), f32)
    maps = [tensor(x, "BFLOAT16", box, swizzle=128) for x, box in ((a, (64, 64)), (b, (64, 32)))]
    return [*maps, c, i32(128), i32(192), i32(4), i32(2)], [(c, wide(a) @ wide(b).T)]


def experts(rng: Rng) -> Given:
    x, first = rng.standard_normal((100, 32)).astype(f32), np.array([0, 20, 20, 37, 90, 100], i32)
    out = np.zeros((5, 32), f32)
    wanted = np.array([x[a:b].sum(0) for a, b in pairwise(first)])
    # The map that it begins with is of another matrix, of as many columns.
    given = tensor(np.zeros((16, 32), f32), "FLOAT32", (32, 16))
    return [given, x, first, np.zeros((2, 128), np.uint8), out, i32(5)], [(out, wanted)]


def convolution(rng: Rng) -> Given:
    n, h, w = 2, 10, 13
    x, taps = (rng.standard_normal(shape).astype(f16) for shape in ((n, h, w, 16), (9, 16, 16)))
    y, padded = np.zeros((n, h, w, 16), f32), np.pad(x.astype(f32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = (padded[:, i // 3 : i // 3 + h, i % 3 : i % 3 + w] for i in range(9))
    wanted = sum(part @ tap.astype(f32).T for part, tap in zip(shifted, taps, strict=True))
    maps = [tensor(x, "FLOAT16", (16, 8, 8, 1), swizzle=32), tensor(taps, "FLOAT16", (16, 16, 1), swizzle=32)]
    return [*maps, y, i32(h), i32(w)], [(y, wanted)]


def five(rng: Rng) -> Given:
    a, out = rng.standard_normal((3, 2, 3, 4, 8)).astype(f32), np.zeros((2, 2, 3, 2, 4), f32)
    around = np.full((4, 4, 6, 5, 8), np.nan, f32)
    around[:3, :2, :3, 1:] = a
    return [tensor(a, "FLOAT32", (4, 2, 3, 2, 2), nan=True), out], [(out, around[:2, 1:3, 1:4, :2, 4:])]


def split_sums(rng: Rng) -> Given:
    a = rng.integers(-9, 9, (3, 2, 16, 32)).astype(f32)
    c, row = np.zeros((27, 32), f32), np.zeros(32, f32)
    wanted = [(c, 2 * a.sum(0).reshape(32, 32)[:27]), (row, 2 * a.sum((0, 1, 2)))]
    return [a, tensor(c, "FLOAT32", (32, 16)), row], wanted


def attention(rng: Rng) -> Given:
    q, k, v = rng.standard_normal((3, 2, 100, 64)).astype(f16)
    out, scores = np.zeros((2, 100, 64), f32), q.astype(f32) @ k.astype(f32).swapaxes(1, 2) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v.astype(f32)
    maps = [tensor(x, "FLOAT16", (64, 64, 1), swizzle=128) for x in (q, k, v)]
    return [*maps, out, i32(100), f32(np.log2(np.e) / 8)], [(out, wanted)]


def eight_bits(rng: Rng) -> Given:
    def bits(rows: int, low: int, high: int) -> np.ndarray:
        sign = rng.integers(0, 2, (rows, 32)) << 7
        return (sign | rng.integers(low, high, (rows, 32))).astype(np.uint8)

    a, b, c = bits(64, 40, 72), bits(16, 52, 68), np.zeros((64, 16), f32)
    return [a, b, c, f32(0.5), f32(0.25)], [(c, small(a, 3, 7) @ small(b, 2, 15).T / 8)]


def rows(rng: Rng) -> Given:
    a, out = rng.integers(-9, 9, (160, 40)).astype(f32), np.zeros((160, 2), f32)
    first = a[:, :32]
    return [a, out, i32(40)], [(out, np.stack([first.sum(1), first @ np.arange(32)], 1))]


def columns(rng: Rng) -> Given:
    a, out = rng.integers(-9, 9, (8, 32, 4)).astype(f32), np.zeros((32, 4), f32)
    return [a, out, i32(8)], [(out, a.sum(0)[::-1])]


def one_sum(rng: Rng) -> Given:
    a, out = rng.integers(0, 99, (4, 32)).astype(i32), np.zeros(32, i32)
    return [a, out], [(out, a.sum(0))]


def softmax(rng: Rng) -> Given:
    x = rng.standard_normal((3, 256)).astype(f32)
    y, e = np.zeros_like(x), np.exp(x - x.max(1, keepdims=True))
    return [x, y], [(y, e / e.sum(1, keepdims=True))]


def copies(rng: Rng) -> Given:
    a, out = rng.standard_normal((8, 32)).astype(f32), np.zeros((5, 32), f32)
    return [a, out, i32(5)], [(out, a[:5])]


BOUNDS = "out of bounds"
RAW, WAR, WAW, HANG = "RAW hazard", "WAR hazard", "WAW hazard", "deadlock"
PROXY, LEFT, MISUSE, OVERRUN = "missing proxy fence", "block has left", "mbarrier misuse", "mbarrier overrun"
NEVER, PRODUCT_FENCE = "uninitialised read", "missing wgmma.fence"
BARRIERS = "    cl_arrive();\n    cl_wait();\n"

PRODUCTS = (
    Brought(name="gemm", make=gemm(128, 100, 200), grid=(2, 2), shared=32768, tolerance=1e-3, faults=(
        ("        wg_arrive();\n", "", PRODUCT_FENCE),
        ("        wg_commit();\n", "", "missing wgmma wait"),
        ("wg_wait<0>();", "wg_wait<1>();", "missing wgmma wait"),
        ("s / 2 & 1);", "s & 1);", RAW),
        ("2 * 64 * 64 * 2)", "64 * 64 * 2)", NEVER),
        ("        fence_barrier_init();\n", "", PROXY),
        ("    }\n    __syncthreads();\n    float d", "    }\n    float d", MISUSE),
        ("sB + s % 2 * 4096, s", "sB + s % 2 * 2048, s", WAW),
        ("desc<1, 1024, 1>(sA", "desc<1, 512, 2>(sA", WRONG),
        ("s || kk", "1", NEVER),
    )),
    Brought(name="gemm_registers", make=gemm_halves, grid=(2, 2), block=160, tolerance=1e-3, faults=(
        ("uint32_t phase = 0;", "uint32_t phase = 1;", HANG),
        ("uint32_t phase = 1;", "uint32_t phase = 0;", HANG),
        ("&empty[i], 4)", "&empty[i], 1)", MISUSE),
        ("if (lane == 0) Barrier::arrive", "Barrier::arrive", MISUSE),
        ("        wg_wait<0>();\n        if (lane == 0) Barrier::arrive(&empty[stage]);",
         "        if (lane == 0) Barrier::arrive(&empty[stage]);\n        wg_wait<0>();", WAR),
        ("while (!Barrier::test(&empty[stage], phase)) __nanosleep(20);", "", MISUSE),
        ("^ (row / 2 % 4)", "^ 0", WRONG),
        ("desc<1, 512, 2>(&sB[stage][0])", "desc<1, 512, 3>(&sB[stage][0])", WRONG),
    )),
    Brought(name="convolution", make=convolution, grid=(2, 2, 2), tolerance=1e-3, faults=(
        ("sizeof sx[0] + sizeof sw[0]", "sizeof sx[0]", HANG),
        ("tap / 2 & 1", "tap & 1", RAW),
        ("desc<1, 256, 3>(sw[b])", "desc<1, 512, 2>(sw[b])", "out of bounds"),
        ("x0 + tap % 3 - 1", "x0 + tap % 3", WRONG),
    )),
    Brought(name="gemm_multicast", make=gemm(128, 64, 520, columns=32), grid=(1, 2), block=256, shared=49152,
        tolerance=1e-3, faults=(
        (BARRIERS + "}", "}", LEFT),
        (BARRIERS + "    const", "    __syncthreads();\n    const", "cp misuse"),
        ("if (t < 2) Barrier::arrive_remote(empty + q, t);", "if (t == 0) Barrier::arrive(empty + q);", HANG),
        ("arrive_remote(empty + q, t)", "arrive_remote(empty + q, rank)", WAW),
        ("Barrier::init(empty + i, 2)", "Barrier::init(empty + i, 1)", OVERRUN),
        ("2 * 8192", "8192 + 4096", HANG),
        ("full + q, 3, sB", "full + q, 1, sB", HANG),
        ("n0 + rank * 32", "n0", WRONG),
        ("                Barrier::wait(empty + q, p ^ 1);\n", "", MISUSE),
        ("        fence_barrier_init();\n", "", PROXY),
    )),
    Brought(name="attention", make=attention, grid=(2, 2), block=160, tolerance=3e-3, faults=(
        ("        Barrier::wait(&vf, p);\n", "", RAW),
        ("        wg_wait<0>();\n        Barrier::arrive(&ke);", "        Barrier::arrive(&ke);", WAR),
        ("        Barrier::wait(&vf, p);\n        wg_arrive();\n", "        Barrier::wait(&vf, p);\n",
         PRODUCT_FENCE),
        ("Barrier::init(&ve, 128)", "Barrier::init(&ve, 160)", HANG),
        ("        Barrier::arrive(&ve);\n", "", HANG),
        ("p = 1; j < T", "p = 0; j < T", HANG),
        ("    Barrier::wait(&qf, 0);\n", "", RAW),
        ("sv[0] + kk * 1024", "sv[0] + kk * 16", WRONG),
    )),
    Brought(name="ping_pong", make=ping_pong, block=384, shared=81920, bf16=True, tolerance=2e-2, faults=(
        ('asm volatile("bar.arrive %0, 256;" ::"r"(3 - me) : "memory");', "", HANG),
        ("            fence_view_async_shared();\n", "", PROXY),
        ("            if (t == 0) tma_wait<0>();\n            asm", "            asm", WAR),
        ("        if (t == 0) tma_wait<0>();\n        if", "        if", LEFT),
        ("                Barrier::wait(tile_empty + n % 2, n / 2 & 1 ^ 1);\n", "", OVERRUN),
        ("Barrier::init(tile_empty + i, 128)", "Barrier::init(tile_empty + i, 1)", MISUSE),
        ("setmaxnreg.inc.sync.aligned.u32 232", "setmaxnreg.inc.sync.aligned.u32 240", HANG),
        ("p = at / ST & 1", "p = at / ST + 1 & 1", RAW),
    )),
    Brought(name="pairs", make=pairs, grid=(4,), block=160, shared=49152, tolerance=2e-2, faults=(
        ("Barrier::init(empty + i, 2)", "Barrier::init(empty + i, 1)", WAW),
        ("arrive_remote(empty + q, t)", "arrive_remote(empty + q, rank)", WAR),
        ("if (t < 2) Barrier", "if (t < 1) Barrier", HANG),
        ("full + q, 3, b", "full + q, 1, b", HANG),
        ("            wg_wait<0>();\n", "            wg_wait<1>();\n", WAR),
        ("    cl_arrive();  // the other block may still copy to this one, or arrive here\n    cl_wait();\n",
         "", LEFT),
    )),
    Brought(name="eight_bits", make=eight_bits, tolerance=1e-3, faults=(
        ('    asm volatile("fence.proxy.async;" ::: "memory");\n', "", PROXY),
        ("    __syncthreads();\n", "", RAW),
        ("desc<128, 256, 0>(sA)", "desc<256, 128, 0>(sA)", WRONG),
        ("(sB), 0);", "(sB), 1);", NEVER),
    )),
)  # fmt: skip

COPIES = (
    Brought(name="experts", make=experts, grid=(2,), block=64, tolerance=1e-4, faults=(
        ("if (t < 16) map", "if (t < 15) map", NEVER),
        ("maps + blockIdx.x", "maps", PROXY),
        ('asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(mine) : "memory");',
         "", PROXY),
        ("            __syncwarp();\n            if (t == 0) of", "            if (t == 0) of", WAW),
        ("            __syncthreads();\n        }", "        }", OVERRUN),
        ("x + first[e] * 32, count", "x + first[e] * 32, count + 16", BOUNDS),
    )),
    Brought(name="five", make=five, block=32, faults=(
        ("    Barrier::wait(&bar, 0);\n", "", RAW),
        ("(&bar, sizeof s)", "(&bar, 100)", HANG),
    )),
    Brought(name="split_sums", make=split_sums, grid=(1, 2, 3), faults=(
        ('    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n', "", PROXY),
        ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group",
         "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group", "global race"),
        ("        tma_wait<0>();\n", "", LEFT),
    )),
    Brought(name="rows", make=rows, block=96, faults=(
        ("Barrier::wait(&empty[i & 1], (i >> 1 & 1) ^ 1);", "Barrier::arrive(&full[i & 1]);", MISUSE),
        ("Barrier::init(&full[threadIdx.x], 32)", "Barrier::init(&full[threadIdx.x], 1)", MISUSE),
        ("            __syncwarp();\n", "", WAR),
        ("rows[2][32][36]", "rows[2][32][33]", "TMA misuse"),
        ("* ld)", "* (ld - 1))", "TMA misuse"),
    )),
    Brought(name="cp_async_ring", make=columns, block=64, faults=(
        ("arrive.noinc.", "arrive.", HANG),
        ("(i / 3 - 1) & 1", "(i / 3) & 1", OVERRUN),
        ("            Barrier::arrive(empty + s);\n", "", HANG),
        ("            Barrier::wait(full + s, i / 3 & 1);\n", "", WAW),
    )),
    Brought(name="prefetch", make=copies, block=32, faults=(
        (" && i + 2 < n", "", LEFT),
        ("        fence_view_async_shared();\n", "", PROXY),
        ("        __syncwarp();\n", "", WAR),
    )),
)  # fmt: skip

CLUSTERS = (
    Brought(name="gather", make=all_sums(4, 64), grid=(4,), block=64, faults=(
        ("(4 * 64 * 4)", "(3 * 64 * 4)", NEVER),
        ("(4 * 64 * 4)", "(5 * 64 * 4)", HANG),
        ("    while (!done)", "    if (0)", RAW),
        ('"f"(v), "r"(rb)', '"f"(v), "r"(smem_u32(&bar))', "st misuse"),
        ("&got[me][t]", "&got[me][t + 256]", "out of bounds"),
    )),
    Brought(name="red_async", make=one_sum, grid=(2, 2), block=32, faults=(
        ("4 * 32 * 4)", "3 * 32 * 4)", WRONG),
        (BARRIERS, "    __syncthreads();\n", "red misuse"),
        ("        Barrier::wait(&bar, 0);\n", "", LEFT),
    )),
    Brought(name="push", make=all_sums(3, 64), grid=(3,), block=64, faults=(
        ('    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n', "", PROXY),
        ('    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");\n'
         '    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");\n', "", LEFT),
        ('"r"(smem_u32(box[~s & 1])), "r"(next)', '"r"(smem_u32(box[s & 1])), "r"(next)', WAR),
        ("Barrier::wait(&got, s);", "Barrier::wait(&got, 0);", RAW),
    )),
    Brought(name="softmax", make=softmax, grid=(6,), faults=(
        ("atomicAdd((float*)g, s);", "*(float*)g += s;", WAW),
        ('"r"(smem_u32(part)), "r"(r)', '"r"(smem_u32(part)), "r"(r + 1)', "mapa misuse"),
    )),
)  # fmt: skip

LIBRARIES = (
    Brought(name="scale_libcuxx", make=scale, grid=(4, 4), headers=True, faults=(
        ("    cde::fence_proxy_async_shared_cta();\n    __sync", "    __sync", PROXY),
        ("        cde::fence_proxy_async_shared_cta();\n", "", PROXY),
        ("sizeof(smem))", "sizeof(smem) / 2)", HANG),
        ("init(&bar, blockDim.x)", "init(&bar, 2 * blockDim.x)", HANG),
        ("cde::cp_async_bulk_wait_group_read<0>();", "", LEFT),
        ("bar.wait(cuda::std::move(token));", "", RAW),
    )),
    Brought(name="saxpy_ptx", make=saxpy, grid=(3,), headers=True, faults=(
        ("ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());", "", WAR),
        ("        ptx::fence_proxy_async(ptx::space_shared);\n        __sync", "        __sync", PROXY),
        ("phase ^= 1;", "", OVERRUN),
        ("2 * T * 4", "T * 4", HANG),
        ("    if (leader) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());", "", LEFT),
    )),
    Brought(name="memcpy_async", make=turned, grid=(3,), shared=1024, headers=True, faults=(
        ("        block.sync();\n    }", "    }", WAR),
        ("bar[i % 2].arrive_and_wait();", "bar[0].arrive_and_wait();", RAW),
        ("    block.sync();\n    int sum", "    int sum", MISUSE),
    )),
    Brought(name="histogram", make=histogram, grid=(8,), shared=100, headers=True, faults=(
        ("smem[i] = 0;\n    cluster.sync();", "smem[i] = 0;\n    __syncthreads();", WAW),
        ("    cluster.sync();\n    int* lb", "    __syncthreads();\n    int* lb", LEFT),
        ("atomicAdd(dst + bin % per, 1);", "dst[bin % per] += 1;", RAW),
        ("bin / per)", "bin / per + 1)", "mapa misuse"),
    )),
    Brought(name="ring", make=all_sums(4, 256), grid=(4,), headers=True, faults=(
        ("+ i];\n    cluster.sync();", "+ i];\n    __syncthreads();", RAW),
        ("+= left[part * N + t];\n        cluster", "+= left[part * N + t];\n        if (s) cluster", WAR),
        ("] = left[part * N + t];\n        cluster",
         "] = left[part * N + t];\n        if (s < C - 2) cluster", LEFT),
    )),
    Brought(name="stencil", make=stencil, grid=(8,), block=64, headers=True, faults=(
        ("    }\n    cl.sync();", "    }\n    __syncthreads();", WAW),
        ("if (t > 0 && t < B - 1)", "if (t < B - 1)", RAW),
        ("cl.barrier_wait();", "__syncthreads();", "barrier misuse"),
        ("cl.barrier_arrive();", "cl.barrier_arrive(); cl.barrier_arrive();", "barrier misuse"),
    )),
)  # fmt: skip
BROUGHT = {one.name: one for one in (*PRODUCTS, *COPIES, *CLUSTERS, *LIBRARIES)}
