"""Schedules: in which order blocks, warps, threads that part and asynchronous operations have their turns.

All of them are orders that the hardware may choose. ``random`` draws one: how many blocks run side by side,
and which of them first, which warp and which of the threads that have parted goes on, where a warp is
interrupted, which copies land at once, and which strong stores other blocks see late. With ``delayed`` all of
these stores come late, see `delays`. With ``held`` the last warp of the first blocks waits before strong
writes until nobody else can go on: a schedule by priorities (Burckhardt et al., "A randomized scheduler with
probabilistic guarantees of finding bugs", ASPLOS 2010) in which the lowest one is chosen, not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, TypeVar

from harness.emulator.watch.findings import Index3

SCHEDULES = ("lockstep", "warp-serial", "backward", "random", "delayed", "held", "early", "late")
_PARTS = 8  # into which `backward` divides a grid, at least, so that some blocks end before others begin
_CONTENDED = 2  # the same for other schedules, of a kernel to which it matters who comes first
_PIECES = 64  # the same for ``random``, at most
_PAUSES = 3, 10  # a random warp is interrupted once in 2 to the power of 3 to 10 instructions
_DELAYS = 0.75  # the chance that ``random`` delays stores
_SWITCH = 1 / 16  # the chance, at each instruction, that other threads of a warp that has parted go on

_SAMPLES = 8  # batches, at least, where only some blocks of a grid run

T = TypeVar("T")


class Schedule:
    """The schedule `name` of a launch; `seed` is what ``random`` is drawn from.

    by_warp: warps run one by one, not all threads of a block together
    backward: the last blocks, the last threads and the instructions furthest on come first
    early: asynchronous operations land at once
    holds: the last warp of the first blocks waits before strong writes until nobody else can go on
    delays: strong stores reach other blocks late; `letting` draws when, if it is not None
    pick: returns the instruction at which to go on, of those at which lanes are ready
    parts: returns whether lanes at an instruction shall let others, ready at theirs, go on
    """

    def __init__(self, name: str, seed: int) -> None:
        self.by_warp = name in ("warp-serial", "random", "held")
        self.holds = name == "held"
        self.backward = name == "backward"
        self.early = name in ("early", "warp-serial")
        self.dice: Random | None = None
        self.pick: Callable[[Iterable[int]], int] = max if self.backward else min
        self.parts: Callable[[int, Iterable[int]], bool] = _behind if self.backward else _ahead
        self.delays = name == "delayed"
        self.letting: Random | None = None
        if name == "random":
            self.letting = Random(f"delays {seed}")  # the other draws stay those of the seed
            self.delays = self.letting.random() < _DELAYS
            self.dice = Random(seed)
            self.backward = self.dice.random() < 0.5
            self._pause = 0.5 ** self.dice.randint(*_PAUSES)
            self.pick, self.parts = self._any, self._switches

    @property
    def reorders(self) -> bool:
        """Return whether blocks begin in another order than that of their numbers."""
        return self.backward or self.dice is not None

    def together(self, blocks: int, most: int, contended: bool) -> int:
        """Return how many of the blocks of a grid run side by side, `most` at most.

        contended: it matters to the kernel who comes first
        """
        parts = _PARTS if self.backward else _CONTENDED if contended else 1
        if self.dice is not None:
            parts = self.dice.randint(1, _PIECES)
        return max(1, min(most, -(-blocks // parts)))

    def order(self, blocks: Sequence[T]) -> Sequence[T]:
        """Return blocks, or batches of them, in the order in which they begin."""
        if self.dice is not None:
            return self.dice.sample(blocks, len(blocks))
        return blocks[::-1] if self.backward else blocks

    def turns(self, running: list[Any]) -> list[Any]:
        """Return what is running in the order in which it goes on."""
        if self.dice is not None:
            return self.dice.sample(running, len(running))
        return running[::-1] if self.backward else running

    def pauses(self) -> bool:
        """Return whether a warp is to be interrupted."""
        return self.dice is not None and self.dice.random() < self._pause

    def hurries(self) -> bool:
        """Return whether another batch of blocks begins although those that run can go on."""
        return self.dice is not None and self.dice.random() < 0.5

    def lands(self) -> bool:
        """Return whether an asynchronous operation lands at once, and not as late as can be."""
        return self.early if self.dice is None else self.dice.random() < 0.5

    def _any(self, ready: Iterable[int]) -> int:
        assert self.dice is not None
        return self.dice.choice(sorted(ready))

    def _switches(self, pc: int, ready: Iterable[int]) -> bool:
        assert self.dice is not None
        return pc in ready or self.dice.random() < _SWITCH


def sampled(grid: Index3, blocks: int, most: int) -> tuple[int, list[int]]:
    """Return how many blocks run side by side, and with which each such batch begins, where only some run.

    They are the first blocks, the last and some between: every second batch is at the end of a row of the
    grid and the beginning of the next.
    At most `blocks` run, and `most` side by side.
    """
    total = grid.x * grid.y * grid.z
    each = max(1, min(most, blocks // _SAMPLES))
    batches = max(2, blocks // each)
    starts = [(total - each) * i // (batches - 1) for i in range(batches)]
    if each <= grid.x < total:
        starts[1:-1:2] = [first - first % grid.x + grid.x - each // 2 for first in starts[1:-1:2]]
    return each, sorted({max(0, min(first, total - each)) for first in starts})


def _ahead(pc: int, ready: Iterable[int]) -> bool:
    return pc >= min(ready)


def _behind(pc: int, ready: Iterable[int]) -> bool:
    return pc <= max(ready)
