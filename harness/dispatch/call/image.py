"""The launch of a product for callers in C, which queue it again without reading anything."""

from __future__ import annotations

from typing import Any

from harness.dispatch.call import gpus, operands, options
from harness.dispatch.prepared import GemmImage, GemmLaunch
from harness.kernels.epilogue import PLAIN


def image(
    a: Any, b: Any, out: Any, *, alpha: float, beta: float, bias: Any, precision: str, invariant: bool
) -> tuple[GemmLaunch, GemmImage] | None:
    """Return the launch that ``harness.matmul(a, b, out, ...)`` has queued, and its image.

    The image serves operands of these types, shapes and strides at any address, on any stream of the context
    on which they are ready. The launch must be kept as long as the image is used. None for batches, for an
    `out` that is column-major or of another type than `a`, and for what takes several launches. Raises
    UsageError as `harness.matmul` does, but for operands that overlap.
    """
    scalars = options.scalar("alpha", alpha), options.scalar("beta", beta)
    left, right, result, _, dtype, leading, stream = operands.read(
        a, b, out, stream=None, precision=precision, beta=scalars[1]
    )
    if leading or result.transposed or result.dtype is not left.dtype:
        return None
    epilogue, addresses = PLAIN, [left.address, right.address, result.address]
    if bias is not None:
        epilogue, added = options.epilogue(left, result, stream, bias, 1, "", None)
        addresses += [] if added is None else [added.address]
    rows = options.invariant(result, scalars, epilogue) if invariant else ""
    shape = gpus.shape_of((left, right, result))
    return gpus.gpu(left.device).image(shape, (dtype, epilogue, rows), addresses, scalars, stream)
