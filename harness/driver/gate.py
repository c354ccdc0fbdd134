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
    """A word in page-locked host memory that streams wait for.

    ::

        with gate.holding(stream):       # opens at the end, also through an exception
            start.record(stream); launch(stream); stop.record(stream)
        stop.synchronize()

    While it is closed:

    * Queue at most a few hundred calls: at about 1024 the launch queue is full, and the next launch waits
      for the gate that the same thread would have to open.
    * Do not wait for held work, allocate, or load a module. `synchronize`, `upload` and `download` raise
      UsageError; freeing a resource, closing the context and the end of the process open the gate.
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
        # The word only counts up. Resetting it could block a stream again that was let through but whose
        # wait the GPU has not reached yet.
        self._passage = (self._passage + 1) % 2**32
        wait = api.bindings().CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        # Noted before the call: if Ctrl-C arrives as the call returns, `open` must know of the wait.
        self._streams.add(stream)
        self.context.call("cuStreamWaitValue32", handle, self._device_word, self._passage, wait)

    def open(self) -> None:
        """Let the work in every held stream start."""
        if not self.closed:  # once closed, the word may be memory of something else
            self._let_through()

    def _let_through(self) -> None:
        """Write the latest number of passages to the word that the streams wait for."""
        self._word.value = self._passage
        self._streams.clear()

    @contextmanager
    def holding(self, stream: Stream) -> Iterator[None]:
        """Hold `stream` for the block; the gate opens at the end, however the block ends."""
        try:
            self.close_on(stream)
            yield
        finally:
            self.open()

    def holds(self, stream: Stream | None = None) -> bool:
        """Return True if `stream` (None: any stream) waits for this gate to be opened."""
        return bool(self._streams) if stream is None else stream in self._streams

    def _free(self, handle: Any) -> None:
        """Open the gate and wait for the device, which may still be reading the word, before it is freed."""
        self._let_through()
        if self._passage and not (self.context.lost or self.context.closed):
            self.context.open_gates()
            self.context.synchronize()
        super()._free(handle)


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


@atexit.register
def _open_all() -> None:
    """Open every gate at the end of the process."""
    # With a closed gate the process would hang in the driver's own clean-up.
    for gate in list(_gates):
        gate.open()
