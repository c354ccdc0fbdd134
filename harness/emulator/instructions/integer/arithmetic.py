"""Integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.numbers.algebra import Algebra
from harness.emulator.numbers.values import Array, Integer, Lanes, signed
from harness.emulator.ptx.program import Instruction

Compute = Callable[..., Integer]  # called with (algebra, *values)


def kind_of(ins: Instruction) -> str:
    """Return an instruction's last type; only ``.relu`` may stand after it."""
    return ins.opcode[-2 if ins.opcode[-1] == "relu" else -1]


def width(ins: Instruction) -> int:
    """Return the width in bits of an instruction's type."""
    return int(kind_of(ins)[1:])


def is_unsigned(ins: Instruction) -> bool:
    """Return whether an instruction's type is not signed: u or b."""
    return kind_of(ins)[0] != "s"


def operation(decoder: Decoder, ins: Instruction, compute: Compute, widths: list[int]) -> Run:
    """Return the function that applies `compute` to the source operands, which have `widths` bits each.

    Raises IndexError for another number of operands; `Decoder.steps` makes it an EmulatorError.
    """
    if len(ins.operands) != len(widths) + 1:
        raise IndexError(len(widths))
    read = [decoder.integer(ins, text, bits) for text, bits in zip(ins.operands[1:], widths, strict=True)]
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Lanes) -> None:
        group.write(into, compute(group.algebra, *[r(group) for r in read]), where)

    return run


TYPES = {f"{k}{b}" for k in "usb" for b in (8, 16, 32, 64)}


@handles("add", "sub", family="integer")
def add(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``add`` and ``sub``, wrapping, or with ``.sat`` clipped to the signed range."""
    sat = "sat" in decoder.parts(ins, TYPES | {"sat"})
    bits, sign = width(ins), 1 if ins.opcode[0] == "add" else -1
    if sat:
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

        def saturate(algebra: Algebra, a: Integer, b: Integer) -> Integer:
            exact = algebra.exact(a, 1, b, sign)
            return algebra.apply(("clip", bits), lambda v: np.clip(v, low, high), exact)

        return operation(decoder, ins, saturate, [bits, bits])
    return operation(
        decoder, ins, lambda algebra, a, b: algebra.linear(a, 1, b, sign, bits=bits), [bits, bits]
    )


@handles("neg", family="integer")
def neg(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``neg``."""
    decoder.parts(ins, TYPES)
    bits = width(ins)
    return operation(decoder, ins, lambda algebra, a: algebra.linear(a, -1, bits=bits), [bits])


def product(algebra: Algebra, a: Integer, b: Integer, bits: int) -> Integer:
    """Return the low `bits` bits of a * b, signed."""
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        return algebra.linear(a, b, bits=bits)
    return algebra.wrap(algebra.apply("mul", np.multiply, a, b), bits)


def multiplication(ins: Instruction) -> tuple[Callable[[Algebra, Integer, Integer], Integer], int]:
    """Return a function that multiplies as a ``mul`` or ``mad`` does, and the width of its result in bits."""
    bits = width(ins)
    unsigned = is_unsigned(ins)
    if "wide" in ins.opcode:

        def wide(algebra: Algebra, a: Integer, b: Integer) -> Integer:
            if unsigned:
                a, b = algebra.unsigned(a, bits), algebra.unsigned(b, bits)
            return product(algebra, a, b, 2 * bits)

        return wide, 2 * bits
    if "hi" in ins.opcode:

        def high(algebra: Algebra, a: Integer, b: Integer) -> Integer:
            if unsigned:
                a, b = algebra.unsigned(a, bits), algebra.unsigned(b, bits)
            return algebra.wrap(algebra.apply(("hi", bits, unsigned), _high(bits, unsigned), a, b), bits)

        return high, bits
    return lambda algebra, a, b: product(algebra, a, b, bits), bits


def _high(bits: int, unsigned: bool) -> Callable[[Array, Array], Array]:
    """Return a function of two int64 arrays: the high `bits` bits of the products."""
    if bits < 64:
        # The product of two unsigned 32-bit numbers may fill all 64 bits: shift it as unsigned.
        kind = np.uint64 if unsigned else np.int64
        return lambda a, b: ((a * b).view(kind) >> kind(bits)).astype(np.int64)

    def exactly(a: Array, b: Array) -> Array:
        mask = (1 << 64) - 1
        x, y = np.broadcast_arrays(np.atleast_2d(a), np.atleast_2d(b))
        pairs = zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)
        found = [signed(((p & mask) * (q & mask) if unsigned else p * q) >> 64, 64) for p, q in pairs]
        return np.array(found, np.int64).reshape(x.shape)

    return exactly


_MUL = TYPES | {"lo", "hi", "wide"}


