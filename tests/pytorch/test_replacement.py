"""`replace` and `report` without a GPU: PyTorch's kernels for the CPU are the ones that are replaced."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import BuildError, DriverError, MissingDependency, OutOfMemory, UsageError
from shared.places import ROOT

H200 = {"sms": 132, "capability": (9, 0), "clock_hz": 1_980_000_000, "peak_bandwidth": 4.814e12}
A100 = {"sms": 108, "capability": (8, 0), "clock_hz": 1_410_000_000, "peak_bandwidth": 2.039e12}


def rows() -> list[tuple[Any, ...]]:
    """Return the report: operator, shape, layouts, type, calls and the reason, in any order."""
    from harness.torch import report

    return sorted((c.op, c.size, c.layout, c.dtype, c.calls, c.why) for c in report().records)


def test_everything_built_on_products(torch: Any, multiplied: Any, replace: Any) -> None:
    x, w, bias = torch.randn(2, 5, 3), torch.randn(7, 3), torch.randn(7)
    functions = {
        "mm": lambda: torch.mm(x[0], w.t()),
        "@": lambda: x @ w.t(),
        "linear": lambda: torch.nn.functional.linear(x, w, bias),
        "no bias": lambda: torch.nn.functional.linear(x, w),
        "addmm": lambda: torch.addmm(torch.ones(5, 7), x[0], w.t(), beta=2, alpha=-1),
        "einsum": lambda: torch.einsum("bij,kj->bik", x, w),
        "out": lambda: torch.mm(x[0], w.t(), out=torch.empty(5, 7)),
        "addmm, out": lambda: torch.addmm(bias, x[0], w.t(), out=torch.empty(5, 7)),
        "module": lambda: torch.nn.Linear(3, 7)(x),
        "transform": lambda: torch.func.grad(lambda w: (x @ w.t()).square().sum())(w),
    }
    for name, function in functions.items():
        torch.manual_seed(2)
        wanted = function()
        multiplied.seen.clear()
        with replace():
            torch.manual_seed(2)
            found = function()
        assert torch.allclose(found, wanted, atol=1e-5), name
        assert multiplied.seen, name
        multiplied.seen.clear()
        function()
        assert multiplied.seen == [], name


def test_the_report(torch: Any, multiplied: Any, replace: Any) -> None:
    from harness import torch as ours

    x, w, bias = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7)
    with replace():
        for _ in range(3):
            torch.nn.functional.linear(x, w, bias)
        x @ w.t()
        torch.bmm(x.expand(2, 5, 3), w.t().expand(2, 3, 7))
        x.double() @ w.t().double()
        x.bfloat16() @ torch.randn(3, 14).bfloat16()[:, ::2]
        torch.empty(0, 3) @ w.t()
    assert rows() == [
        ("addmm", "5x7x3", "NT", "fp32", 3, ""),
        ("bmm", "2 of 5x7x3", "NT", "fp32", 1, "not worth it"),
        ("mm", "0x7x3", "NT", "fp32", 1, "empty"),
        ("mm", "5x7x3", "", "float64", 1, "harness has no such type"),
        ("mm", "5x7x3", "N-", "bf16", 1, "an operand would be copied"),
        ("mm", "5x7x3", "NT", "fp32", 1, ""),
    ]
    text = str(ours.report())
    assert text.splitlines()[2].split() == ["addmm", "5x7x3", "NT", "fp32", "3", "harness"]
    assert text.endswith("50.0% of the multiply-adds by harness")
    assert max(map(len, text.splitlines())) <= 80
    with replace():
        assert str(ours.report()) == "no product was called within harness.torch.replace()"


def test_a_training_step(torch: Any, multiplied: Any, replace: Any) -> None:
    """Gradients are products of the same kinds, with no copy of a weight or of an activation."""

    def step() -> list[Any]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
        model(torch.randn(2, 6, 3)).square().mean().backward()
        return [p.grad for p in model.parameters()]

    wanted = step()
    with replace(fp32="bf16x6"):
        found = step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted, strict=True))
    assert {r[:4] for r in rows()} == {
        ("addmm", "12x8x3", "NT", "bf16x6"), ("addmm", "12x4x8", "NT", "bf16x6"),
        ("mm", "12x8x4", "NN", "bf16x6"), ("mm", "4x8x12", "TN", "bf16x6"), ("mm", "8x3x12", "TN", "bf16x6"),
    }  # fmt: skip
    assert all(not r[5] for r in rows())


def test_a_backward_pass_is_ours_where_it_runs(torch: Any, multiplied: Any, replace: Any) -> None:
    x, w = torch.randn(5, 3), torch.randn(3, 7, requires_grad=True)
    with replace():
        y = x @ w
    multiplied.seen.clear()
    y.square().sum().backward()
    assert multiplied.seen == []
    y = x @ w
    with replace():
        y.square().sum().backward()
    assert len(multiplied.seen) == 1


def test_out(torch: Any, multiplied: Any, replace: Any) -> None:
    a, b, c = torch.randn(5, 3), torch.randn(3, 7), torch.randn(5, 7)
    wanted, added = a @ b, torch.addmm(c, a, b)
    with replace():
        for out in (torch.empty(5, 7), torch.empty(7, 5).t(), torch.empty(5, 9)[:, 1:8]):
            assert torch.mm(a, b, out=out) is out and torch.allclose(out, wanted, atol=1e-6)
        assert len(multiplied.seen) == 3
        out = c.clone()
        torch.addmm(out, a, b, out=out)
        assert torch.allclose(out, added, atol=1e-6) and len(multiplied.seen) == 4
        stepped, resized = torch.empty(5, 14)[:, ::2], torch.empty(0)
        for out in (stepped, resized):
            assert torch.allclose(torch.mm(a, b, out=out), wanted, atol=1e-6)
        assert len(multiplied.seen) == 4
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(a, b, out=torch.empty(5, 7).half())


def test_out_that_is_an_operand_is_pytorchs(torch: Any, multiplied: Any, replace: Any) -> None:
    a, b = torch.eye(4), torch.randn(4, 4)
    with replace():
        torch.mm(a, b, out=a)
        torch.addmm(b, a, b, out=torch.empty(4, 4))
        torch.mm(a, b, out=torch.empty(4, 4))  # of the same shapes, and no overlap
    assert [(r[0], r[5]) for r in rows()] == [("addmm", ""), ("mm", ""), ("mm", "out overlaps an operand")]


def test_scalars_that_are_refused_are_of_their_call(torch: Any, multiplied: Any, replace: Any) -> None:
    x, w, c = torch.randn(5, 3), torch.randn(3, 7), torch.randn(5, 7)
    with replace(invariant=True):
        for scalars in ({"alpha": 2}, {"beta": 0.5}, {}, {"alpha": 2}):
            wanted = scalars.get("alpha", 1) * (x @ w) + scalars.get("beta", 1) * c
            assert torch.allclose(torch.addmm(c, x, w, **scalars), wanted, atol=1e-5)
    calls = {(r[4], r[5] == "") for r in rows() if r[0] == "addmm"}
    assert (1, True) in calls and sum(n for n, ours in calls if not ours) == 3


def test_wrong_products_have_pytorchs_own_words(torch: Any, multiplied: Any, replace: Any) -> None:
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    wrong = [
        lambda: torch.mm(a, a),
        lambda: torch.mm(a, b[0]),
        lambda: torch.mm(a[0], b),
        lambda: torch.mm(a, b.half()),
        lambda: torch.addmm(torch.ones(6), a, b),
        lambda: torch.bmm(a.expand(2, 5, 3), b.expand(3, 3, 7)),
        lambda: torch.bmm(a, b),
        lambda: torch.mm(torch.tensor(1.0), b),
    ]
    for call in wrong:
        with pytest.raises(RuntimeError) as plain:
            call()
        with replace(), pytest.raises(RuntimeError) as replaced:
            call()
        assert str(replaced.value) == str(plain.value)


def test_worth(torch: Any, multiplied: Any, replace: Any) -> None:
    asked = []

    def worth(*product: Any, **more: Any) -> bool:
        asked.append((*product, more))
        return bool(product[0] > 4)

    x, w = torch.randn(5, 3).bfloat16(), torch.randn(7, 3).bfloat16()
    with replace(worth=worth):
        for rows_ in (5, 4, 5):
            torch.nn.functional.linear(x[:rows_], w, torch.ones(7).bfloat16())
    alone = {"batch": 1, "bias": True}
    assert asked == [(5, 7, 3, "bf16", "NT", alone), (4, 7, 3, "bf16", "NT", alone)]
    assert [(r[1], r[4], r[5]) for r in rows()] == [("4x7x3", 1, "not worth it"), ("5x7x3", 2, "")]
    multiplied.seen.clear()
    with replace(worth=lambda *product, **more: True):
        torch.randn(2, 3, 4, 5) @ torch.randn(2, 3, 5, 7)  # of 4-D operands
        torch.baddbmm(torch.ones(7).bfloat16(), x.expand(2, 5, 3), w.t().expand(2, 3, 7))
    assert [(r[0], r[1], r[5]) for r in rows()] == [("baddbmm", "2 of 5x7x3", ""), ("bmm", "6 of 4x7x5", "")]
    assert [call for call, _ in multiplied.seen] == ["6 of 4x7x5 NNN", "2 of 5x7x3 NTN bias"]


@pytest.mark.parametrize(
    ("shape", "dtype", "layout", "wanted"),
    [
        ((8192, 8192, 2048), "bf16", "NN", True),
        ((4096, 3072, 768), "bf16", "NN", False),  # 30 us: the host is slower
        ((8192, 3072, 768), "bf16x6", "NT", True),  # copied, and yet faster than true float32
        ((1, 4096, 4096), "bf16x6", "NT", False),
        ((16, 16384, 16384), "bf16x6", "NT", True),  # by a kernel of true float32
    ],
)
def test_what_an_h200_is_given(
    torch: Any, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str, layout: str, wanted: bool
) -> None:
    from harness.torch import rule, worth

    gpu = SimpleNamespace(name="NVIDIA H200", **H200)
    monkeypatch.setattr(rule.Device, "open", lambda ordinal: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert worth(*shape, dtype, layout, batch=1, bias=False) is wanted


@pytest.mark.parametrize(
    ("batch", "shape", "dtype", "wanted"),
    [
        (512, (256, 256, 256), "fp32", False),  # no faster than PyTorch's
        (4096, (64, 64, 64), "fp32", False),
        (64, (64, 64, 64), "bf16", False),  # too short
        (96, (512, 64, 1024), "bf16", False),
        (96, (2048, 64, 2048), "bf16", True),
        (96, (2048, 2048, 64), "fp16", True),
        (96, (2048, 64, 2048), "tf32", False),
        (16000, (1, 128, 2048), "bf16", False),  # few rows
        (16000, (256, 256, 2), "bf16", False),  # and little k
        (32, (4096, 4096, 4096), "bf16", True),
        (4096, (64, 64, 64), "3xtf32", False),  # by a kernel of true float32
        (4096, (64, 64, 64), "bf16x6", False),
    ],
)
def test_batches_that_an_h200_is_given(
    torch: Any, monkeypatch: pytest.MonkeyPatch, batch: int, shape: tuple[int, ...], dtype: str, wanted: bool
) -> None:
    from harness.torch import rule, worth

    gpu = SimpleNamespace(name="NVIDIA H200", **H200)
    monkeypatch.setattr(rule.Device, "open", lambda ordinal: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert worth(*shape, dtype, "NN", batch=batch, bias=False) is wanted


def test_what_would_be_copied_is_not_worth_it(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an A100 the kernels for bf16 read row-major matrices only, and none is for fp16."""
    from harness.torch import rule, worth

    gpu = SimpleNamespace(name="NVIDIA A100", **A100)
    monkeypatch.setattr(rule.Device, "open", lambda ordinal: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    found = [worth(2048, 2048, 2048, "bf16", layout, batch=1, bias=False) for layout in ("NN", "NT", "TN")]
    assert found == [True, False, False]
    with pytest.raises(UsageError, match="no kernel for 2048x2048x2048 in fp16"):
        worth(2048, 2048, 2048, "fp16", "NN", batch=1, bias=False)


def test_a_layers_bias_is_the_kernels(torch: Any, multiplied: Any, replace: Any) -> None:
    """It is no pass of its own, unlike a bias that is scaled or lies elsewhere than along the columns."""
    x, w, bias = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7)
    layer = torch.nn.Linear(3, 7)
    with replace():
        torch.nn.functional.linear(x, w, bias)
        layer(torch.randn(2, 5, 3))
        torch.addmm(bias.expand(5, 7), x, w.t())
        torch.addmm(bias, x, w.t(), beta=2)
        torch.addmm(torch.ones(5, 1), x, w.t())
    seen = [what for what, _ in multiplied.seen]
    assert [" bias" in what for what in seen] == [True, True, True, False, False]


