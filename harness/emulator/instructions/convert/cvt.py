"""``cvt`` of one number: between integers of any width and f16, bf16, f32 and f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import FLOAT, Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.instructions.convert.moves import TYPES
from harness.emulator.instructions.convert.packed import NARROW, joined, packed
from harness.emulator.numbers.floats import flush, odd_sum, round_to, two_sum
from harness.emulator.numbers.formats import decode, encode
from harness.emulator.numbers.rounding import toward
from harness.emulator.numbers.values import Array, Integer, array_of, integer_of
from harness.emulator.ptx.program import Instruction

Convert = Callable[[Group, Any], Any]
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")
_WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_MODIFIERS = {*ROUNDINGS, *_WHOLE, "ftz", "sat", "satfinite", "relu"}


@handles("cvt")
def cvt(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``cvt``."""
    if "pack" in ins.opcode:
        return joined(decoder, ins)
    if NARROW & set(ins.opcode):
        return packed(decoder, ins)
    parts = decoder.parts(ins, TYPES | _MODIFIERS)
    to, source = ins.opcode[-2:]
    into = decoder.register(ins, ins.operands[0])
    if _is_integer(source) and _is_integer(to):
        convert = _integers(source, to, "sat" in parts)
    elif _is_integer(source):
        convert = _to_float(source, to, parts)
    elif _is_integer(to):
        convert = _to_integer(source, to, parts)
    else:
        convert = _floats(source, to, parts)
    if _is_integer(source) or source == "bf16":
        read = decoder.integer(ins, ins.operands[1], int(source.lstrip("usbf")))
    else:
        read = decoder.floating(ins, ins.operands[1], FLOAT[source])
    width = int(to[1:]) if _is_integer(to) else 0
    wider = width and ins.operands[0] in decoder.numbers and decoder.bits(ins.operands[0]) > width

    def run(group: Group, where: Any) -> None:
        value = convert(group, read(group))
        if wider and to[0] == "u":  # zero-extend a narrow result to its register
            value = group.algebra.unsigned(value, width)
        group.write(into, value, where)

    return run


def _is_integer(kind: str) -> bool:
    """Return whether a type is one of integers, u8 to b64."""
    return kind[0] in "usb" and kind != "bf16"


def _integers(source: str, to: str, saturates: bool) -> Convert:
    """Return the conversion of integers: it wraps or, if it `saturates`, gives the nearest value."""
    bits, width, unsigned = int(source[1:]), int(to[1:]), source[0] == "u"
    low, high = _range(to)

    last = min(high, 2**63 - 1)

    def clip(value: Array) -> Array:
        found = np.clip(value, max(low, -(2**63)), last)
        if not (unsigned and bits == 64):
            return found
        # int64 arrays hold the bits of 64-bit unsigned numbers: the negative ones are the largest.
        return np.where(value < 0, value if to == "u64" else last, found)

    def convert(group: Group, value: Integer) -> Integer:
        algebra = group.algebra
        value = algebra.wrap(value, bits)  # a narrow source in a wide register
        if unsigned:
            value = algebra.unsigned(value, bits)
        if saturates:
            value = algebra.apply(("clip", source, to), clip, value)
        return algebra.wrap(value, width)

    return convert


