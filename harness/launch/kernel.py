"""A cubin, a problem and a device -> a `Launch`: a callable on a stream, and its output to look at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from harness.driver import Buffer, Context, Function, Module, Stream, Struct, tensormap
from harness.errors import SpecError, UsageError
from harness.kernels.compiler import Cubin
from harness.kernels.dtypes import TF32
from harness.kernels.spec import Box, Variant
from harness.launch.operands import Operands
from harness.problems.protocol import Layout, Matrices, Problem
from harness.support.resources import Closing

_ELEMENTS = {"float32": "FLOAT32", "float16": "FLOAT16", "uint16": "BFLOAT16"}  # of a tensor map, by storage


class Launch(Closing):
    """What is timed: ``launch(stream)`` enqueues one run, on the next set of operands each time.

    `operands` are borrowed; `owned` (a module, a library handle) is closed with the launch. `algorithm` is
    which of its ways a library goes, in words.
    """

    def __init__(
        self,
        label: str,
        operands: Operands,
        calls: Sequence[Callable[[Stream], object]],
        *,
        function: Function | None = None,
        owned: Any = None,
        algorithm: str = "",
    ) -> None:
        self.label, self.operands, self.function = label, operands, function
        self.algorithm = algorithm
        self.calls, self._owned = calls, owned
        self.rewind()

    def rewind(self) -> None:
        """The next run is on the first set of operands."""
        self._next = itertools.cycle(self.calls).__next__

    def __call__(self, stream: Stream) -> None:
        self._next()(stream)

    @property
    def sets(self) -> int:
        return len(self.calls)

    def close(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.close()


def prepare(cubin: Cubin, operands: Operands) -> Launch:
    """Load the cubin and bind its parameters, once for each set of operands.

    Raises UsageError where the problem is too large for a grid, DriverError where the GPU refuses the code.
    """
    variant, problem, context = cubin.variant, operands.problem, operands.context
    shape = grid(variant, problem, sms=context.device.sms)
    size = workspace(variant, problem, sms=context.device.sms)
    mapped = maps(variant, problem)
    module = Module(context, cubin.code)
    with ExitStack() as undo:
        undo.callback(module.close)
        scratch = [undo.enter_context(zeroed(context, size))] if size else []  # one for all launches
        function = module.function(variant.kernel.entry)
        calls = [
            function.prepare(
                shape,
                variant.block,
                [
                    *(tensor_map(context, copy[m.operand].ptr, m) for m in mapped),
                    *(copy[a] if isinstance(a, str) else a for a in problem.arguments()),
                    *scratch,
                ],
                shared=variant.shared,
                cooperative=variant.kernel.cooperative,
            )
            for copy in operands.buffers
        ]
        owned = undo.pop_all()
    return Launch(variant.label, operands, calls, function=function, owned=owned)


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """An operand to be copied by TMA: how it lies in memory, the box of a copy, and what it is made of."""

    operand: str
    layout: Layout
    box: Box
    element: str


def maps(variant: Variant, problem: Problem) -> tuple[Mapped, ...]:
    """What the kernel's tensor maps describe of this problem. Raises SpecError for what has no layout."""
    if not variant.kernel.tensormaps:
        return ()
    layouts = problem.layouts() if isinstance(problem, Matrices) else {}
    found = []
    for box in variant.boxes:
        if box.operand not in layouts:
            raise SpecError(
                f"tensormaps.{box.operand}: this problem has no such matrix",
                where=str(variant.kernel.path),
                hint=f"it has {', '.join(layouts) or 'none: see harness.problems.protocol.Matrices'}",
            )
        layout = layouts[box.operand]
        rounded = layout.dtype is TF32 and box.operand != problem.output  # by the TMA, to nearest
        element = "TFLOAT32" if rounded else _ELEMENTS[layout.dtype.storage]
        found.append(Mapped(operand=box.operand, layout=layout, box=box, element=element))
    return tuple(found)


def tensor_map(context: Context, address: int, mapped: Mapped) -> Struct:
    """The descriptor to pass; all zeros where the address or the leading dimension does not allow one."""
    layout, box = mapped.layout, mapped.box
    return tensormap.encode(
        context,
        address,
        element=mapped.element,
        extents=(layout.rows, layout.columns),
        pitch=layout.ld * layout.dtype.itemsize,
        box=(box.rows, box.columns),
        swizzle=box.swizzle,
    )


def grid(variant: Variant, problem: Problem, *, sms: int = 1) -> tuple[int, int, int]:
    """Blocks (x, y, z) of the launch: the tiles that cover the problem's output, innermost extent along x, or
    what the kernel's `grid` makes of them and of the GPU's `sms`. (Results do not depend on `sms`.)
    """
    x, y, z = variant.grid(_tiles(variant, problem), sms)
    if x > 2**31 - 1 or y > 65535 or z > 65535:
        raise UsageError(
            f"{variant.label} would need a grid of {x} x {y} x {z} blocks for {problem.label}; "
            "the limits are 2147483647 x 65535 x 65535",
            hint="choose a smaller size or a larger tile",
        )
    return x, y, z


def workspace(variant: Variant, problem: Problem, *, sms: int = 1) -> int:
    """Bytes that the kernel wants beside the operands; zeroed before its first launch, left to it from then
    on.
    """
    return variant.workspace(_tiles(variant, problem), sms)


def zeroed(context: Context, size: int) -> Buffer:
    """Device memory of at least `size` bytes, all zero."""
    buffer = Buffer(context, -(-size // 16) * 16)
    with Stream(context) as stream:
        buffer.fill_u32(0, stream)
        stream.synchronize()
    return buffer


def _tiles(variant: Variant, problem: Problem) -> tuple[int, int, int]:
    """How many (x, y, z) cover the output."""
    tile, extents = variant.tile, problem.extents
    if len(tile) != len(extents):
        raise SpecError(
            f"tile has {len(tile)} extents, the output of this problem {len(extents)}",
            where=str(variant.kernel.path),
        )
    counts = [math.ceil(e / t) for e, t in zip(reversed(extents), reversed(tile), strict=True)]
    x, y, z = (*counts, 1, 1)[:3]
    return x, y, z
