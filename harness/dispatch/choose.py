"""A product's shape and a GPU -> the variant that `harness.matmul` runs: as measured, or by a cost model.

``table.json`` beside this file holds both. ``tuned``: for a GPU by name, ranges of M, N and K and the
variant that was the fastest there (written by ``records/tune_matmul.py`` from result files); the first range
that holds the shape decides, and before it those of a table of your own (`own_table`, written by ``harness
choose --write``). Everywhere else the cheapest of the ``candidates``. Each is for one element type, fp32
where it names no ``dtype``:

    cycles = START + max(busy, compulsory bytes / (SMs * DRAM bytes a cycle))

The output is cut into tiles, each tile into SPLIT parts of k, and each part is a block. An SM holds
`resident` blocks at once and reaches the share `full` of its peak with all of them, `alone` with one; it is
busy for

    each round of SMs * resident blocks     resident * work / full
    a first round that is not full          b * work / share,   b = blocks / SMs, rounded up

with `share` on the line from `alone` to `full`. A later round that is not full takes as long as a full one,
for the scheduler fills the SM that is free first, not the emptiest. `work` is in cycles: a block's
multiply-adds (a tile counts whole, ragged or not) at 128 a cycle, on tensor cores 1024 (tf32) or 2048 (bf16,
fp16), and with SPLIT its sums, written and read once more; for a skinny kernel the bytes that a block loads,
at 64 a cycle.

A kernel with a `meeting` (20_stream_k) is persistent, a block an SM, and shares the tiles that are left over
after the whole rounds among all blocks, or among fewer, so that each has LEAST steps of k. To its part of a
tile each adds a step that it waits for, and `meeting` cycles for leaving sums, finding the others and adding
up: 22,000 on the H200 with 128 x 256 tiles.

The shares of rungs 11 to 14, 16 and 19 are fitted to the H200's times at n = 512 to 4096 and at the README's
rectangles, those of 17 to its ROWS=4 there; 20 has those of 16, and 0.75 with 64 rows, a little optimistic;
those of 15, 18, of 19 with 128 x 256 tiles and of the tensor-core rungs are estimates. On other GPUs they
stand in for what nobody has measured.

`copied` says which operands that cannot have a tensor map are worth a copy that can. A kernel loads such an
operand at 8 bytes a cycle and SM, beside the products: 2049 x 2047 x 2049 on the H200 took 200 to 273 us in
bf16 and 374 in tf32, the model says 199 and 397. A copy takes 2 us, and each byte is read and written at
3.5 TB/s (of the H200's 4.06).

Deterministic, by tables that are read once: the same shape on the same kind of GPU is always the same code,
and bitwise the same result. (Alpha and beta do not enter, addresses and leading dimensions only in whether
there are tensor maps, and with beta in the order of the last two roundings in fp32: C's rows are stored in
another way where they begin at no multiple of 16 bytes.)
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

NAME = "matmul"  # what the dispatcher is called where kernels are named
SKINNY = 16  # M or N up to here may go to the kernels that are bound by memory
H200_SMS = 132
_TABLE = Path(__file__).with_name("table.json")

_START = 8000  # cycles from launch to the first product and from the last to the end: 3 to 5 us on the H200
_SUM_CYCLES = 0.25  # 8 bytes through shared memory for each sum of a block, 32 a cycle between SMs
# Multiply-adds a cycle and SM: of float32 from compute capability 8.6 on and on 9.0, of the others on 9.0.
# Where they are fewer, they are for all candidates of a type alike.
_FMA = {"fp32": 128, "tf32": 1024, "3xtf32": 1024 / 3, "bf16": 2048, "fp16": 2048}
_SWIZZLED = 128  # bytes of k that a step of the tensor-core rungs takes
_LOAD_BYTES = 64  # a cycle and SM, from L2
_DRAM_BYTES = 15.5  # a cycle and SM: 4.06 TB/s of the H200, copied
_UNMAPPED_BYTES = 8  # a cycle and SM, loaded by a kernel that has no tensor map
_COPY_START, _COPY_BYTES = 4000, 13.4  # cycles before a copy; bytes a cycle and SM, read or written
_GRID_ROWS = 65535  # tiles along M, where the grid is a block a tile: CUDA's limit for y


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A variant, and what the model needs to know of it (see the module)."""

    variant: Variant
    dtype: DType
    resident: int
    alone: float
    full: float
    meeting: int = 0

    @property
    def skinny(self) -> bool:
        return "skinny" in self.variant.kernel.name

    @property
    def split(self) -> int:
        return self.variant.params.get("SPLIT", 1)

    @property
    def step(self) -> int:
        """Of k, that a block takes at once."""
        return self.variant.params.get("BK", _SWIZZLED // self.dtype.itemsize)

    @property
    def persistent(self) -> bool:
        return any("SMS" in e.text for e in self.variant.kernel.grid)

    def serves(self, M: int, N: int, arch: str) -> bool:
        """Whether it can run there, and is not a skinny kernel far from home."""
        rows, columns = self.variant.tile
        if self.skinny and (M if columns > rows else N) > SKINNY:
            return False
        return self.variant.kernel.fits(arch) and (self.persistent or math.ceil(M / rows) <= _GRID_ROWS)

    def work(self, K: int) -> float:
        """Of a block, in cycles at its SM's peak."""
        rows, columns = self.variant.tile
        if self.skinny:
            return self.dtype.itemsize * (self.variant.loads or 0) * K / _LOAD_BYTES
        depth = math.ceil(math.ceil(K / self.split) / self.step) * self.step
        return rows * columns * (depth / _FMA[self.dtype.name] + _SUM_CYCLES * (self.split > 1))

    def busy(self, M: int, N: int, K: int, sms: int) -> float:
        """Cycles from the first block's start to the last one's end, if memory does not hold them up."""
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
        whole, rest = divmod(tiles, sms)
        if not rest:
            return whole * self.work(K) / self.full
        steps = math.ceil(K / self.step)
        sharers = max(rest, min(sms, rest * steps // self.variant.params["LEAST"]))
        share = rest / sharers + 1 / steps
        return (whole + share) * self.work(K) / self.full + self.meeting


def choose(M: int, N: int, K: int, *, sms: int, arch: str, gpu: str = "", dtype: str = FP32.name) -> Variant:
    """The variant for ``(M x K) @ (K x N)`` on a GPU of `sms` multiprocessors.

    `arch` is what it is compiled for (``"sm_90a"``); `gpu` the device's name, by which the table knows it: an
    empty one leaves the choice to the model. `dtype` names the element type. Raises UsageError where no
    kernel here serves.
    """
    return _choose(M, N, K, sms, arch, gpu, dtype)


@functools.lru_cache(maxsize=4096)
def _choose(M: int, N: int, K: int, sms: int, arch: str, gpu: str, dtype: str) -> Variant:
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
    """What a table says is the fastest, if one knows the shape."""
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
    """The candidates that serve, the best first, with their cycles by the model; of equals the less busy."""
    able = [c for c in candidates() if c.dtype.name == dtype and c.serves(M, N, arch)]
    traffic = _traffic(M, N, K, DTYPES[dtype], sms)
    serving = [(c.variant, c.busy(M, N, K, sms)) for c in able]
    serving.sort(key=lambda found: (max(found[1], traffic), found[1]))
    return [(variant, _START + max(busy, traffic)) for variant, busy in serving]


def _traffic(M: int, N: int, K: int, dtype: DType, sms: int) -> float:
    """Cycles that compulsory bytes take: each operand read or written once."""
    return dtype.itemsize * (M * K + K * N + M * N) / (sms * _DRAM_BYTES)


def copied(variant: Variant, M: int, N: int, K: int, *, sms: int, unmapped: str) -> str:
    """The operands among `unmapped` ("", "A", "B", "AB": those that cannot have a tensor map) that are better
    copied to where they can, in that order.
    """
    unmapped = "".join(x for x in unmapped if any(x == t.operand for t in variant.kernel.tensormaps))
    if not unmapped:
        return ""
    dtype, (rows, columns) = DTYPES[variant.kernel.dtype], variant.tile
    tiles = math.ceil(M / rows) * math.ceil(N / columns)
    # A kernel with a workspace shares each tile among as many blocks as there are.
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
    best = min(sets, key=cycles)  # of equals the fewest copies
    return "".join(best)


@functools.cache
def candidates() -> tuple[Candidate, ...]:
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
    """``table.json`` as it is shipped."""
    return dict(json.loads(_TABLE.read_text(encoding="utf-8")))


def reread() -> None:
    """A table has changed."""
    user_table.entries.cache_clear()
    _choose.cache_clear()


def _dtype(entry: Mapping[str, Any]) -> str:
    return str(entry.get("dtype", FP32.name))


def _variant(entry: Mapping[str, Any]) -> Variant:
    return catalog.kernel(entry["kernel"]).variant(**entry["params"])


def _inside(entry: Mapping[str, Any], shape: Mapping[str, int]) -> bool:
    return all(entry[axis][0] <= size <= entry[axis][1] for axis, size in shape.items())


def ranges(M: int, N: int, K: int, tile: tuple[int, ...]) -> dict[str, list[int]]:
    """The shapes for which a measurement at one of them speaks: as many tiles of the winner, and K within
    half an octave (its lead changes in steps with the tiles, and slowly with K).
    """

    def extent(size: int, step: int) -> list[int]:
        return [max(1, (math.ceil(size / step) - 1) * step + 1), max(size, math.ceil(size / step) * step)]

    span = [math.ceil(K / math.sqrt(2)), math.floor(K * math.sqrt(2))]
    return {"M": extent(M, tile[0]), "N": extent(N, tile[1]), "K": span}
