"""``ldmatrix``, ``stmatrix`` and ``movmatrix``: 8x8 matrices of 16-bit elements, also transposed.

Lane 8m + r has the address of row r of matrix m.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator.access import Place, check_written, load, observe, place, store
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group, bits_of
from harness.emulator.instructions.matrix.fragments import GROUP, WITHIN
from harness.emulator.instructions.warp import unwarp, warps
from harness.emulator.numbers.values import Array, Integer, Lanes, Mask, shift
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.patterns import WARP
from harness.emulator.watch.touches import READ, WRITE


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """The matrices of an instruction: how many, whether they are transposed, and the address of each row."""

    count: int
    transposed: bool
    address: Callable[[Group], tuple[Integer, int]]

    def rows(self, group: Group, ins: Instruction, where: Lanes, kind: str) -> Place:
        """Return where the rows lie, for the lanes that have the address of one, and record the access."""
        base, offset = self.address(group)
        lane = (np.arange(group.shape[0]) % WARP).reshape(-1, 1)
        asking = group.algebra.both(where, True if self.count == 4 else Mask(lane < 8 * self.count))
        at = place(group, ins, "shared", shift(base, offset), asking, 16)
        observe(group, ins, at, kind, 16)
        return at


def _matrices(decoder: Decoder, ins: Instruction, address: str, registers: str) -> tuple[Matrices, list[str]]:
    """Return the matrices of 16-bit elements and the names of the registers that hold them."""
    parts = decoder.parts(
        ins, {"sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"}
    )
    count = next(n for n in (1, 2, 4) if f"x{n}" in parts)
    names = [name.strip() for name in registers.strip("{}").split(",")]
    if len(names) != count:
        raise decoder.refusal(ins)
    found = Matrices(count=count, transposed="trans" in parts, address=decoder.address(ins, address))
    return found, names


@handles("ldmatrix")
def ldmatrix(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``ldmatrix`` of 1, 2 or 4 matrices of 8x8 16-bit elements, with or without ``.trans``."""
    matrices, names = _matrices(decoder, ins, ins.operands[1], ins.operands[0])
    into = [decoder.register(ins, name) for name in names]

    def run(group: Group, where: Lanes) -> None:
        at = matrices.rows(group, ins, where, READ)
        rows = np.zeros((*group.shape, 8), np.uint16)  # the row that each lane's address points to
        if at.where is not False:
            check_written(group, ins, at, 16)
            for i in range(4):
                word = np.ascontiguousarray(load(group, at, 4, i))
                rows[..., 2 * i : 2 * i + 2] = word.view(np.uint16).reshape(*group.shape, 2)
        for i, register in enumerate(into):
            pair = [_element(rows, i, j, matrices.transposed, group.shape) for j in (0, 1)]
            both = np.ascontiguousarray(np.stack(pair, axis=-1)).view(np.float32)[..., 0]
            group.write(register, both, where)

    return run


@handles("stmatrix")
def stmatrix(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``stmatrix`` of 1, 2 or 4 matrices of 8x8 16-bit elements, with or without ``.trans``."""
    matrices, names = _matrices(decoder, ins, ins.operands[0], ins.operands[1])
    values = [decoder.value(ins, name) for name in names]

    def run(group: Group, where: Lanes) -> None:
        at = matrices.rows(group, ins, where, WRITE)
        rows = _rows(group, [value(group) for value in values], matrices.transposed)
        words = np.ascontiguousarray(rows).view(np.float32)  # (T, C, 4)
        store(group, at, 4, [words[..., i] for i in range(4)])

    return run


def _rows(group: Group, values: list[Any], transposed: bool) -> Array:
    """Return the rows of the matrices that `values`, a register for each, hold: uint16 (T, C, 8)."""
    found = np.zeros((-(-group.shape[0] // WARP), WARP, group.shape[1], 8), np.uint16)
    for m, value in enumerate(values):
        bits = warps(bits_of(group, value, 4), np.uint32(0))  # (warps, 32, C)
        halves = np.ascontiguousarray(bits[..., None]).view(np.uint16)  # (warps, 32, C, 2)
        split = halves.reshape(len(bits), 8, 4, group.shape[1], 2)
        matrix = split.transpose(0, 1, 3, 2, 4).reshape(len(bits), 8, group.shape[1], 8)
        found[:, 8 * m : 8 * m + 8] = matrix.transpose(0, 3, 2, 1) if transposed else matrix
    return found.reshape(-1, group.shape[1], 8)[: group.shape[0]]


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
