"""Kernel launches: arguments are checked and packed once, then each launch is one driver call."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from harness.driver import api
from harness.driver.stream import Stream, require_stream
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.driver.module import Function

Dims: TypeAlias = int | tuple[int, ...]
Value = TypeVar("Value", bound="ctypes._SimpleCData[Any] | ctypes.Array[Any]")

_GRID_LIMIT = (2**31 - 1, 65535, 65535)
_BLOCK_LIMIT = (1024, 1024, 64)
_PORTABLE_CLUSTER, _LARGEST_CLUSTER = 8, 16


@dataclass(frozen=True)
class Struct:
    """A kernel parameter passed by value as raw bytes; a CUtensorMap is ``Struct(data, align=64)``.

    `align` is a power of two, in bytes. Raises UsageError for any other, and for empty `data`.
    """

    data: bytes
    align: int

    def __post_init__(self) -> None:
        if not self.data or self.align < 1 or self.align & (self.align - 1):
            raise UsageError(f"a Struct of {len(self.data)} bytes aligned to {self.align} cannot be")


class PreparedLaunch:
    """A kernel with its grid, block and arguments: ``launch(stream)`` queues it and returns.

    `Function.prepare` makes it. The values of the arguments are copied at that time. Buffers, module and
    context are kept alive, but after closing one of them by hand the launch must not be used. Call it where
    the context is current (driver 580 takes the context from the stream, but CUDA does not promise that). A
    fault in the kernel is reported by a later call.
    """

    def __init__(
        self,
        function: Function,
        grid: Dims,
        block: Dims,
        args: Sequence[Any],
        *,
        shared: int = 0,
        cluster: Dims | None = None,
        cooperative: bool = False,
        programmatic: bool = False,
    ) -> None:
        self.function = function
        _ = function.handle  # UsageError if its module is closed
        self.grid = _dims("grid", grid, _GRID_LIMIT)
        self.block = _dims("block", block, _BLOCK_LIMIT)
        self.shared = shared
        self.cooperative = cooperative
        self.programmatic = programmatic and function.context.device.capability >= (9, 0)
        self.cluster = None if cluster is None else _dims("cluster", cluster, self.grid)
        _check_block(function, self.block)
        if clustered := self.cluster or function.compiled_cluster:
            _check_cluster(function, self.grid, clustered)
        self._args = tuple(args)
        self._params = pack(self._args, function.parameter_sizes, function.name)
        function.allow_shared(shared)
        self._success = api.bindings().CUresult.CUDA_SUCCESS
        # One tuple, replaced as a whole, so that threads with different streams may share a launch.
        self._bound: tuple[object, Callable[[], tuple[Any]]] = (object(), lambda: (None,))

    def __call__(self, stream: Stream) -> None:
        """Queue the launch in `stream`.

        Raises UsageError unless that is an open stream of the same context.
        """
        bound = self._bound
        if bound[0] is not stream or stream.closed:
            bound = self._bind(stream)
        result = bound[1]()[0]
        if result is not self._success:
            self.function.context.check("cuLaunchKernelEx", result)

    def argument(self, index: int, kind: type[Value]) -> Value:
        """Return the memory of one argument as a ctypes scalar or array of type `kind`.

        The next launch passes the value that is then written there, so one prepared launch serves many
        buffers. The driver copies the arguments before a launch returns. Raises UsageError if the argument
        has another size than `kind`.
        """
        if ctypes.sizeof(kind) != (size := self.function.parameter_sizes[index]):
            raise UsageError(
                f"argument {index} of {self.function.name} has {size} bytes, {kind} another size"
            )
        found: Any = kind.from_address(self._params.pointers[index])
        return cast(Value, found)

    def image(self) -> Image:
        """Return the launch as C takes it, with the arguments' values of now."""
        pointers = self._params.pointers
        end = pointers[-1] + self.function.parameter_sizes[-1] if pointers else 0
        return Image(
            function=int(self.function.handle),
            context=int(self.function.context.handle),
            config=self._config(0),
            memory=ctypes.string_at(pointers[0], end - pointers[0]) if pointers else b"",
            offsets=tuple(pointer - pointers[0] for pointer in pointers),
        )

    def _bind(self, stream: Stream) -> tuple[object, Callable[[], tuple[Any]]]:
        """Prepare the driver call for `stream` and keep it for the next launches in the same stream."""
        # Everything that can be looked up beforehand is. cuLaunchKernelEx with a finished config and an int
        # for the parameter array needs the fewest conversions in the bindings: 2.9 us a launch, against 5 us
        # with argument tuples (H200).
        handle = require_stream(stream).handle
        if stream.context is not self.function.context:
            raise UsageError(f"the stream belongs to another context than {self.function.name}")
        launch = api.bindings().cuLaunchKernelEx
        arguments = self._config(handle), self.function.handle, self._params.address, 0
        self._bound = stream, partial(launch, *arguments)
        return self._bound

    def _config(self, stream_handle: Any) -> Any:
        """Return the CUlaunchConfig for a stream."""
        driver = api.bindings()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.block
        config.sharedMemBytes = self.shared
        config.hStream = stream_handle
        attributes = []
        if self.cluster is not None:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = self.cluster
            attributes.append(attribute)
        if self.cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if self.programmatic:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if attributes:
            config.attrs = attributes
            config.numAttrs = len(attributes)
        return config


