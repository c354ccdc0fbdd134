"""The choice of a kernel for a batch of products: one launch of small tiles, or a launch for each product."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from harness.dispatch import choose
from harness.dispatch.call import batch as batches
from harness.dispatch.cost import NN
from harness.kernels.dtypes import FP32
from harness.kernels.epilogue import PLAIN, Epilogue
from harness.kernels.spec import Variant


@functools.lru_cache(maxsize=4096)
def batched(
    count: int,
    M: int,
    N: int,
    K: int,
    *,
    sms: int,
    arch: str,
    dtype: str = FP32.name,
    layout: str = NN,
    straddled: bool = False,
    unmapped: str = "",
    epilogue: Epilogue = PLAIN,
    invariant: str = "",
) -> Variant | None:
    """Return the variant, compiled for a batch, that computes `count` products in one launch.

    Arguments are those of `choose.choose`. None if there is no such kernel, or if by the cost model a launch of the
    fastest kernel for each product takes no longer, the starts of all of them counted.
    """
    shape = M, N, K, sms
    pitches: Any = {"layout": layout, "straddled": straddled, "unmapped": unmapped}
    able = [
        replace(c, batch=count)
        for c in choose.able(*shape, arch, dtype, layout, epilogue, invariant)
        if batches.takes(c.variant.kernel) and c.count(M, N) * count < 2**31
    ]
    if not able:
        return None
    best = min(able, key=lambda c: (c.cycles(*shape, **pitches), c.busy(*shape, straddled)))
    made: Any = {"dtype": dtype, "epilogue": epilogue, "invariant": invariant}
    single = choose.ranked(M, N, K, sms=sms, arch=arch, **made, **pitches)[0][1]
    return batches.compiled(best.variant) if best.cycles(*shape, **pitches) < count * single else None
