"""The cost model of `harness.matmul`: how many cycles a kernel takes for a product.

    cycles = start + hypot(steps * step + tiles * tile + sharing, memory * waiting) + copies

where `waiting` is for the compulsory bytes at the rate at which a copy reads and writes DRAM: neither hides
the other wholly (a sum of squares errs by 11.6%, the larger alone by 12.8%). Blocks on many SMs share the L2
cache: a step takes `crowded` times as long if all SMs are busy all the time, and less if fewer are. It takes
up to `thin` times as long if the matrices fill less of a tile: what is left of a step is not in the L2 cache.

The output is cut into tiles and each tile into SPLIT parts along k; each part is a block, and takes so many
steps along k. An SM runs `resident` blocks at once. `tiles` is how many blocks an SM runs in turn, the
busiest one, and `steps` how many steps these have together. Where it runs several at once, the steps of one
take at least `alone` each, however few others there are. A round of blocks that is not full takes as long
as a full one, because the scheduler gives a block to the SM that is free first, not to the emptiest; in the
only round there is, the SMs share blocks evenly.

A kernel that `shares` tiles is persistent. With ``"stream"`` (20_stream_k) the tiles left over after whole
rounds are shared among all blocks, or among fewer, so that each has at least LEAST steps of k. With
``"grid"`` (29_wgmma_grid_split) as many blocks share a tile as there are SMs for it. With ``"fill"``
(33_small_tiles and 39_bf16x6_tiles, which are not persistent) up to eight clusters of SPLIT blocks share one,
as many as fill the SMs BLOCKS times, if k is long enough for them; they do not wait for each other. With
``"clusters"`` (25_wgmma_tf32) as many clusters share a tile as there is room for. With ``"even"``
(35_wgmma_stream_k) all blocks have the same number of steps, wherever tiles end. Where tiles are shared,
`sharing` is added: for storing partial sums, finding those of the others and adding them. With ``"even"`` it
is for two blocks, and grows with their number, for one of them adds up what all have stored. With PINGPONG=1
(23_wgmma_pipeline) a tile's end passes under the steps of the next one, whose warps have the time of both.

All steps take no less than L2 needs to deliver A and B once for each cluster (`Candidate.l2_bytes`). A step
takes `turned_a` times as long where A is stored transposed, and `turned_b` where B is. A tile takes
`ragged` longer where rows of C begin elsewhere than at multiples of 16 bytes: TMA cannot store them then, and
threads cannot store 16 bytes at once.

With ``"panels"`` (32_bf16x6_panels, 36_fp16x3 and 38_3xtf32_panels) as many blocks share a tile as there are
SMs for it, if each has eight stages of it.

The SPLIT blocks of a tile are mostly a cluster, which must fit into one GPC: 132 SMs have room for 22
clusters of 5, not for 26 (`_CLUSTERS`). Where rows of A and B do not begin at multiples of 32 bytes, boxes
lie across sectors of the L2 cache, and a step takes `straddle` times as long; where those of one do not, as
much less as its bytes are of what L2 delivers.

All these constants, in cycles of the rated clock, are of a candidate, and fitted by scripts/fit_model.py to
times of sampled shapes on an H200 (benchmarks/shapes.py). `memory` is by how much a kernel misses the rate
that a copy reaches. On other GPUs they are used unchanged, but for the rate of a copy, which is that of their
DRAM (`traffic.dram_bytes`): on an H100 products that wait for it took 0.99 to 1.05 times as long as said.

Of operands that cannot have a tensor map, and are not copied first (`traffic.copied`), threads copy the rows
to shared memory, while others multiply: a step takes no less than `fed` cycles for each row of the tile that
has no map, and for 96 rows more (fitted: errors of 21%, 40% when bytes were counted). A kernel that takes no
maps reads such operands with steps `straddle` times `unmapped` as long: rung 37 shifts rows. Where one that
takes maps has threads copy rows, steps are `unmapped` times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.dispatch.model import traffic
from harness.dispatch.model.traffic import ALIGNED, Pitches
from harness.driver import Device
from harness.kernels.arch import Arch
from harness.kernels.dtypes import DTYPES, DType
from harness.kernels.spec import Kernel, Variant

NN = "NN"  # both operands row-major
# For a type, others whose kernels may be taken: they are no less exact.
AS_EXACT = {"bf16x6": ("fp32",), "fp16x3": ("bf16x6", "fp32"), "3xtf32": ("bf16x6", "fp32")}
THIN_AS_EXACT = {"tf32": ("fp32",)}  # the same for skinny kernels: they read memory as fast as it goes
SKINNY = 16  # the largest M or N for which the skinny kernels, which are bound by memory, are considered
SKINNY_NAME = "skinny"  # in the names of these kernels
_MOST_PASSES = 4  # of 40_skinny_dots over its large matrix
H200_SMS = 132
_SWIZZLED = 128  # bytes along k of one step of the tensor-core rungs
_ONE_STAGE = {"fp32": 4, "tf32": 8, "bf16": 16, "fp16": 16}  # k of a step of small tiles with one stage
_FED_MORE = 96  # rows of a step, for what copying them takes however few there are
_CLUSTERS = {3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}  # of so many blocks, for which H200_SMS have room
_MAPPED = 16  # bytes at whose multiples rows begin that TMA reads and writes
_L2_BYTES = 60  # a cycle and SM that L2 delivers on the average, at most: 59.6 in 89,352 times of TMA kernels
_LEAST_K, _LEAST_STAGES = 128, 8  # of a block of 33 or 25; of one of the panel rungs that shares a tile
_MOST_PARTS, _MOST_SHARERS = 8, 1024  # clusters that share a tile of 33; such blocks, on all tiles
_LEAST_STEPS = 4  # of a block of 35_wgmma_stream_k
_GRID_ROWS = 65535  # most tiles along M if the grid has a block per tile: CUDA's limit for y


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A variant with the parameters that the cost model needs; they are explained in the module's docstring.

    `resident` is blocks per SM, `start`, `step`, `alone`, `tile`, `ragged`, `sharing` and `fed` are cycles,
    `memory`, `straddle`, `crowded`, `thin`, `turned_a`, `turned_b` and `unmapped` factors, and `shares` is ""
    for kernels whose blocks do not share tiles. `batch` and `dram` are no constants: the cycles are those of
    a launch of so many products, on a GPU whose DRAM moves so many bytes per cycle and SM.
    """

    variant: Variant
    dtype: DType
    resident: int
    start: float
    step: float
    tile: float
    memory: float
    straddle: float = 1.0
    crowded: float = 1.0
    thin: float = 1.0
    turned_a: float = 1.0
    turned_b: float = 1.0
    unmapped: float = 1.0
    fed: float = 12.0
    alone: float = 0
    ragged: float = 0
    shares: str = ""
    sharing: float = 0
    batch: int = 1
    dram: float = traffic.DRAM_BYTES

    @property
    def skinny(self) -> bool:
        """True for the kernels that are made for a few rows or columns."""
        return SKINNY_NAME in self.variant.kernel.name

    @property
    def split(self) -> int:
        """The number of parts that k is split into."""
        return self.variant.params.get("SPLIT", 1)

    @property
    def depth(self) -> int:
        """The extent of k, in elements, that a block processes in one step."""
        return depth(self.variant)

    @property
    def fixed(self) -> Candidate:
        """This candidate, told to let as many blocks share a tile whatever M and N are, if it can be told."""
        if self.shares != "fill":
            return self
        return replace(self, variant=replace(self.variant, params={**self.variant.params, "BLOCKS": 0}))

    @property
    def persistent(self) -> bool:
        """True if the grid depends on the number of SMs instead of being one block per tile."""
        return any("SMS" in e.names for e in self.variant.kernel.grid)

    def serves(self, M: int, N: int, arch: str) -> bool:
        """Return True if it can compute M x N outputs on `arch`.

        A skinny kernel can only if M (rows) or N (columns) is at most `SKINNY`, and 40_skinny_dots only if it
        reads the large matrix at most `_MOST_PASSES` times.
        """
        (rows, columns), few = self.variant.tile, self.variant.params.get("FEW", SKINNY)
        if self.skinny and (M if columns > rows else N) > min(SKINNY, _MOST_PASSES * few):
            return False
        return self.variant.kernel.fits(arch) and (self.persistent or math.ceil(M / rows) <= _GRID_ROWS)

    def clusters(self, M: int, N: int) -> tuple[int, int]:
        """Return how many clusters of tiles lie one above the other, and how many side by side."""
        (rows, columns), cluster = self.variant.tile, self.variant.params.get("CLUSTER", 1)
        down = self.variant.params.get("ALONG_N") or cluster  # blocks of a cluster one above the other
        if self.variant.params.get("TRANSA") and "TRANSA" in self.variant.kernel.tile[0].names:
            down = cluster // down  # 25_wgmma_tf32 computes TT from the other side: its M is then N
        if self.variant.params.get("ACROSS"):
            down = cluster // down  # and so does 29_wgmma_grid_split
        return math.ceil(M / (rows * down)), math.ceil(N / (columns * (cluster // down)))

    def count(self, M: int, N: int) -> int:
        """Return the number of tiles."""
        return math.prod(self.clusters(M, N)) * self.variant.params.get("CLUSTER", 1) * self.batch

    def l2_bytes(self, M: int, N: int, K: int) -> int:
        """Return the bytes of A and B that are read from the L2 cache: once for each cluster."""
        return sum(self._reads(M, N).values()) * K * self.dtype.itemsize * self.batch

    def share(self, M: int, N: int, operands: str) -> float:
        """Return the part of `l2_bytes` that is of the `operands`: "", "A", "B" or "AB"."""
        read = self._reads(M, N)
        return sum(read[x] for x in operands) / sum(read.values())

    def _reads(self, M: int, N: int) -> dict[str, int]:
        """Return the rows of A and of the transposed B that are read, each once for each cluster."""
        above, beside = self.clusters(M, N)
        return {"A": M * beside, "B": N * above}

    def parts(self, M: int, N: int, K: int, sms: int) -> int:
        """Return how many blocks, or clusters of SPLIT, share a tile if they are to fill the SMs; else 1."""
        if self.shares == "clusters":
            room = sms // 2 if self.split == 2 else 10 * sms // (11 * self.split)  # as its grid counts
            return max(1, min(K // (_LEAST_K * self.split), room // self.count(M, N)))
        if self.shares != "fill":
            return 1
        most = min(_MOST_SHARERS, self.variant.params["BLOCKS"] * sms) // (self.count(M, N) * self.split)
        return max(1, min(_MOST_PARTS, K // (_LEAST_K * self.split), most))

    def room(self, sms: int) -> int:
        """Return how many clusters, or blocks without one, find room at once if an SM has one block."""
        together = self.split * self.variant.params.get("CLUSTER", 1)  # blocks, of a tile or of as many tiles
        return (_CLUSTERS if sms == H200_SMS else {}).get(together, max(1, sms // together))

    def turns(self, M: int, N: int, K: int, sms: int) -> tuple[int, int, float]:
        """Return the steps and the tiles of the busiest SM, and how often `sharing` is to be added."""
        cluster, tiles = self.variant.params.get("CLUSTER", 1), self.count(M, N)
        steps = math.ceil(math.ceil(K / self.split) / self.depth)
        room = self.room(sms)
        if self.shares == "stream":
            whole, rest = divmod(tiles, sms)
            sharers = max(rest, min(sms, rest * steps // self.variant.params["LEAST"]))
            share = math.ceil(rest * steps / sharers) if rest else 0
            return whole * steps + share, whole + (rest > 0), rest > 0
        if self.shares == "even":
            total = tiles // cluster * steps  # of all clusters
            share = math.ceil(total / min(room, max(1, total // _LEAST_STEPS)))
            alone = share % steps == 0
            return share, math.ceil(share / steps), 0 if alone else (math.ceil(steps / share) + 1) / 2
        if self.shares == "grid":
            tiles //= cluster  # fewer SMs hold several blocks
            sharers = max(1, min(room // tiles, steps))
            rounds = math.ceil(tiles / (room // sharers))
            return rounds * math.ceil(steps / sharers), rounds, sharers > 1
        if self.shares == "panels":
            stage = self.variant.params.get("PART_K", 32) * (2 if self.variant.tile[0] == 64 else 1)  # of k
            sharers = max(1, min(sms // tiles, steps * self.depth // (_LEAST_STAGES * stage)))
            rounds = math.ceil(tiles / (sms // sharers))
            return rounds * math.ceil(steps / sharers), rounds, sharers > 1
        if self.shares == "fill":
            parts = self.parts(M, N, K, sms)
            rounds, rest = divmod(tiles * self.split * parts, sms * self.resident)
            count = (rounds + (rest > 0)) * self.resident if rounds else math.ceil(rest / sms)
            return count * math.ceil(steps / parts), count, parts > 1
        at_once, parts = cluster * room, self.parts(M, N, K, sms)
        rounds, rest = divmod(tiles * parts, at_once * self.resident)
        count = (rounds + (rest > 0)) * self.resident if rounds else math.ceil(rest / at_once)
        return count * math.ceil(steps / parts), count, parts > 1

    def busy(
        self,
        M: int,
        N: int,
        K: int,
        sms: int,
        straddled: str = "",
        shifted: bool = False,
        fed: str = "",
        *,
        layout: str = NN,
        uneven: bool = False,
    ) -> float:
        """Return the cycles from the first block's start to the last one's end, if DRAM is not the limit.

        `straddled` names the operands whose rows lie across sectors, and `fed` those whose rows threads copy
        to shared memory. `layout` is what the kernel reads, and `uneven` says that rows of C are no multiple
        of 16 bytes apart.
        """
        steps, tiles, shared = self.turns(M, N, K, sms)
        in_turn = steps / tiles * math.ceil(tiles / self.resident)
        longest = max(steps * self.step, in_turn * self.alone) * (self.unmapped if shifted or fed else 1)
        longest *= 1 + (self.straddle - 1) * self.share(M, N, straddled)
        longest *= (self.turned_a if layout[0] == "T" else 1) * (self.turned_b if layout[1] == "T" else 1)
        tile = self.tile + (self.ragged if uneven or N * self.dtype.itemsize % _MAPPED else 0)
        if self.crowded != 1 and steps:
            longest *= self.crowded ** min(1, self.count(M, N) * math.ceil(K / self.depth) / (steps * sms))
        (rows, columns), least = self.variant.tile, {"A": M, "B": N}
        filled = M / math.ceil(M / rows) + N / math.ceil(N / columns)  # rows of A and B in a step
        longest *= float(self.thin ** (1 - filled / (rows + columns)))
        if fed:
            copied = sum(min(least[x], rows if x == "A" else columns) for x in fed)
            longest = max(longest, steps * self.fed * (copied + _FED_MORE))
        if self.variant.kernel.tensormaps:
            longest = max(longest, self.l2_bytes(M, N, K) / (sms * _L2_BYTES))
        if self.variant.params.get("PINGPONG"):
            return longest + tile + (tiles - 1) // 2 * max(0.0, tile - longest / tiles)
        return longest + tiles * tile + shared * self.sharing

    def cycles(self, M: int, N: int, K: int, sms: int, layout: str = NN, pitches: Pitches = ALIGNED) -> float:
        """Return the cycles of a product: its start, busy or waiting for DRAM, and copying before."""
        unmapped = pitches.unmapped
        elements, flips = {"A": M * K, "B": K * N}, traffic.unread(self.variant, layout)
        left = traffic.boxed(self.variant, "".join(x for x in unmapped if x not in flips))
        moved = traffic.copied(self.variant, M, N, K, sms=sms, unmapped=left, dram=self.dram)
        given: Any = {"dtype": self.dtype, "sms": sms, "dram": self.dram}
        copies = sum(traffic.copying(elements[x], **given, transposed=True) for x in flips)
        copies += sum(traffic.copying(elements[x], **given) for x in moved)
        waiting = traffic.compulsory(M, N, K, **given) * self.batch
        if self.shares == "panels":
            copies += traffic.splitting(self.variant, M, N, K, **given, layout=layout)
        apart = bool(unmapped and not self.variant.boxes)  # kernels without maps read any pitch
        fed = "".join(x for x in left if x not in moved)
        read = "".join("NT"[(kind == "T") != (x in flips)] for x, kind in zip("AB", layout, strict=True))
        straddled = pitches.across if apart else pitches.straddled
        busy = self.busy(M, N, K, sms, straddled, apart, fed, layout=read, uneven=pitches.uneven)
        return self.start + self.together(busy, waiting) + copies

    def together(self, busy: float, waiting: float) -> float:
        """Return the cycles of products that take `busy`, and compulsory bytes that take `waiting`.

        By how much DRAM is slower than an H200's counts in full where `memory` is below 1: there the L2 cache
        had a part of the bytes in time.
        """
        known = min(waiting, waiting * self.dram / traffic.DRAM_BYTES)  # as it was measured
        return math.hypot(busy, self.memory * known + max(1.0, self.memory) * (waiting - known))


def card(device: Device) -> dict[str, Any]:
    """Return what of a GPU, beside its name, the choice depends on."""
    arch = str(Arch.of_capability(*device.capability))
    return {"sms": device.sms, "arch": arch, "dram": traffic.dram_bytes(device)}


def takes(dtype: str, kernel: Kernel) -> bool:
    """Return True if products of a type may be computed by a kernel: of its own type, or no less exact."""
    thin = THIN_AS_EXACT.get(dtype, ()) if SKINNY_NAME in kernel.name else ()
    return kernel.dtype in (dtype, *AS_EXACT.get(dtype, ()), *thin)


def ranked(
    candidates: Sequence[Candidate],
    shape: tuple[int, int, int, int],
    *,
    layout: str,
    pitches: Pitches,
) -> list[tuple[Candidate, float]]:
    """Return candidates with their cycles for M, N, K and so many SMs, fastest first.

    Those with equal cycles (limited by DRAM) are in the order of their busy cycles. Left out are kernels that
    share tiles by the grid, where they would share none (of 1,020 so timed 5 were the fastest), and those of
    clusters where other candidates, without SHARE, compute the same.
    """
    candidates = [c for c in candidates if c.shares not in ("grid", "clusters") or c.turns(*shape)[2]]
    found = [(c.cycles(*shape, layout, pitches), c.busy(*shape, pitches.straddled), c) for c in candidates]
    found.sort(key=lambda one: one[:2])
    return [(one, cycles) for cycles, _, one in found]


def depth(variant: Variant) -> int:
    """Return the extent of k, in elements, that a block of the variant processes in one step."""
    if "FEW" in variant.params:  # 40_skinny_dots: 8 warps, of which some divide k, and a lane loads 16 bytes
        return 32 // variant.params["ROWS"] * 512 // DTYPES[variant.kernel.dtype].itemsize
    if variant.params.get("STAGES") == 1 and variant.kernel.dtype in _ONE_STAGE:
        return _ONE_STAGE[variant.kernel.dtype]
    return variant.params.get("BK", _SWIZZLED // DTYPES[variant.kernel.dtype].itemsize)
