"""Read device arrays of other libraries as a `Matrix`: address, shape, element type, GPU and stream.

PyTorch tensors are read by their own methods, which is fastest, and no interface tells whether a tensor
requires gradients. Other arrays are read by ``__cuda_array_interface__``, or by DLPack if they have only
that.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from harness.driver import DeviceArray, Stream, device_of
from harness.errors import UsageError
from harness.kernels.dtypes import BF16, FP16, FP32, DType

LEGACY = 1  # CU_STREAM_LEGACY: the default stream that waits for all others; 0 may mean either default stream
TORCH_CURRENT = -1  # stands for PyTorch's current stream on that GPU, which is looked up when it is needed
_CUDA_DEVICES = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


class Matrix(NamedTuple):
    """A matrix in device memory, row-major or, if it is `transposed`, column-major; or a batch of them.

    `address` is that of its first element, `ld` the elements from one row (column-major: column) to the next,
    and `device` the GPU's ordinal. `ready` is the address of the stream in which its contents are produced
    (or `TORCH_CURRENT`); None if the owner names none, and any stream may use the contents. `keep` is what
    must stay alive with it. Of a batch all else is about its first matrix: `leading` has the dimensions
    before the last two, and `steps` the elements from matrix to matrix along each.
    """

    address: int
    rows: int
    columns: int
    ld: int
    device: int
    ready: int | None
    keep: Any = None
    dtype: DType = FP32
    transposed: bool = False
    leading: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def flipped(self) -> Matrix:
        """The transpose: the same memory, with rows and columns exchanged."""
        return self._replace(rows=self.columns, columns=self.rows, transposed=not self.transposed)

    @property
    def stored(self) -> tuple[int, int]:
        """The number of stored rows, `ld` apart, and the elements of each."""
        return (self.columns, self.rows) if self.transposed else (self.rows, self.columns)

    @property
    def strides(self) -> tuple[int, ...]:
        """The elements from one index to the next, along each dimension; 0 along those with one index."""
        apart = (1, self.ld) if self.transposed else (self.ld, 1)
        extents = (*self.leading, self.rows, self.columns)
        return tuple(step if n > 1 else 0 for n, step in zip(extents, (*self.steps, *apart), strict=True))

    @property
    def end(self) -> int:
        """The address behind its last element."""
        rows, columns = self.stored
        return self.address + self.dtype.itemsize * ((rows - 1) * self.ld + columns)

    def overlaps(self, other: Matrix) -> bool:
        """Return True if the two matrices share an element.

        Two views of one array that lie side by side do not. If element types or leading dimensions differ or
        the addresses are not whole elements apart, True if their address ranges overlap.
        """
        size = self.dtype.itemsize
        if self.end <= other.address or other.end <= self.address:
            return False
        if (self.ld, self.dtype) != (other.ld, other.dtype) or (other.address - self.address) % size:
            return True
        shift = (other.address - self.address) // size % self.ld  # elements to the right in a stored row
        return shift < self.stored[1] or shift + other.stored[1] > self.ld


def read(name: str, array: Any, stream: int | None, *, written: bool = False, dims: int = 2) -> Matrix:
    """Return a device array of any library as a `Matrix`, without copying.

    `stream` is the address of the stream that will use it, None if not known yet; the owner of a DLPack array
    makes that stream wait until the contents are ready (None: the legacy default stream). `written` is True
    for an output. With one dimension (`dims`) it is a vector, returned as a single row. Raises UsageError,
    naming the array `name`, unless it is a matrix of float32, bfloat16 or float16 in device memory whose rows
    or columns are contiguous, a batch of these, or such a vector.
    """
    try:
        if is_torch(array):
            return _torch(name, array, dims)
        if (interface := getattr(array, "__cuda_array_interface__", None)) is not None:
            return _interface(name, array, interface, written, dims)
        if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
            return _dlpack(name, array, stream, written, dims)
    except UsageError:
        raise
    except Exception as e:  # another library may raise anything for an array that it cannot hand over
        _refuse(name, f"cannot be read: {type(e).__name__}: {e}")
    raise UsageError(
        f"{name} is a {type(array).__name__}, no array in device memory",
        hint="pass a CUDA tensor, a CuPy array, or Buffer(...).array('float32', (M, N))",
    )


def is_torch(array: Any) -> bool:
    """Return True for a PyTorch tensor, without importing PyTorch."""
    return (torch := sys.modules.get("torch")) is not None and isinstance(array, torch.Tensor)


def is_ours(array: Any) -> bool:
    """Return True for an array in a harness Buffer, which belongs to no stream."""
    return isinstance(array, DeviceArray)


def torch_stream(device: int) -> int:
    """Return the address of PyTorch's current stream on the GPU with this ordinal."""
    torch = sys.modules["torch"]
    own = getattr(torch, "_C", None)
    raw = getattr(own, "_cuda_getCurrentRawStream", None)  # Inductor's way, which makes no object
    found = torch.cuda.current_stream(device).cuda_stream if raw is None else raw(device)
    return int(found) or LEGACY


