"""Elements within a 32-bit register: dot products (``dp4a``, ``dp2a``) and video instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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


# Video instructions: `video(a, b)` of each element, exact.
_VIDEO: dict[str, Callable[[Array, Array], Array]] = {
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
    function, signed = _VIDEO[f"v{ins.opcode[0]}"], "s16x2" in parts

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


_ORDERS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_SELECTORS = {"b0": (8, 0), "b1": (8, 8), "b2": (8, 16), "b3": (8, 24), "h0": (16, 0), "h1": (16, 16)}


@handles(*(f"{name}{count}" for name in (*_VIDEO, "vset") for count in ("", "2", "4")))
def video(decoder: Decoder, ins: Instruction) -> Run:
    """Decode a video instruction: an operation on a register's bytes or halves, or on one number.

    With ``.sat`` each result is clipped to its type, otherwise it wraps; with ``.add``, ``.min`` or ``.max``
    it is combined with the last operand. Raises NeedsGpu for masks, and where elements of pairs are selected.
    """
    name, count = ins.opcode[0].rstrip("24"), int(ins.opcode[0][-1]) if ins.opcode[0][-1] in "24" else 1
    parts = decoder.parts(ins, {"u32", "s32", "sat", "add", "min", "max", *_ORDERS})
    kinds = [part for part in ins.opcode[1:] if part in ("u32", "s32")]
    order = next((part for part in ins.opcode[1:] if part in _ORDERS), "")
    if len(kinds) != (2 if name == "vset" else 3):
        raise decoder.refusal(ins)
    result, left, right = ["u32", *kinds] if name == "vset" else kinds
    second = next((part for part in ins.opcode[-2:] if part in ("add", "min", "max")), "")
    width = 32 // count
    texts = [text.partition(".") for text in ins.operands[1:]]
    cuts = [_SELECTORS.get(part[2], (width, 0)) for part in texts[:2]]
    if "." in ins.operands[0] or any(part[2] and (count > 1 or part[2] not in _SELECTORS) for part in texts):
        raise decoder.refusal(ins)
    low, high = (0, (1 << width) - 1) if result == "u32" else (-(1 << width - 1), (1 << width - 1) - 1)

    def compute(a: Array, b: Array, c: Array) -> Array:
        x, y = (
            elements(v >> shift, bits, signed=kind == "s32")[:count]
            for v, (bits, shift), kind in zip((a, b), cuts, (left, right), strict=True)
        )
        function = _ORDERS[order] if name == "vset" else _VIDEO[name]
        found = [np.asarray(function(p, q), np.int64) for p, q in zip(x, y, strict=True)]
        if "sat" in parts:
            found = [np.clip(v, low, high) for v in found]
        if second in ("min", "max"):
            return _VIDEO[f"v{second}"](found[0], c)
        if second:
            total: Array = np.sum(found, axis=0) + c
            return total
        packed: Array = np.sum(
            [(v & ((1 << width) - 1)) << width * place for place, v in enumerate(found)], axis=0
        )
        return packed

    def run(algebra: Algebra, a: Integer, b: Integer, c: Integer = 0) -> Integer:
        c = algebra.unsigned(c, 32) if result == "u32" else c
        return algebra.wrap(algebra.apply((str(ins), *texts), compute, a, b, c), 32)

    plain = replace(ins, operands=(ins.operands[0], *(part[0] for part in texts)))
    return operation(decoder, plain, run, [32] * len(texts))
