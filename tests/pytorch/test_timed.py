"""`replace(measure=True)` without a GPU: what is faster computes a product, and what that is asked of."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
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
        assert torch.allclose(mine[0].float(), theirs.float(), atol=1e-2)
        assert mine[0].stride() == theirs.stride()
        found["timed"].append(tuple(None if x is None else tuple(x.shape) for x in tensors))
        return found["seconds"]

    monkeypatch.setattr(timed, "seconds", seconds)
    monkeypatch.setattr(timed, "_known", {})
    monkeypatch.setattr(replacement, "_capturing", lambda device: found["capturing"])
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
        made.append(torch.mm(x, w.t(), out=torch.empty(7, 5).t()))
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
    assert len(clock["timed"]) == 7  # a batch of fp32, too, which the rule leaves to PyTorch
    assert ((7,), (5, 3), (3, 7)) in clock["timed"] and (None, (2, 5, 3), (2, 3, 5)) in clock["timed"]
    assert set(whys()) == ({""} if seconds[0] < seconds[1] else {"PyTorch's was faster"})
    ran = len(multiplied.seen)
    assert (ran > 7) == (seconds[0] < seconds[1]), "timed once, and then twice or never"
    with replace(measure=True):
        products(torch)
    assert len(clock["timed"]) == 7, "the process remembers"


def test_the_rule_decides_where_nothing_can_be_timed(
    torch: Any, multiplied: Any, clock: dict[str, Any], replace: Any
) -> None:
    clock.update(capturing=True, seconds=(2.0, 1.0))
    with replace(measure=True):
        products(torch)
    assert clock["timed"] == [] and set(whys()) == {"", "not worth it"}
    clock["capturing"] = False
    with replace(measure=True):
        products(torch)
    clock["capturing"] = True
    with replace(measure=True):
        products(torch)
    assert set(whys()) == {"PyTorch's was faster"}, "what is known is known while a stream is captured"


def test_pytorchs_setting_is_part_of_what_is_remembered(
    torch: Any, multiplied: Any, clock: dict[str, Any], replace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides how fast PyTorch multiplies, where `fp32` says how harness does."""
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    for allowed in ("none", "tf32", "none"):
        monkeypatch.setattr(torch._C, "_get_fp32_precision_getter", lambda *_, now=allowed: now)
        with replace(measure=True, fp32="bf16x6"):
            a @ b
    assert len(clock["timed"]) == 2


