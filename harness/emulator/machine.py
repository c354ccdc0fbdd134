"""The launch: all blocks of a grid are run, a batch of them at a time."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Mapping, Sequence

import harness.emulator.hopper.cluster
import harness.emulator.hopper.mbarrier
import harness.emulator.hopper.tma.bulk
import harness.emulator.hopper.tma.made
import harness.emulator.hopper.warps
import harness.emulator.hopper.wgmma.product
import harness.emulator.instructions.atomics
import harness.emulator.instructions.convert.cvt
import harness.emulator.instructions.convert.moves
import harness.emulator.instructions.cp_async
import harness.emulator.instructions.floating.arithmetic
import harness.emulator.instructions.floating.half
import harness.emulator.instructions.integer.arithmetic
import harness.emulator.instructions.integer.bits
import harness.emulator.instructions.integer.carry
import harness.emulator.instructions.integer.dot
import harness.emulator.instructions.integer.video
import harness.emulator.instructions.load_store
import harness.emulator.instructions.matrix.ldmatrix
import harness.emulator.instructions.matrix.mma
import harness.emulator.instructions.matrix.quads
import harness.emulator.instructions.matrix.sparse
import harness.emulator.instructions.matrix.wmma
import harness.emulator.instructions.predicates
import harness.emulator.instructions.system.calls
import harness.emulator.instructions.system.stack
import harness.emulator.instructions.texture.fetch
import harness.emulator.instructions.warp  # noqa: F401 - the instructions register themselves
from harness.emulator.blocks.batch import Batch, Endless
from harness.emulator.blocks.delays.stores import Delays
from harness.emulator.blocks.endless.livelocks import Livelocks
from harness.emulator.blocks.endless.loops import PATIENCE, Fair
from harness.emulator.blocks.schedule import Schedule, sampled
from harness.emulator.blocks.slice import Repeats
from harness.emulator.executable import Executable
from harness.emulator.hopper.order.races import Watch
from harness.emulator.hopper.schedule import run_grid
from harness.emulator.instructions.texture.objects import Texture
from harness.emulator.memory import WORKSPACE, Arena
from harness.emulator.numbers.algebra import Memo
from harness.emulator.numbers.floats import Underflow
from harness.emulator.watch.counts import Counter
from harness.emulator.watch.findings import Findings, Index3
from harness.emulator.watch.hazards import HazardWatch
from harness.emulator.watch.races import RaceWatch
from harness.emulator.watch.shadow import Footprint, early, footprints
from harness.errors import EmulatorError, NotEnded, OutOfTime

LANES = 16384  # threads in a batch of blocks: its registers then fit a processor's cache
_ROUNDS = 1000  # times that all batches may poll without progress
_LOOK = 64, 0.5  # times that they poll, or seconds, between two looks at whether they do the same again
_BATCH = 500  # the least time that a batch takes, in instructions
_GRIDS = 100  # budgets of a batch that a whole grid may take


class Launch:
    """One launch of a kernel: the state that its batches of blocks share."""

    def __init__(
        self,
        code: Executable,
        *,
        grid: Index3,
        block: Index3,
        arena: Arena,
        parameters: bytes,
        dynamic_shared: int,
        symbols: Mapping[str, int],
        schedule: Schedule,
        budget: int,
        until: float,
        check: bool,
        count: bool,
        widths: Mapping[int, int],
        watched: set[int],
        textures: Mapping[int, Texture],
        fine: bool,
        cells: bool,
        cluster: Index3,
        fences: bool,
        sample: int,
        heap: int,
        footprints: bool,
    ) -> None:
        self.code, self.entry, self.steps = code, code.entry, code.steps
        entry, self.numbers, self.paces = code.entry, code.numbers, code.paces
        self.grid, self.block = grid, block
        self.arena, self.parameters = arena, parameters
        self.dynamic_shared, self.symbols = dynamic_shared, symbols
        constants = [v.name for v in entry.variables.values() if v.space == "const"]
        self.workspace = next((a.start for a in arena.allocations if a.name == WORKSPACE), 0)
        self.constants = {symbols[name] for name in constants}  # addresses at which the kernel may not write
        self.shared_size = entry.sizes.get("shared", 0) + dynamic_shared
        self.schedule, self.budget, self.check, self.cells = schedule, budget, check, cells
        self.fences, self._sample = fences, sample
        self.blocks = 0  # that were begun
        self.stored, self.footprints = dict[int, tuple[int, int]](), footprints
        self.accessed, self.early = dict[int, Footprint](), dict[int, Footprint]()
        self._until = until
        self.threads = block.x * block.y * block.z
        self.progress = 0  # stores, barriers passed and threads ended so far: whoever polls waits for one
        self.patience = PATIENCE + sum(a.end - a.start for a in arena.allocations) // 4
        self.alone = False  # one batch of blocks is left, and no other one to come
        self.fair = Fair()
        self.livelocks = Livelocks(self)
        self.memo = Memo()
        self.underflow = Underflow()
        self.findings = Findings(provisional=check and fine and not (cells or code.asynchronous))
        self.textures = textures  # by handle
        self.printed = io.StringIO()  # by printf
        self.heap_used = heap  # bytes that malloc has given
        self.counter = Counter(entry.instructions, [s.flops for s in code.steps], widths) if count else None
        self.asynchronous, self.grain = code.asynchronous, code.grain
        self.cluster = cluster
        self.made_maps = dict[int, set[int]]()  # by address of a map of the kernel's: blocks with a fence
        waits = schedule.delays and code.waits and not code.asynchronous and grid != (1, 1, 1)
        self.delays = Delays(self, schedule.letting) if waits else None
        self.hazards: HazardWatch | Watch | None = None
        if check:
            self.hazards = Watch(self) if self.asynchronous else self._hazard_watch()
        self.races = RaceWatch(self, watched, fine or self.asynchronous, cells) if check else None

    def run(self) -> None:
        """Run all blocks. Raises EmulatorError, or Rewatch to start over."""
        if self.asynchronous:
            run_grid(self)
        else:
            self._run_batches()
        if self.delays is not None:
            self.delays.end()
        if self.races is not None:
            self.stored = self.races.stored()
            if self.races.reach is not None:
                starts = [one.start for one in self.arena.allocations]
                for index, found in footprints(self.races.reach, self.races.watched).items():
                    self.accessed[starts[index]] = found
                for index, found in early(self.races.reach).items():
                    self.early[starts[index]] = found
            if self.races.unfenced is not None:
                self.races.unfenced.report()

    def timely(self) -> None:
        """Raise OutOfTime if time is over."""
        if time.monotonic() > self._until:
            raise OutOfTime("it had not ended when time was over")

    def let_go(self) -> None:
        """Let go of what is large and not asked for any more: where blocks have not ended, cycles keep the
        launch until Python finds them.
        """
        self.races = self.hazards = None
        self.memo.clear()

    def _run_batches(self) -> None:
        """Run all blocks, many side by side. Raises EmulatorError for a grid that takes too long."""
        total = self.grid.x * self.grid.y * self.grid.z
        at_once = self.schedule.together(total, max(1, LANES // self.threads), bool(self.code.contended))
        firsts: Sequence[int] = range(0, total, at_once)
        if 0 < self._sample < total and not (self.code.contended or self.workspace):
            at_once, firsts = sampled(self.grid, self._sample, at_once)
        starts = iter(self.schedule.order(firsts))
        left = len(firsts)
        polling: list[tuple[Batch, Iterator[None], HazardWatch | Watch | None]] = []
        seen, idle, turns, states, looked = -1, 0, 0, Repeats(), 0.0
        endless = Endless()
        while True:
            idle = idle + 1 if self.progress == seen else 0
            if self.delays is not None:
                self.delays.turn(idle=idle > 0)
            turns += 1
            running = [batch for batch, *_ in polling]
            stuck = self.livelocks.round() or endless.polls(running, idle) > _ROUNDS or endless.seen(running)
            due = turns % _LOOK[0] == 0 or time.thread_time() > looked + _LOOK[1]
            if polling and due and self.code.slice.complete:
                looked = time.thread_time()
                stuck |= states.seen(sorted((batch for batch, *_ in polling), key=lambda b: b.first))
            fair = self.fair.open
            if idle or stuck or fair or not polling or self.schedule.hurries():
                self.timely()
                first = next(starts, None)  # nobody can go on without another batch, or it need not wait
                if first is not None:
                    self._afford(left)
                    left -= 1
                    self._batch_first = first
                    self.blocks += min(at_once, total - first)
                    batch = Batch(self, first, min(at_once, total - first))
                    polling.append((batch, batch.run(), self.hazards))
                    idle, turns, states = 0, 0, Repeats()
                    self.livelocks.restart()
                    # Whoever waits for a store that is delayed, or a warp that is, does not wait for ever.
                    late = self.delays is not None or self.schedule.holds
                    self.alone = len(polling) == 1 and not left and not late
                elif not polling:
                    break
                elif not fair and any(batch.last.comes(stuck) for batch in running if batch.last):
                    idle, turns, states = 0, 0, Repeats()
                    self.livelocks.restart()
                elif stuck:
                    self._stuck(running[0])
            seen = self.progress
            for batch, *_ in polling:
                if not self.alone:
                    batch.loops.restart()
            polling = [one for one in self.schedule.turns(polling) if not self._advance(*one)]
            if polling and self.check:  # what a batch that polls has accessed stays with it
                self.hazards = self._hazard_watch()

    def _stuck(self, batch: Batch) -> None:
        """Raise EmulatorError for a launch that hangs, unless stores held back may end a livelock."""
        if said := self.livelocks.said:
            if self.delays is None or not self.livelocks.once():
                raise batch.hangs(said)
            self.delays.end()
        elif said := next(iter(batch.loops.unbounded.values()), ""):
            raise batch.hangs(said, NotEnded)
        else:
            raise batch.hangs("all threads wait, again and again, for what none of them does")

    def _hazard_watch(self) -> HazardWatch:
        return HazardWatch(self.findings, self._describe, self.thread, self.cells, self.code.guesses)

    def _afford(self, batches: int) -> None:
        """Raise EmulatorError if that many more batches, each like the last one, take too long."""
        total = batches * max(_BATCH, self._spent)
        if total > _GRIDS * self.budget:
            raise EmulatorError(
                f"a grid of {self.grid} blocks of {self.threads} threads would take {total:,} instructions, "
                f"and a grid may take {_GRIDS} times the budget of {self.budget:,}",
                hint=f"Take a smaller shape, or --budget {total // _GRIDS + 1:_}, from Python budget=.",
            )

    def _advance(self, batch: Batch, run: Iterator[None], hazards: HazardWatch | Watch | None) -> bool:
        """Run a batch until it ends or only polls memory, and return whether it has ended."""
        self.hazards, self._batch_first = hazards, batch.first
        for _ in run:
            return False
        self._spent = self.budget - batch.steps_left
        if self.races is not None:
            self.races.end_batch(batch.first)
        batch.end()
        return True

    _spent = 0  # instructions that the last batch took

    def register_file(self) -> int:
        """Return the registers of a block with ``setmaxnreg``, as ptxas chooses them.

        ``.maxnreg`` says how many a thread has. Otherwise it has as many as the greediest ``setmaxnreg.inc``
        wants, if the blocks that shall share a multiprocessor leave so many.
        """
        raised = [i for i in self.entry.instructions if i.opcode[:2] == ("setmaxnreg", "inc")]
        wanted = max((int(i.operands[0], 0) for i in raised), default=255)
        room = 65536 // (self.threads * max(1, self.entry.blocks)) // 8 * 8
        return (self.entry.most or min(255, room, wanted)) * self.threads

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
        return name, within, self.block_index(self._batch_first + column)

    _batch_first = 0  # number of the running batch's first block


def _nested(text: str) -> list[str]:
    """Return the names of ``3one2AsE``, each after its length; none if it is not of that form."""
    found = []
    while match := re.match(r"(\d+)", text):
        end = match.end() + int(match[1])
        found.append(text[match.end() : end])
        text = text[end:]
    return found if text == "E" else []


def plain_name(name: str) -> str:
    """Return the plain name of a variable: of ``_ZZ6matmulE2As`` and ``_ZN3one2AsE`` (Itanium ABI) it is As.

    Of a function that is called, or of inner braces, the name is the one that was declared, see `ptx.module`.
    What lies in local memory has no names, only ``__local_depot0``. Any other name is returned as it is.
    """
    if name.startswith("__local_depot"):
        return "local memory"
    name = re.sub(r"^(?:.*:)?([^:]+):\d+$", r"\1", name)
    if name.startswith("_ZN") and (parts := _nested(name[3:])):
        return parts[-1]
    head, _, tail = name.rpartition("E")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    if not name.startswith("_ZZ") or not head or not digits:
        return name
    return tail[digits : digits + int(tail[:digits])] or name
