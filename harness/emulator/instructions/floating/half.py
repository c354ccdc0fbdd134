"""Arithmetic of f16 and bf16, single or in pairs: computed in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.instructions.warp import bits_of
from harness.emulator.numbers.floats import bfloat16_of, odd_sum, of_bfloat16, to_odd32
from harness.emulator.numbers.values import Array, Lanes, integer_of
from harness.emulator.ptx.module import Instruction


def widen(bits: Array, brain: bool) -> Array:
    """Return 16-bit patterns, uint16, as float64: read as bfloat16 if `brain`, otherwise as f16."""
    return (of_bfloat16(bits) if brain else bits.view(np.float16)).astype(np.float64)


def narrow(values: Array, brain: bool) -> Array:
    """Return float64 `values` rounded to nearest even, as uint16: bfloat16 bits if `brain`, else f16."""
    return bfloat16_of(to_odd32(values)) if brain else values.astype(np.float16).view(np.uint16)


def halves(group: Group, value: Any, count: int) -> Array:
    """Return a register as its `count` 16-bit parts, uint16 (T, C, count), the low one first."""
    return bits_of(group, value, 2 * count).view(np.uint16).reshape(*group.shape, count)


def _operation(decoder: Decoder, ins: Instruction, compute: Callable[..., Array], sources: int) -> Run:
    """Return the function that applies `compute` to `sources` float64 operands, with relu and sat."""
    kind = ins.opcode[-1]
    brain, count = kind.startswith("bf"), 2 if kind.endswith("x2") else 1
    read = [_operand(decoder, ins, text, count) for text in ins.operands[1 : sources + 1]]
    into = decoder.register(ins, ins.operands[0])
    relu, sat = "relu" in ins.opcode, "sat" in ins.opcode

    def run(group: Group, where: Lanes) -> None:
        operands = [widen(halves(group, r(group), count), brain) for r in read]
        found = compute(*operands)
        if relu:
            found = np.where(np.isnan(found), found, np.maximum(found, 0))
        if sat:
            found = np.where(np.isnan(found), 0, np.clip(found, 0, 1))
        bits = np.ascontiguousarray(narrow(found, brain))
        if count == 2:
            group.write(into, bits.view(np.float32)[..., 0], where)
        else:
            group.write(into, integer_of(bits[..., 0].view(np.int16).astype(np.int64)), where)

    return run


def _operand(decoder: Decoder, ins: Instruction, text: str, count: int) -> Callable[[Group], Any]:
    """Return a reader of an operand. Raises NeedsGpu for a register that is not 16 * `count` bits wide."""
    if text in decoder.numbers and decoder.bits(text) != 16 * count:
        raise decoder.refusal(ins)
    return decoder.value(ins, text) if text in decoder.numbers else decoder.integer(ins, text, 16 * count)


_PARTS = {"f16", "f16x2", "bf16", "bf16x2", "rn", "ftz", "sat", "relu", "NaN"}


def _register(name: str, compute: Callable[..., Array], sources: int, flops: int) -> None:
    """Register an instruction of `sources` operands; `flops` counts one element."""

    def maker(decoder: Decoder, ins: Instruction) -> Run:
        if "ftz" in decoder.parts(ins, _PARTS):
            raise decoder.refusal(ins)
        return _operation(decoder, ins, compute, sources)

    handles(name, family="half", flops=flops)(maker)


_register("add", np.add, 2, 1)
_register("sub", np.subtract, 2, 1)
_register("mul", np.multiply, 2, 1)
_register("fma", lambda a, b, c: odd_sum(a * b, c), 3, 2)
_register("neg", np.negative, 1, 0)
_register("abs", np.abs, 1, 0)
_register("min", np.fmin, 2, 1)
_register("max", np.fmax, 2, 1)
