"""Time a product by harness and by PyTorch: what `harness.torch.replace(measure=True)` decides by.

Both take turns on the call's own operands, in a stream of their own that waits for the call's, as the
candidates of `harness.dispatch.measured` do. Weights that a model uses once a step come from memory, not from
the L2 cache, so operands are copied until all sets of them together are larger than the cache.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.dispatch.call import gpus
from harness.dispatch.measured import MOST_LAUNCHES, in_turn
from harness.driver import BorrowedStream, outside_captures
from harness.torch.records import MOST

Tensors = Sequence[Any]  # what is multiplied, and what is added; None for what there is not
Product = Callable[..., object]  # of tensors

_LARGE = 2  # sets of operands together, in sizes of the L2 cache
_ALIGNED = 16  # bytes: copies begin as far from a multiple of these as what they are copies of
_known: dict[Any, bool] = {}  # what was found in this process
_lock = threading.Lock()


def faster(key: Any, tensors: Tensors, ours: Product, theirs: Product) -> bool:
    """Return True if `ours` takes less time on the GPU than `theirs`; it is measured once for each `key`.

    Both are called with `tensors`, or with copies of them, and return a new tensor. The current stream must
    not be captured. Raises what `ours` raises.
    """
    with _lock:
        if key not in _known:
            if len(_known) >= MOST:
                _known.clear()
            mine, other = seconds(tensors, (ours, theirs))
            _known[key] = mine < other
        return _known[key]


def seconds(tensors: Tensors, products: Sequence[Product]) -> list[float]:
    """Return the median seconds that each product of the tensors takes on the GPU."""
    device = next(x.device.index for x in tensors if x is not None)
    context, side = gpus.gpu(device).context, _stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with outside_captures(), torch.cuda.stream(side):  # other streams may be captured now
        try:
            sets = copies(tensors, _LARGE * context.device.l2_bytes)
            runs: dict[int, Callable[[object], object]] = {}
            for place, product in enumerate(products):
                product(*tensors)  # loads the code and makes its workspace, which nothing held may do
                runs[place] = functools.partial(_next, product, itertools.cycle(sets))
            side.synchronize()
            with context.current(), BorrowedStream(context, side.cuda_stream) as stream:
                found = in_turn(runs, context, stream)
        finally:  # nothing reads the tensors after this, which belong to another stream
            side.synchronize()
    return [found[place] for place in range(len(products))]


def _next(product: Product, sets: Any, stream: object) -> None:
    product(*next(sets))


@functools.cache
def _stream(device: int) -> Any:
    """Return one stream for all timing on a GPU: PyTorch and harness keep a workspace for each stream."""
    return torch.cuda.Stream(device)


def copies(tensors: Tensors, size: int) -> list[Tensors]:
    """Return the tensors, and copies of them until all sets together have `size` bytes.

    There are at most as many sets as launches between two events. Copies have the strides of what they are
    copies of. Where there is no memory for more, there are fewer.
    """
    each = sum(_extent(x) * x.element_size() for x in tensors if x is not None)
    made = [tensors]
    try:
        while len(made) < min(math.ceil(size / each), MOST_LAUNCHES):
            made.append([None if x is None else _copy(x) for x in tensors])
    except torch.OutOfMemoryError:
        pass
    return made


def _copy(x: Any) -> Any:
    """Return a copy with the strides of a tensor, as far from a multiple of `_ALIGNED` bytes."""
    first = x.data_ptr() % _ALIGNED // x.element_size()
    memory = x.new_empty(first + _extent(x))
    memory[first:].copy_(torch.as_strided(x, (_extent(x),), (1,)))
    return torch.as_strided(memory, x.shape, x.stride(), first)


def _extent(x: Any) -> int:
    """Return how many elements there are in memory from the first of a tensor to its last."""
    return 1 + sum(int((size - 1) * step) for size, step in zip(x.shape, x.stride(), strict=True))
