"""Products of sharded matrices: processes over gloo, lists of tensors, and streams that run in any order."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from shared import gloo_ranks
from shared.gloo_ranks import FREE, SPLITS, WRONG, Case, Ranks, drawn, pieces

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "sharded.py"
GATHERED = [(0, 1, 0), (0, 1, 1), (0, 0, 0), (1, 1, 1)]  # operands travel
SENT = [(1, 0, 0), (1, 0, 1), (0, None, 1), (None, 1, 0)]  # results do


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # which pytest shows of a failure
    return random.Random(seed)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pool = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


@pytest.fixture
def sharded(torch: Any) -> Any:
    import harness.torch.sharded

    torch.set_num_threads(1)
    return harness.torch.sharded


# The schedules


def random_cuts(rng: random.Random, count: int) -> Any:
    """Return ranges of any sizes, as lists of tensors may have them, or those of torch.chunk."""
    from harness.torch.sharded.schedule import Cuts, chunks

    if rng.random() < 0.5:
        return Cuts(*[chunks(rng.choice([0, 1, 2, 5, 8, 13, 40]), count) for _ in range(3)])
    ends = [[0, *itertools.accumulate(rng.choice([0, 0, 1, 3, 8]) for _ in range(count))] for _ in range(3)]
    return Cuts(*[tuple(itertools.pairwise(each)) for each in ends])


def flaws(cuts: Any, splits: Any, way: Any) -> list[str]:
    """Return what is wrong with the schedules of all GPUs."""
    from harness.torch.sharded.schedule import held

    found, names = [], ("a", "b", "c")
    if len({len(each.rounds) for each in way}) != 1:
        found.append("not the same number of rounds")
    phases = [[each.rounds[i] for each in way] for i in range(len(way[0].rounds))]
    pairs = [([x.gives for x in phase], [x.takes for x in phase]) for phase in phases]
    pairs += [([x.sends for x in phase], [x.gets for x in phase]) for phase in [*phases, list(way)]]
    for sent, got in pairs:
        there = sorted((r, move.peer, move[1:]) for r, moves in enumerate(sent) for move in moves)
        here = sorted((move.peer, r, move[1:]) for r, moves in enumerate(got) for move in moves)
        found += ["what is sent is not what is received"] * (there != here)
    for rank, each in enumerate(way):
        blocks = dict(zip(names, held(cuts, splits, rank), strict=True))
        for one in each.rounds:
            if not (one.a.columns == one.b.rows and one.c == (one.a.rows, one.b.columns)):
                found.append("blocks of a product do not fit")
            here = {move.name: move.block for move in one.takes}
            for name, block in (("a", one.a), ("b", one.b)):
                if block.size and not blocks[name].holds(block) and here.get(name) != block:
                    found.append(f"{name} is not there")
            found += ["gives what it has not" for x in one.gives if not blocks[x.name].holds(x.block)]
    done = sum(one.a.size * one.b.shape[1] for each in way for one in each.rounds)
    m, n, k = (ranges[-1][1] for ranges in cuts)
    if done != m * n * k * (len(way) if splits == (None, None, None) else 1):
        found.append("a multiply-add is done twice or not at all")
    return found


def test_schedules_fit_together(sharded: Any, rng: random.Random) -> None:
    from harness.torch.sharded.schedule import Splits, _ways

    for _ in range(12):
        count = rng.choice([1, 2, 3, 4, 5, 8])
        cuts = random_cuts(rng, count)
        for splits in itertools.product(SPLITS, repeat=3):
            ways = list(_ways(cuts, Splits(*splits)))
            assert ways
            for way in ways:
                assert flaws(cuts, Splits(*splits), way) == [], (cuts, splits)


def test_flaws_of_schedules_are_found(sharded: Any) -> None:
    """The control: a piece that goes to the wrong GPU, and a round left out."""
    from harness.torch.sharded.schedule import Cuts, Splits, chunks, plan

    cuts = Cuts(*[chunks(12, 3)] * 3)
    splits, way = plan(cuts, 0, 1, 1)
    first, *rest = way
    moved = [one._replace(gives=tuple(x._replace(peer=0) for x in one.gives)) for one in first.rounds]
    assert "what is sent is not what is received" in flaws(
        cuts, splits, (first._replace(rounds=tuple(moved)), *rest)
    )
    short = first._replace(rounds=(first.rounds[0]._replace(a=first.rounds[1].a), *first.rounds[1:]))
    assert flaws(cuts, Splits(*splits), (short, *rest))


def test_what_moves_least_is_chosen(sharded: Any) -> None:
    from harness.torch.sharded.schedule import BLOCKS, SLICES, TERMS, Cuts, chunks, plan

    def chosen(m: int, n: int, k: int, *splits: Any) -> tuple[str, int]:
        _, way = plan(Cuts(*[chunks(x, 4) for x in (m, n, k)]), *splits)
        return way[0].kind, sum(each.received for each in way)

    n = 1024
    for a, b, c in [(0, None, 0), (None, 1, 1), (None, None, 0), (None, None, 1), (None, None, None)]:
        assert chosen(n, n, n, a, b, c) == (BLOCKS, 0)
    assert chosen(n, n, n, 0, 1, 1) == (BLOCKS, 3 * n * n)  # A is gathered
    assert chosen(n, n // 4, n, 0, 1, 0) == (BLOCKS, 3 * n * n // 4)  # B is
    assert chosen(n, n, n, 0, 0, 0) == (SLICES, 3 * n * n)
    assert chosen(16, n, n, 0, 0, 0) == (TERMS, 3 * 16 * n + 3 * 16 * n // 4)  # few rows: A and C move, not B
    assert chosen(n, n, n, 1, 0, 0) == (TERMS, 3 * n * n)  # C is reduced and scattered
    assert chosen(n, n, 16, 1, 0, 0) == (SLICES, 3 * 16 * n + 3 * 16 * n // 4)  # a flat product: A and B move
    assert chosen(n, n, n, 1, 0, None) == (TERMS, 2 * 3 * n * n)  # all-reduced
    assert chosen(n, n, n, 1, None, 0) == (SLICES, 3 * n * n // 4)


# Processes


@pytest.mark.slow
def test_every_combination(ranks: Ranks, rng: random.Random) -> None:
    cases = drawn(rng, (1, 2, 3, 4), times=3)
    assert ranks.run(gloo_ranks.products, cases) == [[]] * 4


@pytest.mark.slow
@pytest.mark.parametrize("fault", WRONG)
def test_planted_faults_are_found(ranks: Ranks, fault: str) -> None:
    cases = drawn(random.Random(5), (2, 3, 4))
    found = ranks.run(gloo_ranks.products, cases, fault)
    assert any(found), f"{fault}: {gloo_ranks.FAULTS[fault].__doc__}"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", gloo_ranks.DTYPES)
def test_bits_are_the_same(ranks: Ranks, rng: random.Random, dtype: str) -> None:
    splits = list(itertools.product(SPLITS, repeat=3))
    found = ranks.run(gloo_ranks.bits, 3, splits, dtype, rng.getrandbits(31))
    for abc, *results in zip(splits, *found[:3], strict=True):
        if abc[2] is None:  # every process has the same C
            assert results[0] == results[1] == results[2], abc


@pytest.mark.slow
def test_16_bit_sums_are_added_in_float32(ranks: Ranks) -> None:
    terms = [256.0, 1.0, 1.0, 1.0]  # 257 in bfloat16 is 256
    for splits in [(1, 0, 0), (1, 0, 1), (0, 0, 0), (1, 1, 1), (1, None, 0), (None, 0, 1)]:
        assert ranks.run(gloo_ranks.summed, terms, splits, "bfloat16") == [[260.0]] * 4, splits
        assert ranks.run(gloo_ranks.summed, terms, splits, "float32") == [[259.0]] * 4


@pytest.mark.slow
def test_no_more_is_sent_than_planned(ranks: Ranks) -> None:
    from harness.torch.sharded.schedule import Cuts, chunks, plan

    for count, *splits in itertools.product((2, 4), SPLITS, SPLITS, SPLITS):
        shape = (12, 20, 36)
        _, way = plan(Cuts(*[chunks(x, count) for x in shape]), *splits)
        sent = ranks.run(gloo_ranks.traffic, Case(count, shape, tuple(splits)))
        assert sum(sent) == sum(each.received for each in way), splits


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(
    ("splits", "gate"), [(x, "operands") for x in GATHERED] + [(x, "results") for x in SENT]
)
def test_products_begin_before_the_last_piece_has_arrived(
    ranks: Ranks, rng: random.Random, splits: Any, gate: str, count: int
) -> None:
    """The last message waits for a product elsewhere, or a product for the first message."""
    case = Case(count, (8 * count, 8 * count, 8 * count), splits, seed=rng.getrandbits(31))
    assert ranks.run(gloo_ranks.gated, case, gate) == [True] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("splits", "gate"), [(GATHERED[0], "operands"), (SENT[0], "results")])
def test_waiting_first_would_be_found(ranks: Ranks, rng: random.Random, splits: Any, gate: str) -> None:
    """The control: one that first waits for all, and sends at the end."""
    case = Case(2, (16, 16, 16), splits, seed=rng.getrandbits(31))
    assert ranks.run(gloo_ranks.gated, case, gate, "all first")[:2] == [False] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("plain", "b is a Tensor, not a DTensor\n  -> distribute_tensor"),
        ("grid", "the mesh has 2 dimensions\n  -> use a mesh of one dimension"),
        ("partial", "b is placed as P"),
        ("result", "the result is placed as P"),
        ("two placements", "the result has 2 placements on a mesh of one dimension"),
        ("out", "out is not placed as placements says"),
        ("shapes", "a is 8 x 8 and b is 5 x 8: a's columns must be as many as b's rows"),
        ("out's shape", "out is 8 x 5, not 8 x 8"),
        ("types", "a is of torch.float32, b of torch.bfloat16\n  -> convert one of them"),
        ("type", "a is of torch.float64, not of torch.float32"),
        ("dimensions", "a has 1 dimensions, not 2"),
        ("shard", "1 x 8"),
        ("gradients", "a requires gradients, which would be lost\n  -> sharded products have no gradients"),
        ("beta", "beta=1 without out"),
        ("alpha", "alpha=nan is not a finite float32"),
        ("alpha beyond float32", "alpha=1e+39 is not a finite float32"),
        ("precision", "no precision 'fast'"),
        ("precision of bf16", "precision='tf32' is about float32, and a is of bf16"),
        ("overlap", "out overlaps a"),
        ("in place", "out overlaps a"),
    ],
)
def test_wrong_arguments_of_processes(ranks: Ranks, what: str, said: str) -> None:
    for rank, found in enumerate(ranks.run(gloo_ranks.message, what)):
        assert said in found, f"rank {rank}"


@pytest.mark.slow
def test_a_shard_of_a_wrong_size_is_told_with_its_rank(ranks: Ranks) -> None:
    assert ranks.run(gloo_ranks.message, "shard")[3].startswith(
        "rank 3: a is 1 x 8, not 2 x 8\n  -> shards are"
    )


# Lists


def multiplied(sharded: Any, case: Case, cuts: Any) -> tuple[list[Any], list[Any]]:
    """Return what `matmul_lists` returns for a case cut so, and the right result."""
    from harness.torch.sharded.schedule import plan

    (a, b, c), (left, right, before, known) = case.splits, case.matrices()
    if c == FREE:
        (_, _, c), _ = plan(cuts, a, b)
    operands = [
        [part.clone() for part in pieces(x, split, ranges[split or 0])]
        for x, split, ranges in ((left, a, (cuts.m, cuts.k)), (right, b, (cuts.k, cuts.n)))
    ]
    options: dict[str, Any] = {"alpha": case.alpha, "beta": case.beta}
    if case.out:
        out = [part.clone() for part in pieces(before, c, (cuts.m, cuts.n)[c or 0])]
        found = sharded.matmul_lists(*operands, out, split=(a, b, c), **options)
        assert all(x is y for x, y in zip(found, out, strict=True))
    else:
        found = sharded.matmul_lists(*operands, split=(a, b), **options)
    return found, pieces(known, c, (cuts.m, cuts.n)[c or 0])


def list_cases(rng: random.Random, times: int) -> Iterator[tuple[Case, Any]]:
    """Yield cases of every combination, with their ranges; where C is free there is no out."""
    from harness.torch.sharded.schedule import Cuts, chunks

    for case in drawn(rng, (1, 2, 3, 4), times):
        cuts, (a, b, c) = random_cuts(rng, case.count), case.splits
        told = a == 0 or c == 0, b == 1 or c == 1, a == 1 or b == 0  # else nothing tells the ranges
        ends = [ranges[-1][1] for ranges in cuts]
        used = [
            x if known else chunks(end, case.count) for x, known, end in zip(cuts, told, ends, strict=True)
        ]
        yield replace(case, shape=tuple(ends), out=c != FREE), Cuts(*used)


def wrong_lists(sharded: Any, torch: Any, cases: Iterator[tuple[Case, Any]]) -> list[Case]:
    """Return the cases whose result is wrong."""
    wrong = []
    for case, cuts in cases:
        found, known = multiplied(sharded, case, cuts)
        if not all(torch.equal(x, y) for x, y in zip(found, known, strict=True)):
            wrong.append(case)
    return wrong


def test_lists_of_every_combination(sharded: Any, torch: Any, rng: random.Random) -> None:
    assert wrong_lists(sharded, torch, list_cases(rng, 2)) == []


@pytest.mark.parametrize("fault", WRONG)
def test_planted_faults_are_found_in_lists(sharded: Any, torch: Any, fault: str) -> None:
    with gloo_ranks.FAULTS[fault]():
        assert wrong_lists(sharded, torch, list_cases(random.Random(5), 1))


def test_lists_and_processes_are_the_same_product(sharded: Any, torch: Any) -> None:
    torch.manual_seed(1)
    a, b = torch.randn(12, 20).bfloat16(), torch.randn(20, 9).bfloat16()
    found = sharded.matmul_lists(a.chunk(4, 1), b.chunk(4, 0), split=(1, 0, 0))
    terms = [(x @ y).float() for x, y in zip(a.chunk(4, 1), b.chunk(4, 0), strict=True)]
    assert torch.allclose(torch.cat(found).float(), sum(terms).bfloat16().float(), rtol=2**-7)
    assert found[0].dtype is torch.bfloat16 and [x.shape for x in found] == [(3, 9)] * 4


def test_wrong_arguments_of_lists(sharded: Any, torch: Any) -> None:
    x, call = torch.ones(4, 4), sharded.matmul_lists
    two, whole = [x[:2], x[2:]], [x, x]
    wide = torch.ones(4, 8)
    for said, args, options in [
        ("split=(0, 2)", (two, whole), {"split": (0, 2)}),
        ("split=(True, None)", (two, whole), {"split": (True, None)}),
        ("split=0", (two, whole), {"split": 0}),
        ("split does not say how out is split", (two, whole, two), {"split": (0, None)}),
        ("a is empty", ([], []), {"split": (0, None)}),
        ("a has 2 tensors, b 1", (two, [x]), {"split": (0, None)}),
        ("b[1] is a list, not a tensor", (two, [x, []]), {"split": (0, None)}),
        ("a[1] is on cpu, b[1] on meta", (two, [x, x.to("meta")]), {"split": (0, None)}),
        ("a[0] is on meta", ([x.to("meta")], [x.to("meta")]), {"split": (0, None)}),
        (
            "a[0] is of torch.float32, a[1] of torch.float16",
            ([x[:2], x[2:].half()], whole),
            {"split": (0, None)},
        ),
        ("a[0] has 1 dimensions", ([x[0], x[0]], whole), {"split": (0, None)}),
        ("K is split into [2, 2] by a, into [3, 1] by b", (x.split(2, 1), x.split(3)), {"split": (1, 0)}),
        ("b[0] is 2 x 4, not 4 x 4", (two, two), {"split": (0, None)}),
        ("b[1] is 4 x 3, not 4 x 4", (two, [x, x[:, :3]]), {"split": (0, None)}),
        ("M is split into [2, 2] by a, into [4, 4] by out", (two, whole, whole), {"split": (0, None, 0)}),
        ("out[1]: out overlaps a[1]", (two, whole, [x[:2].clone(), x[2:]]), {"split": (0, None, 0)}),
        ("out[0]: out is neither", (two, whole, [wide[:2, ::2]] * 2), {"split": (0, None, 0)}),
        ("beta=1 without out", (two, whole), {"split": (0, None), "beta": 1}),
        ("a[0] requires gradients", ([x[:2].clone().requires_grad_(), x[2:]], whole), {"split": (0, None)}),
    ]:
        with pytest.raises(UsageError) as caught:
            call(*args, **options)
        assert said in str(caught.value)
    side = call([wide[:, :4]], [x], [wide[:, 4:]], split=(0, None, 0))  # side by side is no overlap
    assert torch.equal(side[0], torch.full((4, 4), 4.0))


# Streams: what is queued runs later, in any order that streams and events allow


class Stream:
    """A simulated stream; its tail is what the next operation waits for."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.tail: set[int] = set()

    def record_event(self) -> frozenset[int]:
        return frozenset(self.tail)

    def wait_event(self, event: frozenset[int]) -> None:
        self.tail |= event

    def wait_stream(self, other: Stream) -> None:
        self.tail |= other.tail


