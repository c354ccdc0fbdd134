"""Check the arguments of a sharded product, before anything is queued or sent.

An error that only one process finds leaves the others waiting for it; what all can see is therefore checked
on what all know: shapes, types and placements of the whole matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from harness.dispatch.call import options
from harness.errors import UsageError
from harness.torch import products
from harness.torch.sharded.schedule import Block
from harness.torch.sharded.share import Factors


def factors(dtype: Any, alpha: float, beta: float, precision: str, *, out: bool) -> Factors:
    """Return the scalars, checked; `out` is True if there is one for beta to multiply."""
    found = Factors(options.scalar("alpha", alpha), options.scalar("beta", beta), precision)
    if beta and not out:
        raise UsageError(f"beta={beta:g} without out", hint="out is what beta multiplies: pass out=")
    options.product_type(products.DTYPES[dtype], precision)
    return found


def alike(tensors: Mapping[str, Any]) -> None:
    """Raise UsageError unless all are matrices of one supported type, with no gradients to lose."""
    (first, one), *_ = tensors.items()
    for name, x in tensors.items():
        if x.dim() != 2:
            raise UsageError(f"{name} has {x.dim()} dimensions, not 2", hint="pass matrices")
        if x.dtype not in products.DTYPES:
            supported = ", ".join(str(dtype) for dtype in products.DTYPES)
            raise UsageError(f"{name} is of {x.dtype}, not of {supported}")
        if x.dtype is not one.dtype:
            raise UsageError(f"{first} is of {one.dtype}, {name} of {x.dtype}", hint="convert one of them")
        if x.requires_grad and torch.is_grad_enabled():
            hint = "sharded products have no gradients: pass x.detach(), or use torch.no_grad()"
            raise UsageError(f"{name} requires gradients, which would be lost", hint=hint)


def sizes(a: Sequence[int], b: Sequence[int], out: Sequence[int] | None) -> tuple[int, int, int]:
    """Return M, N and K of whole matrices of these shapes; raises UsageError if they do not fit."""
    (m, k), (rows, n) = a, b
    if k != rows:
        raise UsageError(f"a is {m} x {k} and b is {rows} x {n}: a's columns must be as many as b's rows")
    if out is not None and tuple(out) != (m, n):
        raise UsageError(f"out is {out[0]} x {out[1]}, not {m} x {n}")
    return m, n, k


def local(name: str, tensor: Any, block: Block, where: str, why: str) -> None:
    """Raise UsageError unless the tensor that a GPU has is as large as the block that it should be."""
    if tuple(tensor.shape) != block.shape:
        shapes = "{} x {}, not {} x {}".format(*tensor.shape, *block.shape)
        raise UsageError(f"{name} is {shapes}", where=where, hint=why)


def written(out: Any, operands: Mapping[str, Any], where: str) -> None:
    """Raise UsageError if a part of C cannot be written: in a layout of no kernel, or over an operand."""
    if products.layout(out) == products.COPIED:
        raise UsageError("out is neither row- nor column-major", where=where, hint="pass another, or none")
    for name, x in operands.items():
        if out.numel() and x.numel() and x.device == out.device and _overlap(out, x):
            raise UsageError(f"out overlaps {name}", where=where, hint="no product is made in place")


def column_major(tensor: Any) -> bool:
    """Return True if a matrix travels column-major, as it lies."""
    down, right = tensor.stride()
    return bool(down == 1 and right != 1)


def _overlap(x: Any, y: Any) -> bool:
    """Return True if two matrices share memory; of interleaved ones only those of one row length are told."""
    (first, end), (other, last) = _extent(x), _extent(y)
    if end <= other or last <= first:
        return False
    (lines, pitch), (width, step) = _lines(x), _lines(y)
    if step != pitch or (other - first) % x.element_size():
        return True
    shift = (other - first) // x.element_size() % pitch
    return bool(shift < lines or shift + width > pitch)


def _lines(x: Any) -> tuple[int, int]:
    """Return the length of the lines of a row- or column-major matrix, and their distance."""
    rows, columns = x.shape
    down, right = x.stride()
    return (rows, max(right, 1)) if products.layout(x) == "T" else (columns, max(down, 1))


def _extent(x: Any) -> tuple[int, int]:
    """Return the addresses of a matrix's first byte and behind its last one."""
    last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()
