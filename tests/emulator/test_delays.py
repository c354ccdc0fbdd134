"""Strong stores that other blocks see late: what a missing fence lets happen, and what never happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.bench.row import FAILED, OK
from harness.emulator import Emulation
from shared.emulator_kernels import launch
from shared.honest import checked
from shared.sweeps import sweep

BLOCKS, THREADS = 8, 64
SEEDS = range(1, 21)
Arrays = dict[str, np.ndarray]
HEAD = """extern "C" __global__ void k(const int* a, int* out, volatile int* data, volatile int* flag,
  int* n) { int b = blockIdx.x, t = threadIdx.x, last = gridDim.x - 1; __shared__ bool mine;
"""

# The sum of the last block; each fault leaves out FENCE or has another one in its place.
LAST = """
  if (t == 0) { data[b] = a[b]; FENCE
    mine = atomicAdd(n, 1) == last; }
  __syncthreads();
  if (!mine || t) return;
  __threadfence(); int s = 0; for (int i = 0; i <= last; i++) s += data[i]; out[0] = s;
"""
# All threads store, one of them tells.
TOGETHER = """
  data[b * 64 + t] = a[t] + b; FENCE
  __syncthreads();
  if (t == 0) mine = atomicAdd(n, 1) == last;
  __syncthreads();
  if (mine) { __threadfence(); int s = 0; for (int i = 0; i <= last; i++) s += data[i * 64 + t]; out[t] = s; }
"""
# A producer and a consumer in turn.
FLAG = """
  if (t) return;
  if (b % 2 == 0) { data[b] = a[b]; FENCE
    flag[b] = 1; }
  else { while (!flag[b - 1]); __threadfence(); out[b] = data[b - 1]; }
"""
# A semaphore: blocks add up in turn.
SEMAPHORE = """
  if (t) return;
  while (atomicAdd(n, 0) != b);
  __threadfence();
  data[0] = data[0] + a[b]; FENCE
  atomicExch(n, b + 1);
  if (b == last) out[0] = data[0];
"""
# Sums by atomics of which nobody reads the result.
ATOMICS = """
  atomicAdd((int*)&data[t], a[t]); FENCE
  __syncthreads();
  if (t == 0) mine = atomicAdd(n, 1) == last;
  __syncthreads();
  if (mine) { __threadfence(); out[t] = atomicExch((int*)&data[t], 0); }
"""
A = np.arange(1, 65)
WANTED = {
    LAST: ([0], A[:BLOCKS].sum()),
    TOGETHER: (slice(None), A * BLOCKS + sum(range(BLOCKS))),
    FLAG: (slice(1, BLOCKS, 2), A[0:BLOCKS:2]),
    SEMAPHORE: ([0], A[:BLOCKS].sum()),
    ATOMICS: (slice(None), A * BLOCKS),
}
CASES = {LAST: "last", TOGETHER: "together", FLAG: "flag", SEMAPHORE: "semaphore", ATOMICS: "atomics"}
every_case = pytest.mark.parametrize("body", CASES, ids=CASES.values())
some_cases = pytest.mark.parametrize("body", sweep(CASES, lambda body: body == FLAG), ids=CASES.values())


def run(body: str, schedule: str, seed: int = 1, **options: Any) -> tuple[Arrays, Emulation]:
    arrays = {"a": A.astype(np.int32), "out": np.zeros(64, np.int32), "data": np.zeros(64 * BLOCKS, np.int32)}
    arrays |= {"flag": np.zeros(64, np.int32), "n": np.zeros(1, np.int32)}
    found = launch(
        HEAD + body + "}",
        "k",
        (BLOCKS,),
        (THREADS,),
        *arrays.values(),
        schedule=schedule,
        seed=seed,
        **options,
    )
    return arrays, found


def right(body: str, fence: str, schedule: str, seed: int = 1) -> bool:
    arrays, found = run(body.replace("FENCE", fence), schedule, seed)
    assert not found.findings, found.findings
    where, wanted = WANTED[body]
    return np.array_equal(arrays["out"][where], np.broadcast_to(wanted, arrays["out"][where].shape))


@every_case
def test_a_missing_fence_shows(body: str) -> None:
    assert right(body, "", "lockstep") and right(body, "", "backward"), "the control: in order, it does not"
    assert not right(body, "", "delayed")
    assert not right(body, "__threadfence_block();", "delayed")


@every_case
def test_a_missing_fence_shows_in_some_of_twenty_orders(body: str) -> None:
    assert not all(right(body, "", "random", seed) for seed in SEEDS)


@some_cases
def test_with_its_fence_it_is_right_in_every_order(body: str) -> None:
    assert right(body, "__threadfence();", "delayed")
    assert all(right(body, "__threadfence();", "random", seed) for seed in SEEDS)


def test_the_fence_of_one_thread_after_a_barrier_is_that_of_all() -> None:
    """A fence is cumulative: what a barrier has told the thread, it passes on."""
    body = TOGETHER.replace("if (t == 0) mine", "if (t == 0) __threadfence();\n  if (t == 0) mine")
    assert "__threadfence();\n  if (t == 0) mine" in body
    where, wanted = WANTED[TOGETHER]
    for schedule, seed in (("delayed", 1), *(("random", seed) for seed in SEEDS)):
        arrays, _ = run(body.replace("FENCE", ""), schedule, seed)
        assert np.array_equal(arrays["out"][where], wanted)


RELEASE = 'asm volatile("st.release.gpu.global.s32 [%0], %1;" :: "l"(&flag[b]), "r"(1) : "memory");'


def test_a_release_is_a_fence_and_a_store() -> None:
    assert "flag[b] = 1;" in FLAG
    for schedule, seed in (("delayed", 1), *(("random", seed) for seed in SEEDS)):
        arrays, found = run(FLAG.replace("flag[b] = 1;", RELEASE).replace("FENCE", ""), schedule, seed)
        assert not found.findings
        assert np.array_equal(arrays["out"][1:BLOCKS:2], A[0:BLOCKS:2])


def test_the_words_name_the_two_lines() -> None:
    _, found = run(FLAG.replace("FENCE", ""), "delayed")
    assert [str(late) for late in found.late] == [
        "line 7 reads what was there before line 5 stored, though line 6, which comes later, could be seen: "
        "a __threadfence() between line 5 and line 6 would order them"
    ]
    assert run(FLAG.replace("FENCE", "__threadfence();"), "delayed")[1].late == ()
    assert run(FLAG.replace("FENCE", ""), "backward")[1].late == ()


# -- what PTX's memory model never lets happen

NEVER: dict[str, tuple[str, Callable[[Arrays], bool]]] = {
    "two stores to one place change their order": (
        """if (t) return;
        if (b == 0) for (int i = 1; i < 40; i++) data[0] = i;
        else { int before = 0; for (int i = 0; i < 40; i++) {
          int now = data[0]; if (now < before) out[b] = 1; before = now; } }""",
        lambda arrays: bool(arrays["out"].any()) or arrays["data"][0] != 39,
    ),
    "a thread does not see its own store": (
        "data[b * 64 + t] = t + 1; if (data[b * 64 + t] != t + 1) out[b] = 1;",
        lambda arrays: bool(arrays["out"].any()),
    ),
    "a block does not see its own stores after a barrier": (
        "data[b * 64 + t] = t + 1; __syncthreads(); if (((int*)data)[b * 64 + 63 - t] != 64 - t) out[b] = 1;",
        lambda arrays: bool(arrays["out"].any()),
    ),
    "a wide store is seen in halves": (
        """volatile long long* wide = (volatile long long*)data;
        if (t) return;
        if (b == 0) for (int i = 1; i < 40; i++) wide[3] = i * 0x100000001ll;
        else for (int i = 0; i < 40; i++) {
          long long now = wide[3]; if (now >> 32 != (int)now) out[b] = 1; }""",
        lambda arrays: bool(arrays["out"].any()),
    ),
    "a weak store overtakes a strong one to its place": (
        "if (t) return; data[b] = 1; ((int*)data)[b] = 2;",
        lambda arrays: not (arrays["data"][:BLOCKS] == 2).all(),
    ),
    "an atomic is lost": (
        "atomicAdd((int*)&data[t], 1); if (t == 0) atomicAdd((int*)&data[0], 1);",
        lambda arrays: arrays["data"][0] != 2 * BLOCKS or not (arrays["data"][1:64] == BLOCKS).all(),
    ),
    "what a thread has seen of its block is not there for who it tells": (
        """if (b == 0) {
          if (t == 32) data[0] = 5;
          if (t == 0) { while (data[0] != 5); __threadfence(); flag[0] = 1; }
        } else if (t == 0) { while (!flag[0]); __threadfence(); out[b] = data[0] != 5; }""",
        lambda arrays: bool(arrays["out"].any()),
    ),
}


@pytest.mark.parametrize("what", sweep(NEVER, lambda what: "its own store" in what))
def test_never(what: str) -> None:
    body, happened = NEVER[what]
    for schedule, seed in (("delayed", 1), *(("random", seed) for seed in SEEDS)):
        arrays, _ = run(body, schedule, seed, check=False)
        assert not happened(arrays), (schedule, seed)


def test_what_never_happens_would_be_seen() -> None:
    """The controls: other places, and blocks that tell nobody, in the same programs."""
    body, happened = NEVER["two stores to one place change their order"]
    assert "data[0] = i" in body and "now = data[0]" in body
    apart = body.replace("data[0] = i", "data[i % 2] = i").replace("now = data[0]", "now = data[i % 2]")
    assert any(happened(run(apart, "random", seed, check=False)[0]) for seed in SEEDS)
    body, happened = NEVER["what a thread has seen of its block is not there for who it tells"]
    unfenced = body.replace("while (data[0] != 5); __threadfence();", "")
    assert unfenced != body and happened(run(unfenced, "delayed", check=False)[0])


def test_who_waits_for_a_delayed_flag_sees_it_although_all_store_all_the_time() -> None:
    for waits in ("b != 0", "b > last / 2"):
        body = f"if (t) return; if (!({waits})) flag[0] = 1; else while (!flag[0]) data[b] = 1;"
        arrays, _ = run(body, "delayed", check=False)
        assert arrays["flag"][0] == 1


def test_all_is_there_at_the_end() -> None:
    arrays, _ = run("data[b * 64 + t] = b + t; atomicAdd(n, 1);", "delayed")
    assert np.array_equal(arrays["data"], np.add.outer(np.arange(BLOCKS), np.arange(64)).ravel())
    assert arrays["n"][0] == BLOCKS * THREADS


# -- as `harness check` has it


FENCE = ("    __threadfence();\n    __syncthreads", "    __syncthreads")
VOLATILE = ("    parts[((Index)tile", "    ((volatile float*)parts)[((Index)tile")


@pytest.mark.parametrize(("name", "changes"), [("split_k_atomics", ()), ("split_k_last_block", (VOLATILE,))])
def test_a_further_launch_finds_it(name: str, changes: tuple[tuple[str, str], ...]) -> None:
    well = checked(name, *changes)
    assert well.status == OK, well.error
    assert well.emulation is not None and well.emulation.schedules == (
        "lockstep",
        "backward",
        "delayed",
        "held",
    )
    badly = checked(name, *changes, FENCE)
    assert badly.status == FAILED and "with --schedule delayed: FAILED" in badly.error
    assert "a __threadfence() between line" in badly.error


def test_a_kernel_without_strong_stores_is_not_launched_again() -> None:
    found = checked("tiled_flat_block").emulation
    assert found is not None and found.schedules == ("lockstep",)
