"""mma.sync and ldmatrix, by the fragment layouts of the PTX ISA ("Matrix Fragments for mma.m16n8k8/16").

Products are exact and are summed in float64, then rounded to the accumulator's type. The order and width of
the hardware's sums are not documented, so results agree within a tolerance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.access import load, observe, place
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group, bits_of
from harness.emulator.instructions.floating.half import halves, widen
from harness.emulator.instructions.warp import unwarp, warps
from harness.emulator.numbers.values import Array, Lanes, Mask, shift
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.patterns import WARP
from harness.emulator.watch.touches import READ

_LANE = np.arange(WARP)
_GROUP, _WITHIN = _LANE // 4, _LANE % 4
_SHAPES = {("m16n8k16", 2), ("m16n8k8", 2), ("m16n8k8", 4), ("m16n8k4", 4)}


def _positions(depth: int, size: int) -> tuple[list[tuple[Array, Array]], list[tuple[Array, Array]]]:
    """Return where the elements that a lane holds lie: (row, k) in A, (k, column) in B, in register order.

    depth: K of m16n8kK
    size: bytes of an element

    Each place is a pair of arrays (32,), an element per lane.
    """
    a, b = [], []
    packed = 4 // size
    for block in range(depth // (4 * packed)):
        ks = [_WITHIN * packed + i + 4 * packed * block for i in range(packed)]
        for row in (0, 8):
            a += [(_GROUP + row, k) for k in ks]
        b += [(k, _GROUP) for k in ks]
    return a, b


def _share(ins: Instruction) -> int:
    """Return a lane's FLOP of m16n8kK: a multiplication and an addition for each product."""
    return 2 * 16 * 8 * _depth(ins) // WARP


def _depth(ins: Instruction) -> int:
    """Return K of m16n8kK."""
    return int(next(part for part in ins.opcode if part.startswith("m16")).split("k")[1])


@handles("mma", flops=_share)
def mma(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mma.sync`` of m16n8kK in f16, bf16 and tf32. Raises NeedsGpu for other shapes and types."""
    parts = list(ins.opcode[1:])
    decoder.parts(
        ins, {"sync", "aligned", "row", "col", *(s for s, _ in _SHAPES), "f32", "f16", "bf16", "tf32"}
    )
    shape = next(part for part in parts if part.startswith("m16"))
    to, kind, other, add = parts[-4:]
    size = 4 if kind == "tf32" else 2
    layout = [p for p in parts if p in ("row", "col")]
    if (
        (shape, size) not in _SHAPES
        or kind != other
        or layout != ["row", "col"]
        or to != add
        or kind == "f32"
    ):
        raise decoder.refusal(ins)
    depth = _depth(ins)
    positions = _positions(depth, size)
    into, a, b, c = ([n.strip() for n in text.strip("{}").split(",")] for text in ins.operands)
    targets = [decoder.register(ins, name) for name in into]
    read_a, read_b, read_c = ([decoder.value(ins, name) for name in names] for names in (a, b, c))
    per = 4 // size
    if (len(a) * per, len(b) * per) != (len(positions[0]), len(positions[1])):
        raise decoder.refusal(ins)
    if len(targets) != len(c) or len(c) != (4 if to == "f32" else 2):
        raise decoder.refusal(ins)

    def run(group: Group, where: Lanes) -> None:
        left = _matrix(group, [r(group) for r in read_a], kind, positions[0], (16, depth))
        right = _matrix(group, [r(group) for r in read_b], kind, positions[1], (depth, 8))
        outputs = [(_GROUP + row, _WITHIN * 2 + i) for row in (0, 8) for i in (0, 1)]
        total = _matrix(group, [r(group) for r in read_c], to, outputs, (16, 8))
        total = total + np.matmul(left, right)
        lanes = [total[:, :, rows, columns].transpose(0, 2, 1) for rows, columns in outputs]  # (warps, 32, C)
        if to == "f32":
            for register, lane in zip(targets, lanes, strict=True):
                group.write(register, np.array(unwarp(lane.astype(np.float32), group.shape)), where)
        else:
            for i, register in enumerate(targets):
                pair = np.stack([lanes[2 * i], lanes[2 * i + 1]], axis=-1).astype(np.float16)
                both = np.ascontiguousarray(pair).view(np.float32)[..., 0]
                group.write(register, np.array(unwarp(both, group.shape)), where)

    return run


def _matrix(
    group: Group, values: list[Any], kind: str, positions: list[tuple[Array, Array]], extents: tuple[int, int]
) -> Array:
    """Return the matrix that the registers of a warp hold together: float64 (warps, C, rows, columns).

    values: the registers of a lane, in order
    kind: type of an element
    positions: where each element of a lane lies, as in `_positions`
    extents: (rows, columns)
    """
    elements: list[Array] = []
    for value in values:
        if kind in ("f16", "bf16"):
            pair = widen(halves(group, value, 2), kind == "bf16")
            elements += [pair[..., 0], pair[..., 1]]
        else:
            bits = bits_of(group, value, 4)
            if kind == "tf32":
                bits = bits & np.uint32(0xFFFFE000)
            elements.append(bits.view(np.float32).astype(np.float64))
    first = warps(elements[0], 0.0)
    matrix = np.zeros((first.shape[0], first.shape[2], *extents))
    for element, (rows, columns) in zip(elements, positions, strict=True):
        matrix[:, :, rows, columns] = warps(element, 0.0).transpose(0, 2, 1)
    return matrix


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
    row, column = (_WITHIN * 2 + j, _GROUP) if transposed else (_GROUP, _WITHIN * 2 + j)
    split = np.stack([warps(rows[..., k], 0) for k in range(8)], axis=-1)  # (warps, 32, C, 8)
    lanes = split[:, 8 * matrix + row, :, column]  # the advanced indices come first: (32, warps, C)
    return np.array(unwarp(lanes.transpose(1, 0, 2), shape))
