"""A warp whose strong writes come when nobody else can go on: who tells for its block too early is found."""

from __future__ import annotations

import time

import numpy as np
import pytest

from harness.bench.row import FAILED, OK
from harness.emulator import Emulation
from harness.errors import EmulatorError
from harness.launch import further
from shared.emulator_kernels import launch
from shared.honest import checked
from shared.sweeps import sweep

BLOCKS, THREADS = 8, 64
A = np.arange(1, THREADS + 1, dtype=np.int32)
HEAD = """extern "C" __global__ void k(const int* a, int* out, int* data, volatile int* flag, int* n) {
  int b = blockIdx.x, t = threadIdx.x, last = gridDim.x - 1; __shared__ bool mine;
"""
MBARRIER = """__shared__ unsigned long long bar; if (t == 0)
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"((unsigned)__cvta_generic_to_shared(&bar)));
  __syncthreads();"""

# All accesses are strong, so that no two race. Thread 0 tells others what its block has done, after BARRIER.
LAST = """
  atomicAdd(&data[t], a[t & 63]); __threadfence();
  BARRIER
  if (t == 0) mine = atomicAdd(n, 1) == last;
  __syncthreads();
  if (mine) { __threadfence(); out[t] = atomicAdd(&data[t], 0); }
"""
FLAG = """
  int from = b - gridDim.x / 2;
  if (from < 0) { atomicExch(&data[b * 64 + t], a[t]); __threadfence();
    BARRIER
    if (t == 0) flag[b] = 1;
  } else { while (!flag[from]); __threadfence(); if (b == last) out[t] = atomicAdd(&data[from * 64 + t], 0); }
"""
GRID = """
  atomicAdd(&data[t], a[t]); __threadfence();
  BARRIER
  if (t == 0) { atomicAdd(n, 1); while (atomicAdd(n, 0) <= last) ; }
  __syncthreads(); __threadfence();
  if (b == last) out[t] = atomicAdd(&data[t], 0);
"""
# (its body, threads of a block, how often it adds a)
CASES = {
    "the last block": (LAST, THREADS, BLOCKS),
    "a flag": (FLAG, THREADS, 1),
    "all": (GRID, THREADS, BLOCKS),
}
CASES["warpgroups beside an mbarrier"] = (MBARRIER + LAST, 256, BLOCKS)


def run(body: str, schedule: str, threads: int = THREADS) -> tuple[np.ndarray, Emulation]:
    """Run a kernel; return its output, and what was seen."""
    arrays = [A, np.zeros(threads, np.int32), np.zeros(64 * BLOCKS, np.int32)]
    arrays += [np.zeros(BLOCKS, np.int32), np.zeros(1, np.int32)]
    found = launch(HEAD + body + "}", "k", (BLOCKS,), (threads,), *arrays, schedule=schedule)
    return arrays[1], found


