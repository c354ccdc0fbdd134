"""PyTorch's operators and `replace` on a real GPU: right results, of the kernels that they should run on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

SHAPES = [(300, 200, 130), (4, 1000, 513), (1, 1, 7), (512, 768, 2048), (0, 3, 4), (3, 4, 0)]


def tolerance(torch: Any, dtype: Any, k: int) -> float:
    """Return the error of an element of normal data, as a part of the root of its K."""
    return (
        {torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype] * 8 * max(k, 1) ** 0.5
    )


def close(torch: Any, found: Any, wanted: Any, k: int, coarse: float = 1) -> None:
    worst = (found.double() - wanted.double()).abs().max().item() if found.numel() else 0
    assert found.shape == wanted.shape and worst <= coarse * tolerance(torch, found.dtype, k)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["mm", "linear", "addmm"])
def test_operators_and_their_gradients(torch: Any, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    from harness import torch as ours

    m, n, k = shape
    options = {"device": "cuda", "dtype": getattr(torch, dtype)}
    x, w, bias = (torch.randn(s, requires_grad=True, **options) for s in ((m, k), (n, k), n))
    grad = torch.randn(m, n, **options)
    asked = (x, w) if name == "mm" else (x, w, bias)
    exact = [t.detach().double().requires_grad_() for t in asked]
    if name == "mm":
        out, wanted = ours.mm(x, w.t()), exact[0] @ exact[1].t()
    elif name == "linear":
        out, wanted = ours.linear(*asked), exact[0] @ exact[1].t() + exact[2]
    else:
        out = ours.addmm(bias, x, w.t(), beta=0.5, alpha=2)
        wanted = 2 * (exact[0] @ exact[1].t()) + 0.5 * exact[2]
    close(torch, out, wanted, k, 2)
    found = torch.autograd.grad(out, asked, grad)
    known = torch.autograd.grad(wanted, exact, grad.double())
    for one, other in zip(found, known, strict=True):
        close(torch, one, other, max(m, n), 4)


def test_batches(torch: Any) -> None:
    from harness import torch as ours

    a, b = torch.randn(3, 65, 100, device="cuda"), torch.randn(3, 90, 100, device="cuda")
    bias = torch.randn(90, device="cuda")
    exact = a.double() @ b.double().mT
    close(torch, ours.bmm(a, b.mT), exact, 100)
    close(torch, ours.baddbmm(bias, a, b.mT, beta=2), exact + 2 * bias, 100)
    close(torch, ours.bmm(a[:1].expand(3, 65, 100), b.mT), a[:1].double() @ b.double().mT, 100)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_a_batch_is_one_launch(torch: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `bmm`, by `baddbmm` with a bias, by their gradients, and within `replace` by `@` of 4-D operands."""
    from harness import torch as ours
    from harness.driver.launch import PreparedLaunch

    count, launch = [0], PreparedLaunch.__call__

    def counted(self: Any, *args: Any) -> None:
        count[0] += 1
        launch(self, *args)

    def launches() -> int:
        found, count[0] = count[0], 0
        return found

    monkeypatch.setattr(PreparedLaunch, "__call__", counted)
    options = {"device": "cuda", "dtype": getattr(torch, kind)}
    shapes = (12, 65, 100), (12, 100, 90), (90,)
    a, b, bias = (torch.randn(s, requires_grad=True, **options) for s in shapes)
    exact = a.double() @ b.double()
    found = ours.bmm(a, b)
    assert launches() == 1
    close(torch, found, exact, 100, 2)
    found = ours.baddbmm(bias, a, b)
    assert launches() == 1
    close(torch, found, exact + bias.double(), 100, 2)
    grad = torch.randn_like(found)
    gradients = torch.autograd.grad(found, (a, b), grad)
    assert launches() == 2
    for one, wanted in zip(gradients, torch.autograd.grad(exact, (a, b), grad.double()), strict=True):
        close(torch, one, wanted, 100, 4)
    x, y = a.detach().view(3, 4, 65, 100), b.detach().view(3, 4, 100, 90)
    with ours.replace(worth=everything):
        found = x @ y
    assert launches() == 1 and [c.why for c in ours.report().records] == [""]
    close(torch, found, exact.view(3, 4, 65, 90), 100, 2)


