"""Groups: products of different shapes in one launch, whose blocks find theirs in a table.

A kernel with ``cu/include/batch.cuh`` takes the table by value, as a parameter, so that a launch copies
nothing to the GPU and a captured graph keeps its own. The tiles of all products lie one after the other along
the grid's x. As many blocks share a tile as fill the GPU, the same number for all.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.dispatch import choose
from harness.dispatch.model import traffic
from harness.dispatch.model.cost import Candidate
from harness.dispatch.model.traffic import Pitches
from harness.dispatch.workspaces import Need, Workspaces
from harness.driver import Function, Stream, Struct
from harness.kernels.spec import Kernel, Variant
from harness.problems.gemm import Gemm

_MARK = "TAKE_PRODUCT"  # in the source of a kernel that can take a group
_SIZES = (16, 64, 256)  # the most products of a launch, of which each has a kernel
_FIELDS = ("M", "N", "K", "lda", "ldb", "ldc")
_PRODUCT = np.dtype([(name, "u8") for name in "ABC"] + [(name, "i4") for name in _FIELDS])  # a Product
ALIGN = 8
_SCALARS = 9  # the index of alpha among a product's arguments


class Group(NamedTuple):
    """What shares a launch: the variant, compiled for a group, and which of the products."""

    variant: Variant
    members: tuple[int, ...]


def takes(kernel: Kernel) -> bool:
    """Return True if the kernel can be compiled for a group."""
    return _MARK in kernel.source


def compiled(variant: Variant, count: int) -> Variant:
    """Return the variant compiled for a group of so many products."""
    size = next(size for size in _SIZES if count <= size)
    return replace(variant, params={**variant.params, "GROUPED": size})


def grouped(
    problems: Sequence[Gemm], *, sms: int, arch: str, dram: float = traffic.DRAM_BYTES
) -> tuple[Group, ...]:
    """Return the launches that several products of one type and layout share; the others have their own.

    By the cost model: a product shares a launch if its part of that takes no longer than a launch of the
    kernel that is the fastest for it alone, and all that do must take less than one by one.
    """
    first = problems[0]
    kind: Any = {"dtype": first.dtype.name, "layout": first.layout, "dram": dram}
    alone = [_alone(_up(p.M), _up(p.N), p.K, sms, arch, **kind, pitches=_pitches([p])) for p in problems]
    best, members, least = None, list[int](), sum(alone)
    shape = max(p.M for p in problems), max(p.N for p in problems), first.K
    uneven = _pitches(problems).uneven
    able = choose.able(
        *shape, sms, arch, first.dtype.name, first.layout, first.epilogue, "", dram, uneven=uneven
    )
    for c in able:
        if not takes(c.variant.kernel):
            continue
        together = [i for i, p in enumerate(problems) if _part(c, p, sms) <= alone[i]]
        if len(together) < 2:
            continue
        total = cycles(c, [problems[i] for i in together], sms)
        total += sum(alone) - sum(alone[i] for i in together)
        if total < least:
            best, members, least = c.variant, together, total
    if best is None:
        return ()
    members.sort(key=lambda i: -problems[i].K)  # what takes the longest begins first
    parts = [tuple(members[i : i + _SIZES[-1]]) for i in range(0, len(members), _SIZES[-1])]
    return tuple(Group(compiled(best, len(part)), part) for part in parts)


@functools.lru_cache(maxsize=4096)
def _alone(M: int, N: int, K: int, sms: int, arch: str, **about: Any) -> float:
    """Return the cycles of the fastest kernel for one product."""
    ranked = choose.ranked(M, N, K, sms=sms, arch=arch, **about)
    return ranked[0][1] if ranked else math.inf


def _up(size: int) -> int:
    """Return the multiple of 16 from a size on: no kernel has smaller tiles, and more calls find the same."""
    return -(-size // 16) * 16


def _pitches(problems: Sequence[Gemm]) -> Pitches:
    """Return where rows of any of the products begin."""
    unmapped = {x for p in problems for x in p.without_maps()}
    straddled = {x for p in problems for x in p.straddles()}
    return Pitches(straddled="".join(sorted(straddled)), unmapped="".join(sorted(unmapped)))


def _part(c: Candidate, problem: Gemm, sms: int) -> float:
    """Return what a product adds to the cycles of a launch that fills the GPU."""
    steps = math.ceil(math.ceil(problem.K / c.split) / c.depth) * c.split
    busy = c.count(problem.M, problem.N) * (steps * c.step + c.tile) / sms
    return c.together(busy, traffic.compulsory(problem.M, problem.N, problem.K, c.dtype, sms, c.dram))


def cycles(c: Candidate, problems: Sequence[Gemm], sms: int) -> float:
    """Return the cycles of products in one launch: of as many tiles with their mean k, or of the longest."""
    tiles = [c.count(p.M, p.N) for p in problems]
    mean = math.ceil(sum(n * p.K for n, p in zip(tiles, problems, strict=True)) / sum(tiles))
    known = _pitches(problems)
    rows, columns = c.variant.tile

    def busy(count: int, K: int) -> float:
        return c.busy(rows * count, columns, K, sms, known.across, bool(known.unmapped))

    longest = max(p.K for p in problems)
    busiest = max(busy(sum(tiles), mean), busy(max(1, sum(tiles) // len(tiles)), longest))
    waiting = sum(traffic.compulsory(p.M, p.N, p.K, c.dtype, sms, c.dram) for p in problems)
    return c.start + c.together(busiest, waiting)


def _tiles(variant: Variant, problem: Gemm) -> int:
    rows, columns = variant.tile
    return math.ceil(problem.M / rows) * math.ceil(problem.N / columns)


def extents(variant: Variant, problems: Sequence[Gemm], *, sms: int) -> tuple[tuple[int, int, int], int]:
    """Return the grid of a group, and the bytes of its workspace."""
    tiles = sum(_tiles(variant, p) for p in problems), 1, 1
    sizes = {"M": problems[0].M, "N": problems[0].N, "K": max(p.K for p in problems)}
    return variant.grid(tiles, sms, sizes), variant.workspace(tiles, sms, sizes)


def entries(variant: Variant, problems: Sequence[Gemm]) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Return a group's table: its products, whose addresses are 0, and the first tile of each."""
    size = variant.params["GROUPED"]
    table, first = np.zeros(size, _PRODUCT), np.full(size, 2**32 - 1, np.uint32)  # no block is that tile
    for name in _FIELDS:
        table[name][: len(problems)] = [getattr(p, name) for p in problems]
    tiles = [_tiles(variant, p) for p in problems]
    first[: len(problems)] = np.cumsum([0, *tiles[:-1]])
    return table, first


