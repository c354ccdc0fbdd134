"""The operators of PyTorch without a GPU: results, refusals, gradients, modes of PyTorch, compilation."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from harness.errors import MissingDependency, UsageError
from harness.kernels.epilogue import ACTIVATIONS


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("harness.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("harness.torch", "harness.torch_ops"):
        with pytest.raises(MissingDependency, match="PyTorch cannot be imported"):
            importlib.import_module(name)


def test_the_old_module_is_the_package(torch: Any) -> None:
    import harness
    import harness.torch
    from harness import torch_ops

    assert torch_ops is harness.torch is harness.torch_ops
    assert torch_ops.matmul is torch.ops.harness.matmul.default


def expected(torch: Any, name: str, *args: Any, **options: Any) -> Any:
    """Return what PyTorch computes, in float64, rounded once."""
    function = torch.nn.functional.linear if name == "linear" else getattr(torch, name)
    exact = function(*[x.double() for x in args], **options)
    return exact.to(args[0].dtype)


def operands(torch: Any, name: str, dtype: Any = None) -> list[Any]:
    """Return operands of an operator, with ragged sizes."""
    shapes = {
        "mm": [(5, 3), (3, 7)],
        "matmul": [(5, 3), (3, 7)],
        "addmm": [(5, 7), (5, 3), (3, 7)],
        "linear": [(2, 5, 3), (7, 3), (7,)],
        "bmm": [(2, 5, 3), (2, 3, 7)],
        "baddbmm": [(2, 5, 7), (2, 5, 3), (2, 3, 7)],
    }
    return [torch.randn(shape, dtype=dtype or torch.float32) for shape in shapes[name]]


OPERATORS = ["mm", "matmul", "addmm", "linear", "bmm", "baddbmm"]


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("name", OPERATORS)
def test_results(torch: Any, multiplied: Any, name: str) -> None:
    from harness import torch as ours

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        args = operands(torch, name, dtype)
        found = getattr(ours, name)(*args)
        assert found.dtype is dtype and torch.equal(found, expected(torch, name, *args))
        assert torch.equal(getattr(torch.ops.harness, name)(*args), found)
    assert {precision for _, precision in multiplied.seen} == {"ieee"}
    getattr(ours, name)(*operands(torch, name), precision="3xtf32")
    assert multiplied.seen[-1][1] == "3xtf32"


def test_a_product_of_tensors_that_lie_alike_is_queued_again(torch: Any, multiplied: Any) -> None:
    """Not where one lies otherwise, a copy is needed, or the operator, type or precision is another."""
    from harness import torch as ours

    x, w, bias = operands(torch, "linear")
    forms: dict[str, Callable[[], tuple[str, list[Any], dict[str, Any]]]] = {
        "mm": lambda: ("mm", operands(torch, "mm"), {}),
        "of bf16": lambda: ("mm", operands(torch, "mm", torch.bfloat16), {}),
        "tf32": lambda: ("mm", operands(torch, "mm"), {"precision": "tf32"}),
        "transposed": lambda: ("mm", [torch.randn(3, 5).t(), torch.randn(7, 3).t()], {}),
        "linear": lambda: ("linear", [x.clone(), w.clone(), bias.clone()], {}),
        "no bias": lambda: ("linear", [x[0].clone(), w.clone()], {}),
        "addmm": lambda: ("addmm", [bias.clone(), *operands(torch, "mm")], {}),
        "addmm, alpha": lambda: ("addmm", [bias.clone(), *operands(torch, "mm")], {"alpha": 2}),
        "addmm, a row": lambda: ("addmm", [bias[None].expand(5, 7), *operands(torch, "mm")], {}),
        "addmm, beta": lambda: ("addmm", operands(torch, "addmm"), {"beta": 0}),
        "of squares": lambda: ("mm", [torch.randn(4, 4), torch.randn(4, 4)], {}),
        "linear, of squares": lambda: ("linear", [torch.randn(4, 4), torch.randn(4, 4)], {}),
        "a gradient": lambda: ("linear", [x.clone(), w.clone().requires_grad_()], {}),
    }
    for i, make in enumerate([*forms.values()] * 3):
        name, given, options = make()
        found = getattr(ours, name)(*given, **options)
        options.pop("precision", None)
        assert torch.equal(found.detach(), expected(torch, name, *given, **options).detach())
        assert multiplied.repeated == max(0, i + 1 - len(forms))
    first, second = multiplied.seen[: len(forms)], multiplied.seen[len(forms) : 2 * len(forms)]
    assert first == second
    before = multiplied.repeated
    for _ in range(2):
        for copied in (torch.randn(5, 6)[:, ::2], torch.randn(1, 3).expand(5, 3)):
            b = torch.randn(3, 7)
            assert torch.equal(ours.mm(copied, b), expected(torch, "mm", copied, b))
        across, step = torch.randn(5, 2, 3).transpose(0, 1), torch.randn(14)[::2]
        assert torch.equal(ours.linear(across, w, bias), expected(torch, "linear", across, w, bias))
        assert torch.equal(ours.linear(x, w, step), expected(torch, "linear", x, w, step))
        ours.addmm(torch.randn(5, 7), torch.randn(5, 3), torch.randn(3, 7))
        ours.addmm(bias, torch.randn(5, 3), torch.randn(3, 7), beta=2)
        ours.addmm(bias, torch.randn(5, 3), torch.randn(3, 7), alpha=0)
        ours.bmm(x, torch.randn(2, 3, 7))
        assert ours.mm(torch.randn(5, 0), torch.randn(0, 7)).count_nonzero() == 0
        for wrong in (
            lambda: ours.bmm(*operands(torch, "mm")),
            lambda: ours.mm(*operands(torch, "mm"), "fast"),
            lambda: ours.mm(torch.randn(5, 3).to_sparse(), torch.randn(3, 7)),
            lambda: ours.mm(torch.randn(5, 3), torch.randn(3, 7, dtype=torch.bfloat16)),
        ):
            with pytest.raises(UsageError):
                wrong()
    assert multiplied.repeated == before


def test_products_kept_are_bounded(torch: Any, multiplied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import torch as ours
    from harness.torch import standing

    monkeypatch.setattr(standing, "_MOST", 3)
    for m in range(1, 9):
        ours.mm(torch.randn(m, 3), torch.randn(3, 7))
        assert 1 <= len(standing._kept) <= 3


def test_major_orders_are_read_where_they_are(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    wide = torch.randn(12, 12)
    lefts = {"N": wide[:5, 2:6], "T": wide[2:6, :5].t()}
    rights = {"N": wide[7:11, :7], "T": wide[:7, 7:11].t()}
    for (i, a), (j, b) in itertools.product(lefts.items(), rights.items()):
        multiplied.seen.clear()
        assert torch.equal(ours.mm(a, b), expected(torch, "mm", a, b))
        assert multiplied.seen == [(f"5x7x4 {i}{j}N", "ieee")]
        batch = a.expand(3, *a.shape)  # the same matrix thrice
        ours.bmm(batch, b.expand(3, *b.shape))
        assert [call for call, _ in multiplied.seen[1:]] == [f"3 of 5x7x4 {i}{j}N"]


def test_other_strides_are_copied(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    wide, b = torch.randn(12, 12), torch.randn(4, 7)
    odd = [
        wide[:5, ::3],
        wide[::2, ::3][:5],
        wide[:1].expand(5, 12)[:, :4],
        wide[:1, ::3],
        wide[:, :1].t()[:, ::3],
    ]
    for a in odd:
        assert torch.equal(ours.mm(a, b), expected(torch, "mm", a, b))
        assert torch.equal(ours.mm(b.t(), a.t()), expected(torch, "mm", b.t(), a.t()))
    x = wide[:, :4].expand(2, 12, 4)
    assert torch.equal(ours.linear(x, b.t()), expected(torch, "linear", x, b.t()))


def test_the_kernel_of_these_tests_refuses_what_it_should(
    torch: Any, multiplied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the copy, a step in both directions reaches it."""
    from harness import torch as ours
    from harness.torch import products

    monkeypatch.setattr(products, "readable", lambda x: x)
    with pytest.raises(AssertionError, match="neither row- nor column-major"):
        ours.mm(torch.randn(5, 8)[:, ::2], torch.randn(4, 7))


