"""Processes of one gloo group, started once, that carry out jobs, and the jobs of tests of sharded products.

Matrices of a case hold small integers, so that every sum is exact in every type, in any order: results are
compared bit for bit, and a term too few or a piece in a wrong place always shows.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

SPLITS = (0, 1, None)
DTYPES = ("float32", "bfloat16", "float16")
FREE = "free"  # C is placed as harness likes
PATIENCE = 60.0  # seconds that a message may take


@dataclass(frozen=True)
class Case:
    """A product of matrices on some GPUs. `major` has "N" (row-major) or "T" for a, b and out."""

    count: int
    shape: tuple[int, int, int]  # M, N, K
    splits: tuple[Any, Any, Any]
    dtype: str = "float32"
    out: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    major: str = "NNN"
    seed: int = 0

    def matrices(self) -> tuple[Any, Any, Any, Any]:
        """Return A, B, what C holds before, and the right result."""
        import torch

        m, n, k = self.shape
        made = torch.Generator().manual_seed(self.seed)
        shapes = ((m, k), (k, n), (m, n))
        a, b, c = (torch.randint(-1, 2, shape, generator=made).double() for shape in shapes)
        right = self.alpha * (a @ b) + (self.beta * 2 * c if self.beta else 0)
        dtype = getattr(torch, self.dtype)
        before = (2 * c if self.beta else c * torch.nan).to(dtype)
        laid = [
            x if letter == "N" else x.t().contiguous().t()
            for x, letter in zip((a.to(dtype), b.to(dtype), before), self.major, strict=True)
        ]
        return (*laid, right.to(dtype))


def draw(rng: random.Random, splits: tuple[Any, Any, Any], count: int, most: int = 40) -> Case:
    """Return a case of random sizes, many of them small, uneven or zero."""
    sizes = [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 31, most]
    m, n, k = (rng.choice(sizes) for _ in range(3))
    out = rng.random() < 0.6
    return Case(
        count=count,
        shape=(m, n, k),
        splits=splits,
        dtype=rng.choice(DTYPES),
        out=out and splits[2] != FREE,
        alpha=rng.choice([1.0, 1.0, -2.0, 0.5]),
        beta=rng.choice([0.0, 1.0, -0.5]) if out and splits[2] != FREE else 0.0,
        major="".join(rng.choice("NNT") for _ in range(3)),
        seed=rng.getrandbits(31),
    )


def drawn(rng: random.Random, counts: Sequence[int], times: int = 1) -> list[Case]:
    """Return cases of every combination of splits on every count of GPUs."""
    every = itertools.product(counts, SPLITS, SPLITS, (*SPLITS, FREE))
    return [
        draw(rng, splits, count) for count, *abc in every for splits in [tuple(abc)] for _ in range(times)
    ]


def pieces(x: Any, split: Any, ranges: Sequence[tuple[int, int]]) -> list[Any]:
    """Return what each GPU has of a matrix."""
    if split is None:
        return [x for _ in ranges]
    return [x[a:b] if split == 0 else x[:, a:b] for a, b in ranges]


class Ranks:
    """A pool of processes of one group. A job is a function of this module, called with the state of each."""

    def __init__(self, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.tensor", "harness.torch.sharded"])
        self._pipes, self._processes = [], []
        for rank in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, count, str(folder)), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self.run(ready, patience=300)

    def run(self, job: Callable[..., Any], *args: Any, patience: float = 120.0) -> list[Any]:
        """Return what the job returned in each process; raises AssertionError for an exception or a hang."""
        for pipe in self._pipes:
            pipe.send((job, args))
        until, found = time.monotonic() + patience, []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(max(0.0, until - time.monotonic())), f"rank {rank} hangs"
            done, value = pipe.recv()
            assert done, f"rank {rank}: {value}"
            found.append(value)
        return found

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@dataclass
class State:
    """What each process has: its rank, a mesh of the first GPUs for each count, and a store for gates."""

    rank: int
    meshes: dict[int, Any]
    store: Any


def _serve(pipe: Any, rank: int, count: int, folder: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/group", count)
    options = {"rank": rank, "world_size": count, "timeout": timedelta(seconds=PATIENCE)}
    dist.init_process_group("gloo", store=store, **options)
    meshes = {n: DeviceMesh("cpu", list(range(n)), mesh_dim_names=("tp",)) for n in range(1, count + 1)}
    state = State(rank, meshes, dist.FileStore(f"{folder}/gates", count))
    with contextlib.suppress(EOFError):
        while True:
            job, args = pipe.recv()
            try:
                pipe.send((True, job(state, *args)))
            except BaseException:
                pipe.send((False, traceback.format_exc()))


# Jobs


def ready(state: State) -> int:
    return state.rank


def distributed(x: Any, split: Any, mesh: Any, rank: int) -> Any:
    """Return a DTensor of a matrix that every process has."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    from harness.torch.sharded.schedule import chunks

    own = pieces(x, split, chunks(0 if split is None else x.shape[split], mesh.size()))[rank].clone()
    placed = [Replicate() if split is None else Shard(split)]
    return DTensor.from_local(own, mesh, placed, run_check=False, shape=x.shape, stride=x.stride())


