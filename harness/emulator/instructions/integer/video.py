"""Video instructions: on one number, the two halves or the four bytes of a register.

Operands select their elements, ``%a.h1`` or ``%a.b3210``, a result where it is put, and a last operand gives
the rest of it or is combined with it. PTX ISA, "Video Instructions".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.instructions.integer.arithmetic import operation
from harness.emulator.instructions.integer.dot import ELEMENTWISE
from harness.emulator.numbers.algebra import COMPARE, Algebra
from harness.emulator.numbers.values import Array, Integer
from harness.emulator.ptx.program import Instruction

_SHIFTS: dict[str, Callable[[Array, Array], Array]] = {
    "vshl": lambda a, n: a << np.minimum(n, 32),  # at most 64 bits, of which 32 are kept
    "vshr": lambda a, n: a >> np.minimum(n, 32),
}
_SINGLE = {"b0": (0, 8), "b1": (8, 8), "b2": (16, 8), "b3": (24, 8), "h0": (0, 16), "h1": (16, 16)}
_DEFAULT = {1: ("", ""), 2: ("h10", "h32"), 4: ("b3210", "b7654")}
_TYPES = {"u32", "s32"}
Cut = tuple[int, int, int]  # (operand, first bit, bits) of an element
NAMES = [f"{name}{count}" for name in (*ELEMENTWISE, "vset") for count in ("", "2", "4")]


@handles(*NAMES, *_SHIFTS)
def video(decoder: Decoder, ins: Instruction) -> Run:
    """Decode a video instruction.

    With ``.sat`` each result is clipped to its type, otherwise it wraps; with ``.add``, ``.min`` or ``.max``
    it is combined with the last operand, which otherwise gives the elements that are not computed.
    """
    name, count = ins.opcode[0].rstrip("24"), int(re.sub(r"\D", "", ins.opcode[0]) or 1)
    parts = decoder.parts(ins, _TYPES | {"sat", "add", "min", "max", "clamp", "wrap", *COMPARE})
    kinds = [part for part in ins.opcode[1:] if part in _TYPES]
    if len(kinds) != (2 if name == "vset" else 3):
        raise decoder.refusal(ins)
    result, left, right = ["u32", *kinds] if name == "vset" else kinds
    order = next((part for part in ins.opcode[1:] if part in COMPARE), "")
    function = COMPARE[order] if name == "vset" else _SHIFTS.get(name) or ELEMENTWISE[name]
    second = next((part for part in ins.opcode[-2:] if part in ("add", "min", "max")), "")
    texts = [text.partition(".") for text in ins.operands]
    if len(texts) not in (3, 4):
        raise IndexError(len(texts))
    cuts = [_cuts(text[2] or _DEFAULT[count][place], count, place) for place, text in enumerate(texts[1:3])]
    kept = _kept(texts[0][2], count)
    low, high = _range(result, kept[0][1])

    def compute(a: Array, b: Array, c: Array) -> Array:
        x, y = (
            [_element((a, b)[operand] >> first, bits, kind == "s32") for operand, first, bits in cut]
            for cut, kind in zip(cuts, (left, right), strict=True)
        )
        if name in _SHIFTS and "wrap" in parts:
            y = [n & 31 for n in y]
        found = [np.asarray(function(p, q), np.int64) for p, q in zip(x, y, strict=True)]
        if "sat" in parts:
            found = [np.clip(v, low, high) for v in found]
        if second and count == 1:
            return ELEMENTWISE[f"v{second}"](_element(found[0], 32, result == "s32"), c)
        if second:
            total: Array = sum((v for v, (_, bits) in zip(found, kept, strict=True) if bits), start=c)
            return total
        return _merged(found, kept, c)

    def run(algebra: Algebra, a: Integer, b: Integer, c: Integer = 0) -> Integer:
        c = algebra.unsigned(c, 32) if result == "u32" else c
        return algebra.wrap(algebra.apply((str(ins), *texts), compute, a, b, c), 32)

    plain = replace(ins, operands=tuple(text[0] for text in texts))
    return operation(decoder, plain, run, [32] * (len(texts) - 1))


@handles("vmad")
def multiply_add(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``vmad``: a times b plus c, with ``.po`` plus one, shifted right by 7 or 15, exactly."""
    parts = decoder.parts(ins, _TYPES | {"sat", "po", "shr7", "shr15"})
    result, left, right = [part for part in ins.opcode[1:] if part in _TYPES]
    negative = [text.startswith("-") for text in ins.operands]
    texts = [text.lstrip("-").partition(".") for text in ins.operands]
    cuts = [_cuts(text[2], 1, place)[0] for place, text in enumerate(texts[1:3])]
    low, high = _range(result, 32)
    by = 7 if "shr7" in parts else 15 if "shr15" in parts else 0

    def compute(a: Array, b: Array, c: Array) -> Array:
        factors = [
            _element(value >> first, bits, kind == "s32").astype(object)  # products of up to 66 bits
            for value, (_, first, bits), kind in zip((a, b), cuts, (left, right), strict=True)
        ]
        product = factors[0] * factors[1] * (-1 if negative[1] != negative[2] else 1)
        found = product + np.asarray(c).astype(object) * (-1 if negative[3] else 1) + ("po" in parts)
        found = found >> by
        if "sat" in parts:
            found = np.clip(found, low, high)
        return np.asarray(found & 0xFFFFFFFF, np.int64)

    def run(algebra: Algebra, a: Integer, b: Integer, c: Integer) -> Integer:
        c = algebra.unsigned(c, 32) if result == "u32" else c
        return algebra.wrap(algebra.apply((str(ins), *ins.operands), compute, a, b, c), 32)

    plain = replace(ins, operands=tuple(text[0] for text in texts))
    return operation(decoder, plain, run, [32] * 3)


