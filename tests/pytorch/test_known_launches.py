"""Products of harness's that are launched without Python, without a GPU: a launch multiplies on the CPU.

What a check is worth is seen in `test_planted_faults`: it fails where launches.h or known.cpp has the fault
that it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.c_driver import Launches
from harness.errors import OutOfMemory
from shared.tables import faulty, in_threads


def always(*product: Any, **more: Any) -> bool:
    return True


def rows() -> list[tuple[Any, ...]]:
    from harness.torch import report

    return sorted((c.op, c.size, c.layout, c.calls, c.why) for c in report().records)


def launched(launches: Launches, call: Callable[[], Any]) -> int:
    """Return how many launches a call is."""
    before = len(launches.launched)
    call()
    assert not launches.errors
    return len(launches.launched) - before


def check_results(torch: Any, replace: Any, launches: Launches) -> None:
    """The first call of a product asks Python, further ones are launched, with other tensors and values."""
    with replace(worth=always):
        for turn in range(3):
            launches.images_go()
            for dtype, layout in ((torch.float32, "NN"), (torch.float32, "TN"), (torch.bfloat16, "NT")):
                a, b, bias = torch.randn(8, 16), torch.randn(16, 24), torch.randn(24)
                a, b = (
                    x.t().contiguous().t() if t == "T" else x for x, t in zip((a, b), layout, strict=True)
                )
                a, b, bias = a.to(dtype), b.to(dtype), bias.to(dtype)
                wanted, near = (a.double().numpy() @ b.double().numpy()), {"rtol": 0.02, "atol": 0.05}
                wanted = torch.from_numpy(wanted)
                out = torch.empty(8, 24, dtype=dtype)
                calls: list[tuple[Callable[[], Any], Any]] = [
                    (lambda a=a, b=b: a @ b, wanted),
                    (lambda a=a, b=b: torch.addmm(bias, a, b), wanted + bias),  # noqa: B023
                    (lambda a=a, b=b: torch.addmm(bias, a, b, alpha=2), 2 * wanted + bias),  # noqa: B023
                    (lambda a=a, b=b: torch.addmm(bias, a, b, beta=0), wanted),  # noqa: B023
                    (lambda a=a, b=b: torch.mm(a, b, out=out), wanted),  # noqa: B023
                    (lambda a=a, b=b: torch.addmm(bias, a, b, out=out), wanted + bias),  # noqa: B023
                ]
                for i, (call, value) in enumerate(calls):
                    found: list[Any] = []
                    assert launched(launches, lambda: found.append(call())) == (turn > 0), (i, layout)  # noqa: B023
                    torch.testing.assert_close(found[0].double(), value.double(), **near)
                    assert found[0].dtype is dtype and found[0].is_contiguous()
                    assert (found[0].data_ptr() == out.data_ptr()) == (i >= 4)
    assert [row[3] for row in rows()] == [12, 12, 12, 6, 6, 6] and not any(row[4] for row in rows())


def check_what_is_not_launched(torch: Any, replace: Any, launches: Launches) -> None:
    """Batches, sums with a matrix, and what lies on an operand or begins elsewhere than the first did."""
    a, b, c, memory = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4), torch.randn(64)
    x, line = torch.randn(2, 4, 4), torch.randn(1, 4)
    with replace(worth=always):
        for _ in range(3):
            assert launched(launches, lambda: x @ x) == 0
            assert launched(launches, lambda: torch.addmm(c, a, b)) == 0
            assert launched(launches, lambda: torch.addmm(c, a, b, out=c)) == 0
        torch.mm(a, b, out=c)
        assert launched(launches, lambda: torch.mm(a, b, out=c)) == 1
        for n in (0, 4, 12):
            other = memory[n : n + 16].view(4, 4)
            for operands in ((other, b), (b, other)):
                out = memory[12:28].view(4, 4)
                assert launched(launches, lambda: torch.mm(*operands, out=out)) == 0, n  # noqa: B023
        below, above = memory[:16].view(4, 4), memory[16:32].view(4, 4)
        assert launched(launches, lambda: torch.mm(below, b, out=above)) == 1
        assert launched(launches, lambda: torch.mm(above, b, out=below)) == 1
        torch.addmm(line, line, b, out=torch.empty(1, 4))
        assert launched(launches, lambda: torch.addmm(line, c[:1], b, out=a[:1])) == 1
        assert launched(launches, lambda: torch.addmm(line, c[:1], b, out=line)) == 0
        a @ b
        assert launched(launches, lambda: c @ b) == 1
        for call in (lambda: memory[1:17].view(4, 4) @ b, lambda: a @ memory[1:17].view(4, 4)):
            assert [launched(launches, call) for _ in range(3)] == [0, 1, 1]  # by another kernel
        assert launched(launches, lambda: memory[4:20].view(4, 4) @ b) == 1


def check_the_context(torch: Any, replace: Any, launches: Launches) -> None:
    """In another context Python is asked, as when a launch fails; each product is computed once."""
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    wanted = torch.from_numpy(a.numpy() @ b.numpy())
    with replace(worth=always):
        a @ b
        for name, value in (("context", 1), ("fails", True)):
            before = getattr(launches, name)
            setattr(launches, name, value)
            found: list[Any] = []
            assert launched(launches, lambda: found.append(a @ b)) == 0  # noqa: B023
            assert torch.allclose(found[0], wanted, rtol=1e-5)
            setattr(launches, name, before)
            assert launched(launches, lambda: a @ b) == 1
    assert [row[3] for row in rows()] == [5]


def check_rooms(torch: Any, replace: Any, launches: Launches) -> None:
    """A launch uses the workspace of its stream, once Python has it, until it is told that it goes."""
    a, b, off = torch.randn(5, 3), torch.randn(3, 7), torch.randn(16)[1:].view(5, 3)
    launches.own = True
    with replace(worth=always):
        for _ in range(2):
            assert launched(launches, lambda: a @ b) == 0  # Python has none
        launches.rooms = {70: 0x7000, 71: 0x7100}
        for stream, room in launches.rooms.items():
            launches.stream = stream
            assert launched(launches, lambda: a @ b) == 0
            assert launched(launches, lambda: a @ b) == 1
            assert launches.launched[-1] == (stream, room + 7)
            assert [launched(launches, lambda: off @ b) for _ in range(2)] == [0, 1]
            assert launches.launched[-1] == (stream, room + 6)
        launches.stream = 70
        assert launched(launches, lambda: a @ b) == 1
        assert launches.launched[-1] == (70, 0x7007)
        launches.capturing = True
        assert launched(launches, lambda: a @ b) == 0
        launches.capturing = False
        assert launched(launches, lambda: a @ b) == 1
        (told,) = launches.told
        told()
        launches.rooms = {70: 0x9000}
        assert launched(launches, lambda: a @ b) == 0
        assert launched(launches, lambda: a @ b) == 1
        assert launches.launched[-1] == (70, 0x9007)


def check_a_room_that_goes(torch: Any, replace: Any, launches: Launches) -> None:
    """One that is freed after Python has looked, and before the table has it, is not used."""
    from harness.torch import products

    a, b = torch.randn(5, 3), torch.randn(3, 7)
    launches.own, launches.rooms = True, {70: 0x7000}
    with replace(worth=always), pytest.MonkeyPatch.context() as patch:
        a @ b

        def late(*given: Any) -> Any:
            found = launches.image(*given)
            launches.told[0]()
            return found

        launches.stream, launches.rooms[71] = 71, 0x7100
        patch.setattr(products, "image", late)
        assert launched(launches, lambda: a @ b) == 0
        patch.undo()
        assert launched(launches, lambda: a @ b) == 0
        assert launched(launches, lambda: a @ b) == 1


def check_a_refusal(torch: Any, replace: Any, launches: Launches) -> None:
    """A product that is refused later becomes PyTorch's, and its calls are counted apart."""
    from harness.torch import products

    a, b = torch.randn(5, 3), torch.randn(3, 7)
    with replace(worth=always), pytest.MonkeyPatch.context() as patch:
        for _ in range(3):
            a @ b

        def refuse(*given: Any) -> None:
            raise OutOfMemory("full")

        patch.setattr(products, "product", refuse)
        launches.fails = True
        a @ b
        launches.fails = False
        for _ in range(4):
            assert launched(launches, lambda: a @ b) == 0
    assert [(row[3], row[4]) for row in rows()] == [(3, ""), (5, "full")]


