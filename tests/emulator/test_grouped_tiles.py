"""Rungs 33, 34 and 37 with products of different shapes in one launch, emulated: layouts, pitches, faults.

Elements are small integers, whose sums are exact in any order, and all memory beside the matrices is NaN.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness import compile_kernel
from harness.dispatch.call import group
from harness.emulator import Buffer, Record, emulate
from harness.kernels import catalog
from harness.kernels.dtypes import DTYPES
from harness.kernels.spec import Kernel, Variant
from harness.problems.gemm import GEMMS, Gemm
from shared.places import ROOT

RUNGS: dict[str, Kernel] = {
    **{name[:2]: catalog.kernel(name) for name in ("33_small_tiles", "34_small_tiles_tf32")},
    "39": catalog.kernel("39_bf16x6_tiles"),
    "37": catalog.kernel("37_small_tiles_16_bits"),
    "37 fp16": catalog.kernel("37_small_tiles_16_bits").with_dtype("fp16"),
}
SMALL = {"BM": 32, "BN": 32, "BLOCKS": 4}
HEADER = (ROOT / "cu" / "include" / "batch.cuh").read_text()
SHAPES = [(33, 37, 20), (5, 70, 7), (64, 32, 40), (1, 1, 1), (40, 3, 65)]


def variant_of(rung: str, count: int = len(SHAPES), layout: tuple[int, int] = (0, 0), **more: int) -> Variant:
    small = {"BLOCKS": 4} if rung == "39" else SMALL
    plain = RUNGS[rung].variant(**small, **more, TRANSA=layout[0], TRANSB=layout[1])
    return group.compiled(plain, count)


def problems_of(variant: Variant, shapes: list[tuple[int, int, int]], rng: random.Random) -> list[Gemm]:
    """Return products of these shapes, each with pitches and offsets of its own."""
    flips = {"transa": variant.params["TRANSA"], "transb": variant.params["TRANSB"]}
    found = []
    for m, n, k in shapes:
        packed = GEMMS[variant.kernel.dtype](M=m, N=n, K=k, **flips)
        pads = {x: getattr(packed, x) + rng.choice([0, 0, 1, 3, 8]) for x in ("lda", "ldb", "ldc")}
        found.append(GEMMS[variant.kernel.dtype](M=m, N=n, K=k, **flips, **pads))
    return found


def emulated(
    variant: Variant, problems: list[Gemm], *, sms: int = 2, split: int = 1, beta: float = 0
) -> bool:
    """Run the group twice on one workspace; return True if all is right and nothing is found."""
    dtype, rng = DTYPES[variant.kernel.dtype], np.random.default_rng(1)
    buffers: list[Buffer] = []
    views: list[Any] = []
    for i, p in enumerate(problems):
        for name, x in p.layouts().items():
            memory = np.full(x.rows * x.ld, dtype.encode(np.full(1, np.nan, np.float32))[0])
            view = memory.reshape(x.rows, x.ld)[:, : x.columns]
            if name != "C" or beta:
                view[:] = dtype.encode(rng.integers(-2, 3, view.shape).astype(np.float32))
            buffers.append(Buffer(array=memory, name=f"{name}{i}", initialised=name != "C" or bool(beta)))
            views.append(view)
    table, first = group.entries(variant, problems)

    def pack(address: Callable[[Buffer], int]) -> bytes:
        filled = table.copy()
        for column, name in enumerate("ABC"):
            filled[name][: len(problems)] = [address(x) for x in buffers[column::3]]
        return filled.tobytes() + first.tobytes()

    grid, memory = group.extents(variant, problems, sms=sms)
    assert grid[1] == split
    workspace = np.zeros(memory, np.uint8)
    cubin = compile_kernel(variant, "sm_90a")
    nothing = [np.uint64(0)] * 3 + [np.int32(0)] * 6
    for _ in range(2):
        wanted, beside = [], [b.array.copy() for b in buffers[2::3]]
        for i, p in enumerate(problems):
            a, b, c = (dtype.decode(x).astype(float) for x in views[3 * i : 3 * i + 3])
            a, b = a.T if p.transa else a, b.T if p.transb else b
            wanted.append(2 * (a @ b) + (beta * c if beta else 0))
        found = emulate(
            cubin.ptx,
            cubin.entry,
            grid=grid,
            block=variant.block,
            arguments=[
                *(*nothing, np.float32(2), np.float32(beta)),
                Record(buffers=tuple(buffers), align=group.ALIGN, pack=pack),
                Buffer(array=workspace, name="workspace"),
            ],
            shared=variant.shared,
            count=False,
        )
        for view, expected, before, buffer, p in zip(
            views[2::3], wanted, beside, buffers[2::3], problems, strict=True
        ):
            rounded = dtype.decode(dtype.encode(expected.astype(np.float32)))
            before.reshape(-1, p.ldc)[:, : p.N] = view
            if not np.array_equal(dtype.decode(view), rounded):
                return False
            if not np.array_equal(before.view(np.uint8), buffer.array.view(np.uint8)):
                return False  # something beside the result was written
        if found.findings or workspace[:4096].any():
            return False
    return True


def test_a_group() -> None:
    variant = variant_of("34")
    assert emulated(variant, problems_of(variant, SHAPES, random.Random(3)))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("rung", RUNGS)
def test_drawn_shapes(rung: str, layout: tuple[int, int]) -> None:
    """Of any pitch, and so with rows that begin anywhere."""
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    shapes = [(rng.randint(1, 70), rng.randint(1, 70), rng.randint(1, 90)) for _ in range(rng.randint(2, 9))]
    variant = variant_of(rung, len(shapes), layout)
    assert emulated(variant, problems_of(variant, shapes, rng), beta=rng.choice([0, 1])), seed


@pytest.mark.slow
@pytest.mark.parametrize(("split", "splits", "sms"), [(1, 3, 8), (8, 8, 4)])
@pytest.mark.parametrize("rung", ["33", "37"])
def test_tiles_that_are_shared(rung: str, split: int, splits: int, sms: int) -> None:
    """By blocks, and by those of a cluster; of a short product most of them have nothing."""
    shapes = [(20, 31, 400 if split == 1 else 550), (33, 9, 30)]
    variant = variant_of(rung, 2, SPLIT=split)
    assert emulated(variant, problems_of(variant, shapes, random.Random(5)), sms=sms, split=splits)


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 256])
def test_larger_tables(size: int) -> None:
    """Their search has more steps."""
    variant = variant_of("33", size)
    assert variant.params["GROUPED"] == size
    assert emulated(variant, problems_of(variant, SHAPES, random.Random(7)))


# Faults

SEARCH = "group.first[found + step] <= blockIdx.x"
PLANTED = {
    "the product behind it": (SEARCH, f"{SEARCH} + 1"),
    "the product before it": (SEARCH, SEARCH.replace("<=", "<")),
    "the tile of the whole group": ("(blockIdx.x - first_tile)", "(blockIdx.x - 0 * first_tile)"),
    "a neighbour's pitch": ("ldc = product.ldc", "ldc = group.products[0].ldc"),
    "the operands exchanged": ("B = (const In*)product.B", "B = (const In*)product.A"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_found(name: str) -> None:
    old, new = PLANTED[name]
    plain = variant_of("33")
    assert HEADER.count(old) == 1 and plain.kernel.source.count('#include "batch.cuh"') == 1
    header = HEADER.replace(old, new).replace("#pragma once", "")
    source = plain.kernel.source.replace('#include "batch.cuh"', header)
    wrong = replace(plain, kernel=replace(plain.kernel, source=source))
    assert not emulated(wrong, problems_of(plain, SHAPES, random.Random(3)))


@pytest.mark.slow
def test_without_a_fault_the_same_is_right() -> None:
    """The control."""
    plain = variant_of("33")
    assert emulated(plain, problems_of(plain, SHAPES, random.Random(3)))
