"""What is prepared on each GPU: its context, the compiled kernels, and the launches of each shape.

Whatever depends only on shape and type is prepared once per GPU and kept: the choice of the kernel, the
compiled module, and the launch with its parameters packed.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from harness.dispatch import arrays, choose, measured
from harness.dispatch.arrays import LEGACY, TORCH_CURRENT, Matrix
from harness.dispatch.call import batch as batches
from harness.dispatch.call import group
from harness.dispatch.call.batch import Batch, OneByOne
from harness.dispatch.call.side_streams import Forks, order
from harness.dispatch.model import cost
from harness.dispatch.prepared import GemmImage, GemmLaunch
from harness.dispatch.split import Part, divided
from harness.dispatch.workspaces import Workspaces
from harness.driver import BorrowedStream, Context, Device, Function, Module, Stream, tensormap
from harness.errors import OutOfMemory, UsageError
from harness.kernels.compiler import compile_kernel
from harness.kernels.dtypes import DTYPES
from harness.kernels.epilogue import PLAIN, Epilogue
from harness.kernels.spec import Variant
from harness.problems.gemm import GEMMS, Gemm

Operands = tuple[Matrix, ...]  # a, b, out and what the epilogue reads, if anything
Kind = tuple[str, Epilogue, str]  # the type in which they are multiplied, what follows, and what is invariant
First = tuple[Sequence[int], Stream]  # the addresses of the operands, and the stream
Key = tuple[Any, ...]
Shape = tuple[int, ...]  # see `Gpu.plan`
Scalars = tuple[float, float]  # alpha and beta
Groups = tuple[list[tuple[group.GroupLaunch, list[int]]], list[int]]  # with their products, and who is left
Plan = TypeVar("Plan")
_SHAPE = ("M", "N", "K", "lda", "ldb", "ldc", "transa", "transb")
_MOST_PLANS = 4096  # prepared launches kept per GPU; beyond that the oldest are dropped
_MOST_GROUPS = 64  # the same of lists of products, of which each takes 1 KB a product


class Gpu:
    """One GPU: its primary context, held as long as the process lives, and the launches prepared in it."""

    def __init__(self, ordinal: int) -> None:
        self.device = Device.open(ordinal)
        self.context = Context(self.device)
        self._card = cost.card(self.device)
        self.arch = str(self._card["arch"])
        self._functions: dict[str, Function] = {}
        self._plans: dict[Key, GemmLaunch] = {}
        self._batches: dict[Key, batches.Launch] = {}
        self._groups: dict[Key, Groups] = {}
        self._streams: dict[int, Stream] = {}
        # Calls of harness.matmul, by how their arrays lie: harness.dispatch.call.known.
        self.calls: dict[Key, Any] = {}
        self._workspaces, self._forks = Workspaces(self.context), Forks(self.context)
        self._lock = threading.Lock()

    def run(
        self,
        operands: Operands,
        scalars: Scalars,
        stream: int,
        ordered: bool,
        kind: Kind,
        batch: Batch | None,
    ) -> None:
        """Queue a product, or a batch, on the stream at address `stream`, with the primary context current.

        `scalars` are alpha and beta. If `ordered`, no other stream needs to be waited for.
        """
        self._inside(self._run, operands, scalars, stream, ordered, kind, batch)

    def again(
        self,
        shape: Shape,
        kind: Kind,
        addresses: Sequence[int],
        scalars: Scalars,
        stream: int,
        batch: Batch | None = None,
    ) -> None:
        """Queue a product of a `shape` (see `plan`) whose operands are ready on the stream, as `run` does."""
        self._inside(self._queue, shape, kind, addresses, scalars, stream, batch)

    def image(
        self, shape: Shape, kind: Kind, addresses: Sequence[int], scalars: Scalars, stream: int
    ) -> GemmImage | None:
        """Return the launch of a product that `run` has queued, as `GemmLaunch.image` does."""
        with self.context.current():
            queue = self._stream(stream)
            plan, _ = self._planned(shape, kind, (addresses, queue))
            return plan.image(addresses, scalars, queue)

    def run_group(
        self, products: Sequence[Operands], scalars: Scalars, stream: int, ordered: bool, dtype: str
    ) -> None:
        """Queue several products, of one type; arguments are those of `run`."""
        self._inside(self._run_group, products, scalars, stream, ordered, dtype)

    def _inside(self, queue: Callable[..., None], *given: Any) -> None:
        """Call a function with the primary context current, unless another one of this GPU is."""
        if self.context.is_current:
            queue(*given)
        else:
            self.context.refuse_sibling()
            with self.context.current():
                queue(*given)

    def _run_group(
        self, products: Sequence[Operands], scalars: Scalars, stream: int, ordered: bool, dtype: str
    ) -> None:
        shapes = tuple(shape_of(operands) for operands in products)
        addresses = [[matrix.address for matrix in operands] for operands in products]
        prepare = functools.partial(self._prepare_groups, shapes, dtype)
        key = (shapes, dtype)
        launches, left = self._groups.get(key) or self._kept(self._groups, key, prepare, _MOST_GROUPS)
        queue = self._stream(stream)
        for i in left:  # prepared before anything is queued, for a product may be refused
            try:
                self._planned(shapes[i], (dtype, PLAIN, ""), (addresses[i], queue))
            except UsageError as e:
                raise UsageError(f"product [{i}]: {e.what}", hint=e.hint) from None
        others = [] if ordered else self._awaited(itertools.chain(*products), stream, queue)
        for launch, members in launches:
            launch([addresses[i] for i in members], scalars, queue)
        for i in left:
            self._product(shapes[i], (dtype, PLAIN, ""), addresses[i], scalars, queue)
        for other in others:
            order(queue, other)

    def _awaited(self, operands: Iterable[Matrix], stream: int, queue: Stream) -> list[Stream]:
        """Let a stream wait for all others on which operands are ready, and return these."""
        ready = {resolved(m) for m in operands if m.ready is not None}
        others = [self._stream(address) for address in ready - {stream}]
        for other in others:
            order(other, queue)
        return others

    def _run(
        self,
        operands: Operands,
        scalars: Scalars,
        stream: int,
        ordered: bool,
        kind: Kind,
        batch: Batch | None,
    ) -> None:
        shape, addresses = shape_of(operands), [matrix.address for matrix in operands]
        queue = self._stream(stream)
        others = [] if ordered else self._awaited(operands, stream, queue)
        self._queue(shape, kind, addresses, scalars, stream, batch)
        for other in others:
            order(queue, other)

    def _queue(
        self,
        shape: Shape,
        kind: Kind,
        addresses: Sequence[int],
        scalars: Scalars,
        stream: int,
        batch: Batch | None,
    ) -> None:
        queue = self._stream(stream)
        if batch is None:
            self._product(shape, kind, addresses, scalars, queue)
        else:
            self._batch(shape, kind, batch)(addresses, scalars, queue)

    def _product(
        self, shape: Shape, kind: Kind, addresses: Sequence[int], scalars: Scalars, queue: Stream
    ) -> None:
        """Queue a product of this `shape` (see `plan`) in a stream, of operands at these addresses."""
        plan, unmapped = self._planned(shape, kind, (addresses, queue))
        try:
            plan(addresses, scalars, queue)
        except OutOfMemory:
            if not plan.copied:
                raise
            plan = self.plan(shape, unmapped, kind, copying=False)  # slower, but bitwise the same result
            plan(addresses, scalars, queue)

    def _planned(self, shape: Shape, kind: Kind, first: First) -> tuple[GemmLaunch, str]:
        """Return the launch for a product of this shape, and its operands without tensor maps: see `plan`."""
        size, addresses = DTYPES[kind[0]].itemsize, first[0]
        unmapped = "" if tensormap.possible(addresses[0], shape[3] * size) else "A"
        unmapped += "" if tensormap.possible(addresses[1], shape[4] * size) else "B"
        return self.plan(shape, unmapped, kind, first=first), unmapped

    def plan(
        self, shape: Shape, unmapped: str, kind: Kind, copying: bool = True, first: First | None = None
    ) -> GemmLaunch:
        """Return the prepared launch for a `shape`, made at the first call.

        The shape is M, N, K, lda, ldb, ldc, transa and transb. `unmapped` names the operands that cannot have
        a tensor map: "", "A", "B" or "AB". If `copying`, the launch first copies those of them for which that
        is faster. `first` has the addresses and the stream of this call, on which variants may be timed
        (`harness.dispatch.measured`).
        """
        key = (*shape, unmapped, *kind, copying)
        found = self._plans.get(key)
        if found is None:
            prepare = functools.partial(self._prepare, shape, unmapped if copying else "", kind, first)
            found = self._kept(self._plans, key, prepare, _MOST_PLANS)
        return found

    def _batch(self, shape: Shape, kind: Kind, batch: Batch) -> batches.Launch:
        """Return the launch of a batch of products of this `shape`, made at the first call."""
        key = (*shape, *kind, batch)
        prepare = functools.partial(self._prepare_batch, shape, kind, batch)
        return self._batches.get(key) or self._kept(self._batches, key, prepare, _MOST_PLANS)

    def _kept(self, plans: dict[Key, Plan], key: Key, prepare: Callable[[], Plan], most: int) -> Plan:
        """Return the plan of this key, prepared unless another thread has."""
        with self._lock:
            found = plans.get(key)
            if found is None:
                found = prepare()
                for old in list(plans)[: max(0, len(plans) + 1 - most)]:
                    del plans[old]
                plans[key] = found
        return found

    def _problem(self, shape: Shape, kind: Kind) -> Gemm:
        return GEMMS[kind[0]](**dict(zip(_SHAPE, shape, strict=True)), epilogue=kind[1])

    def _prepare_batch(self, shape: Shape, kind: Kind, batch: Batch) -> batches.Launch:
        """Prepare one launch for a batch, or a launch for each product where the model finds that faster."""
        problem = self._problem(shape, kind)
        about = choose.about(problem, kind[2], (batch.a, batch.b))
        variant = batches.fastest(batch.size, *shape[:3], **self._card, **about).variant
        if variant is None:
            return OneByOne(batch, problem, functools.partial(self._product, shape, kind))
        return self.one_launch(variant, problem, batch)

    def one_launch(self, variant: Variant, problem: Gemm, batch: Batch) -> GemmLaunch:
        """Prepare the launch of a batch of products like `problem` by a variant that is compiled for one."""
        part = Part(variant=variant, rows=problem.M, columns=problem.N)
        return GemmLaunch(
            [(self._function(variant), part)],
            problem,
            sms=self.device.sms,
            workspaces=self._workspaces,
            forks=self._forks,
            load=self._function,
            batch=batch,
        )

    def _prepare_groups(self, shapes: Sequence[tuple[int, ...]], dtype: str) -> Groups:
        """Prepare the launches that products share, layout by layout, and say which have their own."""
        problems = [self._problem(shape, (dtype, PLAIN, "")) for shape in shapes]
        launches, left = [], set(range(len(shapes)))
        for layout in dict.fromkeys(p.layout for p in problems):
            alike = [i for i, p in enumerate(problems) if p.layout == layout]
            for found in group.grouped([problems[i] for i in alike], **self._card):
                members = [alike[i] for i in found.members]
                made = group.GroupLaunch(
                    self._function(found.variant),
                    found.variant,
                    [problems[i] for i in members],
                    sms=self.device.sms,
                    workspaces=self._workspaces,
                )
                launches.append((made, members))
                left -= set(members)
        return launches, sorted(left)

    def _prepare(self, shape: Shape, unmapped: str, kind: Kind, first: First | None) -> GemmLaunch:
        problem, rows = self._problem(shape, kind), kind[2]
        about = {**self._card, **choose.about(problem, rows)}
        parts = divided(*shape[:3], gpu=self.device.name, **about)

        def bind(parts: tuple[Part, ...], workspaces: Workspaces, forks: Forks) -> GemmLaunch:
            launches = [(self._function(part.variant), part) for part in parts]
            return GemmLaunch(
                launches,
                problem,
                sms=self.device.sms,
                dram=self._card["dram"],
                workspaces=workspaces,
                forks=forks,
                load=self._function,
                unmapped=unmapped,
            )

        if first is not None and measured.asked():
            parts = measured.faster(parts, problem, first, self.context, bind, rows, unmapped=unmapped)
        return bind(parts, self._workspaces, self._forks)

    def _function(self, variant: Variant) -> Function:
        found = self._functions.get(variant.label)
        if found is None:
            cubin = compile_kernel(variant, self.arch)
            found = self._functions[variant.label] = Module(self.context, cubin.code).function(cubin.entry)
        return found

    def _stream(self, address: int) -> Stream:
        found = self._streams.get(address)
        if found is None:
            found = self._streams[address] = BorrowedStream(self.context, address)
        return found


def shape_of(operands: Operands) -> tuple[int, ...]:
    """Return what a plan depends on: M, N, K, the leading dimensions, and which operands are transposed."""
    a, b, c, *_ = operands
    return a.rows, b.columns, a.columns, a.ld, b.ld, c.ld, int(a.transposed), int(b.transposed)


_gpus: dict[int, Gpu] = {}
_opening = threading.Lock()


def gpu(ordinal: int) -> Gpu:
    """Return the GPU with this ordinal, opened at the first call."""
    found = _gpus.get(ordinal)
    if found is None:
        with _opening:
            found = _gpus.get(ordinal)
            if found is None:
                found = _gpus[ordinal] = Gpu(ordinal)
    return found


def opened(ordinal: int) -> Gpu | None:
    """Return the GPU with this ordinal if it is open."""
    return _gpus.get(ordinal)


def resolved(matrix: Matrix) -> int:
    """Return the address of the stream on which a matrix is ready, or `LEGACY` if its owner names none."""
    if matrix.ready == TORCH_CURRENT:
        return arrays.torch_stream(matrix.device)
    return LEGACY if matrix.ready is None else matrix.ready
