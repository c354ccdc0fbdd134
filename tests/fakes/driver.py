"""A stand-in for ``cuda.bindings.driver``: host memory for device memory, and a ledger of what lives.

``fake = install(monkeypatch)`` puts it behind `harness.driver.api.bindings`, the one seam.

* ``fake.log``: every call as ``(name, args)``; ``fake.names()`` without what `NOISE` lists.
* ``fake.live``: what was allocated and not freed, in order; ``fake.freed``: what was, in order. Freeing
  what does not live returns INVALID_VALUE.
* ``fake.fail("cuMemAlloc", 2)``: the next such call returns that code. ``fake.sticky = 700``: from now on
  every call that a lost context would refuse returns it.
* ``fake.functions``: kernel name -> sizes of its parameters, None: what its cubin says (or `image`, in its
  place). ``fake.launches``: what was launched, with the parameters' bytes read through the pointers that the
  driver was given. ``fake.execute``, where set, is called with each: device memory is host memory, so it can
  compute what the kernel would.
* ``fake.milliseconds``: what an event pair says. ``fake.sm_ghz``: the clock that our own stamp kernel
  counts, 10 ms from stamp to stamp; its launches are not in ``fake.launches``, nor are those of the other
  kernels of the harness, which are computed in NumPy (fresh.py).
* A captured stream queues nothing; launching the graph does what was captured. Meanwhile allocating and
  freeing is refused in a thread that has not exchanged its capture mode for RELAXED. What a graph allocates
  is uninitialised (0xFF) at each of its launches.
* ``fake.stream_ids``: address -> what `cuStreamGetId` says, the address itself where it is not listed.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import threading
import uuid
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from fakes import fresh
from harness.driver import api
from harness.errors import MissingDependency
from harness.sass import nvdisasm
from harness.support import tools

NOISE = {"cuGetErrorName", "cuGetErrorString", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxGetCurrent"}


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_DEINITIALIZED = 4
    CUDA_ERROR_STUB_LIBRARY = 34
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701
    CUDA_ERROR_LAUNCH_TIMEOUT = 702
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_ASSERT = 710
    CUDA_ERROR_HARDWARE_STACK_ERROR = 714
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715
    CUDA_ERROR_MISALIGNED_ADDRESS = 716
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717
    CUDA_ERROR_INVALID_PC = 718
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_UNKNOWN = 999


class _Names:
    """Stands for an enum of the bindings: members are read as attributes, and each is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


DEVICE = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 0,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 132,
    "CU_DEVICE_ATTRIBUTE_CLOCK_RATE": 1_980_000,
    "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE": 3_201_000,
    "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH": 6016,
    "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": 60 << 20,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233_472,
    "CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR": 2048,
}
FUNCTION = {
    "CU_FUNC_ATTRIBUTE_NUM_REGS": 32,
    "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 1024,
    "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": 0,
    "CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES": 0,
    "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 1024,
    "CU_FUNC_ATTRIBUTE_PTX_VERSION": 90,
    "CU_FUNC_ATTRIBUTE_BINARY_VERSION": 90,
    "CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH": 0,
    "CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT": 0,
    "CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH": 0,
}
MEMORY = 1 << 30
OURS = {  # kernels of the harness, and sizes of their parameters
    "stamp": (8, 4),
    "fingerprint": (8, 8, 8),
    "copy_rows": (8, 8, 4, 4, 8, 8),
    **{name: fresh.sizes(name) for name in fresh.KERNELS},
}
_STRUCTS = ("CUlaunchConfig", "CUlaunchAttribute")

# What a lost context still does in the driver: bookkeeping and error texts.
_WORKS_WHEN_LOST = NOISE | {"cuInit", "cuDriverGetVersion", "cuDeviceGet", "cuDeviceGetAttribute"}


class Loaded(str):
    """A function's handle: its name, and what it was loaded from."""

    image: bytes

    def __int__(self) -> int:
        return id(self)


_SIZES = b"sizes of parameters:"


def image(sizes: Sequence[int]) -> bytes:
    """Return bytes to load in place of a cubin whose kernels take parameters of these sizes."""
    return _SIZES + struct.pack(f"<{len(sizes)}I", *sizes)


