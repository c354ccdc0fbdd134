"""`matmul_lists`: one process, a list of tensors for each matrix, and copies between the GPUs.

A copy between two GPUs is done by their copy engines, on streams beside those that multiply. Each GPU has two
of them, for what leaves and for what arrives, so that the copies of a round do not wait for one another.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.dispatch.call.options import IEEE
from harness.errors import UsageError
from harness.torch.sharded import arguments
from harness.torch.sharded.schedule import Block, Cuts, Range, Split, chunks, held, plan
from harness.torch.sharded.share import Held, Parcel, Share

_NAMES = ("a", "b", "out")


def matmul_lists(
    a: Sequence[Any],
    b: Sequence[Any],
    out: Sequence[Any] | None = None,
    *,
    split: Sequence[Split],
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = IEEE,
) -> list[Any]:
    """Queue ``alpha * a @ b + beta * out`` on the current streams of all GPUs, and return the parts of C.

    Each list has a tensor for each GPU, those of `a`, `b` and `out` with the same index on the same GPU.
    `split` tells the dimension along which `a`, `b` and `out` are split: 0 (by rows), 1 (by columns) or None
    (each GPU has all of it), such as ``split=(0, None, 0)``. Without the third one C is split as it takes the
    least traffic. Parts may have any sizes that fit together. All else is as in `matmul`.

    Tensors of the CPU act as GPUs of their own. Raises UsageError for arguments it cannot use.
    """
    lists = {"a": list(a), "b": list(b)} | ({} if out is None else {"out": list(out)})
    splits = _splits(split)
    _check(lists)
    first = lists["a"][0]
    if len(splits) == 2 and out is not None:
        raise UsageError(
            "split does not say how out is split", hint="pass split=(A, B, C), as in (0, None, 0)"
        )
    factors = arguments.factors(first.dtype, alpha, beta, precision, out=out is not None)
    cuts = _cuts(lists, splits)
    found, schedules = plan(cuts, *splits)
    blocks = [held(cuts, found, rank) for rank in range(len(lists["a"]))]
    _fit(lists, blocks)
    results = lists.get("out") or [
        x.new_empty(block[2].shape) for x, block in zip(lists["a"], blocks, strict=True)
    ]
    for rank, result in enumerate(results):
        others = {f"{name}[{i}]": x for name in "ab" for i, x in enumerate(lists[name])}
        others |= {f"out[{i}]": x for i, x in enumerate(results[:rank])}
        arguments.written(result, others, f"out[{rank}]")
    lanes = [lane(x.device) for x in lists["a"]]
    copies, shares = Copies(lanes), []
    flips = *(arguments.column_major(lists[name][0]) for name in "ab"), False
    for rank, block in enumerate(blocks):
        tensors = (x[rank].detach() for x in (lists["a"], lists["b"], results))
        left, right, target = (Held(*each) for each in zip(tensors, block, flips, strict=True))
        wire, whole = copies.of(rank), found.c is None
        shares.append(Share(schedules[rank], wire, left, right, target, factors, whole=whole))
    with torch.no_grad():
        together(shares, lanes)
    return results


def together(shares: Sequence[Share], lanes: Sequence[Any]) -> None:
    """Carry out the shares of all GPUs, each up to its next wait in turn."""
    steps = [share.steps() for share in shares]
    over = False
    try:
        while not over:  # they have as many steps as one another
            for each, lane in zip(steps, lanes, strict=True):
                with lane.current():
                    over = next(each, lane) is lane
    finally:
        for lane in lanes:
            lane.join()


class Lane:
    """The CPU, on which everything is done when it is queued."""

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Return a block in which this lane's GPU is the current one."""
        return contextlib.nullcontext()

    def mark(self) -> Any:
        """Return an event after all that is queued on the current stream."""

    def wait(self, event: Any) -> None:
        """Make the current stream wait for an event."""

    def copy(self, source: Any, target: Any, events: Sequence[Any], to: Any) -> Any:
        """Queue a copy to the GPU of lane `to`, after the events; return the event after it."""
        target.copy_(source)

    def join(self) -> None:
        """Make the current stream wait for all copies."""