def test_what_pytorch_checks_of_the_operators(torch: Any) -> None:
    import harness.torch  # noqa: F401  (registers them)

    a, b = (torch.randn(s, device="cuda", requires_grad=True) for s in ((64, 32), (48, 32)))
    operators = torch.ops.harness
    torch.library.opcheck(operators.mm.default, (a, b.detach().t().requires_grad_()))
    torch.library.opcheck(operators.linear.default, (a, b, torch.randn(48, device="cuda")))


def everything(*product: Any, **more: Any) -> bool:
    """Give harness all it takes, operands that it copies too."""
    return True


def model(torch: Any, dtype: Any) -> tuple[Any, Any]:
    """Return a small network and its input, the same at each call."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 130)]
    network = torch.nn.Sequential(*layers).to("cuda", dtype)
    return network, torch.randn(8, 96, 256, device="cuda", dtype=dtype)


def step(torch: Any, network: Any, x: Any) -> list[Any]:
    """Return the loss of a training step and its gradients, which are removed."""
    loss = network(x).float().square().mean()
    loss.backward()
    found = [loss.detach(), *[p.grad for p in network.parameters()]]
    network.zero_grad(set_to_none=True)
    return found


def check_steps(torch: Any, found: list[Any], wanted: list[Any], part: float) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).float().norm() <= part * b.float().norm()


@pytest.mark.parametrize(
    ("dtype", "fp32", "part"),
    [
        ("float32", None, 1e-5),
        ("float32", "bf16x6", 1e-5),
        ("float32", "fp16x3", 1e-5),
        ("float32", "3xtf32", 1e-5),
        ("float32", "tf32", 5e-3),
        ("bfloat16", None, 3e-2),
    ],
)
def test_a_training_step(torch: Any, dtype: str, fp32: str | None, part: float) -> None:
    from harness.torch import replace, report

    network, x = model(torch, getattr(torch, dtype))
    wanted = step(torch, network, x)
    with replace(fp32=fp32, worth=everything):
        found = step(torch, network, x)
    check_steps(torch, found, wanted, part)
    kinds = {(c.op, c.layout) for c in report().records if not c.why}
    assert kinds == {("addmm", "NT"), ("mm", "NN"), ("mm", "TN")}, str(report())
    assert all(not c.why for c in report().records), str(report())  # the gradients ran in autograd's thread
    assert sum(c.calls for c in report().records) == 5


@pytest.fixture
def environment() -> Iterator[None]:
    """Triton sets variables of its own."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.mark.usefixtures("environment")
def test_compiled_code(torch: Any) -> None:
    """Inductor leaves products to PyTorch's kernels with ``out=``, which are ours within a block."""
    from harness.torch import replace, report

    network, x = model(torch, torch.float32)
    wanted = step(torch, network, x)
    compiled = torch.compile(network, fullgraph=True)
    step(torch, compiled, x)
    with replace(worth=everything):
        found = step(torch, compiled, x)
    check_steps(torch, found, wanted, 1e-5)
    assert sum(c.calls for c in report().records if not c.why) == 5, str(report())


