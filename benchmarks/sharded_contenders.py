"""Products of sharded matrices by harness, by PyTorch's collectives, fused: what benchmarks/sharded.py times.

Each contender computes C from the same shards, and returns this process's part of it. The data are normal,
and drawn on the GPU from a seed for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from harness.torch import sharded
from harness.torch.sharded.schedule import Block, Cuts, Splits, chunks, held
from harness.torch.sharded.share import multiply

# How A, B and C are split, and what that asks for.
CASES: dict[str, Splits] = {
    "gather-a": Splits(0, 1, 1),  # a layer split by columns: A is gathered
    "gather-b": Splits(0, 0, 0),  # all by rows: B is gathered, in slices of K
    "scatter": Splits(1, 0, 0),  # a layer split by rows: sums are scattered
    "reduce": Splits(1, 0, None),  # the same, and every GPU wants C
    "local": Splits(0, None, 0),  # nothing travels
}
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}  # of a rounding, about
SAMPLED = 8  # rows of C that are computed in float64


@dataclass(frozen=True)
class Arena:
    """A case of one size and type on this process: its shards, and where a result is written."""

    splits: Splits
    size: int
    rank: int
    count: int
    mesh: Any
    a: Any
    b: Any
    c: Any
    precision: str

    @classmethod
    def drawn(
        cls,
        splits: Splits,
        size: int,
        dtype: Any,
        mesh: Any,
        device: Any,
        seed: int,
        precision: str,
        rank: int,
    ) -> Arena:
        """Return an arena of a rank with random data; replicated matrices are the same everywhere."""
        count = mesh.size()
        blocks = held(cuts(size, count), splits, rank)
        made = []
        for number, (block, split) in enumerate(zip(blocks, splits, strict=True)):
            generator = torch.Generator(device).manual_seed(
                seed + 10 * number + (0 if split is None else 1000 * rank)
            )
            x = torch.empty(block.shape, device=device, dtype=dtype)
            made.append(x.normal_(generator=generator) if number < 2 else x)
        return cls(splits, size, rank, count, mesh, *made, precision)

    @property
    def flops(self) -> float:
        """The floating-point operations of the whole product."""
        return 2.0 * self.size**3

    @property
    def blocks(self) -> tuple[Block, Block, Block]:
        """The blocks of A, B and C that this process has."""
        return held(cuts(self.size, self.count), self.splits, self.rank)

    def tensor(self, x: Any, split: int | None) -> Any:
        """Return a DTensor of this process's part."""
        placed = [Replicate() if split is None else Shard(split)]
        shape = torch.Size((self.size, self.size))
        return DTensor.from_local(x, self.mesh, placed, run_check=False, shape=shape, stride=(self.size, 1))


def cuts(size: int, count: int) -> Cuts:
    """Return the ranges of a square product."""
    return Cuts(*[chunks(size, count)] * 3)


Contender = Callable[[], Any]


def contenders(arena: Arena) -> dict[str, Contender]:
    """Return what is timed for a case, by name; what cannot run raises when it is called."""
    found = {"harness": _harness(arena)}
    if arena.precision != "ieee":
        return found
    found["torch DTensor"] = _dtensor(arena)
    if arena.splits == CASES["gather-a"]:
        found |= {"all_gather + mm": _gathered_a(arena), "fused_all_gather_matmul": _fused_gather(arena)}
    elif arena.splits == CASES["gather-b"]:
        found["all_gather + mm"] = _gathered_b(arena)
    elif arena.splits == CASES["scatter"]:
        found |= {
            "mm + reduce_scatter": _scattered(arena),
            "fused_matmul_reduce_scatter": _fused_scatter(arena),
        }
    elif arena.splits == CASES["reduce"]:
        found["mm + all_reduce"] = _reduced(arena)
    return found


def _harness(arena: Arena) -> Contender:
    a, b, c = (arena.tensor(x, s) for x, s in zip((arena.a, arena.b, arena.c), arena.splits, strict=True))
    return lambda: sharded.matmul(a, b, c, precision=arena.precision).to_local()


def _dtensor(arena: Arena) -> Contender:
    a, b = arena.tensor(arena.a, arena.splits.a), arena.tensor(arena.b, arena.splits.b)
    placed = [Replicate() if arena.splits.c is None else Shard(arena.splits.c)]
    return lambda: (a @ b).redistribute(placements=placed).to_local()


def _gathered_a(arena: Arena) -> Contender:
    whole = arena.a.new_empty(arena.size, arena.size)

    def call() -> Any:
        dist.all_gather_into_tensor(whole, arena.a)
        return torch.mm(whole, arena.b, out=arena.c)

    return call


def _gathered_b(arena: Arena) -> Contender:
    whole = arena.b.new_empty(arena.size, arena.size)

    def call() -> Any:
        dist.all_gather_into_tensor(whole, arena.b)
        return torch.mm(arena.a, whole, out=arena.c)

    return call


