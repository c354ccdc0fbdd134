"""Loads and stores of every space, cp.async: what is checked, counted and moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.findings import Finding
from harness.emulator.group import BITS_OF, Group, spread
from harness.emulator.hazards import READ, WRITE
from harness.emulator.memory import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE, Allocation, Scratch, access
from harness.emulator.ptx import BYTES, Instruction
from harness.emulator.values import (
    Affine,
    Array,
    Integer,
    Lanes,
    Mask,
    bounds,
    identity,
    integer_of,
    lane_id,
    mask_of,
    shift,
)

SPACES = ("global", "shared", "local", "param", "const")
_HINTS = {
    "volatile", "weak", "relaxed", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "cta", "gpu", "sys",
    "L1_no_allocate", "L1_evict_last", "L1_evict_first", "L1_evict_normal", "L1_evict_unchanged",
    "L2_64B", "L2_128B", "L2_256B", "shared_cta",
}  # fmt: skip
_ORDERED = {"acquire", "release"}
_KINDS = {kind for kind in BYTES if kind not in ("pred", "tf32")}


@dataclass(kw_only=True)
class Place:
    """The lanes of one access that are in bounds and aligned: `where`; `base` is the address in its space."""

    space: str
    base: Integer
    where: Lanes
    owner: Allocation | None = None
    scratch: Scratch | None = None


def shape_of(ins: Instruction) -> tuple[int, int, str]:
    """(bytes of an element, elements, space) of a memory instruction; space "" is generic."""
    count = next((int(part[1:]) for part in ins.opcode if part in ("v2", "v4", "v8")), 1)
    space = next((part for part in (p.split("_")[0] for p in ins.opcode) if part in SPACES), "")
    return BYTES[ins.opcode[-1]], count, space


def place(group: Group, ins: Instruction, space: str, address: Integer, where: Lanes, size: int) -> Place:
    """Find the memory of an access, and report the lanes that are outside it or misaligned."""
    if space in ("", "const"):
        space, address = _resolve(group, ins, address, where)
    if space in ("shared", "local"):
        scratch = group.batch.shared if space == "shared" else group.batch.local
        low, high = active_bounds(group, address, where)
        if low < 0 or high + size > scratch.size:
            inside = _inside_scratch(group, address, scratch.size, size)
            where = _outside(group, ins, space, address, where, inside, size)
        where = _aligned(group, ins, space, address, where, size)
        return Place(space=space, base=address, where=where, scratch=scratch)
    low, high = active_bounds(group, address, where)
    owner = group.launch.arena.holding(low, high + size)
    if owner is None:
        lanes = spread(address, group.shape)
        inside = mask_of(group.launch.arena.inside(lanes, size))
        where = _outside(group, ins, "global", address, where, inside, size)
        if where is not False:
            low, high = active_bounds(group, address, where)
            owner = group.launch.arena.holding(low, high + size)
    where = _aligned(group, ins, "global", address, where, size)
    return Place(space="global", base=address, where=where, owner=owner)


def active_bounds(group: Group, address: Integer, where: Lanes) -> tuple[int, int]:
    """The least and greatest address of the active lanes, exactly."""
    if isinstance(address, int):
        return address, address
    parts = (address.thread is None) + (address.block is None) + (address.full is None)
    if where is True and (parts == 2 or address.full is None):
        return address.bounds()

    def make() -> tuple[int, int]:
        lanes = np.broadcast_to(address.parts(), group.shape)
        if isinstance(where, Mask):
            lanes = lanes[np.broadcast_to(where.array, group.shape)]
        return int(lanes.min()), int(lanes.max())

    low, high = group.launch.memo.get(("bounds", address.key, lane_id(where)), make)
    return low + address.offset, high + address.offset


def _resolve(group: Group, ins: Instruction, address: Integer, where: Lanes) -> tuple[str, Integer]:
    low, high = active_bounds(group, address, where)
    for space, base in (("shared", SHARED_BASE), ("local", LOCAL_BASE)):
        if base <= low < 2 * base and high < base + (1 << 31):
            return space, shift(address, -base)
    return "global", address


def _inside_scratch(group: Group, address: Integer, limit: int, size: int) -> Lanes:
    lanes = spread(address, group.shape)
    return mask_of((lanes >= 0) & (lanes + size <= limit))


def _aligned(group: Group, ins: Instruction, space: str, address: Integer, where: Lanes, size: int) -> Lanes:
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
        variable, offset, _ = _name(group, space, _first(group, address, bad), size)
        _report(
            group, ins, "misaligned", bad, variable, offset, f"a {size}-byte access at offset {offset} of {variable}"
        )
    return kept


def _outside(
    group: Group, ins: Instruction, space: str, address: Integer, where: Lanes, inside: Lanes, size: int
) -> Lanes:
    bad = group.algebra.both(where, group.algebra.negate(inside))
    if bad is False:
        return where
    if group.launch.check:
        variable, offset, distance = _name(group, space, _first(group, address, bad), size)
        verb = "reads" if ins.opcode[0] in ("ld", "ldu", "cp") else "writes"
        side = "before the start" if offset < 0 else "past the end"
        message = f"{verb} {size} bytes at offset {offset} of {variable}, {distance} past what is its own ({side})"
        _report(group, ins, "out of bounds", bad, variable, offset, message, distance)
    return group.algebra.both(where, inside)


def _first(group: Group, address: Integer, bad: Lanes) -> int:
    lanes = spread(address, group.shape)
    return int(lanes[np.broadcast_to(bad.array, group.shape)][0] if isinstance(bad, Mask) else lanes[0, 0])


def _name(group: Group, space: str, address: int, size: int) -> tuple[str, int, int]:
    """(name, offset in it, distance outside it) of an address."""
    if space == "global":
        found = group.launch.arena.nearest(address, size)
        if found is None:
            return "global memory", address - GLOBAL_BASE, 0
        return found[0].name, address - found[0].start, max(0, found[1])
    limit = (group.batch.shared if space == "shared" else group.batch.local).size
    distance = -address if address < 0 else max(0, address + size - limit)
    name, offset = group.launch.variable(space, address)
    return name, offset, distance


def _report(
    group: Group,
    ins: Instruction,
    kind: str,
    bad: Lanes,
    variable: str,
    offset: int,
    message: str,
    distance: int = 0,
) -> None:
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
        )

    group.launch.findings.add(kind, (ins.source, variable), group.count(bad), make)


# -- moving data


def load(group: Group, ins: Instruction, at: Place, size: int, count: int, deliver: Any) -> None:
    """`count` elements of `size` bytes: deliver(i, function that gives them, into an array if it gets one)."""
    step = size * count
    if at.scratch is None:
        _check_written(group, ins, at, step)
        index, first = _global_index(group, at, size)
        for i in range(count):
            deliver(i, lambda out, i=i: group.launch.arena.load(index, first + i * size, size, out))
        return
    columns = group.batch.columns(at.space, group)
    for i in range(count):
        where = access(group.launch.memo, shift(at.base, i * size), at.where, columns, group.shape)
        deliver(i, lambda out, where=where: _spread(at.scratch.load(where, size, out), group.shape))  # type: ignore[union-attr]
    if at.space == "shared" and group.launch.check:
        _check_scratch(group, ins, at, step)


def _spread(found: Array, shape: tuple[int, int]) -> Array:
    return found if found.shape == shape else np.broadcast_to(found, shape)


def _global_index(group: Group, at: Place, size: int) -> tuple[Array, int]:
    """(units of `size` from the first address, that address)."""
    low, _ = active_bounds(group, at.base, at.where)
    if isinstance(at.base, int):
        return np.zeros(group.shape, np.int64), low
    relative = low - at.base.offset
    base = at.base

    def make() -> Array:
        index = (base.parts() - relative) // size
        return np.ascontiguousarray(np.broadcast_to(index, group.shape))

    return group.launch.memo.get(("index", base.key, relative, size), make, 8 * group.lanes), low


def _check_written(group: Group, ins: Instruction, at: Place, step: int) -> None:
    if not group.launch.check or (at.owner is not None and at.owner.initialised):
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
        variable, offset, _ = _name(group, "global", _first(group, at.base, bad), step)
        _report(
            group,
            ins,
            "uninitialised read",
            bad,
            variable,
            offset,
            f"{variable} at offset {offset} was never written",
        )


def _check_scratch(group: Group, ins: Instruction, at: Place, step: int) -> None:
    key = (identity(at.base), lane_id(at.where), step, group.row)
    if key in group.batch.written or at.scratch is None:
        return
    columns = group.batch.columns(at.space, group)
    unit = min(step, 4)
    bad: Lanes = False
    for i in range(step // unit):
        where = access(group.launch.memo, shift(at.base, i * unit), at.where, columns, group.shape)
        bad = group.algebra.either(bad, mask_of(np.array(_spread(at.scratch.unwritten(where, unit), group.shape))))
    bad = group.algebra.both(bad, at.where)
    if bad is False:
        group.batch.written.add(key)
        return
    variable, offset, _ = _name(group, at.space, _first(group, at.base, bad), step)
    message = f"{variable} at offset {offset} was never written"
    _report(group, ins, "uninitialised read", bad, variable, offset, message)


def store(group: Group, at: Place, size: int, values: list[Any]) -> None:
    if at.where is False:
        return
    if at.scratch is not None:
        columns = group.batch.columns(at.space, group)
        for i, value in enumerate(values):
            where = access(group.launch.memo, shift(at.base, i * size), at.where, columns, group.shape)
            at.scratch.store(where, size, value, at.where)
        return
    index, first = _global_index(group, at, size)
    chosen = None
    if isinstance(at.where, Mask):
        chosen = np.broadcast_to(at.where.array, group.shape)
        index = index[chosen]
    for i, value in enumerate(values):
        lanes = value if chosen is None or not isinstance(value, np.ndarray) else _spread(value, group.shape)[chosen]
        group.launch.arena.store(index, first + i * size, size, lanes, at.owner)


def observe(group: Group, ins: Instruction, at: Place, kind: str, size: int, value: Any = None) -> None:
    """Count an access and remember it for hazards and races."""
    launch = group.launch
    if at.where is False:
        return
    if at.space == "shared":
        if launch.counter is not None:
            launch.counter.shared_access(ins, at.base, at.where, size, group.shape)
        if launch.hazards is not None:
            launch.hazards.record(ins, kind, at.base, at.where, size, group, value)
    elif at.space == "global":
        if launch.counter is not None:
            launch.counter.global_access(ins, at.base, at.where, size, group.shape)
        if launch.races is not None and at.owner is not None:
            launch.races.record(group, ins, kind, at.owner, at.base, at.where, size)


# -- instructions


def _registers(text: str) -> list[str]:
    return [name.strip() for name in text.strip("{}").split(",")]


def _allowed(decoder: Decoder, ins: Instruction) -> None:
    decoder.parts(ins, {*SPACES, *_HINTS, *_ORDERED, *_KINDS, "v2", "v4", "v8"})


@handles("ld", "ldu")
def ld(decoder: Decoder, ins: Instruction) -> Run:
    _allowed(decoder, ins)
    size, count, space = shape_of(ins)
    names = _registers(ins.operands[0])
    into = [decoder.register(ins, name) for name in names]
    if len(into) != count or size > 8:
        raise decoder.refusal(ins)
    if space == "param":
        return _load_parameter(decoder, ins, into, size)
    read = decoder.address(ins, ins.operands[1])
    finish = _extension(decoder, ins, names, size)

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        at = place(group, ins, space, shift(base, offset), where, size * count)
        observe(group, ins, at, READ, size * count)
        if at.where is False:
            for register in into:
                group.write(register, -1, where)  # what the hardware would not have delivered: NaN, all ones
            return

        def deliver(i: int, give: Any) -> None:
            if into[i] < 0:
                return
            if finish is not None:
                group.write(into[i], finish(group, give(None)), at.where)
            else:
                dtype = BITS_OF[size]
                group.write(into[i], give(group.out(into[i], at.where, dtype)), at.where)

        load(group, ins, at, size, count, deliver)

    return run


def _extension(
    decoder: Decoder, ins: Instruction, names: list[str], size: int
) -> Callable[[Group, Array], Any] | None:
    """How a narrow element fills its register; None where it fills it as it is."""
    bits = {decoder.bits(name) for name in names if name != "_"}
    kind = ins.opcode[-1]
    if size >= 4 and all(b == 8 * size for b in bits):
        return None
    if kind[0] == "s":
        return lambda group, array: integer_of(_integers(array, size, "i"))
    if size == 2 and all(b == 16 for b in bits):
        return lambda group, array: integer_of(_integers(array, size, "i"))
    return lambda group, array: integer_of(_integers(array, size, "u"))


def _integers(array: Array, size: int, sign: str) -> Array:
    return np.ascontiguousarray(array).view(f"{sign}{size}").astype(np.int64)


def _load_parameter(decoder: Decoder, ins: Instruction, into: list[int], size: int) -> Run:
    base, _, offset = ins.operands[1].strip("[] ").partition("+")
    parameter = next((p for p in decoder.entry.parameters if p.name == base.strip()), None)
    if parameter is None or int(offset or 0) + size * len(into) > parameter.size:
        raise decoder.refusal(ins)
    start = parameter.offset + int(offset or 0)
    kind = ins.opcode[-1]

    def run(group: Group, where: Lanes) -> None:
        for i, register in enumerate(into):
            raw = group.launch.parameters[start + i * size : start + (i + 1) * size]
            if kind in ("f32", "f64"):
                group.write(register, np.frombuffer(raw, BITS_OF[size])[0], where)
            else:
                signed = kind[0] != "u" or size >= 4
                group.write(register, int.from_bytes(raw, "little", signed=signed), where)

    return run


@handles("st")
def st(decoder: Decoder, ins: Instruction) -> Run:
    _allowed(decoder, ins)
    size, count, space = shape_of(ins)
    names = _registers(ins.operands[1])
    if len(names) != count or space in ("param", "const") or size > 8:
        raise decoder.refusal(ins)
    read = decoder.address(ins, ins.operands[0])
    values = [stored(decoder, ins, name, size) for name in names]

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        at = place(group, ins, space, shift(base, offset), where, size * count)
        new = [value(group) for value in values]
        constant = new[0].tobytes() if count == 1 and not np.ndim(new[0]) else None
        observe(group, ins, at, WRITE, size * count, constant)
        store(group, at, size, new)

    return run


def stored(decoder: Decoder, ins: Instruction, name: str, size: int) -> Callable[[Group], Any]:
    """The low `size` bytes of an operand, as memory takes them: a scalar or an array."""
    if re_float(name):
        read = decoder.floating(ins, name, BITS_OF[size])
    else:
        read = decoder.value(ins, name)
        if name in decoder.numbers:
            decoder.bits(name)
        else:
            read = decoder.integer(ins, name, 8 * size)

    def bits(group: Group) -> Any:
        value = read(group)
        if not isinstance(value, int | Affine) and value.dtype.itemsize == size and size >= 4:
            return value
        whole = group.integer(value, 64)
        if isinstance(whole, int):
            return np.array(whole & ((1 << 8 * size) - 1), f"u{size}").view(BITS_OF[size] if size >= 4 else f"u{size}")[()]
        array = whole.array().astype(f"i{size}")
        return array.view(BITS_OF[size] if size >= 4 else f"u{size}")

    return bits


def re_float(name: str) -> bool:
    return name[:2] in ("0f", "0F", "0d", "0D")


@handles("prefetch", "prefetchu", "applypriority", "discard")
def prefetch(decoder: Decoder, ins: Instruction) -> Run:
    return lambda group, where: None