def check_threads(torch: Any, replace: Any, launches: Launches) -> None:
    """No call is lost, and no result wrong, also while products are forgotten for want of room."""
    from harness.torch import records, report

    inputs = [torch.randn(n, 3) for n in range(1, 6)]
    b, n, wrong = torch.randn(3, 7), 300, []
    wanted = [torch.from_numpy(a.numpy() @ b.numpy()) for a in inputs]

    def look() -> None:
        report()
        for told in launches.told:
            told()

    def multiply() -> None:
        for i in range(n):
            if not torch.allclose(inputs[i % 5] @ b, wanted[i % 5], rtol=1e-4, atol=1e-6):
                wrong.append(i)

    launches.own, launches.rooms = True, {70: 0x7000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "MOST", 3)
        with replace(worth=always):
            in_threads(multiply, look)
        assert sum(row[3] for row in rows()) == 4 * n and not wrong and not launches.errors


def check_the_next_block(torch: Any, replace: Any, launches: Launches) -> None:
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    with replace(worth=always):
        a @ b
        assert launched(launches, lambda: a @ b) == 1
    assert launched(launches, lambda: a @ b) == 0
    with replace(worth=lambda *product, **more: False):
        for _ in range(2):
            assert launched(launches, lambda: a @ b) == 0
    with replace(worth=always, invariant=False):
        assert launched(launches, lambda: a @ b) == 0
        assert launched(launches, lambda: a @ b) == 1


