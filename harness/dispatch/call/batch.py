"""Batches of products: how many matrices there are, how far apart, and what of it is one product.

Operands with more than two dimensions are batches of matrices, broadcast as ``numpy.matmul`` does. The
leading dimensions must merge into one, so that the matrices of each operand are evenly apart: a `Batch`. A
kernel with ``cu/include/batch.cuh`` computes it in one launch. If one operand is the same for all products,
and the matrices of the other lie one below the other (or side by side), the batch is a single product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from harness.dispatch import choose
from harness.dispatch.arrays import Matrix
from harness.dispatch.model import cost
from harness.dispatch.model.cost import NN, Candidate
from harness.dispatch.model.traffic import ALIGNED, DRAM_BYTES, Pitches, unread
from harness.driver import Stream
from harness.errors import UsageError
from harness.kernels.dtypes import FP32
from harness.kernels.epilogue import COLUMNS, PLAIN, ROWS, Epilogue
from harness.kernels.spec import Kernel, Variant
from harness.problems.gemm import Gemm

Launch = Callable[[Sequence[int], tuple[float, float], Stream], None]  # of addresses, alpha and beta
_MARK = "BATCH_PARAMETERS"  # in the source of a kernel that can take a batch
_INT_MAX = 2**31 - 1


class Batch(NamedTuple):
    """So many products, with the elements from one matrix of A, B and C to the next."""

    size: int
    a: int
    b: int
    c: int

    def steps(self, epilogue: Epilogue) -> tuple[int, int, int, int]:
        """Return the elements from one matrix to the next, of A, B, C and what the epilogue reads."""
        return self.a, self.b, self.c, self.c if epilogue.derivative else 0  # a bias is the same for all

    @property
    def flipped(self) -> Batch:
        """The batch of the transposed products."""
        return self._replace(a=self.b, b=self.a)

    def joined(
        self, left: Matrix, right: Matrix, out: Matrix, bias: int, wide: bool = True
    ) -> tuple[Matrix, Matrix, Matrix] | None:
        """Return the matrices of the single product that is all of the batch, or None if there is none.

        `bias` is `ROWS`, `COLUMNS` or 0, as of an `Epilogue`: one that repeats is none of a single product.
        Unless `wide`, products may lie one below the other only: side by side they would have other columns.
        """
        if self.b == 0 and bias != ROWS:
            tall, result = _stacked(left, self.size, self.a), _stacked(out, self.size, self.c)
            if tall is not None and result is not None:
                return tall, right, result
        if wide and self.a == 0 and bias != COLUMNS:
            broad, result = (_stacked(m.flipped, self.size, s) for m, s in ((right, self.b), (out, self.c)))
            if broad is not None and result is not None:
                return left, broad.flipped, result.flipped
        return None


def leading(left: Matrix, right: Matrix) -> tuple[int, ...]:
    """Return the leading dimensions of the result. Raises UsageError if those of the operands differ."""
    dims = max(len(left.leading), len(right.leading))
    pairs = zip(*((1,) * (dims - len(m.leading)) + m.leading for m in (left, right)), strict=True)
    found = []
    for x, y in pairs:
        if x != y and 1 not in (x, y):
            shapes = f"a has {left.leading} matrices and b {right.leading}"
            raise UsageError(shapes, hint="these must be equal, 1 or missing, as for numpy.matmul")
        found.append(max(x, y))
    return tuple(found)


def of(left: Matrix, right: Matrix, out: Matrix) -> Batch | None:
    """Return the batch of a call's operands, of which `out` has all dimensions; None for a single product.

    Raises UsageError if the dimensions do not merge, and if matrices of `out` overlap.
    """
    count, steps = 1, (0, 0, 0)
    each = (_steps(m, len(out.leading)) for m in (left, right, out))
    for size, *step in reversed(list(zip(out.leading, *each, strict=True))):
        if size == 1:
            continue
        if count == 1:
            count, steps = size, (step[0], step[1], step[2])
        elif tuple(step) == tuple(count * x for x in steps):
            count *= size
        else:
            what = f"the {' x '.join(map(str, out.leading))} matrices of a, b and out are not evenly apart"
            hint = "copy what is not contiguous, or multiply for one index of the first dimension at a time"
            raise UsageError(what, hint=hint)
    batch = Batch(count, *steps)
    if count > 1 and not _apart(out, count, batch.c):
        raise UsageError("out's matrices overlap", hint="each product needs memory of its own: pass another")
    return batch if count > 1 else None


def whole(batch: Batch | None, operands: tuple[Matrix, ...], epilogue: Epilogue) -> tuple[Matrix, ...]:
    """Return matrices that contain all of a, b, out and, if it is there, what the `epilogue` reads."""
    if batch is None:
        return operands
    steps = batch.steps(epilogue)  # of a bias, which is the same for all, 0
    return tuple(_hull(m, batch.size, step) for m, step in zip(operands, steps, strict=False))


def refuse_overlaps(whole: tuple[Matrix, ...], epilogue: Epilogue) -> None:
    """Raise UsageError if the result may overlap an operand; the matrices are those of `whole`."""
    left, right, out, *read = whole
    names = "a", "b", "derivative_at" if epilogue.derivative else "bias"
    for name, matrix in zip(names, (left, right, *read), strict=False):
        if out.overlaps(matrix):
            raise UsageError(f"out overlaps {name}", hint="no product is made in place: pass another")


def _steps(matrix: Matrix, dims: int) -> tuple[int, ...]:
    """Return the elements from matrix to matrix along each of so many dimensions: 0 where it repeats."""
    own = zip(matrix.leading, matrix.steps, strict=True)
    return (0,) * (dims - len(matrix.leading)) + tuple(step if size > 1 else 0 for size, step in own)


def _stacked(matrix: Matrix, count: int, step: int) -> Matrix | None:
    """Return matrices `step` elements apart, one below the other, as one; None if they do not lie so."""
    rows, ld = matrix.rows * count, matrix.ld
    if rows > _INT_MAX:
        return None
    if matrix.rows == 1 and (ld == 1 or not matrix.transposed):  # a row of neighbours
        fits = matrix.columns <= step <= _INT_MAX
        return matrix._replace(rows=rows, ld=step, transposed=False) if fits else None
    if matrix.transposed:
        return matrix._replace(rows=rows) if step == matrix.rows and rows <= ld else None
    return matrix._replace(rows=rows) if step == matrix.rows * ld else None


def _extent(matrix: Matrix) -> int:
    """Return the elements from the first of a matrix to the last."""
    rows, columns = matrix.stored
    return (rows - 1) * matrix.ld + columns


def _apart(matrix: Matrix, count: int, step: int) -> bool:
    """Return True if matrices so far apart surely share no element: they follow or interleave."""
    columns, step = matrix.stored[1], abs(step)
    return step >= _extent(matrix) or (step >= columns and (count - 1) * step + columns <= matrix.ld)


def _hull(matrix: Matrix, count: int, step: int) -> Matrix:
    """Return a row-major matrix that contains all of a batch, with as little else as is easy to say."""
    rows, columns = matrix.stored
    ld = matrix.ld if rows > 1 else max(matrix.ld, step)
    flat, wide = matrix._replace(transposed=False, ld=ld), (count - 1) * step + columns
    if step >= 0 and wide <= ld:  # interleaved
        return flat._replace(rows=rows, columns=wide)
    if step >= 0 and step % ld == 0:
        return flat._replace(rows=step // ld * (count - 1) + rows, columns=columns)
    span = abs(step) * (count - 1) + _extent(matrix)
    first = matrix.address + min(0, step) * (count - 1) * matrix.dtype.itemsize
    return flat._replace(address=first, rows=1, columns=span, ld=span)


class OneByOne:
    """A launch for each product of a batch: ``launch(addresses, scalars, stream)``.

    `product` queues one of them at its addresses. `problem` is one of them.
    """

    def __init__(self, batch: Batch, problem: Gemm, product: Launch) -> None:
        size, stored = problem.dtype.itemsize, problem.stored.itemsize
        steps = zip(batch.steps(problem.epilogue), (size, size, stored, stored), strict=True)
        self._size, self._steps = batch.size, [step * size for step, size in steps]
        self._product = product

    def __call__(self, addresses: Sequence[int], scalars: tuple[float, float], stream: Stream) -> None:
        moving = list(zip(addresses, self._steps, strict=False))
        for i in range(self._size):
            self._product([address + i * step for address, step in moving], scalars, stream)


def takes(kernel: Kernel) -> bool:
    """Return True if the kernel can be compiled for a batch."""
    return _MARK in kernel.source


def compiled(variant: Variant) -> Variant:
    """Return the variant compiled for a batch."""
    return replace(variant, params={**variant.params, "BATCHED": 1})


class Fastest(NamedTuple):
    """How a batch is computed: by the variant in one launch or, if it is None, by a launch for each product.

    `cycles` are by the cost model, with the starts of all launches.
    """

    variant: Variant | None
    cycles: float


@functools.lru_cache(maxsize=4096)
def fastest(
    count: int,
    M: int,
    N: int,
    K: int,
    *,
    sms: int,
    arch: str,
    dtype: str = FP32.name,
    layout: str = NN,
    pitches: Pitches = ALIGNED,
    epilogue: Epilogue = PLAIN,
    invariant: str = "",
    dram: float = DRAM_BYTES,
) -> Fastest:
    """Return how `count` products are computed the fastest by the cost model.

    Arguments are those of `choose.choose`. Without any kernel for them the cycles are infinite.
    """
    shape = M, N, K, sms
    all_of_them = choose.able(*shape, arch, dtype, layout, epilogue, invariant, dram, uneven=pitches.uneven)
    alone = cost.ranked(all_of_them, shape, layout=layout, pitches=pitches)
    single = count * alone[0][1] if alone else math.inf
    once = [replace(c, batch=count) for c in all_of_them]
    best = ranked(once, shape, layout=layout, pitches=pitches)
    if best and best[0][1] < single:
        return Fastest(compiled(best[0][0].variant), best[0][1])
    return Fastest(None, single)


def ranked(
    candidates: Sequence[Candidate],
    shape: tuple[int, int, int, int],
    *,
    layout: str,
    pitches: Pitches,
) -> list[tuple[Candidate, float]]:
    """Return those of the candidates for a batch that compute it in one launch, with their cycles.

    The fastest is the first. `shape` is M, N, K and the number of SMs; the rest is as of `choose.choose`.
    """
    M, N, *_ = shape
    able = [c for c in candidates if takes(c.variant.kernel) and c.count(M, N) < 2**31]
    # Batches are copied nowhere: what a kernel of boxes cannot read as it lies is for the others.
    able = [c for c in able if not (c.variant.boxes and (pitches.unmapped or unread(c.variant, layout)))]
    return cost.ranked(able, shape, layout=layout, pitches=pitches)
