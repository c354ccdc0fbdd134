"""GEMM launches prepared for one shape and run on operands at any address; `harness.matmul` caches them."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from harness.dispatch import choose
from harness.dispatch.call.batch import Batch
from harness.dispatch.call.copies import OPERANDS, Copy
from harness.dispatch.call.side_streams import Forks
from harness.dispatch.model import traffic
from harness.dispatch.split import Part, brief
from harness.dispatch.workspaces import Need, Workspaces
from harness.driver import Context, Function, Image, Module, PreparedLaunch, Stream, Struct, tensormap
from harness.errors import UsageError
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.epilogue import ROWS
from harness.kernels.spec import Variant
from harness.launch import kernel
from harness.launch.kernel import Launch, Mapped
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm

_MOST_MAPS = 64  # tensor maps kept per operand of a launch; beyond that all are dropped and made again on use
_MOST_PITCH = 2**31 - 129  # bytes: of rows that are copied
Watch = Callable[[Callable[[], None]], bool]
_SCALARS = 9  # the index of alpha among the problem's arguments; beta follows


class GemmLaunch:
    """The launches that compute a product of one shape: ``launch(addresses, scalars, stream)``.

    `parts` is the result of `split.divided`, each part with its kernel's function. Parts other than the first
    run in a side stream, at the same time if there is room. Operands that the kernels do not read as they are
    stored are transposed first. `unmapped` names the operands ("", "A", "B" or "AB") that cannot have a
    tensor map. Those of them for which it is faster, `copied`, are first copied to where they can. `load`
    gives the function of a kernel that copies. With a `batch` the only part is compiled for one, and the
    addresses are those of the first matrices. Calls share the packed parameters, so a lock lets one thread at
    a time write and launch them.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Function, Part]],
        problem: Gemm,
        *,
        sms: int,
        dram: float = traffic.DRAM_BYTES,
        workspaces: Workspaces,
        forks: Forks,
        load: Callable[[Variant], Function],
        unmapped: str = "",
        batch: Batch | None = None,
    ) -> None:
        flips = traffic.unread(parts[0][1].variant, problem.layout)
        shape, pitches = (problem.M, problem.N, problem.K), {"A": problem.lda, "B": problem.ldb}
        size = problem.dtype.itemsize
        unmapped = "".join(x for x in unmapped if x not in flips and pitches[x] * size <= _MOST_PITCH)
        self.copied = traffic.copied(parts[0][1].variant, *shape, sms=sms, unmapped=unmapped, dram=dram)
        stored = problem.layouts()
        self._copies = [Copy(name, stored[name], load) for name in self.copied]
        self._copies += [Copy(name, stored[name], load, transposed=True) for name in flips]
        changed: dict[str, Any] = {f"ld{c.name.lower()}": c.ld for c in self._copies}
        for trans in (f"trans{x.lower()}" for x in flips):
            changed[trans] = 1 - getattr(problem, trans)
        problem = dataclasses.replace(problem, **changed)
        self._workspaces, self._forks = workspaces, forks
        self._launches = [_Launch(i, *part, problem, sms, batch) for i, part in enumerate(parts)]
        needs = [copy.need for copy in self._copies] + [one.need for one in self._launches]
        self.needs = [need for need in needs if need is not None]
        self._lock = threading.Lock()

    def __call__(self, addresses: Sequence[int], scalars: tuple[float, float], stream: Stream) -> None:
        """Queue the product in `stream`.

        `addresses` are those of A, B, C and, if the epilogue reads one, its operand in device memory,
        `scalars` are alpha and beta. Raises OutOfMemory if there is no room for workspaces or copies.
        """
        with self._lock:
            if not self.needs:
                self._run(addresses, scalars, stream, iter(()))
                return
            with self._workspaces.lent(self.needs, stream) as lent:
                self._run(addresses, scalars, stream, iter(lent))

    def image(
        self, addresses: Sequence[int], scalars: tuple[float, float], stream: Stream
    ) -> GemmImage | None:
        """Return the launch for callers in C, of operands at multiples of 16 bytes where these addresses are.

        None if it is more than one launch. It has the workspace kept for `stream`, if it needs one and
        `stream` has it.
        """
        if self._copies or len(self._launches) > 1:
            return None
        with self._lock:
            room = self._workspaces.room(self.needs[0], stream) if self.needs else None
            return self._launches[0].image(addresses, scalars, room, self._workspaces.watch)

    def _run(
        self, addresses: Sequence[int], scalars: tuple[float, float], stream: Stream, lent: Iterator[int]
    ) -> None:
        if self._copies:
            addresses = list(addresses)
            for copy in self._copies:  # the first of the lent addresses are for copies
                target = next(lent)
                copy.run(addresses[copy.operand], target, stream)
                addresses[copy.operand] = target
        main, *others = self._launches
        if not others:
            main(addresses, scalars, stream, lent)
            return
        with self._forks.beside(stream) as side:
            main(addresses, scalars, stream, lent)  # queued first, so that it has all SMs
            for one in others:
                one(addresses, scalars, side, lent)


