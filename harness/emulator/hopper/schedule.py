"""All clusters of a launch, run in turns until they have ended; deadlocks.

A cluster runs until each of its threads waits, polls or has ended. When none can go on, the oldest
asynchronous operation of each lands; when there is none, it is a deadlock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.emulator.hopper.grid import Cluster
from harness.emulator.watch.findings import Finding
from harness.errors import EmulatorError

if TYPE_CHECKING:
    from harness.emulator.machine import Launch

RESIDENT = 32  # blocks that run at a time, unless they wait for others
_QUIET = 2  # turns without progress after which nothing moves any more, unless threads poll
_TOLD = 8  # blocks of which it is told where their threads stand
_ROUNDS = 1000  # turns in which threads may poll without progress


def run_grid(launch: Launch) -> None:
    """Run all blocks of the launch. Raises EmulatorError for a kernel that hangs, see `deadlock`."""
    starts = iter(clusters(launch))
    if launch.schedule.reorders:
        starts = iter(launch.schedule.order(list(starts)))
    at_once = max(1, RESIDENT // (launch.cluster.x * launch.cluster.y * launch.cluster.z))
    running: list[Cluster] = []
    rounds, lands, begun = 0, False, False
    with launch.underflow.watching():
        while True:
            while len(running) < at_once and (blocks := next(starts, None)) is not None:
                running.append(Cluster(launch, blocks))
            if not running:
                break
            launch.timely()
            at_once += launch.fair.open
            before = launch.progress
            turns = launch.schedule.turns(running)
            # Who waits for others goes first, so that it sees each thing that they tell, not the last alone.
            for cluster in turns[::-1] if launch.fences and begun else turns:
                cluster.advance()
            begun = True
            landed = lands and sum(cluster.land_one() for cluster in running)
            if launch.livelocks.round():
                # From now on copies land, whoever else goes on; where they did, that is among what repeats.
                again, lands = lands, True
                if not _come(launch, running, starts, lands=not again):
                    return _livelock(launch, running, moves=landed > 0 or rounds <= _QUIET)
                launch.livelocks.restart()
            elif launch.progress != before:
                rounds = 0
            elif sum(cluster.land_one() for cluster in running) == 0:
                blocks = next(starts, None)
                if blocks is not None:  # they may wait for blocks that have not begun
                    running.append(Cluster(launch, blocks))
                    at_once += 1
                    continue
                held = [block.last for cluster in running for block in cluster.blocks if block.last]
                if any(group.comes() for group in held):
                    continue
                polling = any(r.later for c in running for b in c.blocks for r in b.runners)
                rounds += 1
                if rounds > (_ROUNDS if polling else _QUIET):
                    deadlock(launch, running)
                    return None
            running = _left(launch, running)


def _come(launch: Launch, running: list[Cluster], starts: Iterator[list[int]], *, lands: bool) -> bool:
    """Let come what others may wait for, although they go on: what lands, blocks, what is held."""
    come = [lands and cluster.land_one() for cluster in running]
    if (blocks := next(starts, None)) is not None:
        running.append(Cluster(launch, blocks))
        come.append(True)
    come += [block.last.comes(True) for cluster in running for block in cluster.blocks if block.last]
    return any(come)


def _livelock(launch: Launch, running: list[Cluster], *, moves: bool) -> None:
    """Raise the error for a livelock, with where the threads of all blocks stand.

    moves: memory changes meanwhile; otherwise it is a deadlock
    """
    if not moves:
        deadlock(launch, running)
        return
    blocks = [block for cluster in running for block in cluster.blocks if not block.ended]
    error = blocks[0].hangs(launch.livelocks.said)
    more = [standing for block in blocks[1:_TOLD] if (standing := block.standing())]
    more += [f"and {len(blocks) - _TOLD} more blocks"] * (len(blocks) > _TOLD)
    error.hint = "; ".join([error.hint, *more])
    raise error


def _left(launch: Launch, running: list[Cluster]) -> list[Cluster]:
    """Return the clusters that have not ended, or have something to land; let go of the others."""
    left = []
    for cluster in running:
        if not cluster.ended or cluster.land_one():
            left.append(cluster)
            continue
        if launch.races is not None:
            for block in cluster.blocks:
                launch.races.end_batch(block.first)  # its reads would keep the cluster in memory
        cluster.end()
    return left


def clusters(launch: Launch) -> Iterator[list[int]]:
    """Yield the numbers of the blocks of each cluster, in the order of their ranks.

    Raises EmulatorError for a grid that is not a whole number of clusters.
    """
    grid, size = launch.grid, launch.cluster
    if any(blocks % count for blocks, count in zip(grid, size, strict=True)):
        raise EmulatorError(
            f"a grid of {grid} blocks with clusters of {size}", hint="It has to be a multiple in each extent."
        )
    for z, y, x in itertools.product(*(range(0, g, c) for g, c in zip(grid[::-1], size[::-1], strict=True))):
        yield [
            ((z + dz) * grid.y + y + dy) * grid.x + x + dx
            for dz, dy, dx in itertools.product(range(size.z), range(size.y), range(size.x))
        ]


def deadlock(launch: Launch, running: list[Cluster]) -> None:
    """Report that no thread can ever move again, with each waiter; without checks raise EmulatorError."""
    waiters: dict[tuple[int, str], int] = {}
    for cluster in running:
        for block in cluster.blocks:
            for runner in block.runners:
                for pc, where, what in runner.standing():
                    step = launch.steps[min(pc, len(launch.steps) - 1)]
                    if step.describe is not None:
                        what = step.describe(runner.group, where)  # noqa: PLW2901
                    key = (step.instruction.index, what)
                    waiters[key] = waiters.get(key, 0) + runner.group.count(where)
    found = [
        f"{count} thread{'s' * (count > 1)} at {launch.entry.instructions[index].source} ({what})"
        for (index, what), count in sorted(waiters.items())
    ]
    sources = tuple(dict.fromkeys(launch.entry.instructions[index].source for index, _ in sorted(waiters)))
    block = running[0].blocks[0]

    message = f"no thread can move: {'; '.join(found)}; cluster of block {launch.block_index(block.first)}"
    if not launch.check:
        raise EmulatorError(f"deadlock: {message}")

    def make() -> Finding:
        where = launch.block_index(block.first)
        return Finding(kind="deadlock", message=message, sources=sources, block=where)

    launch.findings.add("deadlock", (), 1, make)
