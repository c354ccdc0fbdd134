"""The shipped kernels in the emulator: right numbers, no findings, any shape; the rung without barriers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import Gemm, compile_kernel, ladder
from harness.emulator import Buffer, Emulation, emulate
from harness.launch import kernel as launch
from shared.sweeps import sweep

KERNELS = {kernel.path.stem: kernel for kernel in ladder() if kernel.dtype == "fp32"}
for hopper in (
    "15_split_k",
    "16_pipeline",
    "19_pipeline_split",
    "20_stream_k",
    "33_small_tiles",
    "41_turned_tiles",
    "42_single_floats",
):
    del KERNELS[hopper]  # tensor maps, clusters or a workspace: see test_hopper_rungs and test_small_tiles
RACY = "05_tiled_no_sync"  # its lesson is the missing barriers
ARCHS = ["sm_75", "sm_80", "sm_90a", "sm_100", "sm_120"]
BUILDS = [(name, arch) for name in KERNELS for arch in ARCHS if KERNELS[name].fits(arch)]
FAST_ARCH = {"03_tiled": "sm_75", RACY: "sm_100", "08_tiled_v4": "sm_120", "13_cp_async": "sm_80"}


def run(
    name: str,
    arch: str,
    m: int,
    n: int,
    k: int,
    *,
    beta: float = 0.0,
    pad: int = 0,
    schedule: str = "lockstep",
) -> tuple[Emulation, float]:
    """(emulation, largest error over the bound of a float32 sum of k products); leading dimensions padded."""
    variant = KERNELS[name].variant()
    rng = np.random.default_rng(m * 10_007 + n * 101 + k)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k + pad), (k, n + pad)))
    c = np.full((m, n + pad), np.nan, np.float32)
    if beta:
        c[:, :n] = rng.standard_normal((m, n))
    inside = c[:, :n].astype(np.float64)
    expected = 1.5 * (a[:, :k].astype(np.float64) @ b[:, :n]) + (beta * inside if beta else 0)
    room = 1.5 * (np.abs(a[:, :k]).astype(np.float64) @ np.abs(b[:, :n])) + (np.abs(inside) if beta else 0)
    result = emulate(
        compile_kernel(variant, arch).ptx,
        "matmul",
        grid=launch.grid(variant, Gemm(M=m, N=n, K=k)),
        block=variant.block,
        shared=variant.shared,
        arguments=[
            Buffer(array=a, name="A"),
            Buffer(array=b, name="B"),
            Buffer(array=c, name="C", initialised=beta != 0),
            *(np.int32(x) for x in (m, n, k, k + pad, n + pad, n + pad)),
            np.float32(1.5),
            np.float32(beta),
        ],
        schedule=schedule,
    )
    assert np.isnan(c[:, n:]).all()  # the padding is nobody's
    return result, float(np.max(np.abs(c[:, :n] - expected) / ((k + 3) * 2.0**-23 * room + 1e-30)))


def between(name: str, arch: str) -> bool:
    """Return whether a kernel fits an older architecture and a newer one: CI takes the oldest and the newest.
    For sm_90a `test_any_shape_has_no_findings` draws from all.
    """
    fitting = [arch for of, arch in BUILDS if of == name]
    return arch not in (fitting[0], fitting[-1])


@pytest.mark.parametrize(
    ("name", "arch"), sweep(BUILDS, lambda name, arch: arch == FAST_ARCH.get(name), between)
)
def test_a_ragged_shape_on_every_architecture(name: str, arch: str) -> None:
    result, error = run(name, arch, 37, 53, 29, beta=0.5, pad=3)
    assert error <= 1
    kinds = {finding.kind for finding in result.findings}
    assert kinds == ({"RAW hazard", "WAR hazard"} if name == RACY else set())


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(set(KERNELS) - {RACY})),
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(1, 70),
    st.booleans(),
)
def test_any_shape_has_no_findings(name: str, m: int, n: int, k: int, accumulate: bool) -> None:
    result, error = run(name, "sm_90a", m, n, k, beta=0.5 if accumulate else 0.0, pad=k % 3)
    assert result.findings == ()
    assert error <= 1


def test_missing_barriers_show_in_the_numbers_warp_by_warp() -> None:
    assert run(RACY, "sm_90a", 64, 64, 64)[1] <= 1
    assert not run(RACY, "sm_90a", 64, 64, 64, schedule="warp-serial")[1] <= 1000
    assert run("03_tiled", "sm_90a", 64, 64, 64, schedule="warp-serial")[1] <= 1
