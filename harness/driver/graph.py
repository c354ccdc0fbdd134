"""CUDA graphs: work that is captured once and then launched with one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from harness.driver import api
from harness.driver.context import Resource
from harness.driver.stream import Stream, require_stream
from harness.errors import DriverError


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
