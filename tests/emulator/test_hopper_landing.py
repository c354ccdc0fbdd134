"""Copies that land in a later phase of their mbarrier than they began in: that one did not expect them."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Emulation
from shared.hopper_kernels import kinds, run

# Two copies of one phase: who expects the first one alone sees the phase end when it has landed.
TWO = """const float* x, float* y {
  __shared__ alignas(128) float s[2][64], more[64];
  __shared__ alignas(8) u64 full, other;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1); init(&other, 1); fence_init();
    expect(&full, BYTES);
    load(s[0], x, 256, &full); load(s[1], x + 64, 256, &full);
    expect(&other, 256); load(more, x, 256, &other);
  }
  __syncthreads();
  wait(&full, 0);
  wait(&other, 0);
  y[t] = s[0][t] + s[1][t] + more[t];
}"""
# The same by st.async into the other block.
FAR = """const float* x, float* y {
  __shared__ alignas(16) float s[2][32];
  __shared__ alignas(8) u64 full;
  int t = threadIdx.x, r = rank();
  if (t == 0) { init(&full, 1); fence_init(); expect(&full, BYTES); }
  cluster_sync();
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
    :: "r"(far(&s[t / 32][t % 32], r ^ 1)), "f"(x[t]), "r"(far(&full, r ^ 1)) : "memory");
  cluster_sync();
  wait(&full, 0);
  y[r * 64 + t] = s[t / 32][t % 32];
  cluster_sync();
}"""


def emulated(body: str, count: int, schedule: str) -> Emulation:
    x, y = np.ones(128, np.float32), np.zeros(128, np.float32)
    blocks = 2 if body is FAR else 1
    body = body.replace("BYTES", str(count))
    return run(body, x, y, block=64, grid=blocks, cluster=blocks if blocks > 1 else 0, schedule=schedule)


@pytest.mark.parametrize("schedule", ["late", "early"])
@pytest.mark.parametrize(("body", "size"), [(TWO, 512), (FAR, 256)], ids=["bulk", "st.async"])
def test_all_bytes_are_expected(body: str, size: int, schedule: str) -> None:
    assert not emulated(body, size, schedule).findings


def test_a_copy_that_its_phase_did_not_expect() -> None:
    found = emulated(TWO, 256, "late")
    assert "mbarrier misuse" in kinds(found)
    assert any("lands in phase 1" in f.message and "began in phase 0" in f.message for f in found.findings)