class Gpus:
    """Simulated GPUs on which `CudaLane` runs: what PyTorch would queue is queued, and run in a random order.

    Each tensor belongs to a GPU, whose operations alone may touch it, but for copies, which PyTorch queues as
    ATen/native/cuda/Copy.cu does: on the source's current stream, between waits of and for the target's.
    Memory begins as NaN.
    """

    def __init__(self, torch: Any, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        from harness.torch.sharded import lists

        self.torch, self.count = torch, count
        self.queued: list[tuple[frozenset[int], Any]] = []
        self.owners: dict[int, int] = {}  # by the address of a storage
        self.streams = [Stream(i) for i in range(count)]  # the current ones
        self.device: int | None = None
        self.results = itertools.count()
        gpus, numbers = self, itertools.count()

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return gpus.dispatched(func, args, kwargs or {})

        self.mode = Mode()
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", self.on_stream)
        monkeypatch.setattr(torch.cuda, "device", self.on_device)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.streams[device])
        monkeypatch.setattr(lists, "lane", lambda device: lists.CudaLane(next(numbers)))

    @contextlib.contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        before, self.device = self.device, device
        yield
        self.device = before

    @contextlib.contextmanager
    def on_stream(self, stream: Stream) -> Iterator[None]:
        with self.on_device(stream.device):
            before, self.streams[stream.device] = self.streams[stream.device], stream
            yield
            self.streams[stream.device] = before

    def matmul_lists(self, *given: Any, **options: Any) -> Any:
        """Give each tensor to its GPU, and call the real one."""
        from harness.torch.sharded import matmul_lists

        for tensors in given:
            self.owners |= {x.untyped_storage().data_ptr(): i for i, x in enumerate(tensors)}
        with self.mode:
            return matmul_lists(*given, **options)

    def dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do at once what only makes a view or allocates, and queue all else."""
        aten = self.torch.ops.aten
        if func.is_view or func is aten.detach.default:
            return func(*args, **kwargs)
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, self.torch.Tensor)]
        owners = [self.owners.get(x.untyped_storage().data_ptr()) for x in operands if x.numel()]
        if func in (aten.new_empty.default, aten.clone.default):
            made = self.torch.full(
                args[1] if func is aten.new_empty.default else args[0].shape, self.torch.nan
            )
            made = made.to(args[0].dtype)
            # The parts of C are made in turn, before anything runs.
            owner = next(self.results) if self.device is None else self.device
            self.owners[made.untyped_storage().data_ptr()] = owner
            if func is aten.clone.default:
                self.queue(lambda: made.copy_(args[0]), self.streams[self.only(owners)])
            return made
        assert func._schema.is_mutable, func
        if func is aten.copy_.default and len(set(owners)) == 2:
            target, source = owners
            self.queue(lambda: func(*args, **kwargs), self.streams[source], self.streams[target])
        elif owners:
            self.queue(lambda: func(*args, **kwargs), self.streams[self.only(owners)])
        return kwargs.get("out", args[0])

    def only(self, owners: list[Any]) -> int:
        """Return the GPU that an operation runs on; all it touches has to be there."""
        assert set(owners) == {self.device}, f"GPU {self.device} touches memory of {owners}"
        return owners[0]

    def queue(self, operation: Any, *streams: Stream) -> None:
        self.queued.append((frozenset().union(*[x.tail for x in streams]), operation))
        for stream in streams:
            stream.tail = {len(self.queued) - 1}

    def run(self, rng: random.Random) -> None:
        """Run what each GPU's current stream has waited for in the end, and all else later or never."""
        done: set[int] = set()
        needed = set().union(*[stream.tail for stream in self.streams])
        for i in reversed(range(len(self.queued))):
            if i in needed:
                needed |= self.queued[i][0]
        while needed:
            i = rng.choice([i for i in sorted(needed) if self.queued[i][0] <= done])
            self.queued[i][1]()
            needed.remove(i)
            done.add(i)


