"""Products of PyTorch tensors by `harness.matmul`: what it takes, and in which layout.

These functions are the operators' kernels: they run below autograd, on tensors with data.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.nn import functional

from harness.dispatch import arrays
from harness.dispatch import matmul as dispatch
from harness.dispatch.call import again as dispatch_again
from harness.dispatch.call.options import IEEE
from harness.dispatch.prepared import GemmImage
from harness.errors import UsageError
from harness.kernels.epilogue import ACTIVATIONS
from harness.torch import standing

DTYPES = {getattr(torch, name.removeprefix("torch.")): kind for name, kind in arrays.TORCH.items()}
_DENSE = torch.strided
_BY_TANH = functools.partial(functional.gelu, approximate="tanh")
_FUNCTIONS: dict[str, Any] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": _BY_TANH,
    "silu": functional.silu,
}
COPIED = "-"  # the layout of a matrix that is neither row- nor column-major


def product(
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
    """Queue ``activation(alpha * a @ b + beta * out + bias)``: a product of matrices, or of batches of them.

    Each matrix is row- or column-major.
    """
    options: Any = {"alpha": alpha, "beta": beta, "precision": precision, "invariant": invariant}
    dispatch.matmul(a, b, out, bias=bias, activation=activation, **options)


def layout(x: Any) -> str:
    """Return how the matrices of `x` lie in memory: "N" row-major, "T" column-major, else `COPIED`."""
    rows, columns = x.shape[-2:]
    down, right = x.stride()[-2:]
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return "N"
    return "T" if down == 1 and (right >= rows or columns == 1) else COPIED


def multiply(
    a: Any,
    b: Any,
    out: Any,
    precision: str,
    alpha: float = 1,
    beta: float = 0,
    bias: Any = None,
    activation: str = "",
) -> Any:
    """Compute ``out = activation(alpha * a @ b + beta * out + bias)``, and return `out`.

    The operands are matrices or batches of them; those that are neither row- nor column-major are copied
    first. `bias` is a contiguous vector, with an element for each column. Empty products need no kernel.
    """
    if 0 in out.shape:
        return out
    if a.shape[-1] == 0:  # a sum of nothing
        total = out.mul_(beta) if beta else out.zero_()
        return out.copy_(activated(total if bias is None else total.add_(bias), activation))
    return queue(readable(a), readable(b), out, precision, alpha, beta, bias, activation)


def activated(x: Any, activation: str) -> Any:
    """Return what PyTorch's function of that name makes of `x`; `x` itself for an empty name."""
    return _FUNCTIONS[activation](x) if activation else x


def readable(x: Any) -> Any:
    """Return `x`, copied if its matrices are neither row- nor column-major."""
    return x.contiguous() if layout(x) == COPIED else x


def queue(
    a: Any,
    b: Any,
    out: Any,
    precision: str,
    alpha: float,
    beta: float,
    bias: Any = None,
    activation: str = "",
    invariant: bool = False,
) -> Any:
    """Queue a product as `multiply` does; it is not empty and its operands need no copy.

    With `invariant` a row has the same bits however many there are.
    """
    if a.requires_grad:  # autograd has seen them, and harness.matmul would refuse them
        a = a.detach()
    if b.requires_grad:
        b = b.detach()
    if bias is not None and bias.requires_grad:
        bias = bias.detach()
    product(a, b, out, alpha, beta, precision, bias, activation, invariant)
    return out


class Again:
    """Queues a product that `queue` has queued, for tensors that lie alike.

    It reads nothing of them but addresses: a transpose serves as well, and so does what begins with the bias.
    """

    def __init__(self, known: dispatch_again.Again, device: int, biased: bool) -> None:
        self._known, self._device, self._biased = known, device, biased

    def __call__(self, a: Any, b: Any, out: Any, bias: Any) -> None:
        """Queue it on PyTorch's current stream."""
        self._known(self._addresses(a, b, out, bias), arrays.torch_stream(self._device))

    def image(self, a: Any, b: Any, out: Any, bias: Any) -> GemmImage | None:
        """Return its launch for callers in C; None for what takes several launches."""
        return self._known.image(self._addresses(a, b, out, bias), arrays.torch_stream(self._device))

    def _addresses(self, a: Any, b: Any, out: Any, bias: Any) -> list[int]:
        return [x.data_ptr() for x in ((a, b, out, bias) if self._biased else (a, b, out))]


