"""CUDA graphs: work captured once, queued by one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from harness.driver import api
from harness.driver.context import Resource
from harness.driver.stream import Stream, require_stream
from harness.errors import DriverError


class Graph(Resource):
    """What `enqueue` queues in a stream, as a graph: ``graph(stream)`` runs all of it.

    Nothing runs while it is captured. `enqueue` must not wait, allocate or load modules; the launches'
    buffers and modules must outlive the graph, which does not hold them.
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
            with suppress(DriverError):  # ends the capture; what went wrong has been said
                context.call("cuGraphDestroy", context.call("cuStreamEndCapture", handle))
            raise
        captured = context.call("cuStreamEndCapture", handle)
        try:
            executable = context.call("cuGraphInstantiate", captured, 0)
        finally:
            context.call("cuGraphDestroy", captured)
        super().__init__(context, executable)

    def __call__(self, stream: Stream) -> None:
        self.context.call("cuGraphLaunch", self.handle, require_stream(stream).handle)


@contextmanager
def outside_captures() -> Iterator[None]:
    """Allocate and free in the block although some stream is being captured: the driver forbids what a
    replay would not repeat (``CU_STREAM_CAPTURE_MODE_RELAXED``). For memory that no graph is to own.
    """
    relaxed = api.bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = api.call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        api.call("cuThreadExchangeStreamCaptureMode", before)
