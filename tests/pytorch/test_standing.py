"""The registered operators' products that C++ launches, without a GPU: a launch multiplies on the CPU.

What a check is worth is seen in `test_planted_faults_of_standing`: it fails where the library has the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.c_driver import Launches
from harness.errors import OutOfMemory, UsageError
from shared.tables import faulty, in_threads, standing


def launched(launches: Launches, call: Callable[[], Any]) -> int:
    """Return how many launches a call is."""
    before = len(launches.launched)
    call()
    assert not launches.errors
    return len(launches.launched) - before


def check_results(torch: Any, ours: Any, launches: Launches) -> None:
    """The first call of a product asks Python, further ones are launched, with other tensors and values."""
    exact, relu = torch.nn.functional.linear, torch.nn.functional.relu
    for turn in range(3):
        launches.images_go()
        for dtype in (torch.float32, torch.bfloat16):

            def new(*shape: int, dtype: Any = dtype) -> Any:
                return torch.randn(shape, dtype=dtype)

            a, b, bias, w = new(5, 3), new(3, 7), new(7), new(7, 3)
            calls: list[tuple[Any, Any, list[Any], dict[str, Any]]] = [
                (ours.mm, torch.mm, [a, b], {}),
                (ours.mm, torch.mm, [new(3, 5).t(), b], {}),
                (ours.mm, torch.mm, [a, new(7, 9)[:, :3].t()], {}),
                (ours.matmul, torch.mm, [a, b], {}),
                (torch.ops.harness.mm, torch.mm, [a, new(3, 8)], {}),
                (ours.addmm, torch.addmm, [bias, a, b], {}),
                (ours.addmm, torch.addmm, [bias[None].expand(5, 7), a, b], {"alpha": 2.5}),
                (ours.addmm, torch.addmm, [new(5, 7), a, b], {"beta": 0}),
                (ours.linear, exact, [a, w, bias], {}),
                (ours.linear, exact, [a, w], {}),
                (ours.linear, exact, [new(3), w, bias], {}),
                (ours.linear, exact, [new(2, 5, 3), w, bias], {}),
                (ours.linear, exact, [new(2, 1, 5, 3), w], {}),
            ]
            for i, (call, known, given, options) in enumerate(calls):
                found: list[Any] = []
                count = launched(launches, lambda: found.append(call(*given, **options)))  # noqa: B023
                assert count == (turn > 0), (i, dtype, turn)
                wanted = known(*(x.double() for x in given), **options)
                torch.testing.assert_close(found[0].double(), wanted, rtol=0.02, atol=0.05)
                assert found[0].dtype is dtype and found[0].is_contiguous() and not found[0]._is_view()
            found = []
            call = lambda: found.append(ours.linear(a, w, bias, activation="relu"))  # noqa: B023, E731
            assert launched(launches, call) == (turn > 0)
            wanted = relu(exact(a.double(), w.double(), bias.double()))
            torch.testing.assert_close(found[0].double(), wanted, rtol=0.02, atol=0.05)


def check_what_decides(torch: Any, ours: Any, launches: Launches) -> None:
    """A product is another one for all that it may depend on, and for nothing else."""
    a, b, c = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
    other: list[Callable[[], Any]] = [
        lambda: ours.mm(a[:3], b),
        lambda: ours.mm(a.t(), b),
        lambda: ours.mm(a.half(), b.half()),
        lambda: ours.mm(a, b, "tf32"),
        lambda: ours.mm(a, b, "3xtf32"),
        lambda: ours.mm(a, b, "bf16x6"),
        lambda: ours.linear(a, b),
        lambda: ours.linear(a, b, c),
        lambda: ours.linear(a, b, c, activation="gelu"),
        lambda: ours.linear(a, b, c, activation="gelu_tanh"),
        lambda: ours.addmm(c, a, b),
        lambda: ours.addmm(c, a, b, alpha=2),
        lambda: ours.addmm(c, a, b, alpha=2.5),
    ]
    ours.mm(a, b)
    assert launched(launches, lambda: ours.mm(b, a)) == 1
    for i, call in enumerate(other):
        assert [launched(launches, call) for _ in range(2)] == [0, 1], i
    assert {precision for _, precision in launches.seen} == {"ieee", "tf32", "3xtf32", "bf16x6"}


def check_what_is_not_launched(torch: Any, ours: Any, launches: Launches) -> None:
    """Copies, sums with a matrix, batches, empty products, and what is refused."""
    a, b, c, step = torch.randn(5, 3), torch.randn(3, 7), torch.randn(5, 7), torch.randn(14)[::2]
    across = torch.randn(5, 2, 3).transpose(0, 1)
    for _ in range(3):
        assert launched(launches, lambda: ours.addmm(c, a, b)) == 0
        assert launched(launches, lambda: ours.addmm(c[0], a, b, beta=2)) == 0
        assert launched(launches, lambda: ours.addmm(c[0], a, b, alpha=0.0)) == 0
        assert launched(launches, lambda: ours.mm(torch.randn(5, 6)[:, ::2], b)) == 0
        assert launched(launches, lambda: ours.linear(across, b.t(), c[0])) == 0
        assert launched(launches, lambda: ours.linear(a, b.t(), step)) == 0
        assert launched(launches, lambda: ours.bmm(a[None], b[None])) == 0
        assert launched(launches, lambda: ours.mm(torch.empty(5, 0), torch.empty(0, 7))) == 0
        for wrong in (
            lambda: ours.mm(a, b, "fast"),
            lambda: ours.mm(a, b, "a name that is longer than all"),
            lambda: ours.mm(a.double(), b.double()),
            lambda: ours.mm(a.to_sparse(), b),
            lambda: ours.linear(a, b.t(), activation="tanh"),
        ):
            with pytest.raises(UsageError):
                wrong()
    memory = torch.randn(32)
    for n, counts in ((0, [0, 1]), (1, [0, 1]), (4, [1, 1])):  # another alignment is another kernel
        calls = [lambda n=n: ours.mm(memory[n : n + 15].view(5, 3), b)] * 2
        assert [launched(launches, call) for call in calls] == counts, n


def check_gradients(torch: Any, ours: Any, launches: Launches) -> None:
    """Call the operator's formula where a gradient is asked for, also for a product that is known."""
    x, w, bias = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7)
    leaf = w.clone().requires_grad_()
    for turn in range(3):
        assert launched(launches, lambda: ours.linear(x, w, bias)) == (turn > 0)
        found: list[Any] = []
        ask = lambda: found.append(ours.linear(x, leaf, bias))  # noqa: B023, E731
        assert launched(launches, ask) == 0
        assert found[0].requires_grad and found[0].grad_fn is not None
        grad = torch.randn(5, 7)
        call = lambda: found.append(torch.autograd.grad(found[0], leaf, grad)[0])  # noqa: B023, E731
        assert launched(launches, call) == (turn > 0)  # its gradient's product is known
        assert torch.allclose(found[1], grad.t() @ x, atol=1e-5)
        for off in (torch.no_grad, torch.inference_mode):
            with off():
                assert launched(launches, ask) == 1 and not found[-1].requires_grad
    with torch.inference_mode():
        y = x.clone()
        assert [launched(launches, lambda: ours.linear(y, w, bias)) for _ in range(2)] == [0, 1]
        assert ours.linear(y, w, bias).is_inference()
    both = torch.autograd.grad(ours.linear(x, leaf, bias, activation="relu").sum(), leaf)
    assert torch.allclose(
        both[0], torch.autograd.grad((x @ leaf.t() + bias).relu().sum(), leaf)[0], atol=1e-5
    )


