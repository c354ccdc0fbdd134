"""``mov``, ``selp``, conversions, and the packing of registers into wider ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from harness.emulator.decode import FLOAT, Decoder, Reader, Run, handles
from harness.emulator.group import Group, Value
from harness.emulator.memory import LOCAL_BASE, SHARED_BASE
from harness.emulator.numbers.floats import bfloat16_of, flush, of_bfloat16, round_to
from harness.emulator.numbers.values import Affine, Array, Integer, Mask, array_of, integer_of, shift
from harness.emulator.ptx.module import Instruction

_TYPES = {f"{k}{b}" for k in "usb" for b in (8, 16, 32, 64)} | {"f32", "f64", "f16", "bf16"}
_INTEGER_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@handles("mov")
def mov(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mov`` of numbers, of packs ``{lo, hi}`` and of addresses."""
    kind = ins.opcode[-1]
    if set(ins.opcode[1:]) - _TYPES or len(ins.operands) != 2:
        raise decoder.refusal(ins)
    into, source = ins.operands
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
    return decoder.integer(ins, text, bits)


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
    decoder.parts(ins, _TYPES)
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
    parts = decoder.parts(ins, {"to", "global", "shared", "local", "const", "param", "u64", "u32"})
    base = {"shared": SHARED_BASE, "local": LOCAL_BASE}.get(ins.opcode[-2], 0)
    by = -base if "to" in parts else base
    read = decoder.integer(ins, ins.operands[1], 64)
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        group.write(into, shift(read(group), by), where)

    return run


_MODES = {"rn", "rz", "rm", "rp", *_INTEGER_ROUND}