def multiplied(state: State, case: Case) -> Any:
    """Return what `matmul` returns, and the right result, for the same case in all processes of its mesh."""
    from torch.distributed.tensor import Replicate, Shard

    from harness.torch.sharded import matmul

    mesh = state.meshes[case.count]
    *given, right = case.matrices()
    a, b, c = (
        distributed(x, 0 if split == FREE else split, mesh, state.rank)
        for x, split in zip(given, case.splits, strict=True)
    )
    split = case.splits[2]
    placements = None if split == FREE else [Replicate() if split is None else Shard(split)]
    options = {"alpha": case.alpha, "beta": case.beta}
    if case.out:
        found = matmul(a, b, c, **options)
        assert found is c
    else:
        found = matmul(a, b, placements=placements, **options)
        assert placements is None or list(found.placements) == placements
    return found, right


def products(state: State, cases: Sequence[Case], fault: str = "") -> list[Case]:
    """Return the cases whose result is wrong in this process."""
    import torch

    from harness.torch.sharded.schedule import chunks

    wrong = []
    with FAULTS[fault]() if fault else contextlib.nullcontext():
        for case in cases:
            if state.rank >= case.count:
                continue
            found, right = multiplied(state, case)
            (placed,) = found.placements
            split = placed.dim if placed.is_shard() else None
            ranges = chunks(0 if split is None else right.shape[split], case.count)
            mine = pieces(right, split, ranges)[state.rank]
            if found.shape != right.shape or not torch.equal(found.to_local(), mine):
                wrong.append(case)
    return wrong


def bits(
    state: State, count: int, splits: Sequence[tuple[Any, Any, Any]], dtype: str, seed: int
) -> list[bytes]:
    """Return the bits of results for normal data, each computed twice, which must be the same."""
    import torch
    from torch.distributed.tensor import Replicate, Shard

    from harness.torch.sharded import matmul

    found: list[bytes] = []
    if state.rank >= count:
        return found
    mesh = state.meshes[count]
    torch.manual_seed(seed)
    a, b = torch.randn(37, 61).to(getattr(torch, dtype)), torch.randn(61, 29).to(getattr(torch, dtype))
    for x, y, z in splits:
        left, right = (distributed(m, s, mesh, state.rank) for m, s in ((a, x), (b, y)))
        placed = [Replicate() if z is None else Shard(z)]
        one, two = (matmul(left, right, placements=placed).to_local() for _ in range(2))
        assert torch.equal(one, two)
        found.append(one.float().numpy().tobytes())
    return found


def summed(state: State, terms: Sequence[float], splits: tuple[Any, Any, Any], dtype: str) -> list[float]:
    """Return C of a product whose K-th part is terms[K]: a row of them times a column of ones."""
    import torch
    from torch.distributed.tensor import Shard

    from harness.torch.sharded import matmul

    mesh = state.meshes[len(terms)]
    a = torch.tensor([list(terms)] * len(terms)).to(getattr(torch, dtype))
    b = torch.ones(len(terms), len(terms)).to(a.dtype)
    left, right = (distributed(m, s, mesh, state.rank) for m, s in zip((a, b), splits, strict=False))
    return sorted(set(matmul(left, right, placements=[Shard(splits[2])]).to_local().flatten().tolist()))


def traffic(state: State, case: Case) -> int:
    """Return the elements that this process sends in a product."""
    from harness.torch.sharded.processes import Collective

    sent = 0
    post = Collective.post

    def counted(self: Any, sends: Any, receives: Any) -> Any:
        nonlocal sent
        sent += sum(tensor.numel() for _, tensor in sends)
        return post(self, sends, receives)

    with patched(Collective, "post", counted):
        if state.rank < case.count:
            multiplied(state, case)
    return sent


