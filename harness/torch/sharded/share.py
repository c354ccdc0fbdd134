"""Carry out one GPU's part of a schedule: buffers, local products, sums, and what is sent when.

How blocks travel is the business of a `Wire`, of which there is one for processes and one for lists of
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from harness.torch import products
from harness.torch.sharded.schedule import BLOCKS, SLICES, TERMS, Block, Moves, Round, Schedule

Parcel = tuple[int, Any]  # a GPU's rank, and the contiguous tensor that goes there or is filled from there


class Wire(Protocol):
    """The way between one GPU and the others; between two of them blocks arrive in the order sent."""

    def post(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Callable[[], None]:
        """Begin to send and receive what is ready on the current stream, and return without waiting.

        What is returned makes the current stream wait (without a GPU: waits) until all of it is done.
        """


class Held(NamedTuple):
    """A tensor and the block of the whole matrix that it is; `flipped` if such matrices are column-major."""

    tensor: Any
    block: Block
    flipped: bool = False

    def part(self, block: Block) -> Any:
        """Return a view of a block within this one; an empty one may lie anywhere."""
        if block.size == 0:
            return self.tensor.new_empty(block.shape)
        (top, _), (left, _) = self.block
        rows, columns = block
        return self.tensor[rows[0] - top : rows[1] - top, columns[0] - left : columns[1] - left]

    def packed(self, block: Block) -> Any:
        """Return a block as it travels, contiguous: a copy only where it is not."""
        part = self.part(block)
        return part.t().contiguous() if self.flipped else part.contiguous()

    def room(self, block: Block) -> Any:
        """Return memory for a block as it travels."""
        return self.tensor.new_empty(block.shape[::-1] if self.flipped else block.shape)

    def unpacked(self, block: Block, travelled: Any) -> Held:
        """Return a block that has travelled."""
        return Held(travelled.t() if self.flipped else travelled, block, self.flipped)


class Factors(NamedTuple):
    """The scalars of a product, and how float32 is multiplied."""

    alpha: float
    beta: float
    precision: str


def multiply(a: Any, b: Any, out: Any, alpha: float, beta: float, precision: str) -> None:
    """Queue ``out = alpha * a @ b + beta * out`` where the tensors lie, on the CPU by PyTorch."""
    if a.is_cuda:
        products.multiply(a, b, out, precision, alpha, beta)
    else:
        out.addmm_(a, b, alpha=alpha, beta=beta)


class Sum:
    """The summands of one block. float32 ones that are computed here are added up in place, by the product.

    All others are kept apart, each rounded to their type, and added in float32 and rounded at the end:
    harness.matmul has no result in another type than its operands'. The order depends on the split only.
    """

    def __init__(self, target: Any, beta: float, count: int, *, here: bool) -> None:
        self._target, self._beta, self._used = target, beta, 1
        apart = count > 1 and not (here and target.dtype is torch.float32)
        self._stack = target.new_empty((count, *target.shape)) if apart else None

    def first(self) -> tuple[Any, float]:
        """Return where the summand goes with which what was there before is added, and its beta."""
        if self._stack is None:
            return self._target, self._beta
        if self._beta:
            self._stack[0].copy_(self._target)
        return self._stack[0], self._beta

    def later(self) -> tuple[Any, float]:
        """Return where the next summand goes, and its beta."""
        if self._stack is None:
            return self._target, 1.0
        self._used += 1
        return self._stack[self._used - 1], 0.0

    def end(self) -> None:
        """Add them up, when all are there."""
        if self._stack is not None:
            torch.sum(self._stack, 0, out=self._target)


class Share:
    """One GPU's part of a product. `out` is what it has of C; `whole` is True if every GPU gets all of C."""

    def __init__(
        self, schedule: Schedule, wire: Wire, a: Held, b: Held, out: Held, factors: Factors, *, whole: bool
    ) -> None:
        self._schedule, self._wire, self._out, self._factors = schedule, wire, out, factors
        self._inputs = {"a": a, "b": b}
        # For a block that arrives: who computed it had no `out` of it, unless all have all of C.
        self._theirs = 0.0 if whole else factors.beta

    def steps(self) -> Iterator[None]:
        """Do it all; yield before each wait, when all that the wait is for has been posted here."""
        rounds = self._schedule.rounds
        if self._schedule.kind != BLOCKS:
            self._begin_sum()
        results: list[Callable[[], None]] = []
        ahead = self._operands(rounds[0])
        for i, one in enumerate(rounds):
            ready = ahead
            if i + 1 < len(rounds):
                ahead = self._operands(rounds[i + 1])  # travel while this one is multiplied
            yield
            a, b = ready()
            target = self._product(i, one, a, b)
            results.append(self._results(one, target))
        yield
        for placed in results:
            placed()
        if self._schedule.kind != BLOCKS:
            self._sum.end()
            placed = self._end()
            yield
            placed()

    def _begin_sum(self) -> None:
        kind, kept, rounds = self._schedule.kind, self._schedule.kept, self._schedule.rounds
        mine = self._out.block.holds(kept)
        self._kept = self._out if mine else Held(self._fresh(kept), kept)
        if kind == TERMS:
            count = 1 + sum(len(one.gets) for one in rounds)
        else:
            count = 1 + sum(one.a.columns[0] < one.a.columns[1] for one in rounds[1:])
        beta = self._factors.beta if mine else 0.0
        self._sum = Sum(self._kept.part(kept), beta, count, here=kind == SLICES)

    def _operands(self, one: Round) -> Callable[[], tuple[Held, Held]]:
        """Post what a round takes and gives; the function returned waits, and returns its operands."""
        rooms = [(move, self._inputs[move.name].room(move.block)) for move in one.takes]
        packed = [(move.peer, self._inputs[move.name].packed(move.block)) for move in one.gives]
        wait = self._wire.post(packed, [(move.peer, room) for move, room in rooms])

        def ready() -> tuple[Held, Held]:
            wait()
            found = dict(self._inputs)
            for move, room in rooms:
                found[move.name] = self._inputs[move.name].unpacked(move.block, room)
            return found["a"], found["b"]

        return ready

    def _product(self, i: int, one: Round, a: Held, b: Held) -> Any:
        """Queue the product of round `i`; return what was written, None if there is nothing to compute."""
        kind, out = self._schedule.kind, self._out
        if one.c.size == 0:
            return None
        if kind == BLOCKS:
            mine = out.block.holds(one.c)
            target, beta = (out.part(one.c), self._factors.beta) if mine else (self._fresh(one.c), 0.0)
        elif (i == 0) if kind == SLICES else (one.c == self._schedule.kept):
            target, beta = self._sum.first()
        elif one.a.size == 0:
            return None
        else:
            target, beta = self._sum.later() if kind == SLICES else (self._fresh(one.c), 0.0)
        left, right = a.part(one.a), b.part(one.b)
        multiply(left, right, target, self._factors.alpha, beta, self._factors.precision)
        return target

    def _results(self, one: Round, target: Any) -> Callable[[], None]:
        """Post what a round sends and gets; the function returned waits, and puts it where it belongs."""
        packed = target.contiguous() if one.sends else None
        sends = [(move.peer, packed) for move in one.sends]
        if self._schedule.kind == TERMS:
            return self._wire.post(sends, [(move.peer, self._sum.later()[0]) for move in one.gets])
        return self._exchange(sends, one.gets)

    def _end(self) -> Callable[[], None]:
        """Post what is sent of the finished sum, as `_results` does."""
        kept, own = self._kept, self._out.block.common(self._schedule.kept)
        if kept is not self._out:
            self._place(self._out.part(own), kept.part(own))
        sends = [(move.peer, kept.part(move.block).contiguous()) for move in self._schedule.sends]
        return self._exchange(sends, self._schedule.gets)

    def _exchange(self, sends: Sequence[Parcel], gets: Moves) -> Callable[[], None]:
        """Post; the function returned waits, and puts the blocks of C that arrived where they belong."""
        places = [self._out.part(move.block) for move in gets]
        direct = [not self._theirs and place.is_contiguous() for place in places]
        rooms = [
            place if straight else self._fresh(move.block)
            for move, place, straight in zip(gets, places, direct, strict=True)
        ]
        peers = [move.peer for move in gets]
        wait = self._wire.post(sends, list(zip(peers, rooms, strict=True)))

        def placed() -> None:
            wait()
            for place, room in zip(places, rooms, strict=True):
                if room is not place:
                    self._place(place, room)

        return placed

    def _fresh(self, block: Block) -> Any:
        return self._out.tensor.new_empty(block.shape)

    def _place(self, place: Any, block: Any) -> None:
        """Write a finished block to its place in C."""
        if self._theirs:
            torch.add(block, place, alpha=self._theirs, out=place)
        else:
            place.copy_(block)
