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

    `OutOfMemory` if there is no room; the context stays usable. Closing waits for the work in the
    context to finish.
    """

    free_call = "cuMemFree"

    def __init__(self, context: Context, nbytes: int) -> None:
        self.nbytes = _size(nbytes)
        super().__init__(context, context.call("cuMemAlloc", self.nbytes))

    @property
    def ptr(self) -> int:
        """The device address. `UsageError` once closed."""
        return int(self.handle)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes as a uint8 array, for CuPy, PyTorch and Numba.

        It names no stream: synchronize the one that wrote the buffer before handing it over, and keep
        the buffer open as long as the other side reads it.
        """
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.ptr, False),
            "strides": None,
            "version": 3,
        }

    def array(self, dtype: npt.DTypeLike, shape: int | tuple[int, ...]) -> DeviceArray:
        """The first bytes as an array with a shape, for `harness.matmul`, CuPy, PyTorch and Numba.

        `dtype` is anything NumPy takes for one, and ``"bfloat16"``, which it does not know. A view that keeps
        the buffer; closing by hand frees it all the same. `UsageError` if the array would be larger than the
        buffer.
        """
        if dtype == "bfloat16":
            _, shape = _fitting("u2", shape, self.nbytes)
            return DeviceArray(self, "<V2", shape, "bfloat16")
        kind, shape = _fitting(dtype, shape, self.nbytes)
        return DeviceArray(self, kind.str, shape, kind.name)

    def upload(self, source: Any, stream: Stream) -> None:
        """Fill the whole buffer from a NumPy array, or anything with the buffer protocol.

        Returns when the copy is done, so `source` may change or go at once. `UsageError` unless it is
        C-contiguous and of exactly `nbytes` bytes, and while a `Gate` holds the stream.
        """
        self.context.refuse_if_held(require_stream(stream))
        host = _host_array(source, self.nbytes)
        self.context.call("cuMemcpyHtoDAsync", self.handle, host.ctypes.data, self.nbytes, stream.handle)
        stream.synchronize()

    def download(self, target: Any, stream: Stream) -> None:
        """Copy the whole buffer into a writable NumPy array, or anything with the buffer protocol.

        Returns when the data is there. `UsageError` as for `upload`, and for read-only targets.
        """
        self.context.refuse_if_held(require_stream(stream))
        host = _host_array(target, self.nbytes)
        if not host.flags.writeable:
            raise UsageError("cannot download into read-only memory", hint="pass a writable array")
        self.context.call("cuMemcpyDtoHAsync", host.ctypes.data, self.handle, self.nbytes, stream.handle)
        stream.synchronize()

    def fill_u32(self, value: int, stream: Stream) -> None:
        """Write the 32-bit `value` (0 to 2**32 - 1) into every word; queued, not waited for."""
        require_stream(stream)
        if self.nbytes % 4 or not 0 <= value < 2**32:
            raise UsageError(f"cannot fill {self.nbytes} bytes with the 32-bit value {value}")
        fill_u32(self.ptr, value, self.nbytes // 4, stream)

    def copy_from(self, other: Buffer, stream: Stream) -> None:
        """Copy all of `other`, of the same size, into this buffer; queued, not waited for."""
        require_stream(stream)
        if other.nbytes != self.nbytes:
            raise UsageError(f"cannot copy {other.nbytes} bytes into a buffer of {self.nbytes}")
        self.context.call("cuMemcpyDtoDAsync", self.handle, other.handle, self.nbytes, stream.handle)


@dataclass(frozen=True)
class DeviceArray:
    """A row-major view of a buffer's first bytes; `typestr` as NumPy has it (``"<f4"``), `dtype` its name."""

    buffer: Buffer
    typestr: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """It names no stream, as that of `Buffer`."""
        return {**self.buffer.__cuda_array_interface__, "shape": self.shape, "typestr": self.typestr}


class PinnedBuffer(Resource):
    """`nbytes` of page-locked host memory, which the GPU reads and writes directly.

    It is scarce: the operating system cannot page it out. `ptr` serves host and device alike.
    """

    free_call = "cuMemFreeHost"

    def __init__(self, context: Context, nbytes: int) -> None:
        self.nbytes = _size(nbytes)
        super().__init__(context, context.call("cuMemHostAlloc", self.nbytes, 0))

    @property
    def ptr(self) -> int:
        """The address. `UsageError` once closed."""
        return int(self.handle)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def array(self, dtype: npt.DTypeLike, shape: int | tuple[int, ...]) -> npt.NDArray[Any]:
        """The first bytes as a NumPy array: a view, not a copy, that keeps this buffer from being freed.

        Closing by hand frees it all the same: reading a view after that crashes the process.
        `UsageError` if the array would be larger than the buffer.
        """
        import numpy as np

        kind, shape = _fitting(dtype, shape, self.nbytes)
        wanted = kind.itemsize * math.prod(shape)
        # NumPy keeps what offers the array interface alive as the base of every view of it.
        found: npt.NDArray[Any] = np.asarray(self)[:wanted].view(kind).reshape(shape)
        return found


@contextmanager
def stream_memory(stream: Stream, nbytes: int) -> Iterator[int]:
    """The address of `nbytes` of device memory, uninitialised, for what is queued in `stream` in the block.

    In a captured stream it belongs to the graph: each replay has it, and graphs share what is under it.
    """
    call = require_stream(stream).context.call
    address = int(call("cuMemAllocAsync", _size(nbytes), stream.handle))
    try:
        yield address
    except BaseException:
        with suppress(DriverError):  # of a capture that has failed nothing more can be asked
            call("cuMemFreeAsync", address, stream.handle)
        raise
    call("cuMemFreeAsync", address, stream.handle)


def fill_u32(address: int, value: int, count: int, stream: Stream) -> None:
    """Write the 32-bit `value` into `count` words of device memory; queued, not waited for."""
    require_stream(stream).context.call("cuMemsetD32Async", address, value, count, stream.handle)


class RowCopy:
    """Rows of device memory to another distance: ``copy(source, target, stream)`` queues it. In bytes.

    One thread at a time may call it.
    """

    def __init__(self, *, rows: int, width: int, source_pitch: int, target_pitch: int) -> None:
        driver = api.bindings()
        device = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        self._copy = copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = device
        copy.srcPitch, copy.dstPitch = source_pitch, target_pitch
        copy.WidthInBytes, copy.Height = width, rows

    def __call__(self, source: int, target: int, stream: Stream) -> None:
        self._copy.srcDevice, self._copy.dstDevice = source, target
        require_stream(stream).context.call("cuMemcpy2DAsync", self._copy, stream.handle)


def device_of(address: int) -> int:
    """The ordinal of the GPU that this device memory is on. `UsageError` if it is no device memory."""
    attribute = api.bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    try:
        return int(api.call("cuPointerGetAttribute", attribute, address))
    except DriverError as error:
        if error.code != _INVALID_VALUE:
            raise
        raise UsageError(f"{address:#x} is not the address of device memory") from None


def _size(nbytes: int) -> int:
    if nbytes <= 0:
        raise UsageError(f"a buffer needs at least one byte, not {nbytes}")
    return int(nbytes)


def _fitting(dtype: Any, shape: int | tuple[int, ...], nbytes: int) -> tuple[Any, tuple[int, ...]]:
    """Both as NumPy and tuples have them; `UsageError` if such an array has more than `nbytes`."""
    import numpy as np

    kind = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else shape
    if (wanted := kind.itemsize * math.prod(shape)) > nbytes:
        raise UsageError(f"an array of {wanted} bytes does not fit into {nbytes} bytes")
    return kind, shape


def _host_array(memory: Any, nbytes: int) -> npt.NDArray[Any]:
    """`memory` as an array without copying, checked. Arrays pass whole: not every dtype has a buffer."""
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
