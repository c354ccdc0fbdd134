"""Rungs with a batch in one launch, emulated: layouts, strides, shared tiles, and faults.

Elements are small integers, whose sums are exact in any order, and rounded once where they are stored in 16
bits. All memory beside the matrices is NaN.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from harness import compile_kernel
from harness.dispatch.call import batch as batches
from harness.emulator import Buffer, emulate
from harness.kernels import catalog
from harness.kernels.dtypes import DTYPES, DType
from harness.kernels.epilogue import COLUMNS, PLAIN, ROWS, Epilogue
from harness.kernels.spec import Variant
from harness.launch import kernel as launches
from harness.launch.emulated import tensor_map
from harness.problems.gemm import GEMMS
from shared.places import ROOT

_TILE = {"BM": 32, "BN": 32, "BLOCKS": 4}
SMALL = {
    "33_small_tiles": _TILE,
    "34_small_tiles_tf32": _TILE,
    "37_small_tiles_16_bits": _TILE,
    "39_bf16x6_tiles": {"BLOCKS": 4},
    "41_turned_tiles": {**_TILE, "WARPS_M": 1, "OUTPUTS": 32},
    "42_single_floats": {**_TILE, "WARPS_M": 1},
    "19_pipeline_split": {"SPLIT": 1},
    "23_wgmma_pipeline": {"BM": 64, "BN": 64, "STAGES": 8},
    "25_wgmma_tf32": {"BM": 64, "BN": 64, "STAGES": 8},
}
RUNGS = {name[:2]: catalog.kernel(name) for name in SMALL}
SHARING = "33", "34", "37", "39", "41", "42"  # whose blocks share tiles
BOXES = "19", "23", "25"  # which copy by TMA
LAYOUTS = [(1, 0), (0, 0), (0, 1), (1, 1)]
ALIGNED: dict[str, Any] = {"m": 72, "n": 80, "k": 40, "pad": 8, "gaps": (8, 0, 16)}  # with tensor maps
COUNTERS = 1024  # words at the begin of the workspace

PLACES: dict[str, list[dict[str, Any]]] = {
    **{rung: [{}, {"pad": 0, "gaps": (0, 4, 0)}, {"between": True}] for rung in SHARING},
    **{rung: [{}, ALIGNED, {**ALIGNED, "between": True}] for rung in BOXES},
}
# CI takes each rung in every layout and at every place, and each place in every layout, but not all three:
# rungs that share tiles have both from the same headers, and so have those with boxes.
LAID_OUT = [
    pytest.param(rung, *layout, more, marks=pytest.mark.slow if chosen else pytest.mark.exhaustive)
    for number, (rung, places) in enumerate(PLACES.items())
    for place, more in enumerate(places)
    for turn, layout in enumerate(LAYOUTS)
    for chosen in [(number + turn) % len(places) == place]
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch: sizes, how many elements stored rows are longer than needed, and from matrix to matrix.

    A gap of None repeats the same matrix; a batch `between` has its matrices beside each other in a row.
    """

    size: int = 3
    m: int = 33
    n: int = 37
    k: int = 20
    transa: int = 0
    transb: int = 0
    pad: int = 1
    gaps: tuple[int | None, int | None, int] = (5, 0, 3)
    between: bool = False
    dtype: str = ""  # the rung's first if empty
    beta: float = 0.0
    epilogue: Epilogue = PLAIN


def variant_of(rung: str, case: Case, **parameters: int) -> Variant:
    kernel = RUNGS[rung].with_dtype(case.dtype) if case.dtype else RUNGS[rung]
    small = SMALL[RUNGS[rung].name]
    plain = kernel.variant(**{**small, **parameters}, TRANSA=case.transa, TRANSB=case.transb)
    return case.epilogue.compiled(batches.compiled(plain))


@cache
def _compiled(label: str, source: str, rung: str) -> Any:
    return compile_kernel(_variants[label, source], "sm_90a")


_variants: dict[tuple[str, str], Variant] = {}


def compiled(variant: Variant) -> Any:
    _variants[variant.label, variant.kernel.source] = variant
    return _compiled(variant.label, variant.kernel.source, variant.kernel.name)


