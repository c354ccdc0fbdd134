"""`replace(measure=True)` without a GPU: what is faster computes a product, and what that is asked of."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import OutOfMemory, UsageError


@pytest.fixture
def clock(torch: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the GPU's time: seconds of harness's and of PyTorch's, and the products timed."""
    from harness.torch import replacement, timed

    found: dict[str, Any] = {"seconds": [1.0, 2.0], "timed": [], "capturing": False}

    def seconds(tensors: Any, products: Any) -> Any:
        mine, theirs = (product(*tensors) for product in products)
        assert torch.allclose(mine.result.float(), theirs.float(), atol=1e-2)
        found["timed"].append(tuple(None if x is None else tuple(x.shape) for x in tensors))
        return found["seconds"]

    monkeypatch.setattr(timed, "seconds", seconds)
    monkeypatch.setattr(timed, "_known", {})
    monkeypatch.setattr(replacement, "_capturing", lambda: found["capturing"])
    return found


def whys() -> list[str]:
    from harness.torch import report

    return sorted(call.why for call in report().records)


def products(torch: Any) -> list[Any]:
    """Compute a product of each kind that is measured, twice."""
    torch.manual_seed(4)
    x, w, bias = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7)
    batch, added = torch.randn(2, 5, 3), torch.randn(5, 7)
    made = []
    for _ in range(2):
        made += [x @ w.t(), torch.nn.functional.linear(x, w, bias), torch.bmm(batch, batch.mT)]
        made += [torch.addmm(added, x, w.t(), beta=0.5, alpha=2), torch.mm(x, w.t(), out=torch.empty(5, 7))]
        total = added.clone()
        made.append(torch.addmm(total, x, w.t(), out=total))
    return made


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0)], ids=["ours", "theirs", "alike"])
def test_the_faster_one_computes_it(
    torch: Any, multiplied: Any, clock: dict[str, Any], replace: Any, seconds: tuple[float, float]
) -> None:
    wanted, clock["seconds"] = products(torch), seconds
    with replace(measure=True):
        found = products(torch)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))
    assert len(clock["timed"]) == 6  # a batch of fp32, too, which the rule leaves to PyTorch
    assert ((7,), (5, 3), (3, 7)) in clock["timed"] and (None, (2, 5, 3), (2, 3, 5)) in clock["timed"]
    assert set(whys()) == ({""} if seconds[0] < seconds[1] else {"PyTorch's was faster"})
    ran = len(multiplied.seen)
    assert (ran > 6) == (seconds[0] < seconds[1]), "timed once, and then twice or never"
    with replace(measure=True):
        products(torch)
    assert len(clock["timed"]) == 6, "the process remembers"


def test_the_rule_decides_where_nothing_can_be_timed(
    torch: Any, multiplied: Any, clock: dict[str, Any], replace: Any
) -> None:
    clock.update(capturing=True, seconds=(2.0, 1.0))
    with replace(measure=True):
        products(torch)
    assert clock["timed"] == [] and set(whys()) == {"", "not worth it"}


def test_what_cannot_be_harness_s_is_not_timed(
    torch: Any, multiplied: Any, clock: dict[str, Any], replace: Any
) -> None:
    with replace(measure=True):
        torch.randn(5, 3).double() @ torch.randn(3, 7).double()
        torch.randn(5, 6)[:, ::2] @ torch.randn(3, 7)
    assert clock["timed"] == []
    assert whys() == ["an operand would be copied", "harness has no such type"]


def test_a_product_that_harness_refuses_is_pytorchs(
    torch: Any, multiplied: Any, clock: dict[str, Any], replace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.torch import products as kernel

    def refuse(*given: Any) -> None:
        raise OutOfMemory("no room for a workspace")

    monkeypatch.setattr(kernel, "product", refuse)
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    wanted = a @ b
    with replace(measure=True):
        assert torch.allclose(a @ b, wanted, atol=1e-5)
    assert whys() == ["no room for a workspace"]


def test_the_environment_asks_for_it(
    torch: Any, multiplied: Any, clock: dict[str, Any], replace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not against what a program says."""
    monkeypatch.setenv("HARNESS_MATMUL", "measure")
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    for given, times in (({}, 1), ({"measure": False}, 0), ({"invariant": True}, 0),
                         ({"worth": lambda *shape, **more: True}, 0)):  # fmt: skip
        clock["timed"].clear()
        with replace(**given):
            a @ b
        assert len(clock["timed"]) == times, given


def test_arguments(replace: Any) -> None:
    for given in ({"invariant": True}, {"worth": lambda *shape, **more: True}):
        with pytest.raises(UsageError, match="measure=True and a rule"), replace(measure=True, **given):
            pass


def test_copies_lie_as_what_they_are_copies_of(torch: Any) -> None:
    from harness.torch import timed

    memory = torch.arange(4000.0)
    first = (-memory.data_ptr() % 16 // 4) + 1  # four bytes behind a multiple of 16
    a = torch.as_strided(memory, (20, 30), (40, 1), first)
    b = torch.as_strided(memory, (30, 8), (1, 30), 100)
    wide = memory[:8].expand(20, 8)
    sets = timed.copies((wide, a, b), 5 * 4 * (8 + 790 + 240))
    assert len(sets) == 5 and sets[0] == (wide, a, b)
    for made in sets[1:]:
        for x, y in zip(made, (wide, a, b), strict=True):
            assert torch.equal(x, y) and x.stride() == y.stride()
            assert x.data_ptr() % 16 == y.data_ptr() % 16 and x.data_ptr() != y.data_ptr()
    assert len(timed.copies((None, a, b), 1)) == 1
    few = timed.copies((None, a, b), 10**9)
    assert len(few) == timed.MOST_LAUNCHES and few[-1][0] is None


def test_fewer_copies_where_memory_ends(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.torch import timed

    made, copy = [0], timed._copy

    def limited(x: Any) -> Any:
        made[0] += 1
        if made[0] > 5:
            raise torch.OutOfMemoryError("no more")
        return copy(x)

    monkeypatch.setattr(timed, "_copy", limited)
    assert len(timed.copies((None, torch.ones(4, 4), torch.ones(4, 4)), 10**6)) == 3