def again(
    a: Any,
    b: Any,
    out: Any,
    precision: str,
    alpha: float,
    beta: float,
    bias: Any,
    invariant: bool,
    activation: str = "",
) -> Again | None:
    """Return what queues a product that `queue` has queued, for tensors that lie alike; None for batches."""
    options: Any = {"alpha": alpha, "beta": beta, "bias": bias, "activation": activation}
    with torch.no_grad():
        known = dispatch_again.again(a, b, out, precision=precision, invariant=invariant, **options)
    return None if known is None else Again(known, out.get_device(), bias is not None)


def image(
    a: Any, b: Any, out: Any, precision: str, alpha: float, beta: float, bias: Any, invariant: bool
) -> GemmImage | None:
    """Return the launch of a product that `queue` has queued for callers in C, for tensors that lie alike.

    None for batches, and for what takes several launches.
    """
    found = again(a, b, out, precision, alpha, beta, bias, invariant)
    return None if found is None else found.image(a, b, out, bias)


def check(dims: int, a: Any, b: Any, *added: Any) -> tuple[int, ...]:
    """Return the shape of ``a @ b``, for matrices (`dims` 2) or batches (3) with or without data.

    `added` is the input of ``addmm``, if any. Raises UsageError unless all are of one supported type on a
    GPU, RuntimeError (by ``torch._check``, which knows of symbolic sizes) if sizes do not match.
    """
    if a.dim() != dims or b.dim() != dims:
        found = f"a has {a.dim()} dimensions and b {b.dim()}, not {dims}"
        raise UsageError(
            found, hint="mm takes matrices, bmm batches of them (3 dimensions), linear any input"
        )
    if not _alike(a, b, *added):
        raise _unlike(a=a, b=b, **dict(zip(("input",), added, strict=False)))
    same = a.shape[-1] == b.shape[-2] and (dims == 2 or a.shape[0] == b.shape[0])
    if same is not True:
        torch._check(same, lambda: f"a is {tuple(a.shape)}, b is {tuple(b.shape)}: they do not match")
    return (*a.shape[:-1], b.shape[-1])


def check_linear(input: Any, weight: Any, bias: Any, activation: str = "") -> tuple[int, ...]:
    """Return the shape of ``linear``'s result; raises as `check` does, and UsageError for no activation."""
    if activation not in ACTIVATIONS:
        raise UsageError(f"no activation {activation!r}", hint=f"there are {', '.join(ACTIVATIONS[1:])}")
    if input.dim() == 0 or weight.dim() != 2:
        dims = f"input has {input.dim()} dimensions, weight {weight.dim()}"
        raise UsageError(dims, hint="linear takes an input of (..., K) and a weight of (N, K)")
    if not (_alike(input, weight) if bias is None else _alike(input, weight, bias)):
        raise _unlike(input=input, weight=weight, **({} if bias is None else {"bias": bias}))
    same = input.shape[-1] == weight.shape[1]
    if bias is not None:
        same = same and bias.dim() == 1 and bias.shape[0] == weight.shape[0]
    if same is not True:
        shapes = [None if x is None else tuple(x.shape) for x in (input, weight, bias)]
        torch._check(same, lambda: "input is {}, weight {}, bias {}: they do not match".format(*shapes))
    return (*input.shape[:-1], weight.shape[0])


def on_gpu(x: Any) -> bool:
    """Return True for a tensor on a GPU, or one without data that may stand for it."""
    return bool(x.is_cuda or x.is_meta)


def _alike(*tensors: Any) -> bool:
    """Return True if all tensors are dense, of one supported type, and on a GPU."""
    dtype = tensors[0].dtype
    alike = dtype in DTYPES
    for x in tensors:  # at each call: a generator would cost more than all that it asks
        alike = alike and x.dtype is dtype and x.layout is _DENSE and on_gpu(x)
    return alike


def _unlike(**tensors: Any) -> UsageError:
    """Return the error that says what `_alike` found."""
    first, *_ = tensors
    dtype = tensors[first].dtype
    for name, x in tensors.items():
        if x.layout is not _DENSE:
            return UsageError(f"{name} is of {x.layout}, not strided", hint="x.to_dense()")
        if x.dtype not in DTYPES:
            return UsageError(f"{name} is of {x.dtype}, not of {', '.join(arrays.TORCH)}")
        if x.dtype is not dtype:
            return UsageError(f"{first} is of {dtype}, {name} of {x.dtype}", hint="convert one of them")
    where = next(f"{name} is on {x.device}" for name, x in tensors.items() if not on_gpu(x))
    return UsageError(f"{where}, not on a GPU")


