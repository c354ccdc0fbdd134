"""Tensor maps: 128-byte descriptors by which the Tensor Memory Accelerator (TMA) copies boxes of a matrix."""

from __future__ import annotations

import ctypes

from harness.driver import api
from harness.driver.context import Context
from harness.driver.launch import Struct
from harness.errors import UsageError

BYTES = 128  # size of the descriptor
ALIGN = 64  # alignment of the descriptor in bytes
UNIT = 16  # bytes: the TMA takes only addresses and pitches that are multiples of this


def possible(address: int, pitch: int, step: int = 0) -> bool:
    """Return True if the TMA can copy a matrix: `address` and row `pitch` are multiples of 16 bytes.

    So are, of several matrices, the bytes from one to the next (`step`), and not negative.
    """
    return address % UNIT == pitch % UNIT == step % UNIT == 0 <= step


def encode(
    context: Context,
    address: int,
    *,
    element: str,
    extents: tuple[int, int],
    pitch: int,
    box: tuple[int, int],
    swizzle: int = 0,
    promotion: int = 256,
    stack: tuple[int, int] | None = None,
) -> Struct:
    """Return the tensor map of a row-major matrix, to be passed as a ``const __grid_constant__`` parameter.

    `element` is CUDA's name of the element type (``"BFLOAT16"``). `extents` and `box` are (rows, columns) in
    elements, `pitch` is the bytes from row to row, `swizzle` 0, 32, 64 or 128 bytes, `promotion` the bytes
    that L2 fetches at once: 0, 64, 128 or 256. The part of a box beyond the matrix reads as zeros and is not
    written. If no map is `possible`, its bytes are all 0 and the kernel must not use it.

    With a `stack` of so many matrices, so many bytes apart, the map has three dimensions, and a box lies in
    one matrix; 0 bytes apart they are the same one. There is no map for distances that are negative or no
    multiple of 16.

    Raises UsageError on a GPU without TMA, DriverError for extents that it does not take.
    """
    if context.device.capability < (9, 0):
        raise UsageError(f"tensor maps need sm_90, {context.device.name} is {context.device.arch}")
    if not possible(address, pitch, stack[1] if stack else 0):
        return Struct(bytes(BYTES), ALIGN)
    driver = api.bindings()
    sizes, steps, boxes = [extents[1], extents[0]], [pitch], [box[1], box[0]]  # innermost first
    if stack:
        count, step = stack
        sizes, steps, boxes = [*sizes, count if step else 1], [pitch, step or pitch], [*boxes, 1]
    found = context.call(
        "cuTensorMapEncodeTiled",
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{element}"),
        len(sizes),
        address,
        [driver.cuuint64_t(size) for size in sizes],
        [driver.cuuint64_t(step) for step in steps],
        [driver.cuuint32_t(extent) for extent in boxes],
        [driver.cuuint32_t(1) for _ in sizes],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"),
        getattr(
            driver.CUtensorMapL2promotion,
            f"CU_TENSOR_MAP_L2_PROMOTION_{f'L2_{promotion}B' if promotion else 'NONE'}",
        ),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return Struct(ctypes.string_at(int(found.getPtr()), BYTES), ALIGN)
