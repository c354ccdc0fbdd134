"""Fences that are missing between strong accesses, where there are no numbers to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.emulator import Finding
from shared.emulator_kernels import launch

BLOCKS = 8
HEAD = """extern "C" __global__ void k(const int* a, int* out, volatile int* data, volatile int* flag,
  int* n) { int b = blockIdx.x, t = threadIdx.x, last = gridDim.x - 1; __shared__ int mine;
"""
# Each needs the fence of its writer.
LAST = """
  data[b * 64 + t] = a[t] + b; FENCE
  __syncthreads();
  if (t == 0) mine = atomicAdd(n, 1) == last;
  __syncthreads();
  if (mine) { int s = 0; for (int i = 0; i <= last; i++) s += data[i * 64 + t]; out[t] = s; }
"""
FLAG = """
  if (t) return;
  if (b % 2 == 0) { data[b] = a[b]; FENCE
    flag[b] = 1; }
  else { while (!flag[b - 1]); __threadfence(); out[b] = data[b - 1]; }
"""
ATOMICS = """
  atomicAdd((int*)&data[t], a[t]); FENCE
  __syncthreads();
  if (t == 0) mine = atomicAdd(n, 1) == last;
  __syncthreads();
  if (mine) { __threadfence(); out[t] = atomicExch((int*)&data[t], 0); }
"""
QUEUE = """
  if (t) return;
  if (b % 2 == 0) { data[b] = a[b]; FENCE
    atomicExch((int*)&flag[b / 2], b + 1); return; }
  int found; while (!(found = atomicAdd((int*)&flag[b / 2], 0)));
  __threadfence(); out[b] = data[found - 1];
"""
GRID = """
  for (int round = 1; round < 3; round++) {
    data[b * 64 + t] = a[t] + round; FENCE
    __syncthreads();
    if (t == 0) { atomicAdd(n, 1); while (atomicAdd(n, 0) < round * gridDim.x); }
    __syncthreads();
    out[b * 64 + t] = data[(b ^ 1) * 64 + t];
    __threadfence(); __syncthreads();
    if (t == 0) { atomicAdd((int*)&flag[0], 1); while (atomicAdd((int*)&flag[0], 0) < round * gridDim.x); }
    __syncthreads();
  }
"""
NEED = {"last": LAST, "flag": FLAG, "atomics": ATOMICS, "queue": QUEUE, "grid": GRID}
# These need none.
RIGHT = {
    "look-back, one word": """
      if (t) return;
      int before = 0;
      data[b] = b ? a[b] << 2 | 1 : a[b] << 2 | 2;
      for (int i = b - 1; i >= 0;) {
        int word = data[i];
        if (word & 3) { before += word >> 2; if (word & 2) break; i--; }
      }
      data[b] = before + a[b] << 2 | 2; out[b] = before;
""",
    "look-back by a ticket, two rounds": """
      if (t) return;
      for (int i; (i = atomicAdd(n, 1)) < 2 * gridDim.x;) {
        int before = 0;
        if (i) { int word; while (!((word = data[i - 1]) & 1)); before = word >> 1; }
        data[i] = before + a[i] << 1 | 1; out[i] = before;
      }
""",
    "what is there": """
      for (int i; t == 0 && (i = atomicAdd(n, 1)) < 64;)
        data[i] = a[i] + data[(i + 63) % 64] + data[(i + 1) % 64];
""",
    "counts": """
      for (int i; t == 0 && (i = atomicAdd(n, 1)) < 64;) {
        int odd = a[i] & 1;
        out[32 * odd + atomicAdd((int*)&data[odd], 1)] = i;
      }
""",
    "releases": """
      if (t) return;
      if (b % 2 == 0) { data[b] = a[b];
        asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(&flag[b]) : "memory"); }
      else { while (!flag[b - 1]); __threadfence(); out[b] = data[b - 1]; }
""",
    "a block's own": """
      data[b * 64 + t] = a[t];
      __syncthreads();
      if (t == 0) atomicAdd(n, 1);
      out[b * 64 + t] = data[b * 64 + (t + 1) % 64];
""",
}


def found(body: str) -> tuple[Finding, ...]:
    arrays = [np.arange(1, 65, dtype=np.int32), *(np.zeros(64 * BLOCKS, np.int32) for _ in range(3))]
    arrays.append(np.zeros(1, np.int32))
    return launch(HEAD + body + "}", "k", (BLOCKS,), (64,), *arrays, fences=True).findings


@pytest.mark.parametrize(
    "body",
    [pytest.param(NEED[key], marks=pytest.mark.slow if key == "grid" else ()) for key in NEED],
    ids=NEED,
)
def test_a_missing_fence_is_found(body: str) -> None:
    assert not found(body.replace("FENCE", "__threadfence();"))
    for fence in ("", "__threadfence_block();"):
        told = found(body.replace("FENCE", fence))
        assert {finding.kind for finding in told} == {"missing fence"}
        assert "a __threadfence() behind the first line" in told[0].message


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_where_none_is_needed_nothing_is_found(body: str) -> None:
    assert not found(body)


FILE = """__device__ unsigned int count = 0;
__global__ void sums(const float* x, volatile float* y, int n) {
  __shared__ bool last;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float s = __reduce_add_sync(0xffffffff, i < n ? (int)x[i] : 0);
  if (threadIdx.x == 0) {
    y[blockIdx.x] = s; __threadfence();
    last = atomicInc(&count, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    s = 0;
    for (int j = 0; j < gridDim.x; j++) s += y[j];
    y[0] = s; count = 0;
  }
}
void run(float* x, float* y, int n) { sums<<<20, 32>>>(x, y, n); }
"""


UNITS = FILE.replace("  __shared__ bool last;", '  asm volatile("fence.proxy.async;"); __shared__ bool last;')


@pytest.mark.slow
@pytest.mark.parametrize("file", [FILE, UNITS], ids=["plain", "units"])
def test_check_tells_it_of_a_file_without_front_matter(file: str, tmp_path: Path) -> None:
    path = tmp_path / "sums.cu"
    for text, code in ((file, 0), (file.replace("__threadfence();", ""), 1)):
        path.write_text(text)
        ran = CliRunner().invoke(main, ["check", str(path)])
        assert ran.exit_code == code, ran.output
        assert ("missing fence" in ran.output) == bool(code)
