"""`harness.matmul` as PyTorch's ``torch.ops.harness.matmul``, with gradients and for torch.compile.

Importing this module registers it; nothing else here imports PyTorch. ``harness.torch_ops.matmul(a, b)`` is
``torch.matmul(a, b)`` for float32, bfloat16 and float16 matrices on a GPU; ``precision="tf32"`` (or
``"3xtf32"``) multiplies float32 on tensor cores, its gradients too. Operands that are not row-major (a
transpose, a step between columns) are copied first; batches are refused.
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
    """What can be told without data, and so holds for fake tensors, too."""
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
    """Itself where a kernel can read it, else a copy."""
    down, right = x.stride()
    return x if right == 1 and down >= x.shape[1] else x.contiguous()


def _multiply(a: Any, b: Any, precision: str = dispatch.IEEE) -> Any:
    _check(a, b)
    if 0 in (*a.shape, *b.shape):  # no kernel: an empty product, or sums of nothing
        return a.new_zeros((a.shape[0], b.shape[1]))
    return dispatch.matmul(_row_major(a.detach()), _row_major(b.detach()), precision=precision)


def _shape(a: Any, b: Any, precision: str = dispatch.IEEE) -> Any:
    _check(a, b)
    return a.new_empty((a.shape[0], b.shape[1]))


def _keep(ctx: Any, inputs: tuple[Any, Any, str], output: Any) -> None:
    a, b, ctx.precision = inputs
    ctx.save_for_backward(a, b)


def _gradients(ctx: Any, grad: Any) -> tuple[Any, Any, None]:
    """Of C = A B: dA = dC B^T, dB = A^T dC. By the same operator, so that they can be derived again."""
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
