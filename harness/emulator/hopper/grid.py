"""The blocks of a kernel with asynchronous units, in clusters that share memory and what is under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.blocks.batch import Batch
from harness.emulator.group import Group
from harness.emulator.hopper.named import NamedPhases, report
from harness.emulator.hopper.order.clocks import Clocks, Known
from harness.emulator.hopper.order.flags import Flags, flagged
from harness.emulator.hopper.order.global_memory import GlobalMemory
from harness.emulator.hopper.order.races import misuse
from harness.emulator.hopper.order.shadow import Shadow
from harness.emulator.hopper.wgmma.warpgroup import mark
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import WINDOW, Scratch
from harness.emulator.numbers.values import Array, Lanes
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.patterns import WARP

if TYPE_CHECKING:
    from harness.emulator.hopper.phases import Mbarrier
    from harness.emulator.machine import Launch

WARPGROUP = 128


@dataclass(kw_only=True, eq=False)
class Operation:
    """An asynchronous operation on its way.

    land: moves its data and tells whoever waits for it
    source: the instruction that began it
    """

    land: Callable[[], None]
    source: Instruction


@dataclass(eq=False)
class BulkGroups:
    """The bulk groups of a thread (``cp.async.bulk.commit_group``).

    column: of its reads of shared memory, in the clocks; -1 without checks
    open: operations since the last commit; `committed` those of each group, oldest first
    count: how many groups have been committed, in all
    """

    column: int
    open: list[Operation] = field(default_factory=list)
    committed: list[list[Operation]] = field(default_factory=list)
    count: int = 0


class Block(Batch):
    """One block: `rank` is its number in its cluster."""

    def __init__(self, launch: Launch, first: int, cluster: Cluster, rank: int) -> None:
        self.cluster, self.rank = cluster, rank
        super().__init__(launch, first, 1, rows=WARPGROUP)
        self.beside = launch.grid.x * launch.grid.y * launch.grid.z > 1
        self.base = rank << WINDOW
        self.alive = np.ones(launch.threads, np.bool_)
        self.registers = launch.register_file()
        self.held: dict[int, int] = {}  # registers per thread of each warpgroup, by its first thread
        self.ended = False
        self._arrived: dict[int, Known] = {}  # by ``bar.arrive``, by the barrier's number
        self._phases: NamedPhases | None = None
        if cluster.clocks is not None:
            self._phases = NamedPhases(cluster.clocks, cluster.mates, rank * launch.threads, self._told)
        self.visits: dict[int, tuple[int, Instruction]] = {}  # (value, instruction) by column

    def _memory(self) -> tuple[Scratch, Scratch]:
        local = Scratch(self.launch.entry.sizes.get("local", 0), self.launch.threads)
        return self.cluster.shared, local

    def rows(self, group: Group, where: Lanes) -> Array:
        """Return the numbers in the cluster of the threads `where` of a group."""
        chosen = np.nonzero(broadcast_mask(where, group.shape)[:, 0])[0]
        found: Array = chosen + (self.rank * self.launch.threads + group.row)
        return found

    def left(self, group: Group, where: Lanes) -> None:
        self.alive[group.row : group.row + group.shape[0]] &= ~broadcast_mask(where, group.shape)[:, 0]
        if len(self.cluster.blocks) > 1 and self.cluster.living().any():
            rows = self.rows(group, where)  # who ends counts as arrived, unless it already has
            self.cluster.come(rows[self.cluster.arrivals[rows] <= self.cluster.phase])
            self.cluster.turn()
        if not self.alive.any():
            self.cluster.block_left(self)

    def mark(self, group: Group, pc: int) -> None:
        reads, writes = self.launch.code.registers_of(pc)
        mark(group, self.launch.entry.instructions[pc], reads, writes)

    def advance(self) -> None:
        """Run until every thread waits, polls or has ended."""
        if self.ended:
            return
        while True:
            turns = self.launch.schedule.turns(self.runners)
            # The first threads tell others, as a rule; what the last ones do before has to be there by then.
            for runner in turns[::-1] if self.launch.fences else turns:
                runner.run()
            if not any(runner.waiting for runner in self.runners) or not self.barriers.meet(False):
                break
        self.ended = not any(r.waiting or r.later or r.parked or r.ready for r in self.runners)

    def arrived(self, number: int, row: int, lanes: Array) -> None:
        clocks = self.cluster.clocks
        if clocks is not None and self._phases is not None:
            rows = np.nonzero(lanes[:, 0])[0] + row + self.rank * self.launch.threads
            # Its event in the order of global memory is over: what is learned of it ends with the one before.
            self._phases.arrive(number, rows, int(self.order.state.now[0]) - 1)
            known = clocks.release(rows)
            self._arrived[number] = known.with_(self._arrived.get(number))

    def _told(self, rows: Array, columns: Array, stamps: Array) -> Array:
        """Return which arrivals threads of the block know of by flags in global memory."""
        memory = self.cluster.memory
        if memory is None:
            return np.zeros(columns.shape, np.bool_)
        return memory.told(self, rows, columns, stamps)

    def visit(
        self, address: int, ins: Instruction, columns: Array, values: Array, *, copy: bool = False
    ) -> None:
        """Note accesses of the block to an address, which may lie in another block.

        columns, values: of the accesses, in the clocks; that block must not end before it knows of them
        copy: they are those of a copy, which may outlast the block itself
        """
        holder = self.cluster.holder(address)
        if copy or holder is not self:
            for column, value in zip(columns.tolist(), values.tolist(), strict=True):
                holder.visits[column] = (max(value, holder.visits.get(column, (0, ins))[0]), ins)

    def reaches(self, group: Group, ins: Instruction, address: int) -> bool:
        """Return whether the block that holds an address still runs; report it otherwise."""
        holder = self.cluster.holder(address)
        if not holder.alive.any():
            misuse(
                group,
                ins,
                f"reaches block {self.launch.block_index(holder.first)}, all of whose threads have ended",
                kind="block has left",
            )
        return bool(holder.alive.any())

    def gathered(self, group: Group, where: Lanes) -> None:
        clocks = self.cluster.clocks
        if clocks is not None:
            rows = self.rows(group, where)
            for warp in np.unique(rows // 32):
                clocks.meet(rows[rows // 32 == warp])
                if self.cluster.flags is not None:
                    self.cluster.flags.meet(rows[rows // 32 == warp])

    def met(self, number: int, lanes: Array) -> None:
        clocks = self.cluster.clocks
        if clocks is not None and self._phases is not None:
            rows = np.nonzero(lanes[:, 0])[0] + self.rank * self.launch.threads
            self._phases.arrive(number, rows, int(self.order.state.now[0]))
            early = self._phases.turn(number)
            if early is not None:
                report(self, number, early)
            if self.cluster.flags is not None:
                self.cluster.flags.barrier(rows)
                self.cluster.flags.meet(rows)
            clocks.acquire(rows, self._arrived.pop(number, None))
            clocks.meet(rows)

    def fenced(self, group: Group, where: Lanes) -> None:
        if self.cluster.clocks is not None:
            self.cluster.clocks.widen(self.rows(group, where))
        if self.cluster.flags is not None:
            self.cluster.flags.fence(self.rows(group, where))


class Cluster:
    """The blocks of a cluster, their shared memory and what is under way in it.

    shared: the shared memory of all blocks, block r from byte ``r << WINDOW``
    clocks, shadow: what is known about accesses to it; None without checks
    pending: the asynchronous operations that have not landed, oldest first
    barriers: the mbarriers, by address
    memory, flags: what is known of global memory, and by flags in shared memory; None without checks
    """

    def __init__(self, launch: Launch, blocks: list[int]) -> None:
        self.launch = launch
        count = len(blocks)
        size = launch.shared_size if count == 1 else count << WINDOW
        self.shared = Scratch(size, 1, launch.shared_size if count > 1 else 0)
        self.clocks: Clocks | None = None
        self.shadow: Shadow | None = None
        if launch.check:
            self.clocks = Clocks(launch.threads * count)
            self.shadow = Shadow(size, launch.grain, self.clocks)
        self.pending: deque[Operation] = deque()
        self.barriers: dict[int, Mbarrier] = {}
        self.streams: dict[tuple[Any, ...], Any] = {}  # bulk and wgmma groups, by whom they belong to
        self.arrivals = np.zeros(launch.threads * count, np.int64)  # at barrier.cluster, by thread
        self.arrived_at = np.zeros(launch.threads * count, np.int64)  # the thread's clock at the last of them
        self.phase = 0  # of barrier.cluster
        self.column = (
            self.clocks.columns(1, generic=False) if self.clocks is not None else -1
        )  # of its phases
        self.arrived: Known | None = None  # by threads in this phase
        self.came: Known | None = None  # likewise, by relaxed arrivals and ends of threads too
        self.released: Known | None = None
        products = any(instruction.opcode[0] == "wgmma" for instruction in launch.entry.instructions)
        self.mates = WARPGROUP if products else WARP  # threads that go from wait to wait together
        self._copies: tuple[int, Array] | None = None
        self.blocks = [Block(launch, number, self, rank) for rank, number in enumerate(blocks)]
        self.flags: Flags | None = None
        if self.clocks is not None and flagged(launch.entry.instructions):
            self.flags = Flags(self.clocks)
        self.memory: GlobalMemory | None = None
        if self.clocks is not None and launch.races is not None:
            self.memory = GlobalMemory(self, launch.races)
            self.clocks.publish, self.clocks.learn = self.memory.publish, self.memory.learn

    def living(self) -> Array:
        """Return the threads that have not ended, bool (threads,)."""
        return np.concatenate([block.alive for block in self.blocks])

    def began(self, rank: int, rows: Array) -> bool:
        """Return whether each of the threads `rows` has heard of a thread of the block `rank`.

        Before, that block may not run yet (CUDA Programming Guide, "Distributed Shared Memory": accesses
        require all blocks to have started, as cluster.sync() guarantees).
        """
        threads = self.launch.threads
        first = rank * threads
        if self.clocks is None:
            return True
        heard = self.clocks.heard[rows, first : first + threads].any(1)
        if self.memory is not None and not heard.all():  # by a flag in global memory
            told, of = self.memory.told, self.blocks[rows[0] // threads]
            others = np.broadcast_to(np.arange(first, first + threads), (len(rows), threads))
            heard |= told(of, rows[:, None], others, np.ones_like(others)).any(1)
        return bool(heard.all())

    def turn(self) -> None:
        """End the phase of barrier.cluster if all threads have arrived."""
        if (~self.living() | (self.arrivals > self.phase)).all():
            self.phase += 1
            for barrier in self.barriers.values():
                if barrier.visible and not barrier.everywhere:
                    barrier.everywhere = self.phase
            for block in self.blocks:  # even a relaxed barrier tells that others have come so far
                block.visits = {c: v for c, v in block.visits.items() if v[0] > self._reached(c)}
            self.released, self.arrived, self.came = self.arrived or self.released, None, None

    def come(self, rows: Array) -> None:
        """Note what the threads `rows` have seen when they arrive at barrier.cluster, or end."""
        if self.clocks is not None and len(rows):
            self.came = self.clocks.known(rows).with_(self.came)

    def _reached(self, column: int) -> int:
        """Return how far a thread was when it arrived; of a stream of copies, what threads had seen then.

        What they have seen since tells the others nothing, even if they have ended.
        """
        if self.clocks is None or column < len(self.arrivals):
            return int(self.arrived_at[column])
        return int(self.came.widened(column + 1).seen[column]) if self.came else 0

    @property
    def ended(self) -> bool:
        """Return whether all threads have ended."""
        return all(block.ended for block in self.blocks)

    def begin(self, operation: Operation) -> None:
        """Begin an asynchronous operation: it lands now, or as late as possible."""
        if self.launch.schedule.lands():
            operation.land()
            self.launch.progress += 1
        else:
            self.pending.append(operation)

    def land_one(self) -> bool:
        """Let the oldest operation land, and return whether there was one."""
        if not self.pending:
            return False
        self.pending.popleft().land()
        self.launch.progress += 1
        return True

    def copies(self) -> tuple[int, Array]:
        """Return the first column of the threads' cp.async, and how many each has issued: (threads,)."""
        if self._copies is None and self.clocks is not None:
            count = self.clocks.threads
            self._copies = self.clocks.columns(count, generic=True), np.zeros(count, np.int64)
        return self._copies or (0, self.arrivals)

    def land(self, operation: Operation) -> None:
        """Let this operation land now, if it has not yet."""
        if operation in self.pending:
            self.pending.remove(operation)
            operation.land()

    def advance(self) -> None:
        """Run all blocks until every thread waits, polls or has ended."""
        for block in self.launch.schedule.turns(self.blocks):
            block.advance()

    def block_left(self, block: Block) -> None:
        """Note that all threads of a block have ended: what still reads its memory is a fault."""
        threads = self.launch.threads
        if self.clocks is not None and block.visits:
            known = self.clocks.known(np.arange(threads) + block.rank * threads)
            for column, (value, ins) in block.visits.items():
                if known.seen[column] < value:
                    misuse(
                        block.runners[0].group,
                        ins,
                        "the block may end while another one, or a copy, accesses its shared memory here: a "
                        "wait for that, or a barrier of the cluster after it, before the end would keep it",
                        kind="block has left",
                    )
        for key, groups in self.streams.items():
            if self.clocks is None or not isinstance(groups, BulkGroups) or key[1] // threads != block.rank:
                continue
            begun = [one for committed in (*groups.committed, groups.open) for one in committed]
            if begun and self.clocks.seen[key[1], groups.column] < groups.count + bool(groups.open):
                misuse(
                    block.runners[key[1] % threads // WARPGROUP].group,
                    begun[-1].source,
                    "the block may end while this copy reads its shared memory: "
                    "cp.async.bulk.wait_group.read before the end would keep it",
                    kind="block has left",
                )

    def end(self) -> None:
        """Let go of all that the cluster has, see `Batch.end`."""
        for block in self.blocks:
            block.end()
        vars(self).clear()

    def holder(self, address: int) -> Block:
        """Return the block whose shared memory the address lies in."""
        return self.blocks[min(max(address, 0) >> WINDOW, len(self.blocks) - 1)]
