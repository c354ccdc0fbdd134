"""The instructions of mbarriers (PTX ISA, "mbarrier")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.access import place
from harness.emulator.decode import Attempt, Decoder, Run, handles
from harness.emulator.group import Group, spread
from harness.emulator.hopper.order.races import misuse, touch
from harness.emulator.hopper.phases import Mbarrier, arrive, ended, find, named
from harness.emulator.hopper.tma.boxes import write_shared
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import SHARED_BASE, WINDOW
from harness.emulator.numbers.values import Array, Integer, Lanes, integer_of, mask_of, shift
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.touches import WRITE

if TYPE_CHECKING:
    from harness.emulator.hopper.grid import Block

_SCOPES = {
    "release",
    "acquire",
    "relaxed",
    "cta",
    "cluster",
    "shared",
    "shared::cta",
    "shared::cluster",
    "b64",
}
_BEFORE = "a barrier before would order the two"
_LARGEST = (1 << 20) - 1  # arrivals and bytes of a phase
_PHASE = 1 << 40  # a state is phase * _PHASE + pending arrivals


def each(group: Group, address: Integer, where: Lanes) -> list[tuple[int, Array]]:
    """Return (address, lanes (T,)) for each address among the lanes `where`."""
    lanes = broadcast_mask(where, group.shape)[:, 0]
    if isinstance(address, int):
        return [(address, lanes)] if lanes.any() else []
    values = spread(address, group.shape)[:, 0]
    return [(int(value), lanes & (values == value)) for value in np.unique(values[lanes])]


@handles("mbarrier")
def mbarrier(decoder: Decoder, ins: Instruction) -> Run | Attempt:
    """Decode ``mbarrier`` in all its forms."""
    makers = {
        "init": _init, "inval": _inval, "arrive": _arrive, "arrive_drop": _arrive, "expect_tx": _expect,
        "complete_tx": _expect, "test_wait": _wait, "try_wait": _wait, "pending_count": _pending_count,
    }  # fmt: skip
    maker = makers.get(ins.opcode[1])
    if maker is None:
        raise decoder.refusal(ins)
    extra = {"noComplete", "expect_tx", "parity"} if ins.opcode[1] not in ("init", "inval") else set()
    decoder.parts(ins, {ins.opcode[1], *_SCOPES, *extra})
    return maker(decoder, ins)


def _init(decoder: Decoder, ins: Instruction) -> Run:
    read, count = decoder.address(ins, ins.operands[0]), decoder.integer(ins, ins.operands[1], 32)

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        at = place(group, ins, "" if ins.opcode[-2] == "init" else "shared", shift(base, offset), where, 8)
        block: Block = group.batch  # type: ignore[assignment]
        cluster = block.cluster
        counts = spread(count(group), group.shape)[:, 0]
        touch(group, ins, at.base, at.where, 8, WRITE)
        for address, lanes in each(group, at.base, at.where):
            first = int(np.nonzero(lanes)[0][0])
            old = cluster.barriers.get(address)
            if old is not None and (old.pending != old.count or old.bytes):
                misuse(group, ins, f"initialises an mbarrier in use, {old}", old.initialised)
            arrivals = int(counts[first])
            if not 1 <= arrivals <= _LARGEST:
                misuse(group, ins, f"an mbarrier for {arrivals} arrivals; there may be 1 to {_LARGEST:,}")
            found = Mbarrier(address, max(1, arrivals), ins, name=named(group, address))
            if cluster.clocks is not None:
                row = block.rank * group.launch.threads + group.row + first
                found.by, found.at = row, int(cluster.clocks.seen[row, row])
                found.column = cluster.clocks.columns(1, generic=False)
                found.mates, found.threads = cluster.mates, group.launch.threads
            cluster.barriers[address] = found
            if at.scratch is not None:
                write_shared(at.scratch, address, np.zeros(8, np.uint8))

    return run


def _inval(decoder: Decoder, ins: Instruction) -> Run:
    read = decoder.address(ins, ins.operands[0])

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        block: Block = group.batch  # type: ignore[assignment]
        cluster, clocks = block.cluster, block.cluster.clocks
        for address, lanes in each(group, shift(base, offset), where):
            found = find(group, ins, address)
            if found is not None:
                rows = np.nonzero(lanes)[0] + block.rank * group.launch.threads + group.row
                if clocks is not None and (late := found.late(clocks.known(rows))) >= 0:
                    who = f"thread {group.launch.thread(late % group.launch.threads)} may still wait"
                    misuse(group, ins, f"invalidates an mbarrier for which {who}: {_BEFORE}")
                if found.pending != found.count or found.bytes:
                    misuse(group, ins, f"invalidates an mbarrier in use, {found}", found.initialised)
                del cluster.barriers[found.address]

    return run


def _arrive(decoder: Decoder, ins: Instruction) -> Run:
    """Decode an arrival; with expect_tx the phase expects so many more bytes."""
    read = decoder.address(ins, ins.operands[1])
    into = decoder.register(ins, ins.operands[0])
    expects, drops = "expect_tx" in ins.opcode, ins.opcode[1] == "arrive_drop"
    value = decoder.integer(ins, ins.operands[2], 32) if len(ins.operands) > 2 else None
    publishes = "relaxed" not in ins.opcode

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        states = np.zeros(group.shape, np.int64)
        block: Block = group.batch  # type: ignore[assignment]
        values = spread(value(group), group.shape)[:, 0] if value is not None else None
        for address, lanes in each(group, shift(base, offset), where):
            barrier = find(group, ins, address, np.nonzero(lanes)[0])
            if barrier is None or not block.reaches(group, ins, barrier.address):
                continue
            given = int(values[lanes].sum()) if values is not None else int(lanes.sum())
            states[lanes, 0] = barrier.phase * _PHASE + barrier.pending
            rows = np.nonzero(lanes)[0] + block.rank * group.launch.threads + group.row
            clocks = block.cluster.clocks
            if clocks is not None:
                block.visit(barrier.address, ins, rows, clocks.own(rows))
            known = clocks.release(rows) if clocks is not None else None
            if known is not None and not publishes:
                known = known.hearsay()
            elif known is not None and (there := barrier.address >> WINDOW) != block.rank:
                if "cluster" in ins.opcode:
                    barrier.far = known.with_(barrier.far)
                known = known.narrow(there * group.launch.threads, (there + 1) * group.launch.threads)
            if expects:
                barrier.bytes += given
                given = int(lanes.sum())
            if drops:
                barrier.count -= given
            arrive(group, ins, barrier, given, known)
        group.launch.progress += 1
        if into >= 0:
            group.write(into, integer_of(states), where)

    return run


def _expect(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``expect_tx`` and ``complete_tx``, which raise and lower the bytes that the phase expects."""
    read, value = decoder.address(ins, ins.operands[0]), decoder.integer(ins, ins.operands[1], 32)
    sign = 1 if ins.opcode[1] == "expect_tx" else -1

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        values = spread(value(group), group.shape)[:, 0]
        for address, lanes in each(group, shift(base, offset), where):
            barrier = find(group, ins, address, np.nonzero(lanes)[0])
            if barrier is not None:
                barrier.land(-sign * int(values[lanes].sum()))
                ended(group, ins, barrier)
        group.launch.progress += 1

    return run


