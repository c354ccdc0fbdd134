"""Schedules: what a kernel does may depend on who comes first, and each way has to be judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator import Emulation
from harness.errors import EmulatorError
from shared.emulator_kernels import launch

ORDERS = ("lockstep", "backward")  # what `harness check` runs of a kernel to which it matters who comes first
BLOCKS = 16


def run(body: str, schedule: str, *, blocks: int = BLOCKS, threads: int = 64, **options: Any) -> Emulation:
    """Run a kernel with a = integers, out = results, and flags and what else blocks tell each other."""
    source = f"""
    extern "C" __global__
    void k(const int* a, int* out, int* sums, int* prefix, volatile int* flag, int* n) {{
      int b = blockIdx.x, t = threadIdx.x, last = gridDim.x - 1;
      {body}
    }}"""
    arrays = [np.arange(1, 65, dtype=np.int32), *(np.zeros(64, np.int32) for _ in range(5))]
    found = launch(source, "k", (blocks,), (threads,), *arrays, schedule=schedule, **options)
    run.out = arrays[1]  # type: ignore[attr-defined]
    return found


def racy(body: str, schedule: str, **options: Any) -> bool:
    found = run(body, schedule, **options).findings
    assert {f.kind for f in found} <= {"global race"}, found
    return bool(found)


# One block looks once at the flag of another, which may be set by then or not. PATH is what it does if so.
LOOKS = {
    "the next one's": "if (t == 0) { sums[b] = 1; __threadfence(); flag[b] = 1; "
    "if (b < last && flag[b + 1] == IS) PATH }",
    "the one's before": "if (t == 0) { if (b > 0 && flag[b - 1] == IS) PATH "
    "sums[b] = 1; __threadfence(); flag[b] = 1; }",
}
UNFENCED = {"the next one's": "out[b] = sums[b + 1];", "the one's before": "out[b] = sums[b - 1];"}


@pytest.mark.parametrize("whose", LOOKS)
@pytest.mark.parametrize("outcome", [0, 1])
def test_both_outcomes_of_a_flag_are_judged(whose: str, outcome: int) -> None:
    """A fence is missing where the flag is set; where it is not, the other's writes are not there yet."""
    body = LOOKS[whose].replace("IS", str(outcome))
    assert any(racy(body.replace("PATH", UNFENCED[whose]), s) for s in ORDERS)
    fenced = f"{{ __threadfence(); {UNFENCED[whose]} }}" if outcome else "out[b] = 1;"
    assert not any(racy(body.replace("PATH", fenced), s) for s in ORDERS)


# CUDA's sum over blocks: the last one to come adds what the others have left.
LAST = """
  __shared__ bool is_last;
  if (t == 0) {
    sums[b] = a[b]; FENCE
    is_last = atomicAdd(n, 1) == last;
  }
  __syncthreads();
  if (is_last && t == 0) { int s = 0; for (int i = 0; i <= last; i++) s += sums[i]; out[0] = s; *n = 0; }
  OTHERS
"""


@pytest.mark.parametrize("schedule", [*ORDERS, "random"])
def test_the_last_block_adds(schedule: str) -> None:
    right = LAST.replace("OTHERS", "")
    found = run(right.replace("FENCE", "__threadfence();"), schedule)
    assert not found.findings and run.out[0] == BLOCKS * (BLOCKS + 1) // 2  # type: ignore[attr-defined]
    assert [s.line for s in found.contended] == [9]
    assert racy(right.replace("FENCE", ""), schedule)


def test_whoever_is_not_the_last_block_is_judged_too() -> None:
    """The race is of block 0 alone, unless it comes last: then it is the one that may write."""
    planted = LAST.replace("FENCE", "__threadfence();").replace(
        "OTHERS", "if (b == 0 && !is_last) out[0] = 1;"
    )
    assert racy(planted, "lockstep") and not racy(planted, "backward")
    planted = planted.replace("b == 0", "b == last")
    assert not racy(planted, "lockstep") and racy(planted, "backward")


