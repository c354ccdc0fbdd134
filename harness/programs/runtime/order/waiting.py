"""Streams and events of a program: what waits for what. All work is done at once, when it is asked for."""

from __future__ import annotations

import ctypes
import itertools
import time

from harness.programs.runtime import host
from harness.programs.runtime.host import INVALID_HANDLE, INVALID_VALUE, Misuse
from harness.programs.runtime.order.clocks import NONBLOCKING
from harness.programs.runtime.order.operations import Operations

_FIRST = 3 << 32  # of the handles of streams, events and the like


class Waiting:
    """The functions of CUDA's runtime that wait for work, and those that say what went wrong.

    over: the error of the device from which no call recovers, 0 without one
    """

    def __init__(self, operations: Operations) -> None:
        self.over = 0
        self._operations, self._clocks = operations, operations.clocks
        self._handles = itertools.count(_FIRST, 64)
        self._made: set[int] = set()  # streams and events
        self._recorded: dict[int, float] = {}
        self._texts: dict[str, ctypes.Array[ctypes.c_char]] = {}

    def a_handle(self, caller: int, to: int) -> int:
        """Return a number that no stream or event has."""
        handle = next(self._handles)
        self._made.add(handle)
        return handle

    def cudaStreamCreate(self, caller: int, to: int, flags: int = 0, *_: int) -> None:
        host.put(to, self.a_handle(caller, to))
        self._operations.create(host.pointer(to), flags, caller)

    cudaStreamCreateWithFlags = cudaStreamCreateWithPriority = cudaStreamCreate

    def the_flags_of_a_stream(self, caller: int, stream: int) -> int:
        return 0 if self._clocks.blocking(self._clocks.stream(stream)) else NONBLOCKING

    def cudaEventDestroy(self, caller: int, handle: int) -> None:
        """Forget a stream or an event."""
        if handle not in self._made:
            raise Misuse(INVALID_HANDLE, "what was not created, or was destroyed")
        self._made.discard(handle)

    cudaStreamDestroy = cudaEventDestroy  # what is in the stream goes on

    # -- the host waits

    def cudaDeviceSynchronize(self, *_: int) -> int:
        self._clocks.wait_for_all()
        return self.over

    cudaDeviceReset = cudaDeviceSynchronize

    def cudaStreamSynchronize(self, caller: int, stream: int) -> int:
        self._clocks.learn(self._clocks.before(self._clocks.stream(stream)))
        return self.over

    cudaStreamQuery = cudaStreamSynchronize

    def cudaEventSynchronize(self, caller: int, event: int) -> int:
        self._clocks.wait_for_event(event)
        return self.over

    cudaEventQuery = cudaEventSynchronize

    def a_host_function(self, caller: int, stream: int) -> None:
        """Let host code know what a function of its own comes after that a stream is about to call."""
        if self._operations.running is not None:
            self._clocks.learn(self._operations.running.clock)

    def record(self, event: int, stream: int) -> None:
        """Record an event in a stream, and note when."""
        line = self._clocks.stream(stream)
        self._clocks.record(event, line)
        self._operations.apart(line)
        self._recorded[event] = time.monotonic()

    def wait(self, stream: int, event: int) -> None:
        """Let a stream wait for an event."""
        line = self._clocks.stream(stream)
        self._clocks.wait(line, event)
        self._operations.apart(line)

    def cudaEventElapsedTime(self, caller: int, to: int, begin: int, end: int) -> None:
        """Tell how long the emulator took: a positive number, since programs divide by it."""
        for event in (begin, end):
            if event not in self._recorded:
                raise Misuse(INVALID_VALUE, "an event that was not recorded")
            self._clocks.wait_for_event(event)
        elapsed = (self._recorded[end] - self._recorded[begin]) * 1e3
        ctypes.c_float.from_address(to).value = max(elapsed, 1e-3)

    # -- errors

    def cudaGetErrorName(self, caller: int, code: int) -> int:
        return self._lasting(host.error_name(code))

    def cudaGetErrorString(self, caller: int, code: int) -> int:
        return self._lasting(host.error_text(code))

    def _lasting(self, text: str) -> int:
        """Return the address of a text that stays."""
        held = self._texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(held)
