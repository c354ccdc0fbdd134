"""Gradients of the operators, by NT and TN products of the same operators, which can be differentiated again.

``torch.library.register_autograd`` would do, at twice the host time of a call without gradients: it always
dispatches twice. Here the kernel is called at once where no mode of PyTorch lies between autograd and the
backend (no tracing, no fake tensors, no tensor subclass).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from harness.dispatch.call.options import IEEE
from harness.torch.products import activated, flat

_below = torch._C._after_autograd_keyset
_BACKENDS = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CPU)  # the kernel refuses the CPU's


def autograd(
    operator: Any, kernel: Callable[..., Any], differentiate: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the operator's implementation for autograd, to be registered ``with_keyset``.

    ``differentiate(compute, *arguments)`` is called where a gradient is asked for; it returns ``compute()``
    with its place in the graph. `compute` is the kernel, or a dispatch below autograd.
    """

    def redispatch(keyset: Any, *args: Any, **options: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset, *args, **options)

    def implementation(keyset: Any, *args: Any, **options: Any) -> Any:
        compute = kernel if _next_is_backend(keyset) else functools.partial(redispatch, keyset & _below)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return differentiate(functools.partial(compute, *args, **options), *args, **options)
        return compute(*args, **options)

    return implementation


_known: dict[int, bool] = {}  # there are few sets of dispatch keys, and a look at one costs microseconds


def _next_is_backend(keyset: Any) -> bool:
    """Return True if nothing lies between autograd and the backend in a set of dispatch keys."""
    found = _known.get(keyset.raw_repr())
    if found is None:
        found = (keyset & _below).highestPriorityTypeId() in _BACKENDS
        _known[keyset.raw_repr()] = found
    return found


def plain(compute: Callable[[], Any], a: Any, b: Any, precision: str = IEEE) -> Any:
    """Differentiate ``mm`` and ``bmm``."""
    return _Product.apply(compute, None, a, b, 0, 1, precision)


def added(
    compute: Callable[[], Any],
    input: Any,
    a: Any,
    b: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
    precision: str = IEEE,
) -> Any:
    """Differentiate ``addmm`` and ``baddbmm``."""
    return _Product.apply(compute, input, a, b, beta, alpha, precision)


def linear(
    compute: Callable[[], Any],
    input: Any,
    weight: Any,
    bias: Any = None,
    precision: str = IEEE,
    *,
    activation: str = "",
) -> Any:
    """Differentiate ``linear``. PyTorch applies an activation then, and keeps what its gradient needs."""
    if activation:
        plain = torch.ops.harness.linear.default(input, weight, bias, precision)
        return activated(plain, activation)
    return _Linear.apply(compute, input, weight, bias, precision)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """The gradients of C = beta I + alpha A B: beta dC summed to I's shape, alpha dC B^T, alpha A^T dC."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[], Any],
        input: Any,
        a: Any,
        b: Any,
        beta: float,
        alpha: float,
        precision: str,
    ) -> Any:
        ctx.save_for_backward(a, b)
        ctx.beta, ctx.alpha, ctx.precision = beta, alpha, precision
        ctx.shape = None if input is None else input.shape
        return compute()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        operators = torch.ops.harness
        multiply = operators.mm.default if a.dim() == 2 else operators.bmm.default
        _, of_input, of_a, of_b, *_ = ctx.needs_input_grad
        input = _scaled(grad.sum_to_size(ctx.shape), ctx.beta) if of_input else None
        grad = _scaled(grad, ctx.alpha)
        left = multiply(grad, b.mT, ctx.precision) if of_a else None
        right = multiply(a.mT, grad, ctx.precision) if of_b else None
        return None, input, left, right, None, None, None


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """The gradients of Y = X W^T + bias: dX = dY W, dW = dY^T X, and dY summed over its rows."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[[], Any], input: Any, weight: Any, bias: Any, precision: str
    ) -> Any:
        ctx.save_for_backward(input, weight)
        ctx.precision = precision
        return compute()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        input, weight = ctx.saved_tensors
        multiply, rows = torch.ops.harness.mm.default, flat(grad)
        _, of_input, of_weight, of_bias, _ = ctx.needs_input_grad
        left = multiply(rows, weight, ctx.precision).reshape(input.shape) if of_input else None
        right = multiply(rows.t(), flat(input), ctx.precision) if of_weight else None
        return None, left, right, rows.sum(0) if of_bias else None, None


def _scaled(x: Any, factor: float) -> Any:
    """Return `x` times a factor, itself if that is 1."""
    return x if factor == 1 else x * factor
