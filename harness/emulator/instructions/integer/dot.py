"""Elements within a 32-bit register: dot products (``dp4a``, ``dp2a``) and arithmetic of two halves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.instructions.integer.arithmetic import operation
from harness.emulator.numbers.algebra import Algebra
from harness.emulator.numbers.values import Array, Integer
from harness.emulator.ptx.program import Instruction


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


# Of each element, exact; named as the video instructions.
ELEMENTWISE: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


@handles("add", "sub", "min", "max")
def pairs(decoder: Decoder, ins: Instruction) -> Run:
    """Decode arithmetic of ``.u16x2`` and ``.s16x2``: that of both halves; ``.relu`` cuts off below 0."""
    parts = decoder.parts(ins, {"u16x2", "s16x2", "relu"})
    function, signed = ELEMENTWISE[f"v{ins.opcode[0]}"], "s16x2" in parts

    def compute(a: Array, b: Array) -> Array:
        halves = zip(elements(a, 16, signed=signed), elements(b, 16, signed=signed), strict=True)
        low, high = (function(x, y) for x, y in halves)
        if "relu" in parts:
            low, high = np.maximum(low, 0), np.maximum(high, 0)
        found: Array = (low & 0xFFFF) | (high & 0xFFFF) << 16
        return found

    return operation(
        decoder, ins, lambda algebra, a, b: algebra.wrap(algebra.apply(str(ins), compute, a, b), 32), [32, 32]
    )