# A scan that looks back, from tile to tile, at sums (flag 1) or at a prefix (flag 2).
LOOKBACK = """
  if (t == 0) {
    int s = a[b], p = 0;
    sums[b] = s; FENCE1 flag[b] = 1;
    for (int i = b - 1; i >= 0;) {
      int f = flag[i];
      if (f == 0) continue;
      if (f == 2) { FENCE2 p += prefix[i]; break; }
      FENCE3 p += sums[i--];
    }
    prefix[b] = p + s; FENCE4 flag[b] = 2;
    out[b] = p + s;
  }
"""
FENCES = ("FENCE1", "FENCE2", "FENCE3", "FENCE4")


def lookback(*left_out: str) -> str:
    body = LOOKBACK
    for fence in FENCES:
        body = body.replace(fence, "" if fence in left_out else "__threadfence();")
    return body


@pytest.mark.parametrize("schedule", [*ORDERS, "random"])
def test_a_scan_that_looks_back(schedule: str) -> None:
    assert run(lookback(), schedule).findings == ()
    assert run.out[:BLOCKS].tolist() == np.cumsum(np.arange(1, BLOCKS + 1)).tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("fence", FENCES)
def test_each_fence_of_a_scan_that_looks_back_is_missed(fence: str) -> None:
    assert any(racy(lookback(fence), s) for s in ORDERS)


def test_only_reads_that_decide_the_way_make_a_kernel_contended() -> None:
    for body, contended in (
        ("out[t] = a[t];", False),
        ("atomicAdd(n, 1);", False),
        ("out[atomicAdd(n, 1) & 63] = 1;", False),
        ("if (out[t]) out[t] = 1;", False),
        ("if (t == 0 && atomicAdd(n, 1) == last) out[0] = 1;", True),
        ("if (flag[0]) out[t] = 1;", True),
        (
            "__shared__ int s; if (t == 0) s = atomicAdd(n, 1); __syncthreads(); if (s == last) out[t] = 1;",
            True,
        ),
        (
            "__shared__ int s; if (t == 0) s = 0; __syncthreads(); if (atomicAdd(&s, 1) == 1) out[b] = 1;",
            False,
        ),
    ):
        assert bool(run(body, "lockstep").contended) == contended, body


# Random schedules


ORDER = "if (t % 32 == 0) out[atomicAdd(n, 1)] = b * 2 + t / 32;"


def order(seed: int) -> list[int]:
    """Return who came first, second... of 32 warps."""
    assert run(ORDER, "random", seed=seed).findings == ()
    found: list[int] = run.out[: 2 * BLOCKS].tolist()  # type: ignore[attr-defined]
    return found


def test_a_random_schedule_is_drawn_from_its_seed() -> None:
    drawn = [order(seed) for seed in range(8)]
    assert all(sorted(o) == list(range(2 * BLOCKS)) for o in drawn)
    assert len({tuple(o) for o in drawn}) == len(drawn)
    assert order(3) == drawn[3]


def test_random_schedules_find_what_shows_in_few_orders() -> None:
    """A sum that is read and written back, unless another warp comes between."""
    lost = "if (t % 32 == 0) { int s = flag[0]; atomicExch((int*)flag, s + 1); }"
    results = []
    for seed in range(6):
        source = lost + " __syncthreads(); if (t == 0) out[b] = flag[0];"
        run(source, "random", seed=seed, blocks=1)
        results.append(int(run.out[0]))  # type: ignore[attr-defined]
    assert set(results) == {1, 2}


def test_waiting_for_others_ends_in_every_schedule() -> None:
    chain = "if (t == 0) { if (b < last) while (!flag[b + 1]) ; __threadfence(); flag[b] = 1; out[b] = 1; }"
    for schedule in ("lockstep", "warp-serial", "backward", "random"):
        for body in (chain, chain.replace("b < last", "b > 0").replace("b + 1", "b - 1")):
            assert run(body, schedule).findings == ()
            assert run.out[:BLOCKS].all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("schedule", ["backward", pytest.param("random", marks=pytest.mark.slow)])
def test_waiting_for_nobody_is_told(schedule: str) -> None:
    with pytest.raises(EmulatorError, match="the kernel hangs"):
        run("if (t == 0) while (!flag[b]) ;", schedule)
