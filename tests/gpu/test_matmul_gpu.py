"""`harness.matmul` on a real GPU, with the libraries whose arrays it takes, those installed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import harness
from harness.dispatch import choose
from harness.dispatch.call import gpus
from harness.dispatch.model import cost, traffic
from harness.dispatch.model.traffic import ALIGNED
from harness.dispatch.split import divided
from harness.driver import Buffer, Context, Device, Graph, Stream
from harness.errors import UsageError
from harness.kernels import catalog
from harness.problems.gemm import Gemm
from harness.problems.verify import compare

pytestmark = pytest.mark.gpu

SHAPES = [
    (1, 1, 1), (1, 4097, 1000), (16, 513, 257), (17, 33, 65), (1000, 1, 999), (301, 3, 5), (127, 129, 255),
    (512, 512, 512), (513, 511, 1023), (1024, 1024, 1024), (2049, 2047, 100), (64, 64, 16384),
    (2304, 2048, 256), (1025, 2049, 512), (2049, 2047, 2049),
]  # fmt: skip


class Ours:
    """Operands of a `Gemm` in Buffers, rows as far apart as it says."""

    def __init__(self, gpu: Context, stream: Stream, problem: Gemm) -> None:
        self.problem, self.stream = problem, stream
        self.host = problem.inputs(seed=7)
        self.buffers = {name: Buffer(gpu, array.nbytes) for name, array in self.host.items()}
        for name, array in self.host.items():
            self.buffers[name].upload(array, stream)

    def view(self, name: str) -> Any:
        rows, columns = {
            "A": (self.problem.M, self.problem.K),
            "B": (self.problem.K, self.problem.N),
            "C": (self.problem.M, self.problem.N),
        }[name]
        buffer, ld = self.buffers[name], self.host[name].shape[1]

        class View:
            __cuda_array_interface__ = {  # noqa: RUF012
                "shape": (rows, columns), "typestr": "<f4", "data": (buffer.ptr, False),
                "strides": (4 * ld, 4), "version": 3,
            }  # fmt: skip

        return View()

    def result(self) -> np.ndarray:
        out = np.empty_like(self.host["C"])
        self.buffers["C"].download(out, self.stream)
        return out


@pytest.fixture
def stream(gpu: Context):
    with gpu.current(), Stream(gpu) as stream:
        yield stream


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("extra", [{}, {"pads": 3, "alpha": -0.5, "beta": 2.0}], ids=["plain", "padded"])
def test_numbers(gpu: Context, stream: Stream, shape: tuple[int, int, int], extra: dict[str, Any]) -> None:
    """Against float64 with the bounds of `harness verify`; padding is NaN and stays as it is."""
    m, n, k = shape
    pads = extra.get("pads", 0)
    scalars = {key: extra[key] for key in ("alpha", "beta") if key in extra}
    problem = Gemm(M=m, N=n, K=k, lda=k + pads, ldb=n + pads, ldc=n + pads, **scalars)
    mine = Ours(gpu, stream, problem)
    harness.matmul(mine.view("A"), mine.view("B"), mine.view("C"), stream=stream, **scalars)
    out = mine.result()
    verdict = compare(out, problem.reference(mine.host), mine.host["C"])
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_the_same_bits_each_time(gpu: Context, stream: Stream, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    mine = Ours(gpu, stream, Gemm(M=m, N=n, K=k))
    a, b, c = (mine.view(name) for name in "ABC")
    harness.matmul(a, b, c, stream=stream)
    first = mine.result()
    for _ in range(20):
        mine.buffers["C"].fill_u32(0x7FC00000, stream)
        harness.matmul(a, b, c, stream=stream)
        assert np.array_equal(first.view(np.uint32), mine.result().view(np.uint32))


def test_threads_and_streams(gpu: Context) -> None:
    """One shape, so one prepared launch, from four threads on four streams."""
    failed: list[str] = []

    def work(seed: int) -> None:
        with gpu.current(), Stream(gpu) as stream:
            problem = Gemm(M=200, N=300, K=100)
            mine = Ours(gpu, stream, problem)
            mine.host["A"] += seed
            mine.buffers["A"].upload(mine.host["A"], stream)
            a, b, c = (mine.view(name) for name in "ABC")
            for _ in range(100):
                harness.matmul(a, b, c, stream=stream)
            verdict = compare(mine.result(), problem.reference(mine.host), mine.host["C"])
            if not verdict.ok:
                failed.append(str(verdict))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []


def test_out_may_not_overlap_and_host_memory_is_refused(gpu: Context, stream: Stream) -> None:
    buffer = Buffer(gpu, 4 * 64 * 64)
    square = buffer.array("float32", (64, 64))
    with pytest.raises(UsageError, match="out overlaps a"):
        harness.matmul(square, Buffer(gpu, 4 * 64 * 64).array("float32", (64, 64)), square, stream=stream)

    class Host:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (64, 64), "typestr": "<f4", "version": 3,
            "data": (np.zeros((64, 64), np.float32).ctypes.data, False),
        }  # fmt: skip

    with pytest.raises(UsageError, match="not the address of device memory"):
        harness.matmul(Host(), square, stream=stream)


# Workspaces


@pytest.fixture(
    params=[
        *({}, {"BM": 64, "WM": 32, "CHUNK": 16}, {"BN": 128, "STAGES": 6, "SLICES": 2}),
        {"BM": 256, "BN": 32, "WN": 32, "SLICES": 2},
    ],
    ids=str,
)
def stream_k(gpu: Context, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Every product by rung 20, whose launches share tiles through a workspace."""
    if gpu.device.capability != (9, 0):
        pytest.skip("20_stream_k is made for sm_90a")
    variant = catalog.kernel("20_stream_k").variant(**request.param)
    monkeypatch.setattr(choose, "choose", lambda *shape, **where: variant)
    monkeypatch.setattr(gpus, "_gpus", {})


