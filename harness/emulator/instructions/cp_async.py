"""``cp.async``: a copy reads when it is issued, and reaches shared memory when its thread has waited for it.

A missing wait therefore shows in the results; it is reported too, see `HazardWatch.issue` and `land`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.emulator.access import Place, active_bounds, check_written, load, place, store
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.memory import LOCAL_BASE, SHARED_BASE
from harness.emulator.numbers.values import Array, Lanes, Mask, mask_of, shift
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.faults import aligned
from harness.emulator.watch.touches import READ, WRITE


@dataclass(kw_only=True)
class Copy:
    """A copy on its way to shared memory.

    into: the `Place` of its target; ``into.where`` are the lanes that have not landed
    open: the lanes that have not committed it; lanes that parted may do so one after the other
    values: its 4-byte words, each (T, C)
    flight: its record in `HazardWatch`, None without one
    """

    into: Any
    open: Lanes
    values: list[Array]
    flight: Any


@dataclass(kw_only=True)
class Committed:
    """A group of copies, and the lanes that committed it and have not waited for it."""

    where: Lanes
    copies: list[Copy]


@handles("cp")
def cp(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``cp.async`` and its ``commit_group``, ``wait_group`` and ``wait_all``."""
    if "async" not in ins.opcode:
        raise decoder.refusal(ins)
    if "commit_group" in ins.opcode:
        return _commit
    if "wait_group" in ins.opcode or "wait_all" in ins.opcode:
        left = int(ins.operands[0], 0) if "wait_group" in ins.opcode else 0
        everything = "wait_all" in ins.opcode

        def wait(group: Group, where: Lanes) -> None:
            if everything:
                _commit(group, where)
            _wait(group, where, left)

        return wait
    return _copy(decoder, ins)