def test_autocast(torch: Any) -> None:
    from harness.torch import replace, report

    network, x = model(torch, torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        wanted = step(torch, network, x)
        with replace(worth=everything):
            found = step(torch, network, x)
    check_steps(torch, found, wanted, 3e-2)
    assert {c.dtype for c in report().records} == {"bf16"}


def test_a_graph_keeps_what_it_captured(torch: Any) -> None:
    from harness.torch import replace, report

    network, x = model(torch, torch.float32)
    with torch.no_grad(), replace(worth=everything):
        network(x)  # compiles and loads
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = network(x)
    assert sum(c.calls for c in report().records) == 4
    x.normal_()
    graph.replay()
    with torch.no_grad():
        close(torch, y, network(x), 1024)


def test_pytorch_computes_what_is_not_ours(torch: Any) -> None:
    from harness.torch import replace, report

    a, b = torch.randn(96, 80, device="cuda"), torch.randn(80, 64, device="cuda")
    with replace():
        assert torch.equal(a.double() @ b.double(), (a.double() @ b.double()))
        close(torch, a[:, ::2] @ b[::2], a[:, ::2].double() @ b[::2].double(), 40)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(a, a)
        with pytest.raises(RuntimeError, match="same device"):
            torch.mm(a, b.cpu())
    assert all(c.why for c in report().records)


def test_other_streams_and_threads(torch: Any) -> None:
    from harness.torch import replace

    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    wanted = a.double() @ b.double()
    with replace(worth=everything), torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        torch.cuda._sleep(20_000_000)
        x = a * 1
        found = x @ b.t().contiguous().t()
        close(torch, found, wanted, 512)


def test_what_stays_pytorchs_is_asked_once(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next calls go to PyTorch's kernel without Python; with TF32 allowed it is another product."""
    from harness.torch import known, replace, replacement, report

    table, why = known.loaded()
    if table is None:
        pytest.skip(why)
    asked, ours = [0], replacement._Replaced._either

    def counted(*args: Any) -> Any:
        asked[0] += 1
        return ours(*args)

    monkeypatch.setattr(replacement._Replaced, "_either", counted)
    a, bias = torch.randn(16, 16, device="cuda"), torch.randn(16, device="cuda")
    before, wanted = torch.get_float32_matmul_precision(), torch.addmm(bias, a, a)
    try:
        with replace(worth=lambda *product, **more: False):
            for setting in ("highest", "high", "highest"):
                torch.set_float32_matmul_precision(setting)
                for _ in range(5):
                    found = torch.addmm(bias, a, a)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(found, wanted) and asked == [2]
    assert sorted((c.dtype, c.calls) for c in report().records) == [("fp32", 10), ("tf32", 5)]


def test_what_is_worth_it_by_itself(torch: Any) -> None:
    """A product of row-major matrices needs no copy on any GPU; the rule looks the kernel up."""
    from harness.torch import known, replace, report
    from harness.torch.rule import preferred

    a, brief = torch.randn(2048, 2048, device="cuda"), torch.randn(512, 512, device="cuda")
    with replace():
        a @ a
        brief @ brief
        torch.bmm(a.view(64, 256, 256), a.view(64, 256, 256))
    found = sorted((c.op, c.why) for c in report().records)
    slow = known.loaded()[0] is None  # then Python queues ours, which is worth it for long ones only
    assert found == [("bmm", "not worth it"), ("mm", ""), ("mm", "not worth it" if slow else "")]
    assert preferred(2048, 2048, 2048, "fp32", "NN")


@pytest.mark.alone
def test_products_are_timed_beside_pytorchs(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three products take three times as long as one, and what is faster is what runs."""
    from harness.torch import replace, report, timed

    a, b, bias = (torch.randn(*s, device="cuda").bfloat16() for s in ((512, 1024), (1024, 2048), (2048,)))
    one, three = timed.seconds(
        (None, a, b), [lambda _, x, y: x @ y, lambda _, x, y: [x @ y for _ in range(3)]]
    )
    assert 2 < three / one < 4
    before = a.clone(), b.clone()
    wanted = torch.addmm(bias, a, b)
    found = {}
    for seconds in (None, (1.0, 2.0), (2.0, 1.0)):
        with monkeypatch.context() as patched:
            patched.setattr(timed, "_known", {})
            if seconds is not None:
                patched.setattr(timed, "seconds", lambda *given, seconds=seconds: seconds)
            with replace(measure=True):
                result = torch.addmm(bias, a, b)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    captured = torch.addmm(bias, a, b)
                graph.replay()
                assert torch.equal(captured, result)
        assert torch.allclose(result, wanted, atol=0.5, rtol=0.02)
        found[seconds] = {call.why for call in report().records}
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])
    assert found[1.0, 2.0] == {""} and found[2.0, 1.0] == {"PyTorch's was faster"}
    assert found[None] in ({""}, {"PyTorch's was faster"})


def test_nothing_is_timed_while_a_stream_is_captured(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.torch import replace, report, timed

    monkeypatch.setattr(timed, "_known", {})
    a, b = (torch.randn(300, 300, device="cuda") for _ in range(2))
    with replace():
        wanted = a @ b  # loads the code
    with replace(measure=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = a @ b
        graph.replay()
    assert torch.equal(found, wanted) and timed._known == {}
    assert [call.why for call in report().records] == [""]
