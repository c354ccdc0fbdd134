"""What is missing between strong accesses of two blocks: a fence of either, a barrier, a wait for a copy.

Each kernel has no finding as it is, and the ones that are told where something is left out. So it is beside
asynchronous units, whose orders travel by mbarriers.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator import Finding
from shared.emulator_kernels import launch
from shared.hopper_kernels import PRELUDE

BLOCKS = 6
HEAD = """
extern "C" __global__ void k(const int* a, int* out, volatile int* data, volatile int* flag, int* n) {
  int b = blockIdx.x, t = threadIdx.x, v; __shared__ int mine;
  LOAD
"""
PLAIN = "v = a[b * 64 + t];"
# The same by a bulk copy, which makes the kernel one with asynchronous units.
COPY = """
  __shared__ alignas(128) int s[64]; __shared__ alignas(8) u64 bar;
  if (t == 0) { init(&bar, 1); fence_init(); expect(&bar, 256); load(s, a + b * 64, 256, &bar); }
  __syncthreads(); wait(&bar, 0); v = s[t];
"""
CHAIN = """
  if (b) {
    if (t % 32 == 0) { while (!flag[b - 1]); __threadfence(); /* reader */ }
    __syncwarp(); // told
    v += data[(b - 1) * 64 + t];
  }
  data[b * 64 + t] = v;
  __threadfence(); // writer
  __syncthreads(); // stored
  if (t == 0) flag[b] = 1;
  out[b * 64 + t] = v;
}"""
LAST = """
  data[b * 64 + t] = v;
  __threadfence(); // writer
  __syncthreads(); // stored
  if (t == 0) mine = atomicAdd(n, 1) == gridDim.x - 1;
  __syncthreads();
  if (mine) { v = 0; for (int i = 0; i < gridDim.x; i++) v += data[i * 64 + t]; out[t] = v; }
}"""
# A slot is used again: its reader is done before it is overwritten.
SLOT = """
  if (t) return;
  for (int i = 0; i < 3; i++)
    if (b == 0) {
      while (flag[0] != 2 * i);
      __threadfence(); // free
      data[0] = v + i;
      __threadfence(); // put
      flag[0] = 2 * i + 1;
    } else if (b == 1) {
      while (flag[0] != 2 * i + 1);
      __threadfence(); // seen
      out[i] = data[0];
      __threadfence(); // taken
      flag[0] = 2 * i + 2;
    }
}"""
FENCE, BARRIER = "missing fence", "missing barrier"
CASES = [
    (CHAIN, "__threadfence(); /* reader */", "", FENCE, "before the second line"),
    (CHAIN, "__threadfence(); /* reader */", "__threadfence_block();", FENCE, "before the second line"),
    (CHAIN, "__threadfence(); // writer", "", FENCE, "behind the first line"),
    (CHAIN, "__syncthreads(); // stored", "", BARRIER, "between the first line"),
    (CHAIN, "__syncthreads(); // stored", "__syncwarp();", BARRIER, "between the first line"),
    (LAST, "__threadfence(); // writer", "", FENCE, "behind the first line"),
    (LAST, "__syncthreads(); // stored", "", BARRIER, "between the first line"),
    (SLOT, "__threadfence(); // put", "", FENCE, "behind the first line"),
    (SLOT, "__threadfence(); // seen", "", FENCE, "before the second line"),
    (SLOT, "__threadfence(); // taken", "", FENCE, "block (1, 0, 0) reads it, block (0, 0, 0) writes it"),
    (SLOT, "__threadfence(); // free", "", FENCE, "block (1, 0, 0) reads it, block (0, 0, 0) writes it"),
]
# None of these needs anything: what is read may be old or new.
FREE = {
    "what other blocks have stored so far": """
  data[b * 64 + t] = v;
  if (t == 0) atomicAdd(n, 1);
  for (int i = 0; i < 4; i++) v += data[(b + i) % gridDim.x * 64 + (t + i) % 64];
  out[b * 64 + t] = v;
}""",
    "tickets of which nobody hands on anything": """
  __shared__ int next;
  for (;;) {
    __syncthreads();
    if (t == 0) next = atomicAdd(n, 1);
    __syncthreads();
    if (next >= 2 * gridDim.x) break;
    int at = (next * 64 + t) % 256;
    data[at] = v + data[(at + 64) % 256] + data[(at + 1) % 256];
  }
  out[b * 64 + t] = v;
}""",
    "a word that tells by itself": """
  data[b * 64 + t] = v << 1 | 1;
  if (t == 0) atomicAdd(n, 1);
  if (b) { int w; while (!((w = data[(b - 1) * 64 + t]) & 1)); v += w >> 1; }
  out[b * 64 + t] = v;
}""",
}


def found(body: str, units: bool) -> tuple[Finding, ...]:
    arrays = [np.arange(64 * BLOCKS, dtype=np.int32), *(np.zeros(64 * BLOCKS, np.int32) for _ in range(3))]
    text = PRELUDE + HEAD.replace("LOAD", COPY if units else PLAIN) + body
    arrays.append(np.zeros(1, np.int32))
    return launch(text, "k", (BLOCKS,), (64,), *arrays, fences=True).findings


@pytest.mark.parametrize("units", [False, True], ids=["plain", "units"])
@pytest.mark.parametrize("body", [CHAIN, LAST, SLOT, *FREE.values()], ids=["chain", "last", "slot", *FREE])
def test_right_kernels_have_no_finding(body: str, units: bool) -> None:
    assert not found(body, units)


@pytest.mark.parametrize("units", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "units"])
@pytest.mark.parametrize(("body", "old", "new", "kind", "said"), CASES)
def test_what_is_missing_is_told(body: str, old: str, new: str, kind: str, said: str, units: bool) -> None:
    assert body.count(old) == 1
    told = found(body.replace(old, new), units)
    assert {finding.kind for finding in told} == {kind}
    assert said in told[0].message


# Thread 0 sees the flag while the others wait for a copy: what it has seen they have not.
ROLES = """
  __shared__ alignas(128) int more[64]; __shared__ alignas(8) u64 second;
  if (t == 0) { init(&second, 1); fence_init(); expect(&second, 256); load(more, a, 256, &second); }
  __syncthreads();
  if (b == 0) {
    data[t] = v; __threadfence(); __syncthreads(); if (t == 0) flag[0] = 1; wait(&second, 0);
    return;
  }
  if (t == 0) { while (!flag[0]); __threadfence(); }
  else wait(&second, 0);
  __syncthreads(); // told
  out[b * 64 + t] = data[t];
}"""


def test_who_has_seen_nothing_lacks_a_barrier() -> None:
    assert not found(ROLES, True)
    told = found(ROLES.replace("__syncthreads(); // told", ""), True)
    assert {finding.kind for finding in told} == {BARRIER}
    assert "between the read of that later write and the second line" in told[0].message


LOOK_BACK = """
  if (t) return;
  data[b] = v; __threadfence(); /* part */ flag[b] = b ? 1 : 2;
  int sum = 0, f;
  for (int i = b - 1; i >= 0; i--) {
    while (!(f = flag[i]));
    __threadfence(); // seen
    if (f == 2) { sum += data[i + 64 * (i > 0)]; break; }
    sum += data[i];
  }
  if (b) { data[b + 64] = sum + v; __threadfence(); /* whole */ flag[b] = 2; }
  out[b] = sum;
}"""


@pytest.mark.parametrize("which", ["part", "whole"])
def test_blocks_of_units_see_flags_that_are_overwritten_later(which: str) -> None:
    """One after the other they would see the last flag of each alone."""
    assert not found(LOOK_BACK, True)
    told = found(LOOK_BACK.replace(f"__threadfence(); /* {which} */", ""), True)
    assert {finding.kind for finding in told} == {FENCE}


# A later warpgroup stores when the first one may have told already: that a barrier is missing is told.
GROUPS = """
  data[b * 256 + t] = a[t];
  __threadfence();
  __syncthreads(); // stored
  if (t == 0) mine = atomicAdd(n, 1) == gridDim.x - 1;
  __syncthreads();
  if (mine) { v = 0; for (int i = 0; i < gridDim.x; i++) v += data[i * 256 + t]; out[t] = v; }
}"""


def test_warpgroups_of_a_block_lack_a_barrier() -> None:
    for old, kinds in (("", set()), ("__syncthreads(); // stored", {BARRIER})):
        body = HEAD.replace("LOAD", COPY.replace("s[t]", "s[t % 64]")) + GROUPS.replace(old or "\0", "")
        arrays = [np.arange(1024, dtype=np.int32), *(np.zeros(1024, np.int32) for _ in range(3))]
        arrays.append(np.zeros(1, np.int32))
        told = launch(PRELUDE + body, "k", (4,), (256,), *arrays, fences=True).findings
        assert {finding.kind for finding in told} == kinds


REDUCTION = """
extern "C" __global__ void k(const float* x, float* out, volatile float* sums, unsigned* n) {
  __shared__ alignas(128) float s[64]; __shared__ bool last;
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 64 + t];
  fence_async();
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;"
                 :: "l"(sums), "r"(at(s)) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    wait_all();
    __threadfence();
    last = atomicAdd(n, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) out[t] = sums[t];
}"""


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("wait_all();", "wait_all();", set()),
        ("wait_all();", "wait_read();", {"missing wait"}),
        ("__threadfence();", "", {FENCE}),
    ],
)
def test_what_a_bulk_copy_adds_has_to_be_there(old: str, new: str, kinds: set[str]) -> None:
    x, out, sums = np.ones((4, 64), np.float32), np.zeros(64, np.float32), np.zeros(64, np.float32)
    text = PRELUDE + REDUCTION.replace(old, new)
    run = launch(text, "k", (4,), (64,), x, out, sums, np.zeros(1, np.uint32), fences=True)
    assert {finding.kind for finding in run.findings} == kinds


def test_each_word_of_a_vector_counts() -> None:
    """Four words are stored at once and read one by one."""
    body = """
  if (b == 0) {
    asm volatile("st.volatile.global.v4.s32 [%0], {%1, %1, %1, %1};" :: "l"(data + 4 * t), "r"(v) : "memory");
    __threadfence(); __syncthreads(); if (t == 0) atomicExch((int*)flag, 1);
  } else {
    if (t == 0) while (atomicAdd((int*)flag, 0) == 0);
    __syncthreads();
    out[b * 64 + t] = data[t + 1];
  }
}"""
    assert not found(body, False)
    assert {f.kind for f in found(body.replace("__threadfence();", ""), False)} == {FENCE}
