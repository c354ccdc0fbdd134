"""Extended-precision arithmetic: ``add.cc``, ``addc``, ``sub.cc``, ``subc``, ``mad.cc`` and ``madc``.

The carry is a hidden register of each thread, which the parser declares where an instruction needs it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.instructions.integer.arithmetic import TYPES, multiplication, width
from harness.emulator.numbers.values import Array, Integer, Lanes
from harness.emulator.ptx.module import CARRY
from harness.emulator.ptx.program import Instruction


@handles("add.cc", "addc", "sub.cc", "subc", "mad.cc", "madc", family="integer")
def extended(decoder: Decoder, ins: Instruction) -> Run:
    """Decode an instruction that reads or writes the carry. A borrow counts as a carry of 1."""
    decoder.parts(ins, TYPES | {"cc", "lo", "hi"})
    bits, name = width(ins), ins.opcode[0]
    reads_carry, writes_carry = name.endswith("c"), "cc" in ins.opcode
    multiplies = name.startswith("mad")
    if len(ins.operands) != (4 if multiplies else 3):
        raise IndexError(name)
    read = [decoder.integer(ins, text, bits) for text in ins.operands[1:]]
    into = decoder.register(ins, ins.operands[0])
    flag = decoder.numbers[CARRY]
    multiply = multiplication(ins)[0] if multiplies else None
    low, high = _sum(bits, subtracts=name.startswith("sub"))

    def run(group: Group, where: Lanes) -> None:
        algebra = group.algebra
        values = [r(group) for r in read]
        if multiply is not None:
            values = [multiply(algebra, values[0], values[1]), values[2]]
        carry: Integer = 0
        if reads_carry:
            found = group.registers[flag]
            carry = 0 if found is None else found
        key = (bits, name.startswith("sub"))
        group.write(into, algebra.wrap(algebra.apply(("sum", *key), low, *values, carry), bits), where)
        if writes_carry:
            group.write(flag, algebra.apply(("carry", *key), high, *values, carry), where)

    return run


def _sum(bits: int, *, subtracts: bool) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """Return the functions of (a, b, carry) that give the low `bits` bits of the result, and its carry."""
    ones = np.uint64((1 << bits) - 1)

    def parts(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
        x, y, c = (np.asarray(v).view(np.uint64) & ones for v in (a, b, carry))
        if subtracts:
            first = x - y & ones
            return first - c & ones, (x < y) | (first < c)
        first = x + y & ones
        return first + c & ones, (first < x) | ((first + c & ones) < first)

    def low(a: Array, b: Array, carry: Array) -> Array:
        return np.atleast_1d(parts(a, b, carry)[0]).view(np.int64)

    def high(a: Array, b: Array, carry: Array) -> Array:
        return np.asarray(parts(a, b, carry)[1], np.int64)

    return low, high
