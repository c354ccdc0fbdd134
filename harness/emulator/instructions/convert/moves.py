"""``mov``, ``selp``, ``slct``, ``cvta``, and the packing of registers into wider ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from harness.emulator.decode import FLOAT, Decoder, Reader, Run, handles
from harness.emulator.group import Group, Value
from harness.emulator.memory import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE, WINDOW
from harness.emulator.numbers.values import Affine, Array, Integer, Mask, mask_of, shift
from harness.emulator.ptx.program import Instruction

_WIDE = "b128"  # held as two registers of 64 bits, see `ptx.module`
TYPES = {f"{k}{b}" for k in "usb" for b in (8, 16, 32, 64)} | {"f32", "f64", "f16", "bf16"}


@handles("mov")
def mov(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mov`` of numbers, of packs ``{lo, hi}`` and of addresses."""
    kind = ins.opcode[-1]
    if set(ins.opcode[1:]) - TYPES - {_WIDE} or len(ins.operands) != 2:
        raise decoder.refusal(ins)
    into, source = ins.operands
    if kind == _WIDE:
        return _both(decoder, ins)
    if source.startswith("{"):
        return _pack(decoder, ins, int(kind[1:]))
    if into.startswith("{"):
        return _unpack(decoder, ins, int(kind[1:]))
    target = decoder.register(ins, into)
    if kind in ("f32", "f64", "f16"):
        read: Reader = decoder.floating(ins, source, FLOAT[kind])
    else:
        read = _bits(decoder, ins, source, int(re.sub(r"\D", "", kind)))

    def run(group: Group, where: Any) -> None:
        group.write(target, read(group), where)

    return run


def _bits(decoder: Decoder, ins: Instruction, text: str, bits: int) -> Reader:
    """Return a reader of an untyped operand: a register as it is held, a float literal or an integer."""
    if text in decoder.numbers or re.match(r"0[fFdD][0-9a-fA-F]{8}", text):
        return decoder.value(ins, text)
    if place := re.fullmatch(r"([\w$%.:]+)\s*(?:\+\s*(-?\s*\w+)|(-\s*\w+))", text):
        if place[1] in decoder.numbers:  # only a variable has an offset
            raise decoder.refusal(ins)
        offset = int((place[2] or place[3]).replace(" ", ""), 0)
        base = decoder.integer(ins, place[1], bits)
        return lambda group: shift(base(group), offset)
    return decoder.integer(ins, text, bits)