@dataclass(frozen=True)
class Image:
    """A launch for callers of the driver's C functions, as long as the function's module is loaded.

    `function` and `context` are handles, `config` is the bindings' CUlaunchConfig, without a stream: it owns
    the attributes that it points to. `memory` is a copy of all arguments, which begin at `offsets` in it.
    """

    function: int
    context: int
    config: Any
    memory: bytes
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Packed:
    """Kernel arguments in memory.

    `pointers` holds the address of each argument, `address` is that of the array of these pointers (0 without
    arguments), and `memory` keeps both alive.
    """

    address: int
    pointers: Sequence[int]
    memory: Any


def pack(args: Sequence[Any], sizes: Sequence[int], kernel: str) -> Packed:
    """Lay the arguments of `kernel` out in memory, each at its own alignment.

    Raises UsageError unless their number and sizes equal `sizes`, those of the parameters in bytes.
    """
    values = [_encode(index, arg) for index, arg in enumerate(args)]
    given = [len(data) for data, _ in values]
    if given != list(sizes):
        raise UsageError(
            f"{kernel} takes {len(sizes)} arguments of {list(sizes)} bytes, not {len(given)} of {given}",
        )
    if not values:
        return Packed(0, (), None)
    offsets, end = [], 0
    for data, align in values:
        offsets.append(-(-end // align) * align)
        end = offsets[-1] + len(data)
    base_align = max(align for _, align in values)
    memory = ctypes.create_string_buffer(end + base_align)
    base = -(-ctypes.addressof(memory) // base_align) * base_align
    for (data, _), offset in zip(values, offsets, strict=True):
        ctypes.memmove(base + offset, data, len(data))
    pointers = (ctypes.c_void_p * len(values))(*(base + offset for offset in offsets))
    return Packed(ctypes.addressof(pointers), [base + offset for offset in offsets], (memory, pointers))


def _encode(index: int, arg: Any) -> tuple[bytes, int]:
    """Return the bytes of one argument and their alignment. Raises UsageError if its size is unknown."""
    import numpy as np

    if isinstance(arg, Struct):
        return arg.data, arg.align
    if isinstance(arg, np.generic):  # before the check for float: np.float64 is a subclass of it
        return arg.tobytes(), arg.dtype.alignment
    if isinstance(arg, ctypes._SimpleCData | ctypes.Structure | ctypes.Union | ctypes.Array):
        return bytes(arg), ctypes.alignment(arg)
    if hasattr(arg, "__cuda_array_interface__"):
        return int(arg.__cuda_array_interface__["data"][0]).to_bytes(8, "little"), 8
    instead = {
        bool: "numpy.bool_(x) or numpy.int32(x)",
        int: "numpy.int32(x) for int, numpy.int64(x) for long long, numpy.uint64(x) for an address",
        float: "numpy.float32(x) for float, numpy.float64(x) for double",
        bytes: "Struct(data, align)",
    }.get(type(arg), "a Buffer, a NumPy or ctypes scalar, a ctypes.Structure or a Struct")
    raise UsageError(
        f"argument {index} is a {type(arg).__name__}, whose size on the GPU is unknown",
        hint=f"pass {instead}",
    )


def _dims(what: str, given: Dims, limit: tuple[int, ...]) -> tuple[int, int, int]:
    """Return `given` as (x, y, z), with 1 for what is missing.

    Raises UsageError if one of them is not a whole number from 1 to its `limit`.
    """
    try:
        dims = tuple(map(operator.index, given if isinstance(given, tuple | list) else (given,)))
    except TypeError as error:
        raise UsageError(f"{what} {given} is out of range: not a whole number") from error
    x, y, z = full = (*dims, 1, 1, 1)[:3]
    if len(dims) > 3 or any(not 1 <= size <= most for size, most in zip(full, limit, strict=True)):
        raise UsageError(f"{what} {given} is out of range: x, y, z from 1 to {limit}")
    return x, y, z


def _check_block(function: Function, block: tuple[int, int, int]) -> None:
    """Raise UsageError if a block has more threads than the kernel can run with."""
    threads, most = math.prod(block), function.attributes.max_threads
    if threads > most:
        raise UsageError(
            f"{function.name} runs at most {most} threads a block (its registers and launch bounds, and "
            f"1024 at best), not {threads}"
        )


def _check_cluster(function: Function, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> None:
    """Raise UsageError for impossible clusters; opt in to clusters of more than 8 blocks."""
    context, blocks = function.context, math.prod(cluster)
    if context.device.capability < (9, 0):
        raise UsageError(f"clusters need sm_90, {context.device.name} is {context.device.arch}")
    if blocks > _LARGEST_CLUSTER or any(size % part for size, part in zip(grid, cluster, strict=True)):
        raise UsageError(
            f"cluster {cluster} must divide the grid {grid} and hold at most {_LARGEST_CLUSTER} blocks"
        )
    if blocks > _PORTABLE_CLUSTER:  # not every GPU with clusters allows more than 8: needs an opt-in
        names = api.bindings().CUfunction_attribute
        attribute = names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        context.call("cuFuncSetAttribute", function.handle, attribute, 1)
