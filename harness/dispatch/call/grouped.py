"""`grouped_matmul`: multiply several pairs of matrices of any shapes, in as few launches as is fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.dispatch import arrays
from harness.dispatch.arrays import Matrix
from harness.dispatch.call import gpus, operands, options
from harness.dispatch.call.operands import Read
from harness.errors import UsageError


def grouped_matmul(
    a: Sequence[Any],
    b: Sequence[Any],
    out: Sequence[Any] | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = options.IEEE,
    stream: Any = None,
) -> list[Any]:
    """Queue ``out[i] = alpha * a[i] @ b[i] + beta * out[i]`` for all i, and return the list of results.

    Each ``a[i]`` is M x K, each ``b[i]`` K x N and each ``out[i]`` M x N, with sizes, pitches and orders of
    their own; all are of one type and on one GPU. What an array may be, what `alpha`, `beta`, `precision` and
    `stream` mean, how streams wait and what a graph captures is as for `harness.matmul`. The same array may
    be an operand of several products. No result may overlap another one or an operand.

    Small products share a launch, one for each of the orders that occur: row- or column-major `a` and `b`.
    Large ones, for which the cost model finds a kernel of their own faster, have a launch each. The same list
    of shapes, pitches and orders gives bitwise the same results, else as for `harness.matmul`; in other
    company a product may be added up in another order. A list that is none of the last 64 costs the host some
    10 ms for 64 products, and 45 for 256.

    Raises UsageError, which names the product, before anything is queued. Empty lists return an empty one;
    empty matrices are refused, as by `harness.matmul`: leave them out.
    """
    for name, given in (("a", a), ("b", b), ("out", out)):
        if not isinstance(given, (list, tuple)) and (name != "out" or given is not None):
            raise UsageError(f"{name} is {type(given).__name__}", hint="pass a list or a tuple of matrices")
    outs: Sequence[Any] = [None] * len(a) if out is None else out
    if not len(a) == len(b) == len(outs):
        raise UsageError(f"there are {len(a)} of a, {len(b)} of b and {len(outs)} of out")
    if not len(a):
        return []
    scalars = options.scalar("alpha", alpha), options.scalar("beta", beta)
    asked = None if stream is None else arrays.stream_address(stream)
    read: list[Read] = []
    for i, (x, y, z) in enumerate(zip(a, b, outs, strict=True)):
        on = read[0].stream if read else asked
        one = operands.read(x, y, z, stream=on, precision=precision, beta=scalars[1], at=f"[{i}]")
        _check(i, one, read[0] if read else one)
        read.append(one)
    _refuse_overlaps(read)
    options.check_stream(stream, read[0].left)
    ready = {matrix.ready for one in read for matrix in one[:3]}
    ordered = len(ready) == 1 and (stream is None or ready == {None})
    products = [
        (one.right.flipped, one.left.flipped, one.result.flipped) if one.result.transposed else one[:3]
        for one in read
    ]
    gpus.gpu(read[0].left.device).run_group(products, scalars, read[0].stream, ordered, read[0].dtype)
    return [one.out for one in read]


def _check(i: int, one: Read, first: Read) -> None:
    """Raise UsageError if product number `i` is a batch, or of another type or GPU than the first."""
    if one.leading:
        raise UsageError(
            f"a[{i}] or b[{i}] is a batch", hint="pass its matrices, or all of it to harness.matmul"
        )
    if one.left.dtype is not first.left.dtype:
        raise UsageError(f"a[{i}] is of {one.left.dtype.name}, a[0] of {first.left.dtype.name}")
    if one.result.dtype is not one.left.dtype:
        raise UsageError(f"out[{i}] is of {one.result.dtype.name}, a[{i}] of {one.left.dtype.name}")
    if one.left.device != first.left.device:
        raise UsageError(f"a[{i}] is on GPU {one.left.device}, a[0] on GPU {first.left.device}")


def _refuse_overlaps(read: Sequence[Read]) -> None:
    """Raise UsageError if a result shares an element with another one, or with an operand."""
    named: list[tuple[str, Matrix]] = []
    for i, one in enumerate(read):
        named += [(f"a[{i}]", one.left), (f"b[{i}]", one.right), (f"out[{i}]", one.result)]
    results: list[tuple[str, Matrix]] = []  # of those before, the ones that may reach to here
    inputs: list[tuple[str, Matrix]] = []
    for name, matrix in sorted(named, key=lambda x: x[1].address):
        written = name.startswith("out")
        results = [x for x in results if x[1].end > matrix.address]
        inputs = [x for x in inputs if x[1].end > matrix.address]
        for other, before in (*results, *inputs) if written else results:
            if matrix.overlaps(before):
                first, second = (name, other) if written else (other, name)
                raise UsageError(
                    f"{first} overlaps {second}", hint="no product is made in place: pass another"
                )
        (results if written else inputs).append((name, matrix))
