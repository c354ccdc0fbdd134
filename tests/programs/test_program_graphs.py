"""Stream capture and graphs of whole programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.nvcc import kinds, needs_nvcc, ran

pytestmark = [needs_nvcc, pytest.mark.slow]

GRAPHS = """
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

__global__ void add(int* to, const int* from, int by, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i] + by;
}

void CUDART_CB count(void* times) { ++*(int*)times; }

int main(int argc, char** argv)
{
    int fault = argc > 1 ? atoi(argv[1]) : 0, n = 48, more = fault == 1 ? 17 : 0;
    int host[48], times = 0, wrong = 0;
    int *a, *b;
    cudaMalloc(&a, n * 4);
    cudaMalloc(&b, n * 4);
    cudaStream_t one, two;
    cudaEvent_t forked, joined;
    cudaStreamCreate(&one);
    cudaStreamCreate(&two);
    cudaEventCreate(&forked);
    cudaEventCreate(&joined);

    // Captured from two streams: a = 1, b = a + 1, a = b + 1.
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal);
    cudaMemsetAsync(a, 0, n * 4, one);
    add<<<3, 32, 0, one>>>(a, a, 1, n);
    cudaEventRecord(forked, one);
    cudaStreamWaitEvent(two, forked, 0);
    add<<<3, 32, 0, two>>>(b, a, 1, n + more);
    cudaLaunchHostFunc(two, count, &times);
    cudaEventRecord(joined, two);
    cudaStreamWaitEvent(one, joined, 0);
    add<<<3, 32, 0, one>>>(a, b, 1, n);
    cudaStreamEndCapture(one, &graph);
    size_t nodes = 0;
    cudaGraphGetNodes(graph, nullptr, &nodes);
    wrong += times != 0 || nodes != 5;
    cudaGraphInstantiate(&ready, graph, 0);
    for (int i = 0; i < 2; ++i) cudaGraphLaunch(ready, one);
    cudaMemcpy(host, a, n * 4, cudaMemcpyDeviceToHost);
    for (int i = 0; i < n; ++i) wrong += host[i] != 3;
    wrong += times != 2;

    // Put together, and added in another order than they depend on each other.
    cudaGraph_t made;
    cudaGraphCreate(&made, 0);
    cudaGraphNode_t last, first, set;
    int by = 10;
    void* given[] = {&b, &a, &by, &n};
    cudaKernelNodeParams launch{};
    launch.func = (void*)add, launch.gridDim = 2, launch.blockDim = 32, launch.kernelParams = given;
    cudaGraphAddMemcpyNode1D(&last, made, nullptr, 0, host, b, n * 4, cudaMemcpyDeviceToHost);
    cudaGraphAddKernelNode(&first, made, nullptr, 0, &launch);
    cudaMemsetParams sevens{};
    sevens.dst = a, sevens.value = 7, sevens.elementSize = 4, sevens.width = n, sevens.height = 1;
    cudaGraphAddMemsetNode(&set, made, nullptr, 0, &sevens);
    cudaGraphAddDependencies(made, &first, &last, 1);
    cudaGraphAddDependencies(made, &set, &first, 1);
    cudaGraphExec_t go;
    cudaGraphInstantiate(&go, made, 0);
    by = 20;  // what was given is kept as it was
    cudaGraphLaunch(go, two);
    for (int i = 0; i < n; ++i) wrong += host[i] != 17;
    cudaGraphExecKernelNodeSetParams(go, first, &launch);
    cudaGraphLaunch(go, two);
    for (int i = 0; i < n; ++i) wrong += host[i] != 27;
    cudaGraphExecDestroy(go);
    if (fault == 2) cudaGraphLaunch(go, two);
    if (fault == 3) cudaStreamEndCapture(one, &graph);
    if (fault == 4) cudaStreamDestroy(one);
    cudaStreamDestroy(one);
    return wrong;
}
"""


def test_a_graph_does_again_what_was_captured_and_put_together(tmp_path: Path) -> None:
    run = ran(tmp_path, GRAPHS)
    assert (run.code, run.misuses, run.refusals) == (0, {}, {})
    assert [one.launches for one in run.kernels.values()] == [8]
    assert kinds(run) == set()


def test_a_fault_of_a_node_is_told_with_the_line_of_its_launch(tmp_path: Path) -> None:
    run = ran(tmp_path, GRAPHS, "1")
    assert kinds(run) == {"out of bounds"}
    lines = GRAPHS.splitlines()
    found = [first.place.line for one in run.kernels.values() for _, _, first in one.findings.values()]
    assert all("(b, a, 1, n + more)" in lines[line - 1] for line in found)


@pytest.mark.parametrize(("fault", "said"), [("2", "no graph"), ("3", "not captured"), ("4", "destroyed")])
def test_graphs_and_streams_that_are_not_there_are_told(tmp_path: Path, fault: str, said: str) -> None:
    run = ran(tmp_path, GRAPHS, fault)
    assert any(said in event.what for event in run.misuses), run.misuses


MEMORY = """
#include <cstdlib>
#include <cuda_runtime.h>

__global__ void fill(int* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = threadIdx.x; }

int main(int, char** argv)
{
    int *x, *other, host[64], wrong = 0;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudaStreamCreate(&stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    cudaMallocAsync(&x, 256, stream);
    fill<<<1, 128, 0, stream>>>(x, 64);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    for (int i = 0; i < 2; ++i) {
        cudaGraphLaunch(ready, stream);  // allocates, at the same place each time
        cudaMemcpyAsync(host, x, 256, cudaMemcpyDeviceToHost, stream);
        cudaFreeAsync(x, stream);  // what is allocated by a graph may be freed by the stream
        cudaStreamSynchronize(stream);
        wrong += host[63] != 63;
    }
    cudaMallocAsync(&other, 256, stream);
    cudaFreeAsync(other, stream);
    fill<<<1, 128, 0, stream>>>(atoi(argv[1]) ? other : x, 64);
    return wrong;
}
"""


@pytest.mark.parametrize("fault", range(2))
def test_memory_of_a_graph_is_there_at_each_launch(fault: int, tmp_path: Path) -> None:
    """Other memory of a stream is gone once it is freed."""
    run = ran(tmp_path, MEMORY, str(fault))
    assert (run.code, run.misuses, run.refusals) == (0, {}, {})
    assert kinds(run) == ({"out of bounds"} if fault else set())