def check_modes(torch: Any, ours: Any, launches: Launches) -> None:
    """Modes and subclasses of PyTorch see the operator, whether or not its product is known."""
    from torch._subclasses import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    a, b, seen = torch.randn(5, 3), torch.randn(3, 7), []
    wanted = ours.mm(a, b)
    assert launched(launches, lambda: ours.mm(a, b)) == 1
    for _ in range(2):
        with Mode():
            assert torch.equal(ours.mm(a, b), wanted)
        assert torch.ops.harness.mm.default in seen
        seen.clear()
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            found = ours.mm(fake.from_tensor(a.to("meta")), fake.from_tensor(b.to("meta")))
            assert found.shape == (5, 7) and type(found) is not torch.Tensor
        assert torch.allclose(torch.vmap(lambda a: ours.mm(a, b))(torch.stack([a, a])), wanted, atol=1e-6)
        functional = torch.func.functionalize(ours.mm)
        assert torch.allclose(functional(a, b), wanted)
        negative = torch._neg_view(a)
        assert torch.allclose(ours.mm(negative, b), -wanted)
        with torch.autocast("cpu", torch.bfloat16):
            assert ours.mm(a, b).dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert launched(launches, lambda: ours.mm(a, b)) == 1
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: ours.mm(a, b).relu(), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(compiled(a, b), wanted.relu())
        assert launched(launches, lambda: compiled(a, b)) == 1


