// What programs of the runtime API take from the driver API: tensor maps, and how they get at its functions.
#include "connect.h"

#include <cuda.h>

#include <cstring>

using namespace harness;

extern "C"
{
CUresult CUDAAPI cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuGetErrorName(CUresult of, const char** to)
{
    *to = cudaGetErrorName(static_cast<cudaError_t>(of));
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGetErrorString(CUresult of, const char** to)
{
    *to = cudaGetErrorString(static_cast<cudaError_t>(of));
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                        const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                        const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
        return static_cast<CUresult>(error("tensor maps that interleave", CALLER));
    return static_cast<CUresult>(error("cuTensorMapEncodeTiled", CALLER, to, type, rank, address, extents, strides, box,
                                       steps, swizzle, fill));
}
CUresult CUDAAPI cuTensorMapEncodeIm2col(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                         const cuuint64_t* extents, const cuuint64_t* strides, const int* lower,
                                         const int* upper, cuuint32_t channels, cuuint32_t pixels,
                                         const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                         CUtensorMapFloatOOBfill fill)
{
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
        return static_cast<CUresult>(error("tensor maps that interleave", CALLER));
    return static_cast<CUresult>(error("cuTensorMapEncodeIm2col", CALLER, to, type, rank, address, extents, strides,
                                       lower, upper, channels, pixels, steps, swizzle, fill));
}

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char* symbol, void** to, unsigned, unsigned long long,
                                                       cudaDriverEntryPointQueryResult* status)
{
    *to = !strcmp(symbol, "cuTensorMapEncodeTiled")  ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled)
        : !strcmp(symbol, "cuTensorMapEncodeIm2col") ? reinterpret_cast<void*>(&cuTensorMapEncodeIm2col)
        : !strcmp(symbol, "cuInit")                  ? reinterpret_cast<void*>(&cuInit)
        : !strcmp(symbol, "cuGetErrorName")          ? reinterpret_cast<void*>(&cuGetErrorName)
        : !strcmp(symbol, "cuGetErrorString")        ? reinterpret_cast<void*>(&cuGetErrorString)
                                                     : nullptr;
    if (status) *status = *to ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *to ? cudaSuccess : error(symbol, CALLER);  // which says that it is not emulated
}
cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char* symbol, void** to, unsigned long long flags,
                                              cudaDriverEntryPointQueryResult* status)
{
    return cudaGetDriverEntryPointByVersion(symbol, to, 0, flags, status);
}
}
