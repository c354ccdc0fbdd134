"""Lanes that store the same to one cell of shared memory, as Triton's code does after a reduction."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Emulation
from shared.emulator_kernels import launch

SUM = """extern "C" __global__ void k(const float* a, float* o) {
  __shared__ float s[8]; int i = threadIdx.x, w = i / 32; float v = a[blockIdx.x * blockDim.x + i];
  for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  STORE
  __syncthreads();
  v = s[i & 3];
  for (int d = 2; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  o[blockIdx.x] = v; }"""


def outcome(store: str, schedule: str = "lockstep") -> tuple[Emulation, np.ndarray, np.ndarray]:
    a = np.random.default_rng(2).standard_normal((3, 128)).astype(np.float32)
    out = np.zeros(3, np.float32)
    run = launch(SUM.replace("STORE", store), "k", (3,), (128,), a, out, schedule=schedule)
    return run, out, a.sum(1)


@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial"])
def test_the_same_value_is_a_notice(schedule: str) -> None:
    run, out, wanted = outcome("s[w] = v;", schedule)
    assert run.findings == ()
    assert any("the same value" in notice.message for notice in run.notices)
    assert np.allclose(out, wanted, atol=1e-4)


@pytest.mark.parametrize(
    "store",
    [
        "s[w] = i % 32 == 7 ? v + 1 : v;",  # one lane stores something else
        "s[w] = v; if (w == 1) s[0] = v;",  # and another warp
        "s[w] = v; s[w & 2] = v;",
    ],
)
def test_other_values_are_a_finding(store: str) -> None:
    run, _, _ = outcome(store)
    assert "WAW hazard" in {finding.kind for finding in run.findings}