@handles("cvt")
def cvt(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``cvt`` between integers and floating-point types."""
    parts = decoder.parts(ins, _TYPES | _MODES | {"ftz", "sat", "f16x2", "bf16x2", "tf32", "rna"})
    to, source = ins.opcode[-2:]
    if to in ("f16x2", "bf16x2"):
        return _cvt_pair(decoder, ins, to)
    if to == "tf32":
        return _cvt_tf32(decoder, ins)
    into = decoder.register(ins, ins.operands[0])
    width = int(to[1:]) if to[0] in "usb" else 0
    if source[0] in "usb" and width:
        convert = _integers(source, width, to[0], "sat" in parts)
    elif source[0] in "usb":
        convert = _to_float(source, to, parts)
    elif width:
        convert = _to_integer(source, width, to[0] == "u", parts)
    else:
        convert = _floats(source, to, parts)
    if source[0] in "usb":
        read = decoder.integer(ins, ins.operands[1], int(source[1:]))
    elif source == "bf16":
        read = decoder.integer(ins, ins.operands[1], 16)
    else:
        read = decoder.floating(ins, ins.operands[1], FLOAT[source])
    wider = width and ins.operands[0] in decoder.numbers and decoder.bits(ins.operands[0]) > width

    def run(group: Group, where: Any) -> None:
        value = convert(group, read(group))
        if wider and to[0] == "u":  # zero-extend a narrow result to its register
            value = group.algebra.unsigned(value, width)
        group.write(into, value, where)

    return run


def _cvt_pair(decoder: Decoder, ins: Instruction, to: str) -> Run:
    """Decode ``cvt.rn.bf16x2.f32 d, high, low``, and f16x2 likewise."""
    if set(ins.opcode[1:]) != {"rn", to, "f32"}:
        raise decoder.refusal(ins)
    high, low = (decoder.floating(ins, text, np.float32) for text in ins.operands[1:3])
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        pair = [np.broadcast_to(read(group), group.shape) for read in (low, high)]
        bits = [bfloat16_of(v) if to == "bf16x2" else v.astype(np.float16).view(np.uint16) for v in pair]
        both = np.ascontiguousarray(np.stack(bits, axis=-1))
        group.write(into, both.view(np.float32)[..., 0], where)

    return run


def _cvt_tf32(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``cvt.rna.tf32.f32``: round to 10 bits of mantissa, ties away from zero."""
    if ins.opcode[1:] != ("rna", "tf32", "f32"):
        raise decoder.refusal(ins)
    read = decoder.floating(ins, ins.operands[1], np.float32)
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        value = np.broadcast_to(read(group), group.shape)
        bits = np.ascontiguousarray(value).view(np.uint32)
        rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
        group.write(into, np.where(np.isfinite(value), rounded, value), where)

    return run


def _integers(source: str, width: int, to: str, saturates: bool) -> Any:
    """Return the conversion of an integer of type `source` to one of `width` bits.

    It wraps, or, if it `saturates`, gives the nearest value of the result's type; `to` is u, s or b.
    """
    bits, unsigned = int(source[1:]), source[0] == "u"
    low, high = (0, (1 << width) - 1) if to == "u" else (-(1 << (width - 1)), (1 << (width - 1)) - 1)

    def convert(group: Group, value: Integer) -> Integer:
        algebra = group.algebra
        value = algebra.wrap(value, bits)  # a narrow source in a wide register
        if unsigned:
            value = algebra.unsigned(value, bits)
        if saturates:
            value = algebra.apply(("clip", to, width), lambda v: np.clip(v, low, min(high, 2**63 - 1)), value)
        return algebra.wrap(value, width)

    return convert


def _to_float(source: str, to: str, parts: set[str]) -> Any:
    """Return the conversion of an integer of type `source` to the floating-point type `to`."""
    bits, unsigned = int(source[1:]), source[0] == "u"
    mode = next((m for m in ("rn", "rz", "rm", "rp") if m in parts), "rn")

    def convert(group: Group, value: Integer) -> Any:
        if unsigned:
            value = group.algebra.unsigned(value, bits)
        whole: Any = array_of(value)
        if unsigned and bits == 64:
            whole = whole.view(np.uint64)
        if to == "bf16":
            return integer_of(bfloat16_of(np.atleast_2d(whole.astype(np.float32))).astype(np.int64))
        dtype = FLOAT[to]
        if mode == "rn" and to != "f16":
            return _scalar(np.asarray(whole).astype(dtype))
        exact = np.asarray(whole).astype(np.longdouble if bits == 64 else np.float64)
        return _scalar(round_to(exact, dtype, mode))

    return convert


def _scalar(array: Array) -> Any:
    """Return a zero-dimensional array as a scalar, any other as it is."""
    return array if array.ndim else array[()]


def _to_integer(source: str, width: int, unsigned: bool, parts: set[str]) -> Any:
    """Return the conversion of the floating-point type `source` to an integer of `width` bits.

    Values out of range give the nearest bound. NaN gives 0, but the top bit alone for a result of 64 bits.
    """
    rounding = next((_INTEGER_ROUND[m] for m in _INTEGER_ROUND if m in parts), np.trunc)
    low, high = (0, (1 << width) - 1) if unsigned else (-(1 << (width - 1)), (1 << (width - 1)) - 1)

    def convert(group: Group, value: Any) -> Integer:
        if source == "bf16":
            value = of_bfloat16(np.atleast_2d(array_of(group.algebra.unsigned(value, 16))))
        if "ftz" in parts:
            value = flush(value)
        whole = np.atleast_2d(rounding(np.asarray(value, np.float64)))
        top = whole >= float(high)
        safe = np.where(np.isnan(whole) | top | (whole <= float(low)), 0, whole)
        found = safe.astype(np.uint64 if unsigned and width == 64 else np.int64).view(np.int64)
        last = high - (1 << 64) if high >= 1 << 63 else high
        found = np.where(top, last, np.where(whole <= float(low), low, found))
        nan = -(1 << 63) if width == 64 else 0
        found = np.where(np.isnan(whole), nan, found)
        return group.algebra.wrap(integer_of(found), width)

    return convert


def _floats(source: str, to: str, parts: set[str]) -> Any:
    """Return the conversion of the floating-point type `source` to the floating-point type `to`."""
    mode = next((m for m in ("rn", "rz", "rm", "rp") if m in parts), "rn")
    whole = next((_INTEGER_ROUND[m] for m in _INTEGER_ROUND if m in parts), None)

    def convert(group: Group, value: Any) -> Any:
        if source == "bf16":
            value = of_bfloat16(np.atleast_2d(array_of(group.algebra.unsigned(value, 16))))
        if "ftz" in parts and source == "f32":
            value = flush(value)
        if to == "bf16":
            if mode != "rn":
                bits = (np.atleast_2d(np.asarray(value, np.float32)).view(np.uint32) >> 16).astype(np.int64)
            else:
                bits = bfloat16_of(np.atleast_2d(np.asarray(value, np.float32))).astype(np.int64)
            return group.algebra.wrap(integer_of(bits), 16)
        found = np.asarray(value)
        if whole is not None:
            found = whole(found)
        dtype = FLOAT[to]
        if found.dtype != dtype:
            narrows = np.dtype(dtype).itemsize < found.dtype.itemsize
            found = round_to(found.astype(np.float64), dtype, mode) if narrows else found.astype(dtype)
        if "sat" in parts:
            found = np.where(np.isnan(found), dtype(0), np.clip(found, dtype(0), dtype(1)))
        if "ftz" in parts and to == "f32":
            found = flush(found)
        return _scalar(found)

    return convert
