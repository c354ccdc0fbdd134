"""The Hopper rungs in the emulator: every rung and alias, and ragged shapes drawn for each."""

from __future__ import annotations

import random
from functools import cache

import harness
from harness.bench.emulation import Options, row
from harness.bench.row import Measurement
from harness.kernels.spec import Variant
from harness.launch.builds import Built
from harness.problems import checks
from harness.problems.registry import resolve

Axes = dict[str, float]
# (rung or alias, parameters): the defaults, and clusters and small tiles where a rung has them.
VARIANTS: dict[str, tuple[str, dict[str, int]]] = {
    "15": ("15_split_k", {}),
    "15 in fours": ("15_split_k", {"SPLIT": 4}),
    "16": ("16_pipeline", {}),
    "19": ("19_pipeline_split", {}),
    "20": ("20_stream_k", {}),
    "20 in lines": ("20_stream_k", {"BM": 64, "WM": 32, "CHUNK": 16, "TRANSB": 1}),
    "20 in lines of 16 TT": (
        "20_stream_k",
        {"BM": 64, "BK": 16, "WM": 32, "STAGES": 8, "TRANSA": 1, "TRANSB": 1},
    ),
    "20 of 32 columns": ("20_stream_k", {"BM": 256, "BN": 32, "WN": 32, "SLICES": 2}),
    "20 of 32 columns TT": (
        "20_stream_k",
        {"BM": 256, "BN": 32, "WN": 32, "STAGES": 6, "SLICES": 2, "TRANSA": 1, "TRANSB": 1},
    ),
    "20 of 256 rows in lines NT": ("20_stream_k", {"BM": 256, "BN": 64, "WN": 32, "TRANSB": 1}),
    "20 of 32 rows TN": ("20_stream_k", {"BM": 32, "WM": 32, "STAGES": 6, "SLICES": 2, "TRANSA": 1}),
    "20 of 32 rows in lines": ("20_stream_k", {"BM": 32, "WM": 32, "SLICES": 2, "TRANSB": 1}),
    "20 of 64 columns TT": (
        "20_stream_k",
        {"BN": 64, "WM": 32, "STAGES": 6, "SLICES": 2, "TRANSA": 1, "TRANSB": 1},
    ),
    "22": ("22_wgmma", {}),
    "22a": ("22a_warp_specialized", {}),
    "22b": ("22b_persistent", {}),
    "22c": ("22c_tma_store", {}),
    "23": ("23_wgmma_pipeline", {}),
    "23 in pairs": ("23_wgmma_pipeline", {"CLUSTER": 2}),
    "23 in pairs, odd boxes": ("23_wgmma_pipeline", {"BN": 160, "CLUSTER": 2}),
    "23 side by side": ("23_wgmma_pipeline", {"CLUSTER": 2, "ALONG_N": 1}),
    "23 side by side TT": (
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 160, "STAGES": 6, "CLUSTER": 2, "ALONG_N": 1, "TRANSA": 1, "TRANSB": 1},
    ),
    "23 two by two": (
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 128, "STAGES": 8, "CLUSTER": 4, "ALONG_N": 2, "TRANSA": 1},
    ),
    "23 in fours": ("23_wgmma_pipeline", {"BM": 64, "BN": 96, "STAGES": 8, "CLUSTER": 4, "TRANSB": 1}),
    "23 small": ("23_wgmma_pipeline", {"BM": 64, "BN": 64, "STAGES": 8}),
    "23 half a box": ("23_wgmma_pipeline", {"BM": 192, "BN": 96}),
    "23 of 256 rows": ("23_wgmma_pipeline", {"BM": 256, "BN": 96, "STAGES": 3, "CLUSTER": 2}),
    "23 of 256 rows NT": ("23_wgmma_pipeline", {"BM": 256, "BN": 160, "TRANSB": 1}),
    "23 across": ("23_wgmma_pipeline", {"BM": 80, "BN": 64, "STAGES": 8, "TRANSA": 1}),
    "23 across, two by two": (
        "23_wgmma_pipeline",
        {"BM": 144, "BN": 128, "CLUSTER": 4, "ALONG_N": 2, "TRANSB": 1},
    ),
    "23 ping-pong": ("23_wgmma_pipeline", {"BM": 64, "BN": 96, "STAGES": 8, "PINGPONG": 1}),
    "23 ping-pong in pairs": (
        "23_wgmma_pipeline",
        {"BN": 64, "STAGES": 6, "PINGPONG": 1, "CLUSTER": 2, "TRANSB": 1},
    ),
    "23 ping-pong of 192": ("23_wgmma_pipeline", {"STAGES": 0, "BN": 192, "PINGPONG": 1, "TRANSA": 1}),
    "23 ping-pong across": (
        "23_wgmma_pipeline",
        {"BM": 80, "BN": 64, "STAGES": 8, "PINGPONG": 1, "CLUSTER": 2, "TRANSA": 1, "TRANSB": 1},
    ),
    "23 of 32 columns": ("23_wgmma_pipeline", {"BN": 32, "STAGES": 8}),
    "23 in eights": ("23_wgmma_pipeline", {"BM": 64, "BN": 64, "STAGES": 8, "CLUSTER": 8, "TRANSB": 1}),
    "23 four by two": (
        "23_wgmma_pipeline",
        {"BM": 96, "BN": 64, "STAGES": 8, "CLUSTER": 8, "ALONG_N": 2, "TRANSA": 1, "TRANSB": 1},
    ),
    "23 two by four": ("23_wgmma_pipeline", {"BM": 64, "BN": 128, "STAGES": 8, "CLUSTER": 8, "ALONG_N": 4}),
    "23 of 72": ("23_wgmma_pipeline", {"BM": 72, "BN": 128, "STAGES": 6}),
    "23 of 136 TT": ("23_wgmma_pipeline", {"BM": 136, "BN": 128, "CLUSTER": 2, "TRANSA": 1, "TRANSB": 1}),
    "23 of 168, in turn": (
        "23_wgmma_pipeline",
        {"BM": 168, "BN": 64, "STAGES": 6, "CLUSTER": 4, "ALONG_N": 1, "TRANSB": 1},
    ),
    "23 of 40, four by two": (
        "23_wgmma_pipeline",
        {"BM": 40, "BN": 64, "STAGES": 12, "CLUSTER": 8, "ALONG_N": 2},
    ),
    "23 of 48 TT": ("23_wgmma_pipeline", {"BM": 48, "BN": 64, "STAGES": 12, "TRANSA": 1, "TRANSB": 1}),
    "23 as deep as fits": ("23_wgmma_pipeline", {"BM": 192, "BN": 192, "STAGES": 0}),
    "23 as deep as fits, across TT": (
        "23_wgmma_pipeline",
        {"BM": 176, "BN": 192, "STAGES": 0, "CLUSTER": 2, "TRANSA": 1, "TRANSB": 1},
    ),
    "29 as deep as fits": ("29_wgmma_grid_split", {"BM": 80, "BN": 64, "STAGES": 0, "ACROSS": 1}),
    "35 as deep as fits": ("35_wgmma_stream_k", {"BM": 32, "BN": 64, "STAGES": 0, "CLUSTER": 2}),
    "23 across 256": ("23_wgmma_pipeline", {"BM": 104, "BN": 256, "TRANSB": 1}),
    "23 across 256, in pairs": (
        "23_wgmma_pipeline",
        {"BM": 144, "BN": 256, "STAGES": 3, "CLUSTER": 2, "TRANSA": 1},
    ),
    "23 across 256, of 152": ("23_wgmma_pipeline", {"BM": 152, "BN": 256, "STAGES": 0, "CLUSTER": 2}),
    "23 of 248, in turn": (
        "23_wgmma_pipeline",
        {"BM": 248, "BN": 128, "STAGES": 0, "CLUSTER": 2, "ALONG_N": 1, "TRANSB": 1},
    ),
    "23 of 48 columns in fours TN": (
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 48, "STAGES": 0, "CLUSTER": 4, "TRANSA": 1},
    ),
    "23 of 16 by 256 NT": (
        "23_wgmma_pipeline",
        {"BM": 16, "BN": 256, "STAGES": 0, "CLUSTER": 2, "ALONG_N": 1, "TRANSB": 1},
    ),
    "23 of 24 in fours TT": (
        "23_wgmma_pipeline",
        {"BM": 24, "BN": 128, "STAGES": 0, "CLUSTER": 4, "ALONG_N": 1, "TRANSA": 1, "TRANSB": 1},
    ),
    "24": ("24_wgmma_fp16", {}),
    "25": ("25_wgmma_tf32", {}),
    "25 split": ("25_wgmma_tf32", {"SPLIT": 2}),
    "25 NT": ("25_wgmma_tf32", {"BM": 64, "BN": 64, "STAGES": 8, "TRANSB": 1}),
    "25 TT": ("25_wgmma_tf32", {"TRANSA": 1, "TRANSB": 1}),
    "25 TT split": ("25_wgmma_tf32", {"BM": 128, "STAGES": 6, "SPLIT": 4, "TRANSA": 1, "TRANSB": 1}),
    "25 shared": ("25_wgmma_tf32", {"BM": 64, "BN": 64, "STAGES": 8, "SPLIT": 2, "SHARE": 1}),
    "25 TT shared": (
        "25_wgmma_tf32",
        {"BM": 64, "BN": 64, "STAGES": 8, "SPLIT": 2, "SHARE": 1, "TRANSA": 1, "TRANSB": 1},
    ),
    "25 in pairs NT": (
        "25_wgmma_tf32",
        {"BM": 64, "BN": 64, "STAGES": 8, "CLUSTER": 2, "TRANSB": 1},
    ),
    "25 two by two": ("25_wgmma_tf32", {"BM": 128, "STAGES": 6, "CLUSTER": 4, "ALONG_N": 2}),
    "25 TT in fours": (
        "25_wgmma_tf32",
        {"BM": 32, "STAGES": 8, "CLUSTER": 4, "ALONG_N": 1, "TRANSA": 1, "TRANSB": 1},
    ),
    "25 eight above NT": ("25_wgmma_tf32", {"BM": 64, "BN": 64, "STAGES": 8, "CLUSTER": 8, "TRANSB": 1}),
    "25 eight above": ("25_wgmma_tf32", {"BM": 96, "BN": 64, "STAGES": 8, "CLUSTER": 8}),
    "25 four above TT": (
        "25_wgmma_tf32",
        {"BM": 128, "BN": 64, "STAGES": 8, "CLUSTER": 4, "TRANSA": 1, "TRANSB": 1},
    ),
    "25 ping-pong": ("25_wgmma_tf32", {"BM": 96, "BN": 64, "STAGES": 8, "PINGPONG": 1}),
    "25 ping-pong, two halves NT": (
        "25_wgmma_tf32",
        {"BM": 64, "STAGES": 8, "PINGPONG": 1, "CLUSTER": 2, "ALONG_N": 1, "TRANSB": 1},
    ),
    "25 ping-pong, two halves of 160 TT": (
        "25_wgmma_tf32",
        {"BM": 160, "STAGES": 5, "PINGPONG": 1, "CLUSTER": 2, "TRANSA": 1, "TRANSB": 1},
    ),
    "25 three boxes": ("25_wgmma_tf32", {"BM": 96, "STAGES": 6, "CLUSTER": 2, "TRANSB": 1}),
    "26": ("26_wgmma_split", {}),
    "27": ("27_wgmma_split_fp16", {}),
    "23 of 176": ("23_wgmma_pipeline", {"BN": 176, "CLUSTER": 2}),
    "28": ("28_3xtf32", {}),
    "29": ("29_wgmma_grid_split", {}),
    "29 odd boxes": ("29_wgmma_grid_split", {"BM": 64, "BN": 160}),
    "29 across": ("29_wgmma_grid_split", {"BM": 80, "BN": 64, "STAGES": 8, "ACROSS": 1, "TRANSA": 1}),
    "30": ("30_grid_split_fp16", {}),
    "31": ("31_bf16x6", {}),
    "32": ("32_bf16x6_panels", {}),
    "32 small": ("32_bf16x6_panels", {"BM": 64, "BN": 64, "STAGES": 4}),
    "35": ("35_wgmma_stream_k", {}),
    "35 across": ("35_wgmma_stream_k", {"BM": 8, "BN": 128}),
    "35 whole tiles": ("35_wgmma_stream_k", {"BM": 48, "BN": 128, "SHARE": 0}),
    "35 halves": (
        "35_wgmma_stream_k",
        {"BM": 40, "BN": 64, "STAGES": 12, "SHARE": 0, "CLUSTER": 2, "TRANSB": 1},
    ),
    "35 two by two": (
        "35_wgmma_stream_k",
        {"BM": 64, "BN": 64, "STAGES": 12, "CLUSTER": 4, "ALONG_N": 2, "TRANSA": 1},
    ),
    "35 in turns, across": (
        "35_wgmma_stream_k",
        {"BM": 8, "BN": 64, "STAGES": 16, "SHARE": 0, "CLUSTER": 4, "ALONG_N": 1, "TRANSB": 1},
    ),
    "35 in turns": ("35_wgmma_stream_k", {"BM": 64, "BN": 24, "STAGES": 0, "CLUSTER": 4, "TRANSB": 1}),
    "35 in fours TN": ("35_wgmma_stream_k", {"BM": 64, "BN": 24, "STAGES": 0, "CLUSTER": 4, "TRANSA": 1}),
    "35 narrow boxes": ("35_wgmma_stream_k", {"BN": 16}),
    "35 across, narrow boxes": (
        "35_wgmma_stream_k",
        {"BM": 24, "BN": 128, "SHARE": 0, "TRANSA": 1, "TRANSB": 1},
    ),
    "36": ("36_fp16x3", {}),
    "36 small": ("36_fp16x3", {"BM": 64, "BN": 64, "STAGES": 6}),
    "36 TT": ("36_fp16x3", {"BM": 128, "BN": 64, "STAGES": 8, "TRANSA": 1, "TRANSB": 1}),
    "38": ("38_3xtf32_panels", {}),
    "38 long parts": ("38_3xtf32_panels", {"PART_K": 32, "STAGES": 2}),
    "38 small": ("38_3xtf32_panels", {"BM": 64, "BN": 64, "STAGES": 6}),
    "38 TT": ("38_3xtf32_panels", {"BM": 128, "BN": 64, "STAGES": 8, "TRANSA": 1, "TRANSB": 1}),
    "39": ("39_bf16x6_tiles", {}),
    "39 large TN": ("39_bf16x6_tiles", {"BM": 128, "BN": 128, "BLOCKS": 1, "TRANSA": 1}),
    "39 TT split": ("39_bf16x6_tiles", {"BN": 96, "SPLIT": 4, "TRANSA": 1, "TRANSB": 1}),
    "40": ("40_skinny_dots", {"ROWS": 16, "FEW": 4, "FEW_ROWS": 1, "TRANSB": 1}),
    "33": ("33_small_tiles", {}),
    "33 in fours": ("33_small_tiles", {"STAGES": 3, "BLOCKS": 3, "SPLIT": 4}),
    "33 turned": (
        "33_small_tiles",
        {"BN": 32, "WARPS_M": 1, "STAGES": 3, "BLOCKS": 3, "SPLIT": 4, "TURN": 1, "SLICES": 4},
    ),
    "33 turned TT": (
        "33_small_tiles",
        {"BM": 32, "BN": 256, "WARPS_M": 1, "STAGES": 2, "BLOCKS": 3, "TURN": 1, "TRANSA": 1, "TRANSB": 1},
    ),
    "41": ("41_turned_tiles", {}),
    "41 of a warp": (
        "41_turned_tiles",
        {"BM": 32, "BN": 32, "WARPS_M": 1, "SPLIT": 8, "BLOCKS": 8, "OUTPUTS": 32},
    ),
    "41 TN": ("41_turned_tiles", {"STAGES": 3, "SPLIT": 4, "OUTPUTS": 32, "BK": 16, "TRANSA": 1}),
    "41 TT in slices": (
        "41_turned_tiles",
        {"BM": 128, "BN": 32, "WARPS_M": 2, "SLICES": 2, "OUTPUTS": 32, "BK": 16, "TRANSA": 1, "TRANSB": 1},
    ),
    "42": ("42_single_floats", {}),
    "42 sharing": (
        "42_single_floats",
        {"BM": 32, "BN": 128, "WARPS_M": 1, "BLOCKS": 4, "SPLIT": 4, "TRANSB": 1},
    ),
    "42 TN": ("42_single_floats", {"BM": 128, "BN": 32, "WARPS_M": 4, "STAGES": 4, "TRANSA": 1}),
    "42 TT large": (
        "42_single_floats",
        {"BM": 128, "BN": 128, "WARPS_M": 4, "OUTPUTS": 64, "TRANSA": 1, "TRANSB": 1},
    ),
    "34": ("34_small_tiles_tf32", {}),
    "34 large": ("34_small_tiles_tf32", {"BM": 128, "BN": 128, "STAGES": 3}),
    "33 own": ("33_small_tiles", {"BM": 32, "BN": 128, "WARPS_M": 1, "STAGES": 1, "BLOCKS": 0, "OWN": 1}),
    "34 own": ("34_small_tiles_tf32", {"BN": 128, "WARPS_M": 1, "OWN": 1}),
    "37": ("37_small_tiles_16_bits", {}),
    "37 long": ("37_small_tiles_16_bits", {"BM": 16, "BN": 128, "WARPS_M": 1}),
    "34 long": ("34_small_tiles_tf32", {"BM": 16, "BN": 128, "WARPS_M": 1}),
}
SMALL: Axes = {"M": 72, "N": 136, "K": 104}
STEP = 64  # of k in a stage, at most
_TILES = ((2, 3), (3, 2), (1, 5), (5, 1), (8, 1))  # more than four, so that of four blocks some take two


