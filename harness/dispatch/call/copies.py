"""Copies of operands to where, and as, a kernel reads them: at a pitch that TMA takes, or transposed."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness.dispatch.workspaces import Need
from harness.driver import Function, Stream
from harness.kernels import spec
from harness.kernels.spec import Variant
from harness.problems.protocol import Layout

_ROWS, _TRANSPOSE = (Path(__file__).with_name(name) for name in ("copy_rows.cu", "transpose.cu"))
OPERANDS = "ABC"
_LINE = 128  # bytes: of the L2 cache; a row of a tile of transpose.cu
_UNIT = 16  # bytes that a thread of copy_rows.cu writes at once


class Copy:
    """The copy of an operand into memory of its own: ``copy.run(source, target, stream)``.

    Its row pitch is rounded up to 128 bytes, a line of the L2 cache. If `transposed`, the copy is the
    transpose. `load` gives the function of a kernel, `operand` is the index of `name` among A, B and C,
    `stored` the layout of what is copied, `ld` the copy's leading dimension in elements, and `need` the
    memory. Only one thread at a time may run it. It may begin before the kernel before it has ended.
    """

    def __init__(
        self, name: str, stored: Layout, load: Callable[[Variant], Function], *, transposed: bool = False
    ) -> None:
        size = stored.dtype.itemsize
        rows, columns = (stored.columns, stored.rows) if transposed else (stored.rows, stored.columns)
        pitch = -(-columns * size // _LINE) * _LINE
        self.name, self.operand, self.ld = name, OPERANDS.index(name), pitch // size
        kind = "transpose" if transposed else "copy"
        self.need: Need | None = Need(user=f"{kind} of {name}", size=rows * pitch, zeroed=False)
        if transposed:
            variant, tile = transposer(size), _LINE // size
            blocks = math.ceil(stored.rows / tile) * math.ceil(stored.columns / tile)
            sizes = [np.int32(stored.rows), np.int32(stored.columns), np.int64(stored.ld), np.int64(self.ld)]
        else:
            variant, width = copier(), columns * size
            units = rows * math.ceil(width / _UNIT)
            blocks = math.ceil(units / (math.prod(variant.block) * variant.params["EACH"]))
            sizes = [np.uint32(rows), np.uint32(width), np.int64(stored.ld * size), np.int64(pitch)]
        arguments = [np.uint64(0), np.uint64(0), *sizes]
        self._launch = load(variant).prepare(blocks, variant.block, arguments, programmatic=True)
        self._from, self._to = (self._launch.argument(i, ctypes.c_uint64) for i in range(2))

    def run(self, source: int, target: int, stream: Stream) -> None:
        """Queue the copy from the device address `source` to `target`."""
        self._from.value, self._to.value = source, target
        self._launch(stream)


def copier() -> Variant:
    """Return the kernel by which `Copy` copies rows."""
    return spec.load(_ROWS).variant()


def transposer(itemsize: int) -> Variant:
    """Return the kernel by which `Copy` transposes matrices of this element size, in bytes."""
    return spec.load(_TRANSPOSE).variant(BYTES=itemsize)
