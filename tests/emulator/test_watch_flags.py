"""Order by itself: what fences, flags and proxy fences tell, in kernels too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from harness.emulator.numbers.values import Array
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.findings import UNKNOWN
from harness.emulator.watch.knowledge import BLOCK, GRID, NOTHING, Semantics, orders, semantics
from shared.emulator_kernels import launch
from shared.hopper_kernels import kinds
from shared.hopper_kernels import run as hopper
from shared.order_runs import (
    ACQUIRE,
    ACQUIRE_CTA,
    EVERY,
    FIRST,
    LANES,
    RELAXED,
    RELAXED_CTA,
    RELEASE,
    RELEASE_CTA,
    THREADS,
    WARPS,
    Run,
    pairs,
    same,
)

# Flags


@pytest.mark.parametrize("column", [0, 1])
def test_a_fence_of_either_block_publishes_what_a_barrier_told(column: int) -> None:
    run = Run()
    before = run.touch()
    run.order.barrier(None, 0)
    run.fence(5, column)
    run.read(7, 1 - column, run.write(5, column), ACQUIRE)
    blocks = (EVERY, 0, EVERY, 0), (EVERY, 1, EVERY, 1)
    assert same(run.who_knows(before), pairs(*blocks, ([7], 1 - column, EVERY, column)))


def test_a_fence_and_then_a_write_publish_what_came_before_the_fence() -> None:
    run = Run()
    before = run.touch()
    assert run.write(5, 0) == NOTHING
    run.fence(5, 0)
    assert run.write(6, 0) == NOTHING  # another thread's fence
    after = run.touch()
    assert (after - before).tolist() == [1, 0]
    node = run.write(5, 0)
    run.read(7, 1, NOTHING, ACQUIRE)
    assert same(run.who_knows(before), pairs())
    run.read(7, 1, node, ACQUIRE)
    assert same(run.who_knows(before), pairs(([7], 1, [5], 0)))
    assert same(run.who_knows(after), pairs())


@pytest.mark.parametrize("meaning", [RELEASE, RELEASE_CTA])
def test_a_release_publishes_without_a_fence(meaning: Semantics) -> None:
    run = Run()
    before = run.touch()
    node = run.write(5, 0, meaning)
    after = run.touch()
    for column in (0, 1):
        run.read(7, column, node, ACQUIRE)
    knows = ([7], 0, [5], 0), ([7], 1, [5], 0)
    assert same(run.who_knows(before), pairs(*(knows if meaning is RELEASE else knows[:1])))
    assert same(run.who_knows(after), pairs())


@pytest.mark.parametrize(
    ("fence", "write", "known"), [(GRID, RELAXED, 2), (BLOCK, RELAXED, 1), (GRID, RELAXED_CTA, 1)]
)
def test_what_a_block_says_to_itself_no_other_block_learns(fence: int, write: Semantics, known: int) -> None:
    run = Run()
    before = run.touch()
    run.fence(5, 0, fence)
    node = run.write(5, 0, write)
    for column in (0, 1):
        run.read(7, column, node, ACQUIRE)
    assert same(run.who_knows(before), pairs(*[([7], 0, [5], 0), ([7], 1, [5], 0)][:known]))


def test_a_later_fence_within_the_block_adds_to_an_earlier_one_of_the_grid() -> None:
    run = Run()
    before = run.touch()
    run.fence(5, 0, GRID)
    between = run.touch()
    run.fence(5, 0, BLOCK)
    node = run.write(5, 0)
    for column in (0, 1):
        run.read(7, column, node, ACQUIRE)
    assert same(run.who_knows(before), pairs(([7], 0, [5], 0), ([7], 1, [5], 0)))
    assert same(run.who_knows(between), pairs(([7], 0, [5], 0)))


def test_an_acquire_within_the_block_learns_of_the_block_alone() -> None:
    run = Run()
    before = run.touch()
    run.order.learn(np.array([5]), 0, run.order.release(np.array([9]), 1))
    node = run.write(5, 0, RELEASE)
    for column in (0, 1):
        run.read(7, column, node, ACQUIRE_CTA)
    learned = ([5], 0, [9], 1)
    assert same(run.who_knows(before), pairs(learned, ([7], 0, [5], 0), ([7], 1, [9], 1)))
    for column in (0, 1):
        run.read(7, column, node, ACQUIRE)
    assert same(
        run.who_knows(before),
        pairs(learned, *(([7], c, [5], 0) for c in (0, 1)), *(([7], c, [9], 1) for c in (0, 1))),
    )


def test_what_was_read_is_known_at_the_next_fence_or_barrier() -> None:
    run = Run()
    before = run.touch()
    nodes = [run.write(5, 0, RELEASE), run.write(6, 0, RELEASE)]
    for node in nodes:
        run.read(7, 1, node)
    run.read(8, 1, nodes[0])
    assert same(run.who_knows(before), pairs())
    run.fence(9, 1)  # another thread's
    assert same(run.who_knows(before), pairs())
    run.fence(7, 1)
    assert same(run.who_knows(before), pairs(([7], 1, [5, 6], 0)))
    run.barrier(EVERY, [1])
    assert same(run.who_knows(before), pairs((EVERY, 1, [5, 6], 0), (EVERY, 1, EVERY, 1)))


def test_what_was_read_is_known_at_a_barrier_though_nobody_has_fenced() -> None:
    run = Run()
    before = run.touch()
    run.read(7, 1, run.write(5, 0, RELEASE))
    run.order.barrier(None, 0)
    assert same(run.who_knows(before), pairs((EVERY, 0, EVERY, 0), (EVERY, 1, EVERY, 1), (EVERY, 1, [5], 0)))


def test_what_was_read_within_the_block_is_no_more_at_a_wider_fence() -> None:
    run = Run()
    before = run.touch()
    run.order.learn(np.array([5]), 0, run.order.release(np.array([9]), 1))
    run.read(7, 1, run.write(5, 0, RELEASE), RELAXED_CTA)
    run.fence(7, 1)
    assert same(run.who_knows(before), pairs(([5], 0, [9], 1), ([7], 1, [9], 1)))


@pytest.mark.parametrize("meaning", [ACQUIRE, ACQUIRE_CTA])
def test_lanes_that_read_at_once_each_keep_what_they_know(meaning: Semantics) -> None:
    """Lanes of two blocks read what thread 5 published; one of them knows something else already."""
    run = Run()
    before = run.touch()
    run.order.learn(np.array([8]), 0, run.order.release(np.array([60]), 1))
    run.order.learn(np.array([5]), 0, run.order.release(np.array([9]), 1))
    node = run.write(5, 0, RELEASE)
    at = np.array([7, 8, 7, 6]), np.array([0, 0, 1, 1])
    run.order.read(at, np.array([node] * 4), meaning)
    known = [
        ([8], 0, [60], 1),
        ([5, 7, 8], 0, [9], 1),
        ([7, 8], 0, [5], 0),
        ([6, 7], 1, [5], 0),
        ([6, 7], 1, [9], 1),
    ]
    if meaning is ACQUIRE_CTA:
        known = [([8], 0, [60], 1), ([5], 0, [9], 1), ([7, 8], 0, [5], 0), ([6, 7], 1, [9], 1)]
    assert same(run.who_knows(before), pairs(*known))


def test_lanes_of_two_blocks_read_two_places_at_once() -> None:
    run = Run()
    before = run.touch()
    nodes = [run.write(5, 1, RELEASE), run.write(4, 0, RELEASE), run.write(6, 0, RELEASE)]
    assert nodes[2] - nodes[0] == 2
    run.order.read((np.array([7, 7]), np.array([0, 1])), np.array([nodes[2], nodes[0]]), ACQUIRE_CTA)
    assert same(run.who_knows(before), pairs(([7], 0, [6], 0), ([7], 1, [5], 1)))


def test_a_fence_within_the_block_leaves_the_rest_to_a_wider_one() -> None:
    run = Run()
    before = run.touch()
    run.order.learn(np.array([5]), 0, run.order.release(np.array([9]), 1))
    run.read(7, 1, run.write(5, 0, RELEASE))
    run.fence(7, 1, BLOCK)
    learned = ([5], 0, [9], 1)
    assert same(run.who_knows(before), pairs(learned, ([7], 1, [9], 1)))
    run.fence(7, 1, GRID)
    assert same(run.who_knows(before), pairs(learned, ([7], 1, [9], 1), ([7], 1, [5], 0)))
    assert run.order.state.pending[7, 1] == NOTHING


def test_many_lanes_read_and_fence_at_once() -> None:
    run = Run()
    before = run.touch()
    at = np.array([1, 2, 69]), np.array([1, 0, 1])
    nodes = np.array([run.write(5, 0, RELEASE), NOTHING, run.write(6, 0, RELEASE)])
    run.order.read(at, nodes, RELAXED)
    run.order.fence(at, GRID)
    assert same(run.who_knows(before), pairs(([1], 1, [5], 0), ([69], 1, [6], 0)))
    middle = run.touch()
    published = run.order.published(at, RELAXED)
    assert NOTHING not in published and len(set(published.tolist())) == 3
    run.read(3, 0, int(published[2]), ACQUIRE)
    assert same(
        run.who_knows(before), pairs(([1], 1, [5], 0), ([69], 1, [6], 0), ([3], 0, [69], 1), ([3], 0, [6], 0))
    )
    assert same(run.who_knows(middle), pairs())


def test_a_fence_of_one_thread_publishes_for_its_block_what_the_barrier_before_it_told() -> None:
    run = Run()
    before = run.touch()
    run.order.barrier(None, 0)
    middle = run.touch()
    run.fence(5, 0)
    run.read(7, 1, run.write(5, 0), ACQUIRE)
    blocks = (EVERY, 0, EVERY, 0), (EVERY, 1, EVERY, 1)
    assert same(run.who_knows(before), pairs(*blocks, ([7], 1, EVERY, 0)))
    assert same(run.who_knows(middle), pairs(([7], 1, [5], 0)))


@pytest.mark.parametrize("fenced", [range(5, 6), range(0, 32), range(0, THREADS), [5, 69]])
def test_a_barrier_after_the_fence_tells_of_those_who_have_fenced_themselves(fenced: Iterable[int]) -> None:
    run = Run()
    before = run.touch()
    for thread in fenced:
        run.fence(thread, 0)
    run.order.barrier(None, 0)
    run.read(7, 1, run.write(5, 0), ACQUIRE)
    blocks = (EVERY, 0, EVERY, 0), (EVERY, 1, EVERY, 1)
    assert same(run.who_knows(before), pairs(*blocks, ([7], 1, fenced, 0)))


@pytest.mark.parametrize("lanes", [WARPS[1], [33, 40]])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("fenced", [[33], [33, 40], [33, 40, 66]])
def test_a_warp_barrier_tells_before_the_fence_of_all_and_after_it_of_the_fenced(
    lanes: list[int], first: bool, fenced: list[int]
) -> None:
    """A lane that fences before its warp meets does not fence for the others."""
    run = Run()
    before = run.touch()
    for step in (first, not first):
        if step:
            run.warp_barrier(lanes, [0])
        else:
            between = run.touch()
            for thread in fenced:
                run.fence(thread, 0)
    run.read(7, 1, run.write(33, 0), ACQUIRE)
    told = lanes if first else [t for t in fenced if t in lanes]
    assert same(run.who_knows(before), pairs((lanes, 0, lanes, 0), ([7], 1, told, 0)))
    if first:
        assert same(run.who_knows(between), pairs(([7], 1, [33], 0)))


def test_what_is_accessed_after_the_fence_a_later_barrier_does_not_publish() -> None:
    run = Run()
    for thread in EVERY:
        run.fence(thread, 0)
    after = run.touch()
    run.warp_barrier(WARPS[0], [0])
    run.order.barrier(None, 0)
    run.read(7, 1, run.write(5, 0), ACQUIRE)
    assert same(run.who_knows(after), pairs((EVERY, 0, EVERY, 0), (EVERY, 1, EVERY, 1)))


# Proxies


def test_what_comes_before_a_proxy_fence() -> None:
    run = Run()
    before = run.touch()
    run.order.barrier(None, 0)
    run.order.proxy_fence(np.array([5]), 0)
    after = run.touch()

    def fenced(thread: int, column: int, stamps: Array) -> list[int]:
        whose = np.arange(LANES)
        known = run.order.fenced(
            run.order.state, (thread, column), whose + FIRST * THREADS, stamps[whose // THREADS]
        )
        return whose[known].tolist()

    assert fenced(5, 0, before) == list(EVERY) and fenced(6, 0, before) == fenced(5, 1, before) == []
    node = run.write(5, 0, RELEASE_CTA)
    for column in (0, 1):
        run.read(7, column, node, ACQUIRE)
    assert fenced(7, 0, before) == list(EVERY) and fenced(7, 1, before) == []
    run.barrier(EVERY, [0])
    assert fenced(6, 0, before) == list(EVERY) and fenced(6, 0, after) == []
    assert same(run.who_knows(after), pairs((EVERY, 0, EVERY, 0)))


# What an instruction means


@pytest.mark.parametrize(
    ("opcode", "strong", "scope", "acquire", "release"),
    [
        ("ld.global.u32", False, GRID, False, False),
        ("st.global.u32", False, GRID, False, False),
        ("ld.volatile.global.u32", True, GRID, False, False),
        ("st.mmio.relaxed.sys.global.u32", True, GRID, False, False),
        ("ld.mmio.global.u32", True, GRID, False, False),
        ("st.relaxed.cta.global.u32", True, BLOCK, False, False),
        ("ld.acquire.gpu.global.u32", True, GRID, True, False),
        ("st.release.cta.global.u32", True, BLOCK, False, True),
        ("atom.global.add.u32", True, GRID, False, False),
        ("red.shared.add.u32", True, GRID, False, False),
        ("red.release.gpu.global.add.u32", True, GRID, False, True),
        ("atom.acq_rel.cta.global.add.u32", True, BLOCK, True, True),
        ("membar.gl", False, GRID, True, True),
        ("membar.cta", False, BLOCK, True, True),
        ("fence.acq_rel.gpu", True, GRID, True, True),
        ("fence.sc.cta", False, BLOCK, True, True),
    ],
)
def test_the_semantics_of_an_instruction(
    opcode: str, strong: bool, scope: int, acquire: bool, release: bool
) -> None:
    made = Instruction(index=0, opcode=tuple(opcode.split(".")), operands=(), source=UNKNOWN, ptx_line=1)
    assert semantics(made) == Semantics(strong, scope, acquire, release)
    assert orders(made) == (acquire or release)


def test_what_can_order_anything() -> None:
    run = Run()
    assert [run.order.orders(m, p) for m in (RELAXED, RELEASE) for p in (False, True)] == [
        False,
        True,
        True,
        True,
    ]
    run.fence(0, 0)
    assert run.order.orders(RELAXED, False)


# In kernels

HAND_OVER = """extern "C" __global__ void k(const float* a, float* b, float* c, volatile unsigned* flag) {
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  if (blockIdx.x == 0) { b[t] = a[t]; EDIT if (t == 0) *flag = 1; }
  __syncthreads();
  if (blockIdx.x != 0 && *flag) { __threadfence(); c[i] = b[t]; }
}"""


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        ("__syncwarp(); if (t == 0) __threadfence();", set()),
        ("__threadfence(); __syncwarp();", set()),
        ("if (t == 0) __threadfence(); __syncwarp();", {"global race"}),
        ("__threadfence();", {"global race"}),
    ],
)
def test_one_lane_hands_over_for_its_warp(edit: str, found: set[str]) -> None:
    arrays: list[Any] = [np.zeros(128, np.float32) for _ in range(3)]
    made = launch(HAND_OVER.replace("EDIT", edit), "k", (4,), (32,), *arrays, np.zeros(8, np.uint32))
    assert {f.kind for f in made.findings} == found


@pytest.mark.parametrize(("edit", "found"), [("__syncwarp();", set()), ("", {"RAW hazard"})])
def test_one_lane_arrives_at_an_mbarrier_for_its_warp(edit: str, found: set[str]) -> None:
    body = """const float* a, float* c {
      __shared__ u64 ready;
      const int t = threadIdx.x;
      if (t == 0) init(&ready, 1);
      __syncthreads();
      if (t < 32) { c[t] = a[t]; EDIT if (t == 0) arrive(&ready); }
      else if (t < 64) { wait(&ready, 0); c[64 + t] = c[t - 32]; }
    }"""
    assert (
        kinds(hopper(body.replace("EDIT", edit), np.zeros(128, np.float32), np.zeros(256, np.float32)))
        == found
    )
