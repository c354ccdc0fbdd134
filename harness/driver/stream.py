"""Streams, which order work on the GPU, and events, which mark and time points in them."""

from __future__ import annotations

from typing import Any

from harness.driver import api
from harness.driver.context import Context, Resource
from harness.errors import DriverError, UsageError

_NOT_READY = 600


class Stream(Resource):
    """A queue of work on the GPU, independent of the legacy default stream (``CU_STREAM_NON_BLOCKING``)."""

    free_call = "cuStreamDestroy"
    free_waits = False

    def __init__(self, context: Context) -> None:
        flags = api.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING
        super().__init__(context, context.call("cuStreamCreate", flags))

    def synchronize(self) -> None:
        """Wait for all work queued so far. The fault of an earlier launch is raised here as ContextLost.

        Raises UsageError while a `Gate` holds this stream.
        """
        self.context.refuse_if_held(self)
        self.context.call("cuStreamSynchronize", self.handle)

    @property
    def id(self) -> int:
        """The driver's number for this stream, which is never used again.

        A stream's address does not identify it: a later stream may have the same one, and the per-thread
        default streams all share one. Read it where the context is current.
        """
        return int(api.call("cuStreamGetId", self.handle))

    @property
    def capturing(self) -> bool:
        """True if work queued now becomes part of a graph. Read it where the context is current."""
        idle = api.bindings().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        return bool(api.call("cuStreamIsCapturing", self.handle) != idle)

    @property
    def capture(self) -> tuple[int, Any]:
        """The driver's number for the capture that is under way, never used again, and the graph it makes.

        The graph may be given user objects, and is destroyed by whoever ends the capture. Read it where the
        context is current and the stream is `capturing`. Raises UsageError for a capture that an error ended.
        """
        status, number, graph, *_nodes = api.call("cuStreamGetCaptureInfo", self.handle)
        if status != api.bindings().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            raise UsageError("the capture of this stream is invalid", hint="an earlier call in it failed")
        return int(number), graph

    def wait(self, event: Event) -> None:
        """Let work queued in this stream from now on start only after `event`; returns at once."""
        self.context.call("cuStreamWaitEvent", self.handle, event.handle, 0)


class BorrowedStream(Stream):
    """A stream that other code made in this context, given by its address; it is used but never destroyed."""

    def __init__(self, context: Context, address: int) -> None:
        Resource.__init__(self, context, api.bindings().CUstream(address))

    def _free(self, handle: Any) -> None:
        """Do nothing: the stream belongs to other code."""


class Event(Resource):
    """A point in a stream.

    With ``timing=False`` it is cheaper, but only orders work and measures no time.
    """

    free_call = "cuEventDestroy"
    free_waits = False

    def __init__(self, context: Context, *, timing: bool = True) -> None:
        flags = api.bindings().CUevent_flags
        self.timing = timing
        self._stream: Stream | None = None
        flag = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        super().__init__(context, context.call("cuEventCreate", flag))

    def record(self, stream: Stream) -> None:
        """Mark the point behind all work queued in `stream` so far; this replaces an earlier mark."""
        self.context.call("cuEventRecord", self.handle, require_stream(stream).handle)
        self._stream = stream

    def record_in_graph(self, stream: Stream) -> None:
        """Mark the point in the graph that `stream` is captured for: each run of the graph marks it anew.

        The host has no part in what lies between two such marks. Raises DriverError where `stream` is not
        being captured.
        """
        flag = api.bindings().CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        self.context.call("cuEventRecordWithFlags", self.handle, require_stream(stream).handle, flag)

    @property
    def done(self) -> bool:
        """True if the GPU has passed the mark, or nothing was ever recorded."""
        try:
            self.context.call("cuEventQuery", self.handle)
        except DriverError as error:
            if error.code != _NOT_READY:
                raise
            return False
        return True

    def synchronize(self) -> None:
        """Wait until the GPU has passed the mark. Raises UsageError while a `Gate` holds its stream."""
        if self._stream is not None:
            self.context.refuse_if_held(self._stream)
        self.context.call("cuEventSynchronize", self.handle)

    def seconds_since(self, start: Event) -> float:
        """Return the GPU time from `start` to this event in seconds, with a resolution of about 0.5 us.

        Both must have been recorded and passed (`synchronize` the later one). Two events with nothing between
        them are some microseconds apart. Raises UsageError if either was made with ``timing=False``.
        """
        if not (self.timing and start.timing):
            raise UsageError("an event made with timing=False tells no time")
        return float(self.context.call("cuEventElapsedTime", start.handle, self.handle)) * 1e-3


def require_stream(stream: Any) -> Stream:
    """Return `stream` if it is a `Stream`.

    Raises UsageError for anything else, None included: there is no default stream here.
    """
    if not isinstance(stream, Stream):
        raise UsageError(
            f"a Stream is needed, not {stream!r}",
            hint="make one with Stream(context) and pass it to every call: there is no default stream",
        )
    return stream
