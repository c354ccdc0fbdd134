"""Strong loads that are executed early: what a reader without its fence sees, and what nobody ever sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.emulator import Emulation
from shared.emulator_kernels import launch
from shared.sweeps import sweep

BLOCKS, THREADS = 8, 64
SEEDS = range(1, 21)
ORDERS = [("delayed", 1), *(("random", seed) for seed in SEEDS)]
Arrays = dict[str, np.ndarray]
HEAD = """extern "C" __global__ void k(const int* a, int* out, volatile int* data, volatile int* flag,
  int* n) { int b = blockIdx.x, t = threadIdx.x, last = gridDim.x - 1; __shared__ volatile int told;
"""

# Each writer has its fence; what FENCE stands for is the reader's.
FLAG = """
  if (t) return;
  if (b % 2 == 0) { data[b] = a[b]; __threadfence(); flag[b] = 1; return; }
  while (!flag[b - 1]);
  FENCE
  out[b] = data[b - 1];
"""
WIDE = """
  volatile long long* wide = (volatile long long*)data;
  if (t) return;
  if (b % 2 == 0) { wide[b] = a[b]; __threadfence(); flag[b] = 1; return; }
  while (!flag[b - 1]);
  FENCE
  out[b] = (int)wide[b - 1];
"""
SEMAPHORE = """
  if (t) return;
  while (atomicAdd(n, 0) != b);
  FENCE
  data[0] = data[0] + a[b]; __threadfence();
  atomicExch(n, b + 1);
  if (b == last) out[0] = data[0];
"""
LAST = """
  if (t) return;
  data[b] = a[b]; __threadfence();
  if (atomicAdd(n, 1) != last) return;
  FENCE
  int s = 0; for (int i = 0; i <= last; i++) s += data[i]; out[0] = s;
"""
LOCK = """
  if (t) return;
  while (atomicCAS(n, 0, 1));
  FENCE
  data[0] = data[0] + a[b]; data[1] = data[1] + 1; __threadfence();
  if (data[1] == gridDim.x) out[0] = data[0];
  atomicExch(n, 0);
"""
A = np.arange(1, 65)
WANTED: dict[str, tuple[Any, Any]] = {
    FLAG: (slice(1, BLOCKS, 2), A[0:BLOCKS:2]),
    WIDE: (slice(1, BLOCKS, 2), A[0:BLOCKS:2]),
    SEMAPHORE: ([0], A[:BLOCKS].sum()),
    LAST: ([0], A[:BLOCKS].sum()),
    LOCK: ([0], A[:BLOCKS].sum()),
}
CASES = {FLAG: "flag", WIDE: "wide", SEMAPHORE: "semaphore", LAST: "last", LOCK: "lock"}
every_case = pytest.mark.parametrize("body", CASES, ids=CASES.values())
some_cases = pytest.mark.parametrize("body", sweep(CASES, lambda body: body == WIDE), ids=CASES.values())


def run(body: str, schedule: str, seed: int = 1, **options: Any) -> tuple[Arrays, Emulation]:
    arrays = {"a": A.astype(np.int32), "out": np.zeros(64, np.int32), "data": np.zeros(64 * BLOCKS, np.int32)}
    arrays |= {"flag": np.zeros(64, np.int32), "n": np.zeros(1, np.int32)}
    text, order = HEAD + body + "}", {"schedule": schedule, "seed": seed}
    return arrays, launch(text, "k", (BLOCKS,), (THREADS,), *arrays.values(), **order, **options)


def right(body: str, fence: str, schedule: str, seed: int = 1, of: str = "") -> bool:
    """Return whether the result is that of the case `of`, by default `body`."""
    assert body.count("FENCE") == 1
    arrays, found = run(body.replace("FENCE", fence), schedule, seed)
    assert not found.findings, found.findings
    where, wanted = WANTED[of or body]
    return np.array_equal(arrays["out"][where], np.broadcast_to(wanted, arrays["out"][where].shape))


@every_case
def test_a_reader_without_its_fence_shows(body: str) -> None:
    assert right(body, "", "lockstep") and right(body, "", "backward"), "the control: in order, it does not"
    assert not right(body, "", "delayed")
    assert not right(body, "__threadfence_block();", "delayed")
    assert not all(right(body, "", "random", seed) for seed in SEEDS)


@some_cases
def test_with_its_fence_it_is_right_in_every_order(body: str) -> None:
    assert all(right(body, "__threadfence();", *order) for order in ORDERS)


@pytest.mark.parametrize(("barrier", "fine"), [("__syncthreads();", True), ("__syncwarp();", False)])
def test_a_barrier_of_the_block_is_a_fence_as_in_the_programming_guide(barrier: str, fine: bool) -> None:
    body = """
      if (t == 0) { data[b] = a[b]; __threadfence(); told = atomicAdd(n, 1) == last; }
      FENCE
      if (t || !told) return;
      int s = 0; for (int i = 0; i <= last; i++) s += data[i]; out[0] = s;
    """
    assert all(right(body, barrier, *order, of=LAST) for order in ORDERS) == fine


ACQUIRE = """int now; do { asm volatile("ld.SEM.gpu.global.s32 %0, [%1];"
    : "=r"(now) : "l"(&flag[b - 1]) : "memory"); } while (!now);"""
ATOMIC = """int now; asm volatile("atom.SEM.gpu.global.add.s32 %0, [%1], 1;"
    : "=r"(now) : "l"(n) : "memory"); if (now != last) return;"""


@pytest.mark.parametrize(
    ("body", "old", "new", "good", "bad"),
    [
        (FLAG, "while (!flag[b - 1]);", ACQUIRE, ("acquire",), ("relaxed",)),
        (
            LAST,
            "if (atomicAdd(n, 1) != last) return;",
            ATOMIC,
            ("acquire", "acq_rel"),
            ("relaxed", "release"),
        ),
    ],
    ids=["load", "atomic"],
)
@pytest.mark.slow
def test_an_acquire_is_a_fence_and_a_release_is_none(
    body: str, old: str, new: str, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    changed = body.replace(old, new)
    assert changed != body
    assert all(right(changed.replace("SEM", one), "", *order, of=body) for one in good for order in ORDERS)
    assert not any(right(changed.replace("SEM", one), "", "delayed", of=body) for one in bad)


def test_the_words_name_where_the_fence_is_missing() -> None:
    _, found = run(FLAG.replace("FENCE", ""), "delayed")
    assert [str(late) for late in found.late] == [
        "line 8 reads what was there before line 5 stored, though line 5, which comes later, could be seen: "
        "a __threadfence() between line 6 and line 8 would order them"
    ]
    _, found = run(FLAG.replace("\n  FENCE\n", ""), "delayed")
    assert str(found.late[0]).endswith("a __threadfence() before the read in line 6 would order them")
    assert run(FLAG.replace("FENCE", "__threadfence();"), "delayed")[1].late == ()


# -- what PTX's memory model never lets happen

NEVER: dict[str, tuple[str, Callable[[Arrays], bool]]] = {
    "of two who store, fence and look, neither sees the other": (
        """if (t) return;
        flag[b] = 1; __threadfence(); out[b] = flag[b ^ 1]; n[0] = 0;""",
        lambda arrays: not (arrays["out"][:BLOCKS:2] | arrays["out"][1:BLOCKS:2]).all(),
    ),
    "a place shows what is newer and then what is older": (
        """if (t) return;
        if (b == 0) for (int i = 1; i < 40; i++) { data[0] = i; data[1] = i; __threadfence(); }
        else { int before = 0; for (int i = 0; i < 80; i++) {
          int now = data[0]; if (now < before) out[b] = 1; before = now; } }""",
        lambda arrays: bool(arrays["out"].any()),
    ),
    "a block does not see its own store": (
        """if (t) return;
        data[b] = 0; atomicAdd((int*)&data[b ^ 1], 2); atomicAdd((int*)&data[b], 1); flag[b] = 1;
        if (data[b] == 0 || data[b] == 2) out[b] = 1;""",
        lambda arrays: bool(arrays["out"].any()),
    ),
    "what one thread has acquired its block does not see after a barrier": (
        """if (b == 0 && t == 0) { data[0] = 5; __threadfence(); flag[0] = 1; }
        if (b == 0) return;
        if (t == 0) { while (!flag[0]); __threadfence(); }
        __syncthreads(); if (data[0] != 5) out[b] = 1;""",
        lambda arrays: bool(arrays["out"].any()),
    ),
    "or after a flag within the block": (
        """told = 0; __syncthreads();
        if (b == 0 && t == 0) { data[0] = 5; __threadfence(); flag[0] = 1; }
        if (b == 0) return;
        if (t == 0) { while (!flag[0]); __threadfence(); told = 1; }
        if (t == 32) { while (!told); __threadfence_block(); if (data[0] != 5) out[b] = 1; }""",
        lambda arrays: bool(arrays["out"].any()),
    ),
    "what a third block hands on is not there": (
        """if (t) return;
        if (b == 0) { data[0] = 5; __threadfence(); flag[0] = 1; }
        if (b == 1) { while (!flag[0]); __threadfence(); flag[1] = 1; }
        if (b > 1) { while (!flag[1]); __threadfence(); if (data[0] != 5) out[b] = 1; }""",
        lambda arrays: bool(arrays["out"].any()),
    ),
    "a weak store is lost": (
        """if (t) return;
        if (b == 0) { data[0] = 5; __threadfence(); flag[0] = 1; while (flag[1] != 1); __threadfence();
          ((int*)data)[0] = 7; flag[2] = 1; if (data[0] != 7) out[b] = 1; }
        if (b == 1) { while (!flag[0]); flag[1] = 1; }""",
        lambda arrays: bool(arrays["out"].any()),
    ),
}


@pytest.mark.parametrize("what", sweep(NEVER, lambda what: "its own store" in what))
def test_never(what: str) -> None:
    body, happened = NEVER[what]
    for schedule, seed in ORDERS:
        arrays, _ = run(body, schedule, seed, check=False)
        assert not happened(arrays), (schedule, seed)


@pytest.mark.parametrize(
    ("what", "old", "new"),
    [
        ("of two who store, fence and look, neither sees the other", "__threadfence();", ""),
        ("what one thread has acquired its block does not see after a barrier", "__syncthreads();", ""),
        ("or after a flag within the block", "while (!flag[0]); __threadfence();", "while (!flag[0]);"),
        ("what a third block hands on is not there", "(!flag[1]); __threadfence();", "(!flag[1]);"),
    ],
)  # fmt: skip
def test_what_never_happens_would_be_seen(what: str, old: str, new: str) -> None:
    body, happened = NEVER[what]
    changed = body.replace(old, new)
    if "told" in body:  # the fence within the block orders nothing beyond it
        assert "__threadfence_block" in changed
    assert changed != body
    assert any(happened(run(changed, *order, check=False)[0]) for order in ORDERS)


@pytest.mark.slow
def test_who_looks_again_sees_it() -> None:
    body = """if (t) return;
      if (b == 0) { data[0] = 1; __threadfence(); flag[0] = 1; }
      else { while (!flag[0]); while (!data[0]); out[b] = data[0]; }"""
    for order in ORDERS:
        assert (run(body, *order, check=False)[0]["out"][1:BLOCKS] == 1).all()
