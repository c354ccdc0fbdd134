"""Kernels in Triton, and what it makes of them: run with Triton 3.9, this writes the .ptx files beside it.

No GPU is needed. Of debug information the names of functions stay, which lines refer to; folders go.
"""

import re
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

FLOATS, HALVES, WHOLE = "*fp32", "*fp16", "*i32"


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def softmax(y, x, y_pitch, x_pitch, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * x_pitch + at, mask=at < n, other=-float("inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * y_pitch + at, value / tl.sum(value, axis=0), mask=at < n)


@triton.jit
def histogram(x, bins, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins + (tl.load(x + at, mask=at < n, other=0) & 63), 1, mask=at < n)


@triton.jit
def product(a, b, c, M, N, K, am, ak, bk, bn, cm, cn, TILE: tl.constexpr, STEP: tl.constexpr):
    m = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in range(0, K, STEP):
        row, column = k + tl.arange(0, STEP)[None, :], k + tl.arange(0, STEP)[:, None]
        left = tl.load(a + m * am + row * ak, mask=(m < M) & (row < K), other=0.0)
        right = tl.load(b + column * bk + n * bn, mask=(column < K) & (n < N), other=0.0)
        total += tl.dot(left, right)
    tl.store(c + m * cm + n * cn, total, mask=(m < M) & (n < N))


@triton.jit
def tiles(x, y, M, N, TILE: tl.constexpr):
    across = tl.cdiv(N, TILE)
    m = tl.program_id(0) // across * TILE + tl.arange(0, TILE)[:, None]
    n = tl.program_id(0) % across * TILE + tl.arange(0, TILE)[None, :]
    inside = (m < M) & (n < N)
    tl.store(y + m * N + n, tl.load(x + m * N + n, mask=inside) * 2, mask=inside)


@triton.jit
def described(a, b, c, M, N, K, TILE: tl.constexpr, STEP: tl.constexpr):
    left = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[TILE, STEP])
    right = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[TILE, STEP])
    out = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[TILE, TILE])
    m, n = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in range(0, K, STEP):
        total = tl.dot(left.load([m, k]), right.load([n, k]).T, total)
    out.store([m, n], total.to(tl.float16))


KERNELS = {  # the types of parameters, and the constants
    add: ((FLOATS, FLOATS, FLOATS, "i32"), {"BLOCK": 256}),
    softmax: ((FLOATS, FLOATS, "i32", "i32", "i32"), {"BLOCK": 256}),
    histogram: ((WHOLE, WHOLE, "i32"), {"BLOCK": 128}),
    product: ((HALVES, HALVES, FLOATS, *["i32"] * 9), {"TILE": 32, "STEP": 16}),
    tiles: ((FLOATS, FLOATS, "i32", "i32"), {"TILE": 16}),
    described: ((HALVES, HALVES, HALVES, "i32", "i32", "i32"), {"TILE": 64, "STEP": 64}),
}


def main() -> None:
    """Write the PTX of all kernels."""
    for kernel, (types, constants) in KERNELS.items():
        names = kernel.arg_names
        signature = dict(zip(names, [*types, *["constexpr"] * len(constants)], strict=True))
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
        text = re.sub(r"\n\s*\.section\s+\.debug_(?!str)[^{]*\{[^}]*\}", "\n", made)
        text = re.sub(r'(\.file\s+\d+ )"[^"]*?([^/"]+)"', r'\1"\2"', text)
        text = "\n".join(line.split("//")[0].rstrip() for line in text.splitlines() if line.strip())
        folder = Path(__file__).parent
        (folder / f"{kernel.__name__}.ptx").write_text(re.sub(r"\n{2,}", "\n", text) + "\n")


if __name__ == "__main__":
    main()
