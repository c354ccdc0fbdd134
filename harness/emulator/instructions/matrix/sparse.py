"""``mma.sp``: products in which half of A's elements are zero and are not stored.

Of each group of four elements (of eight for 4-bit types, of two for tf32) the metadata tell which half is
stored, by numbers of two bits, the first element's at the lowest bits. Here A is spread out to its full depth
and multiplied as by ``mma.sync``. PTX ISA, "Matrix multiply-accumulate operation using mma.sp instruction
with sparse matrix A".
"""

from __future__ import annotations

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group, spread
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
from harness.emulator.instructions.matrix.mma import combined, share
from harness.emulator.instructions.warp import warps
from harness.emulator.numbers.values import Array, Lanes
from harness.emulator.ptx.program import Instruction

# (shape, bits of an element) -> bits of metadata of a row, held by as many lanes of each four as they take.
_SHAPES = {
    ("m16n8k16", 16): 16, ("m16n8k32", 16): 32,
    ("m16n8k8", 32): 16, ("m16n8k16", 32): 32,
    ("m16n8k32", 8): 32, ("m16n8k64", 8): 64,
    ("m16n8k64", 4): 32, ("m16n8k128", 4): 64,
}  # fmt: skip
_ALLOWED = {"sp", "sp::ordered_metadata", "sync", "aligned", "row", "col", "satfinite", *BITS}


def _share(ins: Instruction) -> int:
    """Return a lane's FLOP: those of the elements that are stored."""
    return share(ins) // 2


@handles("mma.sp", flops=_share)
def sparse(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mma.sp``. Raises NeedsGpu for shapes and types that are not in the table above."""
    parts = decoder.parts(ins, _ALLOWED | {shape for shape, _ in _SHAPES})
    shape = next(part for part in ins.opcode[1:] if part.startswith("m"))
    kinds = [part for part in ins.opcode if part in BITS]
    if len(kinds) != 4 or (shape, BITS[kinds[1]]) not in _SHAPES or BITS[kinds[1]] != BITS[kinds[2]]:
        raise decoder.refusal(ins)
    to, kind, other, add = kinds
    rows, columns, depth = extents(ins.opcode)
    bits, width = BITS[kind], _SHAPES[shape, BITS[kind]]
    places = left(rows, depth // 2, bits), right(depth, columns, bits), sums(rows, columns)
    into, *given = (registers_of(text) for text in ins.operands[:4])
    targets = [decoder.register(ins, name) for name in into]
    reads = [[decoder.value(ins, name) for name in names] for names in given]
    counts = [len(positions) * bits // 32 for positions in places[:2]]
    counts += [len(places[2]) * max(16, BITS[of]) // 32 for of in (add, to)]
    if [len(names) for names in (*given, into)] != counts or len(ins.operands) != 6:
        raise decoder.refusal(ins)
    metadata = decoder.integer(ins, ins.operands[4], 32)
    selector = int(ins.operands[5], 0)
    if not 0 <= selector < 64 // width:
        raise decoder.refusal(ins, f"selector {selector} of {ins}")

    def run(group: Group, where: Lanes) -> None:
        stored, full, total = (
            assemble(group, elements(group, [r(group) for r in read], of), positions, extent)
            for read, of, positions, extent in zip(
                reads,
                (kind, other, add),
                places,
                ((rows, depth // 2), (depth, columns), (rows, columns)),
                strict=True,
            )
        )
        words = warps(spread(metadata(group), group.shape) & 0xFFFFFFFF, 0)
        codes = by_row(words, bits <= 8, width, selector)
        kept = None
        if not np.isfinite(full).all():
            kept = expanded(np.ones_like(stored), codes, bits) != 0
        whole = expanded(stored, codes, bits)
        found = combined(whole, full, total, parts, (kind, other), to, 2, kept)
        distribute(group, found, places[2], to, targets, where)

    return run


def by_row(words: Array, narrow: bool, width: int, selector: int) -> Array:
    """Return the metadata of each row of A, lowest bits first, in pieces of 16 bits: (warps, C, 16, pieces).

    words: the register of each lane, (warps, 32, C)
    narrow: the elements have 8 bits or fewer. A lane then has 32 bits of a row i, and the next lane those of
      the row i + 8; otherwise it has 16 bits of row i at the bottom and 16 of the row i + 8 at the top
    width: bits of a row. Where they do not take all four lanes, `selector` tells which of them or which pair
    """
    lanes = words.reshape(words.shape[0], 8, 4, -1).transpose(0, 3, 1, 2)  # (warps, C, row, lane of four)
    low, high = lanes & 0xFFFF, lanes >> 16
    if not narrow:
        mine = slice(selector * width // 16, (selector + 1) * width // 16)
        return np.concatenate([low[..., mine], high[..., mine]], axis=2)
    first = 0 if width == 64 else 2 * selector
    both = np.stack([low, high], axis=-1)  # of each lane
    rows = [both[..., first + row :: 2, :][..., : width // 32, :] for row in (0, 1)]
    return np.concatenate([row.reshape(*row.shape[:3], -1) for row in rows], axis=2)


def expanded(stored: Array, metadata: Array, bits: int) -> Array:
    """Return A with its zeros, (warps, C, 16, K), from its stored elements, (warps, C, 16, K / 2).

    metadata: those of `by_row`
    """
    numbers = np.stack([metadata >> shift & 3 for shift in range(0, 16, 2)], axis=-1)
    numbers = numbers.reshape(*metadata.shape[:3], -1, 2)  # two for each group of A
    if bits == 32:  # an element takes two of the four places of its group: the numbers 0, 1 or 2, 3
        numbers = numbers[..., :1] >> 1
    groups = numbers.shape[3]
    pair = 2 if bits == 4 else 1  # elements that share a number
    held = stored.reshape(*stored.shape[:3], groups, numbers.shape[4], pair)
    full = np.zeros((*stored.shape[:3], groups, 2 if bits == 32 else 4, pair))
    np.put_along_axis(full, np.broadcast_to(numbers[..., None], held.shape), held, axis=4)
    return full.reshape(*stored.shape[:3], -1)
