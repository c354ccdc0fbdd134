"""Sparse wgmma: where the elements lie that are stored of A (PTX ISA, "Sparse matrix storage" of wgmma).

Each of the four warps has the metadata of its 16 rows as ``mma.sp`` has them. Of types of 16 and 32 bits the
selector tells which two lanes of each four hold them, of 8 bits all four do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.emulator.decode import Decoder, Reader
from harness.emulator.group import Group, spread
from harness.emulator.hopper.grid import WARPGROUP
from harness.emulator.hopper.order.races import misuse
from harness.emulator.hopper.wgmma.operands import SIZE
from harness.emulator.instructions.matrix.sparse import by_row, expanded
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction

_ROWS = 16  # of a warp
_TF32 = (0b0100, 0b1110)  # codes of the first and of the second element of two; others mean nothing


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The operands of a sparse product that tell where A's elements are: `read` returns the metadata.

    kind: the type of A
    """

    read: Reader
    selector: int
    kind: str

    def expanded(self, group: Group, ins: Instruction, stored: Array) -> Array:
        """Return A with its zeros, (64, K), from the elements that are stored, (64, K / 2).

        Codes that mean no position are reported.
        """
        bits = 8 * SIZE[self.kind]
        words = spread(self.read(group), group.shape).reshape(WARPGROUP // 32, 32, 1) & 0xFFFFFFFF
        rows = by_row(words, bits == 8, 64 if bits == 8 else 32, self.selector)
        codes = np.unique([rows >> shift & 0xF for shift in (0, 4, 8, 12)])
        wrong = [c for c in codes.tolist() if (c not in _TF32 if bits == 32 else c & 3 == c >> 2)]
        if wrong:
            what = f"sparse metadata {wrong[0]:04b}, which is the code of no position"
            misuse(group, ins, what, kind="wgmma misuse")
        return expanded(stored.reshape(*rows.shape[:2], _ROWS, -1), rows, bits).reshape(WARPGROUP // 2, -1)


def metadata_of(decoder: Decoder, ins: Instruction, kind: str) -> Metadata:
    """Decode the metadata and the selector of ``wgmma.mma_async.sp``."""
    if kind not in SIZE or kind == "b1" or len(ins.operands) < 6 or not ins.operands[4].isdecimal():
        raise decoder.refusal(ins)
    selector = int(ins.operands[4])
    if selector > (0 if SIZE[kind] == 1 else 1):
        raise decoder.refusal(ins, f"selector {selector} of {ins}")
    return Metadata(read=decoder.integer(ins, ins.operands[3], 32), selector=selector, kind=kind)
