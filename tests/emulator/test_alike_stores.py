"""Lanes that store the same to one cell of shared memory, as Triton's code does after a reduction."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Emulation, emulate
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


TWINS = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k() {
.reg .pred %p<4>; .reg .b32 %r<12>;
.shared .align 16 .b8 s[256];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; and.b32 %r3, %r1, 15; mov.u32 %r4, s;
mad.lo.u32 %r5, %r3, 4, %r4; add.u32 %r6, %r1, 1; and.b32 %r6, %r6, 15; mad.lo.u32 %r6, %r6, 4, %r4;
mad.lo.u32 %r7, %r2, 100, %r3; mov.u32 %r8, 0;
.loc 1 1 0
BODY
ret; }"""


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        # 32 threads store to 16 words, thread t and t + 16 to word t of %r5
        ("st.shared.u32 [%r5], %r3;", "same"),
        ("st.shared.u32 [%r5], %r7;", "same"),  # in each block other values
        ("st.shared.u32 [%r5], %r1;", "other"),
        ("setp.eq.u32 %p1, %r1, 20; selp.u32 %r7, 999, %r7, %p1; st.shared.u32 [%r5], %r7;", "other"),
        # lane 20 would store something else, but takes no part
        (
            "setp.eq.u32 %p1, %r1, 20; selp.u32 %r7, 999, %r7, %p1; @!%p1 st.shared.u32 [%r5], %r7;",
            "same",
        ),
        ("st.shared.v2.u32 [s+64], {%r8, %r8};", "same"),
        ("st.shared.v2.u32 [s+64], {%r8, %r1};", "other"),
        # twice the same values in the same order, but the words are others
        ("st.shared.u32 [%r5], %r3; st.shared.u32 [%r6], %r3;", "other"),
        # the lanes that store to a word alone are others, and so are their values
        (
            "and.b32 %r9, %r1, 15; setp.lt.u32 %p1, %r9, 8; setp.lt.u32 %p2, %r1, 16; or.pred %p1, %p1, %p2;"
            "setp.ge.u32 %p3, %r1, 16; setp.lt.or.u32 %p3, %r9, 8, %p3; selp.u32 %r10, %r8, %r1, %p1;"
            "setp.lt.u32 %p2, %r9, 8; selp.u32 %r10, %r8, %r1, %p2;"
            "@%p1 st.shared.u32 [%r5], %r10; @%p3 st.shared.u32 [%r5], %r10;",
            "other",
        ),
    ],
)
def test_stores_to_one_word_are_compared_lane_by_lane(body: str, kinds: str) -> None:
    run = emulate(TWINS.replace("BODY", body), "k", grid=(3,), block=(32,), arguments=[])
    if kinds == "same":
        assert run.findings == () and {f.kind for f in run.notices} == {"WAW hazard"}
    else:
        assert {f.kind for f in run.findings} == {"WAW hazard"}