def test_sums(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    a, b = torch.randn(5, 3), torch.randn(3, 7)
    for shape in [(5, 7), (7,), (1, 7), (5, 1), (), (1,)]:
        for scalars in ({}, {"beta": 0.5}, {"alpha": 2}, {"beta": -1, "alpha": 0.25}, {"beta": 0}):
            c = torch.randn(shape)
            assert torch.allclose(ours.addmm(c, a, b, **scalars), torch.addmm(c, a, b, **scalars), atol=1e-6)
            c, x, y = torch.randn((*shape,)), a.expand(2, 5, 3), b.expand(2, 3, 7)
            found, known = ours.baddbmm(c, x, y, **scalars), torch.baddbmm(c, x, y, **scalars)
            assert torch.allclose(found, known, atol=1e-6)
    nothing = torch.full((7,), torch.nan)
    assert not ours.addmm(nothing, a, b, beta=0).isnan().any()


def test_a_batch_is_one_call(torch: Any, multiplied: Any) -> None:
    """Its bias is the kernel's if it is the same for all rows of all matrices."""
    from harness import torch as ours

    a, b, row = torch.randn(4, 5, 3), torch.randn(4, 3, 7), torch.randn(7)
    vectors = [row, row[None], row[None, None], row.expand(4, 5, 7), row.expand(1, 5, 7), row.expand(5, 7)]
    others = [torch.randn(s) for s in ((4, 5, 7), (5, 7), (4, 1, 7), (5, 1), (4, 1, 1), ())]
    assert torch.equal(ours.bmm(a, b), expected(torch, "bmm", a, b))
    for c in (*vectors, *others, torch.randn(5, 7).expand(4, 5, 7)):
        found = ours.baddbmm(c, a, b)
        assert torch.allclose(found, expected(torch, "baddbmm", c, a, b), atol=1e-6)
    seen = [call for call, _ in multiplied.seen]
    assert seen == ["4 of 5x7x3 NNN", *["4 of 5x7x3 NNN bias"] * 6, *["4 of 5x7x3 NNN"] * 7]


def test_gradients_of_a_batch_are_a_call_each(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    c, a, b = (torch.randn(s, requires_grad=True) for s in ((7,), (4, 5, 3), (4, 3, 7)))
    ours.baddbmm(c, a, b).square().sum().backward()
    found = [x.grad.clone() for x in (c, a, b)]
    assert [call for call, _ in multiplied.seen] == [
        "4 of 5x7x3 NNN bias",
        "4 of 5x3x7 NTN",
        "4 of 3x7x5 TNN",
    ]
    for x in (c, a, b):
        x.grad = None
    torch.baddbmm(c, a, b).square().sum().backward()
    for x, y in zip(found, (c, a, b), strict=True):
        assert torch.allclose(x, y.grad, atol=1e-4)


def test_a_bias_is_rounded_once(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    x, w = torch.tensor([[256.0, 1.0]]).bfloat16(), torch.tensor([[1.0, 1.0]]).bfloat16()
    bias = torch.tensor([1.0]).bfloat16()
    assert ours.linear(x, w, bias).item() == 258  # 257 is rounded to 256, and 256 + 1 again
    assert (ours.linear(x, w) + bias).item() == 256


@pytest.mark.usefixtures("both")
def test_empty(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    e = torch.empty
    assert ours.mm(e(0, 3), e(3, 4)).shape == (0, 4)
    assert torch.equal(ours.mm(e(2, 0), e(0, 4)), torch.zeros(2, 4))
    assert torch.equal(ours.addmm(torch.ones(4), e(2, 0), e(0, 4), beta=3), torch.full((2, 4), 3.0))
    assert torch.equal(ours.linear(e(2, 5, 0), e(4, 0), torch.ones(4)), torch.ones(2, 5, 4))
    assert ours.linear(e(0, 5, 3), e(4, 3)).shape == (0, 5, 4)
    assert ours.bmm(e(0, 5, 3), e(0, 3, 4)).shape == (0, 5, 4)
    assert multiplied.seen == []
    x, w = e(0, 3, requires_grad=True), torch.ones(4, 3, requires_grad=True)
    ours.linear(x, w).sum().backward()
    assert x.grad is not None and torch.equal(w.grad, torch.zeros(4, 3))


def test_inputs_of_any_dimensions(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    w, bias = torch.randn(7, 3), torch.randn(7)
    for shape in [(3,), (5, 3), (2, 5, 3), (2, 1, 5, 3), (2, 0, 3)]:
        x = torch.randn(shape)
        known = torch.nn.functional.linear(x, w, bias)
        assert ours.linear(x, w, bias).shape == known.shape
        assert torch.allclose(ours.linear(x, w, bias), known, atol=1e-6)
        multiplied.seen.clear()
        ours.linear(x, w)
        assert all(call.endswith(" NTN") for call, _ in multiplied.seen)


# Refusals


@pytest.mark.usefixtures("both")
def test_refusals(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    a, b, x, y = torch.randn(5, 3), torch.randn(3, 7), torch.randn(2, 5, 3), torch.randn(2, 3, 7)
    wrong: dict[str, Callable[[], Any]] = {
        "a has 3 dimensions and b 2, not 2": lambda: ours.mm(x, b),
        "a has 3 dimensions and b 2, not 3": lambda: ours.bmm(x, b),
        "a has 2 dimensions and b 1, not 2": lambda: ours.addmm(b, a, b[0]),
        "a is of torch.float64": lambda: ours.mm(a.double(), b.double()),
        "a is of torch.int64": lambda: ours.mm(a.long(), b.long()),
        "a is of torch.float32, b of torch.bfloat16": lambda: ours.mm(a, b.bfloat16()),
        "input of torch.float16": lambda: ours.addmm(b[0].half(), a, b),
        "bias of torch.float16": lambda: ours.linear(a, b.t(), b[0].half()),
        "not strided": lambda: ours.mm(a.to_sparse(), b),
        "input has 2 dimensions, weight 1": lambda: ours.linear(a, b[:, 0]),
        "input has 0 dimensions": lambda: ours.linear(a[0, 0], b.t()),
        "no precision 'fast'": lambda: ours.mm(a, b, "fast"),
    }
    for message, call in wrong.items():
        with pytest.raises(UsageError, match=message):
            call()
    mismatched: dict[str, Callable[[], Any]] = {
        "do not match": lambda: ours.mm(a, a),
        r"a is \(2, 5, 3\), b is \(1, 3, 7\)": lambda: ours.bmm(x, y[:1]),
        "must match the size of": lambda: ours.addmm(torch.ones(6), a, b),
        "bias .6,.: they do not": lambda: ours.linear(a, b.t(), torch.ones(6)),
    }
    for message, call in mismatched.items():
        with pytest.raises(RuntimeError, match=message):
            call()


def test_tensors_of_the_cpu_are_refused(torch: Any) -> None:
    from harness import torch as ours

    for name in OPERATORS:
        for grad in (False, True):
            args = [x.requires_grad_(grad) for x in operands(torch, name)]
            with pytest.raises(UsageError, match="is on cpu, not on a GPU"):
                getattr(ours, name)(*args)


# Gradients


def results(torch: Any, function: Any, args: list[Any], grad: Any, **options: Any) -> list[Any]:
    """Return a function's gradients, and the gradients of their sum of squares: of second order."""
    wanted = [x for x in args if x.requires_grad]
    first = torch.autograd.grad(function(*args, **options), wanted, grad, create_graph=True)
    total = sum(g.square().sum() for g in first)
    return [*first, *torch.autograd.grad(total, [*wanted, grad], allow_unused=True)]


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_and_their_gradients(torch: Any, multiplied: Any, name: str) -> None:
    from harness import torch as ours

    count = len(operands(torch, name))
    for asked in itertools.product([False, True], repeat=count):
        if not any(asked):
            continue
        args = [x.requires_grad_(on) for x, on in zip(operands(torch, name), asked, strict=True)]
        known = torch.nn.functional.linear if name == "linear" else getattr(torch, name)
        grad = torch.randn(known(*args).shape, requires_grad=True)
        scalars = {"beta": 0.5, "alpha": -2} if "add" in name else {}
        pairs = zip(
            results(torch, getattr(ours, name), args, grad, **scalars),
            results(torch, known, args, grad, **scalars),
            strict=True,
        )
        for found, wanted in pairs:
            assert (found is None) == (wanted is None)
            assert found is None or torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)


def test_gradients_are_products_without_copies(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    x, w = torch.randn(5, 3, requires_grad=True), torch.randn(7, 3, requires_grad=True)
    ours.linear(x, w, None, "tf32").backward(torch.randn(5, 7))
    assert multiplied.seen == [("5x7x3 NTN", "tf32"), ("5x3x7 NNN", "tf32"), ("7x3x5 TNN", "tf32")]
    multiplied.seen.clear()
    a, b = torch.randn(5, 3, requires_grad=True), torch.randn(3, 7, requires_grad=True)
    ours.mm(a, b, "tf32").backward(torch.randn(5, 7))
    assert multiplied.seen == [("5x7x3 NNN", "tf32"), ("5x3x7 NTN", "tf32"), ("3x7x5 TNN", "tf32")]


def test_broadcast_biases_have_gradients(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    for shape in [(7,), (1, 7), (5, 1), ()]:
        bias = torch.randn(shape, requires_grad=True)
        ours.addmm(bias, torch.randn(5, 3), torch.randn(3, 7), beta=3).sum().backward()
        assert bias.grad.shape == shape and bias.grad.sum().item() == pytest.approx(3 * 35)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("name", OPERATORS)
def test_results_may_be_changed_in_place(torch: Any, multiplied: Any, name: str) -> None:
    """They are no views, of which autograd would not know what is changed."""
    from harness import torch as ours

    for grad in (True, False):
        args = [x.requires_grad_(grad) for x in operands(torch, name)]
        out = getattr(ours, name)(*args)
        assert not out._is_view()
        out.mul_(2)
        if grad:
            found = torch.autograd.grad(out.sum(), args)
            wanted = torch.autograd.grad(2 * getattr(ours, name)(*args).sum(), args)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.usefixtures("both")
def test_no_graph_where_none_is_wanted(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    a, b = torch.randn(5, 3, requires_grad=True), torch.randn(3, 7)
    assert ours.mm(a, b).requires_grad and not ours.mm(a.detach(), b).requires_grad
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            assert not ours.mm(a, b).requires_grad


# Modes


@pytest.mark.parametrize("name", OPERATORS)
def test_fake_tensors_have_the_shape(torch: Any, name: str) -> None:
    from torch._subclasses import FakeTensorMode

    import harness.torch  # noqa: F401  (registers them)

    def on_gpu(dtype: Any, grad: bool = False) -> list[Any]:
        cpu = operands(torch, name)
        return [torch.empty(x.shape, dtype=dtype, device="cuda", requires_grad=grad) for x in cpu]

    function = getattr(torch.ops.harness, name)
    shape = expected(torch, name, *operands(torch, name)).shape
    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16):
            for grad in {False, torch.backends.cuda.is_built()}:  # a build for the CPU aborts
                out = function(*on_gpu(dtype, grad))
                assert (out.shape, out.dtype, out.device.type) == (shape, dtype, "cuda")
                assert out.requires_grad is grad
        with pytest.raises(UsageError, match="on a GPU"):
            function(*operands(torch, name))
        with pytest.raises(UsageError, match=r"of torch\.float64"):
            function(*on_gpu(torch.float64))
    out = function(*[x.to("meta") for x in operands(torch, name)])
    assert (out.shape, out.device.type) == (shape, "meta")


@pytest.mark.usefixtures("both")
@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_what_pytorch_checks_of_an_operator(torch: Any, multiplied: Any, name: str) -> None:
    args = [x.requires_grad_() for x in operands(torch, name)]
    torch.library.opcheck(getattr(torch.ops.harness, name).default, args)


@pytest.mark.usefixtures("both")
def test_vmap(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    a, b = torch.randn(4, 5, 3), torch.randn(3, 7)
    assert torch.allclose(torch.vmap(lambda a: ours.mm(a, b))(a), a @ b, atol=1e-6)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_without_breaks(torch: Any, multiplied: Any, backend: str) -> None:
    from harness import torch as ours

    def step(x: Any, w: Any, bias: Any) -> Any:
        hidden = ours.linear(x, w, bias, "tf32").relu()
        y = ours.mm(hidden, w) + ours.addmm(bias[:3], hidden, w, beta=2)
        return ours.bmm(y.expand(2, *y.shape), w.t().expand(2, 3, 7)).sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=True)
    for rows in (5, 6, 9):
        args = [torch.randn(shape, requires_grad=True) for shape in ((rows, 3), (7, 3), (7,))]
        found = torch.autograd.grad(compiled(*args), args)
        wanted = torch.autograd.grad(step(*args), args)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))
    assert ("5x7x3 NTN bias", "tf32") in multiplied.seen


def test_a_bias_along_the_columns_is_the_kernels(torch: Any, multiplied: Any) -> None:
    """Other inputs of addmm are written to the result first."""
    from harness import torch as ours

    a, b, row = torch.randn(5, 3), torch.randn(3, 7), torch.randn(7)
    column, strided = torch.randn(5, 1), torch.randn(14)[::2]
    for input in (row, row[None], row.expand(5, 7), torch.randn(5, 7), column, strided, torch.randn(())):
        assert torch.equal(ours.addmm(input, a, b), expected(torch, "addmm", input, a, b))
        assert torch.equal(ours.addmm(input, a, b, beta=0.5), expected(torch, "addmm", input, a, b, beta=0.5))
    assert [" bias" in what for what, _ in multiplied.seen[::2]] == [True] * 3 + [False] * 4
    assert not any(" bias" in what for what, _ in multiplied.seen[1::2])
    w = torch.randn(7, 3)
    assert torch.equal(ours.linear(a, w, strided), expected(torch, "linear", a, w, strided))
    assert multiplied.seen[-1][0] == "5x7x3 NTN bias"


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_linear_with_an_activation(torch: Any, multiplied: Any, activation: str) -> None:
    """It is the kernel's, too; with gradients PyTorch applies it."""
    from harness import torch as ours

    function = {
        "relu": torch.nn.functional.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }[activation]
    args = operands(torch, "linear")
    exact = [x.double().requires_grad_() for x in args]
    wanted = function(torch.nn.functional.linear(*exact))
    assert torch.allclose(ours.linear(*args, activation=activation).double(), wanted, atol=1e-6)
    assert multiplied.seen == [(f"10x7x3 NTN bias {activation}", "ieee")]
    assert torch.allclose(
        ours.linear(*args[:2], activation=activation).double(),
        function(torch.nn.functional.linear(*exact[:2])),
        atol=1e-6,
    )

    found = [x.requires_grad_() for x in args]
    grad = torch.randn(2, 5, 7)
    made = ours.linear(*found, activation=activation)
    for mine, theirs in zip(
        torch.autograd.grad(made, found, grad), torch.autograd.grad(wanted, exact, grad.double()), strict=True
    ):
        assert torch.allclose(mine.double(), theirs, atol=1e-5)

    compiled = torch.compile(
        lambda *x: ours.linear(*x, activation=activation), backend="aot_eager", fullgraph=True
    )
    assert torch.allclose(compiled(*found), made)
    empty = torch.randn(5, 0), torch.randn(7, 0), args[2].detach()
    assert torch.allclose(
        ours.linear(*empty, activation=activation), function(empty[2]).expand(5, 7), atol=1e-6
    )


def test_no_such_activation(torch: Any, multiplied: Any) -> None:
    from harness import torch as ours

    for args in (operands(torch, "linear"), [x.to("meta") for x in operands(torch, "linear")]):
        with pytest.raises(UsageError, match="(?s)no activation 'tanh'.*relu, gelu, gelu_tanh, silu"):
            ours.linear(*args, activation="tanh")
    assert multiplied.seen == []


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("name", OPERATORS)
def test_autocast(torch: Any, multiplied: Any, name: str) -> None:
    args = [x.requires_grad_() for x in operands(torch, name)]
    args[-1] = args[-1].detach().half().requires_grad_()  # a mixture, as torch's own take it
    known = torch.nn.functional.linear if name == "linear" else getattr(torch, name)
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = getattr(torch.ops.harness, name)(*args, precision="tf32"), known(*args)
        with pytest.raises(UsageError, match=r"torch\.float64"):
            getattr(torch.ops.harness, name)(*operands(torch, name, torch.float64))
    assert found.dtype is wanted.dtype is torch.bfloat16
    assert torch.allclose(found.float(), wanted.float(), atol=0.05, rtol=0.02)
    assert {precision for _, precision in multiplied.seen} == {"ieee"}
    grads = torch.autograd.grad(found.sum(), args)
    assert [g.dtype for g in grads] == [x.dtype for x in args]
