"""Shifts, bitwise logic and bit fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import Decoder, Maker, Run, handles
from harness.emulator.group import Group
from harness.emulator.instructions.integer.arithmetic import TYPES, is_unsigned, operation, width
from harness.emulator.numbers.algebra import Algebra
from harness.emulator.numbers.values import Array, Integer, Lanes, bounds
from harness.emulator.ptx.program import Instruction


@handles("shl", family="integer")
def shl(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``shl``; shifting by the width or more gives 0."""
    decoder.parts(ins, TYPES)
    bits = width(ins)

    def compute(algebra: Algebra, a: Integer, b: Integer) -> Integer:
        b = algebra.unsigned(b, 32)
        if isinstance(b, int):
            return algebra.linear(a, 1 << b, bits=bits) if b < bits else 0
        shifted = algebra.apply(
            ("shl", bits), lambda x, n: np.where(n < bits, x << np.minimum(n, 63), 0), a, b
        )
        return algebra.wrap(shifted, bits)

    return operation(decoder, ins, compute, [bits, 32])


@handles("shr", family="integer")
def shr(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``shr``; shifting by the width or more gives 0, or the sign for a signed type."""
    decoder.parts(ins, TYPES)
    bits, unsigned = width(ins), is_unsigned(ins)

    def right(a: Array, n: Array) -> Array:
        n = np.asarray(n)
        if unsigned and bits == 64:
            moved = np.asarray(a).view(np.uint64) >> np.minimum(n, 63).astype(np.uint64)
            return np.where(n > 63, np.uint64(0), moved).view(np.int64)
        return a >> np.minimum(n, 63)

    def compute(algebra: Algebra, a: Integer, b: Integer) -> Integer:
        b = algebra.unsigned(b, 32)
        if unsigned:
            a = algebra.unsigned(a, bits)
        low, high = bounds(a)
        if isinstance(b, int) and (low >= 0 or not unsigned) and low >> min(b, 63) == high >> min(b, 63):
            return low >> min(b, 63)
        return algebra.wrap(algebra.apply(("shr", bits, unsigned), right, a, b), bits)

    return operation(decoder, ins, compute, [bits, 32])


@handles("shf", family="integer")
def funnel(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``shf``, which shifts the 64-bit pair of its first two operands (low, high)."""
    modes = decoder.parts(ins, {"l", "r", "wrap", "clamp", "b32"})

    def compute(algebra: Algebra, low: Integer, high: Integer, by: Integer) -> Integer:
        def shift(a: Array, b: Array, n: Array) -> Array:
            n = (n & 31) if "wrap" in modes else np.minimum(n & 0xFFFFFFFF, 32)
            pair = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | (a & 0xFFFFFFFF).astype(np.uint64)
            steps = np.asarray(n).astype(np.uint64)
            moved = (pair << steps) >> np.uint64(32) if "l" in modes else pair >> steps
            return (moved & np.uint64(0xFFFFFFFF)).astype(np.int64)

        return algebra.wrap(algebra.apply(("shf", *sorted(modes)), shift, low, high, by), 32)

    return operation(decoder, ins, compute, [32, 32, 32])


_BITWISE: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@handles("and", "or", "xor", family="integer")
def bitwise(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``and``, ``or`` and ``xor`` of integers."""
    decoder.parts(ins, TYPES)
    name = ins.opcode[0]

    def compute(algebra: Algebra, a: Integer, b: Integer) -> Integer:
        return algebra.apply(name, _BITWISE[name], a, b)

    return operation(decoder, ins, compute, [width(ins)] * 2)


@handles("not", "cnot", family="integer")
def complement(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``not``, and ``cnot``, which gives 1 for 0 and 0 for anything else."""
    decoder.parts(ins, TYPES)

    def compute(algebra: Algebra, a: Integer) -> Integer:
        if ins.opcode[0] == "cnot":
            return algebra.apply("cnot", lambda v: np.where(v == 0, 1, 0), a)
        return algebra.linear(a, -1, -1, 1, bits=64)

    return operation(decoder, ins, compute, [width(ins)])


@handles("lop3", family="integer")
def lop3(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``lop3``, any bitwise function of three operands, given by its table of truth of 8 bits."""
    joins = {"and", "or"} & decoder.parts(ins, {"b32", "and", "or"})
    table = int(ins.operands[4], 0)

    def logic(a: Array, b: Array, c: Array) -> Array:
        total = np.zeros(np.broadcast(a, b, c).shape, np.int64)
        for case in range(8):
            if table >> case & 1:
                total |= (a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c)
        return total

    def compute(algebra: Algebra, a: Integer, b: Integer, c: Integer, _: Integer) -> Integer:
        return algebra.apply(("lop3", table), logic, a, b, c)

    if not joins:
        return operation(decoder, ins, compute, [32] * 4)
    into, says = (name.strip() for name in ins.operands[0].split("|"))
    targets = decoder.register(ins, into), decoder.predicate_number(ins, says)
    reads = [decoder.integer(ins, text, 32) for text in ins.operands[1:4]]
    other = decoder.predicate(ins, ins.operands[5])

    def joined(group: Group, where: Lanes) -> None:
        algebra = group.algebra
        a, b, c = (read(group) for read in reads)
        found, given = algebra.apply(("lop3", table), logic, a, b, c), other(group)
        some = algebra.compare("ne", found, 0, unsigned=False, bits=32)
        if targets[0] >= 0:
            group.write(targets[0], found, where)
        group.write(targets[1], (algebra.both if "and" in joins else algebra.either)(some, given), where)

    return joined


def _on_unsigned(name: str, function: Callable[..., Array]) -> Maker:
    """Register an instruction of one operand: its result is ``function(bits, operand)``.

    `bits` is the width of the instruction's type; the operand comes as an unsigned number.
    """

    def maker(decoder: Decoder, ins: Instruction) -> Run:
        decoder.parts(ins, TYPES)
        bits = width(ins)

        def compute(algebra: Algebra, a: Integer) -> Integer:
            whole = algebra.unsigned(a, bits)
            found = algebra.apply((str(ins), bits), lambda v: np.asarray(function(bits, v), np.int64), whole)
            return algebra.wrap(found, 32 if name in ("popc", "clz") else bits)

        return operation(decoder, ins, compute, [bits])

    return handles(name, family="integer")(maker)


def _bit_length(value: Array) -> Array:
    """Return how many bits each value has up to its highest 1; 0 for 0."""
    high = (value.view(np.uint64) >> np.uint64(32)).astype(np.float64)
    low = (value & 0xFFFFFFFF).astype(np.float64)
    return np.where(high > 0, 32 + np.frexp(high)[1], np.frexp(low)[1])


def _popc(bits: int, value: Array) -> Array:
    """Return the number of 1 bits in each value."""
    octets = np.ascontiguousarray(value).view(np.uint8).reshape(*np.shape(value), 8)
    ones: Array = np.unpackbits(octets, axis=-1).sum(-1)
    return ones


def _brev(bits: int, value: Array) -> Array:
    """Return each value with its `bits` bits in reverse order."""
    result = np.zeros_like(value)
    for bit in range(bits):
        result |= ((value >> bit) & 1) << (bits - 1 - bit)
    return result


@handles("bfind", family="integer")
def bfind(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``bfind``: the place of the highest bit that differs from the sign.

    Unsigned numbers have sign 0. With ``.shiftamt`` it is the left shift that moves that bit to the
    top. Without such a bit it is all ones.
    """
    decoder.parts(ins, TYPES | {"shiftamt"})
    bits, amount = width(ins), "shiftamt" in ins.opcode

    def find(value: Array) -> Array:
        value = np.where(value < 0, ~value, value) if not is_unsigned(ins) else value
        highest = _bit_length(np.asarray(value)) - 1
        return np.where(highest < 0, -1, bits - 1 - highest if amount else highest)

    def compute(algebra: Algebra, a: Integer) -> Integer:
        a = algebra.unsigned(a, bits) if is_unsigned(ins) else a
        return algebra.apply((str(ins), bits), find, a)

    return operation(decoder, ins, compute, [bits])


_on_unsigned("popc", _popc)


_on_unsigned("clz", lambda bits, v: bits - _bit_length(np.asarray(v)))


_on_unsigned("brev", _brev)


@handles("bfe", family="integer")
def extract(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``bfe d, a, start, length``: `length` bits of a from bit `start` on, sign-extended if signed."""
    decoder.parts(ins, TYPES)
    bits, unsigned = width(ins), is_unsigned(ins)

    def cut(value: Array, start: Array, length: Array) -> Array:
        start, length = start & 255, length & 255
        whole = np.asarray(value).view(np.uint64) if unsigned else np.asarray(value)
        moved = (whole >> np.minimum(start, bits - 1).astype(whole.dtype)).view(np.int64)
        moved = np.where(start >= bits, 0 if unsigned else moved, moved)
        kept = np.minimum(length, np.maximum(bits - start, 0))
        mask = np.where(length >= 63, -1, (np.int64(1) << np.minimum(length, 62)) - 1)
        found = moved & mask
        sign = (moved >> np.maximum(np.minimum(kept, length) - 1, 0)) & 1
        extended = np.where((sign == 1) & (length > 0), found | ~mask, found)
        return np.where(length == 0, 0, found if unsigned else extended)

    def compute(algebra: Algebra, a: Integer, b: Integer, c: Integer) -> Integer:
        if unsigned:
            a = algebra.unsigned(a, bits)
        return algebra.wrap(algebra.apply(("bfe", ins.opcode[-1]), cut, a, b, c), bits)

    return operation(decoder, ins, compute, [bits, 32, 32])


@handles("bfi", family="integer")
def insert(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``bfi d, a, b, start, length``: b with the low `length` bits of a put in at bit `start`."""
    decoder.parts(ins, TYPES)
    bits = width(ins)

    def paste(a: Array, b: Array, start: Array, length: Array) -> Array:
        start, length = start & 255, length & 255
        ones = np.where(length >= 63, -1, (np.int64(1) << np.minimum(length, 62)) - 1)
        mask = np.where(start >= bits, 0, ones << np.minimum(start, 63))
        pasted: Array = (b & ~mask) | ((a << np.minimum(start, 63)) & mask)
        return pasted

    def compute(algebra: Algebra, *values: Integer) -> Integer:
        return algebra.wrap(algebra.apply(("bfi", bits), paste, *values), bits)

    return operation(decoder, ins, compute, [bits, bits, 32, 32])


# The byte that place i of the result takes of the 8 of both operands, in the modes other than the default.
_BYTE: dict[str, Callable[[int, Array], Array]] = {
    "f4e": lambda i, first: (first + i) & 7,
    "b4e": lambda i, first: (first - i) & 7,
    "rc8": lambda i, first: first,
    "ecl": lambda i, first: np.maximum(first, i),
    "ecr": lambda i, first: np.minimum(first, i),
    "rc16": lambda i, first: (first & 1) * 2 + (i & 1),
}


@handles("prmt")
def permute(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``prmt``: each byte is one of the 8 of the operands or, in the default mode, its sign."""
    parts = decoder.parts(ins, {"b32", *_BYTE})
    mode = next((m for m in _BYTE if m in parts), "")

    def pick(a: Array, b: Array, selector: Array) -> Array:
        pair = ((b & 0xFFFFFFFF) << 32) | (a & 0xFFFFFFFF)
        total = np.zeros(np.broadcast(a, b, selector).shape, np.int64)
        for place in range(4):
            code = _BYTE[mode](place, selector & 3) if mode else (selector >> (4 * place)) & 15
            byte = (pair >> ((code & 7) * 8)) & 255
            total |= np.where(code & 8, np.where(byte & 128, 255, 0), byte) << (8 * place)
        return total

    return operation(
        decoder, ins, lambda algebra, *v: algebra.wrap(algebra.apply(("prmt", mode), pick, *v), 32), [32] * 3
    )


@handles("bmsk", family="integer")
def mask(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``bmsk``: b ones from bit a on; both are taken modulo 32 with ``.wrap``."""
    modes = decoder.parts(ins, {"clamp", "wrap", "b32"})

    def ones(start: Array, length: Array) -> Array:
        start, length = start & 0xFFFFFFFF, length & 0xFFFFFFFF
        if "wrap" in modes:
            start, length = start & 31, length & 31
        found: Array = ((np.int64(1) << np.minimum(length, 32)) - 1) << np.minimum(start, 32) & 0xFFFFFFFF
        return found

    return operation(
        decoder,
        ins,
        lambda algebra, *v: algebra.wrap(algebra.apply(("bmsk", *sorted(modes)), ones, *v), 32),
        [32, 32],
    )


@handles("szext", family="integer")
def size_extend(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``szext``: the low b bits of a, extended by zeros or, of a signed type, by their sign."""
    modes = decoder.parts(ins, {"clamp", "wrap", "u32", "s32"})

    def extend(value: Array, length: Array) -> Array:
        length = (length & 31) if "wrap" in modes else np.minimum(length & 0xFFFFFFFF, 32)
        kept = value & ((np.int64(1) << length) - 1)
        sign = np.where((length > 0) & ("s32" in modes), kept >> np.maximum(length - 1, 0) & 1, 0)
        found: Array = kept - (sign << length)
        return found

    return operation(
        decoder,
        ins,
        lambda algebra, *v: algebra.wrap(algebra.apply(("szext", *sorted(modes)), extend, *v), 32),
        [32, 32],
    )


@handles("fns", family="integer")
def find_nth_set(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``fns``: the place of the n-th 1 of a mask, up or down from a base bit; all ones if none."""
    decoder.parts(ins, {"b32"})

    def find(bits: Array, base: Array, offset: Array) -> Array:
        shape = np.broadcast(bits, base, offset).shape
        bits, base, offset = (np.broadcast_to(v, shape) for v in (bits, base, offset))
        found = np.full(shape, -1, np.int64)
        left = np.where(offset == 0, 1, np.abs(offset))
        for step in range(32):
            place = base + np.where(offset < 0, -step, step)
            inside = (place >= 0) & (place < 32) & ((offset != 0) | (step == 0))
            one = inside & ((bits >> np.clip(place, 0, 31)) & 1 == 1)
            left = left - one
            found = np.where(one & (left == 0), place, found)
        return found

    return operation(decoder, ins, lambda algebra, *v: algebra.apply("fns", find, *v), [32, 32, 32])