def parameter_sizes(image: bytes, function: str) -> tuple[int, ...]:
    """Return the sizes of a kernel's parameters in bytes. A cubin has an attribute 0x17 (KPARAM_INFO) for
    each, whose last 14 bits are the size.
    """
    if image.startswith(_SIZES):
        found = image[len(_SIZES) :]
        return struct.unpack(f"<{len(found) // 4}I", found)
    info, at, sizes = nvdisasm.sections(image)[f".nv.info.{function}"], 0, {}
    while at < len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:  # `length` bytes follow; else it is the value
            if attribute == 0x17:
                index, last = struct.unpack_from("<4xH2xI", info, at)
                sizes[index] = last >> 18
            at += length
    return tuple(sizes[i] for i in range(len(sizes)))


class FakeDriver:
    CUresult = CUresult
    CUhostFn = CUstream = cuuint32_t = cuuint64_t = int
    CU_MEMHOSTALLOC_DEVICEMAP = 2

    def __init__(self, *, devices: int = 1, version: int = 13000) -> None:
        self.devices, self.version = devices, version
        self.log: list[tuple[str, tuple[Any, ...]]] = []
        self.live: dict[tuple[str, int], Any] = {}
        self.freed: list[str] = []
        self.sticky = 0
        self.functions: dict[str, tuple[int, ...] | None] = {"kernel": ()}
        self.copied_rows: list[int] = []  # streams of the launches of copy_rows.cu
        self.variables: dict[str, ctypes.Array[ctypes.c_char]] = {}  # of modules, by mangled name
        self.device_attributes, self.function_attributes = dict(DEVICE), dict(FUNCTION)
        self.launches: list[SimpleNamespace] = []
        self.waits: list[tuple[int, int]] = []
        self.execute: Callable[[SimpleNamespace], None] | None = None
        self.memory_device: dict[int, int] = {}
        self.milliseconds = 1.5
        self.sm_ghz = 1.98
        self._stamps = self._cycles = 0
        self.stream_ids: dict[int, int] = {}
        self._captured: list[Callable[[], None]] | None = None
        self._capturing = 0
        self._graph = self._captures = 0  # the handle of the graph that is captured, and how many there were
        self._objects: dict[int, tuple[int, int, list[int]]] = {}  # destructor, argument, who holds one
        self._failures: dict[str, list[int]] = {}
        self._next = 0x1000
        self._thread = threading.local()

    def fail(self, name: str, *codes: int) -> None:
        self._failures.setdefault(name, []).extend(codes)

    def names(self) -> list[str]:
        return [name for name, _ in self.log if name not in NOISE]

    @property
    def stack(self) -> list[int]:
        """Return the calling thread's stack of current contexts."""
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        return self._thread.stack

    def __getattr__(self, name: str) -> Any:
        if name == "CUDA_MEMCPY2D":
            return SimpleNamespace
        if name.startswith("CU"):
            return _plain_object if name in _STRUCTS else _Names()
        function = getattr(type(self), "_" + name, None) if name.startswith("cu") else None
        if function is None:
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            self.log.append((name, args))
            code = self.sticky if name not in _WORKS_WHEN_LOST else 0
            ours = name == "cuLaunchKernelEx" and args[1] in OURS  # planned failures are for others
            if self._failures.get(name) and not ours:
                code = self._failures[name].pop(0)
            values = () if code else function(self, *args)
            if isinstance(values, CUresult):
                return (values,)
            return (CUresult(code), *values)

        return call

    # --- the ledger

    def _add(self, kind: str, value: Any = None, handle: int = 0) -> int:
        self._next += 0x100
        handle = handle or self._next
        self.live[kind, handle] = value
        return handle

    def _drop(self, kind: str, handle: int) -> Any:
        if not self.stack and kind != "context":
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        if (kind, int(handle)) not in self.live:
            return CUresult.CUDA_ERROR_INVALID_VALUE
        del self.live[kind, int(handle)]
        self.freed.append(kind)
        return ()

    # --- driver and devices

    def _cuInit(self, flags: int) -> Any:
        return () if self.devices else CUresult.CUDA_ERROR_NO_DEVICE

    def _cuGetProcAddress(self, symbol: bytes, version: int, flags: int) -> Any:
        found = hasattr(self, "_" + symbol.decode()) and version >= 12_000
        return (id(symbol), 0) if found else CUresult.CUDA_ERROR_NOT_FOUND

    def _cuDriverGetVersion(self) -> Any:
        return (self.version,)

    def _cuGetErrorName(self, code: CUresult) -> Any:
        return (code.name.encode(),)

    def _cuGetErrorString(self, code: CUresult) -> Any:
        return (code.name.removeprefix("CUDA_ERROR_").lower().replace("_", " ").encode(),)

    def _cuDeviceGetCount(self) -> Any:
        return (self.devices,)

    def _cuDeviceGet(self, ordinal: int) -> Any:
        return (ordinal,) if ordinal < self.devices else CUresult.CUDA_ERROR_INVALID_DEVICE

    def _cuDeviceGetName(self, length: int, device: int) -> Any:
        return (b"Fake GPU\0".ljust(length),)

    def _cuDeviceGetPCIBusId(self, length: int, device: int) -> Any:
        return (b"0000:%02X:00.0\0".ljust(length) % device,)

    def _cuDeviceGetUuid(self, device: int) -> Any:
        return (SimpleNamespace(bytes=uuid.UUID(int=(0xA0 + device) << 120).bytes),)

    def _cuDeviceGetAttribute(self, name: str, device: int) -> Any:
        return (self.device_attributes[name],)

    def _cuDeviceTotalMem(self, device: int) -> Any:
        return (MEMORY,)

    # --- contexts

    def _cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        return (self._add("context", self.live.get(("context", 0x10 + device), 0) + 1, 0x10 + device),)

    def _cuDevicePrimaryCtxRelease(self, device: int) -> Any:
        if self.live.get(("context", 0x10 + device), 0) > 1:
            self.live["context", 0x10 + device] -= 1
            return ()
        return self._drop("context", 0x10 + device)

    def _cuCtxCreate(self, params: None, flags: int, device: int) -> Any:
        handle = self._add("context")
        self.stack.append(handle)
        return (handle,)

    def _cuCtxDestroy(self, handle: int) -> Any:
        if self.stack and self.stack[-1] == handle:
            self.stack.pop()
        return self._drop("context", handle)

    def _cuCtxPushCurrent(self, handle: int) -> Any:
        self.stack.append(handle)
        return ()

    def _cuCtxPopCurrent(self) -> Any:
        return (self.stack.pop(),) if self.stack else CUresult.CUDA_ERROR_INVALID_CONTEXT

    def _cuCtxGetCurrent(self) -> Any:
        return (self.stack[-1] if self.stack else 0,)

    def _cuCtxGetDevice(self) -> Any:
        handle = self.stack[-1]
        return (handle - 0x10 if 0 <= handle - 0x10 < self.devices else 0,)

    def _cuCtxSynchronize(self) -> Any:
        return ()

    # --- memory: each allocation is a ctypes buffer, its address the device address

    def _used(self) -> int:
        return sum(ctypes.sizeof(memory) for (kind, _), memory in list(self.live.items()) if kind == "memory")

    def _allocate(self, kind: str, nbytes: int) -> Any:
        if not self.stack:
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        if self._used() + nbytes > MEMORY:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY
        memory = ctypes.create_string_buffer(nbytes)
        return (self._add(kind, memory, handle=ctypes.addressof(memory)),)

    def _cuPointerGetAttribute(self, attribute: str, pointer: int) -> Any:
        """Answer for memory that is allocated; `memory_device` says on which device it is."""
        for (kind, address), memory in list(self.live.items()):  # other threads may allocate
            if kind == "memory" and address <= pointer < address + ctypes.sizeof(memory):
                return (self.memory_device.get(address, 0),)
        return CUresult.CUDA_ERROR_INVALID_VALUE

    def _cuMemAlloc(self, nbytes: int) -> Any:
        if self._captures_forbid:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        return self._allocate("memory", nbytes)

    def _cuMemFree(self, pointer: int) -> Any:
        if self._captures_forbid:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        return self._drop("memory", pointer)

    def _cuMemHostAlloc(self, nbytes: int, flags: int) -> Any:
        return self._allocate("pinned", nbytes)

    def _cuMemFreeHost(self, pointer: int) -> Any:
        return self._drop("pinned", pointer)

    def _cuMemHostGetDevicePointer(self, pointer: int, flags: int) -> Any:
        return (pointer,)

    def _cuCtxResetPersistingL2Cache(self) -> Any:
        return ()

    def _cuMemGetInfo(self) -> Any:
        return MEMORY - self._used(), MEMORY

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> Any:
        ctypes.memmove(target, source, nbytes)
        return ()

    _cuMemcpyHtoDAsync = _cuMemcpyDtoHAsync = _cuMemcpyDtoDAsync = _copy

    def _cuMemAllocAsync(self, nbytes: int, stream: int) -> Any:
        """Allocate; in a captured stream the memory stays, and has no useful content when the graph runs."""
        if not self._is_captured(stream):
            return self._allocate("memory", nbytes)
        (address,) = self._allocate("graph memory", nbytes)
        self._queue(stream, lambda: ctypes.memset(address, 0xFF, nbytes))
        return (address,)

    def _cuMemFreeAsync(self, pointer: int, stream: int) -> Any:
        if not self._is_captured(stream):
            return self._drop("memory", pointer)
        if ("graph memory", pointer) not in self.live:
            return CUresult.CUDA_ERROR_INVALID_VALUE
        memory = self.live["graph memory", pointer]
        self._drop("graph memory", pointer)
        self._queue(stream, lambda: ctypes.memset(pointer, 0xFF, ctypes.sizeof(memory)))
        return ()

    def _cuMemsetD32Async(self, pointer: int, value: int, count: int, stream: int) -> Any:
        words = value.to_bytes(4, "little") * count
        self._queue(stream, lambda: ctypes.memmove(pointer, words, 4 * count))
        return ()

    def _cuTensorMapEncodeTiled(self, *args: Any) -> Any:
        """Encode a descriptor that tests can read: the address, then a digest of the other arguments."""
        rest = hashlib.sha256(repr((*args[:2], *args[3:])).encode()).digest()
        memory = ctypes.create_string_buffer(args[2].to_bytes(8, "little") + rest, 128)
        return (SimpleNamespace(getPtr=lambda: ctypes.addressof(memory)),)

    # --- streams and events

    def _cuStreamCreate(self, flags: str) -> Any:
        return (self._add("stream"),) if self.stack else CUresult.CUDA_ERROR_INVALID_CONTEXT

    def _cuStreamDestroy(self, stream: int) -> Any:
        return self._drop("stream", stream)

    def _cuStreamSynchronize(self, stream: int) -> Any:
        return ()

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> Any:
        return ()

    def _cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: str) -> Any:
        self.waits.append((address, value))
        return ()

    def held(self) -> bool:
        """Tell if the last `cuStreamWaitValue32` still waits (for a value greater or equal, cyclically)."""
        address, value = self.waits[-1]
        return (ctypes.c_uint32.from_address(address).value - value) % 2**32 >= 2**31

    def _cuEventCreate(self, flags: str) -> Any:
        return (self._add("event", flags),)

    def _cuEventDestroy(self, event: int) -> Any:
        return self._drop("event", event)

    def _cuEventRecord(self, event: int, stream: int) -> Any:
        return ()

    def _cuEventRecordWithFlags(self, event: int, stream: int, flags: str) -> Any:
        assert self._is_captured(stream), "elsewhere an external record is an error"
        assert flags == "CU_EVENT_RECORD_EXTERNAL", "else it is no node of the graph"
        return ()

    def _cuEventQuery(self, event: int) -> Any:
        return ()

    def _cuEventSynchronize(self, event: int) -> Any:
        return ()

    def _cuEventElapsedTime(self, start: int, end: int) -> Any:
        return (self.milliseconds,)

    # --- modules and launches

    def _cuModuleLoadData(self, image: bytes) -> Any:
        return (self._add("module", image),)

    def _cuModuleUnload(self, module: int) -> Any:
        return self._drop("module", module)

    def _cuModuleGetFunction(self, module: int, name: bytes) -> Any:
        function = Loaded(name.decode())
        function.image = self.live["module", module]
        found = function in self.functions or function in OURS
        return (function,) if found else CUresult.CUDA_ERROR_NOT_FOUND

    def _cuModuleGetGlobal(self, module: int, name: bytes) -> Any:
        if name.decode() not in self.variables:
            return CUresult.CUDA_ERROR_NOT_FOUND
        memory = self.variables[name.decode()]
        return ctypes.addressof(memory), len(memory)

    def _cuModuleGetFunctionCount(self, module: int) -> Any:
        return (len(self.functions),)

    def _cuModuleEnumerateFunctions(self, count: int, module: int) -> Any:
        return (list(self.functions)[:count],)

    def _cuFuncGetName(self, function: str) -> Any:
        return (function.encode(),)

    def _cuFuncLoad(self, function: str) -> Any:
        return ()

    def _cuFuncGetAttribute(self, attribute: str, function: str) -> Any:
        return (self.function_attributes[attribute],)

    def _cuFuncSetAttribute(self, function: str, attribute: str, value: int) -> Any:
        return ()

    def _cuFuncGetParamInfo(self, function: str, index: int) -> Any:
        sizes = self._sizes(function)
        return (0, sizes[index]) if index < len(sizes) else CUresult.CUDA_ERROR_INVALID_VALUE

    def _sizes(self, function: Loaded) -> tuple[int, ...]:
        sizes = OURS.get(function) or self.functions[function]
        return parameter_sizes(function.image, function) if sizes is None else sizes

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: str, threads: int, shared: int) -> Any:
        return (2048 // (-(-threads // 32) * 32),)

    def _cuLaunchKernelEx(self, config: Any, function: str, parameters: int, extra: int) -> Any:
        dims = tuple(getattr(config, part + "Dim" + axis) for part in ("grid", "block") for axis in "XYZ")
        given = {a.id: a.value for a in getattr(config, "attrs", [])}
        clustered = given.get("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")
        cluster = vars(clustered.clusterDim) if clustered else {}
        size = tuple(cluster[axis] for axis in "xyz") if cluster else None
        shared, stream = config.sharedMemBytes, config.hStream

        if function in fresh.KERNELS:
            fresh.run(function, (ctypes.c_void_p * len(fresh.KERNELS[function])).from_address(parameters))
            return ()
        if function in OURS:
            getattr(self, "_" + function)(parameters, stream)
            return ()
        sizes = self._sizes(function)
        addresses = (ctypes.c_void_p * len(sizes)).from_address(parameters) if sizes else ()
        launch = SimpleNamespace(
            function=function,
            grid=dims[:3],
            block=dims[3:],
            shared=shared,
            stream=stream,
            cooperative="CU_LAUNCH_ATTRIBUTE_COOPERATIVE" in given,
            programmatic="CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION" in given,
            args=[ctypes.string_at(at, size) for at, size in zip(addresses, sizes, strict=True)],
            addresses=list(addresses),
            cluster=size,
        )
        self._queue(stream, lambda: self._launched(launch))
        return ()

    def _stamp(self, parameters: int, stream: int) -> None:
        (address,) = (ctypes.c_void_p * 1).from_address(parameters)
        entries = ctypes.c_uint64.from_address(address).value
        self._stamps += 1
        self._cycles += int(10_000_000 * self.sm_ghz)
        (ctypes.c_uint64 * 2).from_address(entries)[:] = self._cycles, 10_000_000 * self._stamps

    def _fingerprint(self, parameters: int, stream: int) -> None:
        """Write 16 bytes that stand for the content."""
        data, nbytes, sums = (
            ctypes.c_uint64.from_address(at).value for at in (ctypes.c_void_p * 3).from_address(parameters)
        )
        contents = ctypes.string_at(data, nbytes)
        ctypes.memmove(sums, hashlib.blake2b(contents, digest_size=16).digest(), 16)

    def _copy_rows(self, parameters: int, stream: int) -> None:
        given = zip((ctypes.c_void_p * 6).from_address(parameters), OURS["copy_rows"], strict=True)
        values = struct.unpack("=QQIIqq", b"".join(ctypes.string_at(at, size) for at, size in given))
        source, target, rows, width, *pitches = values
        assert width <= min(pitches) and pitches[1] % 16 == target % 16 == 0
        self.copied_rows.append(int(stream))

        def run() -> None:
            for row in range(rows):
                ctypes.memmove(target + row * pitches[1], source + row * pitches[0], width)

        self._queue(stream, run)

    def _cuStreamBeginCapture(self, stream: int, mode: str) -> Any:
        self._captured, self._capturing = [], int(stream)
        self._next += 0x100
        self._graph, self._captures = self._next, self._captures + 1
        return ()

    def _cuStreamGetCaptureInfo(self, stream: int) -> Any:
        assert self._is_captured(stream)
        return ("CU_STREAM_CAPTURE_STATUS_ACTIVE", self._captures, self._graph, [], [], 0)

    def _cuUserObjectCreate(self, argument: int, destructor: int, count: int, flags: str) -> Any:
        assert (count, flags) == (1, "CU_USER_OBJECT_NO_DESTRUCTOR_SYNC")
        self._next += 0x100
        self._objects[self._next] = destructor, argument, []
        return (self._next,)

    def _cuUserObjectRelease(self, held: int, count: int) -> Any:
        self._let_go(0)
        return ()

    def _cuGraphRetainUserObject(self, graph: int, held: int, count: int, flags: str) -> Any:
        assert (count, flags) == (1, "CU_GRAPH_USER_OBJECT_MOVE")
        self._objects[held][2].append(graph)
        return ()

    def _let_go(self, holder: int) -> None:
        for key, (destructor, argument, holders) in list(self._objects.items()):
            if holder in holders:
                holders.remove(holder)
            if not holders:
                ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destructor)(argument)
                del self._objects[key]

    def _is_captured(self, stream: int) -> bool:
        return self._captured is not None and self._capturing == int(stream)

    def _queue(self, stream: int, work: Callable[[], object]) -> None:
        """Run `work` at once; in a captured stream keep it for the launch of the graph."""
        if self._captured is not None and self._capturing == int(stream):
            self._captured.append(work)
        else:
            work()

    @property
    def _captures_forbid(self) -> bool:
        return self._captured is not None and self._mode != "CU_STREAM_CAPTURE_MODE_RELAXED"

    @property
    def _mode(self) -> str:
        return getattr(self._thread, "mode", "CU_STREAM_CAPTURE_MODE_GLOBAL")

    def _cuThreadExchangeStreamCaptureMode(self, mode: str) -> Any:
        before, self._thread.mode = self._mode, mode
        return (before,)

    def _cuStreamIsCapturing(self, stream: int) -> Any:
        return ("CU_STREAM_CAPTURE_STATUS_" + ("ACTIVE" if self._is_captured(stream) else "NONE"),)

    def _cuStreamGetId(self, stream: int) -> Any:
        if self._is_captured(stream):
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        return (self.stream_ids.get(int(stream), int(stream)),)

    def _cuStreamEndCapture(self, stream: int) -> Any:
        captured, self._captured = self._captured, None
        return (self._add("graph", captured, self._graph),)

    def _cuGraphInstantiate(self, graph: int, flags: int) -> Any:
        made = self._add("executable", self.live["graph", graph])
        for *_, holders in self._objects.values():
            if graph in holders:
                holders.append(made)
        return (made,)

    def _cuGraphLaunch(self, executable: int, stream: int) -> Any:
        for launch in self.live["executable", executable]:
            launch()
        return ()

    def _cuGraphDestroy(self, graph: int) -> Any:
        self._let_go(graph)
        return self._drop("graph", graph)

    def _cuGraphExecDestroy(self, executable: int) -> Any:
        self._let_go(executable)
        return self._drop("executable", executable)

    def _launched(self, launch: SimpleNamespace) -> None:
        self.launches.append(launch)
        if self.execute is not None:
            self.execute(launch)


def _plain_object() -> SimpleNamespace:
    return SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))


def install(monkeypatch: Any, **options: Any) -> FakeDriver:
    fake = FakeDriver(**options)
    monkeypatch.setattr(api, "bindings", lambda: fake)
    monkeypatch.setattr(tools, "library", no_library)
    return fake


def no_library(name: str, *, hint: str) -> Any:
    """Find no cuBLAS: the real one would take what this driver hands out for addresses on a real GPU."""
    raise MissingDependency(f"{name} cannot be loaded: none here", hint=hint)
