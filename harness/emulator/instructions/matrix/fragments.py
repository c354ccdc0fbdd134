"""Matrices that the lanes of a warp hold together: where each element lies, and how it is encoded.

Layouts: PTX ISA, "Matrix Fragments for mma". Those of wmma are not documented; where the shape is one of
mma.sync's, or two of them side by side, the same is used here, otherwise elements go round the lanes.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from harness.emulator.group import Group, bits_of
from harness.emulator.instructions.warp import unwarp, warps
from harness.emulator.numbers.formats import FORMATS, decode
from harness.emulator.numbers.values import Array, Lanes, integer_of
from harness.emulator.watch.patterns import WARP

LANE = np.arange(WARP)
GROUP, WITHIN = LANE // 4, LANE % 4
BITS = {"f64": 64, "f32": 32, "tf32": 32, "s32": 32, "f16": 16, "bf16": 16} | {
    "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1
}  # fmt: skip
Positions = list[tuple[Array, Array]]  # (row, column) of each element of a lane in order, arrays (32,)


def extents(parts: tuple[str, ...]) -> tuple[int, int, int]:
    """Return M, N and K of an instruction. Raises StopIteration if it names no shape."""
    match = next(m for m in (re.fullmatch(r"m(\d+)n(\d+)k(\d+)", part) for part in parts) if m)
    return int(match[1]), int(match[2]), int(match[3])


def left(rows: int, depth: int, bits: int) -> Positions:
    """Return where the elements of A lie, rows by depth; each register has those of adjacent columns."""
    packed = max(1, 32 // bits)
    if rows not in (8, 16) or depth % (4 * packed):
        return _around(rows, depth)
    found: Positions = []
    for block in range(depth // (4 * packed)):
        for row in range(0, rows, 8):
            found += [(GROUP + row, WITHIN * packed + i + 4 * packed * block) for i in range(packed)]
    return found


def right(depth: int, columns: int, bits: int) -> Positions:
    """Return where the elements of B lie, depth by columns; each register has those of adjacent rows."""
    packed = max(1, 32 // bits)
    if columns not in (8, 16) or depth % (4 * packed):
        return _around(depth, columns)
    return [
        (WITHIN * packed + i + 4 * packed * block, GROUP + column)
        for column in range(0, columns, 8)
        for block in range(depth // (4 * packed))
        for i in range(packed)
    ]


def sums(rows: int, columns: int) -> Positions:
    """Return where the elements of C and D lie."""
    if rows not in (8, 16) or columns not in (8, 16):
        return _around(rows, columns)
    return [
        (GROUP + row, WITHIN * 2 + i + column)
        for column in range(0, columns, 8)
        for row in range(0, rows, 8)
        for i in (0, 1)
    ]


def _around(rows: int, columns: int) -> Positions:
    """Return positions row by row, pairs of columns going round the lanes."""
    pairs = rows * columns // 2
    found: Positions = []
    for first in range(0, pairs, WARP):
        index = 2 * (first + LANE)
        found += [((index + i) // columns, (index + i) % columns) for i in (0, 1)]
    return found


def elements(group: Group, values: list[Any], kind: str) -> list[Array]:
    """Return the elements that the registers of each lane hold, in order: float64 (T, C)."""
    bits = BITS[kind]
    found: list[Array] = []
    for value in values:
        whole = bits_of(group, value, 8 if bits == 64 else 4)
        if kind == "f64":
            found.append(whole.view(np.float64))
        elif kind == "f32":
            found.append(whole.view(np.float32).astype(np.float64))
        elif kind == "s32":
            found.append(whole.view(np.int32).astype(np.float64))
        elif kind == "tf32":
            found.append((whole & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64))
        else:
            mask = np.uint32((1 << bits) - 1)
            parts = [whole >> np.uint32(place) & mask for place in range(0, 32, bits)]
            found += [_number(part, kind) for part in parts]
    return found


def _number(bits: Array, kind: str) -> Array:
    """Return the numbers that unsigned `bits` stand for, as float64."""
    if kind == "f16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    if kind in FORMATS:
        return decode(bits, kind)
    whole = bits.astype(np.int64)
    half = 1 << (BITS[kind] - 1)
    return ((whole ^ half) - half if kind[0] == "s" else whole).astype(np.float64)


def assemble(group: Group, found: list[Array], positions: Positions, shape: tuple[int, int]) -> Array:
    """Return the matrix of each warp, float64 (warps, C, rows, columns), from the elements of its lanes.

    Where lanes have more elements than `positions`, the further ones are copies.
    """
    first = warps(found[0], 0.0)
    matrix = np.zeros((first.shape[0], first.shape[2], *shape))
    for element, (rows, columns) in zip(found, positions, strict=False):
        matrix[:, :, rows, columns] = warps(element, 0.0).transpose(0, 2, 1)
    return matrix


def distribute(
    group: Group, matrix: Array, positions: Positions, kind: str, registers: list[int], where: Lanes
) -> None:
    """Write a matrix, (warps, C, rows, columns), to the registers of the lanes that hold it.

    kind: f64, f32, f16 or s32, of which numbers outside the range wrap
    """
    lanes = [
        np.array(unwarp(matrix[:, :, rows, columns].transpose(0, 2, 1), group.shape))
        for rows, columns in positions
    ]
    if kind == "f16":
        for register, low, high in zip(registers, lanes[::2], lanes[1::2], strict=True):
            pair = np.ascontiguousarray(np.stack([low, high], axis=-1).astype(np.float16))
            group.write(register, pair.view(np.float32)[..., 0], where)
        return
    for register, lane in zip(registers, lanes, strict=True):
        if kind == "s32":
            group.write(register, integer_of(lane.astype(np.int64).astype(np.int32).astype(np.int64)), where)
        else:
            group.write(register, lane.astype(np.float32 if kind == "f32" else np.float64), where)


def registers_of(text: str) -> list[str]:
    """Return the register names of ``{a, b}``."""
    return [name.strip() for name in text.strip("{}").split(",")]
