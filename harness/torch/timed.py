"""Time a product by harness and by PyTorch: what `harness.torch.replace(measure=True)` decides by.

Both take turns on the call's own operands, in a stream of their own that waits for the call's, as the
candidates of `harness.dispatch.measured` do. Weights that a model uses once a step come from memory, not from
the L2 cache, so operands are copied until all sets of them together are twice as large as the cache, or as
many as launches between two events.

The launches are queued behind a kernel that spins, so that the host's time does not count. It ends by itself:
PyTorch may allocate and free memory meanwhile, which waits for the GPU, and so would never end behind a
`harness.driver.Gate`.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.dispatch.call import gpus
from harness.dispatch.measured import MOST_LAUNCHES, in_turn
from harness.driver import Stream, outside_captures
from harness.torch.records import MOST

Tensors = Sequence[Any]  # what is multiplied, and what is added; None for what there is not
Product = Callable[..., object]  # of tensors

_LARGE = 2  # sets of operands together, in sizes of the L2 cache
_ALIGNED = 256  # bytes, as far as cuBLAS looks: copies begin as far from a multiple of these as the original
_HOLD, _MOST_HOLD = 0.0005, 0.02  # seconds for which the GPU spins: at first, and at most
_known: dict[Any, bool] = {}  # what was found in this process
_locks: dict[int, threading.RLock] = defaultdict(threading.RLock)  # of a GPU: its times are not mixed


def found(key: Any) -> bool | None:
    """Return what `faster` has found for a key in this process, or None."""
    return _known.get(key)


def faster(key: Any, tensors: Tensors, ours: Product, theirs: Product) -> bool:
    """Return True if `ours` takes less time on the GPU than `theirs`, and keep that for the `key`.

    Both are called with `tensors`, or with copies of them. The current stream must not be captured. Raises
    what they raise.
    """
    with _locks[_device(tensors)]:
        if key not in _known:
            if len(_known) >= MOST:
                _known.clear()
            mine, other = seconds(tensors, (ours, theirs))
            _known[key] = mine < other
        return _known[key]


def seconds(tensors: Tensors, products: Sequence[Product]) -> list[float]:
    """Return the median seconds that each product of the tensors takes on the GPU."""
    device = _device(tensors)
    about = gpus.gpu(device).device
    with torch.cuda.device(device):
        _, side = _stream(device)
        side.wait_stream(torch.cuda.current_stream())
        with outside_captures(), torch.cuda.stream(side):  # other streams may be captured now
            try:
                for product in products:
                    product(*tensors)  # loads the code and makes its workspace, before memory is taken
                sets = copies(tensors, _LARGE * about.l2_bytes)
                for product in products:
                    product(*sets[-1])
                runs = {i: _Run(product, sets, about.clock_hz) for i, product in enumerate(products)}
                times = in_turn(runs, _Run.seconds)
            finally:  # nothing reads the tensors after this, which belong to another stream
                side.synchronize()
    return [times[place] for place in range(len(products))]


def _device(tensors: Tensors) -> Any:
    """Return the number of the GPU that tensors are on."""
    return next(x.device.index for x in tensors if x is not None)


class _Run:
    """A product of sets of tensors in turn, in the current stream."""

    def __init__(self, product: Product, sets: Sequence[Tensors], clock_hz: float) -> None:
        self._product, self._sets, self._clock_hz = product, itertools.cycle(sets), clock_hz
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._hold = _HOLD

    def seconds(self, count: int) -> float:
        """Return the seconds of one of `count` launches back to back."""
        while True:
            torch.cuda._sleep(round(self._hold * self._clock_hz))
            self._start.record()
            for _ in range(count):
                self._product(*next(self._sets))
            self._end.record()
            begun = self._start.query()  # before all was queued: the GPU may have waited for the host
            self._end.synchronize()
            if not begun or self._hold >= _MOST_HOLD:
                return float(self._start.elapsed_time(self._end)) * 1e-3 / count
            self._hold *= 4


@functools.cache
def _stream(device: int) -> tuple[Stream, Any]:
    """Return one stream for all timing on a GPU, and PyTorch's view of it.

    PyTorch and harness keep a workspace for each stream. PyTorch's own streams are a few that it hands out
    again and again: another thread may capture one.
    """
    own = Stream(gpus.gpu(device).context)
    return own, torch.cuda.ExternalStream(int(own.handle), device=torch.device("cuda", device))


def copies(tensors: Tensors, size: int) -> list[Tensors]:
    """Return the tensors, and copies of them until all sets together have `size` bytes.

    There are at most as many sets as launches between two events. Where there is no memory for all, there
    are none but the first: a product needs memory, too.
    """
    each = sum(_extent(x) * x.element_size() for x in tensors if x is not None)
    made = [tensors]
    try:
        while len(made) < min(math.ceil(size / each), MOST_LAUNCHES):
            made.append([None if x is None else alike(x, fill=True) for x in tensors])
    except torch.OutOfMemoryError:
        return [tensors]
    return made


def alike(x: Any, *, fill: bool) -> Any:
    """Return a tensor with the strides of another one, as far from a multiple of `_ALIGNED` bytes.

    If `fill`, it has its elements, too.
    """
    extent, size = _extent(x), x.element_size()
    memory = x.new_empty(extent + _ALIGNED // size)
    first = (x.data_ptr() - memory.data_ptr()) % _ALIGNED // size
    if fill:
        memory[first : first + extent].copy_(torch.as_strided(x, (extent,), (1,)))
    return torch.as_strided(memory, x.shape, x.stride(), first)


def _extent(x: Any) -> int:
    """Return how many elements there are in memory from the first of a tensor to its last."""
    return 1 + sum(int((size - 1) * step) for size, step in zip(x.shape, x.stride(), strict=True))
