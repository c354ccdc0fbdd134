"""Races on the shared memory of a cluster, in words: who did what, where, and what would order the two."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.group import Group, spread
from harness.emulator.hopper.order.clocks import Known
from harness.emulator.hopper.order.shadow import Earlier, Places
from harness.emulator.hopper.order.words import edge, hazard, verb, words
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import SHARED_BASE, WINDOW
from harness.emulator.numbers.values import Array, Integer, Lanes
from harness.emulator.ptx.declarations import BYTES
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import Finding
from harness.emulator.watch.knowledge import BLOCK, semantics
from harness.emulator.watch.touches import ATOMIC, READ, WRITE

if TYPE_CHECKING:
    from harness.emulator.hopper.grid import Block, Cluster
    from harness.emulator.machine import Launch

_MASK = (1 << WINDOW) - 1
_LATE = "all of whose threads may have ended; a barrier.cluster before that block's end would keep it"
_EARLY = "which may not have begun; a barrier.cluster before the first such access would tell"


def misuse(
    group: Group,
    ins: Instruction,
    message: str,
    other: Instruction | None = None,
    kind: str = "",
    *,
    benign: bool = False,
) -> None:
    """Report that an instruction is used against its rules; `other` is a second one that is involved."""
    launch = group.launch
    if not launch.check:
        return
    sources = (ins.source,) if other is None else (other.source, ins.source)
    block = launch.block_index(group.batch.first)
    kind = kind or f"{ins.opcode[0]} misuse"

    def make() -> Finding:
        return Finding(
            kind=kind, message=f"{message}: block {block}", sources=sources, block=block, benign=benign
        )

    launch.findings.add(kind, (ins.index, other.index if other else -1, message[:20]), 1, make)


def past_array(group: Group, ins: Instruction, starts: Array, size: int) -> None:
    """Report if `size` bytes at one of these bytes of shared memory leave the array that is meant."""
    means = group.launch.code.pointed.get(ins.index)
    if means is None:
        return
    offsets = starts - means.offset
    past = offsets[(offsets < 0) | (offsets + size > means.size)]
    if past.size:
        name = group.launch.variable("shared", means.offset)[0]
        what = f"{size} bytes at offset {past[0]} of {name}, which has {means.size}"
        misuse(group, ins, what, kind="out of bounds")


def touch(group: Group, ins: Instruction, address: Integer, where: Lanes, size: int, kind: str) -> None:
    """Record an access of `size` bytes per lane at a byte of shared memory."""
    watch = group.launch.hazards
    if watch is not None and where is not False:
        watch.record(ins, kind, address, where, size, group)


def narrowest(instructions: tuple[Instruction, ...]) -> int:
    """Return the bytes of the narrowest access to shared memory by threads, at most 4."""
    found = 4
    for ins in instructions:
        generic = not {"global", "param", "const", "local"} & set(ins.opcode)
        if ins.opcode[0] in ("ld", "st", "atom", "red") and generic:
            found = min(found, BYTES.get(ins.opcode[-1], 4))
    return found


class Flight:
    """A cp.async of the threads `rows`, whose copies have the numbers `values` in the threads' streams."""

    def __init__(self, rows: Array, values: Array) -> None:
        self.rows, self.values = rows, values


