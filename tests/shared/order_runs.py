"""An `Order` by itself, two blocks of three warps, and who knows whose accesses."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.watch.knowledge import BLOCK, GRID, Knowledge, Semantics
from harness.emulator.watch.order import Order

THREADS, COLUMNS, FIRST, GRID_SIZE = 70, 2, 1, 4  # three warps, the last of 6 threads; blocks 1 and 2 of 4
WHOLE = -(-THREADS // 32)  # warps
LANES = COLUMNS * THREADS
RELAXED, RELAXED_CTA = Semantics(True, GRID, False, False), Semantics(True, BLOCK, False, False)
RELEASE, RELEASE_CTA = Semantics(True, GRID, False, True), Semantics(True, BLOCK, False, True)
ACQUIRE, ACQUIRE_CTA = Semantics(True, GRID, True, False), Semantics(True, BLOCK, True, False)
NOBODY: range = range(0)


class Run:
    """An `Order` of blocks 1 and 2, and what every thread accesses now and then."""

    def __init__(self) -> None:
        self.order = Order(Knowledge(GRID_SIZE, THREADS), FIRST, THREADS, COLUMNS)

    def touch(self) -> Array:
        """Let every thread access something; return the stamps, by column."""
        return self.order.state.now.copy()

    def who_knows(self, stamps: Array) -> Array:
        """Return who knows whose accesses, bool (who, whose), threads numbered column by column."""
        who, whose = (a.ravel() for a in np.indices((LANES, LANES)))
        return self.order.knows(
            self.order.state,
            (who % THREADS, who // THREADS),
            whose + FIRST * THREADS,
            stamps[whose // THREADS],
        ).reshape(LANES, LANES)

    def barrier(self, threads: Iterable[int], columns: Iterable[int] = (0, 1), number: int = 0) -> None:
        self.order.barrier(chosen(threads, columns), number)

    def arrive(self, threads: Iterable[int], columns: Iterable[int] = (0, 1), number: int = 0) -> None:
        self.order.arrive(chosen(threads, columns), number)

    def warp_barrier(self, threads: Iterable[int], columns: Iterable[int] = (0, 1)) -> None:
        """Let lanes meet; those that no block has are active where all others of their warp are."""
        active = np.zeros((WHOLE * 32, COLUMNS), np.bool_)
        active[:THREADS] = chosen(threads, columns)
        active[THREADS:] = active[THREADS - 1]
        self.order.warp_barrier(0, active.reshape(WHOLE, 32, COLUMNS))

    def fence(self, thread: int, column: int, scope: int = GRID) -> None:
        self.order.fence((np.array([thread]), np.array([column])), scope)

    def write(self, thread: int, column: int, meaning: Semantics = RELAXED) -> int:
        return int(self.order.published((np.array([thread]), np.array([column])), meaning)[0])

    def read(self, thread: int, column: int, node: int, meaning: Semantics = RELAXED) -> None:
        self.order.read((np.array([thread]), np.array([column])), np.array([node]), meaning)


def chosen(threads: Iterable[int], columns: Iterable[int]) -> Array:
    found = np.zeros((THREADS, COLUMNS), np.bool_)
    found[np.ix_(list(threads), list(columns))] = True
    return found


def pairs(*groups: tuple[Iterable[int], int, Iterable[int], int]) -> Array:
    """Return the pairs (who, whose), for each group: threads, their column, whom they know, and where."""
    found = np.eye(LANES, dtype=np.bool_)
    for who, column, whose, other in groups:
        found[np.ix_([t + column * THREADS for t in who], [t + other * THREADS for t in whose])] = True
    return found


def same(found: Array, expected: Array) -> bool:
    wrong = np.argwhere(found != expected)[:5]
    assert not len(wrong), [
        ((w % THREADS, w // THREADS), (o % THREADS, o // THREADS)) for w, o in wrong.tolist()
    ]
    return True


EVERY = range(THREADS)
WARPS = [range(0, 32), range(32, 64), range(64, THREADS)]
