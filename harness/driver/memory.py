"""Device memory and page-locked host memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.driver import api
from harness.driver.context import Context, Resource
from harness.driver.stream import Stream, require_stream
from harness.errors import DriverError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt


_INVALID_VALUE = 1


class Buffer(Resource):
    """`nbytes` of device memory, uninitialised, aligned to at least 256 bytes.

    Raises OutOfMemory if there is no room; the context stays usable. Closing waits for the work in the
    context to finish.
    """

    free_call = "cuMemFree"

    def __init__(self, context: Context, nbytes: int) -> None:
        self.nbytes = _size(nbytes)
        super().__init__(context, context.call("cuMemAlloc", self.nbytes))

    @property
    def ptr(self) -> int:
        """The device address. Raises UsageError once the buffer is closed."""
        return int(self.handle)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes as a uint8 array, for CuPy, PyTorch and Numba.

        It names no stream: before handing it over, synchronize the stream that wrote the buffer, and keep the
        buffer open as long as the other library uses it.
        """
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.ptr, False),
            "strides": None,
            "version": 3,
        }

    def array(self, dtype: npt.DTypeLike, shape: int | tuple[int, ...]) -> DeviceArray:
        """Return the first bytes as an array of this shape, for `harness.matmul`, CuPy, PyTorch and Numba.

        `dtype` is anything that ``numpy.dtype`` takes, or ``"bfloat16"``, which NumPy does not know. The
        array is a view and keeps the buffer alive, but closing the buffer by hand frees the memory all the
        same. Raises UsageError if the array would be larger than the buffer.
        """
        if dtype == "bfloat16":
            _, shape = _fitting("u2", shape, self.nbytes)
            return DeviceArray(self, "<V2", shape, "bfloat16")
        kind, shape = _fitting(dtype, shape, self.nbytes)
        return DeviceArray(self, kind.str, shape, kind.name)

    def upload(self, source: Any, stream: Stream) -> None:
        """Fill the whole buffer from a NumPy array, or any object with the buffer protocol.

        Returns when the copy is done, so `source` may change or go at once. Raises UsageError unless `source`
        is C-contiguous and has exactly `nbytes` bytes, and while a `Gate` holds the stream.
        """
        self.context.refuse_if_held(require_stream(stream))
        host = _host_array(source, self.nbytes)
        self.context.call("cuMemcpyHtoDAsync", self.ptr, host.ctypes.data, self.nbytes, stream.handle)
        stream.synchronize()

    def download(self, target: Any, stream: Stream) -> None:
        """Copy the whole buffer into a writable NumPy array, or any object with the buffer protocol.

        Returns when the data is there. Raises UsageError as `upload` does, and for a read-only target.
        """
        self.context.refuse_if_held(require_stream(stream))
        host = _host_array(target, self.nbytes)
        if not host.flags.writeable:
            raise UsageError("cannot download into read-only memory", hint="pass a writable array")
        self.context.call("cuMemcpyDtoHAsync", host.ctypes.data, self.ptr, self.nbytes, stream.handle)
        stream.synchronize()

    def fill_u32(self, value: int, stream: Stream) -> None:
        """Queue writing the 32-bit `value` (0 to 2**32 - 1) into every word of the buffer.

        Raises UsageError for another value, and for a buffer that is not a whole number of words.
        """
        require_stream(stream)
        if self.nbytes % 4 or not 0 <= value < 2**32:
            raise UsageError(f"cannot fill {self.nbytes} bytes with the 32-bit value {value}")
        fill_u32(self.ptr, value, self.nbytes // 4, stream)

    def copy_from(self, other: Buffer, stream: Stream) -> None:
        """Queue copying all of `other` into this buffer. Raises UsageError unless both have the same size."""
        require_stream(stream)
        if other.nbytes != self.nbytes:
            raise UsageError(f"cannot copy {other.nbytes} bytes into a buffer of {self.nbytes}")
        self.context.call("cuMemcpyDtoDAsync", self.ptr, other.ptr, self.nbytes, stream.handle)


@dataclass(frozen=True)
class DeviceArray:
    """A row-major view of a buffer's first bytes.

    `typestr` is NumPy's type string (``"<f4"``), `shape` in elements, `dtype` the name of the type.
    """

    buffer: Buffer
    typestr: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array for CuPy, PyTorch and Numba; like that of `Buffer`, it names no stream."""
        return {**self.buffer.__cuda_array_interface__, "shape": self.shape, "typestr": self.typestr}


class PinnedBuffer(Resource):
    """`nbytes` of page-locked host memory, which the GPU reads and writes directly.

    Such memory is scarce: the operating system cannot page it out. `ptr` is valid on the host and the device.
    """

    free_call = "cuMemFreeHost"

    def __init__(self, context: Context, nbytes: int) -> None:
        self.nbytes = _size(nbytes)
        super().__init__(context, context.call("cuMemHostAlloc", self.nbytes, 0))

    @property
    def ptr(self) -> int:
        """The address. Raises UsageError once the buffer is closed."""
        return int(self.handle)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The bytes as a uint8 array, for NumPy."""
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def array(self, dtype: npt.DTypeLike, shape: int | tuple[int, ...]) -> npt.NDArray[Any]:
        """Return the first bytes as a NumPy array: a view, not a copy, that keeps this buffer alive.

        Closing the buffer by hand frees the memory all the same: reading the view after that crashes the
        process. Raises UsageError if the array would be larger than the buffer.
        """
        import numpy as np

        kind, shape = _fitting(dtype, shape, self.nbytes)
        wanted = kind.itemsize * math.prod(shape)
        # NumPy keeps the object with the array interface alive: it is the base of every view.
        found: npt.NDArray[Any] = np.asarray(self)[:wanted].view(kind).reshape(shape)
        return found


@contextmanager
def stream_memory(stream: Stream, nbytes: int) -> Iterator[int]:
    """Yield the address of `nbytes` of uninitialised device memory for work queued in `stream` in the block.

    The allocation and the free are queued in the stream too. In a captured stream they become part of the
    graph: the memory exists during each replay, and graphs may share the physical memory behind it.
    """
    call = require_stream(stream).context.call
    address = int(call("cuMemAllocAsync", _size(nbytes), stream.handle))
    try:
        yield address
    except BaseException:
        with suppress(DriverError):  # after a failed capture the free fails too
            call("cuMemFreeAsync", address, stream.handle)
        raise
    call("cuMemFreeAsync", address, stream.handle)


def fill_u32(address: int, value: int, count: int, stream: Stream) -> None:
    """Queue writing the 32-bit `value` into `count` words of device memory at `address`."""
    require_stream(stream).context.call("cuMemsetD32Async", address, value, count, stream.handle)


def device_of(address: int) -> int:
    """Return the ordinal of the GPU that holds this device memory.

    Raises UsageError if `address` is not one of device memory.
    """
    attribute = api.bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    try:
        return int(api.call("cuPointerGetAttribute", attribute, address))
    except DriverError as error:
        if error.code != _INVALID_VALUE:
            raise
        raise UsageError(f"{address:#x} is not the address of device memory") from None


def _size(nbytes: int) -> int:
    """Return the size of a buffer as an int. Raises UsageError unless it is positive."""
    if nbytes <= 0:
        raise UsageError(f"a buffer needs at least one byte, not {nbytes}")
    return int(nbytes)


def _fitting(dtype: Any, shape: int | tuple[int, ...], nbytes: int) -> tuple[Any, tuple[int, ...]]:
    """Return the dtype as a NumPy dtype and the shape as a tuple.

    Raises UsageError if such an array has more than `nbytes` bytes.
    """
    import numpy as np

    kind = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else shape
    if (wanted := kind.itemsize * math.prod(shape)) > nbytes:
        raise UsageError(f"an array of {wanted} bytes does not fit into {nbytes} bytes")
    return kind, shape


def _host_array(memory: Any, nbytes: int) -> npt.NDArray[Any]:
    """Return `memory` as an array, without copying.

    Raises UsageError unless it is C-contiguous and has `nbytes` bytes. NumPy arrays are taken as they are,
    since not every dtype supports the buffer protocol.
    """
    import numpy as np

    try:
        array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise UsageError(f"cannot copy from or to a {type(memory).__name__}: {error}") from error
    if not array.flags.c_contiguous:
        raise UsageError("the array is not C-contiguous", hint="pass numpy.ascontiguousarray(array)")
    if array.nbytes != nbytes:
        raise UsageError(f"the array has {array.nbytes} bytes, the buffer {nbytes}")
    return array
