"""Products that `replace` launches without Python, on a real GPU: the same bits as `harness.matmul`'s."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

# Shapes and types whose kernels have tensor maps, workspaces, neither; rows that begin anywhere.
CASES = [
    ("float32", None, (512, 512, 512), "NN"),
    ("float32", None, (16, 2000, 4096), "NT"),
    ("float32", "tf32", (700, 900, 640), "NN"),
    ("float32", "tf32", (33, 77, 1000), "NT"),
    ("float32", "bf16x6", (512, 640, 768), "NN"),
    ("bfloat16", None, (1024, 1024, 1024), "NT"),
    ("bfloat16", None, (2, 6144, 4096), "NT"),
    ("bfloat16", None, (136, 4096, 2048), "TT"),
    ("float16", None, (77, 131, 303), "NN"),
    ("float16", None, (1, 4096, 4096), "NT"),
]


class Asked:
    """Counts the calls that reach Python's function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from harness.torch import replacement

        self.count, ours = 0, replacement._Replaced._either

        def counted(*args: Any) -> Any:
            self.count += 1
            return ours(*args)

        monkeypatch.setattr(replacement._Replaced, "_either", counted)


@pytest.fixture
def asked(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Asked:
    from harness.torch import known

    table, why = known.loaded()
    if table is None:
        pytest.skip(why)
    assert known.functions() is not None
    return Asked(monkeypatch)


def operands(
    torch: Any, dtype: str, shape: tuple[int, ...], layout: str, count: int
) -> Iterator[tuple[Any, Any, Any]]:
    m, n, k = shape
    options = {"device": "cuda", "dtype": getattr(torch, dtype)}
    for _ in range(count):
        a = torch.randn((m, k) if layout[0] == "N" else (k, m), **options)
        b = torch.randn((k, n) if layout[1] == "N" else (n, k), **options)
        bias = torch.randn(n, **options)
        yield a if layout[0] == "N" else a.t(), b if layout[1] == "N" else b.t(), bias


def always(*product: Any, **more: Any) -> bool:
    return True


@pytest.mark.parametrize(("dtype", "precision", "shape", "layout"), CASES)
def test_the_same_bits(
    torch: Any, asked: Asked, dtype: str, precision: str | None, shape: tuple[int, ...], layout: str
) -> None:
    """Python is asked twice at most: for a workspace it is there at the second call only."""
    import harness
    from harness.torch import replace

    given = list(operands(torch, dtype, shape, layout, 6))
    kind = precision or "ieee"
    out = torch.empty(shape[0], shape[1], device="cuda", dtype=given[0][0].dtype)
    wanted = [harness.matmul(a, b, precision=kind) for a, b, _ in given]
    added = [harness.matmul(a, b, bias=bias, precision=kind) for a, b, bias in given]
    with replace(fp32=precision, worth=always):
        found = [a @ b for a, b, _ in given]
        sums = [torch.addmm(bias, a, b) for a, b, bias in given]
        written = [torch.mm(a, b, out=out).clone() for a, b, _ in given]
    for one, other in zip([*found, *sums, *written], [*wanted, *added, *wanted], strict=True):
        assert torch.equal(one, other)
    assert 3 <= asked.count <= 6, asked.count


@pytest.mark.parametrize(("dtype", "precision", "shape", "layout"), CASES)
def test_streams_and_threads(
    torch: Any, asked: Asked, dtype: str, precision: str | None, shape: tuple[int, ...], layout: str
) -> None:
    """Each stream has a workspace of its own, and waits for nothing but itself."""
    import harness
    from harness.torch import replace, report

    given = list(operands(torch, dtype, shape, layout, 4))
    wanted = [harness.matmul(a, b, precision=precision or "ieee") for a, b, _ in given]
    torch.cuda.synchronize()

    def multiply(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(200):
                a, b, _ = given[(i + turn) % 4]
                found = a @ b
                if turn % 40 == 0:
                    assert torch.equal(found, wanted[(i + turn) % 4])

    with replace(fp32=precision, worth=always):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(multiply, range(4)))
        assert sum(call.calls for call in report().records) == 800
    assert asked.count <= 40, asked.count


@pytest.mark.parametrize(("dtype", "precision", "shape", "layout"), CASES)
def test_a_graph(
    torch: Any, asked: Asked, dtype: str, precision: str | None, shape: tuple[int, ...], layout: str
) -> None:
    """A captured product has a workspace of its own, and is right when replayed beside other launches."""
    import harness
    from harness.torch import replace

    (a, b, _), (x, y, _) = operands(torch, dtype, shape, layout, 2)
    kind = precision or "ieee"
    wanted = [harness.matmul(*pair, precision=kind) for pair in ((a, b), (x, y))]
    graph, beside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with replace(fp32=precision, worth=always):
        for _ in range(3):
            x @ y
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            found = [a @ b for _ in range(3)]
        torch.cuda.synchronize()
        for _ in range(20):
            graph.replay()
            with torch.cuda.stream(beside):
                other = x @ y
        torch.cuda.synchronize()
    assert all(torch.equal(one, wanted[0]) for one in found) and torch.equal(other, wanted[1])


def test_memory_runs_out(torch: Any, asked: Asked) -> None:
    """A workspace that is freed for want of memory is not used any more."""
    import harness
    from harness.dispatch.call import gpus
    from harness.torch import replace

    a, b, _ = next(operands(torch, "bfloat16", (24, 6144, 4096), "NT", 1))
    wanted = harness.matmul(a, b)
    with replace(worth=always):
        for _ in range(4):
            a @ b
        before = asked.count
        assert torch.equal(a @ b, wanted) and asked.count == before
        workspaces = gpus._gpus[0]._workspaces
        assert workspaces._kept, "the kernel has no workspace: take another shape"
        while workspaces._kept:
            workspaces._free(workspaces._kept.popitem()[1])
        gc.collect()
        assert torch.equal(a @ b, wanted) and asked.count == before + 1
        assert torch.equal(a @ b, wanted) and torch.equal(a @ b, wanted) and asked.count <= before + 2


def test_an_overlap_is_pytorchs_to_refuse(torch: Any, asked: Asked) -> None:
    from harness.torch import replace, report

    memory = torch.randn(3, 256, 256, device="cuda")
    with replace(worth=always):
        for _ in range(3):
            torch.mm(memory[0], memory[1], out=memory[2])
        before = asked.count
        torch.mm(memory[0], memory[1], out=memory[2])
        assert asked.count == before
        torch.mm(memory[0], memory[1], out=memory[1])
        assert asked.count == before + 1
    assert {call.why for call in report().records} == {"", "out overlaps b"}
