"""Arithmetic of ``.f32x2``: two f32 in a register of 64 bits, each computed by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group, bits_of
from harness.emulator.numbers.floats import flush, fma32
from harness.emulator.numbers.rounding import directed
from harness.emulator.numbers.values import Array, Lanes
from harness.emulator.ptx.program import Instruction

_NEAREST: dict[str, tuple[Callable[..., Any], int]] = {
    "add": (lambda out, work, a, b: np.add(a, b, out=out), 2),
    "sub": (lambda out, work, a, b: np.subtract(a, b, out=out), 2),
    "mul": (lambda out, work, a, b: np.multiply(a, b, out=out), 2),
    "fma": (lambda out, work, a, b, c: fma32(a, b, c, out, work), 3),
}
_MODES = ("rn", "rz", "rm", "rp")


def _flops(ins: Instruction) -> int:
    """Return the operations of a thread: those of both elements."""
    return 4 if ins.opcode[0] == "fma" else 2


@handles(*_NEAREST, family="pair", flops=_flops)
def pairs(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``add``, ``sub``, ``mul`` and ``fma`` of ``.f32x2``."""
    parts = decoder.parts(ins, {"f32x2", "ftz", *_MODES})
    mode = next((m for m in _MODES if m in parts), "rn")
    nearest, sources = _NEAREST[ins.opcode[0]]
    compute = nearest if mode == "rn" else directed(ins.opcode[0], mode, True)
    if len(ins.operands) != sources + 1:
        raise IndexError(sources)
    read = [decoder.value(ins, text) for text in ins.operands[1:]]
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Lanes) -> None:
        halves = [_halves(group, reader(group)) for reader in read]
        found = np.empty((*group.shape, 2), np.float32)
        for place in (0, 1):
            values = [np.ascontiguousarray(half[..., place]) for half in halves]
            values = [flush(v) for v in values] if "ftz" in parts else values
            out = np.empty(group.shape, np.float32)
            compute(out, group.work, *values)
            found[..., place] = flush(out) if "ftz" in parts else out
        group.write(into, found.view(np.float64)[..., 0], where)

    return run


def _halves(group: Group, value: Any) -> Array:
    """Return the two numbers of a register of 64 bits: float32 (T, C, 2)."""
    return bits_of(group, value, 8).view(np.float32).reshape(*group.shape, 2)
