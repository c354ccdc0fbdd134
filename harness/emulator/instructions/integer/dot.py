"""``dp4a`` and ``dp2a``: sums of products of the bytes, or of two halves with two bytes, of registers."""

from __future__ import annotations

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.instructions.integer.arithmetic import operation
from harness.emulator.numbers.algebra import Algebra
from harness.emulator.numbers.values import Array, Integer
from harness.emulator.ptx.module import Instruction


def elements(value: Array, bits: int, *, signed: bool) -> list[Array]:
    """Return the elements of `bits` bits of 32-bit registers, the low one first."""
    half, mask = 1 << (bits - 1), (1 << bits) - 1
    found = [value >> place & mask for place in range(0, 32, bits)]
    return [(e ^ half) - half if signed else e for e in found]


@handles("dp4a", family="integer", flops=0)
def dp4a(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``dp4a``: c plus the products of the four bytes of a and b."""
    return _dot(decoder, ins, 8, 0)


@handles("dp2a", family="integer", flops=0)
def dp2a(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``dp2a``: c plus the products of both halves of a with the low or high two bytes of b."""
    return _dot(decoder, ins, 16, 2 if "hi" in ins.opcode else 0)


def _dot(decoder: Decoder, ins: Instruction, bits: int, first: int) -> Run:
    """Return the function of a dot product of elements of a, `bits` wide, with bytes of b from `first` on."""
    decoder.parts(ins, {"lo", "hi", "u32", "s32"})
    signs = [kind == "s32" for kind in ins.opcode[-2:]]

    def products(a: Array, b: Array) -> Array:
        left = elements(a, bits, signed=signs[0])
        right = elements(b, 8, signed=signs[1])[first : first + len(left)]
        total: Array = np.sum([x * y for x, y in zip(left, right, strict=True)], axis=0)
        return total

    def compute(algebra: Algebra, a: Integer, b: Integer, c: Integer) -> Integer:
        return algebra.linear(algebra.apply(("dot", str(ins)), products, a, b), 1, c, 1, bits=32)

    return operation(decoder, ins, compute, [32, 32, 32])
