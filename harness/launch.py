"""A cubin, a problem and a device -> a `Launch`: a callable on a stream, and its output to look at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.build import Cubin
from harness.closing import Closing
from harness.driver import Buffer, Context, Function, Module, Stream, Struct, tensormap
from harness.dtypes import TF32
from harness.errors import OutOfMemory, SpecError, UsageError
from harness.problem import Layout, Matrices, Problem
from harness.problems import blamed
from harness.spec import Box, Variant

MAX_SETS = 512  # copies of the operands; tiny problems stay inside the L2 cache beyond this, and say so
_ELEMENTS = {"float32": "FLOAT32", "float16": "FLOAT16", "uint16": "BFLOAT16"}  # of a tensor map, by storage
_MEMORY_SHARE = 0.5  # of the free device memory, at most, for copies beyond the first


class Operands(Closing):
    """Device copies (`sets`) of one problem's operands: the same data at different addresses.

    Launches that go round them find none of their inputs in the L2 cache once the copies together exceed
    it (`cold`). Kernels and baseline share one Operands, so each is measured on the same memory.
    """

    def __init__(self, context: Context, problem: Problem, stream: Stream, *, seed: int, sets: int) -> None:
        """Raises OutOfMemory before anything is allocated where one set does not fit."""
        free, _ = context.memory_info()
        if problem.buffer_bytes > free:
            raise OutOfMemory(
                f"{problem.label} needs {_gib(problem.buffer_bytes)} of device memory, {_gib(free)} is free",
                hint="choose a smaller size with -a",
            )
        self.context, self.problem, self.seed = context, problem, seed
        try:
            with blamed(type(problem)):
                self.host = problem.inputs(seed)
                self.reference = problem.reference(self.host)
        except MemoryError:
            raise OutOfMemory(
                f"{problem.label}: the inputs and their float64 reference do not fit in host memory",
                hint="choose a smaller size with -a",
            ) from None
        self.buffers: list[dict[str, Buffer]] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            for _ in range(sets):
                copy = {name: Buffer(context, array.nbytes) for name, array in self.host.items()}
                self.buffers.append(copy)
                for name, array in self.host.items():
                    if self.buffers[0] is copy:
                        copy[name].upload(array, stream)
                    else:
                        copy[name].copy_from(self.buffers[0][name], stream)
            stream.synchronize()
            undo.pop_all()

    @property
    def bytes(self) -> int:
        """What a round of the sets touches, padding left out."""
        return len(self.buffers) * self.problem.bytes

    @property
    def cold(self) -> bool:
        """Whether a round of the sets displaces at least twice the L2 cache."""
        return len(self.buffers) > 1 and self.bytes >= 2 * self.context.device.l2_bytes

    def fill_output(self, stream: Stream, content: NDArray[Any] | None = None) -> None:
        """Every output as `content`; None: as the problem made it, NaN or the C that beta multiplies."""
        name = self.problem.output
        self.buffers[0][name].upload(self.host[name] if content is None else content, stream)
        for copy in self.buffers[1:]:
            copy[name].copy_from(self.buffers[0][name], stream)
        stream.synchronize()

    def damaged_inputs(self, stream: Stream) -> list[str]:
        """Inputs that some launch has overwritten, in any set; they are put right again."""
        damaged = []
        for name in self.host.keys() - {self.problem.output}:
            array = np.empty_like(self.host[name])
            for copy in self.buffers:
                copy[name].download(array, stream)
                if not np.array_equal(array.view(np.uint8), self.host[name].view(np.uint8)):
                    damaged.append(name)
                    copy[name].upload(self.host[name], stream)
        return sorted(set(damaged))

    def outputs(self, stream: Stream) -> Iterator[NDArray[Any]]:
        """The output of each set, downloaded one at a time into one host array that is reused."""
        name = self.problem.output
        array = np.empty_like(self.host[name])
        for copy in self.buffers:
            copy[name].download(array, stream)
            yield array

    def close(self) -> None:
        for copy in reversed(self.buffers):
            for buffer in copy.values():
                buffer.close()
        self.buffers.clear()


class Twin(Operands):
    """The inputs of other operands, which are borrowed, and outputs of its own: for a second kernel that
    runs in turn with the first without writing what the first is verified by.
    """

    def __init__(self, original: Operands, stream: Stream) -> None:
        self.context, self.problem, self.seed = original.context, original.problem, original.seed
        self.host, self.reference = original.host, original.reference
        self.buffers, self._own = [], []
        name = self.problem.output
        with ExitStack() as undo:
            undo.callback(self.close)
            for copy in original.buffers:
                self._own.append(Buffer(self.context, copy[name].nbytes))
                self.buffers.append({**copy, name: self._own[-1]})
            self.fill_output(stream)
            undo.pop_all()

    def close(self) -> None:
        for buffer in reversed(self._own):
            buffer.close()
        self._own.clear()
        self.buffers.clear()


class Launch(Closing):
    """What is timed: ``launch(stream)`` enqueues one run, on the next set of operands each time.

    `operands` are borrowed; `owned` (a module, a library handle) is closed with the launch.
    """

    def __init__(
        self,
        label: str,
        operands: Operands,
        calls: Sequence[Callable[[Stream], object]],
        *,
        function: Function | None = None,
        owned: Any = None,
    ) -> None:
        self.label, self.operands, self.function = label, operands, function
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
                hint=f"it has {', '.join(layouts) or 'none: see harness.problem.Matrices'}",
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


def rotation_sets(context: Context, problem: Problem) -> int:
    """How many copies of the operands displace twice the L2 cache (NVIDIA's GEMM measurement guideline):
    at least two, at most MAX_SETS, and no more than half of the free memory holds.
    """
    wanted = max(2, math.ceil(2 * context.device.l2_bytes / max(1, problem.bytes)))
    free, _ = context.memory_info()
    fitting = int(free * _MEMORY_SHARE) // problem.buffer_bytes
    return max(1, min(wanted, MAX_SETS, fitting))


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