@dataclasses.dataclass(frozen=True)
class GemmImage:
    """The single launch of a product for callers in C: its arguments, and which of them are addresses.

    Offsets are bytes in the arguments' memory; operands are numbered as the addresses that a `GemmLaunch`
    takes. `pointers` and `maps` are pairs of both, of addresses and of tensor maps. `aligned` has a bit for
    each of A, B and C at a multiple of 16 bytes: the image is for such operands only. `own` is the offset of
    the workspace's address, if it has one, and `room` the number of a stream and the address of the workspace
    kept for it, if that is known. `watch` is that of the `Workspaces`.
    """

    launch: Image
    pointers: tuple[tuple[int, int], ...]
    maps: tuple[tuple[int, int], ...]
    aligned: int
    own: int | None
    room: tuple[int, int] | None
    watch: Watch


class _Launch:
    """The launch of one part, with its parameters packed. `need` is the workspace it needs, or None."""

    def __init__(
        self, index: int, function: Function, part: Part, whole: Gemm, sms: int, batch: Batch | None
    ) -> None:
        variant = part.variant
        size, stored = whole.dtype.itemsize, whole.stored.itemsize
        self._offsets = [  # in bytes, of the part's first element in A, B, C and what the epilogue reads
            size * part.row * (1 if whole.transa else whole.lda),
            size * part.column * (whole.ldb if whole.transb else 1),
            stored * (part.row * whole.ldc + part.column),
        ]
        if whole.epilogue.derivative:
            self._offsets.append(self._offsets[-1])
        elif whole.epilogue.bias:
            self._offsets.append(stored * (part.row if whole.epilogue.bias == ROWS else part.column))
        problem = dataclasses.replace(whole, M=part.rows, N=part.columns)
        count, *steps = batch or (1,)
        stacks = {name: (count, step) for name, step in zip(OPERANDS, steps, strict=False)}
        mapped = kernel.maps(variant, problem, stacks)
        none = Struct(bytes(tensormap.BYTES), tensormap.ALIGN)
        given = problem.arguments()
        arguments = [np.uint64(0) if isinstance(a, str) else a for a in given]
        memory = kernel.workspace(variant, problem, sms=sms, batch=count)
        user = f"{variant.label}, part {index}" if index else variant.label  # parts run together
        self.need = Need(user=user, size=memory, zeroed=True) if memory else None
        arguments += [np.uint32(count), *(np.int64(step) for step in steps)] if batch else []
        own = [kernel.NULL] if variant.kernel.workspace else []
        self._prepared = function.prepare(
            kernel.grid(variant, problem, sms=sms, batch=count),
            variant.block,
            [none] * len(mapped) + arguments + own,
            shared=variant.shared,
            cooperative=variant.kernel.cooperative,
            programmatic=variant.programmatic,
        )
        first, last = len(mapped), len(mapped) + len(arguments)
        self._places = [first + i for i, a in enumerate(given) if isinstance(a, str)]
        self._pointers = [self._prepared.argument(i, ctypes.c_uint64) for i in self._places]
        self._alpha = self._prepared.argument(first + _SCALARS, ctypes.c_float)
        self._beta = self._prepared.argument(first + _SCALARS + 1, ctypes.c_float)
        self._own = self._prepared.argument(last, ctypes.c_uint64) if memory else None
        self._maps = [_Map(function.context, self._prepared, i, m) for i, m in enumerate(mapped)]

    def __call__(
        self, addresses: Sequence[int], scalars: tuple[float, float], stream: Stream, lent: Iterator[int]
    ) -> None:
        self._write(addresses, scalars)
        if self._own is not None:
            self._own.value = next(lent)
        self._prepared(stream)

    def image(
        self,
        addresses: Sequence[int],
        scalars: tuple[float, float],
        room: tuple[int, int] | None,
        watch: Watch,
    ) -> GemmImage:
        """Return this launch for callers in C: see `GemmLaunch.image`."""
        self._write(addresses, scalars)
        launch = self._prepared.image()
        mapped = [(launch.offsets[i], one.operand) for i, one in enumerate(self._maps) if one.possible]
        return GemmImage(
            launch=launch,
            pointers=tuple((launch.offsets[i], operand) for operand, i in enumerate(self._places)),
            maps=tuple(mapped),
            aligned=sum(tensormap.possible(address, 0) << i for i, address in enumerate(addresses[:3])),
            own=None if self._own is None else launch.offsets[-1],
            room=room,
            watch=watch,
        )

    def _write(self, addresses: Sequence[int], scalars: tuple[float, float]) -> None:
        """Write what depends on the call to the arguments, except the address of the workspace."""
        self._alpha.value, self._beta.value = scalars
        for pointer, offset, address in zip(self._pointers, self._offsets, addresses, strict=True):
            pointer.value = address + offset
        for one in self._maps:
            one.move(addresses[one.operand] + self._offsets[one.operand])


