"""Instructions of clusters: ``mapa``, ``barrier.cluster``, ``st.async``, ``red.async``, ``getctarank``."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.decode import Attempt, Decoder, Run, handles
from harness.emulator.group import Group, spread
from harness.emulator.hopper.grid import Cluster, Operation
from harness.emulator.hopper.order.clocks import Known
from harness.emulator.hopper.order.races import misuse, operation, past_array
from harness.emulator.hopper.phases import find, landed
from harness.emulator.hopper.tma.boxes import NEVER, read_shared, reduced, unwritten, write_shared
from harness.emulator.instructions.load_store import registers, shape_of, stored
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import LOCAL_BASE, SHARED_BASE, WINDOW
from harness.emulator.numbers.values import Array, Lanes, integer_of, mask_of
from harness.emulator.ptx.program import Instruction

_MASK = (1 << WINDOW) - 1
_REDUCTIONS = {"add", "min", "max", "and", "or", "xor", "inc", "dec"}


def cluster_of(group: Group) -> Cluster:
    """Return the cluster of a group's block."""
    block: Any = group.batch
    found: Cluster = block.cluster
    return found


@handles("mapa")
def mapa(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mapa``: the address that another block of the cluster has at the place of an address."""
    decoder.parts(ins, {"shared::cluster", "u32", "u64"})
    into = decoder.register(ins, ins.operands[0])
    read, rank = decoder.value(ins, ins.operands[1]), decoder.integer(ins, ins.operands[2], 32)

    def run(group: Group, where: Lanes) -> None:
        address = spread(group.integer(read(group), 64), group.shape)
        ranks = spread(rank(group), group.shape)
        count = len(cluster_of(group).blocks)
        lanes = broadcast_mask(where, group.shape)
        if ((ranks < 0) | (ranks >= count))[lanes].any():
            size = f"{count} blocks" if count > 1 else "one block: the kernel has no __cluster_dims__"
            misuse(group, ins, f"a rank outside the cluster, which has {size}")
            ranks = np.clip(ranks, 0, count - 1)
        base = np.where((address >= SHARED_BASE) & (address < LOCAL_BASE), SHARED_BASE, 0)
        group.write(into, integer_of(base | (ranks << WINDOW) | (address & _MASK)), where)

    return run


@handles("getctarank")
def getctarank(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``getctarank``: the rank of the block that an address of the cluster's memory belongs to."""
    into = decoder.register(ins, ins.operands[0])
    read = decoder.integer(ins, ins.operands[1], 64)

    def run(group: Group, where: Lanes) -> None:
        address = spread(read(group), group.shape) & (SHARED_BASE - 1)
        group.write(into, integer_of(address >> WINDOW), where)

    return run


@handles("barrier.cluster")
def barrier_cluster(decoder: Decoder, ins: Instruction) -> Run | Attempt:
    """Decode ``barrier.cluster.arrive`` and ``wait``; an arrival releases unless it is relaxed.

    A thread that has ended counts as arrived.
    """
    decoder.parts(ins, {"cluster", "arrive", "wait", "release", "acquire", "relaxed", "aligned"})
    return _arrive(ins, releases="relaxed" not in ins.opcode) if "arrive" in ins.opcode else _wait(ins)


def _arrive(ins: Instruction, *, releases: bool) -> Run:
    def run(group: Group, where: Lanes) -> None:
        block: Any = group.batch
        cluster, rows = block.cluster, block.rows(group, where)
        if (cluster.arrivals[rows] > cluster.phase).any():
            misuse(group, ins, "arrives twice at the cluster's barrier without a wait between")
        cluster.arrivals[rows] = cluster.phase + 1
        if cluster.clocks is not None:
            cluster.arrived_at[rows] = cluster.clocks.own(rows)
            cluster.come(rows)
            known = cluster.clocks.release(rows)
            cluster.arrived = (known if releases else known.hearsay()).with_(cluster.arrived)
        cluster.turn()
        group.launch.progress += 1

    return run


def _wait(ins: Instruction) -> Attempt:
    def attempt(group: Group, where: Lanes) -> Lanes:
        block: Any = group.batch
        cluster, rows = block.cluster, block.rows(group, where)
        first = block.rank * group.launch.threads + group.row
        passed = np.zeros(group.shape, np.bool_)
        done = rows[cluster.arrivals[rows] <= cluster.phase]
        passed[done - first] = True
        if cluster.clocks is not None and len(done):
            cluster.clocks.acquire(done, cluster.released)
            cluster.clocks.observe(done, cluster.column, cluster.phase)
        return group.algebra.both(where, mask_of(passed))

    def describe(group: Group, where: Lanes) -> str:
        cluster = cluster_of(group)
        missing = int((cluster.living() & (cluster.arrivals <= cluster.phase)).sum())
        return f"waits at barrier.cluster for {missing} threads"

    return Attempt(run=attempt, describe=describe)


@handles("st.async", "red.async")
def st_async(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``st.async`` and ``red.async``: they complete at an mbarrier of the block that they store to."""
    size, count, _ = shape_of(ins)
    reduction = (
        next((part for part in ins.opcode if part in _REDUCTIONS), "") if ins.opcode[0] == "red" else ""
    )
    read, barrier = decoder.address(ins, ins.operands[0]), decoder.address(ins, ins.operands[2])
    values = [stored(decoder, ins, name, size) for name in registers(ins.operands[1])]
    element = {"s32": "INT32", "s64": "INT64"}.get(ins.opcode[-1], f"UINT{8 * size}")
    if len(values) != count:
        raise decoder.refusal(ins)

    def run(group: Group, where: Lanes) -> None:
        block: Any = group.batch
        cluster = block.cluster
        lanes = np.nonzero(broadcast_mask(where, group.shape)[:, 0])[0]
        base, offset = read(group)
        target = (spread(base, group.shape)[:, 0] + offset) & (SHARED_BASE - 1)
        base, offset = barrier(group)
        at = (spread(base, group.shape)[:, 0] + offset) & (SHARED_BASE - 1)
        new = np.stack([_column(value(group), group.shape) for value in values], axis=1)
        for address in np.unique(at[lanes]).tolist():
            mine = lanes[at[lanes] == address]
            found = find(group, ins, address, int(mine[0]))
            if found is None or not block.reaches(group, ins, address):
                continue
            starts = target[mine]
            if (starts % (size * count)).any():
                misuse(group, ins, f"an address that is no multiple of {size * count}", kind="misaligned")
                continue
            if not np.all(cluster.shared.holds(starts, size * count)):
                misuse(
                    group, ins, "an address past the end of the block's shared memory", kind="out of bounds"
                )
                continue
            past_array(
                group, ins, starts & _MASK, size * count
            )  # it is stored all the same, and its bytes arrive
            if ((starts >> WINDOW) != (address >> WINDOW)).any():
                misuse(group, ins, "the data and the mbarrier are in different blocks")
            rows = mine + block.rank * group.launch.threads + group.row
            known = cluster.clocks.begin(rows) if cluster.clocks is not None else None
            if cluster.clocks is not None and cluster.shadow is not None:
                block.visit(address, ins, np.array([found.column]), np.array([found.phase + 1]))
                grain = group.launch.grain
                places = (starts // grain)[:, None] + np.arange(size * count // grain)
                operation(
                    block,
                    ins,
                    "write",
                    np.unique(places.ravel()),
                    known,
                    (found.column, found.phase + 1),
                    what="an st.async" if not reduction else "a red.async",
                    generic=True,
                    adds=bool(reduction),
                )
            begin(group, ins, found, starts, new[mine], reduction, element, known)
        group.launch.progress += 1

    return run


def begin(
    group: Group,
    ins: Instruction,
    found: Any,
    starts: Array,
    data: Array,
    reduction: str,
    element: str,
    known: Known | None,
) -> None:
    """Begin the stores of `data`, (n, elements), at the bytes `starts`, where so much is `known`."""
    cluster = cluster_of(group)
    size, phase = data.shape[1] * data.dtype.itemsize, found.phase

    def land() -> None:
        for start, values in zip(starts.tolist(), data, strict=True):
            bits = values.view(f"u{values.dtype.itemsize}")
            if reduction:
                if unwritten(cluster.shared, start, size):
                    misuse(group, ins, NEVER, kind="uninitialised read")
                old = read_shared(cluster.shared, start, size).view(bits.dtype)
                bits = reduced(old, bits, reduction, element)
            write_shared(cluster.shared, start, np.ascontiguousarray(bits).view(np.uint8))
        landed(group, ins, found, size * len(starts), known, phase)

    cluster.begin(Operation(land=land, source=ins))


def _column(value: Any, shape: tuple[int, int]) -> Array:
    """Return the values of a register in each thread, (T,)."""
    found: Array = np.broadcast_to(np.asarray(value), shape)[:, 0]
    return found
