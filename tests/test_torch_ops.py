"""The operator of PyTorch without a GPU: shapes, refusals, and its gradients with a kernel for the CPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from harness.errors import MissingDependency

REGISTER = "torch.library.register_kernel('harness::matmul', 'cpu', multiply)"


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "harness.torch_ops", raising=False)
    with pytest.raises(MissingDependency, match="PyTorch cannot be imported"):
        import harness.torch_ops  # noqa: F401


def test_fake_tensors_have_the_shape(torch: Any) -> None:
    from torch._subclasses import FakeTensorMode

    from harness import torch_ops

    with FakeTensorMode():
        a, b = torch.empty(5, 3, device="cuda"), torch.empty(3, 7, device="cuda")
        out = torch.ops.harness.matmul(a, b)
        assert (tuple(out.shape), out.dtype, out.device.type) == ((5, 7), torch.float32, "cuda")
        for dtype in (torch.bfloat16, torch.float16):
            assert torch.ops.harness.matmul(a.to(dtype), b.to(dtype)).dtype is dtype
        wrong = {
            "do not match": (b, b),
            "a has 3 dimensions": (torch.empty(2, 5, 3, device="cuda"), b),
            "b is of torch.float64": (a, torch.empty(3, 7, device="cuda", dtype=torch.float64)),
            "a is of torch.float32, b of torch.bfloat16": (a, b.bfloat16()),
            "a is on cpu": (torch.empty(5, 3), b),
        }
        for message, operands in wrong.items():
            with pytest.raises(Exception, match=message):
                torch_ops.matmul(*operands)


def test_gradients_and_their_gradients(torch: Any) -> None:
    """In a process of its own: a kernel for the CPU stays registered."""
    code = f"""
import torch
from harness import torch_ops
seen = []
def multiply(a, b, precision="ieee"):
    seen.append(precision)
    return torch.mm(a, b)
{REGISTER}
torch_ops._check = lambda a, b: None
a = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
b = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(torch_ops.matmul, (a, b))
assert torch.autograd.gradgradcheck(torch_ops.matmul, (a, b))
only = torch_ops.matmul(a, b.detach()).sum()
only.backward()
assert b.grad is None and a.grad.shape == a.shape
torch.library.opcheck(torch.ops.harness.matmul.default, (a.detach(), b.detach()))
assert set(seen) == {{"ieee"}}
seen.clear()
torch_ops.matmul(a, b, "tf32").sum().backward()
assert seen == ["tf32"] * 3, seen  # its gradients, too
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_operands_are_copied_only_where_they_must_be(torch: Any) -> None:
    from harness.torch_ops import _row_major

    x = torch.randn(6, 8)
    for same in (x, x[:, 2:5], x[1:2], x[::2]):
        assert _row_major(same) is same
    for copied in (x.t(), x[:, ::2], x[:1].expand(6, 8)):
        found = _row_major(copied)
        assert found.stride(1) == 1 and found.stride(0) >= found.shape[1] and torch.equal(found, copied)
