"""Batches of `harness.matmul` on a real GPU, in one launch and in several, against PyTorch's in float64."""

from __future__ import annotations

import random
from typing import Any

import pytest

import harness

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("seed", range(12))
def test_drawn_batches(torch: Any, seed: int, kind: str) -> None:
    """Ragged and small, some with deep k, whose tiles blocks share; broadcast, transposed, with gaps."""
    rng = random.Random(seed)
    count = rng.choice([2, 7, 33])
    m, n, k = (rng.choice([1, 17, 64, 129, 300]) for _ in range(3))
    k = k if seed % 3 else 3000
    dtype = getattr(torch, kind)

    def operand(rows: int, columns: int, size: int) -> Any:
        if rng.random() < 0.5:
            return torch.randn(size, columns, rows + 3, device="cuda").to(dtype)[:, :, :rows].mT
        return torch.randn(size, rows, columns, device="cuda").to(dtype)

    a, b = operand(m, k, count), operand(k, n, rng.choice([1, count]))
    c = torch.randn(count, m, n, device="cuda").to(dtype)
    wanted = 0.5 * (a.double() @ b.double()) - c.double()
    size = 0.5 * (a.double().abs() @ b.double().abs()) + c.double().abs()
    harness.matmul(a, b, c, alpha=0.5, beta=-1)
    unit = {"float32": 2**-22, "bfloat16": 2**-8, "float16": 2**-11}[kind]
    bound = 8 * (k + 3) ** 0.5 * 2**-24 * size + unit * (wanted.abs() + size.mean() / k)
    assert bool(((c.double() - wanted).abs() <= bound).all()), (count, m, n, k)


def test_more_matrices_than_a_grid_has_layers(torch: Any) -> None:
    a, b = (torch.randn(70_000, 8, 8, device="cuda") for _ in range(2))
    assert torch.allclose(harness.matmul(a, b), a @ b, atol=1e-4)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_matrices_of_16_bits_anywhere(torch: Any, kind: str, offset: int) -> None:
    """Rows are multiples of 16 bytes apart, matrices are not: only the first may begin at one."""
    dtype, (count, m, n, k) = getattr(torch, kind), (5, 40, 72, 64)

    def operand(rows: int, columns: int) -> Any:
        flat = torch.randint(-3, 4, (offset + count * (rows * columns + 1),), device="cuda").to(dtype)
        return flat[offset:].as_strided((count, rows, columns), (rows * columns + 1, columns, 1))

    for a, b in ((operand(m, k), operand(k, n)), (operand(k, m).mT, operand(n, k).mT)):
        assert torch.equal(harness.matmul(a, b), (a.double() @ b.double()).to(dtype))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_graph_gives_equal_bits(torch: Any, kind: str) -> None:
    shapes = (9, 100, 2000), (9, 2000, 50)
    a, b = (torch.randn(shape, device="cuda").to(getattr(torch, kind)) for shape in shapes)
    first = harness.matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = harness.matmul(a, b)
    for _ in range(5):
        graph.replay()
        assert torch.equal(first, again)
