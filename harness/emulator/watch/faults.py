"""Faults of single accesses: lanes that go out of bounds, are misaligned, or read what nothing wrote."""

from __future__ import annotations

import numpy as np

from harness.emulator.group import Group, spread
from harness.emulator.memory import GLOBAL_BASE, WINDOW
from harness.emulator.numbers.values import Array, Integer, Lanes, Mask, mask_of
from harness.emulator.ptx.declarations import Variable
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import Finding

FAR = 2**28  # bytes from what is nearest: no index that is off goes so far


def aligned(group: Group, ins: Instruction, space: str, address: Integer, where: Lanes, size: int) -> Lanes:
    """Return the lanes of `where` whose address is a multiple of `size`; report the others."""
    if where is False:
        return False
    if isinstance(address, int):
        good: Lanes = address % size == 0
    else:
        key = ("aligned", address.key, address.offset % size, size)
        good = group.launch.memo.get(key, lambda: mask_of(address.array() % size == 0), group.lanes)
    if good is True:
        return where
    kept = group.algebra.both(where, good)
    bad = group.algebra.both(where, group.algebra.negate(good))
    if bad is not False and group.launch.check:
        variable, offset, _ = named(group, space, first_lane(group, address, bad), size)
        fault(
            group,
            ins,
            "misaligned",
            bad,
            variable,
            offset,
            f"a {size}-byte access at offset {offset} of {variable}",
        )
    return kept


def outside(
    group: Group,
    ins: Instruction,
    space: str,
    address: Integer,
    where: Lanes,
    inside: Lanes,
    size: int,
    means: Variable | None = None,
) -> Lanes:
    """Return the lanes of `where` that are `inside`; report the others as out of bounds.

    means: the variable in shared memory of which the address was made
    """
    bad = group.algebra.both(where, group.algebra.negate(inside))
    if bad is False:
        return where
    if group.launch.check:
        variable, offset, distance = named(group, space, first_lane(group, address, bad), size, means)
        verb = "writes" if _writes(ins, space) else "reads"
        message = (
            f"{verb} {size} bytes {beyond(variable, offset, distance)}"
            if distance < FAR
            else f"{verb} {size} bytes far from all memory ({variable} is nearest, {distance:,} bytes away): "
            "the address may come from what nothing has written, or be one of the host's"
        )
        fault(group, ins, "out of bounds", bad, variable, offset, message, distance)
        if space == "global" and offset >= 0:
            group.launch.findings.reached(variable, offset + _span(group, address, bad) + size)
    return group.algebra.both(where, inside)


def within(
    group: Group, ins: Instruction, means: Variable, address: Integer, where: Lanes, size: int
) -> Lanes:
    """Return the lanes of `where` that stay in the variable in shared memory `means`; report the others.

    Blocks of a cluster have it at the same place each.
    """
    if where is False:
        return False
    offset = _into(means, spread(address, group.shape))
    inside = mask_of((offset >= 0) & (offset + size <= means.size))
    return outside(group, ins, "shared", address, where, inside, size, means)


def _into(means: Variable, address: Array) -> Array:
    """Return how far into a variable in shared memory addresses lie, whichever block's it is."""
    half = 1 << WINDOW - 1
    return ((address - means.offset + half) & ((1 << WINDOW) - 1)) - half


def _writes(ins: Instruction, space: str) -> bool:
    """Return whether an instruction writes what it accesses in `space`; cp.async copies to shared memory."""
    if ins.opcode[0] in ("cp", "wmma"):
        return space == "shared" if ins.opcode[0] == "cp" else ins.opcode[1] == "store"
    return ins.opcode[0] in ("st", "atom", "red", "stmatrix")


def first_lane(group: Group, address: Integer, bad: Lanes) -> int:
    """Return the address of the first lane of `bad`."""
    lanes = spread(address, group.shape)
    return int(lanes[np.broadcast_to(bad.array, group.shape)][0] if isinstance(bad, Mask) else lanes[0, 0])


def _span(group: Group, address: Integer, bad: Lanes) -> int:
    """Return how far the last address of the lanes `bad` is from that of the first of them."""
    lanes = spread(address, group.shape)
    far = lanes[np.broadcast_to(bad.array, group.shape)] if isinstance(bad, Mask) else lanes
    return int(far.max()) - first_lane(group, address, bad)


def named(
    group: Group, space: str, address: int, size: int, means: Variable | None = None
) -> tuple[str, int, int]:
    """Return (variable, offset in it, distance outside it) of an access of `size` bytes; both are in bytes.

    The distance is that of `Arena.nearest`, and 0 for an access that lies inside. The variable is the
    one that the access `means`, if that is known.
    """
    if means is not None:
        offset = int(_into(means, np.asarray(address)))
        return group.launch.variable(space, means.offset)[0], offset, max(-offset, offset + size - means.size)
    if space == "global":
        found = group.launch.arena.nearest(address, size)
        if found is None:
            return "global memory", address - GLOBAL_BASE, 0
        return found[0].name, address - found[0].start, max(0, found[1])
    scratch = group.batch.shared if space == "shared" else group.batch.local
    if scratch.each and address >= 0:
        address &= (1 << WINDOW) - 1
    distance = -address if address < 0 else max(0, address + size - (scratch.each or scratch.size))
    name, offset = group.launch.variable(space, address)
    return name, offset, distance


def beyond(variable: str, offset: int, distance: int) -> str:
    """Return where an access lies that is `named` so, outside of its variable."""
    side = "before the start" if offset < 0 else "past the end"
    return f"at offset {offset} of {variable}, up to {distance} bytes {side}"


def fault(
    group: Group,
    ins: Instruction,
    kind: str,
    bad: Lanes,
    variable: str,
    offset: int,
    message: str,
    distance: int = 0,
    benign: bool = False,
) -> None:
    """Add a finding for the lanes `bad`, described by the first of them."""

    def make() -> Finding:
        lane = np.argwhere(np.broadcast_to(bad.array, group.shape))[0] if isinstance(bad, Mask) else (0, 0)
        thread = group.launch.thread(int(lane[0]) + group.row)
        block = group.launch.block_index(group.batch.first + int(lane[1]))
        return Finding(
            kind=kind,
            message=f"{message}: thread {thread} of block {block}",
            sources=(ins.source,),
            variable=variable,
            offset=offset,
            distance=distance,
            threads=(thread,),
            block=block,
            benign=benign,
        )

    group.launch.findings.add(kind, (ins.source, variable), group.count(bad), make)
