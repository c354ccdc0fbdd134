"""Rungs 33, 34 and 37 in the emulator: every layout and alignment, shared tiles, one launch after the other.

Faults planted in them are among those of test_hopper_faults.py.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from harness import compile_kernel
from harness.bench import emulation
from harness.bench.row import OK, Measurement
from harness.kernels import catalog
from harness.launch import kernel as launches
from harness.launch.builds import Built
from harness.launch.emulated import Memory
from harness.problems import checks
from harness.problems.registry import resolve
from harness.problems.verify import compare_each
from shared.hopper_rungs import Axes, faults
from shared.places import ROOT

RUNGS = {
    name[:2]: catalog.kernel(name)
    for name in ("33_small_tiles", "34_small_tiles_tf32", "37_small_tiles_16_bits")
}
COUNTERS = 4096  # bytes at the begin of the workspace
LAYOUTS = [(0, 0), (0, 1), (1, 0), (1, 1)]
ODD = {"lda": 3, "ldb": 1, "ldc": 2}  # more than the rows have: 128-bit accesses would fault
SMALL = {"BM": 32, "BN": 32, "BLOCKS": 4}
ONE_STAGE = {"STAGES": 1, "BLOCKS": 0}


@cache
def _built(rung: str, parameters: tuple[tuple[str, int], ...]) -> Built:
    variant = RUNGS[rung].variant(**dict(parameters))
    return Built(variant=variant, cubin=compile_kernel(variant, "sm_90a"), sass=None)


def built(rung: str, **parameters: int) -> Built:
    """Return a variant with small tiles, compiled."""
    return _built(rung, tuple({**SMALL, **parameters}.items()))


def shape(m: int, n: int, k: int, transa: int = 0, transb: int = 0, pads: Axes | None = None) -> Axes:
    """Return the axes of a product with alpha and beta, its rows wider by `pads`, and else as in memory."""
    axes: Axes = {"M": m, "N": n, "K": k, "alpha": 1.5, "beta": -0.5, "transa": transa, "transb": transb}
    widths = {"lda": m if transa else k, "ldb": k if transb else n, "ldc": n}
    return axes | {name: width + (pads or {}).get(name, -width % 8) for name, width in widths.items()}


def run(one: Built, axes: Axes, **options: Any) -> Measurement:
    problem = checks.instance(resolve(one.variant.kernel), axes)
    return emulation.row(one, problem, *checks.data(problem, 1), emulation.Options(**options))


def blocks(one: Built, axes: Axes, sms: int) -> int:
    """Return how many blocks share a tile, those of a cluster included."""
    return launches.grid(one.variant, checks.instance(resolve(one.variant.kernel), axes), sms=sms)[1]


def check(one: Built, axes: Axes, splits: int, sms: int = 4) -> None:
    """Launch it twice or more, in both orders, on what the launch before has left in the workspace."""
    assert blocks(one, axes, sms) == splits
    found = run(one, axes, sms=sms)
    assert (found.status, faults(found)) == (OK, []), axes
    assert found.emulation is not None
    assert len(found.emulation.schedules) >= (2 if splits > one.variant.params["SPLIT"] else 1)


def test_blocks_that_share_a_tile() -> None:
    check(built("34"), shape(20, 31, 260), 2)


@pytest.mark.slow
@pytest.mark.parametrize("pads", [None, ODD], ids=["units", "odd"])
@pytest.mark.parametrize(("transa", "transb"), LAYOUTS)
@pytest.mark.parametrize("rung", RUNGS)
def test_every_layout_and_pitch(rung: str, transa: int, transb: int, pads: Axes | None) -> None:
    """Ragged in M, N and K; four tiles, and none is shared: with `beta` the old values count once."""
    check(built(rung, TRANSA=transa, TRANSB=transb), shape(33, 37, 77, transa, transb, pads), 1)


@pytest.mark.slow
@pytest.mark.parametrize(("transa", "transb"), LAYOUTS)
@pytest.mark.parametrize("rung", RUNGS)
def test_one_stage(rung: str, transa: int, transb: int) -> None:
    """Take a k of less than a step, a step, a stage, and more; sums that need more room than a stage."""
    large = {"BM": 128, "BN": 64}
    for k, tile in [(1, {}), (5, large), (64, {}), (64, large), (77, {}), (77, large)]:
        one = built(rung, **ONE_STAGE, **tile, TRANSA=transa, TRANSB=transb)
        check(one, shape(33, 37, k, transa, transb, ODD if k % 2 else None), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rung", "own"), [("33", {"OWN": 0}), ("33", {"OWN": 1}), ("34", {"OWN": 1}), ("37", {})], ids=str
)
def test_rows_that_begin_anywhere_in_a_sector(rung: str, own: dict[str, int]) -> None:
    """With OWN tiles overlap, and a sector is one's: the last tile may have some columns, or none."""
    one = built(rung, **ONE_STAGE, **own)
    for n, pad in [(49, 0), (49, 2), (51, 4), (55, 5), (56, 6), (33, 2), (70, 5), (5, 1)]:
        check(one, shape(9, n, 5, pads={"lda": 3, "ldb": 0, "ldc": pad}), 1)


