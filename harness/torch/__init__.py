"""`harness.matmul` in PyTorch: operators with gradients, and `replace`, which gives it a model's products.

Importing this package registers ``torch.ops.harness.{mm, addmm, linear, bmm, baddbmm, matmul}``; they are
also names of this package. No other room of harness imports PyTorch. Raises MissingDependency if PyTorch
cannot be imported.
"""

from __future__ import annotations

from harness.errors import MissingDependency

try:
    import torch as _torch  # noqa: F401
except ImportError as e:
    raise MissingDependency(
        f"PyTorch cannot be imported: {e}", hint="pip install torch (a build for CUDA 13)"
    ) from None

from harness.torch.operators import addmm, baddbmm, bmm, linear, matmul, mm
from harness.torch.records import Report, report
from harness.torch.replacement import replace
from harness.torch.rule import worth

__all__ = ["Report", "addmm", "baddbmm", "bmm", "linear", "matmul", "mm", "replace", "report", "worth"]
