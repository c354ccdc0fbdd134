"""Streams, events, captures and graphs of the fake driver: what is queued is done at once, or captured."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from fakes.driver.contexts import Contexts, CUresult


class Streams(Contexts):
    """Streams that queue nothing. A captured one keeps what is queued until its graph is launched."""

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self.waits: list[tuple[int, int]] = []
        self.milliseconds = 1.5
        self.stream_ids: dict[int, int] = {}
        self._captured: list[Callable[[], object]] | None = None
        self._capturing = 0
        self._graph = self._captures = 0  # the handle of the graph that is captured, and how many there were
        self._objects: dict[int, tuple[int, int, list[int]]] = {}  # destructor, argument, who holds one

    # --- streams

    def _queue(self, stream: int, work: Callable[[], object]) -> None:
        """Run `work` at once; in a captured stream keep it for the launch of the graph."""
        if self._captured is not None and self._capturing == int(stream):
            self._captured.append(work)
        else:
            work()

    def _cuStreamCreate(self, flags: str) -> Any:
        return (self._add("stream"),) if self.stack else CUresult.CUDA_ERROR_INVALID_CONTEXT

    def _cuStreamDestroy(self, stream: int) -> Any:
        return self._drop("stream", stream)

    def _cuStreamSynchronize(self, stream: int) -> Any:
        return ()

    def _cuStreamGetId(self, stream: int) -> Any:
        if self._is_captured(stream):
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        return (self.stream_ids.get(int(stream), int(stream)),)

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> Any:
        return ()

    def _cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: str) -> Any:
        self.waits.append((address, value))
        return ()

    def held(self) -> bool:
        """Tell if the last `cuStreamWaitValue32` still waits (for a value greater or equal, cyclically)."""
        address, value = self.waits[-1]
        return (ctypes.c_uint32.from_address(address).value - value) % 2**32 >= 2**31

    # --- events

    def _cuEventCreate(self, flags: str) -> Any:
        return (self._add("event", flags),)

    def _cuEventDestroy(self, event: int) -> Any:
        return self._drop("event", event)

    def _cuEventRecord(self, event: int, stream: int) -> Any:
        return ()

    def _cuEventRecordWithFlags(self, event: int, stream: int, flags: str) -> Any:
        assert self._is_captured(stream), "elsewhere an external record is an error"
        assert flags == "CU_EVENT_RECORD_EXTERNAL", "else it is no node of the graph"
        return ()

    def _cuEventQuery(self, event: int) -> Any:
        return ()

    def _cuEventSynchronize(self, event: int) -> Any:
        return ()

    def _cuEventElapsedTime(self, start: int, end: int) -> Any:
        return (self.milliseconds,)

    # --- captures

    def _is_captured(self, stream: int) -> bool:
        return self._captured is not None and self._capturing == int(stream)

    @property
    def _captures_forbid(self) -> bool:
        return self._captured is not None and self._mode != "CU_STREAM_CAPTURE_MODE_RELAXED"

    @property
    def _mode(self) -> str:
        return getattr(self._thread, "mode", "CU_STREAM_CAPTURE_MODE_GLOBAL")

    def _cuThreadExchangeStreamCaptureMode(self, mode: str) -> Any:
        before, self._thread.mode = self._mode, mode
        return (before,)

    def _cuStreamBeginCapture(self, stream: int, mode: str) -> Any:
        self._captured, self._capturing = [], int(stream)
        self._next += 0x100
        self._graph, self._captures = self._next, self._captures + 1
        return ()

    def _cuStreamIsCapturing(self, stream: int) -> Any:
        return ("CU_STREAM_CAPTURE_STATUS_" + ("ACTIVE" if self._is_captured(stream) else "NONE"),)

    def _cuStreamGetCaptureInfo(self, stream: int) -> Any:
        assert self._is_captured(stream)
        return ("CU_STREAM_CAPTURE_STATUS_ACTIVE", self._captures, self._graph, [], [], 0)

    def _cuStreamEndCapture(self, stream: int) -> Any:
        captured, self._captured = self._captured, None
        return (self._add("graph", captured, self._graph),)

    # --- graphs, and the objects that they hold

    def _cuGraphInstantiate(self, graph: int, flags: int) -> Any:
        made = self._add("executable", self.live["graph", graph])
        for *_, holders in self._objects.values():
            if graph in holders:
                holders.append(made)
        return (made,)

    def _cuGraphLaunch(self, executable: int, stream: int) -> Any:
        for launch in self.live["executable", executable]:
            launch()
        return ()

    def _cuGraphDestroy(self, graph: int) -> Any:
        self._let_go(graph)
        return self._drop("graph", graph)

    def _cuGraphExecDestroy(self, executable: int) -> Any:
        self._let_go(executable)
        return self._drop("executable", executable)

    def _cuUserObjectCreate(self, argument: int, destructor: int, count: int, flags: str) -> Any:
        assert (count, flags) == (1, "CU_USER_OBJECT_NO_DESTRUCTOR_SYNC")
        self._next += 0x100
        self._objects[self._next] = destructor, argument, []
        return (self._next,)

    def _cuUserObjectRelease(self, held: int, count: int) -> Any:
        self._let_go(0)
        return ()

    def _cuGraphRetainUserObject(self, graph: int, held: int, count: int, flags: str) -> Any:
        assert (count, flags) == (1, "CU_GRAPH_USER_OBJECT_MOVE")
        self._objects[held][2].append(graph)
        return ()

    def _let_go(self, holder: int) -> None:
        for key, (destructor, argument, holders) in list(self._objects.items()):
            if holder in holders:
                holders.remove(holder)
            if not holders:
                ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destructor)(argument)
                del self._objects[key]
