"""Hold work back until the host has queued all of it, so that launch latency stays out of timings."""

from __future__ import annotations

import atexit
import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.driver import api
from harness.driver.context import Context, Resource
from harness.driver.stream import Stream, require_stream


class Gate(Resource):
    """A word in pinned memory that streams wait for.

    ::

        with gate.holding(stream):       # opens at the end, also through an exception
            start.record(stream); launch(stream); stop.record(stream)
        stop.synchronize()

    While it is closed:

    * Queue at most a few hundred calls: at about 1024 the launch queue is full, and the next launch waits
      for the gate that the same thread would have to open.
    * Do not wait for held work, allocate, or load a module. `synchronize`, `upload` and `download` refuse
      with `UsageError`; a free, closing and the end of the process open the gate by themselves.
    """

    free_call = "cuMemFreeHost"

    def __init__(self, context: Context) -> None:
        self._passage = 0
        self._streams: set[Stream] = set()
        flag = api.bindings().CU_MEMHOSTALLOC_DEVICEMAP
        address = context.call("cuMemHostAlloc", 4, flag)
        super().__init__(context, address)
        self._word = ctypes.c_uint32.from_address(int(address))
        self._word.value = 0
        self._device_word = context.call("cuMemHostGetDevicePointer", address, 0)
        context.gates.add(self)
        _gates.add(self)

    def close_on(self, stream: Stream) -> None:
        """Queue a wait: work queued in `stream` after this starts only after `open`. Prefer `holding`."""
        _ = self.handle  # UsageError once closed: the word is gone
        handle = require_stream(stream).handle
        # Counting passages up, instead of resetting the word, cannot shut out a stream that was let
        # through but that the GPU has not come to yet.
        self._passage = (self._passage + 1) % 2**32
        wait = api.bindings().CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        # Noted before it is queued: an interrupt that arrives with the call's return must find it to open.
        self._streams.add(stream)
        self.context.call("cuStreamWaitValue32", handle, self._device_word, self._passage, wait)

    def open(self) -> None:
        """Let every held stream go on."""
        if not self.closed:  # once closed the word is somebody else's memory
            self._let_through()

    def _let_through(self) -> None:
        self._word.value = self._passage
        self._streams.clear()

    @contextmanager
    def holding(self, stream: Stream) -> Iterator[None]:
        """Closed on `stream` inside the block, open after it, however it ends."""
        try:
            self.close_on(stream)
            yield
        finally:
            self.open()

    def holds(self, stream: Stream | None = None) -> bool:
        """Whether `stream` (None: any stream) waits for this gate to be opened."""
        return bool(self._streams) if stream is None else stream in self._streams

    def _free(self, handle: Any) -> None:
        self._let_through()
        if self._passage and not (self.context.lost or self.context.closed):
            # The GPU may still be reading the word.
            self.context.open_gates()
            self.context.synchronize()
        super()._free(handle)


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


@atexit.register
def _open_all() -> None:
    # A process that ends with a gate closed would hang in the driver's own clean-up.
    for gate in list(_gates):
        gate.open()