def _cuts(selector: str, count: int, place: int) -> list[Cut]:
    """Return which bits an operand's elements are, the lowest element first. Raises ValueError.

    Of pairs and fours the selector numbers the halves or bytes of both operands, the highest element first;
    of one number it names a part of the operand, which is number `place`.
    """
    if count == 1:
        return [(place, *(_SINGLE[selector] if selector else (0, 32)))]
    bits = 32 // count
    digits = selector[1:]
    if selector[:1] != "hb"[count == 4] or len(digits) != count or not digits.isdecimal():
        raise ValueError(selector)
    numbers = [int(digit) for digit in reversed(digits)]
    if max(numbers) >= 2 * count:
        raise ValueError(selector)
    return [(number // count, number % count * bits, bits) for number in numbers]


def _kept(selector: str, count: int) -> list[tuple[int, int]]:
    """Return (first bit, bits) of each element of the result; 0 bits for those that are not written."""
    if count == 1:
        return [_SINGLE[selector] if selector else (0, 32)]
    bits = 32 // count
    chosen = selector[1:] or "3210"
    return [(place * bits, bits if str(place) in chosen else 0) for place in range(count)]


def _range(kind: str, bits: int) -> tuple[int, int]:
    """Return the least and the greatest number of u32 or s32 in `bits` bits."""
    return (0, (1 << bits) - 1) if kind == "u32" else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _element(value: Array, bits: int, signed: bool) -> Array:
    """Return the low `bits` bits of values as numbers."""
    half, low = 1 << (bits - 1), value & ((1 << bits) - 1)
    return (low ^ half) - half if signed else low


def _merged(found: list[Array], kept: list[tuple[int, int]], rest: Array) -> Array:
    """Return the elements in their places, and the bits of `rest` where none is."""
    total = rest
    for value, (first, bits) in zip(found, kept, strict=True):
        mask = ((1 << bits) - 1) << first
        total = (total & ~mask) | (value << first & mask)
    return total
