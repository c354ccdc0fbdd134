"""Streams and events of a program, all of whose work is done at once, and the texts of errors."""

from __future__ import annotations

import ctypes
import itertools
import time

from harness.programs.runtime import host
from harness.programs.runtime.host import INVALID_HANDLE, INVALID_VALUE, Misuse


class Waiting:
    """The functions of CUDA's runtime that wait for work, and those that say what went wrong.

    over: the error of the device from which no call recovers, 0 without one
    """

    def __init__(self) -> None:
        self.over = 0
        self._handles = itertools.count(1)
        self._made: set[int] = set()  # streams and events
        self._recorded: dict[int, float] = {}
        self._texts: dict[str, ctypes.Array[ctypes.c_char]] = {}

    def a_handle(self, caller: int, to: int) -> int:
        """Return a number that no stream or event has."""
        handle = next(self._handles)
        self._made.add(handle)
        return handle

    def cudaEventDestroy(self, caller: int, handle: int) -> None:
        """Forget a stream or an event."""
        if handle not in self._made:
            raise Misuse(INVALID_HANDLE, "what was not created, or was destroyed")
        self._made.discard(handle)

    cudaStreamDestroy = cudaEventDestroy

    def cudaDeviceSynchronize(self, *_: int) -> int:
        return self.over

    cudaStreamSynchronize = cudaStreamQuery = cudaEventSynchronize = cudaDeviceSynchronize
    cudaEventQuery = cudaDeviceReset = cudaDeviceSynchronize

    def record(self, event: int) -> None:
        """Note when an event was recorded."""
        self._recorded[event] = time.monotonic()

    def cudaEventElapsedTime(self, caller: int, to: int, begin: int, end: int) -> None:
        """Tell how long the emulator took: a positive number, since programs divide by it."""
        if begin not in self._recorded or end not in self._recorded:
            raise Misuse(INVALID_VALUE, "an event that was not recorded")
        elapsed = (self._recorded[end] - self._recorded[begin]) * 1e3
        ctypes.c_float.from_address(to).value = max(elapsed, 1e-3)

    def cudaGetErrorName(self, caller: int, code: int) -> int:
        return self._lasting(host.error_name(code))

    def cudaGetErrorString(self, caller: int, code: int) -> int:
        return self._lasting(host.error_text(code))

    def _lasting(self, text: str) -> int:
        """Return the address of a text that stays."""
        held = self._texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(held)
