"""Copies of operands to where, and as, a kernel reads them: at a pitch that TMA takes, or transposed."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness.dispatch.workspaces import Need
from harness.driver import Function, RowCopy, Stream
from harness.kernels import spec
from harness.kernels.spec import Variant
from harness.problems.protocol import Layout

SOURCE = Path(__file__).with_name("transpose.cu")
OPERANDS = "ABC"
_LINE = 128  # bytes: of the L2 cache; a row of a tile of transpose.cu


class Copy:
    """The copy of an operand into memory of its own: ``copy.run(source, target, stream)``.

    Its row pitch is rounded up to 128 bytes, a line of the L2 cache. With `transpose`, a function of
    transpose.cu for elements of this size, the copy is the transpose. `operand` is the index of `name` among
    A, B and C, `stored` the layout of what is copied, `ld` the copy's leading dimension in elements, and
    `need` the memory.
    """

    def __init__(self, name: str, stored: Layout, transpose: Function | None = None) -> None:
        size = stored.dtype.itemsize
        rows, columns = (stored.columns, stored.rows) if transpose else (stored.rows, stored.columns)
        pitch = -(-columns * size // _LINE) * _LINE
        self.name, self.operand, self.ld = name, OPERANDS.index(name), pitch // size
        self.transposed = transpose is not None
        kind = "transpose" if transpose else "copy"
        self.need: Need | None = Need(user=f"{kind} of {name}", size=rows * pitch, zeroed=False)
        self.run: Callable[[int, int, Stream], None]
        if transpose:
            self.run = _Transposition(transpose, stored, self.ld)
        else:
            self.run = RowCopy(
                rows=rows, width=columns * size, source_pitch=stored.ld * size, target_pitch=pitch
            )


class _Transposition:
    """A launch of transpose.cu: ``run(source, target, stream)``. Only one thread at a time may call it.

    It is programmatic: it may begin before the kernel before it has ended.
    """

    def __init__(self, function: Function, stored: Layout, pitch: int) -> None:
        tile = _LINE // stored.dtype.itemsize
        blocks = math.ceil(stored.rows / tile) * math.ceil(stored.columns / tile)
        arguments = [
            *(np.uint64(0), np.uint64(0), np.int32(stored.rows), np.int32(stored.columns)),
            *(np.int64(stored.ld), np.int64(pitch)),
        ]
        self._launch = function.prepare(blocks, (tile, 4), arguments, programmatic=True)
        self._from, self._to = (self._launch.argument(i, ctypes.c_uint64) for i in range(2))

    def __call__(self, source: int, target: int, stream: Stream) -> None:
        self._from.value, self._to.value = source, target
        self._launch(stream)


def transposer(itemsize: int) -> Variant:
    """Return the kernel that `Copy` transposes matrices of this element size with, in bytes."""
    return spec.load(SOURCE).variant(BYTES=itemsize)