@pytest.mark.parametrize("what", CASES)
def test_who_tells_too_early_is_found(what: str) -> None:
    body, threads, times = CASES[what]
    wanted = np.tile(A, threads // len(A)) * times
    for barrier in ("", "__syncthreads();"):
        for schedule in ("lockstep", "backward", "held"):
            out, found = run(body.replace("BARRIER", barrier), schedule, threads)
            assert not found.findings
            # The control: in order, nobody is late.
            assert np.array_equal(out, wanted) == (bool(barrier) or schedule != "held"), schedule


WAITS = {
    "for a warp that is held": "if (t == 32) flag[b] = 1; if (t == 0) while (!flag[b]) ; out[t] = a[t];",
    "and moves memory": """if (t == 32) flag[b] = 1; if (t == 0) while (!flag[b]) atomicAdd(n, 1);
      out[t] = a[t];""",
    "in all blocks": "if (b == 0 && t == 32) flag[0] = 1; while (!flag[0]) ; out[t] = a[t];",
    "for an atomic": "if (t > 62) atomicExch(n, 1); if (t == 0) while (!atomicCAS(n, 2, 2)) ; out[t] = a[t];",
    "at a barrier": """if (t < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.arrive 1, 64;");
      out[t] = a[t];""",
    "at a barrier of a warp": "__syncwarp(); out[t] = __shfl_sync(~0u, a[t], t & 31);",
    "and nothing changes": """for (int i = 0; i < 8; i++) atomicMax(n, -1 - i); __syncthreads();
      for (int i = 0; i < 8; i++) { atomicMax(n, -1 - i); if (flag[b] + flag[b] * flag[b] > 5) break; }
      out[t] = a[t];""",
    "in another block, and moves memory": """if (b == 0 && t == 32) flag[0] = 1;
      if (b == last && t == 0) while (!flag[0]) atomicAdd(n, 1); out[t] = a[t];""",
    "again and again": """for (int i = 0; i < 300; i++) { if (t == 32) atomicExch(&data[b], i + 1);
      if (t == 0) while (atomicAdd(&data[b], 0) <= i) ; __syncthreads(); } out[t] = a[t];""",
}


WAITING = [(what, beside) for what in WAITS for beside in ("", MBARRIER)]


@pytest.mark.parametrize(
    ("what", "beside"), sweep(WAITING, lambda what, beside: "moves" not in what and not beside)
)
def test_who_waits_for_a_warp_that_is_held_gets_it(what: str, beside: str) -> None:
    out, found = run(beside + WAITS[what], "held")
    assert np.array_equal(out, A) and not found.findings


HANGS = {
    "a flag": "if (t == 0) while (!flag[b]) ;",
    "a flag, and turns it": "if (t == 0) while (flag[b] != 5) { flag[b] = 1; flag[b] = 0; }",
    "what the held warp undoes": "if (t % 32 == 0) while (flag[b] != 5) flag[b] = t;",
    "each other, in turns": "if (t % 32 == 0) while (1) { while (flag[b] != t / 32) ; flag[b] = !flag[b]; }",
    "barriers": "for (;;) { flag[b] = !flag[b]; __syncthreads(); if (data[0]) break; }",
}


# Of Hopper's units, whose loops are not compared with themselves, eight blocks take longer in turns.
BESIDE = [(what, beside) for what in HANGS for beside in ("", MBARRIER) if not (beside and "turns" in what)]


@pytest.mark.parametrize(
    ("what", "beside"), sweep(BESIDE, lambda what, beside: "flag" in what and not beside)
)
def test_a_hang_is_told(what: str, beside: str) -> None:
    """The control: a warp that is held does not hide it, nor does that it comes."""
    began = time.thread_time()
    try:
        said = " ".join(map(str, run(beside + HANGS[what] + " out[t] = a[t];", "held")[1].findings))
    except EmulatorError as error:
        said = str(error)
    assert "hangs" in said or "no thread can move" in said
    assert time.thread_time() - began < 10


STRONG = (
    "    parts[((Index)tile * SPLIT + blockIdx.z) * 256 + t] = sum;",
    "    atomicExch(&parts[((Index)tile * SPLIT + blockIdx.z) * 256 + t], sum);",
)
BARRIER = (
    "    __threadfence();\n    __syncthreads();\n    if (t == 0) before",
    "    __threadfence();\n    if (t == 0) before",
)


def test_a_further_launch_finds_it() -> None:
    well = checked("split_k_last_block", STRONG)
    assert well.status == OK, well.error
    assert well.emulation is not None and "held" in well.emulation.schedules
    badly = checked("split_k_last_block", STRONG, BARRIER)
    assert badly.status == FAILED and "in a further launch, with --schedule held: FAILED" in badly.error


@pytest.mark.slow
def test_a_right_kernel_that_takes_long_warp_by_warp_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, told in ((-1.0, False), (further._SECONDS, True)):
        monkeypatch.setattr(further, "_SECONDS", seconds)
        found = checked("split_k_last_block", STRONG)
        assert found.status == OK and found.emulation is not None
        assert ("held" in found.emulation.schedules) == told
        assert checked("split_k_last_block", STRONG, BARRIER).status == (FAILED if told else OK)
