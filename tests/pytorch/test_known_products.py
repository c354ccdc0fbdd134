"""Products that stay PyTorch's without Python, without a GPU: the kernels for the CPU are the ones replaced.

What a check is worth is seen in `test_planted_faults`: it fails where known.cpp has the fault that it is for.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError, UsageError
from shared.places import ROOT
from shared.tables import faulty, in_threads


class Asked:
    """Counts the calls that reach Python's function within `replace`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from harness.torch import replacement

        self.count = 0
        ours = replacement._Replaced._either

        def counted(*args: Any) -> Any:
            self.count += 1
            return ours(*args)

        monkeypatch.setattr(replacement._Replaced, "_either", counted)

    def by(self, call: Callable[[], Any]) -> int:
        """Return how often `call` reached Python."""
        before = self.count
        call()
        return self.count - before


@pytest.fixture
def asked(torch: Any, multiplied: Any, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def never(*product: Any, **more: Any) -> bool:
    return False


def rows() -> list[tuple[Any, ...]]:
    from harness.torch import report

    return sorted((c.op, c.size, c.layout, c.dtype, c.calls, c.why) for c in report().records)


@contextmanager
def precision(torch: Any, setting: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def program(torch: Any) -> list[Any]:
    """Return the results of products of all kinds, and the words of an error."""
    torch.manual_seed(4)
    a, b, c, bias = torch.randn(5, 3), torch.randn(3, 7), torch.randn(5, 7), torch.randn(7)
    x, y = torch.randn(2, 5, 3), torch.randn(2, 3, 7)
    w = torch.randn(7, 3, requires_grad=True)
    found = [
        a @ b,
        torch.mm(a, b, out=torch.empty(5, 7)),
        torch.mm(a, b, out=torch.empty(7, 5).t()),
        torch.addmm(c, a, b, beta=0.5, alpha=2),
        torch.addmm(bias, a, b, out=torch.empty(5, 7)),
        x @ y,
        torch.bmm(x, y, out=torch.empty(2, 5, 7)),
        torch.baddbmm(c, x, y, beta=2),
        torch.baddbmm(c, x, y, out=torch.empty(2, 5, 7)),
        a.double() @ b.double(),
        a.bfloat16() @ b.bfloat16(),
        *torch.autograd.grad(torch.nn.functional.linear(x, w, bias).square().sum(), w),
        torch.empty(0, 3) @ b,
    ]
    with pytest.raises(RuntimeError) as e:
        torch.mm(a, a)
    return [*found, str(e.value)]


def check_results_and_counts(torch: Any, replace: Any, asked: Asked) -> None:
    """The same numbers and words as PyTorch's, and Python is asked once for each product."""
    wanted = program(torch)
    first = 0
    with replace(worth=never):
        for n in (1, 2, 3):
            found = program(torch)
            for a, b in zip(found, wanted, strict=True):
                assert a == b if isinstance(a, str) else torch.equal(a, b)
            first = asked.count if n == 1 else first
            assert asked.count == first and sum(row[4] for row in rows()) == n * first
    assert sum(row[4] for row in rows()) == 3 * first and all(row[4] % 3 == 0 for row in rows())


def check_what_decides(torch: Any, replace: Any, asked: Asked) -> None:
    """Python is asked anew for all that a decision may depend on, and for nothing else."""
    a, b, c = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
    wide = torch.randn(4, 9)[:, :4]
    other = [
        lambda: torch.mm(a[:3], b),
        lambda: torch.mm(a, b[:, :3]),
        lambda: torch.mm(a.t(), b),
        lambda: torch.mm(a, wide),
        lambda: torch.mm(a.half(), b.half()),
        lambda: torch.mm(a.long(), b.long()),
        lambda: torch.mm(a, b, out=c),
        lambda: torch.mm(a, b, out=c.t()),
        lambda: torch.addmm(c, a, b),
        lambda: torch.addmm(c[0], a, b),
        lambda: torch.addmm(c[:1], a, b),
        lambda: torch.addmm(c.t(), a, b),
        lambda: torch.addmm(c, a, b, alpha=2),
        lambda: torch.addmm(c, a, b, beta=2),
        lambda: torch.addmm(c, a, b, beta=2.5),
        lambda: torch.addmm(c, a, b, beta=3.5),
        lambda: torch.addmm(c, a, b, alpha=2.5),
    ]
    with replace(worth=never):
        torch.mm(a, b)
        assert asked.by(lambda: torch.mm(c, c)) == 0
        for i, call in enumerate(other):
            assert asked.by(call) == 1, i
            assert asked.by(call) == 0, i


def check_the_setting(torch: Any, replace: Any, multiplied: Any, asked: Asked) -> None:
    """Where TF32 is allowed a product of float32 is another one, unless a precision was asked for."""

    def worth(M: int, N: int, K: int, dtype: str, layout: str, **_: Any) -> bool:
        return dtype == "tf32"

    a, b = torch.randn(5, 3), torch.randn(3, 7)
    multiplied.seen.clear()
    with replace(worth=worth):
        for setting in ("highest", "high", "highest", "high"):
            with precision(torch, setting):
                a @ b
                a @ b
                a.half() @ b.half()
    assert [kind for _, kind in multiplied.seen] == ["tf32"] * 4
    assert [(r[3], r[4], r[5]) for r in rows()] == [
        ("fp16", 4, "not worth it"), ("fp32", 4, "not worth it"), ("tf32", 4, ""),
    ]  # fmt: skip
    before = asked.count
    with replace(worth=worth, fp32="bf16x6"):
        for setting in ("highest", "high", "highest"):
            with precision(torch, setting):
                a @ b
    assert asked.count - before == 1


def check_the_next_block(torch: Any, replace: Any, multiplied: Any, asked: Asked) -> None:
    """Nothing of a block is left when it has ended, but its report."""
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    multiplied.seen.clear()
    before = torch._C._dispatch_dump("aten::mm")
    with replace(worth=never):
        assert torch._C._dispatch_dump("aten::mm") != before
        a @ b
        a @ b
    assert torch._C._dispatch_dump("aten::mm") == before
    assert rows() == [("mm", "5x7x3", "NN", "fp32", 2, "not worth it")]
    assert asked.by(lambda: a @ b) == 0
    assert rows() == [("mm", "5x7x3", "NN", "fp32", 2, "not worth it")]
    with replace(worth=lambda *product, **more: True):
        a @ b
    assert len(multiplied.seen) == 1 and rows() == [("mm", "5x7x3", "NN", "fp32", 1, "")]


def check_a_rule_that_multiplies(torch: Any, replace: Any, multiplied: Any, asked: Asked) -> None:
    """What a rule multiplies is decided by itself, and so is what it was asked about."""
    a, b, inner = torch.randn(5, 3), torch.randn(3, 7), torch.randn(2, 2)
    multiplied.seen.clear()

    def worth(M: int, *product: Any, **more: Any) -> bool:
        if M == 5:
            inner @ inner
        return M != 5

    with replace(worth=worth):
        for _ in range(3):
            a @ b
            inner @ inner
    assert asked.count == 5  # for a @ b once
    assert [what for what, _ in multiplied.seen] == ["2x2x2 NNN"] * 4
    assert [(r[1], r[4]) for r in rows()] == [("2x2x2", 4), ("5x7x3", 3)]


def check_threads(torch: Any, replace: Any, asked: Asked) -> None:
    """No call is lost, also while reports are made and products forgotten for want of room."""
    from harness.torch import records, report

    a, b, n = torch.randn(5, 3), torch.randn(3, 7), 2000

    def multiply() -> None:
        for i in range(n):
            a[: 1 + i % 5] @ b

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "MOST", 3)
        with replace(worth=never):
            in_threads(multiply, report)
        assert sum(row[4] for row in rows()) == 4 * n


CHECKS: dict[str, Callable[..., None]] = {
    name.removeprefix("check_"): check
    for name, check in sorted(globals().items())
    if name.startswith("check_")
}


def run(check: Callable[..., None], **given: Any) -> None:
    """Call a check with those of `given` that it asks for."""
    names = check.__code__.co_varnames[: check.__code__.co_argcount]
    check(**{name: given[name] for name in names})


@pytest.mark.parametrize("check", CHECKS)
def test_the_table(check: str, torch: Any, multiplied: Any, table: Any, asked: Asked) -> None:
    from harness.torch import replace

    run(CHECKS[check], torch=torch, multiplied=multiplied, replace=replace, asked=asked)


FAULTS = [
    (
        "results_and_counts",
        "table.h",
        "found->calls.fetch_add(1, std::memory_order_relaxed);\n        return Way::STAY",
        "found->calls.fetch_add(2, std::memory_order_relaxed);\n        return Way::STAY",
    ),
    ("results_and_counts", "table.h", "return static_cast<int64_t>(places[key]);", "return NONE;"),
    ("results_and_counts", "known.cpp", ".exchange(0)", ".load()"),
    (
        "results_and_counts",
        "known.cpp",
        "torch::jit::last(stack, given.count)) {\n            if (!x",
        "torch::jit::last(stack, 1)) {\n            if (!x",
    ),
    ("what_decides", "table.h", "add(sizes[i]);", ""),
    ("what_decides", "table.h", "add(strides[i]);", ""),
    ("what_decides", "table.h", "static_cast<int64_t>(type) |", ""),
    (
        "what_decides",
        "table.h",
        "x.isDouble() ? bits : x.isInt() ? x.toInt()",
        "x.isDouble() ? bits : x.isInt() ? 0",
    ),
    ("what_decides", "table.h", "std::memcpy(&bits, &real, sizeof bits);", ""),
    ("the_setting", "known.cpp", "if (float32 && table", "if (!float32 && table"),
    ("the_setting", "known.cpp", "table.by_setting = by_setting != 0;", "table.by_setting = true;"),
    ("the_next_block", "known.cpp", "one.handle.reset();", ""),
    (
        "a_rule_that_multiplies",
        "known.cpp",
        "~Restored() { pending = outer; }",
        "~Restored() { pending = {}; }",
    ),
    ("threads", "known.cpp", "if (forget) table.forget();", ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("check", "name", "text", "fault"), FAULTS)
def test_planted_faults(
    check: str, name: str, text: str, fault: str, torch: Any, multiplied: Any, asked: Asked,
    table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    from harness.torch import known, replace

    changed = faulty(name, text, fault, tmp_path)
    monkeypatch.setattr(known, "loaded", lambda: (changed, ""))
    with pytest.raises((AssertionError, KeyError)):
        run(CHECKS[check], torch=torch, multiplied=multiplied, replace=replace, asked=asked)


def test_what_was_given_is_let_go(torch: Any, multiplied: Any, replace: Any) -> None:
    """A rule may hold a model."""

    class Rule:
        def __call__(self, *product: Any, **more: Any) -> bool:
            return False

    rule = Rule()
    gone = weakref.ref(rule)
    with replace(worth=rule):
        torch.ones(5, 3) @ torch.ones(3, 7)
    del rule
    gc.collect()
    assert gone() is None


def test_an_end_by_an_exception(torch: Any, multiplied: Any, replace: Any) -> None:
    before = torch._C._dispatch_dump("aten::mm")
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    with pytest.raises(KeyError), replace(worth=never):
        a @ b
        with pytest.raises(UsageError, match="already replaced"), replace():
            pass
        a @ b
        raise KeyError
    assert torch._C._dispatch_dump("aten::mm") == before
    assert rows() == [("mm", "5x7x3", "NN", "fp32", 2, "not worth it")]


def test_a_refusal_stays(torch: Any, multiplied: Any, table: Any, asked: Asked) -> None:
    """What harness has refused once goes to PyTorch without Python, but not what was for its place."""
    from harness.errors import BuildError
    from harness.torch import products, replace

    def refuse(*_: Any) -> None:
        raise BuildError("no")

    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with replace(worth=lambda *product, **more: True):
        for _ in range(3):
            assert asked.by(lambda: torch.mm(a, b, out=a)) == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(products, "product", refuse)
            assert [asked.by(lambda: a @ b) for _ in range(4)] == [1, 0, 0, 0]
    assert [(r[4], r[5]) for r in rows()] == [(3, "out overlaps an operand"), (4, "no")]


def test_compiled_code(torch: Any, multiplied: Any, table: Any, asked: Asked) -> None:
    from harness.torch import replace

    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: (x @ w).relu(), backend="aot_eager", fullgraph=True)
    x, w = torch.randn(5, 3), torch.randn(3, 7)
    wanted = compiled(x, w)
    with replace(worth=never):
        assert [asked.by(lambda: compiled(x, w)) for _ in range(3)] == [1, 0, 0]
        assert torch.equal(compiled(x, w), wanted)
    assert [(r[0], r[4]) for r in rows()] == [("mm", 4)]


def test_pytorch_says_nothing(torch: Any, table: Any, multiplied: Any, capfd: Any) -> None:
    """Not even where it repeats its warnings, of what C++ registers on the standard error stream."""
    from harness.torch import replace

    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as said, replace(worth=never):
            torch.ones(5, 3) @ torch.ones(3, 7)
    finally:
        torch.set_warn_always(False)
    assert said == [] and capfd.readouterr() == ("", "")


def test_no_such_operator(table: Any) -> None:
    with pytest.raises(HarnessError, match="mmm"):
        table.hold("aten::mmm", "", "CPU")
    with pytest.raises(HarnessError):
        table.hold("aten::mm", "", "no key")


# Where it comes from


@pytest.fixture
def anew(torch: Any, _own_cache: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`known` as a new process has it, with an empty cache."""
    from harness.support import cache
    from harness.torch import known

    store = cache.Cache(tmp_path / "cache")
    monkeypatch.setattr(cache, "default", lambda: store)
    monkeypatch.setattr(known, "loaded", known.loaded.__wrapped__)
    return known


COMPILERS = {
    "none": ("/nonexistent/c++", "cannot be run"),
    "failing": ("false", "exit code 1"),
    "refusing": (
        "sh -c 'echo x.cpp:1: fatal error: no header >&2; exit 1'",
        "x.cpp:1: fatal error: no header",
    ),
    "writing nothing": ("true", "cannot open shared object file"),
    "writing rubbish": (
        "sh -c 'for x; do :; done; echo rubbish > $x' sh",
        "file too short|invalid ELF header",
    ),
}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_library(
    compiler: str, anew: Any, torch: Any, multiplied: Any, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python decides at each call then, and the report says why."""
    from harness.torch import replace, report

    command, why = COMPILERS[compiler]
    monkeypatch.setenv("CXX", command)
    a, b = torch.randn(5, 3), torch.randn(3, 7)
    wanted = a @ b
    with replace(worth=never):
        assert [asked.by(lambda: a @ b) for _ in range(3)] == [1, 1, 1]
        assert torch.equal(a @ b, wanted)
    assert rows() == [("mm", "5x7x3", "NN", "fp32", 4, "not worth it")]
    *_, part, note = str(report()).splitlines()
    assert part == "0.0% of the multiply-adds by harness"
    assert note.startswith("products cost the host more, for compiling known.cpp failed: ")
    assert re.search(why, note)


def test_a_failure_is_not_repeated(torch: Any, multiplied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.torch import known, replace

    tries = []

    def fail() -> Any:
        tries.append(1)
        raise HarnessError("no")

    monkeypatch.setattr(known, "_library", fail)
    known.loaded.cache_clear()
    try:
        for _ in range(3):
            with replace():
                pass
    finally:
        known.loaded.cache_clear()
    assert tries == [1]


def test_it_is_compiled_once(table: Any, anew: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another process finds it in the cache; what cannot be loaded from there is compiled again."""
    compiles = []
    compile_ = anew._compile

    def counted(*args: Any) -> None:
        compiles.append(1)
        compile_(*args)

    monkeypatch.setattr(anew, "_compile", counted)
    for n in (1, 1):
        assert anew.loaded()[0] is not None and len(compiles) == n
    monkeypatch.setattr(anew.torch, "__version__", "0.1")
    assert anew.loaded()[0] is not None and len(compiles) == 2
    store = anew.cache.default()
    monkeypatch.setattr(store, "get", lambda key: {"known.so": b"for another machine"})
    assert anew.loaded()[0] is not None and len(compiles) == 3


@pytest.mark.slow
def test_two_processes_at_once(table: Any, tmp_path: Path) -> None:
    code = (
        "import torch; from harness.torch import replacement, replace, report; replacement.KEY = 'CPU'\n"
        "with replace(worth=lambda *a, **b: False):\n"
        "    for _ in range(3): torch.ones(2, 3) @ torch.ones(3, 4)\n"
        "(call,) = report().records; assert call.calls == 3 and not report().note, report()"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "HARNESS_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
    both = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(list((tmp_path / "cache").rglob("known.so"))) == 1
