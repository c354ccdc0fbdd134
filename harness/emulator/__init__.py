"""Run PTX on NumPy: an emulated CUDA device for machines without a GPU.

    run = emulate(ptx, "matmul", grid=(4, 4), block=(16, 16),
                  arguments=[Buffer(array=A, name="A"), ..., np.int32(64), np.float32(1)])
    run.findings, run.total, run.lines

The launch changes the arrays in place, as on a GPU. The emulator reports faults and counts executions and
memory requests; it takes no times. To read the package, follow this order: `ptx` (text to instructions),
`numbers` (arithmetic), `group` (registers), `decode` and `instructions` (instructions to functions),
`executable` (what is known before a launch), `memory` and `access`, `blocks` (divergence and barriers),
`machine` (the launch), `watch` (hazards, races and counts).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from harness.emulator.blocks.arguments import Argument, Record, bind, hold
from harness.emulator.blocks.delays.loads import Late
from harness.emulator.blocks.endless.loops import BUDGET
from harness.emulator.blocks.schedule import SCHEDULES, Schedule
from harness.emulator.executable import executable, without_collection
from harness.emulator.hopper.tma.tensormap import TensorMap
from harness.emulator.instructions.texture.objects import Texture, handles_of
from harness.emulator.machine import Launch
from harness.emulator.memory import GLOBAL_BASE, HEAP, HEAP_BYTES, WORKSPACE, Arena, Buffer
from harness.emulator.ptx.declarations import OPAQUE, Variable, pointers_of, values_of
from harness.emulator.ptx.program import Entry
from harness.emulator.watch.counts import Counts, by_line, total
from harness.emulator.watch.findings import Finding, Index3, Rewatch, Source
from harness.errors import EmulatorError

__all__ = [
    "Buffer",
    "Counts",
    "Emulation",
    "Finding",
    "Index3",
    "Record",
    "Source",
    "TensorMap",
    "Texture",
    "emulate",
    "initial_variables",
]

_LARGEST_SHARED = 232448  # bytes: the most that a block can have on any GPU so far, 227 KiB


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """The result of a launch.

    findings: the faults, each reported once; empty with check=False
    notices: what does not show in the result, or need not: see `Finding.benign`
    instructions: the counts of each PTX instruction, in PTX order; empty with count=False
    output: what the kernel printed
    schedules: of the launches that it is the result of
    contended: the lines whose atomics and strong loads of global memory decide which way threads go: what the
      kernel does depends on who comes first, and another `schedule` may show another way
    waits: it has strong stores that ``delayed`` can hold back
    relies: it has strong reads of data, so that `fences` may find some that are missing
    late: the stores of which other blocks saw what came after them, and not the stores themselves. That is no
      fault by itself; it explains numbers that are wrong with the schedules ``delayed`` and ``random``
    reached: of each buffer past whose end the kernel went, how far, in bytes from its start
    """

    findings: tuple[Finding, ...]
    instructions: tuple[Counts, ...]
    notices: tuple[Finding, ...] = ()
    output: str = ""
    schedules: tuple[str, ...] = ()
    contended: tuple[Source, ...] = ()
    waits: bool = False
    relies: bool = False
    late: tuple[Late, ...] = ()
    reached: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Emulation: {len(self.findings)} findings, {len(self.notices)} notices>"

    @property
    def lines(self) -> tuple[Counts, ...]:
        """Sum the counts by source line, in the order of lines."""
        return by_line(self.instructions)

    @property
    def total(self) -> Counts:
        """Sum the counts of the whole launch."""
        return total(self.instructions)


@without_collection()  # blocks that end leave no cycles
def emulate(
    ptx: str,
    entry: str,
    *,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Argument],
    shared: int = 0,
    cluster: Sequence[int] = (),
    schedule: str = "lockstep",
    seed: int = 1,
    budget: int = BUDGET,
    until: float = math.inf,
    check: bool = True,
    count: bool = True,
    widths: Mapping[int, int] | None = None,
    variables: dict[str, NDArray[np.uint8]] | None = None,
    records: Mapping[str, Record] | None = None,
    textures: Mapping[str, Texture] | None = None,
    fences: bool = False,
) -> Emulation:
    """Run the kernel `entry` of the PTX module `ptx` and return its findings and counts.

    grid, block: 1 to 3 extents each; extents left out are 1
    arguments: one for each parameter, in order. A `Buffer` or an array is passed as a pointer: it has to be
      C-contiguous, and what the kernel stores is written back into it. A `Texture` is passed as a handle, a
      `Record` is a struct with pointers. A scalar is a NumPy scalar of the parameter's size
    shared: bytes of dynamic shared memory per block
    cluster: 1 to 3 extents of a cluster in blocks, where the launch says so and not the kernel
    schedule: ``lockstep``, or ``warp-serial``, in which each warp runs to the barrier before the next starts,
      or ``backward``, in which the last blocks, and of threads that part those further on, run first,
      or ``delayed``, in which strong stores reach other blocks as late as can be,
      or ``held``, in which strong writes of the first blocks' last warp come when nobody else can go on,
      or ``random``, in an order that is drawn from `seed`;
      of asynchronous operations ``early``, when they land at once, or ``late``, as late as can be
    budget: instructions that a batch of blocks may execute, each counted once for all threads that execute it
      together
    until: what the monotonic clock shows when the launch is given up
    check: look for faults; count: count executions and memory requests
    widths: bytes per lane of the compiled access by PTX line, see `counts.Counter`
    variables: the bytes of the module's ``__device__`` and ``__constant__`` variables by their PTX names.
      Those that are left out get their initial values; all are in it afterwards, with what the kernel stored,
      so that launches that pass the same dict share the module
    records: what variables hold that have pointers or tensor maps in them, by their PTX names
    textures: what the module's texture and surface references are bound to, by their PTX names
    fences: look, too, for strong reads that only what is missing would order, see `blocks.delays.unfenced`

    Raises EmulatorError for PTX that it cannot read, arguments or variables that do not fit, a kernel that
    exceeds the budget and arrays too large for this machine, and its subclasses OutOfTime when time is over,
    and NeedsGpu for an instruction that the emulator does not know.
    """
    if schedule not in SCHEDULES:
        raise EmulatorError(f"no schedule {schedule!r}", hint=f"There are {' and '.join(SCHEDULES)}.")
    code = executable(ptx, entry)
    kernel = code.entry
    if not 0 <= kernel.sizes.get("shared", 0) + shared <= _LARGEST_SHARED:
        raise EmulatorError(
            f"{kernel.sizes.get('shared', 0):,} + {shared:,} bytes of shared memory a block",
            hint=f"A block has {_LARGEST_SHARED:,} at most.",
        )
    clusters = _extents(
        "cluster", kernel.cluster if any(n > 1 for n in kernel.cluster) else cluster or (1,), (16, 16, 16)
    )
    extents = _extents("grid", grid, (2**31 - 1, 65535, 65535)), _extents("block", block, (1024, 1024, 64))
    if extents[1].x * extents[1].y * extents[1].z > 1024:
        raise EmulatorError(f"a block of {extents[1]} has more than 1024 threads")
    module = [v for v in kernel.variables.values() if v.space in ("global", "const") and v.type not in OPAQUE]
    bound = _bound(kernel, textures or {})
    objects = handles_of([*arguments, *bound.values()])
    extra = _extra(kernel)
    contents = {v.name: _contents(v, variables or {}) for v in module}
    watched: set[int] = set()
    fine, cells = code.fine, False  # see `watch.races`
    while True:
        copies = {h: replace(t, array=t.array.copy()) for h, t in objects.items()}
        buffers, parameters = bind(kernel, arguments, records or {})
        owned = [*buffers, *(Buffer(array=contents[v.name], name=v.name) for v in module), *extra]
        arena = Arena(owned)
        symbols = {v.name: v.offset for v in kernel.variables.values()}
        symbols |= {v.name: a.start for v, a in zip(module, arena.allocations[len(buffers) :], strict=False)}
        space = parameters(arena)
        symbols |= {name: handle for name, t in bound.items() for handle, o in objects.items() if o is t}
        _point(kernel, arena, symbols, space)
        hold(records or {}, arena, symbols, buffers)
        launch = Launch(
            code,
            grid=extents[0],
            block=extents[1],
            arena=arena,
            parameters=space,
            dynamic_shared=shared,
            symbols=symbols,
            schedule=Schedule(schedule, seed),
            budget=budget,
            until=until,
            check=check,
            count=count,
            widths=widths or {},
            watched=watched,
            textures=copies,
            fine=fine,
            cells=cells,
            cluster=clusters,
            fences=fences,
        )
        try:
            launch.run()
        except Rewatch as request:
            fine = fine or request.index < 0
            cells = cells or request.index < 0
            watched.add(request.index)
            continue
        except EmulatorError as error:
            error.findings = launch.findings.all()
            raise
        finally:
            launch.let_go()
        arena.copy_back(owned)
        for handle, texture in objects.items():
            if texture.array.flags.writeable:
                texture.array[...] = copies[handle].array
        if variables is not None:
            variables |= contents
        found = launch.findings.all()
        return Emulation(
            findings=tuple(f for f in found if not f.benign),
            notices=tuple(f for f in found if f.benign),
            instructions=launch.counter.all() if launch.counter is not None else (),
            output=launch.printed.getvalue(),
            schedules=(schedule,),
            contended=code.contended,
            waits=bool(code.waits) and not code.asynchronous,
            relies=bool(code.contended and code.relying),
            late=launch.delays.late() if launch.delays is not None else (),
            reached=launch.findings.ends,
        )


def initial_variables(ptx: str, entry: str, space: str = "global") -> dict[str, NDArray[np.uint8]]:
    """Return the initial bytes of the variables of a kernel's module in a space, by their PTX names.

    Those in ``global`` are ``__device__``, those in ``const`` are ``__constant__``.

    Raises what `emulate` raises for PTX that it cannot read.
    """
    kernel = executable(ptx, entry).entry
    found = [v for v in kernel.variables.values() if v.space == space and v.type not in OPAQUE]
    return {v.name: values_of(v) for v in found}


def _bound(kernel: Entry, textures: Mapping[str, Texture]) -> dict[str, Texture]:
    """Return the objects of the texture and surface references that a kernel uses, by name.

    Raises EmulatorError for a reference that is not bound, or a name that is none.
    """
    references = {v.name for v in kernel.variables.values() if v.type in OPAQUE[:2]}
    if unknown := sorted(textures.keys() - references):
        known = ", ".join(sorted(references)) or "none"
        raise EmulatorError(
            f"no texture or surface reference {unknown[0]!r}", hint=f"The module has {known}."
        )
    text = " ".join(operand for i in kernel.instructions for operand in i.operands) if references else ""
    used = references & set(re.findall(r"[\w$%]+", text))
    if unbound := sorted(used - textures.keys()):
        raise EmulatorError(
            f"{kernel.name} reads the texture reference {unbound[0]!r}, which is not bound",
            hint=f"Pass emulate(..., textures={{{unbound[0]!r}: Texture(...)}}), or pass texture objects.",
        )
    return {name: textures[name] for name in used}


def _extents(what: str, extents: Sequence[int], limits: tuple[int, int, int]) -> Index3:
    """Return 1 to 3 extents as an Index3, with 1 for those left out. Raises EmulatorError above `limits`."""
    whole = [*extents, 1, 1, 1][:3]
    if not 1 <= len(extents) <= 3 or not all(1 <= e <= limit for e, limit in zip(whole, limits, strict=True)):
        raise EmulatorError(f"a {what} of {tuple(extents)}", hint=f"1 to 3 extents, at most {limits}.")
    return Index3(*(int(e) for e in whole))


_PARAMETERS = "the parameters"  # the buffer that holds them where a kernel takes the address of one


def _extra(kernel: Entry) -> list[Buffer]:
    """Return the buffers that the kernel needs of its own: malloc's heap, the grid's barrier, parameters."""
    found = []
    if any(i.opcode[0] == "call" and "malloc" in i.operands for i in kernel.instructions):
        found.append(Buffer(array=np.zeros(HEAP_BYTES, np.uint8), name=HEAP, initialised=False))
    if any("%envreg1" in i.operands for i in kernel.instructions):
        found.append(Buffer(array=np.zeros(8, np.uint8), name=WORKSPACE))
    names = {p.name for p in kernel.parameters}
    if any(i.opcode[0] == "mov" and names & set(i.operands) for i in kernel.instructions):
        size = max(p.offset + p.size for p in kernel.parameters)
        found.append(Buffer(array=np.zeros(size, np.uint8), name=_PARAMETERS))
    return found


def _point(kernel: Entry, arena: Arena, symbols: dict[str, int], space: bytes) -> None:
    """Put addresses where they belong: in initial values that name variables, and of parameters in `symbols`.

    space: the bytes of the parameters
    """
    block = next((a for a in arena.allocations if a.name == _PARAMETERS), None)
    octets = arena.view(1)
    if block is not None:
        octets[block.start - GLOBAL_BASE : block.end - GLOBAL_BASE] = np.frombuffer(space, np.uint8)
        symbols |= {p.name: block.start + p.offset for p in kernel.parameters}
    for variable in kernel.variables.values():
        for offset, name, addend in pointers_of(variable):
            if name not in symbols:
                raise EmulatorError(
                    f"variable {variable.name} starts with the address of {name!r}, which is none"
                )
            start = symbols[variable.name] - GLOBAL_BASE + offset
            octets[start : start + 8] = np.frombuffer(
                (symbols[name] + addend).to_bytes(8, "little"), np.uint8
            )


def _contents(variable: Variable, given: Mapping[str, NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return the bytes of a variable of the module: those `given`, else its initial values, zero without any.

    Raises EmulatorError if those given are not as many as the variable has.
    """
    found = given.get(variable.name)
    if found is None:
        return values_of(variable)
    if found.dtype != np.uint8 or found.shape != (variable.size,):
        raise EmulatorError(f"variable {variable.name} has {variable.size} bytes, not {found.nbytes}")
    return found