def stored(
    case: Case, dtype: DType, rows: int, columns: int, gap: int | None, filled: bool
) -> tuple[Any, Any, int, int]:
    """Return memory, the matrices of a batch in it as they are stored, the row pitch, and the stride."""
    if case.between and gap is not None:
        pitch, stride = case.size * columns + case.pad, columns
        size = rows * pitch
    else:
        pitch = columns + case.pad
        stride = 0 if gap is None else rows * pitch + gap
        size = stride * (case.size - 1) + rows * pitch
    memory = dtype.encode(np.full(size, np.nan, np.float32))
    steps = [dtype.itemsize * step for step in (stride, pitch, 1)]
    view = as_strided(memory, (case.size, rows, columns), steps)
    if filled:
        values = dtype.encode(np.random.default_rng(rows).integers(-3, 4, view.shape).astype(np.float32))
        view[:] = values[:1] if gap is None else values
    return memory, view, pitch, stride


def emulated(
    variant: Variant, case: Case, *, sms: int = 4, split: int = 1, schedule: str = "lockstep"
) -> bool:
    """Run the batch twice on the same workspace; return True if all is right and nothing is found."""
    dtype = DTYPES[variant.kernel.dtype]
    a, b = (case.m, case.k), (case.k, case.n)
    a, b = a[::-1] if case.transa else a, b[::-1] if case.transb else b
    shapes = zip((a, b, (case.m, case.n)), case.gaps, (True, True, bool(case.beta)), strict=True)
    memories, views, pitches, strides = zip(
        *(stored(case, dtype, *s, g, f) for s, g, f in shapes), strict=True
    )
    left = views[0].swapaxes(1, 2) if case.transa else views[0]
    right = views[1].swapaxes(1, 2) if case.transb else views[1]
    read = dtype.encode(np.arange(case.m if case.epilogue.bias == ROWS else case.n, dtype=np.float32))
    if case.epilogue.derivative:
        read, slopes, *_ = stored(case, dtype, case.m, case.n, case.gaps[2], True)
    about: Any = {"transa": case.transa, "transb": case.transb, "epilogue": case.epilogue}
    about |= dict(zip(("lda", "ldb", "ldc"), pitches, strict=True))
    problem = GEMMS[variant.kernel.dtype](M=case.m, N=case.n, K=case.k, **about)
    stacks = dict(zip("ABC", ((case.size, stride) for stride in strides), strict=True))
    given = dict(zip("ABC", memories, strict=True))
    maps = [tensor_map(mapped, given) for mapped in launches.maps(variant, problem, stacks)]
    grid = launches.grid(variant, problem, sms=sms, batch=case.size)
    assert not variant.kernel.workspace or grid[1] == split
    workspace = np.zeros(launches.workspace(variant, problem, sms=sms, batch=case.size), np.uint8)
    own: list[Any] = [Buffer(array=workspace, name="workspace")] if workspace.size else [launches.NULL]
    sizes = (*(case.m, case.n, case.k), *pitches)
    buffers = [Buffer(array=x, name=name) for x, name in zip(memories, "ABC", strict=True)]
    buffers[2] = replace(buffers[2], initialised=bool(case.beta))
    added = [Buffer(array=read, name=name)] if (name := case.epilogue.operand) else []
    cubin = compiled(variant)
    for _ in range(2):
        expected = 2 * (dtype.decode(left) @ dtype.decode(right))
        expected += case.beta * dtype.decode(views[2]) if case.beta else 0
        if any(case.epilogue):
            each = [dtype.decode(x) for x in (slopes if case.epilogue.derivative else [read] * case.size)]
            expected = np.stack([case.epilogue.finish(x, y) for x, y in zip(expected, each, strict=True)])
        beside = memories[2].copy()
        found = emulate(
            cubin.ptx,
            cubin.entry,
            grid=grid,
            block=variant.block,
            arguments=[
                *(*maps, *buffers, *map(np.int32, sizes), np.float32(2), np.float32(case.beta), *added),
                *(np.uint32(case.size), *map(np.int64, strides)),
                *(own if variant.kernel.workspace else ()),
            ],
            shared=variant.shared,
            schedule=schedule,
            count=False,
        )
        result, rounded = views[2].copy(), dtype.encode(expected.astype(np.float32))
        as_strided(beside, result.shape, views[2].strides)[:] = result
        as_expected = np.array_equal(dtype.decode(result), dtype.decode(rounded))
        apart = np.array_equal(beside, memories[2], equal_nan=True)  # nothing beside the result was written
        zero = not workspace[: 4 * COUNTERS].any()
        if found.findings or not (apart and zero and as_expected):
            return False
    return True


