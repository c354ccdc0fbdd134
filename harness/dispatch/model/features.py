"""Describe a candidate and a product in numbers, for the trees that correct the cost model.

Trees ask one number at a time, so that what is a ratio or a product of several is given, too: how well tiles
fill the last wave of blocks, and how many multiply-adds and bytes there are a cycle of the modelled ones.
Blocks are those that tiles are for; a persistent kernel launches fewer.
"""

from __future__ import annotations

import math

from harness.dispatch.model import traffic
from harness.dispatch.model.cost import Candidate
from harness.dispatch.model.traffic import Pitches

_PARAMETERS = (
    *("STAGES", "CLUSTER", "ALONG_N", "SPLIT", "SHARE", "ACROSS", "BLOCKS", "WARPS_M", "FEW", "ROWS"),
    *("OUTPUTS", "BK", "TURN", "SLICES", "GROUP", "PINGPONG"),
)
_CONSTANTS = ("resident", "start", "step")  # which tell candidates apart that differ in little
_PRODUCT = ("log2 M", "log2 N", "log2 K", "log2 M / N", "log2 multiply-adds", "A MiB", "B MiB", "C MiB")
_TILES = (
    *("tile rows", "tile columns", "filled rows", "filled columns", "tiles / SMs", "log2 blocks"),
    *("waves", "last wave", "last block", "blocks at once"),
)
_STEPS = (
    *("log2 steps", "tiles of an SM", "log2 steps of a tile", "sharing", "parts"),
    *("k of a step", "rest of a step", "rest of K"),
)
_RATES = (
    *("log2 cycles", "log2 cycles / waiting", "log2 multiply-adds / cycle", "log2 L2 bytes"),
    *("log2 L2 bytes / cycle", "C bytes / cycle", "DRAM bytes / cycle"),
)
_LAYOUT = (
    *("A transposed", "B transposed", "A unmapped", "B unmapped"),
    *("copies transposed", "copies", "A straddled", "B straddled", "straddled", "uneven"),
    "C straddled",
)
FEATURES = ("rung", *_PARAMETERS, *_CONSTANTS, *_PRODUCT, *_TILES, *_STEPS, *_RATES, *_LAYOUT)


def described(
    one: Candidate,
    shape: tuple[int, int, int, int],
    *,
    layout: str,
    pitches: Pitches,
    cycles: float,
) -> list[float]:
    """Return the `FEATURES` of a candidate for M, N, K and so many SMs, with its modelled `cycles`.

    Rates are of one SM.
    """
    params = one.variant.params
    if params.get("STAGES") == 0:
        params = {**params, "STAGES": _as_many_as_fit(one)}
    numbers = [params.get(name, 0) for name in _PARAMETERS] + [getattr(one, name) for name in _CONSTANTS]
    numbers += _product(one, shape) + _tiles(one, shape) + _steps(one, shape)
    numbers += _rates(one, shape, cycles) + _layout(one, shape, layout, pitches)
    return [float(one.variant.kernel.path.stem[:2]), *map(float, numbers)]


def _as_many_as_fit(one: Candidate) -> int:
    """Return about how many stages fit, as if shared memory held whole tiles and nothing else."""
    return one.variant.shared // (sum(one.variant.tile) * one.depth * one.dtype.itemsize)


def _product(one: Candidate, shape: tuple[int, int, int, int]) -> list[float]:
    (M, N, K, _), size = shape, one.dtype.itemsize / 2**20
    logarithms = [math.log2(max(1, x)) for x in (M, N, K)]
    work = math.log2(M * N * max(1, K))
    return [*logarithms, math.log2(M / N), work, M * K * size, K * N * size, M * N * size]


def _tiles(one: Candidate, shape: tuple[int, int, int, int]) -> list[float]:
    (M, N, _, sms), (rows, columns) = shape, one.variant.tile
    tiles = one.count(M, N)
    blocks = tiles * one.split * one.parts(*shape)
    waves, each = blocks / (sms * one.resident), blocks / sms
    filled = [M / (math.ceil(M / rows) * rows), N / (math.ceil(N / columns) * columns)]
    # By how much more there would be if the last wave, or the last block of each SM, were whole.
    last = [math.ceil(waves) / waves, math.ceil(each) / each]
    return [rows, columns, *filled, tiles / sms, math.log2(blocks), waves, *last, min(one.resident, each)]


def _steps(one: Candidate, shape: tuple[int, int, int, int]) -> list[float]:
    K, parts = shape[2], one.parts(*shape)
    steps, tiles, shared = one.turns(*shape)
    each = math.log2(max(1, steps / max(1, tiles)))
    rest = K / one.split / parts % one.depth
    return [math.log2(max(1, steps)), tiles, each, shared, parts, one.depth, rest, K % 64]


def _rates(one: Candidate, shape: tuple[int, int, int, int], cycles: float) -> list[float]:
    M, N, K, sms = shape
    waiting = traffic.compulsory(M, N, K, dtype=one.dtype, sms=sms, dram=one.dram)
    work = math.log2(M * N * max(1, K) / sms / cycles)
    from_l2 = one.l2_bytes(M, N, max(1, K))
    stored = M * N * one.dtype.itemsize / sms / cycles
    l2 = [math.log2(from_l2), math.log2(from_l2 / sms / cycles)]
    return [math.log2(cycles), math.log2(cycles / waiting), work, *l2, stored, one.dram]


def _layout(one: Candidate, shape: tuple[int, int, int, int], layout: str, pitches: Pitches) -> list[float]:
    M, N, K, sms = shape
    flips = traffic.unread(one.variant, layout)
    left = traffic.boxed(one.variant, "".join(x for x in pitches.unmapped if x not in flips))
    moved = traffic.copied(one.variant, M, N, K, sms=sms, unmapped=left, dram=one.dram)
    unmapped = ["A" in pitches.unmapped, "B" in pitches.unmapped]
    straddled = ["A" in pitches.straddled, "B" in pitches.straddled, one.share(M, N, pitches.straddled)]
    return [
        *(layout[0] == "T", layout[1] == "T", *unmapped, len(flips), len(moved)),
        *(*straddled, pitches.uneven, pitches.c_straddled),
    ]
