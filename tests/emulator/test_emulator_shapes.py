"""Every right kernel of the ladder on twenty ragged shapes: right numbers and not one finding."""

from __future__ import annotations

import functools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.bench.row import OK
from harness.errors import HarnessError
from harness.kernels import catalog
from harness.launch.builds import Built
from shared.mutants import Subject, flat
from shared.sweeps import sweep

RUNGS = [k.name for k in catalog.ladder() if not k.broken and not k.tensormaps]
FAST = {"03_tiled", "08_tiled_v4"}
LONG = {
    *("10_vectorized", "12_prefetch", "14_warp_tiles", "31_bf16x6", "32_bf16x6_panels"),
    *("33_small_tiles", "36_fp16x3", "38_3xtf32_panels", "39_bf16x6_tiles", "41_turned_tiles"),
    "42_single_floats",
    "37_small_tiles_16_bits_fp16",  # the file of its bf16; test_batched_tiles.py draws shapes for both
    *("40_skinny_dots", "40_skinny_dots_bf16", "40_skinny_dots_fp16"),  # small tiles of many blocks
}
EXTENTS = st.integers(1, 80)
PADS = st.sampled_from([0, 0, 1, 2, 3, 4])  # none and four leave rows of float4 aligned, if they are


@functools.cache
def right(name: str) -> tuple[Subject, Built]:
    subject = Subject.of(catalog.kernel(name))
    built = subject.built(flat(subject.variant.kernel))
    assert built is not None
    return subject, built


@pytest.mark.parametrize("name", sweep(RUNGS, lambda name: name in FAST, lambda name: name in LONG))
@settings(
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    extents=st.tuples(EXTENTS, EXTENTS, EXTENTS),
    pads=st.tuples(PADS, PADS, PADS),
    alpha=st.sampled_from([1.0, 0.7, -1.5, 0.0]),
    beta=st.sampled_from([0.0, 0.3, 1.0, -2.0]),
)
def test_no_finding_and_right_numbers(
    name: str, extents: tuple[int, ...], pads: tuple[int, ...], alpha: float, beta: float
) -> None:
    subject, built = right(name)
    m, n, k = extents
    axes = {"M": m, "N": n, "K": k, "lda": k + pads[0], "ldb": n + pads[1], "ldc": n + pads[2]}
    try:
        row = subject.run(built, axes | {"alpha": alpha, "beta": beta})
    except HarnessError as e:
        if "needs a GPU" not in str(e):
            raise
        pytest.skip(str(e))
    assert (row.status, row.error) == (OK, "")
    assert row.emulation is not None
    assert row.emulation.findings == ()
    assert row.before is not None
    assert row.before.elements == m * n
