"""mbarriers: objects in shared memory that count arrivals and the bytes of asynchronous copies.

A phase ends when no arrival is pending and as many bytes have landed as were expected. An object is kept
beside the memory that it occupies, by its address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.emulator.group import Group
from harness.emulator.hopper.order.clocks import ROWS, Known, Told
from harness.emulator.hopper.order.races import misuse
from harness.emulator.memory import SHARED_BASE, WINDOW
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.patterns import WARP


@dataclass(eq=False)
class Mbarrier:
    """One object.

    name: where it is, "byte 8 of full"
    count: arrivals that end a phase; `pending` of them are missing
    bytes: expected and not landed
    phase: how many phases have ended
    initialised: the instruction that did; by the thread `by`, whose clock was `at`
    visible: its initialisation was fenced, and other proxies may use it
    everywhere: the phase of the cluster's barrier after which other blocks may, too; 0 without one
    column: of its phases in the clocks; `arrived` and `released` are what is known to those who arrived in
      this phase, and in the ended ones
    far: what threads of other blocks have told by arrivals of the cluster's scope
    begun: what was known where the copies began that have landed in this phase
    mates: threads that wait as one, a warp, or a warpgroup where its products keep it together, of the
      `threads` of a block
    waits: of the threads that have seen the end of the last phase, their clocks then; `overrun` is one that
      those who ended this phase did not know of, -1 for none
    """

    address: int
    count: int
    initialised: Instruction
    by: int = 0
    at: int = 0
    visible: bool = False
    everywhere: int = 0
    pending: int = 0
    bytes: int = 0
    phase: int = 0
    column: int = -1
    arrived: Known | None = None
    released: Known | None = None
    far: Known | None = None
    begun: Known | None = None
    mates: int = WARP
    threads: int = 1024
    waits: dict[int, int] = field(default_factory=dict)
    overrun: int = -1
    name: str = ""

    def __post_init__(self) -> None:
        self.pending = self.count

    def turn(self) -> None:
        """End the phase if nothing is missing."""
        if self.pending == 0 and self.bytes == 0:
            self._outrun()
            self.phase += 1
            self.pending = self.count
            if self.arrived is not None:
                self.released = self.arrived.with_(self.released)
                self.arrived = None
            if self.begun is not None:
                self.released = self.begun.begun().with_(self.released)
                self.begun = None

    def _outrun(self) -> None:
        """Note threads that waited for the last phase, of which nobody who ends this one knows.

        They might as well wait now, and would take this phase for the one before the last. Those who began
        the copies end it, too.
        """
        if self.arrived is not None:
            self.overrun = self.late(self.arrived.with_(self.begun))
        self.waits = {}

    def late(self, known: Known) -> int:
        """Return a thread that may still wait for the last phase as far as is `known`, -1 for none."""
        found: dict[tuple[int, int], int] = {}
        heard = known.widened(max(self.waits, default=0) + 1).heard
        for row, value in self.waits.items():
            together = row // self.threads, row % self.threads // self.mates
            if heard[row] >= value:
                found[together] = -1
            else:
                found.setdefault(together, row)
        return max(found.values(), default=-1)

    def arrive(self, arrivals: int, known: Known | None) -> bool:
        """Count arrivals that publish what is `known`; return whether so many were pending."""
        if known is not None:
            self.arrived = known.with_(self.arrived)
        enough = arrivals <= self.pending
        self.pending = max(0, self.pending - arrivals)
        self.turn()
        return enough

    def tell(self, told: Told | None) -> None:
        """Let those who wait for this phase know what is `told` of global memory."""
        if told is not None:
            self.arrived = Known(np.zeros((len(ROWS), 0), np.int32), told).with_(self.arrived)

    def land(self, size: int, begun: Known | None = None) -> None:
        """Count `size` bytes that have landed, of a copy that began where `begun` was known."""
        self.bytes -= size
        self.begun = begun.with_(self.begun) if begun is not None else self.begun
        self.turn()

    def __str__(self) -> str:
        arrived = f"{self.count - self.pending} of {self.count} arrivals"
        landed = f"{self.bytes} bytes expected" if self.bytes >= 0 else f"{-self.bytes} bytes too many"
        return f"mbarrier at {self.name}, phase {self.phase}: {arrived}, {landed}"


def named(group: Group, address: int) -> str:
    """Return where an address of shared memory lies: in which variable, and where in it."""
    variable, offset = group.launch.variable("shared", address & ((1 << WINDOW) - 1))
    return f"byte {offset} of {variable}"


def find(group: Group, ins: Instruction, address: int, lanes: Array | int = 0) -> Mbarrier | None:
    """Return the object at an address, for the threads `lanes`; report it and return None without one."""
    block: Any = group.batch
    found: Mbarrier | None = block.cluster.barriers.get(address & (SHARED_BASE - 1))
    if found is None:
        misuse(group, ins, f"no mbarrier is initialised at {named(group, address)}")
        return None
    clocks = block.cluster.clocks
    rows = block.rank * group.launch.threads + group.row + np.atleast_1d(lanes)
    if clocks is not None:
        known = clocks.seen[rows, found.by] >= found.at
        if found.everywhere:
            known |= clocks.seen[rows, block.cluster.column] >= found.everywhere
        if known.all():
            return found
        misuse(
            group,
            ins,
            f"the initialisation of the mbarrier at {found.name} is not ordered before this: "
            "a barrier after it would",
            found.initialised,
        )
    return found


def arrive(group: Group, ins: Instruction, barrier: Mbarrier, count: int, known: Known | None) -> None:
    """Arrive `count` times, and report arrivals that nobody expects."""
    if not barrier.arrive(count, known):
        misuse(group, ins, f"more arrivals than the phase expects: {barrier}", barrier.initialised)
    ended(group, ins, barrier)


def landed(
    group: Group, ins: Instruction, barrier: Mbarrier, size: int, known: Known | None, phase: int
) -> None:
    """Let `size` bytes land of a copy that began in `phase`, where so much was known.

    If that phase has ended, the copy's bytes were not among those that it expected, and count in a later one.
    """
    if barrier.phase != phase:
        misuse(
            group,
            ins,
            f"a copy lands in phase {barrier.phase} of the mbarrier at {barrier.name} and began in phase "
            f"{phase}, which has ended without it: it expected too few bytes",
            barrier.initialised,
            kind="mbarrier misuse",
        )
    barrier.land(size, known)
    ended(group, ins, barrier)


def ended(group: Group, ins: Instruction, barrier: Mbarrier) -> None:
    """Report a phase that may have ended before all have seen the end of the one before it."""
    if barrier.overrun >= 0:
        launch, threads = group.launch, group.launch.threads
        row, barrier.overrun = barrier.overrun, -1
        block: Any = group.batch
        of = block.cluster.blocks[row // threads]
        misuse(
            group,
            ins,
            f"a phase of the mbarrier at {barrier.name} may end before thread "
            f"{launch.thread(row % threads)} of block {launch.block_index(of.first)} has seen the end of the "
            "one before, and then waits for the wrong one: an arrival after its wait would order the two",
            barrier.initialised,
            kind="mbarrier overrun",
        )