def _both(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mov.b128``, of which each operand is a pair of registers of 64 bits."""
    into, source = (_names(text) for text in ins.operands)
    if len(into) != 2 or len(source) != 2:
        raise decoder.refusal(ins)
    targets = [decoder.register(ins, name) for name in into]
    read = [decoder.integer(ins, name, 64) for name in source]

    def run(group: Group, where: Any) -> None:
        values = [reader(group) for reader in read]  # all before the first write: ``{b, a}, {a, b}`` swaps
        for target, value in zip(targets, values, strict=True):
            if target >= 0:
                group.write(target, value, where)

    return run


def _names(text: str) -> list[str]:
    """Return the register names of ``{a, b}``."""
    return [name.strip() for name in text.strip("{}").split(",")]


def _pack(decoder: Decoder, ins: Instruction, bits: int) -> Run:
    """Decode ``mov.b64 d, {lo, hi}`` of `bits` bits: the first register is the low part."""
    names = _names(ins.operands[1])
    each = bits // len(names)
    read = [decoder.integer(ins, name, each) for name in names]
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        algebra = group.algebra
        total: Integer = 0
        for place, reader in enumerate(read):
            total = algebra.linear(
                total, 1, algebra.unsigned(reader(group), each), 1 << place * each, bits=bits
            )
        group.write(into, total, where)

    return run


def _unpack(decoder: Decoder, ins: Instruction, bits: int) -> Run:
    """Decode ``mov.b64 {lo, hi}, s`` of `bits` bits: the first register gets the low part."""
    into = [decoder.register(ins, name) for name in _names(ins.operands[0])]
    each = bits // len(into)
    read = decoder.value(ins, ins.operands[1])

    def run(group: Group, where: Any) -> None:
        value = read(group)
        wide = isinstance(value, np.ndarray) and value.dtype.itemsize * 8 == bits and each >= 16
        parts = _halves(value, len(into)) if wide else None
        for place, register in enumerate(into):
            if register < 0:
                continue
            if parts is not None:
                group.write(register, parts[..., place], where)
            else:
                whole = group.integer(value, bits)
                moved = group.algebra.apply(("part", place, each), lambda v, p=place: v >> (p * each), whole)
                group.write(register, group.algebra.wrap(moved, each), where)

    return run


def _halves(value: Array, count: int) -> Array:
    """Return values (T, C) as parts (T, C, count), the low one first, as float32 or float16."""
    size = value.dtype.itemsize // count
    kind: Any = np.float32 if size == 4 else np.float16
    parts: Array = np.ascontiguousarray(value).view(kind).reshape(*value.shape, count)
    return parts


@handles("selp")
def selp(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``selp``: the first operand where the predicate is true, otherwise the second."""
    decoder.parts(ins, TYPES)
    bits = int(re.sub(r"\D", "", ins.opcode[-1]))
    floats = FLOAT.get(ins.opcode[-1])
    a, b = (
        decoder.floating(ins, text, floats) if floats else _bits(decoder, ins, text, bits)
        for text in ins.operands[1:3]
    )
    chooser = decoder.predicate(ins, ins.operands[3])
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        group.write(into, choose(group, chooser(group), a(group), b(group)), where)

    return run


def choose(group: Group, mask: Any, a: Value, b: Value) -> Value:
    """Return a in the lanes of `mask` and b in the others, in whatever form the two are held."""
    if not isinstance(mask, Mask):
        return a if mask else b
    if isinstance(a, int | Affine) and isinstance(b, int | Affine):
        return group.algebra.select(mask, a, b)
    dtype = next(v.dtype for v in (a, b) if not isinstance(v, int | Affine))
    return np.where(mask.array, group.floating(a, dtype), group.floating(b, dtype))


@handles("cvta")
def cvta(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``cvta``, to and from generic addresses.

    Shared and local memory have windows of their own in the generic address space, from `SHARED_BASE` and
    `LOCAL_BASE` on; a global address is its own generic address.
    """
    spaces = {"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry"}
    parts = decoder.parts(ins, {"to", *spaces, "u64", "u32"})
    base = {"shared": SHARED_BASE, "local": LOCAL_BASE}.get(ins.opcode[-2].partition("::")[0], 0)
    by = -base if "to" in parts else base
    read = decoder.integer(ins, ins.operands[1], 64)
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        group.write(into, shift(read(group), by), where)

    return run


@handles("slct")
def slct(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``slct``: the first operand where the third one is at least 0, otherwise the second."""
    decoder.parts(ins, TYPES | {"ftz"})
    kind, by = ins.opcode[-2:]
    floats = FLOAT.get(kind)
    a, b = (
        decoder.floating(ins, text, floats) if floats else _bits(decoder, ins, text, int(kind[1:]))
        for text in ins.operands[1:3]
    )
    chooser = (
        decoder.floating(ins, ins.operands[3], np.float32)
        if by == "f32"
        else decoder.integer(ins, ins.operands[3], 32)
    )
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        value = chooser(group)
        if isinstance(value, int | Affine):
            mask = group.algebra.compare("ge", value, 0, unsigned=False, bits=32)
        else:
            mask = mask_of(np.atleast_2d(value >= 0))
        group.write(into, choose(group, mask, a(group), b(group)), where)

    return run


@handles("isspacep")
def isspacep(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``isspacep``: whether a generic address lies in a state space.

    ``shared`` is that of the block itself, ``shared::cluster`` also that of others.
    """
    space, _, part = ins.opcode[1].partition("::")
    own = space == "shared" and part != "cluster"
    bounds = {"shared": (SHARED_BASE, LOCAL_BASE), "local": (LOCAL_BASE, 2 * LOCAL_BASE)}
    low, end = bounds.get(space, (GLOBAL_BASE, 1 << 63))
    if space not in (*bounds, "global"):
        raise decoder.refusal(ins)
    read = decoder.integer(ins, ins.operands[1], 64)
    into = decoder.predicate_number(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        algebra, address = group.algebra, read(group)
        start = low + getattr(group.batch, "base", 0) if own else low  # of a block of a cluster
        last = start + (1 << WINDOW) if own else end
        above = algebra.compare("ge", address, start, unsigned=True, bits=64)
        below = algebra.compare("lt", address, last, unsigned=True, bits=64)
        group.write(into, algebra.both(above, below), where)

    return run
