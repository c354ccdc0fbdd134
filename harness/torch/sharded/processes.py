"""`matmul` of DTensors: one process a GPU, and torch.distributed between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from harness.dispatch.call.options import IEEE
from harness.errors import UsageError
from harness.torch.sharded import arguments
from harness.torch.sharded.schedule import Cuts, Schedule, Split, chunks, held, plan
from harness.torch.sharded.share import Held, Parcel, Share

_REDISTRIBUTE = "x.redistribute(placements=[Shard(0)]) first; Shard(0), Shard(1) and Replicate() are read"


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    placements: Sequence[Placement] | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = IEEE,
) -> Any:
    """Return ``alpha * a @ b + beta * out`` as a DTensor; all processes of the mesh call it, as a collective.

    `a` (M x K), `b` (K x N) and `out` (M x N) are DTensors on one mesh of one dimension, each Shard(0),
    Shard(1) or Replicate(), of float32, bfloat16 or float16. `placements` says how the result is placed, if
    there is no `out`; if it is None too, as it takes the least traffic. Shards may be uneven or empty, as
    DTensor makes them. Rows or columns of each shard are contiguous, or it is copied. `alpha`, `beta` and
    `precision` are those of `harness.matmul`, and so is what it promises of `beta` and of the current stream.

    Of the ways to divide the work that one is taken that moves the fewest elements, and whatever travels does
    so while something else is multiplied. No multiply-add is done twice, unless all three are replicated.
    Where K is divided in float32, summands are added in float32. In 16 bits each of up to P summands is
    rounded, they are added in float32 and rounded again. The same call gives bitwise the same result.

    Raises UsageError for arguments it cannot use. There are no gradients.
    """
    tensors = {"a": a, "b": b} | ({} if out is None else {"out": out})
    mesh = _mesh(tensors)
    arguments.alike(tensors)
    m, n, k = arguments.sizes(a.shape, b.shape, None if out is None else out.shape)
    factors = arguments.factors(a.dtype, alpha, beta, precision, out=out is not None)
    splits = {name: _split(name, x.placements) for name, x in tensors.items()}
    count, rank = mesh.size(), mesh.get_local_rank()
    cuts = Cuts(chunks(m, count), chunks(n, count), chunks(k, count))
    found, schedules = plan(cuts, splits["a"], splits["b"], *_wanted(splits, placements))
    blocks = held(cuts, found, rank)
    with torch.no_grad():
        pairs = zip(tensors.items(), blocks, strict=False)
        parts = {name: _local(name, x, block, rank) for (name, x), block in pairs}
        target = parts.get("out")
        if target is None:
            target = Held(parts["a"].tensor.new_empty(blocks[2].shape), blocks[2])
        arguments.written(target.tensor, {name: parts[name].tensor for name in "ab"}, f"rank {rank}")
        wire = Collective(mesh.get_group(), target.tensor, schedules)
        share = Share(schedules[rank], wire, parts["a"], parts["b"], target, factors, whole=found.c is None)
        for _ in share.steps():
            pass
        if out is not None:
            return out
        placed = [Replicate() if found.c is None else Shard(found.c)]
        return DTensor.from_local(
            target.tensor, mesh, placed, run_check=False, shape=torch.Size((m, n)), stride=(n, 1)
        )


class Collective:
    """The sends and receives of a process group. NCCL runs them in order, on a stream of its own."""

    def __init__(self, group: Any, tensor: Any, schedules: Sequence[Schedule]) -> None:
        self._group = group
        if tensor.is_cuda and not _even(schedules):
            # NCCL connects all of a group at its first call, in which then all have to take part.
            dist.all_reduce(tensor.new_zeros(1), group=group)

    def post(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Callable[[], None]:
        """Begin to send and receive (see `share.Wire`)."""
        group = self._group
        both = [dist.P2POp(dist.isend, tensor, group=group, group_peer=peer) for peer, tensor in sends]
        both += [dist.P2POp(dist.irecv, tensor, group=group, group_peer=peer) for peer, tensor in receives]
        works = dist.batch_isend_irecv(both) if both else []

        def wait() -> None:
            for work in works:
                work.wait()
            both.clear()  # the memory of what was sent has to last until here

        return wait


def _even(schedules: Sequence[Schedule]) -> bool:
    """Return True if all processes send or receive in the same rounds."""
    busy = [
        [*(bool(one.takes or one.gives) for one in each.rounds), *(bool(one.sends) for one in each.rounds)]
        for each in schedules
    ]
    return all(one == busy[0] for one in busy)


def _mesh(tensors: dict[str, Any]) -> Any:
    """Return the mesh of all of them."""
    for name, x in tensors.items():
        if not isinstance(x, DTensor):
            hint = "distribute_tensor(x, mesh, [Shard(0)]); matmul_lists takes lists of tensors"
            raise UsageError(f"{name} is a {type(x).__name__}, not a DTensor", hint=hint)
    mesh = tensors["a"].device_mesh
    for name, x in tensors.items():
        if x.device_mesh != mesh:
            raise UsageError(f"a lies on {mesh}, {name} on {x.device_mesh}", hint="redistribute one of them")
    if mesh.ndim != 1:
        dims = f"the mesh has {mesh.ndim} dimensions"
        raise UsageError(dims, hint="use a mesh of one dimension, such as mesh['tp']")
    if mesh.get_coordinate() is None:
        raise UsageError(f"this process is not in {mesh}", hint="call it in the processes of the mesh only")
    return mesh


def _split(name: str, placements: Sequence[Any]) -> Split:
    """Return the dimension along which a matrix is split, by its placement."""
    if len(placements) != 1:
        raise UsageError(f"{name} has {len(placements)} placements on a mesh of one dimension")
    (placement,) = placements
    if isinstance(placement, Replicate):
        return None
    if type(placement) is Shard and -2 <= placement.dim < 2:
        return int(placement.dim) % 2
    raise UsageError(f"{name} is placed as {placement}", hint=_REDISTRIBUTE)


def _wanted(splits: dict[str, Split], placements: Sequence[Any] | None) -> tuple[Split, ...]:
    """Return how C is to be split; nothing if in any way."""
    if placements is not None:
        asked = _split("the result", placements)
        if "out" in splits and splits["out"] != asked:
            raise UsageError("out is not placed as placements says", hint="leave out placements")
        return (asked,)
    return (splits["out"],) if "out" in splits else ()


def _local(name: str, x: Any, block: Any, rank: int) -> Held:
    """Return what this process has of a DTensor."""
    tensor = x.to_local().detach()
    if hasattr(tensor, "wait"):  # a collective of DTensor's own is still under way
        tensor = tensor.wait()
    why = "shards are those of torch.chunk: distribute_tensor makes them, from_local needs shape= and stride="
    arguments.local(name, tensor, block, f"rank {rank}", why)
    return Held(tensor, block, arguments.column_major(x))