@cache
def built(which: str) -> Built:
    """Return a variant, compiled."""
    name, parameters = VARIANTS[which]
    return compiled(harness.kernel(name).variant(**parameters))


def compiled(variant: Variant) -> Built:
    """Return a variant of any kernel, compiled for Hopper."""
    return Built(variant=variant, cubin=harness.compile_kernel(variant, "sm_90a"), sass=None)


def drawn(which: str, draw: random.Random) -> Axes:
    """Return a shape that is ragged in M, N and K, with two tiles for one of four blocks or more.

    Rows are wider than they need be, so that some have tensor maps and some cannot.
    """
    height, width = built(which).variant.tile
    down, across = draw.choice(_TILES)
    m = (down - 1) * height + draw.randint(1, height - 1)
    n = (across - 1) * width + draw.randint(1, width - 1)
    k = draw.randint(1, 3) * STEP + draw.randint(1, STEP - 1)
    axes: Axes = {"M": m, "N": n, "K": k}
    if draw.random() < 0.6:  # rows of whole 16 bytes
        axes |= {"lda": -(-k // 8) * 8, "ldb": -(-n // 8) * 8, "ldc": -(-n // 8) * 8}
    else:
        axes |= {name: least + draw.randint(0, 5) for name, least in (("lda", k), ("ldb", n), ("ldc", n))}
    if draw.random() < 0.5:
        axes |= {"alpha": draw.choice((1.5, -0.75)), "beta": draw.choice((0.5, -1.0))}
    return axes


def stored(which: str, axes: Axes) -> Axes:
    """Return the shape in the layout that a variant reads, with rows as much wider than they need be."""
    params = built(which).variant.params
    found = dict(axes)
    for trans, ld, was, inner in (("transa", "lda", "K", "M"), ("transb", "ldb", "N", "K")):
        if params.get(trans.upper()):
            found |= {trans: 1, **({ld: axes[ld] - axes[was] + axes[inner]} if ld in axes else {})}
    return found


def emulated(which: str, axes: Axes, options: Options | None = None) -> Measurement:
    """Run a variant at a shape, stored in the layout that it reads, with all checks."""
    return launched(built(which), stored(which, axes), options or Options())


def launched(one: Built, axes: Axes, options: Options) -> Measurement:
    """Run a compiled variant at a shape, with all checks."""
    problem = checks.instance(resolve(one.variant.kernel), axes)
    return row(one, problem, *checks.data(problem, 1), options)


def faults(found: Measurement) -> list[str]:
    """Return the findings of a run, and its error."""
    findings = [str(finding) for finding in found.emulation.findings] if found.emulation else []
    return [found.error, *findings] if found.error else findings
