"""``cvt`` to and from the narrow formats: pairs of f16 and bf16, tf32, and those of 8, 6 and 4 bits.

``cvt.pack`` of integers is here, too.

Stochastic rounding (``.rs``) adds random bits to the part of the mantissa that is cut off, and rounds away
from zero on a carry. How four elements of 8 bits and fewer share 32 random bits is drawn in the PTX ISA, but
not told: here both elements of a pair take the same 16 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import Decoder, Run
from harness.emulator.group import Group, bits_of, spread
from harness.emulator.numbers.formats import FORMATS, decode, encode
from harness.emulator.numbers.values import Array, integer_of
from harness.emulator.ptx.program import Instruction

_PAIRS = {f"{name}x2" for name in (*FORMATS, "ue8m0") if name != "tf32"}
_FOURS = {f"{name}x4" for name in FORMATS}
NARROW = _PAIRS | {"tf32"} | _FOURS
_MODIFIERS = {"rn", "rz", "rp", "rna", "relu", "satfinite", "f32"}
Elements = Callable[[Group], list[Array]]  # float64 (T, C), the lowest element first


def packed(decoder: Decoder, ins: Instruction) -> Run:
    """Decode a ``cvt`` with a narrow type."""
    if "rs" in ins.opcode:
        return _stochastic(decoder, ins)
    parts = decoder.parts(ins, _PAIRS | _MODIFIERS | {"tf32"})
    to, source = ins.opcode[-2:]
    name = to.removesuffix("x2")
    mode = next((m for m in ("rn", "rz", "rp", "rna") if m in parts), "rn")
    if source == "f32":
        # Formats without infinity only have `.satfinite`; the first operand is the high element.
        read = _singles(decoder, ins)
    elif source in _PAIRS:
        read = _pair(decoder, ins, source.removesuffix("x2"))
    else:
        raise decoder.refusal(ins)
    saturate = "satfinite" in parts
    width = 32 if name == "tf32" else FORMATS[name].bits if name in FORMATS else 8
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        total: Any = np.int64(0)
        for place, values in enumerate(read(group)):
            kept = np.where(values < 0, 0.0, values) if "relu" in parts else values
            total = total | encode(kept, name, mode, saturate=saturate) << (width * place)
        bits = np.ascontiguousarray(np.broadcast_to(total, group.shape))
        if 32 in (width, 2 * width):
            group.write(into, bits.astype(np.uint32).view(np.float32), where)
        else:
            group.write(into, integer_of(bits.astype(np.int16).astype(np.int64)), where)

    return run


def _stochastic(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``cvt.rs``: two numbers, or four in braces, and a register of random bits."""
    parts = decoder.parts(ins, _PAIRS | _FOURS | {"rs", "relu", "satfinite", "f32"})
    name, count = ins.opcode[-2][:-2], int(ins.opcode[-2][-1])
    given = [text.strip() for operand in ins.operands[1:-1] for text in operand.strip("{}").split(",")]
    if ins.opcode[-1] != "f32" or len(given) != count or name not in FORMATS:
        raise decoder.refusal(ins)
    read = [decoder.floating(ins, text, np.float32) for text in reversed(given)]
    noise = decoder.integer(ins, ins.operands[-1], 32)
    into = decoder.register(ins, ins.operands[0])
    width = 4 if FORMATS[name].bits == 4 else 16 if count == 2 else 8  # of an element in the result

    def run(group: Group, where: Any) -> None:
        random = spread(noise(group), group.shape) & 0xFFFFFFFF
        total: Any = np.int64(0)
        for place, one in enumerate(read):
            values = np.broadcast_to(np.asarray(one(group), np.float64), group.shape)
            kept = np.where(values < 0, 0.0, values) if "relu" in parts else values
            bits, amount = _noise(random, name, place * 2 // count)
            rounded = encode(kept, name, "rs", saturate="satfinite" in parts, noise=bits / 2.0**amount)
            total = total | rounded << (width * place)
        if width * count == 32:
            group.write(into, np.ascontiguousarray(total.astype(np.uint32)).view(np.float32), where)
        else:
            group.write(into, integer_of(total.astype(np.int16).astype(np.int64)), where)

    return run


def _noise(random: Array, name: str, half: int) -> tuple[Array, int]:
    """Return the random bits of the elements in the lower (0) or upper (1) `half`, and how many they are."""
    if name == "e2m1":  # the same byte of both halves
        return (random >> 8 * half & 0xFF) | (random >> (16 + 8 * half) & 0xFF) << 8, 16
    amount = 13 if name == "f16" else 16
    return random >> 16 * half & ((1 << amount) - 1), amount


def _singles(decoder: Decoder, ins: Instruction) -> Elements:
    """Return a reader of the f32 operands, the last one first."""
    count = 2 if ins.opcode[-2].endswith("x2") else 1
    if len(ins.operands) != count + 1:
        raise decoder.refusal(ins)
    read = [decoder.floating(ins, text, np.float32) for text in reversed(ins.operands[1:])]
    return lambda group: [np.broadcast_to(np.asarray(r(group), np.float64), group.shape) for r in read]


def _pair(decoder: Decoder, ins: Instruction, name: str) -> Elements:
    """Return a reader of the two elements that a register of a packed format holds."""
    width = FORMATS[name].bits if name in FORMATS else 8
    mask = (1 << width) - 1
    if width == 16:
        value = decoder.value(ins, ins.operands[1])

        def whole(group: Group) -> Array:
            return bits_of(group, value(group), 4).astype(np.int64)
    else:
        number = decoder.integer(ins, ins.operands[1], 16)

        def whole(group: Group) -> Array:
            return spread(number(group), group.shape)

    return lambda group: [decode(whole(group) >> (width * place) & mask, name) for place in (0, 1)]


def joined(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``cvt.pack.sat``: two integers, clipped, side by side, the second at the lowest bits.

    With a third operand, whose bits go before them.
    """
    match = re.fullmatch(r"pack\.sat\.([us])(?:(16)\.s32|([248])\.s32\.b32)", ".".join(ins.opcode[1:]))
    if match is None or len(ins.operands) != (3 if match[2] else 4):
        raise decoder.refusal(ins)
    to, bits, wide = ins.opcode[3], int(match[2] or match[3]), not match[2]
    low, high = (0, (1 << bits) - 1) if to[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    read = [decoder.integer(ins, text, 32) for text in ins.operands[1 : 4 if wide else 3]]
    into = decoder.register(ins, ins.operands[0])

    def clip(upper: Array, lower: Array, rest: Array) -> Array:
        parts = [np.clip(value, low, high) & (1 << bits) - 1 for value in (upper, lower)]
        whole = (rest << 2 * bits | parts[0] << bits | parts[1]) & 0xFFFFFFFF
        return np.asarray((whole ^ 1 << 31) - (1 << 31))

    def run(group: Group, where: Any) -> None:
        values = [*(reader(group) for reader in read), 0][:3]
        group.write(into, group.algebra.apply(("pack", to), clip, *values), where)

    return run