def prepare(parts: Sequence[tuple[Cubin, Part]], operands: Operands) -> Launch:
    """Bind to `operands` exactly the launches that `harness.matmul` would queue for them, for timing.

    `parts` is the result of `split.divided`, each part with its cubin. The returned launch names the first
    part's function as its own. Raises UsageError if the problem is not a GEMM.
    """
    problem, context = operands.problem, operands.context
    if not isinstance(problem, Gemm):
        raise UsageError(f"{choose.NAME} does not compute {problem.label}")
    with ExitStack() as undo:
        workspaces, forks = undo.enter_context(Workspaces(context)), undo.enter_context(Forks(context))

        def function(cubin: Cubin) -> Function:
            return undo.enter_context(Module(context, cubin.code)).function(cubin.entry)

        made = [(function(cubin), part) for cubin, part in parts]
        queue = GemmLaunch(
            made,
            problem,
            sms=context.device.sms,
            dram=traffic.dram_bytes(context.device),
            workspaces=workspaces,
            forks=forks,
            load=lambda variant: function(compile_kernel(variant, parts[0][0].arch)),
            unmapped=problem.without_maps(),
        )
        workspaces.reserve(queue.needs)  # as in a stream, where launches find their memory kept
        scalars = problem.alpha, problem.beta
        pointers = [name for name in problem.arguments() if isinstance(name, str)]
        calls = [
            functools.partial(queue, [copy[name].ptr for name in pointers], scalars)
            for copy in operands.buffers
        ]
        owned = undo.pop_all()
    label = brief(part.variant for _, part in parts)
    return Launch(label, operands, calls, function=made[0][0], owned=owned)


class _Map:
    """A tensor map among a launch's parameters. Maps are cached by the operand's address."""

    def __init__(self, context: Context, prepared: PreparedLaunch, index: int, mapped: Mapped) -> None:
        self._context, self._mapped = context, mapped
        self.operand = OPERANDS.index(mapped.operand)
        self._memory = prepared.argument(index, ctypes.c_char * tensormap.BYTES)
        self._made: dict[int, bytes] = {}
        self._address = 0  # no map is written yet: the bytes are 0, as for an address that cannot have one

    @property
    def possible(self) -> bool:
        """True if the operand where it lies now has a map."""
        return any(self._memory.raw)

    def move(self, address: int) -> None:
        """Write the map for its operand at this address."""
        if address == self._address:
            return
        made = self._made.get(address)
        if made is None:
            if len(self._made) >= _MOST_MAPS:
                self._made.clear()
            made = kernel.tensor_map(self._context, address, self._mapped).data
            self._made[address] = made
        ctypes.memmove(self._memory, made, tensormap.BYTES)
        self._address = address
