"""The rungs that use Hopper's asynchronous units: right numbers and no findings, at ragged shapes."""

from __future__ import annotations

from functools import cache

import pytest

from harness import compile_kernel, ladder
from harness.bench.emulation import Options, row
from harness.bench.row import OK
from harness.launch.builds import Built
from harness.problems import checks
from harness.problems.registry import resolve

KERNELS = {kernel.path.stem: kernel for kernel in ladder()}
# (rung, parameters): the defaults, and clusters and small tiles where a rung has them.
VARIANTS: dict[str, tuple[str, dict[str, int]]] = {
    "15": ("15_split_k", {}),
    "15 in fours": ("15_split_k", {"SPLIT": 4}),
    "16": ("16_pipeline", {}),
    "19": ("19_pipeline_split", {}),
    "20": ("20_stream_k", {}),
    "22": ("22_wgmma", {}),
    "22a": ("22a_warp_specialized", {}),
    "22b": ("22b_persistent", {}),
    "22c": ("22c_tma_store", {}),
    "23": ("23_wgmma_pipeline", {}),
    "23 in pairs": ("23_wgmma_pipeline", {"CLUSTER": 2}),
    "23 small": ("23_wgmma_pipeline", {"BM": 64, "BN": 64, "STAGES": 8}),
    "25": ("25_wgmma_tf32", {}),
    "25 split": ("25_wgmma_tf32", {"SPLIT": 2}),
    "26": ("26_wgmma_split", {}),
    "28": ("28_3xtf32", {}),
    "29": ("29_wgmma_grid_split", {}),
}
SMALL = {"M": 72, "N": 136, "K": 104}
# Ragged in every extent; leading dimensions that TMA does not take; k of less than a stage; enough tiles for
# persistent blocks, of which there are four, to come around twice.
SHAPES = [
    SMALL,
    {"M": 1, "N": 1, "K": 1},
    {"M": 300, "N": 264, "K": 200, "beta": 0.5},
    {"M": 130, "N": 131, "K": 77},
    {"M": 65, "N": 260, "K": 500, "ldc": 264, "alpha": 1.5},
    {"M": 257, "N": 72, "K": 64, "lda": 67, "beta": -1.0},
    {"M": 640, "N": 640, "K": 72},
    {"M": 520, "N": 777, "K": 136},
    {"M": 31, "N": 1000, "K": 33},
    {"M": 200, "N": 200, "K": 1100},
]


@cache
def built(name: str, parameters: tuple[tuple[str, int], ...]) -> Built:
    variant = KERNELS[name].variant(**dict(parameters))
    return Built(variant=variant, cubin=compile_kernel(variant, "sm_90a"), sass=None)


def emulated(which: str, axes: dict[str, float], schedule: str = "lockstep") -> tuple[str, list[str]]:
    """Return (status, faults) of a rung at a shape."""
    name, parameters = VARIANTS[which]
    one = built(name, tuple(parameters.items()))
    problem = checks.instance(resolve(one.variant.kernel), axes)
    inputs, reference = checks.data(problem, 1)
    found = row(one, problem, inputs, reference, Options(schedule=schedule))
    findings = [str(finding) for finding in found.emulation.findings] if found.emulation else []
    return found.status, [found.error, *findings] if found.error else findings


@pytest.mark.parametrize("which", ["15", "22", "23 in pairs", "26"])
def test_a_rung_is_right_and_has_no_findings(which: str) -> None:
    assert emulated(which, SMALL) == (OK, [])


@pytest.mark.exhaustive
@pytest.mark.parametrize("axes", SHAPES, ids=lambda axes: "x".join(str(axes[a]) for a in "MNK"))
@pytest.mark.parametrize("which", VARIANTS)
def test_every_rung_at_ragged_shapes(which: str, axes: dict[str, float]) -> None:
    assert emulated(which, axes) == (OK, [])


@pytest.mark.slow
@pytest.mark.parametrize("which", VARIANTS)
def test_every_rung_with_operations_that_land_at_once(which: str) -> None:
    assert emulated(which, SMALL, "early") == (OK, [])
