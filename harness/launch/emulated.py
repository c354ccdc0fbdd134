"""A launch in the emulator: how, in which memory, and with which arguments of a problem."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.driver import tensormap
from harness.emulator import Buffer, Emulation, Record, TensorMap, Texture, emulate, initial_variables
from harness.emulator.blocks.endless.loops import BUDGET
from harness.emulator.ptx.module import OF_ANOTHER
from harness.errors import InspectError
from harness.kernels.arch import SMS
from harness.launch.builds import Built
from harness.launch.kernel import NULL, Mapped, cluster, grid, held, maps, workspace
from harness.problems.protocol import (
    Argument,
    Image,
    Problem,
    Struct,
    Table,
    Tensor,
    constants,
    outputs,
    updated,
)
from harness.problems.registry import blamed
from harness.sass import access_widths
from harness.support.cache import Cache


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of an emulated launch.

    `seed` makes the input data, and the order of the schedule ``random``. `schedule` is one of
    `harness.emulator.emulate`. In ``lockstep``, a kernel to which it matters who comes first is launched
    again with ``backward``, with ``delayed`` if it has strong stores, and with ``held``. `check` looks for
    races and other findings, `count` counts accesses and instructions. `as_compiled` counts shared and
    global accesses in the widths that the machine code has, for which the output of nvdisasm is kept in
    `cache`; otherwise they are counted as the PTX has them. `sms` is the number of multiprocessors, of which
    persistent kernels make their grid: on one, their blocks could not race. `strict` takes notices, such as
    stores of the same value by several threads, for findings. `budget` is the instructions that a batch of
    blocks may execute, and a launch is given up when the monotonic clock shows `until`.
    `fences` looks for reads that only a missing fence would order. `doubts` takes a guessed buffer that the
    kernel goes far past for a wrong guess, not for a fault.
    After a launch has been verified, `repeats` more follow, alternating between the other schedule and this
    one, since nothing else can differ from launch to launch here.
    """

    seed: int = 1
    schedule: str = "lockstep"
    check: bool = True
    count: bool = True
    as_compiled: bool = False
    cache: Cache | None = None
    repeats: int = 0
    sms: int = SMS
    strict: bool = False
    budget: int = BUDGET
    until: float = math.inf
    fences: bool = False
    doubts: bool = False


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The state that stays from launch to launch: variables of the module by name, workspaces by size.

    written: of operands that nobody has written all of, a 1 for each byte that was written
    """

    variables: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    workspaces: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    written: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

    def digest(self) -> bytes:
        """Return a digest of all contents."""
        found = hashlib.blake2b()
        for contents in (*self.workspaces.values(), *self.variables.values()):
            found.update(contents.tobytes())
        return found.digest()

    def changed(self, built: Built, problem: Problem) -> bool:
        """Return True if a next launch finds here what the first one did not."""
        first = initial_variables(built.cubin.ptx, built.cubin.entry)
        set_anew = {built.cubin.symbol(name) for name in constants(problem)}
        return any(scratch.any() for scratch in self.workspaces.values()) or any(
            not np.array_equal(self.variables.get(name, value), value)
            for name, value in first.items()
            if name not in set_anew
        )


def launch(
    built: Built,
    problem: Problem,
    inputs: Mapping[str, NDArray[Any]],
    options: Options,
    memory: Memory | None = None,
) -> tuple[Emulation, dict[str, NDArray[Any]]]:
    """Launch a kernel once on copies of `inputs`; return what the emulator saw, and the arrays after the
    launch.

    Launches with the same `memory` share the module and the workspace, which are new without one. Raises
    HarnessError for a kernel that cannot be emulated.
    """
    variant = built.variant
    arrays = {name: array.copy() for name, array in inputs.items()}
    with blamed(type(problem)):
        shape, arguments = grid(variant, problem, sms=options.sms), problem.arguments()
        size = workspace(variant, problem, sms=options.sms)
    bound: list[Any] = [tensor_map(mapped, arrays) for mapped in maps(variant, problem)]
    once = dict[str, Any]()  # an operand that is passed for two parameters is one buffer
    for a in arguments:
        made = _argument(a, arrays, problem, memory.written if memory else {})
        bound.append(once.setdefault(a, made) if isinstance(a, str) else made)
    if size:
        memory = Memory() if memory is None else memory
        scratch = memory.workspaces.setdefault(size, np.zeros(size, dtype=np.uint8))
        bound.append(Buffer(array=scratch, name="workspace"))
    elif variant.kernel.workspace:
        bound.append(NULL)
    variables = {} if memory is None else memory.variables
    for name in constants(problem):
        variables[built.cubin.symbol(name)] = arrays[name].reshape(-1).view(np.uint8)
    ptx = built.cubin.ptx
    if variant.kernel.language == "ptx":  # the file that its lines name is another one
        ptx = re.sub(r"(?m)^\s*\.file\b", rf"{OF_ANOTHER}\g<0>", ptx, count=1)
    records = _records(built, problem, arrays, variables)
    run = emulate(
        ptx,
        built.cubin.entry,
        grid=shape,
        block=variant.block,
        arguments=bound,
        shared=variant.shared,
        cluster=cluster(variant) or (),
        schedule=options.schedule,
        check=options.check,
        count=options.count,
        seed=options.seed,
        widths=_widths(built, options) if options.as_compiled else None,
        budget=options.budget,
        until=options.until,
        variables=variables,
        records=records,
        fences=options.fences,
    )
    return run, arrays


def _records(
    built: Built,
    problem: Problem,
    arrays: Mapping[str, NDArray[Any]],
    variables: dict[str, NDArray[np.uint8]],
) -> dict[str, Record]:
    """Return what variables hold that have pointers in them; what others hold goes to `variables`.

    One of another size than the text says keeps its zeros.
    """
    found = dict[str, Record]()
    if not (given := held(built.cubin, problem)):
        return found
    known = initial_variables(built.cubin.ptx, built.cubin.entry, "const")
    for symbol, value in given.items():
        holds = _argument(value, arrays, problem, {})
        size = len(known.get(symbol, ()))
        if isinstance(holds, np.generic):
            if holds.nbytes == size:
                variables[symbol] = np.frombuffer(holds.tobytes(), np.uint8).copy()
        elif (record := _record(holds)).nbytes == size:
            found[symbol] = record
    return found


def _record(holds: Record | TensorMap | Buffer) -> Record:
    """Return what a variable holds that is one pointer or tensor map, as what holds several."""
    if isinstance(holds, TensorMap):
        buffer = Buffer(array=holds.array, name=holds.name)
        return Record(buffers=(buffer,), align=64, pack=lambda at: holds.encode(at(buffer)))
    if isinstance(holds, Buffer):
        return Record(buffers=(holds,), align=8, pack=lambda at: at(holds).to_bytes(8, "little"))
    return holds


def tensor_map(mapped: Mapped, arrays: Mapping[str, NDArray[Any]]) -> TensorMap | np.void:
    """Return the tensor map of an operand; 128 zeros where there can be none."""
    layout, size = mapped.layout, mapped.layout.dtype.itemsize
    count, step = mapped.stack or (1, 0)
    if not mapped.possible(0):
        return np.void(bytes(tensormap.BYTES))
    stacked = mapped.stack is not None
    return TensorMap(
        array=arrays[mapped.operand],
        name=mapped.operand,
        element=mapped.element,
        extents=(layout.columns, layout.rows, *[count if step else 1] * stacked),  # innermost first
        strides=(layout.ld * size, *[(step or layout.ld) * size] * stacked),
        box=(mapped.box.columns, mapped.box.rows, *[1] * stacked),
        swizzle=mapped.box.swizzle,
    )


def _argument(
    given: Argument,
    arrays: Mapping[str, NDArray[Any]],
    problem: Problem,
    written: Mapping[str, NDArray[np.uint8]],
) -> Any:
    """Return an argument as the emulator takes it.

    An array is marked as not initialised where it is an output that is no input: reading it is a finding. So
    it is where not all of it was `written`.
    """

    def mapped(tensor: Tensor) -> TensorMap:
        return TensorMap(
            array=arrays[tensor.operand],
            name=tensor.operand,
            element=tensor.element,
            extents=tensor.extents,
            strides=tensor.strides,
            box=tensor.box,
            swizzle=tensor.swizzle,
            lower=tensor.lower,
            upper=tensor.upper,
            steps=tensor.steps,
        )

    def buffer(name: str) -> Buffer:
        whole = name not in outputs(problem) or name in updated(problem)
        if name in written:
            return Buffer(array=arrays[name], name=name, initialised=False, written=written[name])
        return Buffer(array=arrays[name], name=name, initialised=whole)

    if isinstance(given, Struct):
        buffers = {name: buffer(name) for name in given.operands()}
        return Record(
            buffers=tuple(buffers.values()),
            align=given.align,
            pack=lambda at: given.pack(
                lambda name: at(buffers[name]),
                lambda tensor: mapped(tensor).encode(at(buffers[tensor.operand])),
            ),
        )
    if isinstance(given, Table):
        behind = tuple((at, buffer(name)) for at, name in given.pointers.items())
        return replace(buffer(given.operand), pointers=behind)
    if isinstance(given, Tensor):
        return mapped(given)
    if isinstance(given, Image):
        return Texture(
            array=arrays[given.operand].reshape(given.shape),
            name=given.operand,
            channels=given.channels,
            layered=given.layered,
            filter=given.filter,
            address=given.address,
            normalized=given.normalized,
            read_normalized=given.read_normalized,
        )
    return buffer(given) if isinstance(given, str) else given


def _widths(built: Built, options: Options) -> Mapping[int, int]:
    """Return the width in bytes of the compiled access of each PTX line.

    Raises InspectError where there is no disassembly, or one line was compiled to accesses of several widths.
    """
    if built.sass is None:
        raise InspectError("counts as compiled need nvdisasm", where=built.label)
    found = access_widths.widths(built.cubin, built.sass, options.cache or Cache(None))
    if found.ambiguous:
        raise InspectError(
            f"PTX lines {', '.join(map(str, found.ambiguous))} were compiled to accesses of several widths: "
            "counts as compiled are not known",
            where=built.label,
        )
    return found.bytes