def stream_address(stream: Any) -> int:
    """Return the address of a stream of any library; raises UsageError if it is no stream."""
    if isinstance(stream, Stream):
        if not stream.context.primary:
            raise UsageError("the stream is in a context of its own", hint="make it in Context(device)")
        address = int(stream.handle)
    elif isinstance(stream, int) and not isinstance(stream, bool):
        address = stream
    elif (protocol := getattr(stream, "__cuda_stream__", None)) is not None:
        _, address = protocol() if callable(protocol) else protocol
    elif (found := getattr(stream, "cuda_stream", getattr(stream, "ptr", None))) is not None:
        address = found
    else:
        raise UsageError(
            f"{stream!r} is no stream",
            hint="pass a harness Stream, a PyTorch or CuPy stream, or its address",
        )
    if address < 0:
        raise UsageError(f"{address} is not the address of a stream")
    return int(address) or LEGACY


def empty_like(a: Any, shape: tuple[int, ...]) -> Any:
    """Return an uninitialised array of this shape, and of the library, type and GPU of `a`.

    Raises UsageError unless `a` is a PyTorch tensor or a CuPy array.
    """
    if is_torch(a):
        return a.new_empty(shape)
    if type(a).__module__.partition(".")[0] == "cupy":
        with a.device:
            return sys.modules["cupy"].empty(shape, dtype=a.dtype)
    raise UsageError(f"no out, and how to make a {type(a).__name__} is not known", hint="pass out=")


def _torch(name: str, tensor: Any, dims: int) -> Matrix:
    """Read a PyTorch tensor; raises UsageError if its gradients would be lost."""
    torch = sys.modules["torch"]
    if not tensor.is_cuda:
        _refuse(name, f"is on {tensor.device}, not on a GPU")
    dtype = TORCH.get(str(tensor.dtype)) or _wrong_type(name, str(tensor.dtype))
    if tensor.requires_grad and torch.is_grad_enabled():
        hint = "harness.torch.mm(a, b) has gradients; or pass x.detach(), or use torch.no_grad()"
        _refuse(name, "requires gradients, which would be lost", hint)
    shape, strides = tensor.shape, tensor.stride()
    rows, columns, ld, flip, *batch = _layout(name, shape, strides, dims)
    return Matrix(
        tensor.data_ptr(), rows, columns, ld, tensor.get_device(), TORCH_CURRENT, None, dtype, flip, *batch
    )