def _wait(decoder: Decoder, ins: Instruction) -> Run | Attempt:
    """Decode ``test_wait``, and ``try_wait``, which waits until the phase has ended."""
    read = decoder.address(ins, ins.operands[1])
    into = decoder.predicate_number(ins, ins.operands[0])
    value = decoder.integer(ins, ins.operands[2], 64 if "parity" not in ins.opcode else 32)
    acquires = "relaxed" not in ins.opcode

    def done(group: Group, where: Lanes, *, report: bool) -> Array:
        base, offset = read(group)
        ended = np.zeros(group.shape, np.bool_)
        block: Block = group.batch  # type: ignore[assignment]
        values = spread(value(group), group.shape)[:, 0]
        for address, lanes in each(group, shift(base, offset), where):
            if report:
                barrier = find(group, ins, address, np.nonzero(lanes)[0])
            else:
                barrier = block.cluster.barriers.get(address & (SHARED_BASE - 1))
            if barrier is None:
                ended[lanes] = True  # reported; nobody could end the phase
                continue
            if "parity" in ins.opcode:
                ended[lanes, 0] = (values[lanes] & 1) != (barrier.phase & 1)
            else:
                ended[lanes, 0] = barrier.phase > values[lanes] // _PHASE
            clocks, rows = block.cluster.clocks, np.nonzero(ended[:, 0] & lanes)[0]
            if clocks is not None and len(rows):
                rows = rows + block.rank * group.launch.threads + group.row
                if acquires and barrier.phase:
                    clocks.acquire(rows, barrier.released)
                    if "cluster" in ins.opcode and barrier.far is not None:
                        clocks.widen(rows, barrier.far)
                    clocks.observe(rows, barrier.column, barrier.phase)
                elif barrier.phase:
                    clocks.hear(rows, barrier.released)
                barrier.waits.update(zip(rows.tolist(), clocks.own(rows).tolist(), strict=True))
        return ended

    def test(group: Group, where: Lanes) -> None:
        group.write(into, mask_of(done(group, where, report=True)), where)

    def attempt(group: Group, where: Lanes) -> Lanes:
        ended = mask_of(done(group, where, report=True))
        passed = group.algebra.both(where, ended)
        if passed is not False:
            group.write(into, True, passed)
        return passed

    def describe(group: Group, where: Lanes) -> str:
        base, offset = read(group)
        block: Block = group.batch  # type: ignore[assignment]
        parity = value(group)
        found = [
            block.cluster.barriers.get(a & (SHARED_BASE - 1))
            for a, _ in each(group, shift(base, offset), where)
        ]
        wanted = f"parity {parity} of " if "parity" in ins.opcode and isinstance(parity, int) else ""
        return "waits for " + wanted + ", ".join(str(barrier) for barrier in found)

    return test if ins.opcode[1] == "test_wait" else Attempt(run=attempt, describe=describe)


def _pending_count(decoder: Decoder, ins: Instruction) -> Run:
    into, read = decoder.register(ins, ins.operands[0]), decoder.integer(ins, ins.operands[1], 64)

    def run(group: Group, where: Lanes) -> None:
        group.write(into, group.algebra.apply("pending", lambda state: state % _PHASE, read(group)), where)

    return run