# Shares of two tiles, of B copied and by boxes; shares and whole tiles; a tile for all; one block.
STREAM_K_SHAPES = [
    (300, 1025, 3000),
    (300, 1028, 3000),
    (1500, 1540, 200),
    (1025, 1025, 1025),
    (128, 256, 20000),
    (64, 64, 64),
]


def products(gpu: Context, stream: Stream) -> tuple[list[Ours], list[np.ndarray]]:
    """Operands whose tiles are shared in different ways, and what one call after the other makes of them."""
    sets = [Ours(gpu, stream, Gemm(M=m, N=n, K=k)) for m, n, k in STREAM_K_SHAPES]
    for mine in sets:
        call(mine, stream)
    results = [mine.result() for mine in sets]
    for mine, result in zip(sets, results, strict=True):
        verdict = compare(result, mine.problem.reference(mine.host), mine.host["C"])
        assert verdict.ok, str(verdict)
    return sets, results


def call(mine: Ours, stream: Stream) -> None:
    harness.matmul(*(mine.view(name) for name in "ABC"), stream=stream)


def test_streams_at_once_with_workspaces(gpu: Context, stream_k: None) -> None:
    """Launches of two streams overlap; through one workspace they would add up each other's sums."""
    with gpu.current(), Stream(gpu) as one, Stream(gpu) as other:
        mine, expected = products(gpu, one)
        theirs, _ = products(gpu, other)
        for _ in range(50):
            for left, right in zip(mine, reversed(theirs), strict=True):
                left.buffers["C"].fill_u32(0x7FC00000, one)
                right.buffers["C"].fill_u32(0x7FC00000, other)
                call(left, one), call(right, other)
            for sets in (mine, theirs):
                for got, wanted in zip(sets, expected, strict=True):
                    assert np.array_equal(got.result(), wanted)


def test_parts_beside_each_other_in_streams_and_graphs(gpu: Context) -> None:
    """Launches on a side stream end before what follows in theirs: the same bits, 200 times, replayed
    in another stream too.
    """
    problem = Gemm(M=1025, N=2049, K=512)
    device = gpu.device
    made = divided(1025, 2049, 512, gpu=device.name, **cost.card(device))
    if device.capability == (9, 0):
        assert len(made) == 3
    with gpu.current(), Stream(gpu) as one, Stream(gpu) as other:
        mine, theirs = Ours(gpu, one, problem), Ours(gpu, other, problem)
        call(mine, one)
        expected = mine.result()
        assert compare(expected, problem.reference(mine.host), mine.host["C"]).ok
        for _ in range(200):
            for sets, stream in ((mine, one), (theirs, other)):
                sets.buffers["C"].fill_u32(0x7FC00000, stream)
                call(sets, stream)
            assert np.array_equal(mine.result(), expected) and np.array_equal(theirs.result(), expected)
        with Graph(one, lambda queue: call(mine, queue)) as graph:
            for _ in range(50):
                mine.buffers["C"].fill_u32(0x7FC00000, one)
                one.synchronize()
                graph(other)
                call(theirs, one)
                other.synchronize()
                assert np.array_equal(mine.result(), expected)


