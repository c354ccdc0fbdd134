"""The time that moving operands takes, and which of them are worth copying.

Operands that cannot have a tensor map may be worth copying to where they can: `copied` decides that by an
estimate of its own, for all kernels alike. There a copy takes 2 us, plus the time to read and write each byte
at 3.5 TB/s (of the H200's 4.06). Measured, copies of such operands are half as fast (`ODD_BYTES`), which the
cost model counts. The decision does not: it has to be that of the launches that the model was fitted to.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from harness.driver import Device
from harness.kernels.dtypes import DTYPES, DType
from harness.kernels.spec import LAYOUT, Variant

# Multiply-adds per cycle and SM: fp32 on compute capability 8.6 and later, other types on 9.0.
_FMA = {
    **{"fp32": 128, "tf32": 1024, "3xtf32": 1024 / 3},
    **{"fp16x3": 2048 / 3, "bf16x6": 2048 / 6, "bf16": 2048, "fp16": 2048},
}
DRAM_BYTES = 15.5  # per cycle and SM: 4.06 TB/s, which a copy reaches on the H200
_REACHED = 0.8415  # of the peak bandwidth, which is 4.81 TB/s there
_UNMAPPED_BYTES = 8  # per cycle and SM, loaded by a kernel without a tensor map
_COPYING = 2000, 14.5  # cycles to start a copy; bytes per cycle and SM, read or written
_TRANSPOSING = 4000, 13.4  # the same of a copy that transposes
_PANEL = 64  # k of a panel
_ACROSS = {"bf16x6": 3, "fp16x3": 3}  # how much longer it takes to split an operand stored transposed
_PANEL_BYTES = {"bf16x6": 10, "fp16x3": 12, "3xtf32": 12}  # read and written for an element


@dataclass(frozen=True, kw_only=True)
class Pitches:
    """The pitches of a product's matrices, as far as its time depends on where their rows begin.

    `straddled` names the operands ("", "A", "B" or "AB") whose rows begin at multiples of 16 bytes that are
    not all multiples of 32, `unmapped` those whose rows do not even begin there, so that no tensor map
    describes them. `uneven` says the latter of C, and `c_straddled` the former: sectors that two tiles store
    parts of take longer.
    """

    straddled: str = ""
    unmapped: str = ""
    uneven: bool = False
    c_straddled: bool = False

    @property
    def across(self) -> str:
        """The operands whose rows lie across sectors of the L2 cache, with and without a tensor map."""
        return "".join(x for x in "AB" if x in self.straddled + self.unmapped)


ALIGNED = Pitches()


def unread(variant: Variant, layout: str) -> str:
    """Return which operands the variant does not read as they are stored: "", "A", "B" or "AB"."""
    kinds = zip("AB", LAYOUT, layout, strict=True)
    return "".join(x for x, name, kind in kinds if variant.params.get(name, 0) != (kind == "T"))


def boxed(variant: Variant, operands: str) -> str:
    """Return those of the operands that the variant reads by a tensor map."""
    return "".join(x for x in operands if any(x == box.operand for box in variant.boxes))


def dram_bytes(device: Device | None) -> float:
    """Return the bytes per cycle and SM that a copy reads and writes on a GPU.

    That is the share of the peak bandwidth that a copy reaches on an H200, to a tenth of a byte. If the
    driver reports no clocks, and of a GPU that is not known, it is an H200's `DRAM_BYTES`.
    """
    if device is None or not device.clock_hz:
        return DRAM_BYTES
    return round(_REACHED * device.peak_bandwidth / (device.sms * device.clock_hz), 1) or DRAM_BYTES


def copying(
    elements: int, dtype: DType, sms: int, *, transposed: bool = False, dram: float = DRAM_BYTES
) -> float:
    """Return the cycles that copying so many elements takes, to rows or `transposed`."""
    start, rate = _TRANSPOSING if transposed else _COPYING
    return start + 2 * elements * dtype.itemsize / (sms * rate * dram / DRAM_BYTES)


def compulsory(M: int, N: int, K: int, dtype: DType, sms: int, dram: float = DRAM_BYTES) -> float:
    """Return the cycles that the compulsory DRAM traffic takes: each matrix read or written once."""
    return dtype.itemsize * (M * K + K * N + M * N) / (sms * dram)


def copied(
    variant: Variant, M: int, N: int, K: int, *, sms: int, unmapped: str, dram: float = DRAM_BYTES
) -> str:
    """Return which of the operands `unmapped` are worth copying to memory where they can have a tensor map.

    `unmapped` names those that cannot have one where they are: "", "A", "B" or "AB". The result is a part of
    it in the same order: the copies with which copying, multiplying and loading take the fewest cycles, if a
    kernel loads what it has no map of at 8 bytes per cycle and SM. Operands for which the kernel takes no
    tensor map are never copied.
    """
    unmapped = boxed(variant, unmapped)
    if not unmapped:
        return ""
    dtype, (rows, columns) = DTYPES[variant.kernel.dtype], variant.tile
    tiles = math.ceil(M / rows) * math.ceil(N / columns)
    split = variant.params.get("SPLIT", 1)
    # A kernel with a workspace shares each tile among as many blocks as there are SMs for it; 25 if SHARE=1.
    if variant.kernel.workspace and ("SPLIT" not in variant.params or variant.params.get("SHARE")):
        split = max(split, sms // tiles)
    rounds = math.ceil(tiles * split / sms)
    depth = math.ceil(K / split)
    loads = {"A": min(rows, M), "B": min(columns, N)}
    elements = {"A": M * K, "B": K * N}

    def busy(loaded: int) -> float:
        """Return the cycles in which blocks load so many rows and columns by threads, while they multiply."""
        by_threads = loaded * depth * dtype.itemsize / _UNMAPPED_BYTES
        multiplying = rows * columns * depth / _FMA[dtype.name]
        return max(rounds * max(multiplying, by_threads), compulsory(M, N, K, dtype, sms, dram))

    def cycles(chosen: str) -> float:
        copies = sum(copying(elements[x], dtype, sms, dram=dram) for x in chosen)
        return copies + busy(sum(loads[x] for x in unmapped if x not in chosen))

    sets = (s for count in range(len(unmapped) + 1) for s in itertools.combinations(unmapped, count))
    return min(map("".join, sets), key=cycles)  # the first of equals, which has the fewest copies


def splitting(
    variant: Variant, M: int, N: int, K: int, *, dtype: DType, sms: int, dram: float, layout: str
) -> float:
    """Return the cycles that the passes over A and B take, before a product of panels: each writes panels.

    Of an operand stored transposed a lane of 32 and 36 writes a line of its own, which takes `_ACROSS` times
    as long. 38 transposes such lines in shared memory.
    """
    across = _ACROSS.get(dtype.name, 1)
    (rows, columns), k = variant.tile, _up(K, _PANEL)
    elements = _up(M, rows) * k, _up(N, columns) * k
    passes = sum(n * (across if flip == "T" else 1) for n, flip in zip(elements, layout, strict=True))
    return passes * _PANEL_BYTES[dtype.name] / (sms * dram)


def _up(size: int, step: int) -> int:
    """Return the multiple of `step` from `size` on."""
    return -(-size // step) * step
