"""Check the options of a call of `harness.matmul`: the precision, the scalars, what follows the product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from harness.dispatch import arrays, choose
from harness.dispatch.arrays import Matrix
from harness.driver import Stream
from harness.errors import UsageError
from harness.kernels.dtypes import BF16X6, FP16X3, FP32, TF32, TF32X3, DType
from harness.kernels.epilogue import ACTIVATIONS, COLUMNS, ROWS, Epilogue

IEEE = "ieee"
PRECISIONS = (IEEE, TF32.name, TF32X3.name, FP16X3.name, BF16X6.name)  # the ways to multiply float32
_FLOAT_MAX = float(np.finfo(np.float32).max)


def type_of(left: Matrix, right: Matrix, precision: str, at: str = "") -> str:
    """Return `product_type` of two operands; `at` follows their names. Raises UsageError if types differ."""
    if left.dtype is not right.dtype:
        what = f"a{at} is of {left.dtype.name}, b{at} of {right.dtype.name}"
        raise UsageError(what, hint="convert one of them")
    return product_type(left.dtype, precision)


def product_type(dtype: DType, precision: str) -> str:
    """Return the name of the element type in which matrices of `dtype` are multiplied, such as ``"bf16"``.

    Raises UsageError if `precision` is unknown or not for their type.
    """
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise UsageError(f"no precision {precision!r}", hint=f"there are {', '.join(PRECISIONS)}")
    if precision == IEEE:
        return dtype.name
    if dtype is not FP32:
        raise UsageError(f"precision={precision!r} is about float32, and a is of {dtype.name}")
    return precision


def epilogue(
    left: Matrix, out: Matrix, stream: int, bias: Any, axis: int, activation: str, at: Any
) -> tuple[Epilogue, Matrix | None]:
    """Return what follows the product, and what it reads: the bias as a row, or `at`, or None.

    Raises UsageError if they do not fit `out`.
    """
    if out.dtype is not left.dtype and out.dtype is not FP32:
        what = f"out is of {out.dtype.name}, a and b of {left.dtype.name}"
        raise UsageError(what, hint=f"out may be of {left.dtype.name} or fp32")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise UsageError(f"no activation {activation!r}", hint=f"there are {', '.join(ACTIVATIONS[1:])}")
    wide = out.dtype is not left.dtype
    if at is not None:
        return Epilogue(0, activation, wide, True), _derivative_at(at, out, activation, bias, stream)
    if bias is None:
        return Epilogue(0, activation, wide), None
    if not isinstance(axis, (int, np.integer)) or axis not in (0, 1):
        raise UsageError(f"bias_axis={axis!r}", hint="1: an element for each column of out, 0: for each row")
    found, extents = arrays.read("bias", bias, stream, dims=1), (out.rows, out.columns)
    if found.columns != extents[axis]:
        needed = f"{extents[axis]}, one for each {'column' if axis else 'row'} of out"
        hint = f"bias_axis={1 - axis}" if found.columns == extents[1 - axis] else ""
        raise UsageError(f"bias has {found.columns} elements, not {needed}", hint=hint)
    _check_alike("bias", found, out)
    return Epilogue((ROWS, COLUMNS)[axis], activation, wide), found


def _derivative_at(at: Any, out: Matrix, activation: str, bias: Any, stream: int) -> Matrix:
    """Return where the derivative is taken; raises UsageError unless it lies as `out` does."""
    if not activation or bias is not None:
        what = "derivative_at and a bias" if activation else "derivative_at without an activation"
        raise UsageError(what, hint='pass activation="gelu", say, and no bias: a gradient has none')
    found = arrays.read("derivative_at", at, stream)
    shapes = [" x ".join(map(str, (*x.leading, x.rows, x.columns))) for x in (found, out)]
    if shapes[0] != shapes[1]:
        raise UsageError(f"derivative_at is {shapes[0]}, out {shapes[1]}")
    _check_alike("derivative_at", found, out)
    if found.strides != out.strides:
        what = f"derivative_at has strides {found.strides}, out {out.strides}"
        raise UsageError(what, hint="both must lie alike: copy derivative_at, or pass an out that does")
    return found


def _check_alike(name: str, found: Matrix, out: Matrix) -> None:
    """Raise UsageError unless what an epilogue reads is of `out`'s type and on its GPU."""
    if found.dtype is not out.dtype:
        raise UsageError(f"{name} is of {found.dtype.name}, out of {out.dtype.name}", hint="convert it")
    if found.device != out.device:
        raise UsageError(f"{name} is on GPU {found.device}, out on GPU {out.device}")


def scalar(name: str, value: Any) -> float:
    """Return `value` as a float; raises UsageError unless it is finite in float32."""
    if type(value) is float and -_FLOAT_MAX <= value <= _FLOAT_MAX:
        return value
    try:
        number = float(value)
    except OverflowError:  # of an int
        number = math.inf
    except (TypeError, ValueError, RuntimeError):  # the last of a PyTorch tensor of many elements
        raise UsageError(f"{name}={value!r} is not a number") from None
    if not math.fabs(number) <= _FLOAT_MAX:
        raise UsageError(f"{name}={number} is not a finite float32")
    return number


def check_stream(stream: Any, left: Matrix) -> None:
    """Raise UsageError if a Stream of harness is of another GPU than the operands."""
    if isinstance(stream, Stream) and (other := stream.context.device.ordinal) != left.device:
        raise UsageError(f"the stream is of GPU {other}, a of GPU {left.device}")


def invariant(out: Matrix, scalars: tuple[float, float], epilogue: Epilogue) -> str:
    """Return what is invariant in the product that is launched: rows, which may lie as columns.

    Raises UsageError where kernels may round differently (`Epilogue.check_rounding`).
    """
    epilogue.check_rounding(*scalars)
    return choose.COLUMNS if out.transposed else choose.ROWS