def check_invariant_rows(torch: Any, replace: Any, launches: Launches) -> None:
    """A product of a copied operand is not launched."""
    a, b, spread = torch.randn(5, 3), torch.randn(3, 7), torch.randn(5, 6)[:, ::2]
    with replace(invariant=True):
        a @ b
        assert launched(launches, lambda: a @ b) == 1
        for _ in range(2):
            assert launched(launches, lambda: spread @ b) == 0


CHECKS: dict[str, Callable[..., None]] = {
    name.removeprefix("check_"): check
    for name, check in sorted(globals().items())
    if name.startswith("check_")
}


@pytest.mark.parametrize("check", CHECKS)
def test_launches(check: str, torch: Any, launches: Launches) -> None:
    from harness.torch import replace

    CHECKS[check](torch, replace, launches)


def test_too_many_arguments(torch: Any, launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay Python's: launches.h has room for 4096 bytes."""
    import dataclasses

    from harness.torch import products, replace

    def image(*given: Any) -> Any:
        found = launches.image(*given)
        return dataclasses.replace(found, launch=dataclasses.replace(found.launch, memory=bytes(size)))

    monkeypatch.setattr(products, "image", image)
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    for size in (4096, 4097):
        with replace(worth=always):
            a @ b
            assert launched(launches, lambda: a @ b) == (size == 4096)


FAULTS = [
    ("results", "launches.h", "write(one.offset, addresses[one.operand]);", ""),
    ("results", "launches.h", "std::memcpy(memory, memory_.data(),", "std::memset(memory, 0,"),
    ("results", "launches.h", "driver.move(memory + one.offset", "0 && driver.move(memory + one.offset"),
    ("results", "known.cpp", "bias ? address(tensor(given.bias())) : 0", "bias ? address(a) : 0"),
    ("results", "known.cpp", "b.size(layer ? 0 : 1)", "b.size(1) + 1"),
    ("results", "known.cpp", "schema.overload_name() == \"out\"", "false"),
    ("results", "table.h", "relaxed);\n        return true", "relaxed);\n        return false"),
    ("what_is_not_launched", "table.h", "launches[aligned(addresses)]", "launches[7]"),
    ("rooms", "table.h", "launches[given.aligned]", "launches[7]"),
    ("results", "launches.h", "config_.attributes = attributes_.data();", ""),
    ("what_is_not_launched", "known.cpp", "if (from < end && begin < to) return false;", ""),
    ("what_is_not_launched", "known.cpp", "slice(0, given.operands())", "slice(given.a(), 2)"),
    ("what_is_not_launched", "known.cpp", "from < end && begin < to", "from <= end && begin <= to"),
    ("the_context", "launches.h", "current != context_", "false"),
    ("the_context", "launches.h", "arguments, nullptr) == 0", "arguments, nullptr) <= 700"),
    ("rooms", "launches.h", "if (room != 0) write(own_, room);", ""),
    ("rooms", "launches.h", "driver, config.stream)) == 0", "driver, config.stream)) == 1"),
    ("rooms", "launches.h", "if (owner == id) return address;", "return address;"),
    ("rooms", "launches.h", "status != 0 ||", ""),
    ("rooms", "launches.h", "rooms_.clear();", ""),
    ("rooms", "table.h", "else launch->keep(given);", ""),
    ("a_room_that_goes", "table.h", "if (since != rooms) given.room = 0;", ""),
    ("a_refusal", "table.h", "|| found->ours != ours", ""),
    ("threads", "known.cpp", "if (forget) table.forget();", ""),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("check", "name", "text", "fault"), FAULTS)
def test_planted_faults(
    check: str, name: str, text: str, fault: str, torch: Any, launches: Launches,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    from harness.torch import known, replace

    changed = faulty(name, text, fault, tmp_path)
    monkeypatch.setattr(known, "loaded", lambda: (changed, ""))
    with pytest.raises((AssertionError, KeyError, IndexError)):
        CHECKS[check](torch, replace, launches)
