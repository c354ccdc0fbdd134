"""Counters that a plain store sets back: other blocks' atomics have to be seen, or ordered before it."""

from __future__ import annotations

import numpy as np
import pytest

from shared.emulator_kernels import launch

HEAD = """
extern "C" __global__ void k(const int* a, int* out, int* sum, int* n) { int t = threadIdx.x, b = blockIdx.x;
"""
TICKET = """
  if (t == 0 && atomicAdd(n, 1) == gridDim.x - 1) *n = 0;
}"""
# The result of the atomic is that of a ticket: who has the last one knows that all others were drawn.
LAST = """
  if (t == 0) {
    atomicAdd(sum, a[b]);
    __threadfence(); // added
    if (atomicAdd(n, 1) == gridDim.x - 1) { __threadfence(); /* seen */ out[0] = b; *sum = 0; *n = 0; }
  }
}"""
WORK = """
  __shared__ int mine;
  for (;;) {
    __syncthreads();
    if (t == 0) mine = atomicAdd(sum, 1);
    __syncthreads();
    if (mine >= 20) break;
    if (t == 0) out[mine] = a[mine];
  }
  if (t == 0) {
    __threadfence();
    if (atomicAdd(n, 1) == gridDim.x - 1) { __threadfence(); *sum = 0; *n = 0; }
  }
}"""


def kinds(body: str, schedule: str) -> set[str]:
    arrays = [np.arange(64, dtype=np.int32), *(np.zeros(m, np.int32) for m in (64, 1, 1))]
    return {f.kind for f in launch(HEAD + body, "k", (8,), (64,), *arrays, schedule=schedule).findings}


@pytest.mark.parametrize("schedule", ["lockstep", "backward"])
@pytest.mark.parametrize("body", [TICKET, LAST, WORK], ids=["ticket", "last", "work"])
def test_the_last_one_may_set_back(body: str, schedule: str) -> None:
    assert not kinds(body, schedule)


@pytest.mark.parametrize(
    ("body", "old", "new"),
    [
        (TICKET, "gridDim.x - 1", "gridDim.x - 2"),
        (LAST, "__threadfence(); // added", ""),
        (LAST, "__threadfence(); /* seen */", ""),
        (LAST, "if (atomicAdd(n, 1) == gridDim.x - 1)", "if (b == 7)"),
        (WORK, "if (atomicAdd(n, 1) == gridDim.x - 1)", "if (b == 7)"),
        (WORK, "if (atomicAdd(n, 1) == gridDim.x - 1)", "if (b == 3)"),
    ],
)
def test_who_may_be_too_early_races(body: str, old: str, new: str) -> None:
    """In one of the two orders that `check` runs such a kernel in, at least."""
    assert body.count(old) == 1
    assert "global race" in kinds(body.replace(old, new), "lockstep") | kinds(
        body.replace(old, new), "backward"
    )
