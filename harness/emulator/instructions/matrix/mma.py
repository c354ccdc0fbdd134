"""``mma.sync``.

Floats of 8 to 19 bits are summed as `sums` says. Those of 64 bits are summed in the order of NumPy's product,
and agree with the hardware within a tolerance; integers are exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.instructions.matrix.fragments import (
    BITS,
    assemble,
    distribute,
    elements,
    extents,
    left,
    registers_of,
    right,
    sums,
)
from harness.emulator.instructions.matrix.sums import MMA, summed
from harness.emulator.numbers.values import Array, Lanes
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.patterns import WARP

# (shape, bits of an element) that exist, beside those of wmma.
_SHAPES = {
    ("m16n8k16", 16), ("m16n8k8", 16), ("m16n8k8", 32), ("m16n8k4", 32),
    ("m8n8k4", 64), ("m16n8k4", 64), ("m16n8k8", 64), ("m16n8k16", 64),
    ("m8n8k16", 8), ("m16n8k16", 8), ("m16n8k32", 8),
    ("m8n8k32", 4), ("m16n8k32", 4), ("m16n8k64", 4),
    ("m8n8k128", 1), ("m16n8k128", 1), ("m16n8k256", 1),
}  # fmt: skip
_INTEGERS = ("s8", "u8", "s4", "u4")
_TYPES = (*BITS, "satfinite", "xor", "and", "popc", "rn")


def share(ins: Instruction) -> int:
    """Return a lane's FLOP: a multiplication and an addition for each product of floats."""
    rows, columns, depth = extents(ins.opcode)
    floats = not {*_INTEGERS, "b1"} & set(ins.opcode)
    return 2 * rows * columns * depth // WARP if floats else 0


@handles("mma", flops=share)
def mma(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mma.sync``. Raises NeedsGpu for shapes and types that are not known, such as m8n8k4 of f16."""
    parts = decoder.parts(ins, {"sync", "aligned", "row", "col", *_TYPES, *(shape for shape, _ in _SHAPES)})
    shape = next(part for part in ins.opcode if part.startswith("m") and part != "mma")
    kinds = [part for part in ins.opcode if part in BITS]
    if len(kinds) != 4 or [p for p in ins.opcode if p in ("row", "col")] != ["row", "col"]:
        raise decoder.refusal(ins)
    to, kind, other, add = kinds
    matched = kind == other or {kind, other} <= {"s8", "u8"} or {kind, other} <= {"s4", "u4"}
    if (shape, BITS[kind]) not in _SHAPES or not (matched or {kind, other} <= {"e4m3", "e5m2"}) or to != add:
        raise decoder.refusal(ins)
    return product(decoder, ins, (to, kind, other, add), parts)


def product(decoder: Decoder, ins: Instruction, kinds: tuple[str, str, str, str], parts: set[str]) -> Run:
    """Return the function that computes ``D = A B + C`` from fragments of types `kinds`: D, A, B and C."""
    rows, columns, depth = extents(ins.opcode)
    to, kind, other, add = kinds
    places = left(rows, depth, BITS[kind]), right(depth, columns, BITS[other]), sums(rows, columns)
    into, a, b, c = (registers_of(text) for text in ins.operands)
    targets = [decoder.register(ins, name) for name in into]
    reads = [[decoder.value(ins, name) for name in names] for names in (a, b, c)]
    given = zip((a, b, c, into), (kind, other, add, to), (*places, places[2]), strict=True)
    if any(_held(names, of) < len(positions) for names, of, positions in given):
        raise decoder.refusal(ins)

    def run(group: Group, where: Lanes) -> None:
        x, y, total = (
            assemble(group, elements(group, [r(group) for r in read], of), positions, shape)
            for read, of, positions, shape in zip(
                reads,
                (kind, other, add),
                places,
                ((rows, depth), (depth, columns), (rows, columns)),
                strict=True,
            )
        )
        found = combined(x, y, total, parts, (kind, other), to)
        distribute(group, found, places[2], to, targets, where)

    return run


def _held(names: list[str], kind: str) -> int:
    """Return how many elements of a type registers hold."""
    return len(names) * max(1, 32 // BITS[kind])


def combined(
    x: Array,
    y: Array,
    total: Array,
    parts: set[str],
    kinds: tuple[str, str],
    to: str,
    spread: int = 1,
    kept: Array | None = None,
) -> Array:
    """Return ``x y + total`` of matrices (warps, C, rows, columns) in float64.

    spread: of so many elements along a row of `x` one may be other than zero, and is a term of a sum
    kept: which elements of `x` are stored, see `summed`

    Of single bits products are taken by ``.xor`` or ``.and``; with ``.satfinite`` integers are clipped.
    """
    if (model := MMA.get(kinds[0])) is not None:
        model = replace(model, terms=model.terms * spread, pairs=model.pairs * spread)
        # The products of all warps are computed together, along the last axes.
        first = [np.ascontiguousarray(matrix.transpose(2, 3, 0, 1)) for matrix in (x, y, total)]
        mask = None if kept is None else kept.transpose(2, 3, 0, 1)
        return summed(first[0], first[1], first[2], kinds, to, model, mask).transpose(2, 3, 0, 1)
    found: Array = np.matmul(x, y)
    if "xor" in parts:  # the ones of both, without those in common
        found = x.sum(-1)[..., None] + y.sum(-2)[..., None, :] - 2 * found
    found = found + total
    return np.clip(found, -(2.0**31), 2.0**31 - 1) if "satfinite" in parts and to == "s32" else found
