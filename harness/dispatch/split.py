"""Divide a product into launches: mostly one, but a few rows or columns may be left to another kernel.

For 2049 x 2049 outputs in tiles of 128 x 256, the last row and the last column take 25 more tiles than the
128 of 2048 x 2048. Up to `SKINNY` rows or columns beyond a multiple of `UNIT` are therefore given to a kernel
for few rows or columns, if by the cost model of `harness.dispatch.choose` the launches one after the other
take fewer cycles than a single one. A shape in a table of `choose` is never divided, because a single launch
was measured for it. Only fp32 products are divided, and no invariant ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.dispatch import choose
from harness.dispatch.model import cost, traffic
from harness.dispatch.model.cost import SKINNY
from harness.dispatch.model.traffic import ALIGNED, DRAM_BYTES, Pitches
from harness.kernels.dtypes import FP32
from harness.kernels.epilogue import PLAIN, Epilogue
from harness.kernels.spec import Variant

UNIT = 64  # rows or columns; tiles of the kernels for large products extend over one, two or four of it


@dataclass(frozen=True, kw_only=True)
class Part:
    """One launch of a product: it computes `rows` x `columns` outputs, the first at (`row`, `column`)."""

    variant: Variant
    rows: int
    columns: int
    row: int = 0
    column: int = 0


def divided(
    M: int,
    N: int,
    K: int,
    *,
    sms: int,
    arch: str,
    gpu: str = "",
    dtype: str = FP32.name,
    layout: str = cost.NN,
    pitches: Pitches = ALIGNED,
    epilogue: Epilogue = PLAIN,
    invariant: str = "",
    dram: float = DRAM_BYTES,
) -> tuple[Part, ...]:
    """Return the launches by which `harness.matmul` computes an (M x K) @ (K x N) product, the largest first.

    Their parts cover the output without overlap. Arguments and errors are those of `choose.choose`.
    """

    about: Any = {"sms": sms, "arch": arch, "dtype": dtype, "layout": layout, "epilogue": epilogue}
    about["invariant"] = invariant
    paced = {**about, "pitches": pitches, "dram": dram}

    def part(rows: int, columns: int, row: int = 0, column: int = 0) -> Part:
        variant = choose.choose(rows, columns, K, gpu=gpu, **paced)
        return Part(variant=variant, rows=rows, columns=columns, row=row, column=column)

    def cycles(shapes: Sequence[tuple[int, ...]]) -> float:
        found = (choose.ranked(m, n, K, **paced) for m, n, *_ in shapes)
        return sum(ranks[0][1] for ranks in found)

    whole = part(M, N)
    # The skinny kernels are for fp32, and add in an order of their own.
    if dtype != FP32.name or invariant or choose.measured(M, N, K, gpu=gpu, **about):
        return (whole,)
    options: list[list[tuple[int, ...]]] = []
    for below, beside in itertools.product(_leftover(M), _leftover(N)):
        shapes: list[tuple[int, ...]] = [(M - below, N - beside)]
        if below:
            shapes.append((below, N, M - below))
        if beside:
            shapes.append((M - below, beside, 0, N - beside))
        options.append(shapes)
    best = min(options, key=cycles)  # the first of equals, which has the fewest launches
    parts = tuple(part(*shape) for shape in best)
    # What one kernel needs transposed, another might read where it is.
    alike = len({traffic.unread(one.variant, layout) for one in parts}) == 1
    return parts if len(parts) > 1 and alike else (whole,)


def _leftover(size: int) -> tuple[int, ...]:
    """Return how many of `size` rows or columns may be left to another kernel: (0,) or (0, remainder)."""
    rest = size % UNIT
    return (0, rest) if 0 < rest <= SKINNY and size > UNIT else (0,)


def brief(variants: Iterable[Variant]) -> str:
    """Return the names of a product's kernels as one text: ``16_pipeline + 17_skinny_rows ROWS=1``."""
    return " + ".join(variant.brief for variant in variants)
