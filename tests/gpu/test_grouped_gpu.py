"""`harness.grouped_matmul` on a real GPU: drawn products in all layouts, at any address, also in graphs."""

from __future__ import annotations

import random
from typing import Any

import pytest

import harness

pytestmark = pytest.mark.gpu

UNIT = {"float32": 2**-20, "bfloat16": 2**-8, "float16": 2**-10}


def drawn(torch: Any, draw: random.Random, rows: int, columns: int, dtype: Any) -> Any:
    """Return a matrix in either order, with a pitch and at an address of its own."""
    flip = draw.random() < 0.4
    down, right = (columns, rows) if flip else (rows, columns)
    wide = right + draw.choice([0, 0, 8, 1, 5])
    flat = torch.randn(draw.choice([0, 0, 1, 8]) + down * wide, device="cuda").to(dtype)
    x = flat[flat.numel() - down * wide :].view(down, wide)[:, :right]
    return x.t() if flip else x


def right(torch: Any, out: Any, a: Any, b: Any, unit: float) -> bool:
    """Return True within rounding: results of fp16 below 2^-14 are multiples of 2^-24."""
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    least = 2**-25 if out.dtype is torch.float16 else 1e-12
    return bool(((out.double() - exact).abs() <= unit * exact.abs() + 2**-18 * size + least).all())


@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16x6", "3xtf32"])
@pytest.mark.parametrize("kind", UNIT)
def test_drawn_products(torch: Any, kind: str, precision: str) -> None:
    """Small, thin and large ones together; the same bits again, and in a replayed graph."""
    if precision != "ieee" and kind != "float32":
        pytest.skip("about float32")
    seed = random.SystemRandom().randrange(2**32)
    draw, dtype = random.Random(seed), getattr(torch, kind)
    for count in (2, 7, 40, 120):
        most = 60 if count > 40 else 300
        shapes = [[round(most ** draw.random()) for _ in range(3)] for _ in range(count)]
        shapes += [[1024, 768, 1024]] if count == 7 else []
        a, b = ([drawn(torch, draw, x[i], x[j], dtype) for x in shapes] for i, j in ((0, 2), (2, 1)))
        out = [drawn(torch, draw, m, n, dtype).fill_(float("nan")) for m, n, _ in shapes]
        unit = 2**-9 if precision == "tf32" else UNIT[kind]
        assert harness.grouped_matmul(a, b, out, precision=precision) is not out
        for i, (x, y, z) in enumerate(zip(a, b, out, strict=True)):
            loose = 2**-9 * float(x.double().abs().sum(1).max()) if precision == "tf32" else 0
            exact = x.double() @ y.double()
            fits = (
                bool(((z.double() - exact).abs() <= loose * 4).all())
                if loose
                else right(torch, z, x, y, unit)
            )
            assert fits, (seed, count, i, shapes[i])
        before = [z.clone() for z in out]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            harness.grouped_matmul(a, b, [z.fill_(7) for z in out], precision=precision)
        graph.replay()
        assert all(map(torch.equal, out, before)), (seed, count)


def test_experts(torch: Any) -> None:
    """A layer of 16 experts, each with as many tokens as chose it, and results that PyTorch makes."""
    tokens = torch.randn(300, 256, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(16, 512, 256, device="cuda", dtype=torch.bfloat16)
    counts = torch.bincount(torch.randint(0, 16, (300,)), minlength=16).tolist()
    parts = [x for x in zip(tokens.split(counts), weights, strict=True) if len(x[0])]
    found = harness.grouped_matmul([x for x, _ in parts], [w.t() for _, w in parts])
    for z, (x, w) in zip(found, parts, strict=True):
        assert right(torch, z, x, w.t(), 2**-8)
