"""The launch: all blocks of a grid are run, a batch of them at a time."""

from __future__ import annotations

from collections.abc import Mapping

import harness.emulator.instructions.atomics
import harness.emulator.instructions.bits
import harness.emulator.instructions.convert
import harness.emulator.instructions.cp_async
import harness.emulator.instructions.floating
import harness.emulator.instructions.half
import harness.emulator.instructions.integer
import harness.emulator.instructions.load_store
import harness.emulator.instructions.matrix
import harness.emulator.instructions.predicates
import harness.emulator.instructions.warp  # noqa: F401 - the instructions register themselves
from harness.emulator.batch import Batch
from harness.emulator.decode import Step
from harness.emulator.memory import Arena
from harness.emulator.numbers.algebra import Memo
from harness.emulator.numbers.floats import Underflow
from harness.emulator.ptx.module import Entry
from harness.emulator.watch.counts import Counter
from harness.emulator.watch.findings import Findings, Index3
from harness.emulator.watch.hazards import HazardWatch
from harness.emulator.watch.races import RaceWatch

LANES = 16384  # threads in a batch of blocks: its registers then fit a processor's cache
SCHEDULES = ("lockstep", "warp-serial")


class Launch:
    """One launch of a kernel: the state that its batches of blocks share."""

    def __init__(
        self,
        entry: Entry,
        steps: list[Step],
        *,
        grid: Index3,
        block: Index3,
        arena: Arena,
        parameters: bytes,
        dynamic_shared: int,
        symbols: Mapping[str, int],
        schedule: str,
        budget: int,
        check: bool,
        count: bool,
        widths: Mapping[int, int],
        watched: set[int],
    ) -> None:
        self.entry, self.steps = entry, steps
        self.grid, self.block = grid, block
        self.arena, self.parameters = arena, parameters
        self.dynamic_shared, self.symbols = dynamic_shared, symbols
        self.shared_size = entry.sizes.get("shared", 0) + dynamic_shared
        self.schedule, self.budget, self.check = schedule, budget, check
        self.threads = block.x * block.y * block.z
        self.memo = Memo()
        self.underflow = Underflow()
        self.findings = Findings()
        self.counter = Counter(entry.instructions, [s.flops for s in steps], widths) if count else None
        self.hazards = HazardWatch(self.findings, self._describe, self.thread) if check else None
        self.races = RaceWatch(self.findings, watched) if check else None

    def run(self) -> None:
        """Run all blocks, then report races between them. Raises EmulatorError, or Rewatch to start over."""
        total = self.grid.x * self.grid.y * self.grid.z
        at_once = max(1, LANES // self.threads)
        for first in range(0, total, at_once):
            Batch(self, first, min(at_once, total - first)).run()
            if self.races is not None:
                self.races.end_batch()
        if self.races is not None:
            self.races.judge(self.entry.instructions, self.block_index)

    # -- names for findings

    def thread(self, number: int) -> Index3:
        """Return the index in its block of the thread with linear number `number`."""
        x, y = self.block.x, self.block.y
        return Index3(number % x, number // x % y, number // (x * y))

    def block_index(self, number: int) -> Index3:
        """Return the index in the grid of the block with linear number `number`."""
        x, y = self.grid.x, self.grid.y
        return Index3(number % x, number // x % y, number // (x * y))

    def variable(self, space: str, address: int) -> tuple[str, int]:
        """Return (name, offset in it) of the variable at byte `address` of shared or local memory.

        A byte past the end of a variable belongs to that variable as long as no other one starts before it.
        """
        found = [v for v in self.entry.variables.values() if v.space == space and v.offset <= address]
        if not found:
            return f"{space} memory", address
        nearest = max(found, key=lambda v: v.offset)
        return plain_name(nearest.name), address - nearest.offset

    def _describe(self, offset: int, column: int) -> tuple[str, int, Index3]:
        """Return (variable, offset in it, block index) of byte `offset` of a block's shared memory.

        `column` is the number of the block within the running batch.
        """
        name, within = self.variable("shared", offset)
        return name, within, self.block_index(self.batch_first + column)

    batch_first = 0  # number of the running batch's first block, which the batch sets


def plain_name(name: str) -> str:
    """Return the plain name of a function's own variable: ``_ZZ6matmulE2As`` (Itanium ABI) becomes As.

    Any other name is returned as it is.
    """
    head, _, tail = name.rpartition("E")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    if not name.startswith("_ZZ") or not head or not digits:
        return name
    return tail[digits : digits + int(tail[:digits])] or name