def test_a_batch() -> None:
    """The matrices of A repeat an offset of five elements, which no 128-bit copy can begin at."""
    assert emulated(variant_of("34", Case()), Case())


@pytest.mark.parametrize(("rung", "transa", "transb", "more"), LAID_OUT, ids=str)
def test_every_layout(rung: str, transa: int, transb: int, more: dict[str, Any]) -> None:
    """Matrices with gaps, without, and interleaved in rows; with `beta` the old values count once."""
    if rung == "25" and (transa, transb) == (1, 0):
        pytest.skip("25 copies such operands, and batches are not copied")
    case = Case(transa=transa, transb=transb, beta=0.5 if transa else 0.0, **more)
    assert emulated(variant_of(rung, case), case)


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [(None, 1, 0), (1, None, 0), (None, 8, 0), (8, None, 8)])
@pytest.mark.parametrize("rung", RUNGS)
def test_a_matrix_for_all_products(rung: str, gaps: tuple[int | None, int | None, int]) -> None:
    case = Case(**{**ALIGNED, "gaps": gaps}) if 8 in gaps else Case(gaps=gaps)
    assert emulated(variant_of(rung, case), case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [{"CLUSTER": 2, "BN": 128}, {"BM": 128, "BN": 96, "STAGES": 6}, {"PINGPONG": 1, "CLUSTER": 2}],
    ids=str,
)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_clusters_and_tiles_beyond_a_matrix(params: dict[str, int], beta: float) -> None:
    """A tile of a cluster, or a part of a box, that the matrix does not have is none of the next one's."""
    case = Case(**ALIGNED, beta=beta, dtype="fp16")
    assert emulated(variant_of("23", case, **params), case)


@pytest.mark.slow
@pytest.mark.parametrize(("rung", "split"), [("19", 2), ("25", 2), ("25", 4)])
def test_clusters_that_share_k(rung: str, split: int) -> None:
    case = Case(**{**ALIGNED, "k": 136})
    assert emulated(variant_of(rung, case, SPLIT=split), case)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "splits", "sms"), [(1, 3, 8), (8, 8, 4), (2, 4, 16)])
@pytest.mark.parametrize("rung", SHARING)
def test_tiles_that_are_shared(rung: str, split: int, splits: int, sms: int) -> None:
    """Share the one tile of each of two matrices: by the largest cluster, and by two of the smallest. A block
    takes 128 of k where clusters share a tile, so that two of eight would take four times as long.
    """
    case = Case(size=2, m=20, n=31, k=400 if split == 1 else 550)
    assert emulated(variant_of(rung, case, SPLIT=split), case, sms=sms, split=splits)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["backward", "random"])
def test_in_any_order(schedule: str) -> None:
    case = Case(size=2, m=20, n=31, k=400)
    assert emulated(variant_of("34", case), case, sms=8, split=3, schedule=schedule)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_drawn_batches_in_16_bits(seed: int) -> None:
    """Ragged, with rows and matrices that begin at any even address."""
    rng = random.Random(seed)
    tile = rng.choice([{}, {"BM": 64, "BN": 16, "WARPS_M": 4}, {"BM": 16, "BN": 64, "WARPS_M": 1}])
    case = Case(
        size=rng.choice([2, 3]),
        **{name: rng.choice([1, 8, 31, 40, 65]) for name in ("m", "n", "k")},
        **{name: rng.randrange(2) for name in ("transa", "transb")},
        pad=rng.choice([0, 1, 8]),
        gaps=(rng.choice([None, 0, 1, 4]), rng.choice([0, 2, 7]), rng.choice([0, 3])),
        between=rng.random() < 0.2,
        beta=rng.choice([0, 0.5]),
        dtype=rng.choice(RUNGS["37"].dtypes),
    )
    assert emulated(variant_of("37", case, **tile), case)


@pytest.mark.slow
@pytest.mark.parametrize("epilogue", [Epilogue(ROWS, "relu"), Epilogue(COLUMNS)])
@pytest.mark.parametrize("rung", RUNGS)
def test_an_epilogue(rung: str, epilogue: Epilogue) -> None:
    """A bias is the same for all matrices."""
    case = Case(epilogue=epilogue, beta=1.0)
    assert emulated(variant_of(rung, case), case)