def message(state: State, what: str) -> str:
    """Return what `matmul` says to wrong arguments."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    from harness.errors import UsageError
    from harness.torch.sharded import matmul

    mesh, x = state.meshes[4], torch.ones(8, 8)
    rows = distributed(x, 0, mesh, state.rank)
    row = distributed(x[:1].expand(8, 8), 0, mesh, state.rank)
    double = DTensor.from_local(torch.ones(2, 8).double(), mesh, [Shard(0)])
    short = DTensor.from_local(
        torch.ones(1 if state.rank == 3 else 2, 8), mesh, [Shard(0)], shape=(8, 8), stride=(8, 1)
    )
    wide = torch.ones(2, 12)
    left, right = (DTensor.from_local(w, mesh, [Shard(0)]) for w in (wide[:, :8], wide[:, 4:]))
    grids = {}
    if "grid" in what:
        grids["grid"] = DTensor.from_local(
            torch.ones(4, 4), DeviceMesh("cpu", [[0, 1], [2, 3]]), [Shard(0), Replicate()]
        )
    calls: dict[str, Callable[[], Any]] = {
        "plain": lambda: matmul(rows, x),
        "grid": lambda: matmul(grids["grid"], grids["grid"]),
        "meshes": lambda: matmul(rows, distributed(x, 0, state.meshes[2], state.rank % 2)),
        "partial": lambda: matmul(rows, DTensor.from_local(x, mesh, [Partial()])),
        "result": lambda: matmul(rows, rows, placements=[Partial()]),
        "two placements": lambda: matmul(rows, rows, placements=[Shard(0), Shard(1)]),
        "out": lambda: matmul(rows, rows, row, placements=[Shard(1)]),
        "shapes": lambda: matmul(rows, distributed(x[:5], 0, mesh, state.rank)),
        "out's shape": lambda: matmul(rows, rows, distributed(x[:, :5], 0, mesh, state.rank)),
        "types": lambda: matmul(rows, double.float().bfloat16()),
        "type": lambda: matmul(double, double),
        "dimensions": lambda: matmul(DTensor.from_local(torch.ones(8), mesh, [Shard(0)]), rows),
        "shard": lambda: (
            matmul(short, rows, placements=[Replicate()]) if state.rank == 3 else _raise_as("1 x 8")
        ),
        "gradients": lambda: matmul(rows.detach().requires_grad_(), rows),
        "beta": lambda: matmul(rows, rows, beta=1.0),
        "alpha": lambda: matmul(rows, rows, alpha=float("nan")),
        "alpha beyond float32": lambda: matmul(rows, rows, alpha=1e39),
        "precision": lambda: matmul(rows, rows, precision="fast"),
        "precision of bf16": lambda: matmul(rows.bfloat16(), rows.bfloat16(), precision="tf32"),
        "overlap": lambda: matmul(left, rows, right),
        "in place": lambda: matmul(rows, rows, rows),
    }
    try:
        calls[what]()
    except UsageError as e:
        return str(e)
    return ""


def _raise_as(text: str) -> None:
    from harness.errors import UsageError

    raise UsageError(text)


# Events: a message is held back until something has begun elsewhere, so that only an overlap gets to the end


def gated(state: State, case: Case, gate: str, fault: str = "") -> bool:
    """Return True if a product ends although a message is held back, and False if it waits for ever.

    "operands": the last piece leaves only when its receiver has begun its first product. "results": the last
    product begins only when the first result of this process has arrived.
    """
    import torch

    from harness.torch.sharded import share
    from harness.torch.sharded.processes import Collective

    if state.rank >= case.count:
        return True
    post, multiply, last = Collective.post, share.multiply, case.count - 1
    key = f"{case.seed}/{gate}/{fault}"
    began, posted, late = 0, 0, []

    def waited(name: str) -> None:
        try:
            state.store.wait([f"{key}/{name}"], timedelta(seconds=4 if fault else 20))
        except Exception:
            late.append(name)

    def begun(*args: Any) -> None:
        nonlocal began
        state.store.set(f"{key}/began {state.rank}", "")
        if gate == "results" and began == last:
            waited(f"arrived from {state.rank}")
        began += 1
        multiply(*args)

    def held_back(self: Any, sends: Any, receives: Any) -> Callable[[], None]:
        nonlocal posted
        posted += bool(sends)
        if gate == "operands" and sends and posted == last:
            return behind(self, sends, receives)
        wait = post(self, sends, receives)
        if gate == "results" and sends and posted == 1:
            thread = threading.Thread(target=lambda: (wait(), tell(receives)))
            thread.start()
            return thread.join
        return wait

    def tell(receives: Any) -> None:
        for peer, _ in receives:
            state.store.set(f"{key}/arrived from {peer}", "")

    def behind(self: Any, sends: Any, receives: Any) -> Callable[[], None]:
        def send() -> None:
            for peer, _ in sends:
                waited(f"began {peer}")
            post(self, sends, [])()

        thread = threading.Thread(target=send)
        thread.start()
        receive = post(self, [], receives)
        return lambda: (thread.join(), receive())[0]

    with (
        patched(share, "multiply", begun),
        patched(Collective, "post", held_back),
        FAULTS[fault]() if fault else contextlib.nullcontext(),
    ):
        found, right = multiplied(state, case)
        assert torch.equal(found.full_tensor(), right)
    return not late


# Planted faults


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _shifted() -> Any:
    """Pieces that arrive of C are put a row too far, where there is one."""
    from harness.torch.sharded.share import Share

    place = Share._place

    def wrong(self: Any, where: Any, block: Any) -> None:
        place(self, where, block.roll(1, 0))

    return patched(Share, "_place", wrong)


def _unpacked() -> Any:
    """Operands that travel transposed are taken as they come."""
    from harness.torch.sharded.share import Held

    return patched(Held, "unpacked", lambda self, block, x: Held(x.reshape(block.shape), block, self.flipped))


def _neighbour() -> Any:
    """A process multiplies its own piece again instead of the one that arrived, where it is as large."""
    from harness.torch.sharded.share import Held

    def wrong(self: Any, block: Any, travelled: Any) -> Any:
        x = travelled.t() if self.flipped else travelled
        return Held(self.tensor if self.tensor.shape == x.shape else x.roll(1, 0), block, self.flipped)

    return patched(Held, "unpacked", wrong)


def _dropped() -> Any:
    """A sum leaves out its last term."""
    from harness.torch.sharded.share import Sum

    def wrong(self: Any) -> None:
        if self._stack is not None:
            self._target.copy_(self._stack[:-1].sum(0))

    return patched(Sum, "end", wrong)


def _overwritten() -> Any:
    """A product that is to be added to what is there takes its place."""
    from harness.torch.sharded.share import Sum

    later = Sum.later

    return patched(Sum, "later", lambda self: (later(self)[0], 0.0))


def _beta_twice() -> Any:
    """What C held is added by each process that has a term of it."""
    from harness.torch.sharded.share import Sum

    later = Sum.later

    def wrong(self: Any) -> Any:
        where, beta = later(self)
        if self._stack is not None and self._beta:
            where.copy_(self._target)
        return where, self._beta if self._stack is not None else beta

    return patched(Sum, "later", wrong)


def _all_first() -> Any:
    """Everything that travels is waited for before a product begins, and results are sent at the end."""
    from harness.torch.sharded.schedule import BLOCKS
    from harness.torch.sharded.share import Share

    def steps(self: Any) -> Iterator[None]:
        sums = self._schedule.kind != BLOCKS
        if sums:
            self._begin_sum()
        operands = [self._operands(one) for one in self._schedule.rounds]
        found = [ready() for ready in operands]
        made = [
            self._product(i, one, *ab)
            for i, (one, ab) in enumerate(zip(self._schedule.rounds, found, strict=True))
        ]
        placed = [self._results(one, target) for one, target in zip(self._schedule.rounds, made, strict=True)]
        for place in placed:
            place()
        if sums:
            self._sum.end()
            self._end()()
        yield

    return patched(Share, "steps", steps)


FAULTS: dict[str, Callable[[], Any]] = {
    "shifted": _shifted,
    "unpacked": _unpacked,
    "neighbour": _neighbour,
    "dropped": _dropped,
    "overwritten": _overwritten,
    "beta twice": _beta_twice,
    "all first": _all_first,
}
WRONG = [name for name in FAULTS if name != "all first"]  # the faults that change results
