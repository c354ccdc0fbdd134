// Memory: allocated, freed, copied and set.
#include "connect.h"

#include <cstring>

using namespace harness;

namespace
{
cudaError_t ofStream(void** to, size_t size, cudaStream_t stream, const void* caller)
{
    bool captured = hand("the graph of a stream", caller, stream);
    return captured ? error("memory of a graph", caller, to, size) : error("cudaMallocAsync", caller, to, size, stream);
}
}  // namespace

extern "C"
{
API(cudaMalloc, (void** to, size_t size), to, size)
API(cudaMallocManaged, (void** to, size_t size, unsigned flags), to, size, flags)
API(cudaMallocHost, (void** to, size_t size), to, size)
API(cudaHostAlloc, (void** to, size_t size, unsigned flags), to, size, flags)
cudaError_t CUDARTAPI cudaMallocAsync(void** to, size_t size, cudaStream_t stream)
{
    return ofStream(to, size, stream, CALLER);
}
cudaError_t CUDARTAPI cudaMallocFromPoolAsync(void** to, size_t size, cudaMemPool_t, cudaStream_t stream)
{
    return ofStream(to, size, stream, CALLER);
}
MAKES(cudaMemPoolCreate, cudaMemPool_t, (cudaMemPool_t* to, const cudaMemPoolProps*))
MAKES(cudaDeviceGetDefaultMemPool, cudaMemPool_t, (cudaMemPool_t* to, int))
MAKES(cudaDeviceGetMemPool, cudaMemPool_t, (cudaMemPool_t* to, int))
NOTHING(cudaDeviceSetMemPool, (int, cudaMemPool_t))
NOTHING(cudaMemPoolDestroy, (cudaMemPool_t))
NOTHING(cudaMemPoolTrimTo, (cudaMemPool_t, size_t))
NOTHING(cudaMemPoolSetAttribute, (cudaMemPool_t, cudaMemPoolAttr, void*))
NOTHING(cudaMemPoolSetAccess, (cudaMemPool_t, const cudaMemAccessDesc*, size_t))
cudaError_t CUDARTAPI cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* to)
{
    memset(to, 0, attribute <= cudaMemPoolReuseAllowInternalDependencies ? sizeof(int) : sizeof(uint64_t));
    return cudaSuccess;
}
API(cudaMallocPitch, (void** to, size_t* pitch, size_t width, size_t height), to, pitch, width, height)
cudaError_t CUDARTAPI cudaMalloc3D(cudaPitchedPtr* to, cudaExtent extent)
{
    to->xsize = extent.width, to->ysize = extent.height;
    return error("cudaMallocPitch", CALLER, &to->ptr, &to->pitch, extent.width, extent.height * extent.depth);
}
API(cudaFree, (void* pointer), pointer)
API(cudaFreeHost, (void* pointer), pointer)
API(cudaFreeAsync, (void* pointer, cudaStream_t stream), pointer, stream)
API(cudaHostRegister, (void* pointer, size_t size, unsigned flags), pointer, size, flags)
API(cudaHostUnregister, (void* pointer), pointer)
API(cudaHostGetDevicePointer, (void** to, void* host, unsigned flags), to, host, flags)
API(cudaMemGetInfo, (size_t* rest, size_t* total), rest, total)
API(cudaMemcpy, (void* to, const void* from, size_t size, cudaMemcpyKind kind), to, from, size, kind)
API(cudaMemcpyAsync, (void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream), to, from,
    size, kind, stream)
cudaError_t CUDARTAPI cudaMemcpyPeer(void* to, int, const void* from, int, size_t size)
{
    return error("cudaMemcpy", CALLER, to, from, size, cudaMemcpyDeviceToDevice);
}
cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream)
{
    return error("cudaMemcpyAsync", CALLER, to, from, size, cudaMemcpyDeviceToDevice, stream);
}
API(cudaMemcpy2D,
    (void* to, size_t pitch, const void* from, size_t every, size_t width, size_t height, cudaMemcpyKind kind), to,
    pitch, from, every, width, height, kind)
API(cudaMemcpy2DAsync,
    (void* to, size_t pitch, const void* from, size_t every, size_t width, size_t height, cudaMemcpyKind kind,
     cudaStream_t stream),
    to, pitch, from, every, width, height, kind, stream)
API(cudaMemcpyToSymbol, (const void* symbol, const void* from, size_t size, size_t offset, cudaMemcpyKind kind),
    symbol, from, size, offset, kind)
API(cudaMemcpyToSymbolAsync,
    (const void* symbol, const void* from, size_t size, size_t offset, cudaMemcpyKind kind, cudaStream_t stream),
    symbol, from, size, offset, kind, stream)
API(cudaMemcpyFromSymbol, (void* to, const void* symbol, size_t size, size_t offset, cudaMemcpyKind kind), to, symbol,
    size, offset, kind)
API(cudaMemcpyFromSymbolAsync,
    (void* to, const void* symbol, size_t size, size_t offset, cudaMemcpyKind kind, cudaStream_t stream), to, symbol,
    size, offset, kind, stream)
API(cudaGetSymbolAddress, (void** to, const void* symbol), to, symbol)
API(cudaGetSymbolSize, (size_t* to, const void* symbol), to, symbol)
API(cudaMemset, (void* to, int value, size_t size), to, value, size)
API(cudaMemsetAsync, (void* to, int value, size_t size, cudaStream_t stream), to, value, size, stream)
API(cudaMemset2D, (void* to, size_t pitch, int value, size_t width, size_t height), to, pitch, value, width, height)
API(cudaMemset2DAsync, (void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream), to,
    pitch, value, width, height, stream)
cudaError_t CUDARTAPI cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent extent)
{
    return error("cudaMemset2D", CALLER, to.ptr, to.pitch, value, extent.width, extent.height * extent.depth);
}
NOTHING(cudaMemPrefetchAsync, (const void*, size_t, cudaMemLocation, unsigned, cudaStream_t))
NOTHING(cudaMemAdvise, (const void*, size_t, cudaMemoryAdvise, cudaMemLocation))
NOTHING(cudaStreamAttachMemAsync, (cudaStream_t, void*, size_t, unsigned))
cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* to, const void* pointer)
{
    memset(to, 0, sizeof *to);
    auto kind = hand("the kind of memory", CALLER, pointer);
    to->type = static_cast<cudaMemoryType>(kind);
    if (kind != cudaMemoryTypeUnregistered) to->devicePointer = const_cast<void*>(pointer);
    if (kind != cudaMemoryTypeDevice) to->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
}
}
