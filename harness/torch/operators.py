"""The operators ``torch.ops.harness.{mm, addmm, linear, bmm, baddbmm, matmul}``, registered with PyTorch.

Each computes what PyTorch's function of that name computes, for float32, bfloat16 and float16 on a GPU, and
takes a `precision` as `harness.matmul` does: ``"ieee"``, ``"tf32"``, ``"3xtf32"``, ``"fp16x3"`` or
``"bf16x6"``, in the gradients too. ``linear`` also takes an `activation`. ``matmul`` is another name of
``mm``. Operands may be row- or column-major; others (a step in both directions, a broadcast row) are copied
first.

An operator has a kernel (`harness.torch.products`), a shape for fake tensors, a function with gradients
(`harness.torch.gradients`), and a cast for autocast. They are registered one by one: what
``torch.library.custom_op`` puts around a kernel costs several times the host time of a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from harness.dispatch.call.options import IEEE, PRECISIONS
from harness.torch import gradients, products

_PLAIN = "(Tensor a, Tensor b, str precision='ieee') -> Tensor"
_ADDED = (
    "(Tensor input, Tensor a, Tensor b, *, Scalar beta=1, Scalar alpha=1, str precision='ieee') -> Tensor"
)
_LINEAR = (
    "(Tensor input, Tensor weight, Tensor? bias=None, str precision='ieee', *, str activation='') -> Tensor"
)


def _plain_shape(dims: int, a: Any, b: Any, precision: str = IEEE) -> Any:
    """Return an uninitialised result of ``mm`` or ``bmm``, for fake tensors."""
    return a.new_empty(products.check(dims, a, b))


def _added_shape(
    dims: int, input: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1, precision: str = IEEE
) -> Any:
    """Return an uninitialised result of ``addmm`` or ``baddbmm``, for fake tensors."""
    out = a.new_empty(products.check(dims, a, b, input))
    products.start(out, input, 0)  # can it be broadcast?
    return out


def _linear_shape(
    input: Any, weight: Any, bias: Any = None, precision: str = IEEE, *, activation: str = ""
) -> Any:
    """Return an uninitialised result of ``linear``, for fake tensors."""
    return weight.new_empty(products.check_linear(input, weight, bias, activation))


def _cast(x: Any, device: str, dtype: Any) -> Any:
    """Return an argument as autocast gives it to PyTorch's own products.

    A floating-point tensor on `device` becomes of `dtype`, unless it is float64. As `dtype` is not float32,
    a known precision, which is about float32, becomes ``"ieee"``.
    """
    if isinstance(x, torch.Tensor):
        fit = x.is_floating_point() and x.device.type == device and x.dtype is not torch.float64
        return x.to(dtype) if fit else x
    return IEEE if isinstance(x, str) and x in PRECISIONS else x


def _autocast(name: str, device: str) -> Callable[..., Any]:
    """Return the operator's kernel for autocast on a device type."""
    operator = getattr(torch.ops.harness, name).default
    own = torch._C.DispatchKeySet(torch._C.DispatchKey.__members__[f"Autocast{device.upper()}"])

    def autocast(*args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        cast = [_cast(x, device, dtype) for x in args]
        named = {key: _cast(x, device, dtype) for key, x in options.items()}
        with torch._C._ExcludeDispatchKeyGuard(own):
            return operator(*cast, **named)

    return autocast


def register_autocast(device: str) -> None:
    """Register casts of all operators for autocast on a device type, such as ``"cuda"``."""
    for name in _OPERATORS:
        _library.impl(name, _autocast(name, device), f"Autocast{device.upper()}")


class _Operator(NamedTuple):
    """The parts of an operator; `differentiate` calls its autograd function (see `gradients.autograd`)."""

    schema: str
    kernel: Callable[..., Any]
    shape: Callable[..., Any]
    differentiate: Callable[..., Any]


def _product(dims: int) -> _Operator:
    kernel, shape = functools.partial(products.plain, dims), functools.partial(_plain_shape, dims)
    return _Operator(_PLAIN, kernel, shape, gradients.plain)


def _sum(dims: int) -> _Operator:
    kernel, shape = functools.partial(products.added, dims), functools.partial(_added_shape, dims)
    return _Operator(_ADDED, kernel, shape, gradients.added)


_OPERATORS = {
    "mm": _product(2),
    "matmul": _product(2),
    "addmm": _sum(2),
    "linear": _Operator(_LINEAR, products.linear, _linear_shape, gradients.linear),
    "bmm": _product(3),
    "baddbmm": _sum(3),
}
_library = torch.library.Library("harness", "DEF")  # the registrations last as long as this object
for _name, _parts in _OPERATORS.items():
    _library.define(_name + _parts.schema)
    _overload = getattr(torch.ops.harness, _name).default
    _library.impl(_name, _parts.kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"harness::{_name}", _parts.shape, lib=_library)
    _differentiable = gradients.autograd(_overload, _parts.kernel, _parts.differentiate)
    _library.impl(_name, _differentiable, "Autograd", with_keyset=True)
register_autocast("cuda")

mm = torch.ops.harness.mm.default
matmul = torch.ops.harness.matmul.default
addmm = torch.ops.harness.addmm.default
linear = torch.ops.harness.linear.default
bmm = torch.ops.harness.bmm.default
baddbmm = torch.ops.harness.baddbmm.default
