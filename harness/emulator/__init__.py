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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from harness.emulator.blocks.arguments import Argument, Record, bind, hold
from harness.emulator.blocks.arguments.variables import (
    bind_textures,
    first_bytes,
    own_buffers,
    point,
    reached,
)
from harness.emulator.blocks.delays.loads import Late
from harness.emulator.blocks.endless.loops import BUDGET
from harness.emulator.blocks.schedule import SCHEDULES, Schedule
from harness.emulator.executable import executable, without_collection
from harness.emulator.hopper.tma.tensormap import TensorMap
from harness.emulator.instructions.texture.objects import Texture, handles_of
from harness.emulator.machine import Launch
from harness.emulator.memory import Arena, Buffer, Private
from harness.emulator.ptx.declarations import OPAQUE, values_of
from harness.emulator.watch.counts import Counts, by_line, total
from harness.emulator.watch.findings import Finding, Index3, Rewatch, Source
from harness.emulator.watch.shadow import Footprint
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
    contended: the lines whose atomics and strong loads of memory decide which way threads go: what the
      kernel does depends on who comes first, and another `schedule` may show another way
    waits: it has strong stores that ``delayed`` can hold back
    relies: it has strong reads of data, so that `fences` may find some that are missing
    late: the stores of which other blocks saw what came after them, and not the stores themselves. That is no
      fault by itself; it explains numbers that are wrong with the schedules ``delayed`` and ``random``
    heap: bytes that malloc has given
    stored: the range of addresses that the kernel stored to, of each buffer by its own; only if checked
    footprints: the bytes that it accessed, of each buffer by its address: by kind of access runs of offsets,
      see `shadow.Footprint`; only if asked for
    early: of the footprints what blocks accessed before they waited for the launch before by
      ``griddepcontrol.wait``: all, if they do not
    blocks: how many ran: fewer than the grid has where a `sample` was asked for
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
    stored: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    footprints: Mapping[int, Footprint] = field(default_factory=dict)
    early: Mapping[int, Footprint] = field(default_factory=dict)
    blocks: int = 0
    heap: int = 0

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
    arguments: Sequence[Argument] | bytes,
    memory: Sequence[Buffer] = (),
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
    textures: Mapping[str | int, Texture] | None = None,
    fences: bool = False,
    sample: int = 0,
    private: Private | None = None,
    heap: int = 0,
    footprints: bool = False,
) -> Emulation:
    """Run the kernel `entry` of the PTX module `ptx` and return its findings and counts.

    grid, block: 1 to 3 extents each; extents left out are 1
    arguments: one for each parameter, in order. A `Buffer` or an array is passed as a pointer: it has to be
      C-contiguous, and what the kernel stores is written back into it. A `Texture` is passed as a handle, a
      `Record` is a struct with pointers. A scalar is a NumPy scalar of the parameter's size. Or the bytes
      of all parameters, in which pointers are addresses in `memory`
    memory: what is in global memory, where launches share it: buffers with addresses, in ascending order. One
      that has the PTX name of a variable of the module is that variable
    shared: bytes of dynamic shared memory per block
    cluster: 1 to 3 extents of a cluster in blocks, where the launch says so and not the kernel
    schedule: ``lockstep``, or ``warp-serial``, in which each warp runs to the barrier before the next starts,
      or ``backward``, in which the last blocks, of threads that part those further on, and of warps that poll
      words in shared memory the last ones run first,
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
      Those that are left out get their initial values; those that the kernel reaches are in it afterwards,
      with what it stored, so that launches that pass the same dict share the module
    records: what variables hold that have pointers or tensor maps in them, by their PTX names
    textures: what texture and surface references of the module are bound to, by PTX names; objects by handle
    fences: look, too, for strong reads that only what is missing would order, see `blocks.delays.unfenced`
    sample: of a larger grid run so many blocks, the first, the last and some between; 0 for all. Kernels
      whose blocks wait for each other, or that have asynchronous units, run whole
    heap: bytes that malloc has given in earlier launches, of the buffer in `memory` that is called HEAP
    footprints: keep which bytes of buffers it accesses, and how, see `Emulation.footprints`; wants `check`
    private: makes memory in which `memory` lies already, which is then not copied, see `memory.Arena`

    Raises EmulatorError for PTX that it cannot read, arguments or variables that do not fit, a kernel that
    exceeds the budget and arrays too large for this machine, and its subclasses OutOfTime when time is over,
    and NeedsGpu for an instruction that the emulator does not know.
    """
    if schedule not in SCHEDULES:
        raise EmulatorError(f"no schedule {schedule!r}", hint=f"There are {' and '.join(SCHEDULES)}.")
    kernel = (code := executable(ptx, entry)).entry
    if not 0 <= kernel.sizes.get("shared", 0) + shared <= _LARGEST_SHARED:
        raise EmulatorError(
            f"{kernel.sizes.get('shared', 0):,} + {shared:,} bytes of shared memory a block",
            hint=f"A block has {_LARGEST_SHARED:,} at most.",
        )
    extents = _shape(grid, block)
    clusters = _extents(
        "cluster", kernel.cluster if any(n > 1 for n in kernel.cluster) else cluster or (1,), (16, 16, 16)
    )
    given = textures or {}
    bound = bind_textures(kernel, {name: t for name, t in given.items() if isinstance(name, str)})
    objects = {handle: t for handle, t in given.items() if isinstance(handle, int)}
    objects |= handles_of([*(() if isinstance(arguments, bytes) else arguments), *bound.values()])
    placed = {b.name: b.address for b in memory if b.address is not None}
    module = [v for v in reached(kernel, [*(variables or ()), *(records or ())]) if v.name not in placed]
    contents = {v.name: first_bytes(v, variables or {}) for v in module}
    watched: set[int] = set()
    fine, cells = code.fine, False  # see `watch.races`
    while True:
        copies = {h: replace(t, array=t.array.copy()) for h, t in objects.items()}
        buffers, parameters = bind(kernel, arguments, records or {}, memory)
        owned = [*buffers, *(Buffer(array=contents[v.name], name=v.name) for v in module)]
        owned += [b for b in own_buffers(kernel) if b.name not in placed]
        arena = Arena(owned, private)
        symbols = {v.name: v.offset for v in kernel.variables.values()} | placed
        symbols |= {v.name: a.start for v, a in zip(module, arena.allocations[len(buffers) :], strict=False)}
        space = parameters(arena)
        symbols |= {name: handle for name, t in bound.items() for handle, o in objects.items() if o is t}
        point(kernel, arena, symbols, space, module)
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
            sample=sample,
            heap=heap,
            footprints=footprints,
        )
        try:
            launch.run()
        except Rewatch as request:
            fine = fine or request.index < 0
            cells = cells or request.index < 0
            watched.add(request.index)
            continue
        except EmulatorError as error:
            error.findings, error.reached = launch.findings.all(), launch.findings.ends
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
            contended=tuple(dict.fromkeys((*code.contended, *code.polled))),
            waits=bool(code.waits) and not code.asynchronous,
            relies=bool(code.contended and code.relying),
            late=launch.delays.late() if launch.delays is not None else (),
            reached=launch.findings.ends,
            heap=launch.heap_used,
            stored=launch.stored,
            footprints=launch.accessed,
            early=launch.early if code.depends else launch.accessed,
            blocks=launch.blocks or extents[0].x * extents[0].y * extents[0].z,
        )