def check_the_driver(torch: Any, ours: Any, launches: Launches) -> None:
    """In another context, in one that is captured, and when a launch fails, Python queues the product."""
    from harness.torch import products

    a, b = torch.randn(5, 3), torch.randn(3, 7)
    wanted = ours.mm(a, b)
    for name, value in (("context", 1), ("fails", True)):
        before = getattr(launches, name)
        setattr(launches, name, value)
        found: list[Any] = []
        assert launched(launches, lambda: found.append(ours.mm(a, b))) == 0  # noqa: B023
        assert torch.equal(found[0], wanted)
        setattr(launches, name, before)
        assert launched(launches, lambda: ours.mm(a, b)) == 1
    c, launches.own, launches.rooms = torch.randn(4, 3), True, {70: 0x7000, 71: 0x7100}
    for stream in (70, 71):
        launches.stream = stream
        assert [launched(launches, lambda: ours.mm(c, b)) for _ in range(2)] == [0, 1]
        assert launches.launched[-1] == (stream, launches.rooms[stream] + 7)
    launches.capturing = True
    assert launched(launches, lambda: ours.mm(c, b)) == 0
    launches.capturing = False
    assert launched(launches, lambda: ours.mm(c, b)) == 1
    (told,) = launches.told
    told()
    assert [launched(launches, lambda: ours.mm(c, b)) for _ in range(2)] == [0, 1]
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*given: Any) -> None:
            raise OutOfMemory("full")

        patch.setattr(products, "product", refuse)
        with pytest.raises(OutOfMemory, match="full"):
            ours.mm(torch.randn(9, 3), b)


def check_a_block(torch: Any, ours: Any, launches: Launches) -> None:
    """A block of `replace` has a table of its own: each counts and launches, and neither sees the other's."""
    from harness.torch import known, products, replace, report

    a, b = torch.randn(5, 3), torch.randn(3, 7)
    ours.mm(a, b)
    for _ in range(2):
        with replace(worth=lambda *product, **more: True):
            assert [launched(launches, lambda: a @ b) for _ in range(3)] == [0, 1, 1]
            assert launched(launches, lambda: ours.mm(a, b)) == 1
            with pytest.MonkeyPatch.context() as patch:
                kept, multiply = [], products.product

                def product(*given: Any) -> None:
                    kept.append(known.loaded()[0].stay())  # noqa: B023
                    multiply(*given)  # noqa: B023

                patch.setattr(products, "product", product)
                ours.mm(torch.randn(6 + _, 3), b)
            assert len(kept) == 1 and kept[0] < known.FULL  # the operator's product is none of the block's
        assert [(c.op, c.calls, c.why) for c in report().records] == [("mm", 3, "")]
        assert launched(launches, lambda: ours.mm(a, b)) == 1 and launched(launches, lambda: a @ b) == 0


def check_threads(torch: Any, ours: Any, launches: Launches) -> None:
    """No result is wrong, also while products are forgotten for want of room, and rooms."""
    inputs = [torch.randn(n, 3) for n in range(1, 6)]
    b, n, wrong = torch.randn(3, 7), 200, []
    wanted = [torch.from_numpy(a.numpy() @ b.numpy()) for a in inputs]
    launches.own, launches.rooms = True, {70: 0x7000}

    def look() -> None:
        for told in launches.told:
            told()

    def multiply() -> None:
        for i in range(n):
            if not torch.allclose(ours.mm(inputs[i % 5], b), wanted[i % 5], rtol=1e-4, atol=1e-6):
                wrong.append(i)

    in_threads(multiply, look)
    assert not wrong and not launches.errors and launches.launched


CHECKS: dict[str, Callable[..., None]] = {
    name.removeprefix("check_"): check
    for name, check in sorted(globals().items())
    if name.startswith("check_")
}


