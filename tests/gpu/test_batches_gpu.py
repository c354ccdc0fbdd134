"""Batches of `harness.matmul` on a real GPU, in one launch and in several, against PyTorch's in float64."""

from __future__ import annotations

import random
from typing import Any

import pytest

import harness
from harness.dispatch import choose
from harness.dispatch.call import batch as batches
from harness.dispatch.call import gpus
from harness.driver import BorrowedStream
from harness.problems.gemm import GEMMS
from shared.on_card import covering

pytestmark = pytest.mark.gpu
KERNELS = sorted({c.variant.kernel.name for c in choose.candidates() if batches.takes(c.variant.kernel)})


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


@pytest.mark.parametrize("shape", [(5, 72, 136, 40), (3, 200, 328, 264), (7, 33, 57, 19)], ids=str)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_candidates_in_one_launch(
    torch: Any, kernel: str, layout: str, shape: tuple[int, int, int, int]
) -> None:
    """With maps and without; the sums are exact. What lies between matrices stays as it is."""
    gpu, (count, m, n, k) = gpus.gpu(torch.cuda.current_device()), shape
    found = covering([c.variant for c in choose.candidates() if c.variant.kernel.name == kernel])
    if kernel.endswith("_fp16"):
        del found[8:]  # the text is that of bf16, for another type
    dtype = found[0].kernel.dtype
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
    stream = BorrowedStream(gpu.context, torch.cuda.current_stream().cuda_stream)

    def operand(rows: int, columns: int, transposed: bool, gap: int) -> Any:
        stored = (columns, rows) if transposed else (rows, columns)
        flat = torch.randint(-2, 3, (count * (rows * columns + gap),), device="cuda").to(kind)
        made = flat.as_strided((count, *stored), (rows * columns + gap, stored[1], 1))
        return made.mT if transposed else made

    gap = 8 if k % 8 == 0 else 3
    a, b = operand(m, k, layout[0] == "T", gap), operand(k, n, layout[1] == "T", 2 * gap)
    out = torch.full((count * (m * n + gap),), 77.0, device="cuda").to(kind)
    c = out.as_strided((count, m, n), (m * n + gap, n, 1))
    flips = {name: int(letter == "T") for name, letter in zip(("transa", "transb"), layout, strict=True)}
    problem = GEMMS[dtype](M=m, N=n, K=k, **flips)
    batch = batches.Batch(count, m * k + gap, k * n + 2 * gap, m * n + gap)
    wanted = (a.double() @ b.double()).to(kind)
    ran = 0
    for one in found:
        variant = choose.laid_out(one, layout, "A" if m <= n else "B")
        if choose.unread(variant, layout):
            continue
        launch = gpu.one_launch(batches.compiled(variant), problem, batch)
        c.fill_(torch.nan)
        with gpu.context.current():
            launch([x.data_ptr() for x in (a, b, c)], (1.0, 0.0), stream)
        assert torch.equal(c, wanted), variant.label
        assert bool((out.as_strided((count, gap), (m * n + gap, 1), m * n) == 77).all()), variant.label
        ran += 1
    assert ran or (kernel, layout) == ("25_wgmma_tf32", "TN")


def test_a_batch_is_chosen_from_all_kernels(torch: Any) -> None:
    """Heads of attention are launched as a variant of 23: the control of what is above."""
    about = choose.about(GEMMS["bf16"](M=1024, N=1024, K=64, transb=1), steps=(65536, 65536))
    chosen = batches.fastest(32, 1024, 1024, 64, sms=132, arch="sm_90a", **about).variant
    assert chosen is not None and chosen.kernel.name == "23_wgmma_pipeline"
    q, k = (torch.randn(32, 1024, 64, device="cuda").bfloat16() for _ in range(2))
    found, wanted = harness.matmul(q, k.mT), q.double() @ k.double().mT
    assert bool(((found.double() - wanted).abs() <= 2**-8 * wanted.abs() + 1e-4).all())
