// Stream capture and graphs: what a graph does is kept in Python (runtime/graphs.py).
#include "connect.h"

using namespace harness;

namespace
{
using Node = cudaGraphNode_t;

// Nodes whose parameters are a struct: it is copied, and these read the copy when the graph runs.
cudaError_t set(const cudaMemsetParams* of)
{
    auto size = of->elementSize;
    for (size_t y = 0; y < of->height; ++y) {
        auto row = static_cast<char*>(of->dst) + y * of->pitch;
        auto found = size == 1 ? error("cudaMemset", CALLER, row, of->value, of->width)
                               : error("a pattern", CALLER, row, of->value, of->width, size);
        if (found != cudaSuccess) return found;
    }
    return cudaSuccess;
}
cudaError_t call(const cudaHostNodeParams* of)
{
    hand("a host function", CALLER, 0);
    of->fn(of->userData);
    return cudaSuccess;
}
struct Line
{
    void* to;
    const void* from;
    size_t size;
    cudaMemcpyKind kind;
};
cudaError_t copy(const Line* of) { return cudaMemcpy(of->to, of->from, of->size, of->kind); }

template <typename P>
cudaError_t add(const void* caller, Node* to, cudaGraph_t graph, const Node* after, size_t count,
                cudaError_t (*run)(const P*), const P* with)
{
    return error("a node", caller, to, graph, after, count, run, with, sizeof(P));
}
}  // namespace

extern "C"
{
API(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), stream, 0, 0, 0)
cudaError_t CUDARTAPI cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const Node* after,
                                                    const cudaGraphEdgeData*, size_t count, cudaStreamCaptureMode)
{
    return error("cudaStreamBeginCapture", CALLER, stream, graph, after, count);
}
API(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t* to), stream, to)
cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* to)
{
    *to = hand("the graph of a stream", CALLER, stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* to,
                                               unsigned long long* id, cudaGraph_t* graph, const Node** after,
                                               const cudaGraphEdgeData** edges, size_t* count)
{
    auto found = hand("the graph of a stream", CALLER, stream);
    *to = found ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) *id = found;
    if (graph) *graph = reinterpret_cast<cudaGraph_t>(found);
    const Node* before;
    size_t many = hand("the nodes before", CALLER, stream, &before);
    if (after) *after = before;
    if (edges) *edges = nullptr;
    if (count) *count = many;
    return cudaSuccess;
}
API(cudaStreamUpdateCaptureDependencies,
    (cudaStream_t stream, Node* nodes, const cudaGraphEdgeData*, size_t count, unsigned replace), stream, nodes, count,
    replace)
NOTHING(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode*))

API(cudaGraphCreate, (cudaGraph_t* to, unsigned flags), to)
API(cudaGraphDestroy, (cudaGraph_t graph), graph)
API(cudaGraphClone, (cudaGraph_t* to, cudaGraph_t graph), to, graph)
API(cudaGraphInstantiate, (cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long flags), to, graph)
cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long)
{
    return error("cudaGraphInstantiate", CALLER, to, graph);
}
cudaError_t CUDARTAPI cudaGraphInstantiateWithParams(cudaGraphExec_t* to, cudaGraph_t graph,
                                                     cudaGraphInstantiateParams* with)
{
    with->result_out = cudaGraphInstantiateSuccess;
    return error("cudaGraphInstantiate", CALLER, to, graph);
}
cudaError_t CUDARTAPI cudaGraphExecUpdate(cudaGraphExec_t ready, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* to)
{
    *to = {};
    to->result = cudaGraphExecUpdateSuccess;
    return error("cudaGraphExecUpdate", CALLER, ready, graph);
}
cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t ready) { return error("cudaGraphDestroy", CALLER, ready); }
API(cudaGraphLaunch, (cudaGraphExec_t ready, cudaStream_t stream), ready, stream)
NOTHING(cudaGraphUpload, (cudaGraphExec_t, cudaStream_t))
NOTHING(cudaGraphDebugDotPrint, (cudaGraph_t, const char*, unsigned))
NOTHING(cudaDeviceGraphMemTrim, (int))
API(cudaGraphGetNodes, (cudaGraph_t graph, Node* to, size_t* count), graph, to, count)