def _scattered(arena: Arena) -> Contender:
    partial = arena.a.new_empty(arena.size, arena.size)

    def call() -> Any:
        torch.mm(arena.a, arena.b, out=partial)
        dist.reduce_scatter_tensor(arena.c, partial)
        return arena.c

    return call


def _reduced(arena: Arena) -> Contender:
    def call() -> Any:
        torch.mm(arena.a, arena.b, out=arena.c)
        dist.all_reduce(arena.c)
        return arena.c

    return call


def _fused_gather(arena: Arena) -> Contender:
    name = dist.group.WORLD.group_name

    def call() -> Any:
        _symmetric()
        return torch.ops.symm_mem.fused_all_gather_matmul(arena.a, [arena.b], 0, name)[1][0]

    return call


def _fused_scatter(arena: Arena) -> Contender:
    name = dist.group.WORLD.group_name

    def call() -> Any:
        _symmetric()
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(arena.a, arena.b, "sum", 0, name)

    return call


def _symmetric() -> None:
    """Register ``torch.ops.symm_mem``, which an import does."""


def alone(arena: Arena) -> dict[str, Contender]:
    """Return products on each GPU by itself: as much as its part, and all of C, by harness and by cuBLAS."""
    part = -(-arena.size // arena.count)
    options = {"device": arena.a.device, "dtype": arena.a.dtype}
    a, b = (torch.randn(arena.size, arena.size, **options) for _ in range(2))
    c = torch.empty_like(a)
    found: dict[str, Contender] = {}
    for name, rows in (("part", part), ("whole", arena.size)):
        left, out = a[:rows], c[:rows]
        found[f"harness, {name}"] = lambda x=left, y=out: multiply(x, b, y, 1.0, 0.0, arena.precision)
        if arena.precision == "ieee":
            found[f"torch.mm, {name}"] = lambda x=left, y=out: torch.mm(x, b, out=y)
    return found


def lists(arenas: Sequence[Arena]) -> Callable[[], list[Any]]:
    """Return the product by one process on all GPUs, whose shards are those of the arenas."""
    a, b, c = ([getattr(arena, name) for arena in arenas] for name in "abc")
    options = {"split": arenas[0].splits, "precision": arenas[0].precision}
    return lambda: sharded.matmul_lists(a, b, c, **options)


# Verification


def sampled(arena: Arena, group: Any, seed: int) -> tuple[list[int], Any]:
    """Return some rows of C, and what they are in float64, computed from all shards."""
    rows = torch.randint(arena.size, (SAMPLED,), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = sorted({0, arena.size - 1, *rows})
    left = together(here(arena.a, arena.blocks[0], rows, arena.size), arena.splits.a, group)
    block = arena.blocks[1]
    right = torch.zeros(len(rows), arena.size, dtype=torch.float64)
    step = max(1, 2**27 // max(1, block.shape[1]))  # rows of B at a time: a gigabyte in float64
    for start in range(*block.rows, step):
        end = min(block.rows[1], start + step)
        part = arena.b[start - block.rows[0] : end - block.rows[0]].double()
        right[:, slice(*block.columns)] += (left[:, start:end].to(part.device) @ part).cpu()
    return rows, together(right, arena.splits.b, group)


def here(x: Any, block: Block, rows: Sequence[int], size: int) -> Any:
    """Return rows of a matrix in float64, on the CPU, with zeros where they are not in this block."""
    found = torch.zeros(len(rows), size, dtype=torch.float64)
    for i, row in enumerate(rows):
        if block.rows[0] <= row < block.rows[1]:
            found[i, slice(*block.columns)] = x[row - block.rows[0]].double().cpu()
    return found


def together(rows: Any, split: int | None, group: Any) -> Any:
    """Return the sum over all processes, for a matrix that is split."""
    if split is not None:
        dist.all_reduce(rows, group=group)
    return rows


def error(arena: Arena, rows: Any, exact: Any) -> float:
    """Return the largest error of sampled rows over what is allowed: above 1 a result is wrong.

    A row may differ by what P + 1 roundings and a sum in float32 make of normal data; an element by ten times
    the row's root mean square of that.
    """
    unit = UNIT[arena.a.dtype] if arena.precision in ("ieee", "bf16x6", "fp16x3", "3xtf32") else 2.0**-11
    allowed = unit * (arena.count + 1) + 2 * UNIT[torch.float32] * arena.size**0.5
    apart = (rows - exact) / (allowed * exact.square().mean(1, keepdim=True).sqrt())
    if not bool(apart.isfinite().all()):
        return 1e30
    return max(float(apart.square().mean(1).sqrt().max()), float(apart.abs().max()) / 10)