class Watch:
    """Takes the place of `HazardWatch` for kernels with asynchronous units."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def start(self, blocks: int) -> None:
        """Begin a block; each cluster has clocks of its own."""

    def barrier(self, columns: Array | None) -> None:
        """Pass a barrier; see `Block.met`."""

    def record(
        self,
        instruction: Instruction,
        kind: str,
        address: Integer,
        where: Lanes,
        size: int,
        group: Group,
        value: Hashable = None,
    ) -> None:
        """Record an access of `size` bytes per lane to shared memory; report the races with earlier ones."""
        block, rows, places = _resolved(group, address, where, size)
        gone = _gone(block.cluster, places)
        if gone is not None:
            self._remote(instruction, block, gone, "block has left", _LATE)
        cluster = block.cluster
        if kind != READ and instruction.opcode[0] != "mbarrier":
            _spoiled(block, instruction, places)
        name = {READ: "read", WRITE: "write", ATOMIC: "atomic"}[kind]
        if cluster.shadow is not None and cluster.clocks is not None:
            if len(cluster.blocks) > 1 and len(rows):
                values, grain = cluster.clocks.own(rows), group.launch.grain
                for rank in np.unique(places[:, 0] * grain >> WINDOW):
                    mine = places[:, 0] * grain >> WINDOW == rank
                    block.visit(int(rank) << WINDOW, instruction, rows[mine], values[mine])
                    if rank != block.rank and not cluster.began(int(rank), rows[mine]):
                        self._remote(instruction, block, cluster.blocks[rank], "block not begun", _EARLY)
            meaning = semantics(instruction)
            polls = meaning.strong and instruction.index not in group.launch.code.volatile
            access = {"read": "poll", "write": "atomic"}.get(name, name) if polls else name
            cluster.shadow.threads(
                access,
                instruction.index,
                rows,
                places,
                _reporter(block, instruction, name, rows),
                stores=value,
                scope=self._launch.threads * (1 if meaning.scope == BLOCK else len(cluster.blocks)),
                **_order(block),
            )
            if cluster.flags is not None:
                turn = slice(None, None, -1 if block.launch.schedule.backward else 1)
                cluster.flags.access(kind, meaning, rows[turn], places[turn])

    def issue(
        self, instruction: Instruction, address: Integer, where: Lanes, size: int, group: Group
    ) -> Flight:
        """Record the issue of a cp.async: a write that its own thread does not know either until it waits."""
        block, rows, places = _resolved(group, address, where, size)
        cluster = block.cluster
        if cluster.shadow is None or cluster.clocks is None:
            return Flight(rows, rows)
        column, counts = cluster.copies()
        counts[rows] += 1
        flight = Flight(rows, counts[rows].copy())
        cluster.shadow.threads(
            "write",
            instruction.index,
            rows,
            places,
            _reporter(block, instruction, "cp.async", rows),
            (column + rows, flight.values),
            **_order(block),
        )
        return flight

    def land(self, flight: Flight, landing: Lanes, rest: Lanes, group: Group) -> None:
        """Record that the threads `landing` have waited for a copy."""
        block: Any = group.batch
        clocks = block.cluster.clocks
        if clocks is None:
            return
        column, _ = block.cluster.copies()
        waited = block.rows(group, landing)
        values = flight.values[np.isin(flight.rows, waited)]
        rows = flight.rows[np.isin(flight.rows, waited)]
        clocks.land(rows, column, values)

    def _remote(self, ins: Instruction, block: Block, other: Block, kind: str, why: str) -> None:
        """Report an access to the shared memory of a block that may not be there."""
        launch = self._launch

        def make() -> Finding:
            return Finding(
                kind=kind,
                message=f"accesses the shared memory of block {launch.block_index(other.first)}, {why}",
                sources=(ins.source,),
                block=launch.block_index(block.first),
            )

        launch.findings.add(kind, (ins.index,), 1, make)


def operation(
    block: Block,
    ins: Instruction,
    kind: str,
    places: Places,
    known: Known | None,
    stream: tuple[int, int],
    *,
    what: str,
    generic: bool = False,
    by: int = -1,
    adds: bool = False,
) -> None:
    """Record an access of an asynchronous operation; report the races with earlier ones.

    kind: read or write; the others are those of `Shadow.operation`
    what: the operation in words
    """
    shadow = block.cluster.shadow
    if shadow is not None and known is not None:
        if kind != "read":
            _spoiled(
                block, ins, np.arange(places.start, places.stop) if isinstance(places, slice) else places
            )
        report = _reporter(block, ins, what, None, kind)
        shadow.operation(kind, ins.index, places, known, stream, report, generic=generic, by=by, adds=adds)


def _order(block: Block) -> dict[str, Any]:
    """Return the stamp of an access of a block in the order of global memory, and what that order tells."""
    memory = block.cluster.memory
    if memory is None:
        return {}
    return {"stamp": int(block.order.state.now[0]), "told": partial(memory.told, block)}


def _resolved(group: Group, address: Integer, where: Lanes, size: int) -> tuple[Block, Array, Array]:
    """Return (block, rows, places) of an access: numbers in the cluster (n,), and (n, k)."""
    block: Any = group.batch
    grain = group.launch.grain
    first = block.rank * group.launch.threads + group.row
    start = spread(address, group.shape)[:, 0] & (SHARED_BASE - 1)
    rows = np.arange(first, first + len(start))
    if where is not True:
        lanes = broadcast_mask(where, group.shape)[:, 0]
        start, rows = start[lanes], rows[lanes]
    places = (start // grain)[:, None] + np.arange(max(1, size // grain))
    return block, rows, places


def _spoiled(block: Block, ins: Instruction, places: Array) -> None:
    """Report a write to the memory of an mbarrier, which `mbarrier.inval` has to free first (PTX ISA)."""
    objects, grain = block.cluster.barriers, block.launch.grain
    if not objects or not places.size:
        return
    low, high = int(places.min()) * grain, (int(places.max()) + 1) * grain
    for address in [a for a in objects if low < a + 8 and a < high]:
        if ((places * grain < address + 8) & ((places + 1) * grain > address)).any():
            found = objects[address]
            misuse(
                block.runners[0].group,
                ins,
                f"writes to the memory of the mbarrier at {found.name}, which is in use until mbarrier.inval",
                found.initialised,
                kind="mbarrier misuse",
            )


def _gone(cluster: Cluster, places: Array) -> Block | None:
    """Return a block that has ended and whose memory is accessed, or None."""
    if len(cluster.blocks) == 1 or not places.size:
        return None
    grain = cluster.launch.grain
    first, last = (cluster.holder(int(place) * grain) for place in (places.min(), places.max()))
    return next((block for block in (first, last) if not block.alive.any()), None)


def _reporter(block: Block, ins: Instruction, what: str, rows: Array | None, kind: str = "") -> Any:
    """Return the function that reports a race of an access of `ins`, which is `what` in words."""
    launch, cluster = block.launch, block.cluster

    def report(before: str, earlier: Earlier, byte: int, lane: int) -> None:
        threads = launch.threads
        site = ins if before == "same" else launch.entry.instructions[earlier.site]
        variable, offset = launch.variable("shared", byte & _MASK)
        now = "read" if (kind or what) == "read" else "write"
        name = hazard(before, now, earlier)
        benign = earlier.alike or earlier.passed
        key = (site.source, ins.source, variable, benign)

        def who(row: int) -> str:
            other = cluster.blocks[row // threads]
            far = "" if other is block else f" of block {launch.block_index(other.first)}"
            return f"thread {launch.thread(row % threads)}{far}"

        def make() -> Finding:
            did = "reads" if before == "read" else "writes"
            begun = earlier.column >= threads * len(cluster.blocks)
            first = f"{words(site) if begun else who(earlier.column)} {did} it"
            second = f"{who(int(rows[lane]))} {verb(what)} it" if rows is not None else f"{what} {now}s it"
            second += ", the same value" if earlier.alike else ""
            return Finding(
                kind=name,
                message=f"{variable} at byte {offset}: {first}, then {second}; "
                f"{edge(site, earlier, ins)}: block {launch.block_index(block.first)}",
                sources=(site.source, ins.source),
                variable=variable,
                offset=offset,
                block=launch.block_index(block.first),
                benign=benign,
            )

        launch.findings.add(name, key, 1, make)

    return report
