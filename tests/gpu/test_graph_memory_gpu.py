"""The memory of captured graphs on a real GPU: no nodes for it, and freed when the graph is gone."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import harness
from harness.dispatch.call import gpus
from harness.driver import BorrowedStream

pytestmark = pytest.mark.gpu
SHAPES = [(64, 64, 20000), (40, 3000, 5000), (512, 512, 16384)]  # tiles that blocks share


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_replays_give_equal_bits_among_other_calls(torch: Any, shape: tuple[int, ...], kind: str) -> None:
    m, n, k = shape
    a, b = (torch.randn(size, device="cuda").to(getattr(torch, kind)) for size in ((m, k), (k, n)))
    first, out = harness.matmul(a, b), torch.empty(m, n, device="cuda", dtype=a.dtype)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            harness.matmul(a, b, out)
    for _ in range(20):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(harness.matmul(a, b), first)
        torch.cuda.synchronize()
        assert torch.equal(out, first)


def test_a_graph_has_kernels_only(torch: Any) -> None:
    """No node allocates, sets or frees memory. The control: one that PyTorch asks for is seen."""
    m, n, k = SHAPES[0]
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    out = harness.matmul(a, b)
    gpu, stream = gpus.gpu(torch.cuda.current_device()), torch.cuda.Stream()
    kinds = []
    with gpu.context.current(), torch.cuda.stream(stream):
        borrowed = BorrowedStream(gpu.context, stream.cuda_stream)
        for zeroed in (False, True):
            mode = gpu_mode()
            gpu.context.call("cuStreamBeginCapture", borrowed.handle, mode)
            harness.matmul(a, b, out)
            if zeroed:
                out.zero_()
            graph = gpu.context.call("cuStreamEndCapture", borrowed.handle)
            count = gpu.context.call("cuGraphGetNodes", graph, 0)[1]
            nodes = gpu.context.call("cuGraphGetNodes", graph, count)[0]
            kinds.append([gpu.context.call("cuGraphNodeGetType", node).name for node in nodes])
            gpu.context.call("cuGraphDestroy", graph)
    assert kinds[0] == ["CU_GRAPH_NODE_TYPE_KERNEL"]
    assert len(kinds[1]) == 2


def gpu_mode() -> Any:
    from cuda.bindings import driver

    return driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


def test_memory_goes_when_the_graph_has_gone(torch: Any) -> None:
    m, n, k = SHAPES[0]
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    out = harness.matmul(a, b)
    workspaces = gpus.gpu(torch.cuda.current_device())._workspaces

    def captured() -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            harness.matmul(a, b, out)
        return graph

    kept = captured()
    before = len(workspaces._captured)
    for _ in range(20):
        one = captured()
        one.replay()
        torch.cuda.synchronize()
        del one
        gc.collect()
    assert len(workspaces._captured) <= before + 3  # the driver tells of the end in a thread of its own
    kept.replay()
    torch.cuda.synchronize()
    assert torch.allclose(out, a @ b, atol=1e-2)
