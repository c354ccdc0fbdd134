"""Products of matrices that are sharded over several GPUs of one host, by `harness.matmul` on each of them.

`matmul` takes DTensors, one process a GPU; `matmul_lists` takes lists of tensors, one process for all GPUs.
Both carry out the same schedules (`harness.torch.sharded.schedule`), in which blocks travel while others are
multiplied: between processes by torch.distributed, so NCCL (`processes`), and within one by copies between
the GPUs (`lists`). Tensors of the CPU are multiplied by PyTorch, over gloo.

Raises MissingDependency if this PyTorch is built without torch.distributed.
"""

from __future__ import annotations

from harness.errors import MissingDependency

try:
    import torch.distributed.tensor as _tensor  # noqa: F401
except ImportError as e:
    raise MissingDependency(
        f"this PyTorch has no DTensor: {e}", hint="install PyTorch 2.11 or later, built for CUDA 13"
    ) from None

from harness.torch.sharded.lists import matmul_lists
from harness.torch.sharded.processes import matmul

__all__ = ["matmul", "matmul_lists"]
