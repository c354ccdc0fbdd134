"""Registered operators that C++ launches, on a real GPU: the bits of `harness.matmul`, without Python."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

# Shapes and types whose kernels have tensor maps, workspaces, neither; rows that begin anywhere.
CASES = [
    ("float32", "ieee", (512, 512, 512), "NN"),
    ("float32", "ieee", (16, 2000, 4096), "NT"),
    ("float32", "tf32", (700, 900, 640), "NN"),
    ("float32", "bf16x6", (512, 640, 768), "NN"),
    ("bfloat16", "ieee", (1024, 1024, 1024), "NT"),
    ("bfloat16", "ieee", (2, 6144, 4096), "NT"),
    ("bfloat16", "ieee", (136, 4096, 2048), "TT"),
    ("float16", "ieee", (77, 131, 303), "NN"),
]
cases = pytest.mark.parametrize(("dtype", "precision", "shape", "layout"), CASES)


class Asked:
    """Counts the calls of operators that reach Python's kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from harness.torch import standing

        self.count, find = 0, standing.find

        def counted(key: Any) -> Any:
            self.count += 1
            return find(key)

        monkeypatch.setattr(standing, "find", counted)

    def by(self, call: Callable[[], Any]) -> int:
        before = self.count
        call()
        return self.count - before