def initial_variables(ptx: str, entry: str, space: str = "global") -> dict[str, NDArray[np.uint8]]:
    """Return the initial bytes of the variables of a kernel's module in a space, by their PTX names.

    Those in ``global`` are ``__device__``, those in ``const`` are ``__constant__``.

    Raises what `emulate` raises for PTX that it cannot read.
    """
    kernel = executable(ptx, entry).entry
    found = [v for v in kernel.variables.values() if v.space == space and v.type not in OPAQUE]
    return {v.name: values_of(v) for v in found}


def _shape(grid: Sequence[int], block: Sequence[int]) -> tuple[Index3, Index3]:
    """Return both as Index3. Raises EmulatorError for what CUDA does not launch."""
    blocks, threads = (
        _extents("grid", grid, (2**31 - 1, 65535, 65535)),
        _extents("block", block, (1024, 1024, 64)),
    )
    if threads.x * threads.y * threads.z > 1024:
        raise EmulatorError(f"a block of {threads} has more than 1024 threads")
    return blocks, threads


def _extents(what: str, extents: Sequence[int], limits: tuple[int, int, int]) -> Index3:
    """Return 1 to 3 extents as an Index3, with 1 for those left out. Raises EmulatorError above `limits`."""
    whole = [*extents, 1, 1, 1][:3]
    if not 1 <= len(extents) <= 3 or not all(1 <= e <= limit for e, limit in zip(whole, limits, strict=True)):
        raise EmulatorError(f"a {what} of {tuple(extents)}", hint=f"1 to 3 extents, at most {limits}.")
    return Index3(*(int(e) for e in whole))
