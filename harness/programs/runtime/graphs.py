"""Graphs of a program: what is captured from streams or put together, done again at each launch.

Nodes are done one after another, each after those that it depends on. A branch is a line of work of its own,
as a stream is.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from harness.programs.runtime import host
from harness.programs.runtime.host import CAPTURE_UNMATCHED, INVALID_VALUE, Misuse
from harness.programs.runtime.launches import Launches, Work
from harness.programs.runtime.order.clocks import Clock, Line, joined
from harness.programs.runtime.order.operations import Operations
from harness.programs.runtime.order.waiting import Waiting

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
    "cudaMallocAsync": 2,
    "cudaFreeAsync": 1,
    "cudaGraphLaunch": 1,
    "a host function": 0,
}
# Those that take the default stream.
DEFAULT = frozenset(
    {
        *("cudaMemcpy", "cudaMemcpy2D", "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol"),
        *("cudaMemset", "cudaMemset2D", "a pattern"),
    }
)
_FIRST = 7 << 32  # of the handles of graphs and nodes


@dataclass(frozen=True, kw_only=True)
class Node:
    """The work of a node: `work`, or the nodes of `child`; what host code called for it, and where."""

    what: str
    caller: int
    work: Work = lambda: 0
    child: Graph | None = None


@dataclass(kw_only=True)
class Graph:
    """Nodes by their handles, in the order in which they came, and what each comes after."""

    nodes: dict[int, Node] = field(default_factory=dict)
    after: dict[int, list[int]] = field(default_factory=dict)

    def ordered(self) -> Graph:
        """Return the graph with its nodes in an order in which each follows those that it comes after."""
        found: dict[int, Node] = {}

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
        return Graph(nodes=found, after={node: list(before) for node, before in self.after.items()})


class Graphs:
    """The functions of CUDA's runtime for graphs and stream capture. One that is ready is a copy."""

    def __init__(self, launches: Launches, waiting: Waiting, operations: Operations) -> None:
        self._launches, self._waiting, self._operations = launches, waiting, operations
        self._handles = itertools.count(_FIRST, 64)
        self._graphs: dict[int, Graph] = {}
        self._ends: dict[int, Clock] = {}  # of what is ready, when its last launch has ended
        self._capturing: dict[int, int] = {}  # the graph of a stream
        self._tails: dict[int, list[int]] = {}  # the nodes that what a captured stream does next comes after
        self._recorded: dict[
            int, tuple[int, list[int]]
        ] = {}  # of an event the graph, and the nodes before it
        self._kept: list[object] = []  # what nodes point to

    def do(self, name: str, caller: int, arguments: Sequence[int], work: Work) -> int:
        """Do what a stream is asked to, or keep it in the stream's graph."""
        stream = arguments[STREAMS[name]] if name in STREAMS else 0
        graph = self._capturing.get(stream)
        if graph is None:
            if name == "cudaGraphLaunch":  # each of its nodes is an operation
                return int(work() or 0)
            return self._operations.do(self._operations.clocks.stream(stream), name, caller, work)
        if name == "cudaGraphLaunch":
            self._capture(stream, Node(what=name, caller=caller, child=self._of(arguments[0])))
        elif name != "cudaFreeAsync":  # memory of a graph stays, see graphs.cpp
            self._capture(stream, Node(what=name, caller=caller, work=work))
        return 0

    def _capture(self, stream: int, node: Node) -> None:
        self._tails[stream] = [self._add(self._capturing[stream], node, self._tails[stream])]

    def _add(self, graph: int, node: Node, after: Sequence[int] = ()) -> int:
        handle = next(self._handles)
        one = self._of(graph)
        one.nodes[handle], one.after[handle] = node, list(after)
        return handle

    def _of(self, graph: int) -> Graph:
        if graph not in self._graphs:
            raise Misuse(INVALID_VALUE, "what is no graph, or was destroyed")
        return self._graphs[graph]

    def _new(self, graph: Graph | None = None) -> int:
        handle = next(self._handles)
        self._graphs[handle] = graph or Graph()
        return handle

    # -- capture

    def cudaStreamBeginCapture(self, caller: int, stream: int, graph: int, after: int, count: int) -> None:
        if stream in self._capturing:
            raise Misuse(INVALID_VALUE, "a stream that is captured already")
        self._capturing[stream], self._tails[stream] = graph or self._new(), _handles(after, count)

    def cudaStreamEndCapture(self, caller: int, stream: int, to: int) -> None:
        graph = self._capturing.get(stream)
        host.put(to, graph or 0)
        if graph is None:
            raise Misuse(CAPTURE_UNMATCHED, "a stream that is not captured")
        self._capturing = {s: g for s, g in self._capturing.items() if g != graph}
        self._recorded = {e: found for e, found in self._recorded.items() if found[0] != graph}

    def the_graph_of_a_stream(self, caller: int, stream: int) -> int:
        """Return the graph that a stream is captured into, 0 if none."""
        return self._capturing.get(stream, 0)

    def the_nodes_before(self, caller: int, stream: int, to: int) -> int:
        """Put at `to` where the nodes are that a captured stream's next one comes after; return how many."""
        tail = self._tails[stream] if stream in self._capturing else []
        held = (ctypes.c_uint64 * len(tail))(*tail)
        self._kept.append(held)
        host.put(to, ctypes.addressof(held))
        return len(tail)

    def cudaStreamUpdateCaptureDependencies(
        self, caller: int, stream: int, nodes: int, count: int, replace: int
    ) -> None:
        if stream not in self._capturing:
            raise Misuse(INVALID_VALUE, "a stream that is not captured")
        kept = [] if replace else self._tails[stream]
        self._tails[stream] = [*kept, *_handles(nodes, count)]

    def a_node_of_a_stream(self, caller: int, stream: int, run: int, with_: int, size: int) -> None:
        """Keep a C function and the struct that it takes."""
        self._capture(
            stream, Node(what="a host function", caller=caller, work=self._c_work(run, with_, size))
        )

    def cudaEventRecord(self, caller: int, event: int, stream: int) -> None:
        """Let an event that is recorded in a capture take other streams into it."""
        if stream in self._capturing:
            self._recorded[event] = self._capturing[stream], self._tails[stream]
        else:
            self._recorded.pop(event, None)
            self._waiting.record(event, stream)

    def cudaStreamWaitEvent(self, caller: int, stream: int, event: int) -> None:
        """Let a stream join the capture that the event is of, and come after the event."""
        if event in self._recorded:
            graph, before = self._recorded[event]
            mine = self._tails[stream] if stream in self._capturing else []
            self._capturing.setdefault(stream, graph)
            self._tails[stream] = [*mine, *(node for node in before if node not in mine)]
        else:
            self._waiting.wait(stream, event)

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
        self._of(ready)
        self._graphs[ready] = self._of(graph).ordered()

    def cudaGraphLaunch(self, caller: int, ready: int, stream: int) -> int:
        """Do the nodes: after what is in the stream, and after the last launch of the graph."""
        graph, clocks = self._of(ready), self._operations.clocks
        line = clocks.stream(stream)
        before = joined(clocks.before(line), self._ends.get(ready, {}))
        code, self._ends[ready] = self._run(graph, line, (ready,), before)
        clocks.advance(line, self._ends[ready])
        self._operations.apart(line)
        return code

    def _run(self, graph: Graph, stream: Line, name: tuple[int, ...], before: Clock) -> tuple[int, Clock]:
        """Do the nodes of a graph; return the first error, and the clock when all have ended.

        A node goes on with the branch of one that it comes after, if that has no other successor so far.
        """
        clocks: dict[int, Clock] = {}
        branches: dict[int, int] = {}  # of nodes
        lasts: list[int] = []  # the last node of each branch
        for handle, node in graph.nodes.items():
            after = [one for one in graph.after.get(handle, ()) if one in clocks]
            clock = joined(before, *(clocks[one] for one in after))
            branch = next((branches[one] for one in after if lasts[branches[one]] == one), len(lasts))
            lasts[branch:] = [handle, *lasts[branch + 1 :]]
            branches[handle] = branch
            if node.child is not None:
                code, clocks[handle] = self._run(node.child.ordered(), stream, (*name, handle), clock)
            else:
                line = (*name, branch)
                _, code, clocks[handle] = self._operations.step(
                    stream, line, clock, node.what, node.caller, node.work
                )
            if code:
                return code, joined(before, *clocks.values())
        return 0, joined(before, *clocks.values())

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
        self._put(
            to, graph, after, count, Node(what="a node", caller=caller, work=self._c_work(run, with_, size))
        )

    def cudaGraphAddEmptyNode(self, caller: int, to: int, graph: int, after: int, count: int) -> None:
        self._put(to, graph, after, count, Node(what="an empty node", caller=caller))

    def cudaGraphAddChildGraphNode(
        self, caller: int, to: int, graph: int, after: int, count: int, child: int
    ) -> None:
        child_graph = self._of(child).ordered()
        self._put(to, graph, after, count, Node(what="a child graph", caller=caller, child=child_graph))

    def cudaGraphAddKernelNode(
        self, caller: int, to: int, graph: int, after: int, count: int, *launch: int
    ) -> None:
        self._put(to, graph, after, count, self._kernel_node(caller, *launch))

    def cudaGraphExecKernelNodeSetParams(self, caller: int, ready: int, node: int, *launch: int) -> None:
        made = self._kernel_node(caller, *launch)
        for handle, graph in self._graphs.items():
            if node in graph.nodes and ready in (0, handle):
                graph.nodes[node] = made

    def cudaGraphAddDependencies(self, caller: int, graph: int, before: int, node: int, count: int) -> None:
        one = self._of(graph)
        for i in range(count):
            one.after[host.pointer(node + 8 * i)].append(host.pointer(before + 8 * i))

    def _kernel_node(self, caller: int, *launch: int) -> Node:
        return Node(what="a launch", caller=caller, work=self._launches.kernel(caller, *launch))

    def _put(self, to: int, graph: int, after: int, count: int, node: Node) -> None:
        host.put(to, self._add(graph, node, _handles(after, count)))

    def _c_work(self, run: int, with_: int, size: int) -> Work:
        kept = ctypes.create_string_buffer(ctypes.string_at(with_, size), size)
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(run)
        self._kept.append(kept)
        return partial(function, ctypes.addressof(kept))


def _handles(at: int, count: int) -> list[int]:
    """Return the handles at an address."""
    return [host.pointer(at + 8 * i) for i in range(count if at else 0)]
