"""``ld`` and ``st`` in every state space."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from harness.emulator.access import Place, check_written, load, observe, place, store
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import BITS_OF, Group, spread
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import GLOBAL_BASE
from harness.emulator.numbers.values import Affine, Array, Integer, Lanes, integer_of, shift
from harness.emulator.ptx.declarations import BYTES
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.knowledge import semantics
from harness.emulator.watch.touches import READ, WRITE

SPACES = ("global", "shared", "local", "param", "const")


_HINTS = {
    "volatile", "weak", "relaxed", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "cta", "gpu", "sys",
    "L1::no_allocate", "L1::evict_last", "L1::evict_first", "L1::evict_normal", "L1::evict_unchanged",
    "L2::64B", "L2::128B", "L2::256B", "L2::cache_hint", "shared::cta", "shared::cluster", "cluster",
    "mmio", "param::entry", "param::func",
}  # fmt: skip


_ORDERED = {"acquire", "release"}


_KINDS = {kind for kind in BYTES if kind not in ("pred", "tf32")}


def shape_of(ins: Instruction) -> tuple[int, int, str]:
    """Return (bytes per element, elements, space) of a memory instruction; the space "" is generic.

    The bytes are those of the last part of the opcode, 0 if that is no type; 128 bits are two elements.
    """
    count = next((int(part[1:]) for part in ins.opcode if part in ("v2", "v4", "v8")), 1)
    space = next((part for part in (p.split("::")[0] for p in ins.opcode) if part in SPACES), "")
    size = BYTES.get(ins.opcode[-1], 0)
    return (8, 2 * count, space) if size == 16 else (size, count, space)


def registers(text: str) -> list[str]:
    """Return the register names of ``{a, b}``."""
    return [name.strip() for name in text.strip("{}").split(",")]


def _allowed(decoder: Decoder, ins: Instruction) -> None:
    """Raise NeedsGpu if a load or store has a modifier that the emulator does not know."""
    decoder.parts(ins, {*SPACES, *_HINTS, *_ORDERED, *_KINDS, "v2", "v4", "v8"})


@handles("ld", "ldu")
def ld(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``ld``.

    Lanes out of bounds or misaligned keep their registers; if no lane is left, all active lanes get all ones.
    """
    _allowed(decoder, ins)
    size, count, space = shape_of(ins)
    names = registers(ins.operands[0])
    into = [decoder.register(ins, name) for name in names]
    if len(into) != count or size > 8:
        raise decoder.refusal(ins)
    parameter = re.match(r"\[\s*([\w$%.]+)", ins.operands[1])
    if space == "param" and parameter and any(p.name == parameter[1] for p in decoder.entry.parameters):
        return _load_parameter(decoder, ins, into, size)
    if space == "param":  # of a call, in local memory, or through an address: it is a generic one
        space = ""
    read = decoder.address(ins, ins.operands[1])
    finish = _extension(decoder, ins, names, size)
    dtype = BITS_OF.get(size)
    meaning = semantics(ins)
    early = meaning.strong and not meaning.acquire

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        at = place(group, ins, space, shift(base, offset), where, size * count)
        observe(group, ins, at, READ, size * count)
        if at.where is False:
            nothing_loaded(group, into, where)
            return
        check_written(group, ins, at, size * count)
        for i, register in enumerate(into):
            if register < 0:
                continue  # the sink "_"
            value = load(group, at, size, i, None if finish else group.out(register, at.where, dtype))
            if early and group.launch.delays is not None:
                group.launch.delays.read(group, ins, at, value, i * size)
            group.write(register, finish(group, value) if finish else value, at.where)

    return run


def nothing_loaded(group: Group, into: Sequence[int], where: Lanes) -> None:
    """Write all ones, which are NaN as a float, to the registers of an access of which no lane is left."""
    for register in into:
        if register >= 0:
            group.write(register, -1, where)


def _extension(
    decoder: Decoder, ins: Instruction, names: list[str], size: int
) -> Callable[[Group, Array], Any] | None:
    """Return a function that extends elements of `size` bytes to their registers; None if they fill them."""
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
    """Return the bits of elements as int64, signed (`sign` i) or unsigned (u)."""
    return np.ascontiguousarray(array).view(f"{sign}{size}").astype(np.int64)


def _load_parameter(decoder: Decoder, ins: Instruction, into: list[int], size: int) -> Run:
    """Decode ``ld.param``, which reads a kernel parameter."""
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
    """Decode ``st``."""
    _allowed(decoder, ins)
    size, count, space = shape_of(ins)
    names = registers(ins.operands[1])
    if len(names) != count or space == "const" or size > 8:
        raise decoder.refusal(ins)
    space = "" if space == "param" else space
    read = decoder.address(ins, ins.operands[0])
    values = [stored(decoder, ins, name, size) for name in names]

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        at = place(group, ins, space, shift(base, offset), where, size * count)
        new = [value(group) for value in values]
        observe(group, ins, at, WRITE, size * count, new)
        delays = group.launch.delays
        if delays is None or not delays.hold(group, ins, at, size, lambda: _later(group, at, size, new[0])):
            store(group, at, size, new)

    return run


def _later(group: Group, at: Place, size: int, value: Any) -> Callable[[Array], None]:
    """Return a function that makes the stores of some of the active lanes, by their numbers."""
    chosen = broadcast_mask(at.where, group.shape)
    index = (spread(at.base, group.shape)[chosen] - GLOBAL_BASE) // size
    values, arena = np.broadcast_to(value, group.shape)[chosen], group.launch.arena
    return lambda some: arena.store(index[some], GLOBAL_BASE, size, values[some], at.owner)


def stored(decoder: Decoder, ins: Instruction, name: str, size: int) -> Callable[[Group], Any]:
    """Return a reader of the low `size` bytes of an operand in the type of `memory.UNIT`."""
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
        return low_bytes(group.integer(value, 64), size)

    return bits


def low_bytes(whole: Integer, size: int) -> Any:
    """Return the low `size` bytes of an integer in the type of `memory.UNIT`."""
    unit = BITS_OF[size] if size >= 4 else f"u{size}"
    if isinstance(whole, int):
        return np.array(whole & ((1 << 8 * size) - 1), f"u{size}").view(unit)[()]
    return whole.array().astype(f"i{size}").view(unit)


def re_float(name: str) -> bool:
    """Return whether an operand is a float literal such as ``0f3F800000``."""
    return name[:2] in ("0f", "0F", "0d", "0D")


@handles("prefetch", "prefetchu", "applypriority", "discard", "brkpt", "pmevent")
def prefetch(decoder: Decoder, ins: Instruction) -> Run:
    """Decode prefetches, hints to caches and events for tools, which do nothing here."""
    return lambda group, where: None
