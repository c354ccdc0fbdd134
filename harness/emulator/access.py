"""Memory accesses in every state space, cp.async included.

`place` finds the memory of an access and checks its addresses, `observe` counts it and passes it to the
hazard and race watches, `load` and `store` move the data.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.emulator.group import Group, spread
from harness.emulator.memory import LOCAL_BASE, SHARED_BASE, Allocation, Scratch
from harness.emulator.numbers.addresses import Access, access
from harness.emulator.numbers.values import Array, Integer, Lanes, Mask, identity, lane_id, mask_of, shift
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.conflicts import Values
from harness.emulator.watch.faults import aligned, fault, first_lane, named, outside, within
from harness.emulator.watch.hazards import HazardWatch
from harness.emulator.watch.touches import READ, WRITE, Touch


@dataclass(kw_only=True)
class Place:
    """The memory that one access reaches.

    space: ``global``, ``shared`` or ``local``
    base: byte address of each lane within that space
    where: the lanes that are in bounds and aligned
    owner: of a global access the allocation that holds all its lanes; None if they lie in several
    scratch: the memory of a shared or local access
    accesses: shared and local access patterns by byte offset from `base`, made when they are first needed
    initialised: the bytes of a shared or local access are known to have been written
    index: of a global access that loads, the result of `_global_index`
    twins: the result of `_twins` for a store to shared memory, made when it is first needed
    cost, touch: of a shared access what it counts, and what the hazard watch knows it as
    """

    space: str
    base: Integer
    where: Lanes
    owner: Allocation | None = None
    scratch: Scratch | None = None
    accesses: dict[int, Access] = field(default_factory=dict)
    initialised: bool = False
    index: tuple[Array, int] | None = None
    twins: tuple[Array, Array] | None = None
    cost: tuple[int, int, int, int] | None = None
    touch: Touch | None = None

    def access(self, group: Group, offset: int) -> Access:
        """Return the pattern of the shared or local access `offset` bytes after `base`."""
        found = self.accesses.get(offset)
        if found is None:
            columns = group.batch.columns(self.space, group)
            address = shift(self.base, offset)
            found = access(group.launch.memo, address, self.where, columns, group.shape)
            self.accesses[offset] = found
        return found


def place(group: Group, ins: Instruction, space: str, address: Integer, where: Lanes, size: int) -> Place:
    """Find the memory of an access of `size` bytes per lane; report lanes out of bounds or misaligned.

    Reported lanes are left out of the result's `where`. For the space "" (generic) the address itself tells
    the space, as shared and local memory have windows. Constants lie in global memory.
    """
    if not space:
        space, address = _resolve(group, address, where)
    if space in ("shared", "local"):
        key = (ins.index, space, identity(address), lane_id(where), size)
        known: Place | None = group.places.get(key)
        if known is not None:
            return known
        scratch = group.batch.shared if space == "shared" else group.batch.local
        asked = where
        low, high = active_bounds(group, address, where)
        if low < 0 or high + size > scratch.size or (scratch.each and not scratch.within(low, high, size)):
            inside = mask_of(scratch.holds(spread(address, group.shape), size))
            where = outside(group, ins, space, address, where, inside, size)
        means = group.launch.code.pointed.get(ins.index) if space == "shared" else None
        first = means.offset + group.batch.base if means is not None else 0
        if means is not None and (low < first or high + size > first + means.size):
            where = within(group, ins, means, address, where, size)
        where = aligned(group, ins, space, address, where, size)
        found = Place(space=space, base=address, where=where, scratch=scratch)
        if where is asked:  # otherwise each access reports its fault anew
            group.places[key] = found
        return found
    low, high = active_bounds(group, address, where)
    owner = group.launch.arena.holding(low, high + size)
    if owner is None:
        lanes = spread(address, group.shape)
        inside = mask_of(group.launch.arena.inside(lanes, size))
        where = outside(group, ins, "global", address, where, inside, size)
        if where is not False:
            low, high = active_bounds(group, address, where)
            owner = group.launch.arena.holding(low, high + size)
    where = aligned(group, ins, "global", address, where, size)
    return Place(space="global", base=address, where=where, owner=owner)


def active_bounds(group: Group, address: Integer, where: Lanes) -> tuple[int, int]:
    """Return the least and the greatest start address among the lanes `where`; if False, among all lanes."""
    if isinstance(address, int):
        return address, address
    if where is True and address.full is None:
        return address.bounds()

    def make() -> tuple[int, int]:
        lanes = np.broadcast_to(address.parts(), group.shape)
        if isinstance(where, Mask):
            lanes = lanes[np.broadcast_to(where.array, group.shape)]
        return int(lanes.min()), int(lanes.max())

    low, high = group.launch.memo.get(("bounds", address.key, lane_id(where)), make)
    return low + address.offset, high + address.offset


def _resolve(group: Group, address: Integer, where: Lanes) -> tuple[str, Integer]:
    """Return the space of a generic address, and the address within it."""
    low, high = active_bounds(group, address, where)
    for space, base in (("shared", SHARED_BASE), ("local", LOCAL_BASE)):
        if base <= low and high < 2 * base:
            return space, shift(address, -base)
    return "global", address


# -- moving data


def load(group: Group, at: Place, size: int, i: int = 0, out: Array | None = None) -> Array:
    """Return element `i`, of `size` bytes, of what each lane loads: (T, C) in the type of `memory.UNIT`.

    out: the array to write it into; None for a new one
    """
    if at.scratch is not None:
        return _spread(at.scratch.load(at.access(group, i * size), size, out), group.shape)
    if at.index is None:
        at.index = _global_index(group, at, size)
    index, first = at.index
    return group.launch.arena.load(index, first + i * size, size, out)


def _spread(found: Array, shape: tuple[int, int]) -> Array:
    return found if found.shape == shape else np.broadcast_to(found, shape)


def _global_index(group: Group, at: Place, size: int) -> tuple[Array, int]:
    """Return (index, first): lane (t, c) of the access is at address ``first + index[t, c] * size``."""
    low, _ = active_bounds(group, at.base, at.where)
    if isinstance(at.base, int):
        return np.zeros(group.shape, np.int64), low
    relative = low - at.base.offset
    base = at.base

    def make() -> Array:
        index = (base.parts() - relative) // size
        return np.ascontiguousarray(np.broadcast_to(index, group.shape))

    return group.launch.memo.get(("index", base.key, relative, size), make, 8 * group.lanes), low


def check_written(group: Group, ins: Instruction, at: Place, step: int) -> None:
    """Report the lanes that read `step` bytes of which one was never written, of memory that has to be.

    That is shared and local memory, and buffers that were passed as uninitialised.
    """
    if not group.launch.check:
        return
    if at.scratch is None:
        _check_arena(group, ins, at, step)
    elif not at.initialised:
        _check_scratch(group, ins, at, step)


def _check_arena(group: Group, ins: Instruction, at: Place, step: int) -> None:
    """Report the lanes that read global memory which was passed as uninitialised and never written."""
    if at.owner is not None and at.owner.initialised:
        return
    if at.owner is None and not any(not a.initialised for a in group.launch.arena.allocations):
        return
    unit = min(step, 4)
    index, first = _global_index(group, at, unit)
    owners = group.launch.arena
    bad: Lanes = False
    for i in range(step // unit):
        found = owners.unwritten(index, first + i * unit, unit)
        if at.owner is None:
            found = found & owners.undefined(spread(at.base, group.shape))
        bad = group.algebra.either(bad, mask_of(found))
    bad = group.algebra.both(bad, at.where)
    if bad is not False:
        variable, offset, _ = named(group, "global", first_lane(group, at.base, bad), step)
        message = f"{variable} at offset {offset} was never written"
        fault(group, ins, "uninitialised read", bad, variable, offset, message)


def _check_scratch(group: Group, ins: Instruction, at: Place, step: int) -> None:
    """Report the lanes that read shared or local memory that was never written."""
    if at.scratch is None:
        return
    unit = min(step, 4)
    bad: Lanes = False
    for i in range(step // unit):
        unwritten = at.scratch.unwritten(at.access(group, i * unit), unit)
        bad = group.algebra.either(bad, mask_of(np.array(_spread(unwritten, group.shape))))
    bad = group.algebra.both(bad, at.where)
    if bad is False:
        at.initialised = True
        return
    variable, offset, _ = named(group, at.space, first_lane(group, at.base, bad), step)
    message = f"{variable} at offset {offset} was never written"
    fault(group, ins, "uninitialised read", bad, variable, offset, message)


def store(group: Group, at: Place, size: int, values: list[Any]) -> None:
    """Store `values`, scalars or arrays (T, C), as adjacent elements of `size` bytes in each lane."""
    if at.where is False:
        return
    if at.scratch is not None:
        for i, value in enumerate(values):
            at.scratch.store(at.access(group, i * size), size, value, at.where)
        return
    index, first = _global_index(group, at, size)
    chosen = None
    if isinstance(at.where, Mask):
        chosen = np.broadcast_to(at.where.array, group.shape)
        index = index[chosen]
    for i, value in enumerate(values):
        lanes = (
            value
            if chosen is None or not isinstance(value, np.ndarray)
            else _spread(value, group.shape)[chosen]
        )
        group.launch.arena.store(index, first + i * size, size, lanes, at.owner)


def observe(
    group: Group, ins: Instruction, at: Place, kind: str, size: int, stored: list[Any] | None = None
) -> None:
    """Count an access of `size` bytes per lane, and pass it to the hazard and race watches.

    kind: READ, WRITE or ATOMIC of `touches`
    stored: the elements that a store stores, scalars or arrays (T, C)
    """
    launch = group.launch
    if at.where is False:
        return
    if at.space == "shared":
        _observe_shared(group, ins, at, kind, size, stored)
        if launch.races is not None and launch.races.shared:
            launch.races.record_shared(group, ins, kind, at.base, at.where, size, _values(group, at, stored))
    elif at.space == "global":
        if launch.delays is not None:
            launch.delays.touch(group, ins, at, reads=kind != WRITE, size=size, writes=kind != READ)
        if launch.counter is not None:
            launch.counter.global_access(ins, at.base, at.where, size, group.shape)
        if kind != READ and at.owner is not None and at.owner.start in launch.constants and launch.check:
            name, offset, _ = named(group, "global", first_lane(group, at.base, at.where), size)
            message = f"writes to {name}, which is __constant__, at offset {offset}"
            fault(group, ins, "constant written", at.where, name, offset, message)
        if launch.races is not None:
            values = _values(group, at, stored)
            launch.races.record(group, ins, kind, at.owner, at.base, at.where, size, values)


def _observe_shared(
    group: Group, ins: Instruction, at: Place, kind: str, size: int, stored: list[Any] | None
) -> None:
    """Count an access to shared memory, and pass it to the hazard watch: as one seen before where it is."""
    launch = group.launch
    if launch.counter is not None:
        if at.cost is None:
            at.cost = launch.counter.shared_access(ins, at.base, at.where, size, group.shape)
        else:
            launch.counter.shared_again(ins, at.cost)
    watch, touch = launch.hazards, at.touch
    if watch is None:
        return
    value = None if stored is None else _stored_alike(group, at, stored)
    if not isinstance(watch, HazardWatch):
        watch.record(ins, kind, at.base, at.where, size, group, value)
    elif touch is not None and (touch.kind, touch.epoch, touch.value) == (kind, group.epoch, value):
        watch.again(touch, group)
    else:
        at.touch = watch.record(ins, kind, at.base, at.where, size, group, value)


def _stored_alike(group: Group, at: Place, stored: list[Any]) -> Hashable:
    """Return a key for what a store to shared memory stores: equal keys mean equal values in each cell.

    None if lanes store different values to one cell, or if no two lanes store to the same.
    """
    if not any(np.ndim(value) for value in stored):
        return b"".join(value.tobytes() for value in stored)
    if at.twins is None:
        at.twins = _twins(group, at)
    lanes, first = at.twins
    if not len(lanes):
        return None
    bits = [np.broadcast_to(value, group.shape).ravel().view(f"u{value.dtype.itemsize}") for value in stored]
    if any((values[lanes] != values[first]).any() for values in bits):
        return None
    return (identity(at.base), lane_id(at.where), *(values[first].tobytes() for values in bits))


def _twins(group: Group, at: Place) -> tuple[Array, Array]:
    """Return the active lanes whose address an earlier one of their block has, and of each the first such."""
    columns = np.broadcast_to(group.batch.columns("shared", group), group.shape)
    cells = (columns * (1 << 32) + spread(at.base, group.shape)).ravel()
    chosen = np.flatnonzero(
        np.broadcast_to(at.where.array if isinstance(at.where, Mask) else True, group.shape)
    )
    _, first, inverse = np.unique(cells[chosen], return_index=True, return_inverse=True)
    again = first[inverse] != np.arange(len(chosen))
    return chosen[again], chosen[first[inverse]][again]


def _values(group: Group, at: Place, stored: list[Any] | None) -> Values | None:
    """Return what `RaceWatch.record` takes: a function of the bytes before and after a store of `stored`."""
    if stored is None:
        return None

    def lanes(value: Any) -> Array:
        """Return a value of each lane in the order of blocks, without those that are not active."""
        flat = np.broadcast_to(value, group.shape).T.ravel()
        return (
            flat[np.broadcast_to(at.where.array, group.shape).T.ravel()]
            if isinstance(at.where, Mask)
            else flat
        )

    def values(some: Array) -> tuple[Array, Array]:
        after = [np.ascontiguousarray(lanes(v)[some]) for v in stored]
        new = np.concatenate([v.view(np.uint8).reshape(len(some), -1) for v in after], axis=1)
        address = lanes(spread(at.base, group.shape))[some]
        if at.scratch is None:
            return group.launch.arena.raw(address, new.shape[1]), new
        return at.scratch.raw(address, lanes(group.batch.columns(at.space, group))[some], new.shape[1]), new

    return values
