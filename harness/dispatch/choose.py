"""Choose the variant that `harness.matmul` runs for a product on a GPU: by measurement, or by a cost model.

``table.json`` beside this file holds the data for both. Each of its entries is for one element type, fp32 if
it names no ``dtype``.

``tuned`` has measurements, written by ``scripts/tune_matmul.py`` from result files: for a GPU, given by its
name and number of multiprocessors, ranges of M, N and K and the variant that was the fastest there. The first
entry whose ranges contain the shape decides. The user's own table (`harness.dispatch.user_table`, written by
``harness choose --write``) is searched before it.

``candidates`` are for shapes that no entry contains. The one with the fewest cycles by this model is taken:

    cycles = START + max(busy, compulsory bytes / (SMs * DRAM bytes per cycle and SM))

The output is cut into tiles and each tile into SPLIT parts along k; each part is a block. An SM runs
`resident` blocks at once. It reaches the fraction `full` of its peak with all of them and `alone` with one.
It is busy for

    each round of SMs * resident blocks     resident * work / full cycles
    a first round that is not full          b * work / share cycles,   b = blocks / SMs, rounded up

where `share` is interpolated linearly in b, from `alone` to `full`. A later round that is not full takes as
long as a full one, because the scheduler gives a block to the SM that is free first, not to the emptiest.

`work` is the cycles of one block at the SM's peak: its multiply-adds at 128 per cycle, on tensor cores 1024
(tf32, a third of that for 3xtf32) or 2048 (bf16, fp16, a sixth of that for bf16x6), where a tile at the edge
counts whole; and with SPLIT its partial sums, written and read once more. For a skinny kernel it is the bytes
that a block loads, at 64 per cycle.

A kernel with a `meeting` (20_stream_k) is persistent, with one block per SM. The tiles left over after whole
rounds are shared among all blocks, or among fewer, so that each has at least LEAST steps of k. To its share
each block adds one step of waiting, and `meeting` cycles to store its partial sums, find those of the others
and add them: 22,000 on the H200 with 128 x 256 tiles.

`alone` and `full` of rungs 11 to 14, 16 and 19 are fitted to times on the H200 at n = 512 to 4096 and at the
README's rectangles; those of 17 to its times there with ROWS=4. Rung 20 has those of 16, and 0.75 with tiles
of 64 rows, which is a little optimistic. Those of 15, 18, 19 with 128 x 256 tiles and the tensor-core rungs
are estimates. On other GPUs they are used unchanged, for want of measurements.

Operands that cannot have a tensor map may be worth copying to where they can (`copied`). A kernel loads such
an operand at 8 bytes per cycle and SM, while it multiplies: 2049 x 2047 x 2049 on the H200 took 200 to 273 us
in bf16 and 374 in tf32; the model says 199 and 397. A copy takes 2 us, plus the time to read and write each
byte at 3.5 TB/s (of the H200's 4.06).

The choice is deterministic, and the tables are read once: the same shape on the same kind of GPU always runs
the same code, with bitwise the same result. Alpha and beta do not affect the choice. Addresses and leading
dimensions affect only whether there are tensor maps and, in fp32 with a beta, the order of the last two
roundings: rows of C that do not begin at multiples of 16 bytes are stored in another way.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.dispatch import user_table
from harness.errors import UsageError
from harness.kernels import catalog
from harness.kernels.dtypes import DTYPES, FP32, DType
from harness.kernels.spec import Variant

NAME = "matmul"  # the name that stands for the dispatcher where a kernel's name is expected
SKINNY = 16  # the largest M or N for which the skinny kernels, which are bound by memory, are considered
H200_SMS = 132
_TABLE = Path(__file__).with_name("table.json")

_START = 8000  # cycles from launch to the first product and from the last to the end: 3 to 5 us on the H200
_SUM_CYCLES = 0.25  # cycles for each partial sum: 8 bytes through shared memory, at 32 per cycle between SMs
# Multiply-adds per cycle and SM: fp32 on compute capability 8.6 and later, other types on 9.0. On GPUs with
# lower rates the ranking hardly changes: all candidates of a type are affected alike, except the skinny
# kernels, whose work is counted in bytes.
_FMA = {"fp32": 128, "tf32": 1024, "3xtf32": 1024 / 3, "bf16x6": 2048 / 6, "bf16": 2048, "fp16": 2048}
_SWIZZLED = 128  # bytes along k of one step of the tensor-core rungs
_LOAD_BYTES = 64  # per cycle and SM, from L2
_DRAM_BYTES = 15.5  # per cycle and SM: 4.06 TB/s, which a copy reaches on the H200
_UNMAPPED_BYTES = 8  # per cycle and SM, loaded by a kernel without a tensor map
_COPY_START, _COPY_BYTES = 4000, 13.4  # cycles to start a copy; bytes per cycle and SM, read or written
_GRID_ROWS = 65535  # most tiles along M if the grid has a block per tile: CUDA's limit for y


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A variant with the parameters that the cost model needs; they are explained in the module's docstring.

    `resident` is blocks per SM, `alone` and `full` are fractions of an SM's peak, `meeting` is in cycles (0
    for kernels that are not stream-K).
    """

    variant: Variant
    dtype: DType
    resident: int
    alone: float
    full: float
    meeting: int = 0

    @property
    def skinny(self) -> bool:
        """True for the kernels that are made for a few rows or columns."""
        return "skinny" in self.variant.kernel.name

    @property
    def split(self) -> int:
        """The number of parts that k is split into."""
        return self.variant.params.get("SPLIT", 1)

    @property
    def step(self) -> int:
        """The extent of k, in elements, that a block processes in one step."""
        return self.variant.params.get("BK", _SWIZZLED // self.dtype.itemsize)

    @property
    def persistent(self) -> bool:
        """True if the grid depends on the number of SMs instead of being one block per tile."""
        return any("SMS" in e.text for e in self.variant.kernel.grid)

    def serves(self, M: int, N: int, arch: str) -> bool:
        """Return True if it can compute M x N outputs on `arch`.

        A skinny kernel can only if M (rows) or N (columns) is at most `SKINNY`.
        """
        rows, columns = self.variant.tile
        if self.skinny and (M if columns > rows else N) > SKINNY:
            return False
        return self.variant.kernel.fits(arch) and (self.persistent or math.ceil(M / rows) <= _GRID_ROWS)

    def work(self, K: int) -> float:
        """Return the work of one block, in cycles at its SM's peak."""
        rows, columns = self.variant.tile
        if self.skinny:
            return self.dtype.itemsize * (self.variant.loads or 0) * K / _LOAD_BYTES
        depth = math.ceil(math.ceil(K / self.split) / self.step) * self.step
        return rows * columns * (depth / _FMA[self.dtype.name] + _SUM_CYCLES * (self.split > 1))

    def busy(self, M: int, N: int, K: int, sms: int) -> float:
        """Return the cycles from the first block's start to the last one's end, if DRAM is not the limit."""
        rows, columns = self.variant.tile
        blocks = math.ceil(M / rows) * math.ceil(N / columns) * self.split
        if self.meeting:
            return self._busy_sharing(blocks, K, sms)
        rounds, rest = divmod(blocks, sms * self.resident)
        if rounds:
            return (rounds + (rest > 0)) * self.resident * self.work(K) / self.full
        together = math.ceil(rest / sms)
        part = (together - 1) / max(1, self.resident - 1)
        return together * self.work(K) / (self.alone + (self.full - self.alone) * part)

    def _busy_sharing(self, tiles: int, K: int, sms: int) -> float:
        """Return `busy` for a kernel with a `meeting`."""
        whole, rest = divmod(tiles, sms)
        if not rest:
            return whole * self.work(K) / self.full
        steps = math.ceil(K / self.step)
        sharers = max(rest, min(sms, rest * steps // self.variant.params["LEAST"]))
        share = rest / sharers + 1 / steps
        return (whole + share) * self.work(K) / self.full + self.meeting


def choose(M: int, N: int, K: int, *, sms: int, arch: str, gpu: str = "", dtype: str = FP32.name) -> Variant:
    """Return the variant for the product ``(M x K) @ (K x N)`` on a GPU with `sms` multiprocessors.

    `arch` is the architecture to compile for (``"sm_90a"``), and `gpu` the device's name as in the tables; if
    it is empty, the cost model decides. `dtype` is the element type: ``"fp32"``, ``"tf32"``, ``"3xtf32"``,
    ``"bf16x6"``, ``"bf16"`` or ``"fp16"``. Raises UsageError if no kernel can compute the product there.
    """
    return _choose(M, N, K, sms, arch, gpu, dtype)


@functools.lru_cache(maxsize=4096)
def _choose(M: int, N: int, K: int, sms: int, arch: str, gpu: str, dtype: str) -> Variant:
    """Compute `choose`; its results are cached."""
    known = measured(M, N, K, sms=sms, arch=arch, gpu=gpu, dtype=dtype)
    if known is not None:
        return known
    found = ranked(M, N, K, sms=sms, arch=arch, dtype=dtype)
    if not found:
        kernels = [c.variant.kernel for c in candidates() if c.dtype.name == dtype]
        archs = dict.fromkeys(
            a if a[-1].isalpha() else f"{a} and newer" for a in (k.min_arch for k in kernels)
        )
        fits = any(k.fits(arch) for k in kernels)
        hint = "M may be 8 million" if fits else f"its kernels are for {' or '.join(archs)}"
        raise UsageError(f"no kernel for {M}x{N}x{K} in {dtype} on {arch}", hint=hint)
    return found[0][0]


def measured(
    M: int, N: int, K: int, *, sms: int, arch: str, gpu: str, dtype: str = FP32.name
) -> Variant | None:
    """Return the fastest variant according to the tables, or None if no entry contains the shape.

    Arguments are those of `choose`. The user's own table is searched before the shipped one.
    """
    asked = gpu, sms, dtype
    for entry in (*user_table.entries(), *table()["tuned"]):
        about = entry["gpu"], entry["sms"], _dtype(entry)
        if about == asked and _inside(entry, {"M": M, "N": N, "K": K}):
            variant = _variant(entry)
            if variant.kernel.fits(arch):
                return variant
    return None


def ranked(
    M: int, N: int, K: int, *, sms: int, arch: str, dtype: str = FP32.name
) -> list[tuple[Variant, float]]:
    """Return the candidates that can compute the product, with their cycles by the cost model, fastest first.

    Arguments are those of `choose`. Candidates with equal cycles (limited by DRAM) are in the order of their
    busy cycles. Empty if there are none.
    """
    able = [c for c in candidates() if c.dtype.name == dtype and c.serves(M, N, arch)]
    traffic = _traffic(M, N, K, DTYPES[dtype], sms)
    serving = [(c.variant, c.busy(M, N, K, sms)) for c in able]
    serving.sort(key=lambda found: (max(found[1], traffic), found[1]))
    return [(variant, _START + max(busy, traffic)) for variant, busy in serving]


def _traffic(M: int, N: int, K: int, dtype: DType, sms: int) -> float:
    """Return the cycles that the compulsory DRAM traffic takes: each matrix read or written once."""
    return dtype.itemsize * (M * K + K * N + M * N) / (sms * _DRAM_BYTES)


def copied(variant: Variant, M: int, N: int, K: int, *, sms: int, unmapped: str) -> str:
    """Return which of the operands `unmapped` are worth copying to memory where they can have a tensor map.

    `unmapped` names those that cannot have one where they are: "", "A", "B" or "AB". The result is a part of
    it in the same order: the copies for which the cost model gives the fewest cycles in all. Operands for
    which the kernel takes no tensor map are never copied.
    """
    unmapped = "".join(x for x in unmapped if any(x == t.operand for t in variant.kernel.tensormaps))
    if not unmapped:
        return ""
    dtype, (rows, columns) = DTYPES[variant.kernel.dtype], variant.tile
    tiles = math.ceil(M / rows) * math.ceil(N / columns)
    # A kernel with a workspace shares each tile among as many blocks as there are SMs for it.
    split = max(1, sms // tiles) if variant.kernel.workspace else variant.params.get("SPLIT", 1)
    rounds = math.ceil(tiles * split / sms)
    depth = math.ceil(K / split)
    loads = {"A": min(rows, M), "B": min(columns, N)}
    elements = {"A": M * K, "B": K * N}

    def cycles(chosen: Sequence[str]) -> float:
        left = sum(loads[x] for x in unmapped if x not in chosen) * depth * dtype.itemsize
        copies = sum(_COPY_START + 2 * elements[x] * dtype.itemsize / (sms * _COPY_BYTES) for x in chosen)
        busy = rounds * max(rows * columns * depth / _FMA[dtype.name], left / _UNMAPPED_BYTES)
        return copies + max(busy, _traffic(M, N, K, dtype, sms))

    sets = [s for count in range(len(unmapped) + 1) for s in itertools.combinations(unmapped, count)]
    best = min(sets, key=cycles)  # the first of equals, which has the fewest copies
    return "".join(best)


@functools.cache
def candidates() -> tuple[Candidate, ...]:
    """Return the candidates of the shipped table, of all element types."""
    return tuple(
        Candidate(
            variant=_variant(c),
            dtype=DTYPES[_dtype(c)],
            resident=c["resident"],
            alone=c["alone"],
            full=c["full"],
            meeting=c.get("meeting", 0),
        )
        for c in table()["candidates"]
    )


@functools.cache
def table() -> Mapping[str, Any]:
    """Return the contents of the shipped ``table.json``."""
    return dict(json.loads(_TABLE.read_text(encoding="utf-8")))


def reread() -> None:
    """Forget the user's own table and all cached choices. Call it after that table has changed."""
    user_table.entries.cache_clear()
    _choose.cache_clear()


def _dtype(entry: Mapping[str, Any]) -> str:
    return str(entry.get("dtype", FP32.name))


def _variant(entry: Mapping[str, Any]) -> Variant:
    return catalog.kernel(entry["kernel"]).variant(**entry["params"])


def _inside(entry: Mapping[str, Any], shape: Mapping[str, int]) -> bool:
    """Return True if the entry's ranges, which include both ends, contain the shape."""
    return all(entry[axis][0] <= size <= entry[axis][1] for axis, size in shape.items())


def ranges(M: int, N: int, K: int, tile: tuple[int, ...]) -> dict[str, list[int]]:
    """Return the ranges of M, N and K, ends included, for which a measurement at one shape is taken as valid.

    `tile` is the (rows, columns) of the fastest variant's tile. The ranges contain all shapes with the same
    number of tiles and a K that differs by a factor of at most sqrt(2): the lead of the fastest variant
    changes in steps with the number of tiles, and slowly with K.
    """

    def extent(size: int, step: int) -> list[int]:
        return [max(1, (math.ceil(size / step) - 1) * step + 1), max(size, math.ceil(size / step) * step)]

    span = [math.ceil(K / math.sqrt(2)), math.floor(K * math.sqrt(2))]
    return {"M": extent(M, tile[0]), "N": extent(N, tile[1]), "K": span}
