"""Order by itself: after each kind of barrier, who knows what everyone has accessed before it."""

from __future__ import annotations

import numpy as np
import pytest

from shared.order_runs import (
    COLUMNS,
    EVERY,
    NOBODY,
    RELAXED,
    RELEASE,
    THREADS,
    WARPS,
    Run,
    pairs,
    same,
)


def test_stamps_and_nodes_are_integers() -> None:
    """Floats would round them from 2**53 on, and cannot be indices."""
    run = Run()
    run.warp_barrier([32, 33], [0])
    state = run.order.state
    assert state.lanes is not None
    known = (state.now, state.bar, state.warp, state.lanes, state.view, state.pending)
    assert {a.dtype for a in known} == {np.dtype(np.int64)}
    at = np.array([5]), np.array([0])
    assert run.order.published(at, RELAXED).dtype == run.order.published(at, RELEASE).dtype == np.int64


# Barriers


def test_at_first_everyone_knows_his_own_accesses_only() -> None:
    run = Run()
    assert same(run.who_knows(run.touch()), pairs())


def test_a_barrier_of_the_block_orders_all_before_it_and_nothing_after_it() -> None:
    run = Run()
    before = run.touch()
    run.order.barrier(None, 0)
    assert same(run.who_knows(before), pairs((EVERY, 0, EVERY, 0), (EVERY, 1, EVERY, 1)))
    assert same(run.who_knows(run.touch()), pairs())


@pytest.mark.parametrize("column", [0, 1])
def test_a_barrier_of_one_block_orders_no_other(column: int) -> None:
    run = Run()
    before = run.touch()
    run.barrier(EVERY, [column])
    after = run.touch()
    assert same(run.who_knows(before), pairs((EVERY, column, EVERY, column)))
    assert same(run.who_knows(after), pairs()) and (after - before).tolist() == [column == 0, column == 1]


def test_a_barrier_of_some_warps_orders_those() -> None:
    run = Run()
    before = run.touch()
    some = [*WARPS[0], *WARPS[2]]
    run.barrier(some, [1])
    assert same(run.who_knows(before), pairs((some, 1, some, 1)))
    assert same(run.who_knows(run.touch()), pairs())
    run.barrier([*WARPS[1], *WARPS[2]], [1], number=1)  # warp 2 has learned of warp 0
    assert same(run.who_knows(before), pairs((some, 1, some, 1), (range(32, THREADS), 1, EVERY, 1)))


def test_a_barrier_of_the_block_tells_all_what_some_had_learned() -> None:
    run = Run()
    before = run.touch()
    node = run.order.release(np.array([5]), 0)
    run.order.learn(np.array([66]), 1, node)
    assert same(run.who_knows(before), pairs(([66], 1, [5], 0)))
    run.order.barrier(None, 0)
    assert same(run.who_knows(before), pairs((EVERY, 0, EVERY, 0), (EVERY, 1, EVERY, 1), (EVERY, 1, [5], 0)))


def test_who_arrives_is_known_to_who_waits_and_not_the_other_way() -> None:
    run = Run()
    before = run.touch()
    run.arrive(WARPS[0], [0], number=3)
    between = run.touch()
    assert (between - before).tolist() == [1, 0]
    run.arrive(WARPS[2], [0], number=3)
    run.barrier(NOBODY, [0], number=3)
    run.barrier(WARPS[1], [0, 1], number=2)  # another barrier
    assert same(run.who_knows(before), pairs((WARPS[1], 0, WARPS[1], 0), (WARPS[1], 1, WARPS[1], 1)))
    run.barrier(WARPS[1], [0], number=3)
    told = pairs((WARPS[1], 0, EVERY, 0), (WARPS[1], 1, WARPS[1], 1))
    assert same(run.who_knows(before), told)
    assert same(run.who_knows(between), pairs((WARPS[1], 0, range(32, 70), 0), (WARPS[1], 1, WARPS[1], 1)))
    run.barrier(WARPS[2], [0, 1], number=3)  # its next phase: nobody has arrived
    assert same(run.who_knows(before), told | pairs((WARPS[2], 0, WARPS[2], 0), (WARPS[2], 1, WARPS[2], 1)))