// -- nodes

cudaError_t CUDARTAPI cudaGraphAddKernelNode(Node* to, cudaGraph_t graph, const Node* after, size_t count,
                                             const cudaKernelNodeParams* of)
{
    return error("cudaGraphAddKernelNode", CALLER, to, graph, after, count, of->func, of->gridDim, of->blockDim,
                 of->kernelParams, of->sharedMemBytes);
}
cudaError_t CUDARTAPI cudaGraphKernelNodeSetParams(Node node, const cudaKernelNodeParams* of)
{
    return error("cudaGraphExecKernelNodeSetParams", CALLER, 0, node, of->func, of->gridDim, of->blockDim,
                 of->kernelParams, of->sharedMemBytes);
}
cudaError_t CUDARTAPI cudaGraphExecKernelNodeSetParams(cudaGraphExec_t ready, Node node,
                                                       const cudaKernelNodeParams* of)
{
    return error("cudaGraphExecKernelNodeSetParams", CALLER, ready, node, of->func, of->gridDim, of->blockDim,
                 of->kernelParams, of->sharedMemBytes);
}
cudaError_t CUDARTAPI cudaGraphAddMemcpyNode(Node* to, cudaGraph_t graph, const Node* after, size_t count,
                                             const cudaMemcpy3DParms* of)
{
    return add(CALLER, to, graph, after, count, &cudaMemcpy3D, of);
}
cudaError_t CUDARTAPI cudaGraphAddMemcpyNode1D(Node* to, cudaGraph_t graph, const Node* after, size_t count,
                                               void* target, const void* from, size_t size, cudaMemcpyKind kind)
{
    Line of{target, from, size, kind};
    return add(CALLER, to, graph, after, count, copy, &of);
}
cudaError_t CUDARTAPI cudaGraphAddMemsetNode(Node* to, cudaGraph_t graph, const Node* after, size_t count,
                                             const cudaMemsetParams* of)
{
    return add(CALLER, to, graph, after, count, set, of);
}
cudaError_t CUDARTAPI cudaGraphAddHostNode(Node* to, cudaGraph_t graph, const Node* after, size_t count,
                                           const cudaHostNodeParams* of)
{
    return add(CALLER, to, graph, after, count, call, of);
}
API(cudaGraphAddEmptyNode, (Node* to, cudaGraph_t graph, const Node* after, size_t count), to, graph, after, count)
API(cudaGraphAddChildGraphNode, (Node* to, cudaGraph_t graph, const Node* after, size_t count, cudaGraph_t child), to,
    graph, after, count, child)
// Memory of a graph is there from the beginning, and stays: its addresses do not change between launches.
cudaError_t CUDARTAPI cudaGraphAddMemAllocNode(Node* to, cudaGraph_t graph, const Node* after, size_t count,
                                               cudaMemAllocNodeParams* of)
{
    auto found = error("memory of a graph", CALLER, &of->dptr, of->bytesize);
    return found != cudaSuccess ? found : error("cudaGraphAddEmptyNode", CALLER, to, graph, after, count);
}
cudaError_t CUDARTAPI cudaGraphAddMemFreeNode(Node* to, cudaGraph_t graph, const Node* after, size_t count, void*)
{
    return error("cudaGraphAddEmptyNode", CALLER, to, graph, after, count);
}
cudaError_t CUDARTAPI cudaGraphAddDependencies(cudaGraph_t graph, const Node* from, const Node* to,
                                               const cudaGraphEdgeData*, size_t count)
{
    return error("cudaGraphAddDependencies", CALLER, graph, from, to, count);
}

// A function of host code in a stream, which a graph may keep.
cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data)
{
    if (!hand("the graph of a stream", CALLER, stream)) {
        hand("a host function", CALLER, stream);
        function(data);
        return cudaSuccess;
    }
    cudaHostNodeParams of{function, data};
    return error("a node of a stream", CALLER, stream, &call, &of, sizeof of);
}
}
