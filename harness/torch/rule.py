"""The rule by which `harness.torch.replace` decides, product by product, what harness computes: `worth`."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from harness.dispatch import choose
from harness.dispatch.call import batch as batches
from harness.dispatch.model import cost, traffic
from harness.dispatch.model.cost import SKINNY
from harness.driver import Device
from harness.kernels.dtypes import BF16, BF16X6, FP16, FP16X3, FP32, TF32, TF32X3
from harness.torch.records import calls

LEAST = 16  # rows, columns and k of a product of which batches are worth it
BRIEF = 120_000  # cycles, 60 us on the H200: Python takes longer to queue one than is gained in less
_AS_FP32 = (TF32X3.name, FP16X3.name, BF16X6.name)  # precisions for which PyTorch has true float32 only
_HALVES = (BF16.name, FP16.name)


class Worth(Protocol):
    """A rule that says which products are computed by harness; see `worth`."""

    def __call__(
        self, M: int, N: int, K: int, dtype: str, layout: str, *, batch: int, bias: bool
    ) -> bool: ...


def worth(M: int, N: int, K: int, dtype: str, layout: str, *, batch: int, bias: bool) -> bool:
    """Return True for the products that `replace` gives to harness, if it is not told otherwise.

    These are all that the chosen kernel reads where they are. Of those that take less than `BRIEF` by the
    cost model PyTorch's are ``x @ w.T`` in tf32 with more than 16 rows and columns (drawn layers of models
    are as fast there in the mean, and all of ViT-B's inference was slower with them: 0.965), and all where
    the library for known products could not be compiled, for PyTorch then takes less time on the host. In
    the precisions 3xtf32, fp16x3 and bf16x6, for which PyTorch has true float32 only, copies are no hindrance
    if the cost model finds the product faster than in float32. Batches are harness's in 16 bits only,
    if they take no less than `BRIEF` and no size of their products is below `LEAST`: of drawn batches of
    which ours took more than 60 us, PyTorch's took 1.3 times as long in the mean, in float32 and tf32 0.9
    times (records/h200/benchmarks/batches.json.xz). Raises UsageError if no kernel computes the product.

    The product is M x K times K x N, `batch` times. `dtype` is its element type as `harness.matmul` names it:
    "fp32", "bf16", "fp16", or the precision of float32. `layout` is "N" (row-major) or "T" (column-major) of
    each operand, such as "NT" for ``x @ w.T``. `bias` is True if what is added is broadcast.
    """
    if batch == 1:
        return preferred(M, N, K, dtype, layout)
    _, where = here(layout)
    return (
        dtype in _HALVES
        and min(M, N, K) >= LEAST
        and batches.fastest(batch, M, N, K, **where, dtype=dtype).cycles >= BRIEF
    )


def preferred(M: int, N: int, K: int, dtype: str, layout: str) -> bool:
    """Return True if harness computes a single product on the current GPU, by the rule of `worth`."""
    gpu, where = here(layout)
    variant = choose.choose(M, N, K, **where, gpu=gpu.name, dtype=dtype)
    own = choose.ranked(M, N, K, **where, dtype=dtype)
    theirs = dtype == TF32.name and layout == "NT" and min(M, N) > SKINNY
    if own and own[0][1] < BRIEF and (theirs or not calls.launches):
        return False
    if dtype not in _AS_FP32 or variant.kernel.dtype == FP32.name:
        return not traffic.unread(variant, layout)
    fp32 = choose.ranked(M, N, K, **where, dtype=FP32.name)
    return not own or not fp32 or own[0][1] < fp32[0][1]


def here(layout: str) -> tuple[Device, dict[str, Any]]:
    """Return the current GPU, and arguments of `choose.ranked` for it."""
    gpu = Device.open(torch.cuda.current_device())
    return gpu, {**cost.card(gpu), "layout": layout}