def _keep(
    key: Any,
    a: Any,
    b: Any,
    out: Any,
    precision: str,
    bias: Any = None,
    alpha: float = 1,
    activation: str = "",
) -> None:
    """Keep the product of a call, unless it copies an operand or needs no kernel."""
    if key is None or 0 in out.shape or a.shape[-1] == 0 or COPIED in (layout(a), layout(b)):
        return
    kept = standing.keep(key, again(a, b, out, precision, alpha, 0, bias, False, activation))
    if kept is not None:
        kept.offer(a, b, out, bias)


def plain(dims: int, a: Any, b: Any, precision: str = IEEE) -> Any:
    """Return ``a @ b``: the kernel of ``mm`` and ``bmm``."""
    key = standing.key(dims, precision, of=(a, b))
    known = standing.find(key)
    if known is not None:
        return known(a, b, a.new_empty((a.shape[0], b.shape[1])), None)
    out = a.new_empty(check(dims, a, b))
    multiply(a, b, out, precision)
    if dims == 2:  # a batch is not queued again so
        _keep(key, a, b, out, precision)
    return out


def added(
    dims: int, input: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1, precision: str = IEEE
) -> Any:
    """Return ``beta * input + alpha * a @ b``: the kernel of ``addmm`` and ``baddbmm``."""
    key = standing.key("added", dims, precision, alpha, beta, of=(input, a, b))
    known = standing.find(key)
    if known is not None:
        return known(a, b, a.new_empty((a.shape[0], b.shape[1])), input)
    out = a.new_empty(check(dims, a, b, input))
    bias = vector(input, out, beta)
    if bias is None:
        start(out, input, beta)
    multiply(a, b, out, precision, alpha, beta if bias is None else 0, bias)
    # What is written before the product is not queued again, and 0.0 and -0.0 are one key of two products.
    if dims == 2 and alpha and (bias is not None or not beta):
        _keep(key, a, b, out, precision, bias, alpha)
    return out


def linear(input: Any, weight: Any, bias: Any = None, precision: str = IEEE, *, activation: str = "") -> Any:
    """Return ``activation(input @ weight.T + bias)`` for an input of any dimensions."""
    tensors = (input, weight) if bias is None else (input, weight, bias)
    key = standing.key("linear", precision, activation, of=tensors)
    known = standing.find(key)
    if known is not None:
        out = weight.new_empty((*input.shape[:-1], weight.shape[0]))
        known(flat(input), weight, flat(out), bias)
        return out
    out = weight.new_empty(check_linear(input, weight, bias, activation))
    rows, columns, added = flat(input), weight.t(), None if bias is None else bias.contiguous()
    multiply(rows, columns, flat(out), precision, bias=added, activation=activation)
    if added is bias and rows.data_ptr() == input.data_ptr():  # none of them is a copy
        _keep(key, rows, columns, flat(out), precision, added, activation=activation)
    return out  # no view, so that it may be changed in place


def flat(x: Any) -> Any:
    """Return `x` as a matrix whose rows are its last dimension; a view where strides allow one."""
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def vector(input: Any, out: Any, beta: float) -> Any:
    """Return what is added to a product as a vector, if a kernel can add it to each row, or else None.

    It is the same for all rows, and for all matrices of a batch: there are no others, or a step of 0 to them.
    """
    columns, dims = out.shape[-1], input.dim()
    if beta != 1 or not 1 <= dims <= out.dim() or input.shape[-1] != columns:
        return None
    if input.stride()[-1] != 1 and columns > 1:
        return None
    if dims == 1:
        return input
    sizes = zip(input.shape[:-1], input.stride()[:-1], out.shape[-dims:-1], strict=True)
    alike = all(size == 1 or (step == 0 and size == wanted) for size, step, wanted in sizes)
    return input[(0,) * (dims - 1)] if alike else None


def start(out: Any, input: Any, beta: float) -> None:
    """Write `input`, broadcast, to where ``beta`` times it is added to the product, as cuBLAS does.

    So the sum is rounded once. With a `beta` of 0 the input is not read. Raises RuntimeError if it cannot be
    broadcast.
    """
    if beta:
        out.copy_(input)
    else:
        input.expand(out.shape)
