// What CUDA had before version 13, so that programs written for that compile. Included before all else.
#pragma once
#ifdef __CUDACC__
#include <cuda_runtime.h>

#define OLDER static inline __attribute__((always_inline, unused))
OLDER cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
OLDER cudaError_t cudaThreadExit() { return cudaDeviceReset(); }
OLDER cudaError_t cudaThreadSetCacheConfig(cudaFuncCache) { return cudaSuccess; }

OLDER cudaMemLocation harness_location(int device)
{
    cudaMemLocation found{};
    found.type = device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    found.id = device < 0 ? 0 : device;
    return found;
}
OLDER cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t size, int device, cudaStream_t stream = nullptr)
{
    return cudaMemPrefetchAsync(pointer, size, harness_location(device), 0, stream);
}
OLDER cudaError_t cudaMemAdvise(const void* pointer, size_t size, cudaMemoryAdvise advice, int device)
{
    return cudaMemAdvise(pointer, size, advice, harness_location(device));
}
OLDER cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                           size_t count)
{
    return cudaGraphAddDependencies(graph, from, to, nullptr, count);
}

struct harness_device_prop : cudaDeviceProp
{
    int clockRate, memoryClockRate, computeMode, deviceOverlap, kernelExecTimeoutEnabled;
    int singleToDoublePrecisionPerfRatio, cooperativeMultiDeviceLaunch, maxTexture1DLinear;
};
OLDER cudaError_t cudaGetDeviceProperties(harness_device_prop* to, int device)
{
    *to = {};
    to->clockRate = 1980000, to->memoryClockRate = 3201000, to->deviceOverlap = 1;
    to->singleToDoublePrecisionPerfRatio = 2, to->maxTexture1DLinear = 1 << 28;
    return cudaGetDeviceProperties(static_cast<cudaDeviceProp*>(to), device);
}
#define cudaDeviceProp harness_device_prop
#undef OLDER
#endif
