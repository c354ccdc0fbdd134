"""Calls like earlier ones: where arrays lie as those of a call did, only addresses and the stream are read.

All that `harness.matmul` reads and checks of arrays, but addresses and streams, follows from what their
libraries' own attributes tell: type, shape, strides and GPU. These, with the options, are the key of a
`Call`. Arrays of other libraries than PyTorch, CuPy and harness have no key, and are read at each call.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from harness.dispatch import arrays
from harness.dispatch.arrays import Matrix
from harness.dispatch.call import gpus
from harness.dispatch.call.batch import Batch
from harness.dispatch.call.gpus import Gpu, Key, Kind
from harness.driver import DeviceArray, Stream

_MOST = 4096  # calls kept per GPU; beyond that all are dropped, and read again

Product = tuple[tuple[int, ...], Kind, Batch | None]  # as `Gpu.again` takes them


class Library(NamedTuple):
    """Read from an array what a call depends on, as one library tells it.

    `lies` is the ordinal of the GPU and all else that a product depends on but the `address`. `ready` is the
    stream on which the array is ready, and each other one of the library on this GPU that this thread may
    use; None for any stream.
    """

    lies: Callable[[Any], tuple[Any, ...]]
    address: Callable[[Any], int]
    ready: Callable[[Any, int], int | None]


def _of_torch(x: Any) -> tuple[Any, ...]:
    refused = x.requires_grad and sys.modules["torch"].is_grad_enabled()
    return x.get_device(), x.dtype, x.shape, x.stride(), x.is_cuda, refused


_TORCH = Library(_of_torch, operator.methodcaller("data_ptr"), lambda x, device: arrays.torch_stream(device))
_CUPY = Library(
    operator.attrgetter("data.device_id", "dtype", "shape", "strides"),
    operator.attrgetter("data.ptr"),
    lambda x, device: x.__cuda_array_interface__.get("stream"),  # the thread's, whichever array is asked
)
_OURS = Library(
    operator.attrgetter("buffer.context.device.ordinal", "typestr", "dtype", "shape"),
    operator.attrgetter("buffer.ptr"),
    lambda x, device: None,
)


def _named(kind: type) -> Library | None:
    """Return the library of a class of arrays, or None if their calls have no key."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _TORCH
    if cupy is not None and kind is cupy.ndarray:
        return _CUPY
    return _OURS if kind is DeviceArray else None


_library: Callable[[Any], Library | None] = functools.lru_cache(maxsize=64)(_named)  # of a class


def find(a: Any, b: Any, out: Any, read: Any, options: tuple[Any, ...]) -> tuple[Key | None, Call | None]:
    """Return the key of a call, if it can have one, and the call that was kept for it, if one was.

    `read` is what an epilogue reads, and `options` are all that a call depends on beside its arrays.
    """
    library = _library(type(a))
    if library is None:
        return None, None
    lies, others = library.lies, (b,) if out is None else (b, out)
    for x in others if read is None else (*others, read):
        if _library(type(x)) is not library:
            return None, None
    try:
        left = lies(a)
        rest = None if out is None else lies(out), None if read is None else lies(read)
        key = (left, lies(b), *rest, *options)
        gpu = gpus.opened(left[0])
        return key, None if gpu is None else gpu.calls.get(key)
    except Exception:  # what is wrong with an array, or with an option that has no hash, reading them tells
        return None, None


class Call:
    """A call that was read and checked: what it queued, and where the result may not lie.

    `operands` are a, b, out and what the epilogue reads, if anything, and `whole` contains all of each. With
    `swapped` the launch takes b before a.
    """

    def __init__(
        self,
        library: Library,
        gpu: Gpu,
        product: Product,
        operands: Sequence[Matrix],
        whole: Sequence[Matrix],
        swapped: bool,
    ) -> None:
        self._library, self._gpu, self._product, self._swapped = library, gpu, product, swapped
        out = operands[2]
        self._made = (*out.leading, out.rows, out.columns)
        pairs = zip(operands, whole, strict=True)
        spans = [(all_of_it.address - x.address, all_of_it.end - x.address) for x, all_of_it in pairs]
        low, high = spans.pop(2)
        # An operand may overlap the result if its address, less that of the result, is between these.
        self._near = [(low - last, high - first) for first, last in spans]

    def again(
        self,
        a: Any,
        b: Any,
        out: Any,
        read: Any,
        scalars: tuple[float, float],
        stream: Any,
        asked: int | None,
    ) -> Any:
        """Queue it for arrays that lie as those did for which it was made, and return `out`.

        `asked` is the address of `stream`, if that is not None. Returns None, and queues nothing, where only
        reading the arrays tells what is to be done: the result may overlap an operand, they are ready on
        another stream or on none that is known, or the stream may be one of another GPU.
        """
        gpu, (_, address, ready) = self._gpu, self._library
        if isinstance(stream, Stream) and stream.context.device.ordinal != gpu.device.ordinal:
            return None
        try:
            on = ready(a, gpu.device.ordinal)
            if asked is None:
                asked = on
            elif on is not None and on != asked:
                return None
            if not asked:
                return None
            if out is None:
                out = arrays.empty_like(a, self._made)
            at = [address(a), address(b)] if read is None else [address(a), address(b), address(read)]
            result = address(out)
        except Exception:  # as in `find`
            return None
        for x, (below, above) in zip(at, self._near, strict=True):
            if below < x - result < above:
                return None
        if self._swapped:
            at[0], at[1] = at[1], at[0]
        at.insert(2, result)
        shape, kind, batch = self._product
        gpu.again(shape, kind, at, scalars, asked, batch)
        return out


def keep(key: Key | None, a: Any, gpu: Gpu, *about: Any) -> None:
    """Keep the call of the key that `find` returned, if any, for `a` and others; `about` is as for `Call`."""
    library = _library(type(a))
    if key is not None and library is not None:
        if len(gpu.calls) >= _MOST:
            gpu.calls.clear()
        gpu.calls[key] = Call(library, gpu, *about)