def test_no_memory_to_time_in_is_no_error(
    torch: Any, multiplied: Any, clock: dict[str, Any], replace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.torch import timed

    def refuse(*given: Any) -> None:
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(timed, "seconds", refuse)
    with replace(measure=True):
        torch.randn(5, 3) @ torch.randn(3, 7)
    assert whys() == [""] and timed._known == {}


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
    from harness.torch import timed

    a, b = torch.randn(5, 3), torch.randn(3, 7)
    for given, times in (({}, 1), ({"measure": False}, 0), ({"invariant": True}, 0),
                         ({"worth": lambda *shape, **more: True}, 0)):  # fmt: skip
        clock["timed"].clear()
        timed._known.clear()
        with replace(**given):
            a @ b
        assert len(clock["timed"]) == times, given
    monkeypatch.setenv("HARNESS_MATMUL", "yes")
    with replace(invariant=True):
        a @ b
    with pytest.raises(UsageError, match="HARNESS_MATMUL=yes"), replace():
        pass


def test_arguments(replace: Any) -> None:
    for given in ({"invariant": True}, {"worth": lambda *shape, **more: True}):
        with pytest.raises(UsageError, match="measure=True beside"), replace(measure=True, **given):
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
            assert x.data_ptr() % 256 == y.data_ptr() % 256 and x.data_ptr() != y.data_ptr()
    assert len(timed.copies((None, a, b), 1)) == 1
    few = timed.copies((None, a, b), 10**9)
    assert len(few) == timed.MOST_LAUNCHES and few[-1][0] is None


def test_no_copies_where_memory_ends(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.torch import timed

    made, alike = [0], timed.alike

    def limited(x: Any, *, fill: bool) -> Any:
        made[0] += 1
        if made[0] > 5:
            raise torch.OutOfMemoryError("no more")
        return alike(x, fill=fill)

    monkeypatch.setattr(timed, "alike", limited)
    assert len(timed.copies((None, torch.ones(4, 4), torch.ones(4, 4)), 10**6)) == 1


class Card:
    """A GPU with one stream, and its host: each launch takes the host 50 us, and the GPU what it is told."""

    HZ, HOST = 1e9, 50e-6

    def __init__(self) -> None:
        self.host = self.gpu = 0.0
        self.seen: list[str] = []

    def launch(self, seconds: float, word: str = "") -> None:
        self.host += self.HOST
        self.gpu = max(self.gpu, self.host) + seconds
        self.seen.append(word or "sleep")

    def synchronize(self) -> None:
        self.host = max(self.host, self.gpu)
        self.seen.append("synchronize")

    def wait_stream(self, other: Any) -> None:
        self.seen.append("wait")

    def event(self, **options: Any) -> Any:
        assert options == {"enable_timing": True}
        card = self

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = max(card.gpu, card.host)

            def query(self) -> bool:
                return card.host >= self.at

            def synchronize(self) -> None:
                card.host = max(card.host, self.at)

            def elapsed_time(self, end: Any) -> float:
                return 1e3 * float(end.at - self.at)

        return Event()


@pytest.fixture
def card(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Card:
    from harness.torch import timed

    card = Card()
    about = SimpleNamespace(l2_bytes=4000, clock_hz=card.HZ)
    monkeypatch.setattr(timed.gpus, "gpu", lambda device: SimpleNamespace(device=about))
    monkeypatch.setattr(timed, "_stream", lambda device: (None, card))
    monkeypatch.setattr(timed, "outside_captures", nullcontext)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", card.event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: card.launch(cycles / card.HZ))
    return card


def test_the_gpus_time_counts_alone(torch: Any, card: Card) -> None:
    """The host takes ten times as long to launch one; the spinning kernel lasts until all are queued."""
    from harness.torch import timed

    sets: set[int] = set()

    def product(seconds: float, word: str) -> Any:
        def run(*tensors: Any) -> None:
            sets.add(tensors[1].data_ptr())
            card.launch(seconds, word)

        return run

    tensors = (None, torch.ones(10, 10), torch.ones(10, 10))
    found = timed.seconds(tensors, [product(5e-6, "ours"), product(3e-6, "theirs")])
    assert found == pytest.approx([5e-6, 3e-6], rel=1e-6)
    assert card.seen[:5] == ["wait", "ours", "theirs", "ours", "theirs"], (
        "code is loaded before a launch is held"
    )
    assert card.seen[5] == "sleep" and card.seen[-1] == "synchronize"
    assert len(sets) == 10, "twice the L2 cache"


def test_a_host_that_is_never_ahead_is_not_waited_for(torch: Any, card: Card) -> None:
    """Time under CUDA_LAUNCH_BLOCKING, where each launch ends before the next one is queued."""
    from harness.torch import timed

    def blocking(*tensors: Any) -> None:
        card.launch(5e-6, "ours")
        card.synchronize()

    (found,) = timed.seconds((None, torch.ones(10, 10), torch.ones(10, 10)), [blocking])
    assert 5e-6 <= found < 1e-4


def test_the_stream_is_waited_for_when_a_product_fails(torch: Any, card: Card) -> None:
    from harness.torch import timed

    def fail(*tensors: Any) -> None:
        raise OutOfMemory("no room")

    with pytest.raises(OutOfMemory):
        timed.seconds((None, torch.ones(10, 10), torch.ones(10, 10)), [fail])
    assert card.seen == ["wait", "synchronize"]


def test_a_product_within_a_product_that_is_timed(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer may multiply, in the same thread."""
    from harness.torch import timed

    a = torch.ones(4, 4)
    monkeypatch.setattr(timed, "_known", {})
    monkeypatch.setattr(timed, "seconds", lambda tensors, products: [product() for product in products])
    inner = lambda: float(timed.faster("inner", (a,), lambda: 1.0, lambda: 2.0))  # noqa: E731
    assert not timed.faster("outer", (a,), inner, lambda: 0.5)
    assert timed._known == {"inner": True, "outer": False}
    for key in range(timed.MOST + 1):
        timed.faster(key, (a,), lambda: 1.0, lambda: 2.0)
    assert len(timed._known) <= timed.MOST