def test_a_graph_replayed_elsewhere_while_calls_run(gpu: Context, stream_k: None) -> None:
    """The graph was captured in the stream of the calls, and has memory of its own all the same."""
    with gpu.current(), Stream(gpu) as stream, Stream(gpu) as elsewhere:
        captured, expected = products(gpu, stream)
        ordinary, _ = products(gpu, stream)

        def enqueue(queue: Stream) -> None:
            for mine in captured:
                call(mine, queue)

        with Graph(stream, enqueue) as graph:
            for _ in range(50):
                for mine in (*captured, *ordinary):
                    mine.buffers["C"].fill_u32(0x7FC00000, stream)
                stream.synchronize()
                graph(elsewhere)
                for mine in ordinary:
                    call(mine, stream)
                graph(elsewhere)
                elsewhere.synchronize()
                for sets in (captured, ordinary):
                    for got, wanted in zip(sets, expected, strict=True):
                        assert np.array_equal(got.result(), wanted)


# PyTorch


@pytest.fixture
def torch() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def close(torch: Any, found: Any, a: Any, b: Any) -> None:
    expected = a.double() @ b.double()
    bound = 4 * (a.shape[1] + 3) ** 0.5 * 2**-24 * (a.double().abs() @ b.double().abs()) + 1e-30
    assert found.dtype is torch.float32 and bool(((found.double() - expected).abs() <= bound).all())


def test_torch(torch: Any) -> None:
    big = torch.randn(300, 700, device="cuda")
    a, b = big[:, 5:205], torch.randn(200, 130, device="cuda")
    assert a.stride(0) == 700
    out = harness.matmul(a, b)
    assert type(out) is torch.Tensor and out.device == a.device
    close(torch, out, a, b)
    whole = torch.full((300, 200), 7.0, device="cuda")
    assert harness.matmul(a, b, whole[:, :130]) is not None
    close(torch, whole[:, :130], a, b)
    assert bool((whole[:, 130:] == 7).all())
    close(torch, harness.matmul(b.t(), a.t()), b.t(), a.t())
    with pytest.raises(UsageError, match="one of them must be 1"):
        harness.matmul(torch.ones(6, 8, device="cuda")[::2, ::2], b)
    with pytest.raises(UsageError, match="requires gradients"):
        harness.matmul(a.clone().requires_grad_(), b)
    with pytest.raises(UsageError, match="on cpu"):
        harness.matmul(a.cpu(), b)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_torch_types(torch: Any, kind: str, precision: str) -> None:
    """Within what the type's rounding costs, and no further from float64 than torch.mm itself is."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("tensor-core kernels of sm_90a")
    dtype = getattr(torch, kind)
    if precision == "tf32" and kind != "float32":
        a = torch.ones(8, 8, device="cuda", dtype=dtype)
        with pytest.raises(UsageError, match="is about float32"):
            harness.matmul(a, a, precision=precision)
        return
    unit = {"float32": 2**-24, "bfloat16": 2**-8, "float16": 2**-11}[kind]
    for m, n, k, left in [(300, 130, 200, 8), (300, 130, 200, 5), (513, 257, 1025, 0), (1, 7, 3, 1)]:
        big = torch.randn(m, k + 8, device="cuda").to(dtype)
        a, b = big[:, left : left + k], torch.randn(k, n, device="cuda").to(dtype)
        out = harness.matmul(a, b, precision=precision)
        assert out.dtype is dtype
        expected, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        tensor_cores = kind != "float32" or precision == "tf32"
        summing = 4 * (k + 3) ** 0.5 * (2**-23 if tensor_cores else 2**-24) * size
        reading = (2**-10 + 2**-22) * size if precision == "tf32" else 0
        bound = summing + reading + unit * (expected.abs() + summing) + 1e-6
        assert bool(((out.double() - expected).abs() <= bound).all()), (m, n, k, left)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("of_out", ["N", "T"])
@pytest.mark.parametrize("precision", ["ieee", "tf32", "3xtf32", "fp16x3", "bf16x6", "bfloat16", "float16"])
def test_every_layout(torch: Any, precision: str, of_out: str, layout: str) -> None:
    """Row- and column-major operands and outputs, aligned, padded and odd, small and with shared tiles."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("tensor-core kernels of sm_90a")
    kind = precision if "float" in precision else "float32"
    how = "ieee" if "float" in precision else precision
    unit = {"bfloat16": 2**-8, "float16": 2**-11, "tf32": 2**-10}.get(precision, 2**-20)

    def made(flag: str, rows: int, columns: int, extra: int) -> Any:
        shape = (columns, rows + extra) if flag == "T" else (rows, columns + extra)
        whole = torch.randn(shape, device="cuda").to(getattr(torch, kind))
        return whole[:, :rows].t() if flag == "T" else whole[:, :columns]

    for m, n, k, extra in [(256, 384, 512, 0), (130, 264, 200, 8), (97, 131, 75, 3), (7, 300, 1000, 0),
                           (512, 64, 6000, 0), (2049, 2047, 72, 1)]:  # fmt: skip
        a, b, out = made(layout[0], m, k, extra), made(layout[1], k, n, extra), made(of_out, m, n, extra)
        harness.matmul(a, b, out, precision=how)
        exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        worst = float(((out.double() - exact).abs() / (size / k**0.5 + exact.abs() + 1e-9)).max())
        assert worst < 8 * unit, (m, n, k, extra, worst)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(2049, 2047, 2049), (600, 513, 2001), (300, 1111, 8001)], ids=str)