@pytest.mark.slow
def test_sectors_of_clusters_and_of_shared_tiles() -> None:
    check(built("34", SPLIT=8, OWN=1), shape(20, 51, 1050, pads=ODD), 8)
    check(built("33", OWN=1), shape(20, 35, 300, pads=ODD), 2)


OWN_FAULTS = {
    "a sector is two tiles'": ("OWN && col > 0 ? lead : 0, end", "0, end"),
    "a sector is nobody's": ("BN - OVERLAP + lead : BN);", "BN - OVERLAP : BN);"),
    "a tile without columns of its own writes": ("max(end - begin, 0)", "end - begin"),
    "tiles do not overlap": ("tile % tiles_n * (BN - OVERLAP)", "tile % tiles_n * BN"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", *OWN_FAULTS])
@pytest.mark.parametrize("rung", ["33", "34"])
def test_a_fault_of_own_sectors_is_found(rung: str, fault: str) -> None:
    """Or, without one, nothing is."""
    one = pieced(rung, *OWN_FAULTS.get(fault, ("", "")), where="struct Corner", OWN=1)
    last = 2 * one.variant.tile[1] + 2  # columns: the third tile has two, of another's sector
    found = [run(one, shape(9, last, 5, pads={"lda": 3, "ldb": 1, "ldc": pad})) for pad in (3, 5)]
    assert any(one.status != OK or faults(one) for one in found) == bool(fault)


PACKED = {"BM": 32, "BN": 128, "WARPS_M": 1, "OWN": 1}  # of rung 37
PACKED_FAULTS = {  # in the kernel or a header of its own
    "a sector is nobody's": ("BN - OVERLAP + next", "BN - OVERLAP"),
    "columns are stored that do not exist": ("min(skipped + columns, BN - OVERLAP + next)", "BN - 8"),
    "rows are stored that do not exist": ("m < min(rows, BM)", "m < BM"),
    "odd rows are not shifted": ("by = odd * 16", "by = 0"),
    "what is shifted in is of another place": ("&at[m][unit - 2]", "&at[m][unit - 4]"),
    "single elements are those of even rows": ("at[m][unit + e - odd]", "at[m][unit + e]"),
    "words are put where odd rows begin": ("before(c) / 2 * 2 + n]", "before(c) % 8 / 2 * 2 + n]"),
    "rows are stored before all are there": ("__syncthreads();\n            return packed", "return packed"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("transa", "transb"), LAYOUTS)
@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_packed_rows(transa: int, transb: int, beta: float) -> None:
    """The last tile may have some columns of its own, or none; with `beta` results are stored one by one."""
    one = built("37", **ONE_STAGE, **PACKED, TRANSA=transa, TRANSB=transb)
    for n, pad, k in [(225, 0, 5), (226, 2, 33), (227, 4, 16), (240, 7, 32), (130, 3, 70), (5, 1, 9)]:
        axes = shape(35, n, k, transa, transb, {"lda": 3, "ldb": 1, "ldc": pad})
        check(one, axes | {"beta": beta}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", *PACKED_FAULTS])
def test_a_fault_of_packed_rows_is_found(fault: str) -> None:
    """Or, without one, nothing is."""
    old, new = PACKED_FAULTS.get(fault, ("", ""))
    header = (ROOT / "cu" / "include" / "packed_rows.cuh").read_text().replace("#pragma once", "")
    source = RUNGS["37"].source.replace('#include "packed_rows.cuh"', header)
    assert old in source
    variant = replace(RUNGS["37"], source=source.replace(old, new, 1)).variant(**{**ONE_STAGE, **PACKED})
    one = Built(variant=variant, cubin=compile_kernel(variant, "sm_90a"), sass=None)
    found = [
        run(one, shape(35, 227, 21, pads={"lda": 3, "ldb": 1, "ldc": pad}) | {"beta": 0.0})
        for pad in (0, 5, 8)
    ]
    assert any(one.status != OK or faults(one) for one in found) == bool(fault)


OWN_UNIT_FAULTS = {  # of results that are stored with `beta`, in units of four elements
    "a sector is two tiles'": ("OWN && col > 0 ? lead : 0);", "0);"),
    "a sector is nobody's": ("BN - OVERLAP + lead : BN)) - n", "BN - OVERLAP : BN)) - n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", *OWN_UNIT_FAULTS])
def test_a_fault_of_own_units_is_found(fault: str) -> None:
    """Or, without one, nothing is."""
    one = pieced("37", *OWN_UNIT_FAULTS.get(fault, ("", "")), where="struct Corner", **PACKED)
    found = [run(one, shape(35, 227, 21, pads={"lda": 3, "ldb": 1, "ldc": pad})) for pad in (0, 5)]
    assert any(one.status != OK or faults(one) for one in found) == bool(fault)


FAULTS = {
    "the stage is filled before all have read it": ("if (part > share.begin) __syncthreads();", ""),
    "the copies are not waited for": ("cp_async_wait_group<0>();", ""),
    "the last k are left out": ("min(BK, K - part * BK)", "min(BK, K - part * BK - 1) / 8 * 8"),
    "the next stage's k are multiplied": ("min(BK, K - part * BK)", "min(2 * BK, K - part * BK)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_fault_of_one_stage_is_found(rung: str, fault: str) -> None:
    found = run(pieced(rung, *FAULTS[fault]), longer(rung))
    assert found.status != OK or faults(found)


@pytest.mark.slow
@pytest.mark.parametrize("rung", RUNGS)
def test_without_a_fault_the_text_in_one_piece_is_right(rung: str) -> None:
    assert faults(run(pieced(rung, "", ""), longer(rung))) == []


def longer(rung: str) -> Axes:
    """Return a shape with a k of stages and a step and one more."""
    return shape(33, 37, 145 if rung == "37" else 73)


def pieced(
    rung: str, old: str, new: str, where: str = "if constexpr (STAGES == 1)", **parameters: int
) -> Built:
    """Return a kernel with one stage that holds its header, with a text replaced where it first stands."""
    header = (ROOT / "cu" / "include" / "small_tiles.cuh").read_text().replace("#pragma once", "")
    whole = header.index(where)
    assert old in header[whole:]
    header = header[:whole] + header[whole:].replace(old, new, 1)
    kernel = RUNGS[rung]
    source = kernel.source.replace('#include "small_tiles.cuh"', header)
    variant = replace(kernel, source=source).variant(**{**SMALL, **ONE_STAGE, **parameters})
    return Built(variant=variant, cubin=compile_kernel(variant, "sm_90a"), sass=None)


WIDE = {
    "256 x 64": {"BM": 256, "BN": 64, "WARPS_M": 4, "STAGES": 2, "BLOCKS": 2},
    "64 x 256": {"BM": 64, "BN": 256, "WARPS_M": 1, "STAGES": 2, "BLOCKS": 2},
}
WIDE_FAULTS = {  # of rows that more than one lane of a warp covers, or that one warp does not copy at once
    "256 x 64": ("r < quarter; r += 32", "r < min(quarter, 32); r += 32"),
    "64 x 256": ("j < across; j += beside", "j < beside; j += beside"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("transa", "transb"), LAYOUTS)
@pytest.mark.parametrize("tile", WIDE)
@pytest.mark.parametrize("rung", ["34", "37"])
def test_wide_tiles(rung: str, tile: str, transa: int, transb: int) -> None:
    """One whole tile and one that is not, of rows that begin anywhere."""
    m, n = (259, 36) if tile == "256 x 64" else (36, 258)
    one = built(rung, **WIDE[tile], TRANSA=transa, TRANSB=transb)
    check(one, shape(m, n, 78, transa, transb, ODD), 1)


@pytest.mark.slow
@pytest.mark.parametrize("tile", WIDE)
def test_a_fault_of_wide_tiles_is_found(tile: str) -> None:
    m, n = (259, 36) if tile == "256 x 64" else (36, 258)
    one = pieced("34", *WIDE_FAULTS[tile], where="__device__ void copy_covering(", **WIDE[tile])
    found = run(one, shape(m, n, 78, pads=ODD))
    assert found.status != OK or faults(found)


@pytest.mark.slow
@pytest.mark.parametrize(("transa", "transb"), LAYOUTS)
def test_every_layout_where_tiles_are_shared(transa: int, transb: int) -> None:
    """The last block begins and ends within a stage."""
    check(built("34", TRANSA=transa, TRANSB=transb), shape(33, 21, 390, transa, transb, ODD), 3)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "split", "splits"), [(1050, 1, 8), (1050, 8, 8), (2100, 8, 16)])
@pytest.mark.parametrize("rung", RUNGS)
def test_blocks_and_clusters_that_share_a_tile(rung: str, k: int, split: int, splits: int) -> None:
    """Eight blocks, a cluster, and two clusters: each way to add up sums, and both."""
    check(built(rung, SPLIT=split), shape(31, 30, k, pads=ODD), splits)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "parameters",
    [
        {"BM": 16, "BN": 128, "WARPS_M": 1},
        {"BM": 128, "BN": 16, "WARPS_M": 4},
        {"BM": 64, "BN": 64, "STAGES": 3},
        {"BM": 128, "BN": 64},
        {"BM": 64, "BN": 128, "WARPS_M": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize(("transa", "transb"), LAYOUTS)
@pytest.mark.parametrize("rung", RUNGS)
def test_every_tile_of_the_table(rung: str, transa: int, transb: int, parameters: dict[str, int]) -> None:
    one = built(rung, TRANSA=transa, TRANSB=transb, **parameters)
    check(one, shape(37, 53, 300, transa, transb, ODD), 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rung", RUNGS)
def test_as_many_blocks_as_may_share_a_tile(rung: str) -> None:
    """Eight clusters of eight, each block with 128 of k. On more SMs there are no more of them."""
    one, axes = built(rung, SPLIT=8), shape(32, 29, 64 * 128 + 20)
    assert blocks(one, axes, 132) == blocks(one, shape(32, 29, 100_000), 132) == 64
    check(one, axes, 64, sms=16)


def launched(one: Built, axes: Axes, memory: Memory, schedule: str) -> None:
    """Launch it in `memory`; the result is right, and the counters are zero behind it."""
    problem = checks.instance(resolve(one.variant.kernel), axes)
    inputs, reference = checks.data(problem, 1)
    options = emulation.Options(count=False, schedule=schedule)
    found, arrays = emulation.launch(one, problem, inputs, options, memory)
    verdict = compare_each(arrays, {"C": reference}, inputs)
    assert verdict.ok and not found.findings, (axes, str(verdict), found.findings)
    (workspace,) = memory.workspaces.values()
    assert not workspace[:COUNTERS].any(), axes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "shapes", "splits"),
    [
        (1, [(20, 31, 1060), (40, 50, 300), (33, 10, 700), (20, 31, 1060)], [8, 2, 5, 8]),
        (8, [(20, 17, 2060), (33, 10, 300), (9, 32, 2048)], [16, 8, 16]),
    ],
)
def test_launches_of_other_shapes_in_one_workspace(
    split: int, shapes: list[tuple[int, int, int]], splits: list[int]
) -> None:
    """Counters are zero whenever a launch begins, whoever had them and the sums before."""
    one, memory, found = built("34", SPLIT=split), Memory(), [shape(*extents) for extents in shapes]
    assert [blocks(one, axes, 4) for axes in found] == splits
    for number, axes in enumerate(found):
        launched(one, axes, memory, ("lockstep", "backward")[number % 2])
    (workspace,) = memory.workspaces.values()
    assert workspace[COUNTERS:].any(), "no sum went through the workspace"


@pytest.mark.slow
def test_equal_inputs_give_equal_bits_whoever_comes_last() -> None:
    one, axes = built("34"), shape(31, 30, 650)
    problem = checks.instance(resolve(one.variant.kernel), axes)
    inputs, _ = checks.data(problem, 1)
    first, *others = (
        emulation.launch(
            one, problem, inputs, emulation.Options(count=False, check=False, schedule=schedule)
        )[1]
        for schedule in ("lockstep", "backward", "warp-serial")
    )
    assert all(np.array_equal(first["C"].view(np.uint32), other["C"].view(np.uint32)) for other in others)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("parameters", [{}, SMALL, SMALL | {"SPLIT": 8}, {"BM": 128, "BN": 64}], ids=str)
def test_the_workspace_holds_what_the_grid_writes(rung: str, parameters: dict[str, int]) -> None:
    """For any shape and GPU: the sums of all clusters that share, behind the counters of their blocks."""
    one = RUNGS[rung].variant(**parameters)
    split = one.params["SPLIT"]
    shapes = [(1, 1, 1), (64, 64, 127), (300, 500, 4096), (64, 70, 50_000), (5000, 5000, 500)]
    for sms, (m, n, k) in itertools.product((1, 4, 132, 1000), shapes):
        problem = checks.instance(resolve(one.kernel), {"M": m, "N": n, "K": k})
        tiles, blocks, _ = launches.grid(one, problem, sms=sms)
        assert tiles == math.prod(-(-extent // of) for extent, of in zip((m, n), one.tile, strict=True))
        parts, rest = divmod(blocks, split)
        assert rest == 0 and 1 <= parts <= max(1, min(8, k // (128 * split)))
        if parts > 1:
            assert COUNTERS + 4 * math.prod(one.tile) * tiles * parts <= launches.workspace(
                one, problem, sms=sms
            )
            assert 4 * tiles * split <= COUNTERS