@handles("mul", family="integer")
def mul(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mul`` with ``.lo``, ``.hi`` or ``.wide``."""
    decoder.parts(ins, _MUL)
    compute, _ = multiplication(ins)
    return operation(decoder, ins, compute, [width(ins)] * 2)


@handles("mad", family="integer")
def mad(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mad`` with ``.lo``, ``.hi`` or ``.wide``; the sum wraps."""
    decoder.parts(ins, _MUL)
    multiply, result = multiplication(ins)
    bits = width(ins)

    def compute(algebra: Algebra, a: Integer, b: Integer, c: Integer) -> Integer:
        return algebra.linear(multiply(algebra, a, b), 1, c, 1, bits=result)

    return operation(decoder, ins, compute, [bits, bits, result])


@handles("mul24", "mad24", family="integer")
def mul24(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mul24`` and ``mad24``: the product of the low 24 bits of the operands.

    ``.lo`` takes its lowest 32 bits, ``.hi`` the highest of 48.
    """
    high = "hi" in decoder.parts(ins, TYPES | {"lo", "hi"})
    mask = (1 << 24) - 1

    def low24(algebra: Algebra, a: Integer) -> Integer:
        cut = algebra.apply("24", lambda v: np.atleast_1d(v & mask), a)
        return cut if is_unsigned(ins) else algebra.wrap(cut, 24)

    def compute(algebra: Algebra, a: Integer, b: Integer, c: Integer = 0) -> Integer:
        found = product(algebra, low24(algebra, a), low24(algebra, b), 64 if high else 32)
        if high:
            found = algebra.wrap(algebra.apply("24hi", lambda v: np.atleast_1d(v >> 16), found), 32)
        return algebra.linear(found, 1, c, 1, bits=32)

    return operation(decoder, ins, compute, [32] * (2 if ins.opcode[0] == "mul24" else 3))


@handles("div", "rem", family="integer")
def div(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``div`` and ``rem``, which round towards zero.

    As on the hardware, division by zero gives all ones, and its remainder is the dividend.
    """
    decoder.parts(ins, TYPES)
    bits, unsigned, remainder = width(ins), is_unsigned(ins), ins.opcode[0] == "rem"

    def divide(a: Array, b: Array) -> Array:
        if unsigned and bits == 64:
            x, y = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
            safe = np.where(y == 0, np.uint64(1), y)
            quotient = np.where(y == 0, ~np.uint64(0), x // safe)
            return (np.where(y == 0, x, x % safe) if remainder else quotient).view(np.int64)
        safe = np.where(b == 0, 1, b)
        quotient = np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe)
        rest = np.where(b == 0, a, a - quotient * safe)
        return rest if remainder else np.where(b == 0, -1, quotient)

    def compute(algebra: Algebra, a: Integer, b: Integer) -> Integer:
        if unsigned:
            a, b = algebra.unsigned(a, bits), algebra.unsigned(b, bits)
        return algebra.wrap(algebra.apply((str(ins), bits), divide, a, b), bits)

    return operation(decoder, ins, compute, [bits, bits])


@handles("abs", family="integer")
def absolute(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``abs``; the least number stays as it is."""
    decoder.parts(ins, TYPES)
    bits = width(ins)
    return operation(
        decoder, ins, lambda algebra, a: algebra.wrap(algebra.apply("abs", np.abs, a), bits), [bits]
    )


@handles("min", "max", family="integer")
def extreme(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``min`` and ``max``; with ``.relu`` the result is at least 0."""
    relu = "relu" in decoder.parts(ins, TYPES | {"relu"})
    bits, unsigned, largest = width(ins), is_unsigned(ins), ins.opcode[0] == "max"

    def compute(algebra: Algebra, a: Integer, b: Integer) -> Integer:
        first = algebra.compare("ge" if largest else "le", a, b, unsigned=unsigned, bits=bits)
        found = algebra.select(first, a, b)
        if not relu:
            return found
        return algebra.select(algebra.compare("ge", found, 0, unsigned=False, bits=bits), found, 0)

    return operation(decoder, ins, compute, [bits, bits])


@handles("sad", family="integer")
def sad(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``sad``: c plus the difference of a and b without its sign."""
    decoder.parts(ins, TYPES)
    bits, unsigned = width(ins), is_unsigned(ins)

    def compute(algebra: Algebra, a: Integer, b: Integer, c: Integer) -> Integer:
        larger = algebra.compare("ge", a, b, unsigned=unsigned, bits=bits)
        difference = algebra.linear(a, 1, b, -1, bits=bits)
        size = algebra.select(larger, difference, algebra.linear(difference, -1, bits=bits))
        return algebra.linear(size, 1, c, 1, bits=bits)

    return operation(decoder, ins, compute, [bits] * 3)
