"""Read the operands of a product, and refuse what does not fit together before anything is queued."""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.dispatch import arrays
from harness.dispatch.arrays import LEGACY, Matrix
from harness.dispatch.call import batch, gpus, options
from harness.errors import UsageError


class Read(NamedTuple):
    """The operands of a product: `out` is the array itself, `result` its matrix.

    `dtype` names the type in which they are multiplied, `leading` has the dimensions of a batch, and `stream`
    is the address of the stream to use.
    """

    left: Matrix
    right: Matrix
    result: Matrix
    out: Any
    dtype: str
    leading: tuple[int, ...]
    stream: int

    @property
    def ready_together(self) -> bool:
        """True if all are ready on one stream, or on every one."""
        return self.left.ready == self.right.ready == self.result.ready


def read(a: Any, b: Any, out: Any, *, stream: int | None, precision: str, beta: float, at: str = "") -> Read:
    """Read three arrays of a product; an `out` of None is made by the library of `a`.

    If `stream` is None, it becomes that of `a`. `at` stands behind each name in an error, as in ``a[3]``.
    Raises UsageError for what is no matrix, and for sizes, types and GPUs that do not match.
    """
    left = arrays.read(f"a{at}", a, stream)
    if stream is None:
        if arrays.is_ours(a):
            raise UsageError(f"a{at} lies in a Buffer, which belongs to no stream", hint="pass stream=")
        stream = LEGACY if left.ready is None else gpus.resolved(left)
    right = arrays.read(f"b{at}", b, stream)
    dtype = options.type_of(left, right, precision, at)
    if left.columns != right.rows:
        shapes = f"a{at} is {left.rows} x {left.columns} and b{at} is {right.rows} x {right.columns}"
        raise UsageError(f"{shapes}: a's columns must be as many as b's rows")
    leading = batch.leading(left, right) if left.leading or right.leading else ()
    if out is None:
        if beta:
            raise UsageError(f"beta={beta:g} without out{at}", hint="out is what beta multiplies: pass out=")
        out = arrays.empty_like(a, (*leading, left.rows, right.columns))
    result, shape = arrays.read(f"out{at}", out, stream, written=True), (*leading, left.rows, right.columns)
    if (found := (*result.leading, result.rows, result.columns)) != shape:
        raise UsageError(f"out{at} is {' x '.join(map(str, found))}, not {' x '.join(map(str, shape))}")
    if not left.device == right.device == result.device:
        where = f"{left.device}, {right.device} and {result.device}"
        raise UsageError(f"a{at}, b{at} and out{at} are on GPUs {where}")
    return Read(left, right, result, out, dtype, leading, stream)
