"""``mma.m8n8k4`` of f16, Volta's: four products at once, each by eight lanes, four of them 16 lanes further.

Sums are formed in float64 and rounded once: later GPUs have no such instruction, and compute it otherwise.

Layouts: PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.instructions.matrix.fragments import LANE, elements, registers_of
from harness.emulator.instructions.warp import unwarp, warps
from harness.emulator.numbers.values import Array, Lanes
from harness.emulator.ptx.program import Instruction

QUAD = LANE % 16 // 4  # the product that a lane takes part in
_WITHIN, _UPPER = LANE % 4, 4 * (LANE // 16)  # of the lanes from 16 on, the upper four rows or columns
Places = list[tuple[Array, Array]]  # (row, column) of each element of a lane, arrays (32,)


def _along(by_row: bool) -> Places:
    """Return where the elements of A lie: four of a row, or of a column, in each lane."""
    if by_row:
        return [(_WITHIN + _UPPER, np.full_like(LANE, i)) for i in range(4)]
    return [(i + _UPPER, _WITHIN) for i in range(4)]


def _sums(kind: str) -> Places:
    """Return where the elements of C and D lie."""
    if kind == "f16":
        return [(_WITHIN + _UPPER, np.full_like(LANE, i)) for i in range(8)]
    return [((LANE & 1) + (i & 2) + _UPPER, (i & 4) + (LANE & 2) + (i & 1)) for i in range(8)]


@handles("mma.m8n8k4", flops=2 * 4 * 8 * 8 * 4 // 32)
def quads(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mma.m8n8k4`` of f16, with sums in f16 or f32 and any layout of A and B."""
    decoder.parts(ins, {"sync", "aligned", "m8n8k4", "row", "col", "f16", "f32"})
    layouts = [part for part in ins.opcode if part in ("row", "col")]
    kinds = [part for part in ins.opcode if part in ("f16", "f32")]
    into, *given = (registers_of(text) for text in ins.operands)
    held = {"f16": 4, "f32": 8}
    if len(layouts) != 2 or len(kinds) != 4 or kinds[1:3] != ["f16", "f16"] or len(given) != 3:
        raise decoder.refusal(ins)
    to, add = kinds[0], kinds[3]
    if [len(names) for names in (into, *given)] != [held[to], 2, 2, held[add]]:
        raise decoder.refusal(ins)
    targets = [decoder.register(ins, name) for name in into]
    reads = [[decoder.value(ins, name) for name in names] for names in given]
    left, right = _along(layouts[0] == "row"), [(k, n) for n, k in _along(layouts[1] == "col")]

    def run(group: Group, where: Lanes) -> None:
        x, y, total = (
            _assembled(group, [r(group) for r in read], kind, places, shape)
            for read, kind, places, shape in zip(
                reads, ("f16", "f16", add), (left, right, _sums(add)), ((8, 4), (4, 8), (8, 8)), strict=True
            )
        )
        _distributed(group, np.matmul(x, y) + total, to, targets, where)

    return run


def _assembled(group: Group, values: list[Any], kind: str, places: Places, shape: tuple[int, int]) -> Array:
    """Return the four matrices of each warp: float64 (warps, C, 4, rows, columns)."""
    found = [warps(element, 0.0) for element in elements(group, values, kind)]
    matrix = np.zeros((found[0].shape[0], found[0].shape[2], 4, *shape))
    for element, (rows, columns) in zip(found, places, strict=True):
        matrix[:, :, QUAD, rows, columns] = element.transpose(0, 2, 1)
    return matrix


def _distributed(group: Group, matrix: Array, kind: str, registers: list[int], where: Lanes) -> None:
    """Write four matrices, (warps, C, 4, 8, 8), to the registers of the lanes that hold them."""
    lanes = [
        np.array(unwarp(matrix[:, :, QUAD, rows, columns].transpose(0, 2, 1), group.shape))
        for rows, columns in _sums(kind)
    ]
    if kind == "f32":
        words = [lane.astype(np.float32) for lane in lanes]
    else:
        pairs = [
            np.stack(pair, axis=-1).astype(np.float16) for pair in zip(lanes[::2], lanes[1::2], strict=True)
        ]
        words = [np.ascontiguousarray(pair).view(np.float32)[..., 0] for pair in pairs]
    for register, word in zip(registers, words, strict=True):
        group.write(register, word, where)