def _copy(decoder: Decoder, ins: Instruction) -> Run:
    """Decode the ``cp.async`` that issues a copy of 4, 8 or 16 bytes per lane.

    Its fourth operand is the number of bytes to read, the others being zero, or a predicate that skips the
    read.
    """
    decoder.parts(
        ins,
        {
            "async",
            "ca",
            "cg",
            "shared",
            "shared::cta",
            "global",
            "L2::64B",
            "L2::128B",
            "L2::256B",
            "L2::cache_hint",
        },
    )
    target, source = (decoder.address(ins, text) for text in ins.operands[:2])
    size = int(ins.operands[2], 0)
    if size not in (4, 8, 16):
        raise decoder.refusal(ins)
    rest = ins.operands[3:-1] if "L2::cache_hint" in ins.opcode else ins.operands[3:]  # without the policy
    extra = rest[0] if rest else ""
    ignore = (
        decoder.predicate(ins, extra) if decoder.entry.registers.get(extra.lstrip("!")) == "pred" else None
    )
    keep = decoder.integer(ins, extra, 32) if extra and ignore is None else None

    def run(group: Group, where: Lanes) -> None:
        algebra = group.algebra
        base, offset = source(group)
        wanted = where if ignore is None else algebra.both(where, algebra.negate(ignore(group)))
        length: Any = size if keep is None else keep(group)
        reading = (
            wanted
            if keep is None
            else algebra.both(wanted, algebra.compare("gt", length, 0, unsigned=False, bits=32))
        )
        values = [np.zeros(group.shape, np.float32) for _ in range(size // 4)]
        if reading is not False:
            _fetch(group, ins, shift(base, offset), reading, size, length, values)
        base, offset = target(group)
        address = shift(base, offset)
        if active_bounds(group, address, where)[0] >= SHARED_BASE and address is not None:
            low = active_bounds(group, address, where)[0]
            address = shift(address, -SHARED_BASE) if low < LOCAL_BASE else address
        into = place(group, ins, "shared", address, where, size)
        if into.where is False:
            return
        flight = None
        if group.launch.hazards is not None:
            flight = group.launch.hazards.issue(ins, into.base, into.where, size, group)
        group.flights.append(Copy(into=replace(into), open=into.where, values=values, flight=flight))

    return run


def _fetch(
    group: Group, ins: Instruction, address: Any, reading: Lanes, size: int, length: Any, values: list[Array]
) -> None:
    """Read the first `length` bytes of each lane's source into `values`; the others stay zero.

    `size` is the bytes that the copy writes, and of whose multiples the source has to be, `reading` the lanes
    that read any. For the counts it is one access of `size` bytes; for the watches a lane reads its own.
    """
    launch, algebra = group.launch, group.algebra
    reading = aligned(group, ins, "global", address, reading, size)
    if reading is False:
        return
    if launch.counter is not None:
        launch.counter.global_access(ins, address, reading, size, group.shape)

    def longer(than: int) -> Lanes:
        return algebra.both(reading, algebra.compare("gt", length, than, unsigned=False, bits=32))

    def piece(begin: int, bytes_: int, where: Lanes) -> Place | None:
        if where is False:
            return None
        at = place(group, ins, "global", shift(address, begin), where, bytes_)
        if at.where is False:
            return None
        if launch.delays is not None:
            launch.delays.touch(group, ins, at, reads=True, size=bytes_)
        if launch.races is not None:
            launch.races.record(group, ins, READ, at.owner, at.base, at.where, bytes_, None)
        check_written(group, ins, at, bytes_)
        return at

    whole = longer(size - 1)
    at = piece(0, size, whole)
    if at is not None:
        for i, value in enumerate(values):
            np.copyto(value, load(group, at, 4, i), where=_array(group, at.where))
    part = algebra.both(reading, algebra.negate(whole))
    for i, value in enumerate(values if part is not False else ()):
        words = algebra.both(part, longer(4 * i + 3))
        at = piece(4 * i, 4, words)
        if at is not None:
            np.copyto(value, load(group, at, 4), where=_array(group, at.where))
        rest = algebra.both(part, algebra.negate(words))
        for j in range(3):
            at = piece(4 * i + j, 1, algebra.both(rest, longer(4 * i + j)))
            if at is not None:
                single = value.view(np.uint8).reshape(*group.shape, 4)[..., j]
                np.copyto(single, load(group, at, 1), where=_array(group, at.where), casting="unsafe")


def _array(group: Group, where: Lanes) -> Array:
    """Return the lanes as an array (T, C)."""
    return np.broadcast_to(where.array if isinstance(where, Mask) else np.bool_(where), group.shape)


def _commit(group: Group, where: Lanes) -> None:
    """Put the copies that the lanes `where` have issued into a group; those of other lanes stay open."""
    mine: list[Copy] = []
    rest: list[Copy] = []
    for copy in group.flights:
        if group.algebra.both(copy.open, where) is not False:
            mine.append(copy)
        copy.open = group.algebra.both(copy.open, group.algebra.negate(where))
        if copy.open is not False:
            rest.append(copy)
    group.flights = rest
    group.groups.append(Committed(where=where, copies=mine))


def _wait(group: Group, where: Lanes, left: int) -> None:
    """Let the copies of the lanes `where` land, except those of their last `left` groups."""
    if where is True and all(g.where is True for g in group.groups):
        while len(group.groups) > left:
            for copy in group.groups.pop(0).copies:
                _land(group, copy, copy.into.where, False)
        return
    newer = np.zeros(group.shape, np.int64)
    for committed in reversed(group.groups):
        due = group.algebra.both(group.algebra.both(mask_of(newer >= left), where), committed.where)
        newer = newer + np.broadcast_to(
            committed.where.array if isinstance(committed.where, Mask) else np.bool_(committed.where),
            group.shape,
        )
        if due is False:
            continue
        committed.where = group.algebra.both(committed.where, group.algebra.negate(due))
        for copy in list(committed.copies):
            landing = group.algebra.both(copy.into.where, due)
            rest = group.algebra.both(copy.into.where, group.algebra.negate(due))
            if landing is not False:
                _land(group, copy, landing, rest)
            if rest is False:
                committed.copies.remove(copy)
    group.groups = [g for g in group.groups if g.where is not False]


def land_later(group: Group, where: Lanes) -> Callable[[], None]:
    """Return a function that lets the copies land that the lanes `where` have issued so far."""
    issued = [*group.flights, *(copy for committed in group.groups for copy in committed.copies)]

    def land() -> None:
        for copy in issued:
            landing = group.algebra.both(copy.into.where, where)
            if landing is not False:
                rest = group.algebra.both(copy.into.where, group.algebra.negate(landing))
                _land(group, copy, landing, rest, told=False)
        group.flights = [copy for copy in group.flights if copy.into.where is not False]

    return land


def _land(group: Group, copy: Copy, landing: Lanes, rest: Lanes, *, told: bool = True) -> None:
    """Store a copy in shared memory in the lanes `landing`; the lanes `rest` are still on their way.

    told: the threads know of it
    """
    if rest is not False:  # patterns of addresses begin at the least of the lanes that they were made for
        copy.into.accesses = {}
    copy.into.where = landing
    races = group.launch.races
    if races is not None and races.shared and copy.flight is not None:
        ins = copy.flight.touch.instruction
        races.record_shared(group, ins, WRITE, copy.into.base, landing, 4 * len(copy.values))
    store(group, copy.into, 4, list(copy.values))
    copy.into.where = rest
    if rest is not False:
        copy.into.accesses = {}
    if told and copy.flight is not None and group.launch.hazards is not None:
        group.launch.hazards.land(copy.flight, landing, rest, group)
