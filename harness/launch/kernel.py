"""Bind a compiled kernel to a problem's operands on a GPU: `prepare` makes a `Launch` to run on a stream.

The module also derives the grid, the workspace and the tensor maps that such a launch needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from harness.driver import Context, Function, Module, Stream, Struct, tensormap
from harness.errors import SpecError, UsageError
from harness.kernels.compiler import Cubin
from harness.kernels.cpp import calls
from harness.kernels.cpp.host import launches
from harness.kernels.dtypes import TF32
from harness.kernels.spec import Box, Variant
from harness.launch.fresh.zones import Fenced
from harness.launch.operands import Operands
from harness.problems.protocol import (
    Argument,
    Compiled,
    Image,
    Layout,
    Matrices,
    Problem,
    Table,
    Tensor,
    variables,
)
from harness.problems.protocol import Struct as ByValue
from harness.support.resources import Closing

NULL = np.uint64(0)  # a pointer to no memory
_WAIT = "griddepcontrol.wait"
_ELEMENTS = {"float32": "FLOAT32", "float16": "FLOAT16", "uint16": "BFLOAT16"}  # NumPy type -> tensor map's


class Launch(Closing):
    """Code bound to operands: ``launch(stream)`` queues one run, on the next set of operands each time.

    `calls` has one call for each set. `operands` are borrowed; `owned` (a module, a library's descriptors) is
    closed with the launch. `function` is the kernel's function, None for a library. `algorithm` describes in
    words the algorithm that a library uses. `scratch` is memory of its own beside the operands, by name.
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
        scratch: Mapping[str, Fenced] | None = None,
    ) -> None:
        self.label, self.operands, self.function = label, operands, function
        self.algorithm, self.scratch = algorithm, scratch or {}
        self.calls, self._owned = calls, owned
        self.rewind()

    def rewind(self) -> None:
        """Make the next run use the first set of operands."""
        self._next = itertools.cycle(self.calls).__next__

    def __call__(self, stream: Stream) -> None:
        self._next()(stream)

    @property
    def sets(self) -> int:
        """The number of sets of operands that runs go through in turn."""
        return len(self.calls)

    def close(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.close()


def prepare(cubin: Cubin, operands: Operands) -> Launch:
    """Load the cubin and bind its parameters, once for each set of operands.

    Raises UsageError if the problem is too large for a grid, SpecError if the kernel's file does not fit the
    problem, and DriverError if the GPU refuses the code.
    """
    variant, problem, context = cubin.variant, operands.problem, operands.context
    if variant.programmatic and _WAIT not in cubin.ptx:
        raise SpecError(
            f"{variant.label} may begin before the kernel before it has ended, and never waits for that",
            where=str(variant.kernel.path),
            hint=f"{_WAIT} before it touches global memory, or no `programmatic`",
        )
    shape = grid(variant, problem, sms=context.device.sms)
    size = workspace(variant, problem, sms=context.device.sms)
    mapped = maps(variant, problem)
    module = Module(context, cubin.code)
    with ExitStack() as undo:
        undo.callback(module.close)
        scratch: dict[str, Fenced] = {}
        if size:  # one for all launches
            scratch["the workspace"] = undo.enter_context(zeroed(context, size))
            with Stream(context) as stream:
                operands.fence(scratch, stream)
        own: list[Any] = [*scratch.values()] or [NULL]
        further = held(cubin, problem)
        if operands.constants or further:
            with Stream(context) as stream:
                for name, values in operands.constants.items():
                    module.write(cubin.symbol(name), values, stream)
                for name, value in further.items():
                    _write(module, name, value, stream)
        function = module.function(cubin.entry)
        calls = [
            function.prepare(
                shape,
                variant.block,
                [
                    *(tensor_map(context, copy[m.operand].ptr, m) for m in mapped),
                    *(_argument(a, copy) for a in problem.arguments()),
                    *(own if variant.kernel.workspace else ()),
                ],
                shared=variant.shared,
                cluster=cluster(variant),
                cooperative=variant.kernel.cooperative,
                programmatic=variant.programmatic,
            )
            for copy in operands.buffers
        ]
        owned = undo.pop_all()
    return Launch(variant.label, operands, calls, function=function, owned=owned, scratch=scratch)


def held(cubin: Cubin, problem: Problem) -> dict[str, Argument]:
    """Return what variables of the code hold that are no operands, by their names there."""
    found = dict[str, Argument]()
    for name, value in variables(problem).items():
        with suppress(SpecError):  # of a variable that the compiled code does not use
            found[cubin.symbol(name)] = value
    return found


def _write(module: Module, name: str, value: Argument, stream: Stream) -> None:
    """Fill a variable. Raises UsageError for pointers and tensor maps in it."""
    if not isinstance(value, np.generic):
        raise UsageError(f"pointers or tensor maps in {name}, a __constant__ variable, are the emulator's")
    module.write(name, np.frombuffer(value.tobytes(), np.uint8), stream)


def _argument(argument: Argument, buffers: Mapping[str, Fenced]) -> Any:
    """Return an argument as the driver takes it, with the buffers that it names."""
    if isinstance(argument, ByValue):
        return Struct(argument.pack(lambda name: buffers[name].ptr), argument.align)
    if isinstance(argument, Tensor):
        raise UsageError("a tensor map among the arguments is the emulator's", hint="see tensormaps")
    if isinstance(argument, Image):
        hint = "harness check runs it there; on a GPU a program of its own makes it"
        raise UsageError("a texture or surface among the arguments is the emulator's", hint=hint)
    if isinstance(argument, Table):
        raise UsageError("pointers behind pointers among the arguments are the emulator's")
    return buffers[argument] if isinstance(argument, str) else argument


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """An operand that the kernel copies by TMA.

    `layout` is that of the matrix in memory, `box` what one copy moves, and `element` CUDA's name of the type
    (``"BFLOAT16"``). `stack` is of a batch: how many matrices there are, and the elements from each to the
    next.
    """

    operand: str
    layout: Layout
    box: Box
    element: str
    stack: tuple[int, int] | None = None

    def possible(self, address: int) -> bool:
        """Return True if there can be a tensor map for the operand at this address.

        Not where C has wider elements than the kernel's boxes are for, which then stores them by threads.
        """
        size, swizzle = self.layout.dtype.itemsize, self.box.swizzle
        fits = not swizzle or self.box.columns * size <= swizzle
        step = self.stack[1] if self.stack else 0
        return fits and tensormap.possible(address, self.layout.ld * size, step * size)


def maps(
    variant: Variant, problem: Problem, stacks: Mapping[str, tuple[int, int]] = MappingProxyType({})
) -> tuple[Mapped, ...]:
    """Return the operands for which the kernel takes tensor maps, in the order of its parameters.

    `stacks` has the `Mapped.stack` of operands that are batches. Raises SpecError if the problem has no
    layout for one of them.
    """
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
        rounded = layout.dtype is TF32 and box.operand != problem.output  # the TMA then rounds to nearest
        element = "TFLOAT32" if rounded else _ELEMENTS[layout.dtype.storage]
        stack = stacks.get(box.operand)
        found.append(Mapped(operand=box.operand, layout=layout, box=box, element=element, stack=stack))
    return tuple(found)


def tensor_map(context: Context, address: int, mapped: Mapped) -> Struct:
    """Return the tensor map of the operand at this device address.

    Its bytes are all 0 where no map is `possible`, as with a row pitch that is no multiple of 16 bytes.
    """
    if not mapped.possible(address):
        return Struct(bytes(tensormap.BYTES), tensormap.ALIGN)
    layout, box = mapped.layout, mapped.box
    return tensormap.encode(
        context,
        address,
        element=mapped.element,
        extents=(layout.rows, layout.columns),
        pitch=layout.ld * layout.dtype.itemsize,
        box=(box.rows, box.columns),
        swizzle=box.swizzle,
        promotion=box.promotion,
        stack=mapped.stack and (mapped.stack[0], mapped.stack[1] * layout.dtype.itemsize),
    )


def unmet(variant: Variant, problem: Problem) -> str:
    """Return what the kernel requires and this size does not meet: the first of the file's ``requires``, or
    the value of an axis for which the kernel was compiled. Empty where it meets all.
    """
    for name in problem.compiled if isinstance(problem, Compiled) else ():
        if (value := variant.params.get(name.upper(), 0)) != getattr(problem, name):
            return f"{name} == {value}"
    return variant.unmet({name: getattr(problem, name) for name in problem.axes})


def grid(variant: Variant, problem: Problem, *, sms: int = 1, batch: int = 1) -> tuple[int, int, int]:
    """Return the blocks (x, y, z) of a launch on a GPU with `sms` multiprocessors.

    There is one block per tile of the problem's output, the innermost extent along x, unless the kernel's
    front matter computes a `grid` from the tiles and `sms`. The kernel's results do not depend on `sms`. With
    a `batch` the tiles of so many matrices count (TILES_Z).
    Raises UsageError if the grid exceeds CUDA's limits or the file's ``requires`` excludes the size, and
    SpecError if the tile has another number of extents than the output.
    """
    if condition := unmet(variant, problem):
        raise UsageError(
            f"{variant.label} is not for {problem.label}: it requires {condition}",
            hint="choose sizes with -a, or the kernel's parameters with -p",
        )
    x, y, z = _tiles(variant, problem)
    x, y, z = variant.grid((x, y, z * batch), sms, _sizes(problem))
    if of := cluster(variant):  # the launch of host code is guessed
        x, y, z = (-(-blocks // n) * n for blocks, n in zip((x, y, z), of, strict=True))
    if x > 2**31 - 1 or y > 65535 or z > 65535:
        raise UsageError(
            f"{variant.label} would need a grid of {x} x {y} x {z} blocks for {problem.label}; "
            "the limits are 2147483647 x 65535 x 65535",
            hint="choose a smaller size or a larger tile",
        )
    return x, y, z


def cluster(variant: Variant) -> tuple[int, int, int] | None:
    """Return the blocks of a cluster that host code gives a kernel without front matter, if it does."""
    kernel = variant.kernel
    found = launches.cluster(calls.host(kernel), kernel.entry) if kernel.plain else (1, 1, 1)
    return found if found != (1, 1, 1) else None


def workspace(variant: Variant, problem: Problem, *, sms: int = 1, batch: int = 1) -> int:
    """Return the bytes of device memory that the kernel needs beside the operands; arguments as of `grid`.

    The memory must be zero before the first launch; later launches find what the one before has left there.
    Of a kernel whose file has a `workspace` that is 0 here the last argument is `NULL`.
    """
    x, y, z = _tiles(variant, problem)
    return variant.workspace((x, y, z * batch), sms, _sizes(problem))


def zeroed(context: Context, size: int) -> Fenced:
    """Allocate at least `size` bytes of device memory, all zero; the caller closes the buffer."""
    buffer = Fenced(context, -(-size // 16) * 16)
    with Stream(context) as stream:
        buffer.fill_u32(0, stream)
        stream.synchronize()
    return buffer


def _tiles(variant: Variant, problem: Problem) -> tuple[int, int, int]:
    """Return how many tiles (x, y, z) cover the output; raises SpecError if the number of extents differs."""
    tile, extents = variant.tile, problem.extents
    if not tile:  # the grid says it all
        return 1, 1, 1
    if len(tile) != len(extents):
        raise SpecError(
            f"tile has {len(tile)} extents, the output of this problem {len(extents)}",
            where=str(variant.kernel.path),
        )
    counts = [math.ceil(e / t) for e, t in zip(reversed(extents), reversed(tile), strict=True)]
    x, y, z = (*counts, 1, 1)[:3]
    return x, y, z


def _sizes(problem: Problem) -> dict[str, int]:
    """Return the axes of the problem that are integers."""
    values = {name: getattr(problem, name) for name in problem.axes}
    return {name: value for name, value in values.items() if isinstance(value, int)}