def test_who_arrives_tells_what_he_has_learned() -> None:
    run = Run()
    before = run.touch()
    run.order.learn(np.array([5]), 0, run.order.release(np.array([66]), 1))
    run.read(6, 0, run.write(65, 1, RELEASE))
    run.order.learn(np.array([5]), 1, run.order.release(np.array([64]), 0))  # of the other block
    run.arrive(WARPS[0], [0])
    run.barrier(WARPS[1], [0])
    assert same(
        run.who_knows(before)[:THREADS, :THREADS], pairs((WARPS[1], 0, range(64), 0))[:THREADS, :THREADS]
    )
    told = (
        ([5], 1, [64], 0),
        (WARPS[1], 0, range(64), 0),
        ([5, *WARPS[1]], 0, [66], 1),
        (WARPS[1], 0, [65], 1),
    )
    assert same(run.who_knows(before), pairs(*told))


# Barriers of warps


@pytest.mark.parametrize("columns", [(0,), (1,), (0, 1)])
def test_a_warp_barrier_orders_each_warp_by_itself(columns: tuple[int, ...]) -> None:
    run = Run()
    before = run.touch()
    run.warp_barrier(EVERY, columns)
    assert same(run.who_knows(before), pairs(*((w, c, w, c) for w in WARPS for c in columns)))
    after = run.touch()
    assert same(run.who_knows(after), pairs()) and (after - before).tolist() == [c in columns for c in (0, 1)]


@pytest.mark.parametrize("warp", [0, 1, 2])
def test_a_warp_that_runs_by_itself_orders_its_own_lanes(warp: int) -> None:
    run = Run()
    before = run.touch()
    active = np.zeros((1, 32, COLUMNS), np.bool_)
    active[:, :, 1] = True
    run.order.warp_barrier(32 * warp, active)
    assert same(run.who_knows(before), pairs((WARPS[warp], 1, WARPS[warp], 1)))
    some = active & (np.arange(32) < 3)[None, :, None]
    now = run.touch()
    run.order.warp_barrier(32 * warp, some)
    assert same(run.who_knows(now), pairs((WARPS[warp][:3], 1, WARPS[warp][:3], 1)))
    assert same(run.who_knows(before), pairs((WARPS[warp], 1, WARPS[warp], 1)))


def test_some_lanes_of_a_warp_order_themselves_and_pass_on_what_they_know() -> None:
    run = Run()
    before = run.touch()
    run.warp_barrier([32, 33, 40], [0])
    middle = run.touch()
    run.warp_barrier([40, 50, 65], [0])  # 65 is of another warp
    known = ([32, 33, 40], 0, [32, 33, 40], 0), ([40, 50], 0, [32, 33, 40, 50], 0)
    assert same(run.who_knows(before), pairs(*known))
    assert same(run.who_knows(middle), pairs(([40, 50], 0, [40, 50], 0)))
    assert same(run.who_knows(run.touch()), pairs())
    run.warp_barrier(WARPS[0], [0])  # another warp, as a whole
    assert same(run.who_knows(before), pairs(*known, (WARPS[0], 0, WARPS[0], 0)))
    run.warp_barrier(WARPS[1], [0])
    assert same(run.who_knows(before), pairs(*((w, 0, w, 0) for w in WARPS[:2])))


def test_a_warp_barrier_tells_its_lanes_what_one_has_learned() -> None:
    run = Run()
    before = run.touch()
    run.order.learn(np.array([33]), 1, run.order.release(np.array([5]), 0))
    run.warp_barrier([33, 40, 66], [1])
    known = ([33, 40], 1, [5], 0), ([33, 40], 1, [33, 40], 1)
    assert same(run.who_knows(before), pairs(*known))
    run.warp_barrier(WARPS[2], [0, 1])
    run.warp_barrier(WARPS[1], [1])
    last = ((WARPS[2], c, WARPS[2], c) for c in (0, 1))
    assert same(run.who_knows(before), pairs((WARPS[1], 1, [5], 0), (WARPS[1], 1, WARPS[1], 1), *last))


