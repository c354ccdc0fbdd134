"""Volatile data in shared memory: neither lanes of a warp nor warps with a flag are ordered by it alone."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Finding
from shared.emulator_kernels import launch
from shared.hopper_kernels import PRELUDE

HEAD = """
extern "C" __global__ void k(const int* a, int* out) {
  int t = threadIdx.x, v = a[t]; __shared__ volatile int s[64], flag[2];
  if (t < 2) flag[t] = 0;
  __threadfence_block();
  LOAD
  __syncthreads();
"""
# With an mbarrier it is a kernel with asynchronous units, whose shared memory is watched by clocks.
UNITS = "__shared__ alignas(8) u64 bar; if (t == 0) { init(&bar, 1); fence_init(); }"
SUM = """
  s[t] = v;
  __syncthreads();
  if (t < 32) {
    v = s[t] + s[t + 32];
    for (int d = 16; d; d /= 2) {
      __syncwarp(); // read before
      s[t] = v;
      __syncwarp(); // written
      v += s[t ^ d];
    }
    if (t == 0) out[0] = v;
  }
}"""
FLAG = """
  if (t < 32) {
    s[t] = v;
    __threadfence_block(); // stored
    __syncwarp(); // all
    if (t == 0) flag[0] = 1;
  } else {
    while (!flag[0]);
    __threadfence_block(); // seen
    out[t] = s[t - 32];
  }
}"""
# One slot between two threads, filled again when it was read.
SLOT = """
  for (int i = 0; i < 3; i++)
    if (t == 0) {
      while (flag[1] != i);
      __threadfence_block(); // free
      s[0] = a[i];
      __threadfence_block(); // put
      flag[0] = i + 1;
    } else if (t == 32) {
      while (flag[0] != i + 1);
      __threadfence_block(); // got
      out[i] = s[0];
      __threadfence_block(); // taken
      flag[1] = i + 1;
    }
}"""
RAW, WAR = "RAW hazard", "WAR hazard"
CASES = [
    (SUM, "__syncwarp(); // read before", {WAR, RAW}),
    (SUM, "__syncwarp(); // written", {RAW, WAR}),
    (FLAG, "__threadfence_block(); // stored", {RAW}),
    (FLAG, "__syncwarp(); // all", {RAW}),
    (FLAG, "__threadfence_block(); // seen", {RAW}),
    (SLOT, "__threadfence_block(); // free", {WAR}),
    (SLOT, "__threadfence_block(); // put", {RAW}),
    (SLOT, "__threadfence_block(); // got", {RAW}),
    (SLOT, "__threadfence_block(); // taken", {WAR}),
]
# What is read tells by itself, or only whether to look further.
FREE = {
    "flag and value in one word": """
  if (t < 32) s[t] = 2 * v + 1;
  else { int w; while (!((w = s[t - 32]) & 1)); out[t] = w / 2; }
}""",
    "a word that is read again": """
  if (t < 32) s[t] = v + 1;
  else { while (!s[t - 32]); out[t] = s[t - 32]; }
}""",
    "a bound that prunes": """
  if (t == 0) s[0] = 64;
  __syncthreads();
  for (int i = 0; i < 3; i++) if (a[(t + i) % 64] < s[0]) atomicMin((int*)&s[0], a[(t + i) % 64]);
  __syncthreads();
  out[t] = s[0];
}""",
}


def found(body: str, units: bool) -> tuple[Finding, ...]:
    a, out = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32)
    text = PRELUDE + HEAD.replace("LOAD", UNITS if units else "") + body
    return launch(text, "k", (1,), (64,), a, out).findings


@pytest.mark.parametrize("units", [False, True], ids=["plain", "units"])
@pytest.mark.parametrize("body", [SUM, FLAG, SLOT, *FREE.values()], ids=["sum", "flag", "slot", *FREE])
def test_right_kernels_have_no_finding(body: str, units: bool) -> None:
    cleared = "for (int i = t; i < 64; i += 64) s[i] = 0; __syncthreads();"
    assert not found(body if body in (SUM, FLAG, SLOT) else cleared + body, units)


@pytest.mark.parametrize("units", [False, True], ids=["plain", "units"])
@pytest.mark.parametrize(("body", "left_out", "kinds"), CASES)
def test_what_is_left_out_is_found(body: str, left_out: str, kinds: set[str], units: bool) -> None:
    assert body.count(left_out) == 1
    told = found(body.replace(left_out, ""), units)
    assert told
    assert {finding.kind for finding in told} <= kinds


def test_lanes_that_read_and_write_at_once_race() -> None:
    """Run sums as before Volta, whose lanes went in step: each reads what another one overwrites."""
    body = """
  s[t] = v;
  __syncthreads();
  if (t < 32) {
    s[t] += s[t + 32]; SYNC s[t] += s[t + 16]; SYNC s[t] += s[t + 8]; SYNC
    if (t == 0) out[0] = s[0]; }
}"""
    for sync in ("", "__syncwarp();"):
        told = found(body.replace("SYNC", sync), False)
        assert {RAW, WAR} & {finding.kind for finding in told}


CHAIN = """
  if (t % 32 == 0) {
    s[t / 32] = a[t] << 1 | 1;
    int before = 0;
    if (t) { while (!((before = s[t / 32 - 1]) & 1)); /* there */ }
    out[t / 32] = before >> 1;
  }
}"""


@pytest.mark.parametrize(("state", "right"), [("& 1", True), ("< 99", False)])
def test_the_last_warp_comes_first_where_warps_wait_for_each_other(state: str, right: bool) -> None:
    """In a block whose warps go in step, or from the first to the last, all words are there in time."""
    text = HEAD.replace("LOAD", "for (int i = t; i < 64; i += 64) s[i] = 0;")
    text += CHAIN.replace("& 1)", f"{state})")
    for schedule, wanted in (("lockstep", True), ("backward", right)):
        a, out = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32)
        run = launch(text, "k", (1,), (64,), a, out, schedule=schedule)
        assert run.contended
        assert not run.findings
        assert (out[:2].tolist() == [0, 1]) == wanted