def test_torch_copied_operands(
    torch: Any, shape: tuple[int, int, int], kind: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bitwise the product of aligned operands, of those that the kernel loads itself, and a graph's."""
    if torch.cuda.get_device_capability()[0] != 9 or (kind != "float32" and precision == "tf32"):
        pytest.skip("tensor-core kernels of sm_90a")
    about = choose.about  # one kernel for any pitch
    monkeypatch.setattr(choose, "about", lambda *given: {**about(*given), "pitches": ALIGNED})
    monkeypatch.setattr(gpus, "_gpus", {})
    (m, n, k), dtype = shape, getattr(torch, kind)
    a = torch.zeros(m, k + 15, device="cuda", dtype=dtype)[:, : k + 15 - (k + 15) % 8]
    a = a.contiguous()[:, :k].normal_()
    b = torch.zeros(k, n + 15 - (n + 15) % 8, device="cuda", dtype=dtype)[:, :n].normal_()
    expected = harness.matmul(a, b, precision=precision)
    odd = torch.zeros(m * k + k * n + 1, device="cuda", dtype=dtype)  # rows and addresses without maps
    x, y = odd[1 : 1 + m * k].view(m, k), odd[1 + m * k :].view(k, n)
    x.copy_(a), y.copy_(b)
    out = harness.matmul(x, y, precision=precision)
    assert torch.equal(out, expected)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        harness.matmul(x, y, out, precision=precision)
    out.zero_()
    graph.replay()
    harness.matmul(x, y, precision=precision)
    assert torch.equal(out, expected)

    monkeypatch.setattr(traffic, "copied", lambda *given, **where: "")
    monkeypatch.setattr(gpus, "_gpus", {})
    assert torch.equal(harness.matmul(x, y, precision=precision), expected)


@pytest.mark.parametrize("precision", ["bf16x6", "fp16x3", "3xtf32"])
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_infinities_come_out_as_in_float32(torch: Any, precision: str, layout: str) -> None:
    """A product is large enough for a kernel that splits floats; sums that are NaN are computed again."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("panels are for sm_90")
    a, b = torch.randn(2050, 1000, device="cuda"), torch.randn(1000, 2047, device="cuda")
    a[5, 3], a[7, 1], a[7, 2], b[4, 60], a[1031, 9] = math.inf, math.inf, -math.inf, -math.inf, math.nan
    if layout == "TT":
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    card = cost.card(Device.open(torch.cuda.current_device()))
    chosen = harness.choose(2050, 2047, 1000, **card, dtype=precision, layout=layout)
    assert chosen.kernel.dtype != "fp32"  # 3xtf32 may be bf16x6, which splits floats, too
    found, exact = harness.matmul(a, b, precision=precision).double(), a.double() @ b.double()
    finite = torch.isfinite(exact)
    assert torch.equal(torch.nan_to_num(found[~finite], 7.0), torch.nan_to_num(exact[~finite], 7.0))
    assert float((found - exact)[finite].abs().max()) < 1e-3


def equal_each_time(torch: Any, queue: Callable[[], None], outs: list[Any], alone: list[Any]) -> None:
    """Compare the results of calls, and of a graph of them, with those of each alone, bit for bit."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        queue()
    for run in (queue, graph.replay) * 3:
        for out in outs:
            out.fill_(float("nan"))
        run()
        assert all(torch.equal(out, one) for out, one in zip(outs, alone, strict=True))


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
@pytest.mark.parametrize("shape", [(100, 300, 200), (1100, 900, 500)], ids=str)
def test_transposed_copies_in_a_row(torch: Any, shape: tuple[int, int, int], precision: str) -> None:
    """Queued without a pause, each waits for the product that reads the copy before, in the same memory."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("copies begin early on sm_90")
    m, n, k = shape
    pairs = [(torch.randn(k, m, device="cuda").t(), torch.randn(k, n, device="cuda")) for _ in range(20)] + [
        (torch.randn(k, m, device="cuda").t(), torch.randn(n, k, device="cuda").t()) for _ in range(20)
    ]
    alone = []
    for a, b in pairs:
        alone.append(harness.matmul(a, b, precision=precision))
        torch.cuda.synchronize()
        exact = a.double() @ b.double()
        assert float((alone[-1].double() - exact).abs().max()) < 0.01 * k**0.5
    outs = [torch.empty_like(one) for one in alone]

    def queue() -> None:
        for (a, b), out in zip(pairs, outs, strict=True):
            harness.matmul(a, b, out, precision=precision)

    equal_each_time(torch, queue, outs, alone)


def test_torch_streams(torch: Any) -> None:
    """Work queued before on either stream is waited for; afterwards the current stream has the result."""
    side = torch.cuda.Stream()
    b = torch.eye(2048, device="cuda")
    for _ in range(5):
        a = torch.zeros(2048, 2048, device="cuda")
        torch.cuda._sleep(20_000_000)  # cycles
        a += 3
        out = harness.matmul(a, b, stream=side)
        total = out.sum()  # on the current stream
        assert total.item() == 3 * 2048 * 2048
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        a = torch.full((2048, 2048), 2.0, device="cuda")
        assert harness.matmul(a, b).sum().item() == 2 * 2048 * 2048


def test_torch_in_a_graph(torch: Any) -> None:
    a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    out = harness.matmul(a, b)  # compiles and loads before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        harness.matmul(a, b, out)
    a.normal_()
    graph.replay()
    close(torch, out, a, b)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(64, (4096, 6144)), (9824, (96, 96)), (32, (9984, 2752)), (512, (512, 512))],
    ids=str,
)
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_products_that_read_the_result_before(
    torch: Any, kind: str, rows: int, sizes: tuple[int, int]
) -> None:
    """Queued without a pause, with next launches that begin early (few and small) or late (the others)."""
    precision = "ieee" if kind == "bfloat16" else "tf32"
    made = {"device": "cuda", "dtype": getattr(torch, kind)}
    a, b = sizes
    weights = [
        torch.randn(*(sizes if i % 2 == 0 else (b, a)), **made) * (a, b)[i % 2] ** -0.5 for i in range(12)
    ]
    first = torch.randn(rows, a, **made)
    outs = [torch.empty(rows, w.shape[1], **made) for w in weights]

    def queue(pause: bool = False) -> None:
        for x, w, out in zip([first, *outs], weights, outs, strict=False):
            harness.matmul(x, w, out, precision=precision)
            if pause:
                torch.cuda.synchronize()

    queue(pause=True)
    alone = [out.clone() for out in outs]
    for x, w, out in zip([first, *alone], weights, alone, strict=False):
        exact = x.double() @ w.double()
        assert float((out.double() - exact).abs().max()) < 0.05 * float(exact.abs().max())
    equal_each_time(torch, queue, outs, alone)


# CuPy


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    rng = cupy.random.default_rng(1)
    big = rng.standard_normal((300, 700), dtype=cupy.float32)
    a, b = big[:, 5:205], rng.standard_normal((200, 130), dtype=cupy.float32)
    out = harness.matmul(a, b)
    expected = a.astype("f8") @ b.astype("f8")
    assert isinstance(out, cupy.ndarray) and float(abs(out - expected).max()) < 1e-3
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x = a + 1
        assert float(abs(harness.matmul(x, b) - x.astype("f8") @ b.astype("f8")).max()) < 1e-3
    harness.matmul(a, b, out, stream=stream)
    assert float(abs(out - expected).max()) < 1e-3
    assert float(abs(harness.matmul(b.T, a.T) - expected.T).max()) < 1e-3
    with pytest.raises(UsageError, match="out overlaps a"):
        harness.matmul(big[:200, :200], b[:, :130], big[:200, :130])