@pytest.fixture
def asked(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Asked:
    from harness.torch import known, standing

    if known.loaded()[0] is None:
        pytest.skip(known.loaded()[1])
    assert standing.table() is not None
    return Asked(monkeypatch)


def operands(torch: Any, dtype: str, shape: tuple[int, ...], layout: str) -> tuple[Any, Any, Any]:
    m, n, k = shape
    options = {"device": "cuda", "dtype": getattr(torch, dtype)}
    a = torch.randn((m, k) if layout[0] == "N" else (k, m), **options)
    b = torch.randn((k, n) if layout[1] == "N" else (n, k), **options)
    bias = torch.randn(n, **options)
    return a if layout[0] == "N" else a.t(), b if layout[1] == "N" else b.t(), bias


@cases
def test_the_same_bits(
    torch: Any, asked: Asked, dtype: str, precision: str, shape: tuple[int, ...], layout: str
) -> None:
    """Python is asked twice at most for each: a workspace is there at the second call only."""
    import harness
    from harness import torch as ours

    given = [operands(torch, dtype, shape, layout) for _ in range(6)]
    options: Any = {"precision": precision}
    wanted = [harness.matmul(a, b, **options) for a, b, _ in given]
    added = [harness.matmul(a, b, bias=bias, **options) for a, b, bias in given]
    relu = [harness.matmul(a, b, bias=bias, activation="relu", **options) for a, b, bias in given]
    found = [ours.mm(a, b, **options) for a, b, _ in given]
    sums = [ours.addmm(bias, a, b, **options) for a, b, bias in given]
    layers = [ours.linear(a, b.t(), bias, **options) for a, b, bias in given]
    active = [ours.linear(a, b.t(), bias, activation="relu", **options) for a, b, bias in given]
    pairs = zip([*found, *sums, *layers, *active], [*wanted, *added, *added, *relu], strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert asked.count <= 8, asked.count
    a, b, bias = given[0]
    assert asked.by(lambda: ours.mm(a, b, **options)) == 0
    assert asked.by(lambda: ours.addmm(bias, a, b, **options)) == 0
    assert asked.by(lambda: ours.linear(a, b.t(), bias, **options)) == 0


@cases
def test_streams_and_threads(
    torch: Any, asked: Asked, dtype: str, precision: str, shape: tuple[int, ...], layout: str
) -> None:
    """Each stream has a workspace of its own, and waits for nothing but itself."""
    import harness
    from harness import torch as ours

    given = [operands(torch, dtype, shape, layout) for _ in range(4)]
    wanted = [harness.matmul(a, b, precision=precision) for a, b, _ in given]
    torch.cuda.synchronize()

    def multiply(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(200):
                a, b, _ = given[(i + turn) % 4]
                found = ours.mm(a, b, precision)
                if turn % 40 == 0:
                    assert torch.equal(found, wanted[(i + turn) % 4])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(multiply, range(4)))
    assert asked.count <= 40, asked.count


@cases
def test_a_graph(
    torch: Any, asked: Asked, dtype: str, precision: str, shape: tuple[int, ...], layout: str
) -> None:
    """A captured product has a workspace of its own, and is right when replayed beside other launches."""
    import harness
    from harness import torch as ours

    (a, b, _), (x, y, _) = (operands(torch, dtype, shape, layout) for _ in range(2))
    wanted = [harness.matmul(*pair, precision=precision) for pair in ((a, b), (x, y))]
    graph, beside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    for _ in range(3):
        ours.mm(x, y, precision)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = [ours.mm(a, b, precision) for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(20):
        graph.replay()
        with torch.cuda.stream(beside):
            other = ours.mm(x, y, precision)
    torch.cuda.synchronize()
    assert all(torch.equal(one, wanted[0]) for one in found) and torch.equal(other, wanted[1])


def test_gradients_and_modes(torch: Any, asked: Asked) -> None:
    """The formula is called where a gradient is asked for; its own products are known."""
    from harness import torch as ours

    x, w, bias = operands(torch, "float32", (64, 96, 128), "NN")
    weight, grad = w.t().contiguous().requires_grad_(), torch.randn(64, 96, device="cuda")
    wanted = torch.autograd.grad(torch.nn.functional.linear(x, weight, bias), weight, grad)[0]
    with torch.no_grad():
        for _ in range(3):
            ours.linear(x, weight, bias)
        assert asked.by(lambda: ours.linear(x, weight, bias)) == 0
    for _ in range(3):
        out = ours.linear(x, weight, bias)
        assert out.requires_grad
        before = asked.count
        (found,) = torch.autograd.grad(out, weight, grad)
        assert torch.allclose(found, wanted, atol=1e-3)
    assert asked.count == before
    with torch.inference_mode():
        assert asked.by(lambda: ours.linear(x, weight, bias)) == 0
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(4):
            found = ours.linear(x, weight.detach(), bias)
        assert found.dtype is torch.bfloat16
        assert asked.by(lambda: ours.linear(x, weight.detach(), bias)) == 0
    assert torch.allclose(torch.vmap(lambda a: ours.mm(a, w))(torch.stack([x, x]))[1], x @ w, atol=1e-3)


def test_memory_runs_out(torch: Any, asked: Asked) -> None:
    """A workspace that is freed for want of memory is not used any more."""
    import harness
    from harness import torch as ours
    from harness.dispatch.call import gpus

    a, b, _ = operands(torch, "bfloat16", (24, 6144, 4096), "NT")
    wanted = harness.matmul(a, b)
    for _ in range(4):
        ours.mm(a, b)
    assert asked.by(lambda: ours.mm(a, b)) == 0
    workspaces = gpus._gpus[0]._workspaces
    assert workspaces._kept, "the kernel has no workspace: take another shape"
    while workspaces._kept:
        workspaces._free(workspaces._kept.popitem()[1])
    before = asked.count
    assert all(torch.equal(ours.mm(a, b), wanted) for _ in range(3)) and 1 <= asked.count - before <= 2


def test_beside_a_block(torch: Any, asked: Asked) -> None:
    """The report of `replace` counts PyTorch's products, as before, and no operator's."""
    from harness import torch as ours

    a, b, _ = operands(torch, "float32", (512, 512, 512), "NN")
    wanted = ours.mm(a, b)
    with ours.replace(worth=lambda *product, **more: True):
        for _ in range(3):
            assert torch.equal(a @ b, wanted) and torch.equal(ours.mm(a, b), wanted)
        assert asked.by(lambda: ours.mm(a, b)) == 0
    assert [(call.op, call.calls) for call in ours.report().records] == [("mm", 3)]
    assert asked.by(lambda: ours.mm(a, b)) == 0


def test_another_gpu(torch: Any, asked: Asked) -> None:
    """Tensors of a GPU whose context is not current are Python's."""
    from harness import torch as ours

    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    a, b = (torch.randn(256, 256, device="cuda:1") for _ in range(2))
    for _ in range(4):
        assert torch.allclose(ours.mm(a, b), a @ b, atol=1e-2)
    with torch.cuda.device(1):
        for _ in range(3):
            found = ours.mm(a, b)
        assert found.device == a.device and asked.by(lambda: ours.mm(a, b)) == 0