class CudaLane(Lane):
    """The current stream of a GPU, and the streams of what leaves it and of what arrives."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._leaving, self._arriving = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.device(self._device)  # type: ignore[no-any-return]

    def mark(self) -> Any:
        return torch.cuda.current_stream(self._device).record_event()

    def wait(self, event: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)

    def copy(self, source: Any, target: Any, events: Sequence[Any], to: Any) -> Any:
        # PyTorch copies on the source's current stream, and has it and the target's wait for each other.
        with torch.cuda.stream(self._leaving), torch.cuda.stream(to._arriving):
            for event in events:
                self._leaving.wait_event(event)
                to._arriving.wait_event(event)
            target.copy_(source, non_blocking=True)
            return to._arriving.record_event()

    def join(self) -> None:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_stream(self._leaving)
        stream.wait_stream(self._arriving)


_lanes: dict[Any, CudaLane] = {}


def lane(device: Any) -> Lane:
    """Return the lane of a device, made at the first call."""
    if device.type != "cuda":
        return Lane()
    if device not in _lanes:
        _lanes[device] = CudaLane(device)
    return _lanes[device]


class Copies:
    """The copies between all GPUs. One is queued when both its ends have been posted."""

    def __init__(self, lanes: Sequence[Any]) -> None:
        self._lanes = lanes
        self._waiting: dict[tuple[int, int], collections.deque[Any]] = collections.defaultdict(
            collections.deque
        )

    def of(self, rank: int) -> _End:
        """Return the wire of one GPU."""
        return _End(self, rank)

    def meet(self, way: tuple[int, int], tensor: Any, event: Any, *, sent: bool) -> _Copy:
        """Post one end of the next copy from one GPU to another, and queue it if the other end is there."""
        open_ones = self._waiting[way]
        if open_ones and (open_ones[0].source is None) == sent:
            copy: _Copy = open_ones.popleft()
        else:
            copy = _Copy()
            open_ones.append(copy)
        if sent:
            copy.source = tensor
        else:
            copy.target = tensor
        copy.events.append(event)
        if len(copy.events) == 2:
            source, target = (self._lanes[rank] for rank in way)
            copy.done = source.copy(copy.source, copy.target, copy.events, target)
            copy.queued = True
        return copy


class _Copy:
    """A copy: its ends, the events after which they are ready, and the one after it."""

    def __init__(self) -> None:
        self.source: Any = None
        self.target: Any = None
        self.events: list[Any] = []
        self.done: Any = None
        self.queued = False


class _End:
    """The wire of one GPU (see `share.Wire`)."""

    def __init__(self, copies: Copies, rank: int) -> None:
        self._copies, self._rank, self._lane = copies, rank, copies._lanes[rank]

    def post(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Callable[[], None]:
        """Begin to send and receive."""
        event = self._lane.mark() if sends or receives else None
        ends = [self._copies.meet((self._rank, to), x, event, sent=True) for to, x in sends]
        ends += [self._copies.meet((of, self._rank), x, event, sent=False) for of, x in receives]

        def wait() -> None:
            for end in ends:
                assert end.queued, "the other end was never posted"
                self._lane.wait(end.done)

        return wait


def _splits(split: Sequence[Any]) -> tuple[Split, ...]:
    """Return `split`, checked."""
    try:
        found = tuple(split)
    except TypeError:
        found = ()
    if len(found) not in (2, 3) or any(
        x is not None and (isinstance(x, bool) or x not in (0, 1)) for x in found
    ):
        raise UsageError(
            f"split={split!r}", hint="pass the dimensions of A, B and C, 0, 1 or None, as in (0, None, 0)"
        )
    return found


def _check(lists: dict[str, list[Any]]) -> None:
    """Raise UsageError unless all lists have matrices of one type, as many, on the same GPUs in turn."""
    count = len(lists["a"])
    if not count:
        raise UsageError("a is empty", hint="pass a list with a tensor for each GPU")
    for name, found in lists.items():
        for i, x in enumerate(found):
            if not isinstance(x, torch.Tensor):
                raise UsageError(f"{name}[{i}] is a {type(x).__name__}, not a tensor")
        if len(found) != count:
            hint = "pass a tensor for each GPU, the whole matrix where the split is None"
            raise UsageError(f"a has {count} tensors, {name} {len(found)}", hint=hint)
    arguments.alike({f"{name}[{i}]": x for name, found in lists.items() for i, x in enumerate(found)})
    for i, one in enumerate(lists["a"]):
        for name, found in lists.items():
            if found[i].device != one.device:
                both = f"a[{i}] is on {one.device}, {name}[{i}] on {found[i].device}"
                raise UsageError(both, hint="tensors with one index are on one GPU")
        if one.device.type not in ("cpu", "cuda") or one.device.type != lists["a"][0].device.type:
            raise UsageError(f"a[{i}] is on {one.device}", hint="pass tensors on GPUs, or all on the CPU")


def _cuts(lists: dict[str, list[Any]], splits: Sequence[Split]) -> Cuts:
    """Return the ranges of M, N and K, by whatever is split along them, else as torch.chunk does."""
    # (matrix, its dimension) for each of M, N and K
    named = {"M": (("a", 0), ("out", 0)), "N": (("b", 1), ("out", 1)), "K": (("a", 1), ("b", 0))}
    given = dict(zip(_NAMES, splits, strict=False))
    found: dict[str, tuple[Range, ...]] = {}
    for dimension, sides in named.items():
        by: dict[str, list[int]] = {
            name: [x.shape[d] for x in lists[name]] for name, d in sides if name in lists and given[name] == d
        }
        if len({tuple(each) for each in by.values()}) > 1:
            (one, its), (other, others) = by.items()
            raise UsageError(f"{dimension} is split into {its} by {one}, into {others} by {other}")
        if by:
            ends = list(itertools.accumulate(next(iter(by.values())), initial=0))
            found[dimension] = tuple(itertools.pairwise(ends))
        else:
            name, d = sides[0]
            found[dimension] = chunks(lists[name][0].shape[d], len(lists["a"]))
    return Cuts(found["M"], found["N"], found["K"])


def _fit(lists: dict[str, list[Any]], blocks: Sequence[tuple[Block, Block, Block]]) -> None:
    """Raise UsageError unless every tensor has the shape that the others ask of it."""
    for rank, each in enumerate(blocks):
        for (name, found), block in zip(lists.items(), each, strict=False):
            arguments.local(f"{name}[{rank}]", found[rank], block, "", "split says what each GPU has of it")