@pytest.mark.slow
def test_slopes_of_each_matrix() -> None:
    """They lie as C does, one matrix behind the other or in the same rows."""
    case = Case(epilogue=Epilogue(0, "relu", False, True), beta=1.0)
    assert emulated(variant_of("33", case), case)
    beside = replace(case, between=True)
    assert emulated(variant_of("34", beside), beside)
    for rung in BOXES:
        mapped = replace(case, **ALIGNED)
        assert emulated(variant_of(rung, mapped), mapped), rung
    assert not emulated(planted("at += blockIdx.x / (tiles) * stride_c", "at += 0", case), case)


# Faults

SHARED = "blockIdx.x, blockIdx.y / SPLIT, gridDim.y / SPLIT"
PLANTED = {
    "the stride of B is ignored": ("B += matrix * stride_b", "B += 0 * stride_b"),
    "the strides of A and B are exchanged": ("A += matrix * stride_a", "A += matrix * stride_b"),
    "C is written with A's stride": ("C += matrix * stride_c", "C += matrix * stride_a"),
    "tiles lie across matrices": ("return blockIdx.x % tiles", "return blockIdx.x"),
    "the last tile is the next matrix's": (
        "matrix = blockIdx.x / tiles",
        "matrix = (blockIdx.x + 1) / tiles",
    ),
    "the first matrix only": ("matrix = blockIdx.x / tiles", "matrix = 0 / tiles"),
}


def planted(old: str, new: str, case: Case, rung: str = "34") -> Variant:
    variant = variant_of(rung, case)
    source = variant.kernel.source
    for name in ("batch.cuh", "small_tiles.cuh")[: 1 + (rung in SHARING)]:
        header = (ROOT / "cu" / "include" / name).read_text().replace("#pragma once", "")
        line = f'#include "{name}"'
        assert line in source
        source = source.replace(line, header)
    assert source.count(old) == 1
    return replace(variant, kernel=replace(variant.kernel, source=source.replace(old, new)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
@pytest.mark.parametrize("rung", ["34", "37"])
def test_a_wrong_matrix_is_found(rung: str, fault: str) -> None:
    assert not emulated(planted(*PLANTED[fault], Case(), rung), Case())


@pytest.mark.slow
@pytest.mark.parametrize("operand", "AB")
def test_matrices_aligned_as_the_first_are_not_is_found(operand: str) -> None:
    """Rows are multiples of 16 bytes apart, and every matrix begins two bytes further on."""
    case = Case(m=40, n=40, k=24, pad=0, gaps=(1, 1, 1))
    assert emulated(variant_of("37", case), case)
    old = f"aligned16({operand}, ld{operand.lower()})"
    first = planted(old, old.replace(operand, "(const ELEMENT*)0", 1), case, "37")
    assert not emulated(first, case)


@pytest.mark.slow
def test_counters_that_matrices_share_are_found() -> None:
    """As are partial sums; by tile and matrix they are right."""
    case = Case(size=2, m=20, n=31, k=400)
    assert emulated(planted(SHARED, SHARED, case), case, sms=8, split=3)
    by_tile = SHARED.replace("blockIdx.x", "tile")
    assert not emulated(planted(SHARED, by_tile, case), case, sms=8, split=3)


IN_BOXES = {
    "the first A for all": ("(MatrixMap{map, (stride) ? (int)(matrix) : 0", "(MatrixMap{map, 0"),
    "tiles in the wrong matrix": ("return {tile / tiles, tile % tiles};", "return {tile % 2, tile / 2};"),
    "maps where there are none": ("((stride) >= 0 && (stride) * (size) % 16 == 0)", "true"),
    "a repeated operand by number": ("(stride) ? (int)(matrix) : 0", "(int)(matrix)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", IN_BOXES)
def test_a_wrong_box_is_found(fault: str) -> None:
    """Gaps of five elements have no map; A is the same for all in the last."""
    gaps = (None if "repeated" in fault else 5 if "none" in fault else 8, 0, 16)
    case = Case(**{**ALIGNED, "m": 136, "gaps": gaps})
    assert emulated(variant_of("23", case), case)
    assert not emulated(planted(*IN_BOXES[fault], case, "23"), case)