def deferred(torch: Any, monkeypatch: pytest.MonkeyPatch, rng: random.Random, times: int) -> list[Case]:
    """Return the cases that are wrong when operations run in a random order."""
    wrong = []
    for case, cuts in list_cases(rng, times):
        with monkeypatch.context() as patch:
            gpus = Gpus(torch, patch, case.count)
            found, known = multiplied(gpus, case, cuts)
        gpus.run(rng)
        if not all(torch.equal(x, y) for x, y in zip(found, known, strict=True)):
            wrong.append(case)
    return wrong


@pytest.mark.slow
def test_any_order_that_streams_allow(
    sharded: Any, torch: Any, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    assert deferred(torch, monkeypatch, rng, 3) == []


def copied_early(self: Any, source: Any, target: Any, events: Any, to: Any) -> Any:
    """Stands for `CudaLane.copy`: it waits for nothing."""
    return COPY(self, source, target, [], to)


def copied_here(self: Any, source: Any, target: Any, events: Any, to: Any) -> Any:
    """Stands for `CudaLane.copy`: the event is that of what leaves before the copy."""
    event = self._leaving.record_event()
    COPY(self, source, target, events, to)
    return event


COPY: Any = None


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no wait", "no mark", "copied early", "copied here"])
def test_a_missing_event_is_found(
    sharded: Any, torch: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    from harness.torch.sharded.lists import CudaLane

    monkeypatch.setitem(globals(), "COPY", CudaLane.copy)
    name, wrong = {
        "no wait": ("wait", lambda self, event: None),
        "no mark": ("mark", lambda self: frozenset()),
        "copied early": ("copy", copied_early),
        "copied here": ("copy", copied_here),
    }[fault]
    monkeypatch.setattr(CudaLane, name, wrong)
    assert deferred(torch, monkeypatch, random.Random(3), 1)


def test_memory_of_another_gpu_is_not_touched(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the simulation: an operation on two GPUs' tensors is refused."""
    gpus = Gpus(torch, monkeypatch, 2)
    x, y = torch.ones(2, 2), torch.ones(2, 2)
    gpus.owners = {t.untyped_storage().data_ptr(): i for i, t in enumerate((x, y))}
    with gpus.mode, gpus.on_device(0):
        x.copy_(y)
        with pytest.raises(AssertionError, match="GPU 0 touches memory of"):
            x.addmm_(x, y)


# The benchmark


@pytest.mark.exhaustive
def test_the_benchmark_runs_without_a_gpu(torch: Any, tmp_path: Path) -> None:
    out = tmp_path / "sharded.json"
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(BENCHMARK)]
    words += ["--device", "cpu", "--size", "50", "--dtype", "bf16", "--turns", "2", "--json", str(out)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    record = json.loads(out.read_text())
    assert record["kind"] == "sharded" and record["meta"]["gpus"] == 2
    assert record["meta"]["environment"]["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    rows = {(row["case"], row["contender"]): row for row in record["rows"]}
    cases = {case for case, _ in rows if case}
    assert cases == {"gather-a", "gather-b", "scatter", "reduce", "local"}
    for case in cases:
        for who in ("harness", "harness lists"):
            row = rows[case, who]
            assert row["status"] == "ok" and row["of_whole"] > 0 and row["of_best_peer"] > 0
            assert 0 < row["error_after"] <= 1
    failed = rows["gather-a", "fused_all_gather_matmul"]
    assert failed["status"] == "failed" and "NotImplementedError" in failed["why"]
    assert "gather-a" in ran.stdout
