"""A product queued again: of other arrays that lie as those did for which everything was read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.dispatch.call import gpus, operands, options
from harness.dispatch.call.gpus import Gpu, Kind
from harness.dispatch.prepared import GemmImage
from harness.kernels.epilogue import PLAIN


class Again:
    """Queues one product, of matrices at any addresses. Any number of threads may call it."""

    def __init__(self, gpu: Gpu, shape: tuple[int, ...], kind: Kind, scalars: tuple[float, float]) -> None:
        self._gpu, self._shape, self._kind, self._scalars = gpu, shape, kind, scalars

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Queue it on the stream at address `stream`, for which the operands are ready.

        `addresses` are those of a, b, out and, if there is one, the bias. Nothing is checked: `out` must not
        overlap the others. Raises OutOfMemory if the kernel has no room.
        """
        self._gpu.again(self._shape, self._kind, addresses, self._scalars, stream)

    def image(self, addresses: Sequence[int], stream: int) -> GemmImage | None:
        """Return the launch that queues it, for callers in C, as `Gpu.image` does."""
        return self._gpu.image(self._shape, self._kind, addresses, self._scalars, stream)


def again(
    a: Any,
    b: Any,
    out: Any,
    *,
    alpha: float,
    beta: float,
    bias: Any,
    precision: str,
    invariant: bool,
    activation: str = "",
) -> Again | None:
    """Return what queues ``harness.matmul(a, b, out, ...)`` for other arrays of these shapes and strides.

    None for batches, and for an `out` that is column-major or of another type than `a`. Raises UsageError as
    `harness.matmul` does, but for operands that overlap.
    """
    scalars = options.scalar("alpha", alpha), options.scalar("beta", beta)
    left, right, result, _, dtype, leading, stream = operands.read(
        a, b, out, stream=None, precision=precision, beta=scalars[1]
    )
    if leading or result.transposed or result.dtype is not left.dtype:
        return None
    epilogue = PLAIN
    if bias is not None or activation:
        epilogue, _ = options.epilogue(left, result, stream, bias, 1, activation, None)
    rows = options.invariant(result, scalars, epilogue) if invariant else ""
    shape = gpus.shape_of((left, right, result))
    return Again(gpus.gpu(left.device), shape, (dtype, epilogue, rows), scalars)
