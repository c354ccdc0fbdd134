"""Arguments of a problem as the emulator takes them, where `harness.launch.kernel` makes those of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.driver import tensormap
from harness.emulator import Buffer, Record, TensorMap
from harness.launch.kernel import Mapped
from harness.problems.protocol import Argument, Problem, Struct, outputs, updated


def tensor_map(mapped: Mapped, arrays: Mapping[str, NDArray[Any]]) -> TensorMap | np.void:
    """Return the tensor map of an operand; 128 zeros where its row pitch does not allow one."""
    layout, size = mapped.layout, mapped.layout.dtype.itemsize
    if not tensormap.possible(0, layout.ld * size):
        return np.void(bytes(tensormap.BYTES))
    return TensorMap(
        array=arrays[mapped.operand],
        name=mapped.operand,
        element=mapped.element,
        extents=(layout.columns, layout.rows),  # innermost first
        strides=(layout.ld * size,),
        box=(mapped.box.columns, mapped.box.rows),
        swizzle=mapped.box.swizzle,
    )


def argument(given: Argument, arrays: Mapping[str, NDArray[Any]], problem: Problem) -> Any:
    """Return an argument as the emulator takes it.

    An array is marked as not initialised where it is an output that is no input: reading it is a finding.
    """

    def buffer(name: str) -> Buffer:
        written = name not in outputs(problem) or name in updated(problem)
        return Buffer(array=arrays[name], name=name, initialised=written)

    if isinstance(given, Struct):
        buffers = {name: buffer(name) for name in given.operands()}
        return Record(
            buffers=tuple(buffers.values()),
            align=given.align,
            pack=lambda at: given.pack(lambda name: at(buffers[name])),
        )
    return buffer(given) if isinstance(given, str) else given
