"""``ldmatrix`` and ``movmatrix``: 8x8 matrices of 16-bit elements, from shared memory and transposed."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.access import load, observe, place
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group, bits_of
from harness.emulator.instructions.matrix.fragments import GROUP, WITHIN
from harness.emulator.instructions.warp import unwarp, warps
from harness.emulator.numbers.values import Array, Lanes, Mask, shift
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.patterns import WARP
from harness.emulator.watch.touches import READ


@handles("ldmatrix")
def ldmatrix(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``ldmatrix`` of 1, 2 or 4 matrices of 8x8 16-bit elements, with or without ``.trans``."""
    parts = decoder.parts(
        ins, {"sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"}
    )
    count = next(n for n in (1, 2, 4) if f"x{n}" in parts)
    into = [decoder.register(ins, name.strip()) for name in ins.operands[0].strip("{}").split(",")]
    read = decoder.address(ins, ins.operands[1])
    if len(into) != count:
        raise decoder.refusal(ins)

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        lane = (np.arange(group.shape[0]) % WARP).reshape(-1, 1)
        asking = group.algebra.both(where, True if count == 4 else Mask(lane < 8 * count))
        at = place(group, ins, "shared", shift(base, offset), asking, 16)
        observe(group, ins, at, READ, 16)
        rows = np.zeros((*group.shape, 8), np.uint16)  # the row that each lane's address points to

        def deliver(i: int, give: Any) -> None:
            rows[..., 2 * i : 2 * i + 2] = (
                np.ascontiguousarray(give(None)).view(np.uint16).reshape(*group.shape, 2)
            )

        if at.where is not False:
            load(group, ins, at, 4, 4, deliver)
        for i, register in enumerate(into):
            pair = [_element(rows, i, j, "trans" in parts, group.shape) for j in (0, 1)]
            both = np.ascontiguousarray(np.stack(pair, axis=-1)).view(np.float32)[..., 0]
            group.write(register, both, where)

    return run


def _element(rows: Array, matrix: int, j: int, transposed: bool, shape: tuple[int, int]) -> Array:
    """Return the element `j`, 0 or 1, that each lane gets of a matrix: uint16 (T, C).

    rows: uint16 (T, C, 8), the row of a matrix that each lane's address points to
    matrix: its number in the instruction
    """
    row, column = (WITHIN * 2 + j, GROUP) if transposed else (GROUP, WITHIN * 2 + j)
    split = np.stack([warps(rows[..., k], 0) for k in range(8)], axis=-1)  # (warps, 32, C, 8)
    lanes = split[:, 8 * matrix + row, :, column]  # the advanced indices come first: (32, warps, C)
    return np.array(unwarp(lanes.transpose(1, 0, 2), shape))


@handles("movmatrix")
def movmatrix(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``movmatrix``: the matrix that a warp holds, transposed."""
    decoder.parts(ins, {"sync", "aligned", "m8n8", "trans", "b16"})
    into, read = decoder.register(ins, ins.operands[0]), decoder.value(ins, ins.operands[1])

    def run(group: Group, where: Lanes) -> None:
        halves = bits_of(group, read(group), 4).view(np.uint16).reshape(*group.shape, 2)
        held = np.stack([warps(halves[..., j], 0) for j in (0, 1)], axis=-1)  # (warps, 32, C, 2)
        matrix = np.zeros((held.shape[0], held.shape[2], 8, 8), np.uint16)
        for j in (0, 1):
            matrix[:, :, GROUP, WITHIN * 2 + j] = held[..., j].transpose(0, 2, 1)
        pair = [matrix[:, :, WITHIN * 2 + j, GROUP].transpose(0, 2, 1) for j in (0, 1)]
        both = np.ascontiguousarray(np.stack(pair, axis=-1)).view(np.float32)[..., 0]
        group.write(into, np.array(unwarp(both, group.shape)), where)

    return run
