"""Memory of the fake driver: each allocation is a ctypes buffer, its address the device address."""

from __future__ import annotations

import ctypes
import hashlib
from types import SimpleNamespace
from typing import Any

from fakes.driver.contexts import CUresult
from fakes.driver.streams import Streams


class Memory(Streams):
    """Device memory, pinned memory, and what a captured stream allocates."""

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self.memory_device: dict[int, int] = {}

    def _used(self) -> int:
        return sum(ctypes.sizeof(memory) for (kind, _), memory in list(self.live.items()) if kind == "memory")

    def _allocate(self, kind: str, nbytes: int) -> Any:
        if not self.stack:
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        if self._used() + nbytes > self.total_memory:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY
        memory = ctypes.create_string_buffer(nbytes)
        return (self._add(kind, memory, handle=ctypes.addressof(memory)),)

    def _cuMemGetInfo(self) -> Any:
        return self.total_memory - self._used(), self.total_memory

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