def test_a_warp_barrier_is_no_fence_for_what_was_read() -> None:
    run = Run()
    before = run.touch()
    node = run.write(5, 0, RELEASE)
    run.read(33, 1, node)
    run.warp_barrier(WARPS[1], [1])
    assert same(run.who_knows(before), pairs((WARPS[1], 1, WARPS[1], 1)))
    run.fence(33, 1)
    assert same(run.who_knows(before), pairs((WARPS[1], 1, WARPS[1], 1), ([33], 1, [5], 0)))


# mbarriers and barriers of clusters


@pytest.mark.parametrize("threads", [[4], [4, 5, 6], [4, 7], [4, 6, 40]])
def test_who_releases_is_known_to_who_learns_it(threads: list[int]) -> None:
    run = Run()
    before = run.touch()
    node = run.order.release(np.array(threads), 1)
    after = run.touch()
    assert (after - before).tolist() == [0, 1]
    run.order.learn(np.array([0, 69]), 0, node)
    assert same(run.who_knows(before), pairs(([0, 69], 0, threads, 1)))
    assert same(run.who_knows(after), pairs())
    view = run.order.state.view
    run.order.learn(np.array([0, 69]), 0, node)
    assert run.order.state.view is view  # nothing new


@pytest.mark.parametrize("threads", [[33], [33, 34], [33, 35], [2, 33], list(WARPS[1])])
def test_a_release_tells_what_was_learned_at_barriers_and_from_others(threads: list[int]) -> None:
    """Play a lane that arrives at an mbarrier for its warp, after a barrier of the warp or of some lanes."""
    run = Run()
    before = run.touch()
    run.order.barrier(None, 0)
    second = run.touch()
    run.warp_barrier(EVERY, [1])
    third = run.touch()
    run.warp_barrier([33, 50], [1])
    run.order.learn(np.array(threads[-1:]), 1, run.order.release(np.array([9]), 0))
    node = run.order.release(np.array(threads), 1)
    run.order.learn(np.array([60]), 0, node)
    blocks = (EVERY, 0, EVERY, 0), (EVERY, 1, EVERY, 1)
    mine, learned = ([60], 0), (threads[-1:], 1, [9], 0)
    assert same(run.who_knows(before), pairs(*blocks, (*mine, EVERY, 1), (threads[-1:], 1, EVERY, 0)))
    warps = [(w, 1, w, 1) for w in WARPS]
    whose = [t for w in WARPS if set(w) & set(threads) for t in w]
    assert same(run.who_knows(second), pairs(*warps, (*mine, whose, 1), (*mine, [9], 0), learned))
    some = ([33, 50], 1, [33, 50], 1)
    whose = [*threads, 50]
    assert same(run.who_knows(third), pairs(some, (*mine, whose, 1), (*mine, [9], 0), learned))


def test_a_release_tells_what_some_lanes_told_one_another() -> None:
    run = Run()
    before = run.touch()
    run.warp_barrier([33, 50], [1])
    run.order.learn(np.array([60]), 0, run.order.release(np.array([33]), 1))
    assert same(run.who_knows(before), pairs(([33, 50], 1, [33, 50], 1), ([60], 0, [33, 50], 1)))


def test_what_was_learned_stays_known() -> None:
    run = Run()
    before = run.touch()
    run.order.learn(np.array([60]), 0, run.order.release(np.array([33]), 1))
    run.order.release(np.array([60]), 0)
    assert same(run.who_knows(before), pairs(([60], 0, [33], 1)))
    run.read(61, 0, run.write(34, 1, RELEASE))
    assert same(run.who_knows(before), pairs(([60], 0, [33], 1)))


def test_a_release_of_lanes_that_have_met_tells_nothing_of_threads_that_no_block_has() -> None:
    """The last warp has 6 lanes; numbers beyond them are those of the next block's threads."""
    run = Run()
    before = run.touch()
    run.warp_barrier(WARPS[2], [0])
    run.order.learn(np.array([1]), 0, run.order.release(np.array([64]), 0))
    assert same(run.who_knows(before), pairs(([1, *WARPS[2]], 0, WARPS[2], 0)))
