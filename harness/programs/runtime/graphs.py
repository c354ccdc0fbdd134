"""Graphs of a program: what is captured from streams or put together, done again at each launch.

Nodes are done one after another, each after those that it depends on.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from harness.programs.runtime import host
from harness.programs.runtime.host import CAPTURE_UNMATCHED, INVALID_VALUE, Misuse
from harness.programs.runtime.launches import Launches, Work
from harness.programs.runtime.waiting import Waiting

# Functions that a stream being captured keeps: which of their arguments is the stream.
STREAMS = {
    "cudaLaunchKernel": 5,
    "cudaLaunchCooperativeKernel": 5,
    "cudaLaunchKernelExC": 5,
    "cudaMemcpyAsync": 4,
    "cudaMemcpy2DAsync": 7,
    "cudaMemcpyToSymbolAsync": 5,
    "cudaMemcpyFromSymbolAsync": 5,
    "cudaMemsetAsync": 3,
    "cudaMemset2DAsync": 5,
    "cudaFreeAsync": 1,
    "cudaGraphLaunch": 1,
}
_FIRST = 7 << 32  # of the handles of graphs and nodes


@dataclass(kw_only=True)
class Graph:
    """Nodes by their handles, in the order in which they came, and what each comes after."""

    nodes: dict[int, Work] = field(default_factory=dict)
    after: dict[int, list[int]] = field(default_factory=dict)

    def ordered(self) -> dict[int, Work]:
        """Return the nodes so that each follows those that it comes after."""
        found: dict[int, Work] = {}

        def visit(node: int) -> None:
            if node in found or node not in waiting:
                return
            waiting.discard(node)
            for before in self.after.get(node, ()):
                visit(before)
            found[node] = self.nodes[node]

        waiting = set(self.nodes)
        for node in self.nodes:
            visit(node)
        return found

    def run(self) -> int:
        """Do it; return the first error."""
        return next((code for work in self.ordered().values() if (code := work())), 0)


class Graphs:
    """The functions of CUDA's runtime for graphs and stream capture. One that is ready is a copy."""

    def __init__(self, launches: Launches, waiting: Waiting) -> None:
        self._launches, self._waiting = launches, waiting
        self._handles = itertools.count(_FIRST, 64)
        self._graphs: dict[int, Graph] = {}
        self._capturing: dict[int, int] = {}  # the graph of a stream
        self._recorded: dict[int, int] = {}  # the graph that an event was recorded in
        self._kept: list[object] = []  # what nodes point to

    def do(self, stream: int, name: str, work: Work) -> int:
        """Do what a stream is asked to, or keep it in the stream's graph."""
        graph = self._capturing.get(stream)
        if graph is None:
            return int(work() or 0)
        if name != "cudaFreeAsync":  # memory of a graph stays, see graphs.cpp
            self._add(graph, work)
        return 0

    def _add(self, graph: int, work: Work, after: Sequence[int] = ()) -> int:
        handle = next(self._handles)
        one = self._of(graph)
        one.nodes[handle], one.after[handle] = work, list(after)
        return handle

    def _of(self, graph: int) -> Graph:
        if graph not in self._graphs:
            raise Misuse(INVALID_VALUE, "what is no graph, or was destroyed")
        return self._graphs[graph]

    def _new(self, nodes: Mapping[int, Work] | None = None) -> int:
        handle = next(self._handles)
        self._graphs[handle] = Graph(nodes=dict(nodes or {}))
        return handle

    # -- capture

    def cudaStreamBeginCapture(self, caller: int, stream: int, graph: int) -> None:
        if stream in self._capturing:
            raise Misuse(INVALID_VALUE, "a stream that is captured already")
        self._capturing[stream] = graph or self._new()

    def cudaStreamEndCapture(self, caller: int, stream: int, to: int) -> None:
        graph = self._capturing.get(stream)
        host.put(to, graph or 0)
        if graph is None:
            raise Misuse(CAPTURE_UNMATCHED, "a stream that is not captured")
        self._capturing = {s: g for s, g in self._capturing.items() if g != graph}
        self._recorded = {e: g for e, g in self._recorded.items() if g != graph}

    def the_graph_of_a_stream(self, caller: int, stream: int) -> int:
        """Return the graph that a stream is captured into, 0 if none."""
        return self._capturing.get(stream, 0)

    def a_node_of_a_stream(self, caller: int, stream: int, run: int, with_: int, size: int) -> None:
        """Keep a C function and the struct that it takes."""
        self._add(self._capturing[stream], self._c_work(run, with_, size))

    def cudaEventRecord(self, caller: int, event: int, stream: int) -> None:
        """Let an event that is recorded in a capture take other streams into it."""
        if stream in self._capturing:
            self._recorded[event] = self._capturing[stream]
        else:
            self._waiting.record(event)

    def cudaStreamWaitEvent(self, caller: int, stream: int, event: int) -> None:
        """Let a stream join the capture that the event is of."""
        if event in self._recorded:
            self._capturing.setdefault(stream, self._recorded[event])

    # -- graphs

    def cudaGraphCreate(self, caller: int, to: int) -> None:
        host.put(to, self._new())

    def cudaGraphDestroy(self, caller: int, graph: int) -> None:
        if self._graphs.pop(graph, None) is None:
            raise Misuse(INVALID_VALUE, "what is no graph, or was destroyed")

    def cudaGraphInstantiate(self, caller: int, to: int, graph: int) -> None:
        host.put(to, self._new(self._of(graph).ordered()))

    cudaGraphClone = cudaGraphInstantiate

    def cudaGraphExecUpdate(self, caller: int, ready: int, graph: int) -> None:
        self._of(ready).nodes = self._of(graph).ordered()

    def cudaGraphLaunch(self, caller: int, ready: int, stream: int) -> int:
        return self._of(ready).run()

    def cudaGraphGetNodes(self, caller: int, graph: int, to: int, count: int) -> None:
        nodes = list(self._of(graph).nodes)
        for i, node in enumerate(nodes[: host.pointer(count)] if to else ()):
            host.put(to + 8 * i, node)
        host.put(count, len(nodes))

    # -- nodes

    def a_node(
        self, caller: int, to: int, graph: int, after: int, count: int, run: int, with_: int, size: int
    ) -> None:
        """Add a C function, and the struct that it takes."""
        self._put(to, graph, after, count, self._c_work(run, with_, size))

    def cudaGraphAddEmptyNode(self, caller: int, to: int, graph: int, after: int, count: int) -> None:
        self._put(to, graph, after, count, lambda: 0)

    def cudaGraphAddChildGraphNode(
        self, caller: int, to: int, graph: int, after: int, count: int, child: int
    ) -> None:
        self._put(to, graph, after, count, Graph(nodes=self._of(child).ordered()).run)

    def cudaGraphAddKernelNode(
        self, caller: int, to: int, graph: int, after: int, count: int, *launch: int
    ) -> None:
        self._put(to, graph, after, count, self._launches.kernel(caller, *launch))

    def cudaGraphExecKernelNodeSetParams(self, caller: int, ready: int, node: int, *launch: int) -> None:
        work = self._launches.kernel(caller, *launch)
        for handle, graph in self._graphs.items():
            if node in graph.nodes and ready in (0, handle):
                graph.nodes[node] = work

    def cudaGraphAddDependencies(self, caller: int, graph: int, before: int, node: int, count: int) -> None:
        one = self._of(graph)
        for i in range(count):
            one.after[host.pointer(node + 8 * i)].append(host.pointer(before + 8 * i))

    def _put(self, to: int, graph: int, after: int, count: int, work: Work) -> None:
        host.put(to, self._add(graph, work, [host.pointer(after + 8 * i) for i in range(count)]))

    def _c_work(self, run: int, with_: int, size: int) -> Work:
        kept = ctypes.create_string_buffer(ctypes.string_at(with_, size), size)
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(run)
        self._kept.append(kept)
        return partial(function, ctypes.addressof(kept))