def test_invariant_rows(torch: Any, multiplied: Any, replace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products are ours, copied ones too, whatever a rule would say of their shape."""
    x, w, bias = torch.randn(6, 2, 3), torch.randn(7, 3), torch.randn(7)
    steps = torch.randn(5, 6)[:, ::2]
    with replace(invariant=True):
        for rows in (1, 2):
            found = torch.nn.functional.linear(x[:, :rows], w, bias)
            assert torch.allclose(found, x[:, :rows] @ w.t() + bias, atol=1e-5)
        assert torch.allclose(steps @ w.t(), steps.contiguous() @ w.t(), atol=1e-5)
        torch.bmm(x, torch.randn(6, 3, 4))
        torch.addmm(torch.ones(5, 7), steps, w.t(), alpha=2)  # kernels round that differently
    assert len(multiplied.seen) == 7 and all(" invariant" in what for what, _ in multiplied.seen)
    (left,) = [row for row in rows_of_pytorch() if row[0] == "addmm"]
    assert "round that differently" in left[-1]
    with (
        pytest.raises(UsageError, match="worth= and invariant"),
        replace(invariant=True, worth=lambda *product, **more: True),
    ):
        pass
    multiplied.seen.clear()
    with replace(worth=lambda *product, **more: True):
        torch.mm(x[0], w.t())
    assert multiplied.seen and " invariant" not in multiplied.seen[0][0]


def rows_of_pytorch() -> list[tuple[Any, ...]]:
    """Return the rows of the report that are PyTorch's."""
    return [row for row in rows() if row[-1]]


def test_no_kernel_for_this_gpu(
    torch: Any, multiplied: Any, replace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.torch import rule

    def preferred(*product: Any) -> bool:
        raise UsageError("no kernel for 5x7x3 in fp16 on sm_80")

    monkeypatch.setattr(rule, "preferred", preferred)
    with replace():
        torch.ones(5, 3).half() @ torch.ones(3, 7).half()
    assert rows() == [("mm", "5x7x3", "NN", "fp16", 1, "no kernel for 5x7x3 in fp16 on sm_80")]


@pytest.mark.parametrize("launches", [False, True])
def test_brief_products_are_for_a_table_that_launches(
    torch: Any, monkeypatch: pytest.MonkeyPatch, launches: bool
) -> None:
    """Python takes longer to queue one than PyTorch, C++ less."""
    from harness.torch import records, rule

    gpu, where = SimpleNamespace(name=""), {"sms": 132, "arch": "sm_90a"}
    monkeypatch.setattr(rule, "here", lambda layout: (gpu, {**where, "layout": layout}))
    monkeypatch.setattr(records.calls, "_table", SimpleNamespace(launches=launches))
    for dtype in ("fp32", "tf32", "bf16", "bf16x6"):
        assert rule.preferred(64, 64, 64, dtype, "NN") == launches
        assert rule.preferred(8192, 8192, 8192, dtype, "NN")
    assert rule.preferred(64, 64, 64, "bf16", "NT") == launches
    assert rule.preferred(4, 4096, 4096, "tf32", "NT") == launches
    assert not rule.preferred(1024, 768, 768, "tf32", "NT")


@pytest.mark.parametrize("error", [UsageError("no such kernel"), BuildError("no"), OutOfMemory("full")])
def test_what_harness_refuses_goes_to_pytorch(
    torch: Any, multiplied: Any, replace: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from harness.torch import products

    tries = []

    def refuse(*_: Any) -> None:
        tries.append(1)
        raise error

    monkeypatch.setattr(products, "product", refuse)
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    wanted = a @ b
    with replace():
        assert torch.equal(a @ b, wanted) and torch.equal(a @ b, wanted)
        assert torch.equal(torch.mm(a, b, out=torch.empty(5, 7)), wanted)
    assert len(tries) == 2  # once for each kind of call: a refusal is remembered
    assert [(r[4], r[5]) for r in rows()] == [(3, error.what)]


def test_a_broken_gpu_is_not_hidden(
    torch: Any, multiplied: Any, replace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.torch import products

    def fail(*_: Any) -> None:
        raise DriverError("an illegal address")

    monkeypatch.setattr(products, "product", fail)
    with pytest.raises(DriverError), replace():
        torch.ones(5, 3) @ torch.ones(3, 7)
    assert torch.equal(
        torch.ones(5, 3) @ torch.ones(3, 7), torch.full((5, 7), 3.0)
    )  # and the block has ended


def test_precisions(torch: Any, multiplied: Any, replace: Any) -> None:
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    before = torch.get_float32_matmul_precision()
    try:
        with replace():
            for setting in ("highest", "high"):
                torch.set_float32_matmul_precision(setting)
                a @ b
                a.bfloat16() @ b.bfloat16()
        with replace(fp32="3xtf32"):
            a @ b
            a.half() @ b.half()
    finally:
        torch.set_float32_matmul_precision(before)
    assert [precision for _, precision in multiplied.seen] == [
        "ieee",
        "ieee",
        "tf32",
        "ieee",
        "3xtf32",
        "ieee",
    ]
    with pytest.raises(UsageError, match="no precision 'fast'"), replace(fp32="fast"):
        pass
    with pytest.raises(UsageError, match="worth=0.5 is no function"), replace(worth=0.5):
        pass


def test_blocks_do_not_nest_and_end(torch: Any, multiplied: Any, replace: Any) -> None:
    with replace():
        with pytest.raises(UsageError, match="already replaced"), replace():
            pass
        torch.ones(5, 3) @ torch.ones(3, 7)
        assert len(multiplied.seen) == 1  # still ours
    with pytest.raises(KeyError), replace():
        raise KeyError
    with replace():
        torch.ones(5, 3) @ torch.ones(3, 7)
    assert len(multiplied.seen) == 2
    torch.ones(5, 3) @ torch.ones(3, 7)
    assert len(multiplied.seen) == 2


def test_pytorch_says_nothing_of_what_is_replaced(
    torch: Any, replace: Any, recwarn: pytest.WarningsRecorder
) -> None:
    with replace():
        pass
    assert [str(w.message) for w in recwarn] == []


def test_an_old_pytorch(torch: Any, replace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(MissingDependency, match="get_kernel"), replace():
        pass


def test_a_pytorch_without_cuda(torch: Any, replace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str, key: str) -> None:
        raise RuntimeError(f"no kernel for {key} for {name}")

    monkeypatch.setattr(torch.library, "get_kernel", none)
    with pytest.raises(MissingDependency, match="no kernel for CPU for aten::mm"), replace():
        pass


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code(torch: Any, multiplied: Any, replace: Any, backend: str) -> None:
    """It is compiled once and calls ours within a block, PyTorch's outside it."""
    compiles = []

    def count(graph: Any, inputs: Any) -> Any:
        from torch._dynamo import lookup_backend

        compiles.append(1)
        return lookup_backend(backend)(graph, inputs)

    def step(x: Any, w: Any) -> Any:
        return torch.nn.functional.linear(x, w).relu().sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, backend=count, fullgraph=True)
    x, w = torch.randn(5, 3), torch.randn(7, 3, requires_grad=True)
    wanted = torch.autograd.grad(step(x, w), w)[0]
    for inside in (True, False, True):
        multiplied.seen.clear()
        if inside:
            with replace():
                found = torch.autograd.grad(compiled(x, w), w)[0]
        else:
            found = torch.autograd.grad(compiled(x, w), w)[0]
        assert torch.allclose(found, wanted, atol=1e-6)
        assert len(multiplied.seen) == (2 if inside else 0)
    assert compiles == [1]


def test_autocast(torch: Any, multiplied: Any, replace: Any) -> None:
    model, x = torch.nn.Linear(3, 7), torch.randn(5, 3)
    with replace(fp32="tf32"), torch.autocast("cpu", torch.bfloat16):
        y = model(x)
        y.sum().backward()
    assert y.dtype is torch.bfloat16 and model.weight.grad.dtype is torch.float32
    assert {r[3] for r in rows()} == {"bf16"}


def test_threads(torch: Any, multiplied: Any, replace: Any) -> None:
    a, b, n = torch.randn(5, 3), torch.randn(3, 7), 200
    with replace():
        threads = [threading.Thread(target=lambda: [a @ b for _ in range(n)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert rows() == [("mm", "5x7x3", "NN", "fp32", 4 * n, "")]


def test_the_page_shows_the_report(torch: Any) -> None:
    from harness.torch.records import Call, Report

    shown = [
        Call("addmm", 8192, 3072, 768, 1, "NT", "bf16", "", 12),
        Call("mm", 3072, 768, 8192, 1, "TN", "bf16", "", 12),
        Call("bmm", 1024, 64, 64, 96, "NT", "bf16", "not worth it", 12),
        Call("mm", 8192, 768, 768, 1, "-N", "bf16", "an operand would be copied", 1),
    ]
    page = ROOT / "docs" / "pytorch.md"
    assert str(Report(shown)) in page.read_text(encoding="utf-8")


def test_records_are_bounded(
    torch: Any, multiplied: Any, replace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.torch import records, report

    monkeypatch.setattr(records, "MOST", 3)
    with replace():
        for m in (1, 2, 3, 4, 5, 5, 1):
            torch.ones(m, 3) @ torch.ones(3, 7)
    found = {(c.size, c.calls) for c in report().records}
    assert found == {("1x7x3", 2), ("2x7x3", 1), ("3x7x3", 1), ("further ones", 3)}
    assert len(records.calls._decisions) <= 3
