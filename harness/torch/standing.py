"""Products of the registered operators that were called before: queued again with little done anew.

The table of known.cpp launches them, from the second or third call on: its kernels lie before the operators'
own, at the backend's dispatch key and at autograd's. What it does not know, Python queues: the first calls of
a product, in a stream and in an alignment for which the table has none, and all where it cannot be compiled.
With a gradient asked for the operators' formulas are called, which Python has.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Protocol

from harness.dispatch.prepared import GemmImage
from harness.errors import HarnessError
from harness.torch import known
from harness.torch.known import Known

KEY = "CUDA"  # the dispatch key of the tensors' backend
OPERATORS = ("mm", "matmul", "addmm", "linear")
_MOST = 4096  # products kept; beyond that all are dropped, and checked again
_TRIES = 64  # a product is offered once for each stream and alignment, or is never known: of several launches
_lock = threading.Lock()


class Repeat(Protocol):
    """Queues a product again, of tensors that lie alike; see `products.again`."""

    def __call__(self, a: Any, b: Any, out: Any, bias: Any) -> None:
        """Queue it."""

    def image(self, a: Any, b: Any, out: Any, bias: Any) -> GemmImage | None:
        """Return its launch for callers in C."""


class Kept:
    """Queues a product again, and offers it to the table while this thread is asked by it."""

    def __init__(self, repeat: Repeat) -> None:
        self._repeat, self._tries = repeat, _TRIES

    def __call__(self, a: Any, b: Any, out: Any, bias: Any) -> Any:
        """Write the product to `out`, and return it."""
        self._repeat(a, b, out, bias)
        if self._tries > 0:
            self.offer(a, b, out, bias)
        return out

    def offer(self, a: Any, b: Any, out: Any, bias: Any) -> None:
        """Keep the launch of the product in the table, if it is one that was just queued."""
        self._tries -= 1
        if (found := table()) is None:
            self._tries = 0
            return
        keep = found.launch(functools.partial(self._repeat.image, a, b, out, bias))
        if keep is not None and keep() == known.FULL:
            found.drain(forget=True)
            keep()


@functools.cache
def _opened() -> Known | None:
    driver = known.functions()
    made = None if driver is None else known.loaded()[0]
    if made is None:
        return None
    found = made.standing()
    found.open(_MOST, False, driver)
    try:
        for name in OPERATORS:
            for key in (KEY, f"Autograd{KEY}"):
                found.hold(f"harness::{name}", "", key)
                found.put(f"harness::{name}", "")
    except HarnessError:  # a PyTorch whose dispatcher is another one
        found.close()
        return None
    return found


def table() -> Known | None:
    """Return the operators' table with its kernels in place, or None where nothing can be launched by it.

    The first call on a machine compiles it, which takes some seconds.
    """
    with _lock:
        return _opened()


_kept: dict[Any, Kept] = {}


def key(*asked: Any, of: tuple[Any, ...]) -> Any:
    """Return all that a product of tensors depends on but their addresses; None if one cannot tell."""
    try:
        for x in of:
            asked = *asked, x.dtype, x.device, x.shape, x.stride()
    except RuntimeError:  # a sparse tensor has no strides
        return None
    return asked


def find(key: Any) -> Kept | None:
    """Return what queues the product of a key again, if it is kept."""
    return _kept.get(key)


def keep(key: Any, repeat: Repeat | None) -> Kept | None:
    """Keep what queues the product of a key again, if there is something that does, and return it."""
    if key is None or repeat is None:
        return None
    if len(_kept) >= _MOST:
        _kept.clear()
    return _kept.setdefault(key, Kept(repeat))
