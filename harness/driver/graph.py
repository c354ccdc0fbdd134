"""CUDA graphs: work that is captured once and then launched with one call, and how long it can be."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from harness.driver import api
from harness.driver.context import Resource
from harness.driver.stream import Stream, require_stream
from harness.errors import DriverError

_SEMAPHORE = 64  # room for a semaphore of any C library


class Graph(Resource):
    """The work that ``enqueue(stream)`` queues, captured as a graph: ``graph(stream)`` runs all of it.

    Nothing runs during the capture. `enqueue` must not wait, allocate or load modules. The graph does not
    keep the buffers and modules of its launches alive: they must outlive it. Raises UsageError if a `Gate`
    holds the stream.
    """

    free_call = "cuGraphExecDestroy"

    def __init__(self, stream: Stream, enqueue: Callable[[Stream], object]) -> None:
        context, handle = require_stream(stream).context, stream.handle
        context.refuse_if_held(stream)
        mode = api.bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        context.call("cuStreamBeginCapture", handle, mode)
        try:
            enqueue(stream)
        except BaseException:
            with suppress(DriverError):  # end the capture; only the first error is of interest
                context.call("cuGraphDestroy", context.call("cuStreamEndCapture", handle))
            raise
        captured = context.call("cuStreamEndCapture", handle)
        try:
            executable = context.call("cuGraphInstantiate", captured, 0)
        finally:
            context.call("cuGraphDestroy", captured)
        super().__init__(context, executable)

    def __call__(self, stream: Stream) -> None:
        """Queue one run of the graph in `stream`."""
        self.context.call("cuGraphLaunch", self.handle, require_stream(stream).handle)


@contextmanager
def outside_captures() -> Iterator[None]:
    """Allow allocating and freeing in this block while a stream is being captured.

    The driver otherwise forbids these calls, since a replay of the graph would not repeat them; this sets
    ``CU_STREAM_CAPTURE_MODE_RELAXED`` for the thread. Use it for memory that no graph is to own.
    """
    relaxed = api.bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = api.call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        api.call("cuThreadExchangeStreamCaptureMode", before)


class GraphLifetime:
    """Knows when the graph into which `stream` is being captured is gone, with its executables and clones.

    The graph holds a user object, whose destructor the driver runs in a thread of its own, where no call of
    CUDA is allowed, and where Python might have ended already. So the destructor is C's ``sem_post``, and the
    semaphore is memory that is freed only after it was seen posted.
    """

    def __init__(self, stream: Stream) -> None:
        library, driver = _library(), api.bindings()
        graph = stream.capture[1]
        self._semaphore: int | None = library.malloc(_SEMAPHORE)
        if self._semaphore is None:
            raise MemoryError
        library.sem_init(self._semaphore, 0, 0)
        post = ctypes.cast(library.sem_post, ctypes.c_void_p).value
        flags = driver.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
        held = api.call("cuUserObjectCreate", self._semaphore, driver.CUhostFn(post), 1, flags)
        moved = driver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
        try:
            api.call("cuGraphRetainUserObject", graph, held, 1, moved)
        except DriverError:
            api.call("cuUserObjectRelease", held, 1)
            raise

    @property
    def over(self) -> bool:
        """True once nothing is left that could launch the graph's work."""
        if self._semaphore is not None and _library().sem_trywait(self._semaphore) == 0:
            _library().sem_destroy(self._semaphore)
            _library().free(self._semaphore)
            self._semaphore = None
        return self._semaphore is None


@functools.cache
def _library() -> Any:
    """Return C's library, with the signatures of what is called here."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    for name in ("sem_post", "sem_trywait", "sem_destroy"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    return library