def run(check: str, torch: Any, launches: Launches, multiplied: Any, table: Any) -> None:
    from harness import torch as ours

    launches.seen = multiplied.seen  # type: ignore[attr-defined]
    with standing(table):
        CHECKS[check](torch, ours, launches)


@pytest.mark.parametrize("check", CHECKS)
def test_standing(check: str, torch: Any, launches: Launches, multiplied: Any, table: Any) -> None:
    run(check, torch, launches, multiplied, table)


FAULTS = [
    ("results", "known.cpp", "b.size(layer ? 0 : 1)", "b.size(layer ? 0 : 1) + layer"),
    ("results", "known.cpp", "return found;", "return found.push_back(1), found;"),
    ("results", "known.cpp", "address(tensor(given.bias()))", "address(b)"),
    ("results", "known.cpp", "return added ? 0 : 2; }", "return added ? 0 : 1; }"),
    ("results", "table.h", "constexpr size_t DIMS = 4;", "constexpr size_t DIMS = 3;"),
    ("results", "table.h", "if (x.isNone()) {", "if (false) {"),
    ("results", "table.h", "if (x.isString()) return", "if (x.isString()) return false &&"),
    ("what_decides", "table.h", "for (const auto word : letters) add(word);", ""),
    ("what_is_not_launched", "table.h", "launches[aligned(addresses)]", "launches[7]"),
    ("gradients", "known.cpp", "if (x.isTensor() && x.toTensor().requires_grad()) return false;", ";"),
    ("gradients", "known.cpp", "if (!c10::GradMode::is_enabled()) return true;", ""),
    ("modes", "known.cpp", ".highestPriorityTypeId() != below", ".empty()"),
    ("the_driver", "launches.h", "current != context_", "false"),
    ("the_driver", "launches.h", "status != 0 ||", ""),
    ("the_driver", "launches.h", "rooms_.clear();", ""),
    ("a_block", "known.cpp", "pending.table != &table ||", ""),
    ("gradients", "known.cpp", "number = one.kernel->number;", "(void)one;"),
    ("a_block", "known.cpp", "return keep(tables[which], image,", "return keep(tables[1], image,"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("check", "name", "text", "fault"), FAULTS)
def test_planted_faults_of_standing(
    check: str, name: str, text: str, fault: str, torch: Any, launches: Launches, multiplied: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    with pytest.raises((AssertionError, KeyError, IndexError, RuntimeError)):
        run(check, torch, launches, multiplied, faulty(name, text, fault, tmp_path))


def test_products_are_forgotten(
    torch: Any, launches: Launches, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for so many; where it is full all go, and are kept anew."""
    from harness import torch as ours
    from harness.torch import standing as module

    monkeypatch.setattr(module, "_MOST", 3)
    b = torch.randn(3, 7)
    with standing(table):
        for m in [*range(1, 6), *range(1, 6)]:
            assert [launched(launches, lambda: ours.mm(torch.randn(m, 3), b)) for _ in range(2)] == [0, 1]  # noqa: B023


def test_what_cannot_be_known_is_not_tried_for_ever(torch: Any, launches: Launches, table: Any) -> None:
    from harness import torch as ours
    from harness.torch import standing as module

    a, b, asked = torch.randn(5, 3), torch.randn(3, 7), []

    def several(*given: Any) -> None:
        asked.append(given)

    with standing(table), pytest.MonkeyPatch.context() as patch:
        patch.setattr(launches, "image", several)
        for _ in range(module._TRIES + 9):
            ours.mm(a, b)
    assert len(asked) == module._TRIES and not launches.launched


def test_without_a_driver_nothing_is_compiled(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.torch import known
    from harness.torch import standing as module

    monkeypatch.setattr(known, "functions", lambda: None)
    monkeypatch.setattr(known, "loaded", lambda: pytest.fail("nothing can be launched"))
    assert module._opened.__wrapped__() is None


def test_without_a_compiler(torch: Any, multiplied: Any, launches: Launches) -> None:
    """Python queues all, and an operator that is not there leaves nothing behind."""
    from harness.torch import known
    from harness.torch import standing as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "loaded", lambda: (None, "no compiler"))
        assert module._opened.__wrapped__() is None
    before = torch._C._dispatch_dump("harness::mm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KEY", "CPU")
        patch.setattr(module, "OPERATORS", ("mm", "mmm"))
        assert module._opened.__wrapped__() is None
    assert torch._C._dispatch_dump("harness::mm") == before