def _range(kind: str) -> tuple[int, int]:
    """Return the least and the greatest number of an integer type."""
    bits = int(kind[1:])
    return (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _mode(parts: set[str]) -> str:
    """Return the rounding mode among an instruction's modifiers, rn by default."""
    return next((mode for mode in ROUNDINGS if mode in parts), "rn")


def _to_float(source: str, to: str, parts: set[str]) -> Convert:
    """Return the conversion of integers of type `source` to the floating-point type `to`."""
    bits, unsigned, mode = int(source[1:]), source[0] == "u", _mode(parts)

    def convert(group: Group, value: Integer) -> Any:
        value = group.algebra.wrap(value, bits)
        if unsigned:
            value = group.algebra.unsigned(value, bits)
        whole: Any = array_of(value)
        if unsigned and bits == 64:
            whole = np.asarray(whole).view(np.uint64)
        if to in ("f32", "f64") and mode == "rn":
            return _scalar(np.asarray(whole).astype(FLOAT[to]))
        if bits < 64:
            return finished(np.asarray(whole, np.float64), to, mode, parts)
        high, low = _split(np.asarray(whole))
        if to == "f64":
            return _scalar(toward(*two_sum(high, low), mode))
        return finished(odd_sum(high, low), to, mode, parts)

    return convert


def _split(whole: Array) -> tuple[Array, Array]:
    """Return 64-bit integers as the sum of two float64 without rounding."""
    low = (whole & whole.dtype.type(0xFFFFF)).astype(np.float64)
    return (whole - low.astype(whole.dtype)).astype(np.float64), low


def _to_integer(source: str, to: str, parts: set[str]) -> Convert:
    """Return the conversion of the floating-point type `source` to an integer.

    Values out of range give the nearest bound. NaN gives 0, but the top bit alone if either type has 64 bits
    (PTX ISA, "cvt").
    """
    width, unsigned = int(to[1:]), to[0] == "u"
    rounding = next((_WHOLE[m] for m in _WHOLE if m in parts), np.trunc)
    low, high = _range(to)
    nan = -(1 << (width - 1)) if source == "f64" or width == 64 else 0

    def convert(group: Group, value: Any) -> Integer:
        wide = widened(group, value, source, "ftz" in parts)
        whole = np.atleast_2d(rounding(wide))
        top, bottom = whole >= float(high), whole <= float(low)
        safe = np.where(np.isnan(whole) | top | bottom, 0, whole)
        found = safe.astype(np.uint64 if unsigned and width == 64 else np.int64).view(np.int64)
        last = high - (1 << 64) if high >= 1 << 63 else high
        found = np.where(top, last, np.where(bottom, low, found))
        found = np.where(np.isnan(whole), nan, found)
        return group.algebra.wrap(integer_of(found), width)

    return convert


def widened(group: Group, value: Any, source: str, flushes: bool) -> Array:
    """Return a register's value of a floating-point type as float64; a bf16 comes as an integer."""
    if source == "bf16":
        return decode(np.atleast_2d(array_of(group.algebra.unsigned(value, 16))), "bf16")
    return np.asarray(flush(value) if flushes and source == "f32" else value, np.float64)


def _floats(source: str, to: str, parts: set[str]) -> Convert:
    """Return the conversion of the floating-point type `source` to the floating-point type `to`."""
    mode = _mode(parts)
    whole = next((_WHOLE[m] for m in _WHOLE if m in parts), None)

    def convert(group: Group, value: Any) -> Any:
        wide = widened(group, value, source, "ftz" in parts)
        return finished(whole(wide) if whole is not None else wide, to, mode, parts)

    return convert


def finished(wide: Array, to: str, mode: str, parts: set[str]) -> Any:
    """Return float64 values as a register of type `to` holds them: rounded, then ``.relu`` and ``.sat``."""
    if "relu" in parts:
        wide = np.where(wide < 0, 0.0, wide)
    if "sat" in parts:
        wide = np.where(np.isnan(wide), 0.0, np.clip(wide, 0.0, 1.0))
    if to == "bf16" or (to == "f16" and (mode != "rn" or "satfinite" in parts)):
        bits = encode(np.atleast_2d(wide), to, mode, saturate="satfinite" in parts)
        if to == "bf16":
            return integer_of(bits.astype(np.uint16).view(np.int16).astype(np.int64))
        return bits.astype(np.uint16).view(np.float16)
    found = wide if to == "f64" else round_to(wide, FLOAT[to], mode)
    if "ftz" in parts and to == "f32":
        found = flush(found)
    return _scalar(np.asarray(found))


def _scalar(array: Array) -> Any:
    """Return a zero-dimensional array as a scalar, any other as it is."""
    return array if array.ndim else array[()]
