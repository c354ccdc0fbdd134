"""``wmma``: loads, products and stores of fragments, whose layout is the implementation's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.access import check_written, load, observe, place, store
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import BITS_OF, Group, bits_of
from harness.emulator.instructions.matrix.fragments import (
    BITS,
    Positions,
    extents,
    left,
    registers_of,
    right,
    sums,
)
from harness.emulator.instructions.matrix.mma import product, share
from harness.emulator.numbers.values import Array, Integer, Lanes, integer_of
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.patterns import WARP
from harness.emulator.watch.touches import READ, WRITE

_SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16", "m16n16k8", "m8n8k4", "m8n8k32", "m8n8k128")
_SPACES = ("global", "shared", "shared::cta")


def _flops(ins: Instruction) -> int:
    """Return a lane's FLOP of ``wmma.mma``, none of loads and stores."""
    return share(ins) if "mma" in ins.opcode else 0


@handles("wmma", flops=_flops)
def wmma(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``wmma.load``, ``wmma.mma`` and ``wmma.store``."""
    allowed = {"mma", "load", "store", "a", "b", "c", "d", "sync", "aligned", "row", "col", *_SPACES}
    parts = decoder.parts(ins, allowed | {*_SHAPES, *BITS, "satfinite", "xor", "and", "popc", "rn"})
    if "mma" not in parts:
        return _move(decoder, ins)
    kinds = [part for part in ins.opcode if part in BITS]
    if len(kinds) == 2:  # the types of D and C alone: A and B are f16
        kinds = [kinds[0], "f16", "f16", kinds[1]]
    if len(kinds) != 4 or (kinds[0] != kinds[3] and "f16" not in kinds[1:3]):
        raise decoder.refusal(ins)
    return product(decoder, ins, (kinds[0], kinds[1], kinds[2], kinds[3]), parts)


def _places(ins: Instruction, kind: str) -> tuple[Positions, tuple[int, int]]:
    """Return where the elements of a fragment that is loaded or stored lie, and its (rows, columns)."""
    rows, columns, depth = extents(ins.opcode)
    operand = next(part for part in ins.opcode[1:] if part in "abcd")
    if operand == "a":
        return left(rows, depth, BITS[kind]), (rows, depth)
    if operand == "b":
        return right(depth, columns, BITS[kind]), (depth, columns)
    return sums(rows, columns), (rows, columns)


def _move(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``wmma.load`` or ``wmma.store``: each element is an access of its own.

    Elements of less than a byte are moved in whole registers, which hold adjacent ones.
    """
    loads = "load" in ins.opcode
    kind = ins.opcode[-1]
    space = next((part.partition("::")[0] for part in ins.opcode if part in _SPACES), "")
    fragment, place_text = (ins.operands[:2]) if loads else (ins.operands[1], ins.operands[0])
    names = registers_of(fragment)
    registers = [decoder.register(ins, name) for name in names]
    values = [] if loads else [decoder.value(ins, name) for name in names]
    read = decoder.address(ins, place_text)
    positions, (rows, columns) = _places(ins, kind)
    by_row = "row" in ins.opcode
    stride = decoder.integer(ins, ins.operands[2], 32) if len(ins.operands) > 2 else None
    bits = BITS[kind]
    step = 32 // bits if bits < 8 else 1  # elements of an access
    size = max(bits, 8) // 8 if bits >= 8 else 4
    per = max(1, 32 // bits)  # elements of a register
    if len(names) * per < len(positions):
        raise decoder.refusal(ins)

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        lead: Integer = (columns if by_row else rows) if stride is None else stride(group)
        parts: list[Array] = []
        held = [] if loads else _split(group, [v(group) for v in values], bits)
        for i in range(0, len(positions), step):
            row, column = positions[i]
            major, minor = (row, column) if by_row else (column, row)
            at = place(
                group, ins, space, _address(group, base, offset, lead, (major, minor), bits), where, size
            )
            observe(group, ins, at, READ if loads else WRITE, size)
            if at.where is False:
                parts.append(np.zeros(group.shape, f"u{size}"))
            elif loads:
                check_written(group, ins, at, size)
                parts.append(np.ascontiguousarray(load(group, at, size)).view(f"u{size}"))
            else:
                word = held[i]
                store(group, at, size, [word.view(BITS_OF[size]) if size >= 4 else word])
        if loads:
            _write(group, registers, parts, bits, where)

    return run


def _address(
    group: Group, base: Integer, offset: int, lead: Integer, place_of: tuple[Array, Array], bits: int
) -> Integer:
    """Return the address of one element of each lane, ``major * lead + minor`` elements after the base."""
    lane = np.arange(group.shape[0]) % WARP
    major, minor = (integer_of(v[lane].reshape(-1, 1).astype(np.int64)) for v in place_of)
    algebra = group.algebra
    rows = algebra.apply("wmma", lambda a, b: np.atleast_2d(a * b), major, lead)
    index = algebra.exact(rows, 1, minor, 1)
    if bits < 8:
        index = algebra.apply(("wmma", bits), lambda v: v * bits // 8, index)
    else:
        index = algebra.exact(index, bits // 8, 0, 0)
    return algebra.exact(algebra.exact(base, 1, index, 1), 1, offset, 1)


def _split(group: Group, values: list[Any], bits: int) -> list[Array]:
    """Return the elements of registers as unsigned integers of their own width, in order."""
    found: list[Array] = []
    for value in values:
        whole = bits_of(group, value, 8 if bits == 64 else 4)
        if bits >= 32 or bits < 8:
            found.append(whole)
        else:
            parts = whole.view(f"u{bits // 8}").reshape(*group.shape, 32 // bits)
            found += [np.ascontiguousarray(parts[..., i]) for i in range(32 // bits)]
    return found


def _write(group: Group, registers: list[int], parts: list[Array], bits: int, where: Lanes) -> None:
    """Write loaded elements to registers; registers beyond them get the same ones again."""
    per = 32 // bits if 8 <= bits < 32 else 1
    words: list[Array] = []
    for i in range(0, len(parts), per):
        both = np.ascontiguousarray(np.stack(parts[i : i + per], axis=-1))
        words.append(both.view(np.float64 if bits == 64 else np.float32)[..., 0])
    for i, register in enumerate(registers):
        group.write(register, words[i % len(words)], where)