class GroupLaunch:
    """The launch of a group: ``launch(addresses, scalars, stream)``, with the addresses of each product.

    Calls share the packed parameters, so a lock lets one thread at a time write and launch them.
    """

    def __init__(
        self,
        function: Function,
        variant: Variant,
        problems: Sequence[Gemm],
        *,
        sms: int,
        workspaces: Workspaces,
    ) -> None:
        grid, memory = extents(variant, problems, sms=sms)
        table, first = entries(variant, problems)
        given = [np.uint64(0) if isinstance(x, str) else x for x in problems[0].arguments()]
        self._needs = [Need(user=variant.label, size=memory, zeroed=True)] if memory else []
        self._prepared = function.prepare(
            grid,
            variant.block,
            [*given, Struct(table.tobytes() + first.tobytes(), ALIGN), np.uint64(0)],
            shared=variant.shared,
            programmatic=variant.programmatic,
        )
        bytes_of = self._prepared.argument(len(given), ctypes.c_char * (table.nbytes + first.nbytes))
        self._table: Any = np.frombuffer(memoryview(bytes_of), _PRODUCT, len(problems))
        self._scalars = [self._prepared.argument(_SCALARS + i, ctypes.c_float) for i in range(2)]
        self._own = self._prepared.argument(len(given) + 1, ctypes.c_uint64)
        self._workspaces, self._lock = workspaces, threading.Lock()

    def __call__(
        self, addresses: Sequence[Sequence[int]], scalars: tuple[float, float], stream: Stream
    ) -> None:
        with self._lock, self._workspaces.lent(self._needs, stream) as lent:
            for scalar, value in zip(self._scalars, scalars, strict=True):
                scalar.value = value
            for name, column in zip("ABC", zip(*addresses, strict=True), strict=True):
                self._table[name] = column
            if lent:
                self._own.value = lent[0]
            self._prepared(stream)