def _interface(name: str, array: Any, interface: dict[str, Any], written: bool, dims: int) -> Matrix:
    """Read an array by version 2 or 3 of the CUDA Array Interface, as specified in Numba's documentation."""
    dtype = _INTERFACE.get(interface["typestr"])
    # NumPy has no bfloat16: the interface describes its elements as two bytes of any kind.
    if dtype is BF16 and str(getattr(array, "dtype", "")) != "bfloat16":
        dtype = None
    dtype = dtype or _wrong_type(name, f"type {interface['typestr']}")
    size = dtype.itemsize
    if interface.get("mask") is not None:
        _refuse(name, "has a mask")
    address, read_only = interface["data"]
    if written and read_only:
        _refuse(name, "is read-only")
    shape, strides = interface["shape"], interface.get("strides")
    if strides is not None:
        if [stride for stride in strides if stride % size]:
            _refuse(name, f"has strides of {strides} bytes, no multiples of {size}")
        strides = [stride // size for stride in strides]
    rows, columns, ld, flip, *batch = _layout(name, shape, strides, dims)
    ready = interface.get("stream")
    if ready == 0:
        _refuse(name, "names stream 0, which the CUDA Array Interface forbids: it may mean two streams")
    return Matrix(int(address), rows, columns, ld, device_of(int(address)), ready, None, dtype, flip, *batch)


class _Tensor(ctypes.Structure):
    """DLPack's DLTensor, versions 0.2 to 1.x. A capsule named "dltensor" holds its address."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


# The names of supported element types, by PyTorch, the CUDA Array Interface and DLPack.
TORCH = {"torch.float32": FP32, "torch.bfloat16": BF16, "torch.float16": FP16}
_INTERFACE = {"<f4": FP32, "<f2": FP16, "<V2": BF16, "|V2": BF16}
_CPU = 1  # kDLCPU
_DLPACK = {(2, 32, 1): FP32, (2, 16, 1): FP16, (4, 16, 1): BF16}  # kDLFloat, kDLBfloat; bits, lanes
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _dlpack(name: str, array: Any, stream: int | None, written: bool, dims: int) -> Matrix:
    """Read an array by DLPack.

    The capsule is not consumed, so its owner frees it. `Matrix.keep` holds it until the launch is queued.
    """
    if written:
        _refuse(name, "speaks only DLPack, which does not say whether it may be written")
    place, _ = array.__dlpack_device__()
    if place not in _CUDA_DEVICES:
        hint = "copy it there: torch.from_numpy(x).cuda(), cupy.asarray(x)" if place == _CPU else ""
        _refuse(name, f"is not in the memory of a CUDA GPU (DLPack's device type {int(place)})", hint)
    capsule = array.__dlpack__(stream=LEGACY if stream is None else stream)
    tensor = _Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    kind = f"DLPack's type {tensor.code} with {tensor.bits} bits"
    dtype = _DLPACK.get((tensor.code, tensor.bits, tensor.lanes)) or _wrong_type(name, kind)
    shape = tensor.shape[: tensor.ndim]
    strides = tensor.strides[: tensor.ndim] if tensor.strides else None
    rows, columns, ld, flip, *batch = _layout(name, shape, strides, dims)
    address = (tensor.data or 0) + tensor.byte_offset
    return Matrix(address, rows, columns, ld, tensor.device_id, None, capsule, dtype, flip, *batch)


def _layout(
    name: str, shape: Sequence[int], strides: Sequence[int] | None, dims: int
) -> tuple[int, int, int, bool, tuple[int, ...], tuple[int, ...]]:
    """Return the rows, columns, leading dimension, True for column-major, and of a batch the dimensions
    before the last two and the steps along them; strides are in elements (None: contiguous).

    A vector (`dims` is 1) is a single row. Raises UsageError unless it is a non-empty matrix whose rows, or
    columns, are contiguous and do not overlap, a batch of these, or a non-empty contiguous vector.
    """
    if len(shape) < dims or (dims == 1 and len(shape) > 1):
        hint = "pass a vector, x.reshape(-1)" if dims == 1 else "pass a matrix, such as x[None, :]"
        _refuse(name, f"has {len(shape)} dimensions, not {dims}", hint)
    if dims == 1:
        if strides is not None and strides[0] != 1 and shape[0] > 1:
            what = f"has {strides[0]} elements from one to the next"
            _refuse(name, f"{what}; it must be 1", "copy it first (x.contiguous(), cupy.ascontiguousarray)")
        shape, strides = (1, *shape), None
    if 0 in shape:
        _refuse(name, f"is {' x '.join(map(str, shape))}: there is nothing to multiply")
    rows, columns = shape[-2:]
    if strides is None:
        down, right = columns, 1
        steps = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape) - 2))
    else:
        down, right = strides[-2:]
        steps = tuple(strides[:-2])
    batch = tuple(shape[:-2]), steps
    transposed = right != 1 and columns > 1
    if transposed and down != 1 and rows > 1:
        what = f"{down} elements from row to row and {right} from column to column"
        hint = "copy it first (x.contiguous(), cupy.ascontiguousarray)"
        _refuse(name, f"has {what}; one of them must be 1", hint)
    step, count, width = (right, columns, rows) if transposed else (down, rows, columns)
    if count == 1:
        return rows, columns, width, transposed, *batch
    if step < width:
        kind = "columns" if transposed else "rows"
        what = f"has {step} elements from {kind[:-1]} to {kind[:-1]} of {width}"
        _refuse(name, f"{what}: its {kind} overlap", "copy it first")
    return rows, columns, step, transposed, *batch


def _wrong_type(name: str, kind: str) -> NoReturn:
    _refuse(name, f"is of {kind}, not of float32, bfloat16 or float16")


def _refuse(name: str, what: str, hint: str = "") -> NoReturn:
    """Raise UsageError: `what` is wrong with the array `name`."""
    raise UsageError(f"{name} {what}", hint=hint)
