"""What the fake driver returns, what lives in it, and its devices and contexts."""

from __future__ import annotations

import threading
import uuid
from enum import IntEnum
from types import SimpleNamespace
from typing import Any


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


class Contexts:
    """The ledger, the devices, and each thread's stack of current contexts."""

    def __init__(self, *, devices: int = 1, version: int = 13000) -> None:
        self.devices, self.version = devices, version
        self.device_attributes, self.total_memory = dict(DEVICE), 1 << 30
        self.live: dict[tuple[str, int], Any] = {}
        self.freed: list[str] = []
        self._next = 0x1000
        self._thread = threading.local()

    @property
    def stack(self) -> list[int]:
        """Return the calling thread's stack of current contexts."""
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        return self._thread.stack

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
        return (self.total_memory,)

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
