"""Arithmetic of f16 and bf16, single or in pairs: computed in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group, bits_of
from harness.emulator.instructions.floating.arithmetic import extreme_of
from harness.emulator.numbers.floats import bfloat16_of, odd_sum, of_bfloat16, to_odd32
from harness.emulator.numbers.values import Array, Lanes, integer_of
from harness.emulator.ptx.program import Instruction

Compute = Callable[..., Array]  # called with float64 arrays, one for each operand
_SMALLEST_NORMAL = 2.0**-14  # of f16


def widen(bits: Array, brain: bool) -> Array:
    """Return 16-bit patterns, uint16, as float64: read as bfloat16 if `brain`, otherwise as f16."""
    return (of_bfloat16(bits) if brain else bits.view(np.float16)).astype(np.float64)


def narrow(values: Array, brain: bool) -> Array:
    """Return float64 `values` rounded to nearest even, as uint16: bfloat16 bits if `brain`, else f16.

    A NaN becomes 0x7FFF.
    """
    if brain:
        return bfloat16_of(to_odd32(values))
    return np.where(np.isnan(values), np.uint16(0x7FFF), values.astype(np.float16).view(np.uint16))


def halves(group: Group, value: Any, count: int) -> Array:
    """Return a register as its `count` 16-bit parts, uint16 (T, C, count), the low one first."""
    return bits_of(group, value, 2 * count).view(np.uint16).reshape(*group.shape, count)


def shape_of(kind: str) -> tuple[bool, int]:
    """Return whether a type is bf16 or bf16x2, and how many elements it has."""
    return kind.startswith("bf"), 2 if kind.endswith("x2") else 1


def operand(decoder: Decoder, ins: Instruction, text: str, kind: str) -> Callable[[Group], Array]:
    """Return a reader of an operand of type `kind`: float64 (T, C, elements).

    Raises NeedsGpu for a register of another width.
    """
    brain, count = shape_of(kind)
    if text in decoder.numbers and decoder.bits(text) != 16 * count:
        raise decoder.refusal(ins)
    read = decoder.value(ins, text) if text in decoder.numbers else decoder.integer(ins, text, 16 * count)
    flushes = "ftz" in ins.opcode and not brain

    def values(group: Group) -> Array:
        found = widen(halves(group, read(group), count), brain)
        return _flushed(found) if flushes else found

    return values


def write(group: Group, register: int, bits: Array, where: Lanes) -> None:
    """Write elements, uint16 (T, C, 1 or 2), to a register of 16 or 32 bits."""
    if bits.shape[-1] == 2:
        group.write(register, np.ascontiguousarray(bits).view(np.float32)[..., 0], where)
    else:
        group.write(register, integer_of(bits[..., 0].view(np.int16).astype(np.int64)), where)


def _flushed(values: Array) -> Array:
    """Return numbers of f16 with subnormal ones replaced by zeros of the same sign."""
    return np.where(np.abs(values) < _SMALLEST_NORMAL, np.copysign(0.0, values), values)


def _operation(decoder: Decoder, ins: Instruction, compute: Compute, sources: int) -> Run:
    """Return the function that applies `compute` to `sources` operands, with relu, sat and ftz."""
    kind = ins.opcode[-1]
    brain, _ = shape_of(kind)
    if len(ins.operands) != sources + 1:
        raise IndexError(sources)
    read = [operand(decoder, ins, text, kind) for text in ins.operands[1:]]
    into = decoder.register(ins, ins.operands[0])
    relu, sat, flushes = "relu" in ins.opcode, "sat" in ins.opcode, "ftz" in ins.opcode and not brain

    def run(group: Group, where: Lanes) -> None:
        found = compute(*(r(group) for r in read))
        if relu:
            found = np.where(found < 0, 0.0, found)
        if sat:
            found = np.where(np.isnan(found), 0, np.clip(found, 0, 1))
        if flushes:
            found = _flushed(found)
        write(group, into, narrow(found, brain), where)

    return run


_PARTS = {"f16", "f16x2", "bf16", "bf16x2", "rn", "ftz", "sat", "relu"}


def _register(name: str, compute: Compute, sources: int, flops: int) -> None:
    """Register an instruction of `sources` operands; `flops` counts one element."""

    def maker(decoder: Decoder, ins: Instruction) -> Run:
        decoder.parts(ins, _PARTS | {"approx"})
        return _operation(decoder, ins, compute, sources)

    handles(name, family="half", flops=flops)(maker)


_register("add", np.add, 2, 1)
_register("sub", np.subtract, 2, 1)
_register("mul", np.multiply, 2, 1)
_register("fma", lambda a, b, c: odd_sum(a * b, c), 3, 2)
_register("tanh", np.tanh, 1, 1)
_register("ex2", np.exp2, 1, 1)


@handles("min", "max", family="half", flops=1)
def extreme(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``min`` and ``max``, as those of f32: a NaN loses, with ``.NaN`` it wins."""
    decoder.parts(ins, _PARTS | {"NaN", "xorsign", "abs"})
    return _operation(decoder, ins, extreme_of(ins), len(ins.operands) - 1)


@handles("neg", "abs", family="half")
def sign(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``neg`` and ``abs``, which change the sign bit alone, also of a NaN."""
    decoder.parts(ins, _PARTS)
    kind = ins.opcode[-1]
    _, count = shape_of(kind)
    read = decoder.value(ins, ins.operands[1])
    into = decoder.register(ins, ins.operands[0])
    negates = ins.opcode[0] == "neg"

    def run(group: Group, where: Lanes) -> None:
        bits = halves(group, read(group), count)
        found = bits ^ np.uint16(0x8000) if negates else bits & np.uint16(0x7FFF)
        write(group, into, found, where)

    return run
