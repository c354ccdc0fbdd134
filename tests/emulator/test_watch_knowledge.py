"""Knowledge as a graph, against the same knowledge as plain sets of (thread, stamp)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.emulator.watch import knowledge as module
from harness.emulator.watch.knowledge import BLOCK, CLUSTER, GRID, NOTHING, Knowledge, View

BLOCKS, THREADS, STAMPS = 3, 2, 4
EVERY = BLOCKS * THREADS
CLUSTERS = np.array([4, 1, 4])  # by block
Facts = frozenset[tuple[int, int]]  # (thread, stamp): that it has accessed something at that stamp is known


def facts(view: View) -> Facts:
    """Return what a view covers."""
    assert view.blocks.dtype == np.int64
    threads, stamps = (a.ravel() for a in np.indices((EVERY, STAMPS + 1)))
    covered = view.covers(threads, threads // THREADS, stamps + 1)
    return frozenset(zip(threads[covered].tolist(), (stamps[covered] + 1).tolist(), strict=True))


def upto(thread: int, stamp: int) -> Facts:
    return frozenset((thread, s) for s in range(1, stamp + 1))


def of_block(block: int, stamp: int) -> Facts:
    return frozenset().union(*(upto(block * THREADS + t, stamp) for t in range(THREADS)))


@dataclass
class Sets:
    """A node tells by the block that asks: facts, and facts from before a proxy fence."""

    known: list[Facts] = field(default_factory=lambda: [frozenset()] * BLOCKS)
    fenced: list[Facts] = field(default_factory=lambda: [frozenset()] * BLOCKS)

    def __or__(self, other: Sets) -> Sets:
        return Sets(
            [a | b for a, b in zip(self.known, other.known, strict=True)],
            [a | b for a, b in zip(self.fenced, other.fenced, strict=True)],
        )

    def plus(self, more: Facts) -> Sets:
        return Sets([known | more for known in self.known], self.fenced)

    def only_for(self, blocks: set[int]) -> Sets:
        nothing: Facts = frozenset()
        return Sets(
            *([a if b in blocks else nothing for b, a in enumerate(x)] for x in (self.known, self.fenced))
        )

    def learned(self, block: int, blocks: set[int]) -> Sets:
        """Tell all what a thread of a block learns of some blocks."""
        return Sets(
            *(
                [frozenset(fact for fact in said[block] if fact[0] // THREADS in blocks)] * BLOCKS
                for said in (self.known, self.fenced)
            )
        )

    def behind_a_fence(self) -> Sets:
        return Sets(fenced=self.known)


def mates(block: int, scope: int) -> set[int]:
    """Return the blocks in the scope of a thread of a block."""
    own = {BLOCK: {block}, CLUSTER: {b for b in range(BLOCKS) if CLUSTERS[b] == CLUSTERS[block]}}
    return own.get(scope, set(range(BLOCKS)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_graph_says_what_sets_would(data: st.DataObject) -> None:
    """Nodes are made and asked in any order; what was worked out for one is used by the next."""
    graph, nodes = Knowledge(BLOCKS, THREADS, CLUSTERS), {NOTHING: Sets()}
    block, stamp = st.integers(0, BLOCKS - 1), st.integers(0, STAMPS)
    for _ in range(data.draw(st.integers(1, 10))):
        one, two = (data.draw(st.sampled_from(sorted(nodes))) for _ in range(2))
        b, s = data.draw(block), data.draw(stamp)
        made = data.draw(st.sampled_from(["leaf", "group", "join", "learned", "fence"]))
        scope = data.draw(st.sampled_from([BLOCK, CLUSTER, GRID]))
        if made == "leaf":
            some = data.draw(st.dictionaries(st.integers(0, EVERY - 1), st.integers(1, STAMPS), max_size=3))
            node = graph.leaf(b, s, tuple(some.items()), one, scope)
            says = nodes[one].plus(of_block(b, s).union(*(upto(t, at) for t, at in some.items())))
            says = says.only_for(mates(b, scope))
        elif made == "group":
            first, at = data.draw(st.integers(0, THREADS - 1)), data.draw(st.integers(1, STAMPS))
            node = graph.group(b, s, b * THREADS + first, (b + 1) * THREADS, at)
            threads = range(b * THREADS + first, (b + 1) * THREADS)
            says = Sets().plus(of_block(b, s).union(*(upto(t, at) for t in threads)))
        elif made == "join":
            node, says = graph.join(one, two, NOTHING), nodes[one] | nodes[two]
        elif made == "learned":
            node, says = graph.learned(one, b, scope), nodes[one].learned(b, mates(b, scope))
        else:
            node, says = graph.fence(one), nodes[one].behind_a_fence()
        nodes.setdefault(node, says)
        assert (nodes[node].known, nodes[node].fenced) == (says.known, says.fenced)
        asks = data.draw(block)
        assert facts(graph.view(node, asks)) == says.known[asks]
        assert facts(graph.fenced(node, asks)) == says.fenced[asks]


def test_a_fence_told_to_threads_of_one_block_tells_no_other_block() -> None:
    """Block 0 has passed a proxy fence and says so to its own threads only, or says of itself only."""
    graph = Knowledge(BLOCKS, THREADS)
    done = graph.join(graph.leaf(0, 1, (), NOTHING), graph.leaf(1, 2, (), NOTHING))
    fenced = graph.fence(done)
    alone = graph.leaf(0, 0, (), fenced, scope=BLOCK)
    assert facts(graph.fenced(alone, 0)) == of_block(0, 1) | of_block(1, 2)
    assert facts(graph.fenced(alone, 1)) == frozenset()
    assert facts(graph.fenced(graph.learned(fenced, 1, BLOCK), 2)) == of_block(1, 2)


def test_no_branch_hides_another() -> None:
    """Bases are asked in turn: a later one may tell what an earlier one does not."""
    graph = Knowledge(BLOCKS, THREADS)
    plain = graph.fence(graph.leaf(0, 1, (), NOTHING))
    plain = graph.join(plain, graph.leaf(0, 2, (), NOTHING))
    others = {
        "for block 1": graph.leaf(1, 3, (), NOTHING, scope=BLOCK),
        "of block 0": graph.learned(graph.leaf(1, 3, (), NOTHING), 0, BLOCK),
        "a fence": graph.fence(graph.leaf(2, 3, (), NOTHING)),
        "of block 2": graph.learned(graph.fence(graph.leaf(2, 3, (), NOTHING)), 2, BLOCK),
    }
    for name, node in others.items():
        both = graph.join(plain, node)
        assert facts(graph.view(both, 0)) == of_block(0, 2), name
        fenced = of_block(2, 3) if name in ("a fence", "of block 2") else frozenset()
        assert facts(graph.fenced(both, 0)) == of_block(0, 1) | fenced, name


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_a_thread_has_learned_it_may_tell_others(block: int) -> None:
    """Also what was published for its block alone, from which other blocks learn nothing themselves."""
    graph = Knowledge(BLOCKS, THREADS)
    every = graph.join(*(graph.leaf(b, 1 + b, (), NOTHING) for b in range(BLOCKS)))
    alone = graph.leaf(block, 0, (), every, scope=BLOCK)
    behind = graph.fence(alone)
    node = graph.join(*(graph.learned(one, block, BLOCK) for one in (alone, behind)))
    for asks in range(BLOCKS):
        assert facts(graph.view(node, asks)) == facts(graph.fenced(node, asks)) == of_block(block, 1 + block)
        own = facts(graph.view(every, asks)) if asks == block else frozenset()
        assert facts(graph.view(alone, asks)) == facts(graph.fenced(behind, asks)) == own
        assert facts(graph.view(graph.learned(alone, block, GRID), asks)) == facts(graph.view(every, asks))
    assert graph.learned(every, block, GRID) == every


@pytest.mark.parametrize("threads", [(0,), (5,), (1, 4), (4, 1)])
def test_a_view_covers_single_threads_beside_whole_blocks(threads: tuple[int, ...]) -> None:
    view = View(np.array([2, 0, 1]), dict.fromkeys(threads, 3))
    for thread in range(EVERY):
        for stamp in range(1, STAMPS + 1):
            asked = (np.array([x]) for x in (thread, thread // THREADS, stamp))
            knows = stamp <= max((2, 0, 1)[thread // THREADS], 3 * (thread in threads))
            assert view.covers(*asked).tolist() == [knows]


def test_the_same_knowledge_is_one_node() -> None:
    graph = Knowledge(BLOCKS, THREADS)
    one, two = graph.leaf(0, 1, ((1, 2),), NOTHING), graph.leaf(1, 1, (), NOTHING)
    assert graph.leaf(0, 1, ((1, 2),), NOTHING) == one != two
    assert (
        graph.join()
        == graph.join(NOTHING)
        == graph.learned(NOTHING, 1, BLOCK)
        == graph.fence(NOTHING)
        == NOTHING
    )
    assert graph.join(one) == graph.join(NOTHING, one, one) == one
    assert graph.join(one, two) == graph.join(two, NOTHING, one) not in (one, two)
    assert graph.group(0, 0, 0, 2, 3) == graph.group(0, 0, 0, 2, 3) != graph.group(0, 0, 0, 1, 3)


def test_of_two_stamps_of_a_thread_the_later_counts() -> None:
    """In whichever order they are come by: from the leaf itself, and from what is worked out already."""
    for early, late in ((1, 3), (3, 1)):
        graph = Knowledge(BLOCKS, THREADS)
        leaf = graph.leaf(0, 0, ((1, late),), graph.leaf(0, 0, ((1, early),), NOTHING))
        assert facts(graph.view(leaf, 2)) == upto(1, 3)
        kept = [graph.leaf(1, 0, ((1, stamp),), NOTHING) for stamp in (early, late)]
        for one, stamp in zip(kept, (early, late), strict=True):
            assert facts(graph.view(one, 2)) == upto(1, stamp)
        assert facts(graph.view(graph.join(*kept), 2)) == upto(1, 3)


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("scope", [BLOCK, CLUSTER])
def test_clusters_are_numbered_from_0_and_one_may_be_that_of_block_0(block: int, scope: int) -> None:
    graph = Knowledge(BLOCKS, THREADS, CLUSTERS * 0 + np.array([0, 1, 0]))
    alone = graph.leaf(block, 2, (), NOTHING, scope)
    for asks in range(BLOCKS):
        inside = asks in mates(block, scope)
        assert facts(graph.view(alone, asks)) == (of_block(block, 2) if inside else frozenset())
    assert graph.learned(graph.learned(alone, block, GRID), block, GRID) == graph.learned(alone, block, GRID)


def test_who_asks_matters_once_something_is_for_one_block_alone() -> None:
    graph = Knowledge(BLOCKS, THREADS)
    told = graph.leaf(1, 2, (), NOTHING)
    assert not graph.narrow and graph.view(told, 0) is graph.view(told, 1)
    alone = graph.leaf(1, 3, (), told, scope=BLOCK)
    graph.leaf(0, 1, (), NOTHING)
    assert graph.narrow
    assert facts(graph.view(alone, 1)) == of_block(1, 3) and facts(graph.view(alone, 0)) == frozenset()
    assert facts(graph.view(told, 0)) == of_block(1, 2)


@pytest.mark.parametrize("kept", [0, 100 * 8 * BLOCKS, 1 << 30])
def test_few_views_are_kept_and_the_others_worked_out_again(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT", kept)
    graph = Knowledge(BLOCKS, THREADS)
    nodes = [graph.leaf(0, stamp, (), NOTHING) for stamp in range(120)]
    first = graph.view(nodes[0], 0)
    views = [graph.view(node, 0) for node in nodes]
    assert views[0] is first
    last = {0: 64, 100 * 8 * BLOCKS: 100}.get(kept, 120)
    assert graph.view(nodes[-last], 0) is views[-last]  # the oldest that is kept, now the one last asked for
    if last < 120:
        assert graph.view(nodes[0], 0) is not first and graph.view(nodes[0], 0).blocks.tolist() == [0, 0, 0]
        assert graph.view(nodes[-last], 0) is views[-last]
        assert graph.view(nodes[1 - last], 0) is not views[1 - last]


def test_a_long_way_to_proxy_fences_is_gone_once() -> None:
    """Who asks at the end of a chain that grows does not gather anew what was known before."""
    graph = Knowledge(BLOCKS, THREADS)
    began, node = time.process_time(), NOTHING
    for stamp in range(1, 3000):
        node = graph.leaf(0, stamp, (), graph.join(node, graph.fence(node)))
        assert graph.fenced(node, 1).blocks[0] == stamp - 1
    assert time.process_time() - began < 5
