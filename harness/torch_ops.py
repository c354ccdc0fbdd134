"""The PyTorch operator ``torch.ops.harness.matmul``: `harness.matmul` with gradients and for torch.compile.

Importing this module registers the operator; no other module of harness imports PyTorch.
``harness.torch_ops.matmul(a, b)`` computes ``torch.matmul(a, b)`` for float32, bfloat16 and float16 matrices
on a GPU. With ``precision="tf32"`` or ``"3xtf32"`` float32 matrices are multiplied on tensor cores, in the
gradients too. Operands that are not row-major (a transposed matrix, a step between columns) are copied first.
Batches raise UsageError. Importing raises MissingDependency if PyTorch cannot be imported.
"""

from __future__ import annotations

from typing import Any

from harness.dispatch import arrays
from harness.dispatch import matmul as dispatch
from harness.errors import MissingDependency, UsageError

try:
    import torch
except ImportError as e:
    raise MissingDependency(
        f"PyTorch cannot be imported: {e}", hint="pip install torch (a build for CUDA 13)"
    ) from None


def _check(a: Any, b: Any) -> None:
    """Raise unless `a` and `b` can be multiplied; needs no data, so it works on fake tensors too.

    Both must be matrices of one supported type on a GPU, or it raises UsageError; the inner sizes must match,
    or ``torch._check`` raises RuntimeError.
    """
    for name, x in (("a", a), ("b", b)):
        if x.dim() != 2:
            hint = "multiply the matrices of a batch one by one, or use torch.matmul"
            raise UsageError(f"{name} has {x.dim()} dimensions, not 2", hint=hint)
        if str(x.dtype) not in arrays.TORCH:
            raise UsageError(f"{name} is of {x.dtype}, not of {', '.join(arrays.TORCH)}")
        if x.device.type != "cuda":
            raise UsageError(f"{name} is on {x.device}, not on a GPU")
    if a.dtype is not b.dtype:
        raise UsageError(f"a is of {a.dtype}, b of {b.dtype}")
    torch._check(
        a.shape[1] == b.shape[0], lambda: f"a is {tuple(a.shape)}, b is {tuple(b.shape)}: they do not match"
    )


def _row_major(x: Any) -> Any:
    """Return the matrix itself if its rows are contiguous and do not overlap, otherwise a contiguous copy."""
    down, right = x.stride()
    return x if right == 1 and down >= x.shape[1] else x.contiguous()


def _multiply(a: Any, b: Any, precision: str = dispatch.IEEE) -> Any:
    """Return ``a @ b``: the operator's implementation on a GPU."""
    _check(a, b)
    if 0 in (*a.shape, *b.shape):  # needs no kernel: the product is empty or, with K = 0, all zeros
        return a.new_zeros((a.shape[0], b.shape[1]))
    return dispatch.matmul(_row_major(a.detach()), _row_major(b.detach()), precision=precision)


def _shape(a: Any, b: Any, precision: str = dispatch.IEEE) -> Any:
    """Return an uninitialised result: the operator's implementation for fake tensors."""
    _check(a, b)
    return a.new_empty((a.shape[0], b.shape[1]))


def _keep(ctx: Any, inputs: tuple[Any, Any, str], output: Any) -> None:
    """Save the operands and the precision for `_gradients`."""
    a, b, ctx.precision = inputs
    ctx.save_for_backward(a, b)


def _gradients(ctx: Any, grad: Any) -> tuple[Any, Any, None]:
    """Return the gradients of C = A B: dA = dC B^T and dB = A^T dC, and None for the precision.

    They are computed by the same operator, so that they can be differentiated again.
    """
    a, b = ctx.saved_tensors
    of_a, of_b = ctx.needs_input_grad[:2]  # PyTorch leaves out arguments at their default
    left = matmul(grad, b.t(), ctx.precision) if of_a else None
    return left, matmul(a.t(), grad, ctx.precision) if of_b else None, None


matmul = torch.library.custom_op(
    "harness::matmul",
    _multiply,
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor a, Tensor b, str precision='ieee') -> Tensor",
)
matmul.register_fake(_shape)
matmul.register_autograd(_gradients, setup_context=_keep)
