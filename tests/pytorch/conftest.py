"""The operators and `replace` without a GPU: for tensors of the CPU, with NumPy in place of `harness.matmul`.

`multiplied` holds what NumPy was asked to multiply. It refuses what `harness.matmul` refuses.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fakes.c_driver import Launches
from harness.dispatch.call.options import PRECISIONS
from harness.errors import UsageError
from harness.kernels.epilogue import COLUMNS, Epilogue
from shared.tables import standing


@dataclass
class Multiplied:
    """The products that reached the kernel: shape and layouts, and the precision of each."""

    torch: Any
    seen: list[tuple[str, str]] = field(default_factory=list)
    repeated: int = 0  # of them were queued again without being read
    launches: Launches | None = None  # of the driver's, for C

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any,
        alpha: float,
        beta: float,
        precision: str,
        bias: Any,
        activation: str,
        invariant: bool,
    ) -> None:
        if precision not in PRECISIONS:
            raise UsageError(f"no precision {precision!r}")
        if precision != "ieee" and a.dtype is not self.torch.float32:
            raise UsageError(f"precision={precision!r} is about float32, and a is of {a.dtype}")
        letters = [self.layout(name, x) for name, x in (("a", a), ("b", b), ("out", out))]
        assert a.dtype is b.dtype is out.dtype
        batch = f"{a.shape[0]} of " if out.dim() == 3 else ""
        assert a.dim() == b.dim() == out.dim() and a.shape[:-2] == b.shape[:-2] == out.shape[:-2]
        assert (*a.shape[-2:-1], *b.shape[-2:]) == (out.shape[-2], a.shape[-1], out.shape[-1])
        if out.data_ptr() in (a.data_ptr(), b.data_ptr()):
            raise UsageError("out overlaps an operand")
        x, y, z = (m.double().numpy() for m in (a, b, out))
        result = alpha * (x @ y) + (beta * z if beta else 0)
        if bias is not None:
            assert bias.dtype is out.dtype and bias.shape == out.shape[-1:] and not bias.requires_grad
            assert bias.is_contiguous()
            letters.append(" bias")
        if activation:
            letters.append(f" {activation}")
        if invariant:
            Epilogue(0 if bias is None else COLUMNS).check_rounding(alpha, beta)
            letters.append(" invariant")
        epilogue = Epilogue(0 if bias is None else COLUMNS, activation)
        result = epilogue.finish(result, None if bias is None else bias.double().numpy())
        out.copy_(self.torch.from_numpy(result))
        shape = f"{out.shape[-2]}x{out.shape[-1]}x{a.shape[-1]}"
        self.seen.append((f"{batch}{shape} {''.join(letters)}", precision))

    def again(
        self,
        a: Any,
        b: Any,
        out: Any,
        precision: str,
        alpha: float,
        beta: float,
        bias: Any,
        invariant: bool,
        activation: str = "",
    ) -> Any:
        """Stand in for `products.again`: what is queued again is checked all the same, and counted."""
        return (
            None if out.dim() == 3 else Again(self, a, b, bias, precision, alpha, beta, invariant, activation)
        )

    @staticmethod
    def layout(name: str, x: Any) -> str:
        """Return "N" or "T"; asserts what `harness.matmul` asks of a tensor."""
        assert not x.requires_grad, f"{name} requires gradients"
        (rows, columns), (down, right) = x.shape[-2:], x.stride()[-2:]
        assert rows and columns, f"{name} is empty"
        if (right == 1 or columns == 1) and (down >= columns or rows == 1):
            return "N"
        assert down == 1 and (right >= rows or columns == 1), f"{name} is neither row- nor column-major"
        return "T"


class Again:
    """Stands in for `products.Again`, of which it is asked what `Multiplied` asks."""

    def __init__(self, multiplied: Multiplied, a: Any, b: Any, bias: Any, *options: Any) -> None:
        self._multiplied, self._options = multiplied, options
        self._alike, self._biased = self._lie(a, b), None if bias is None else (bias.shape, bias.stride())
        self._b = b.shape, b.stride()

    @staticmethod
    def _lie(*given: Any) -> list[Any]:
        """Return how tensors lie; a transpose lies as its original does."""
        return [(x.dtype, sorted(zip(x.shape, x.stride(), strict=True))) for x in given]

    def _read(self, a: Any, b: Any, bias: Any) -> tuple[Any, ...]:
        assert self._lie(a, b) == self._alike
        bias = None if self._biased is None else bias.detach().as_strided(*self._biased)
        return a.detach(), b.detach().as_strided(*self._b), bias

    def __call__(self, a: Any, b: Any, out: Any, bias: Any) -> None:
        precision, alpha, beta, invariant, activation = self._options
        a, b, bias = self._read(a, b, bias)
        self._multiplied.repeated += 1
        self._multiplied(a, b, out, alpha, beta, precision, bias, activation, invariant)

    def image(self, a: Any, b: Any, out: Any, bias: Any) -> Any:
        precision, alpha, beta, invariant, activation = self._options
        a, b, bias = self._read(a, b, bias)
        launches = self._multiplied.launches
        assert launches is not None, "only a table asks for it"
        return launches.image(a, b, out, precision, alpha, beta, bias, invariant, activation)


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch", reason="PyTorch is not installed")
    found.manual_seed(1)
    return found


@pytest.fixture(scope="session")
def _autocast() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from harness.torch import operators

    operators.register_autocast("cpu")


@pytest.fixture
def multiplied(torch: Any, _autocast: None, monkeypatch: pytest.MonkeyPatch) -> Multiplied:
    from harness.torch import products, replacement, rule, standing

    found = Multiplied(torch)
    monkeypatch.setattr(products, "on_gpu", lambda x: x.device.type in ("cpu", "meta"))
    monkeypatch.setattr(products, "product", found)
    monkeypatch.setattr(products, "again", found.again)
    monkeypatch.setattr(standing, "_kept", {})
    monkeypatch.setattr(standing, "table", lambda: None)
    monkeypatch.setattr(replacement, "KEY", "CPU")
    monkeypatch.setattr(rule, "preferred", lambda *product: True)
    where = {"sms": 132, "arch": "sm_90a"}
    monkeypatch.setattr(rule, "here", lambda layout: (None, {**where, "layout": layout}))
    return found


def no_compiler() -> str:
    """Return why known.cpp cannot be compiled here, or nothing."""
    command = (shlex.split(os.environ.get("CXX", "")) or ["c++"])[0]
    return "" if shutil.which(command) else f"there is no C++ compiler {command}"


@pytest.fixture
def table(torch: Any, _own_cache: None) -> Any:
    """The table of products that stay PyTorch's; a compiler that is there has to make it."""
    from harness.torch import known

    if why := no_compiler():
        pytest.skip(why)
    found, why = known.loaded()
    assert found is not None, why
    return found


@pytest.fixture
def launches(torch: Any, multiplied: Multiplied, table: Any, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """The table launches what harness computes, by functions that do it on the CPU."""
    from harness.torch import known, products

    found = multiplied.launches = Launches(torch, multiplied)
    monkeypatch.setattr(products, "image", found.image)
    monkeypatch.setattr(known, "functions", lambda: found.driver)
    return found


@pytest.fixture(params=["by the table", "by Python"])
def replace(
    request: pytest.FixtureRequest, torch: Any, multiplied: Multiplied, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """`replace` with the table of products that stay PyTorch's, and where it could not be compiled."""
    from harness.torch import known, replace

    if request.param == "by the table":
        request.getfixturevalue("table")
    else:
        monkeypatch.setattr(known, "loaded", lambda: (None, ""))
    return replace


@pytest.fixture(params=["by the table", "by Python"])
def both(request: pytest.FixtureRequest, multiplied: Multiplied) -> Iterator[None]:
    """The operators with the table of their known products, and where it could not be compiled."""
    if request.param == "by Python":
        yield
        return
    launches = request.getfixturevalue("launches")
    with standing(request.getfixturevalue("table")):
        yield
    assert not launches.errors
