// Devices: there is one, like an H200.
#include "connect.h"

#include <cstdio>
#include <cstring>

using namespace harness;

extern "C"
{
cudaError_t CUDARTAPI cudaGetDeviceCount(int* count)
{
    *count = 1;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDevice(int* device)
{
    *device = 0;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaSetDevice(int device)
{
    return last = device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
NOTHING(cudaInitDevice, (int, unsigned, unsigned))
NOTHING(cudaSetDeviceFlags, (unsigned))
NOTHING(cudaDeviceSetLimit, (cudaLimit, size_t))
NOTHING(cudaDeviceSetCacheConfig, (cudaFuncCache))
NOTHING(cudaDeviceEnablePeerAccess, (int, unsigned))
NOTHING(cudaDeviceDisablePeerAccess, (int))
NOTHING(cudaDeviceSetSharedMemConfig, (cudaSharedMemConfig))
NOTHING(cudaFuncSetSharedMemConfig, (const void*, cudaSharedMemConfig))
NOTHING(cudaCtxResetPersistingL2Cache, ())
cudaError_t CUDARTAPI cudaChooseDevice(int* device, const cudaDeviceProp*)
{
    *device = 0;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDeviceFlags(unsigned* flags)
{
    *flags = cudaDeviceMapHost;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char* to, int size, int)
{
    snprintf(to, size, "0000:00:00.0");
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int* can, int, int)
{
    *can = 0;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceGetLimit(size_t* to, cudaLimit)
{
    *to = 8 << 20;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* least, int* greatest)
{
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* to, int device)
{
    if (device != 0) return last = cudaErrorInvalidDevice;
    memset(to, 0, sizeof *to);
    snprintf(to->name, sizeof to->name, "harness' emulator, as an NVIDIA H200");
    to->major = 9, to->minor = 0, to->warpSize = 32, to->multiProcessorCount = multiprocessors;
    to->totalGlobalMem = size_t(141) << 30, to->totalConstMem = 65536, to->l2CacheSize = 60 << 20;
    to->sharedMemPerBlock = 49152, to->sharedMemPerBlockOptin = 232448, to->sharedMemPerMultiprocessor = 233472;
    to->reservedSharedMemPerBlock = 1024, to->regsPerBlock = 65536, to->regsPerMultiprocessor = 65536;
    to->maxThreadsPerBlock = 1024, to->maxThreadsPerMultiProcessor = 2048, to->maxBlocksPerMultiProcessor = 32;
    to->maxThreadsDim[0] = to->maxThreadsDim[1] = 1024, to->maxThreadsDim[2] = 64;
    to->maxGridSize[0] = 2147483647, to->maxGridSize[1] = to->maxGridSize[2] = 65535;
    to->memPitch = 2147483647, to->textureAlignment = 512, to->texturePitchAlignment = 32;
    to->memoryBusWidth = 6016, to->asyncEngineCount = 3, to->concurrentKernels = 1, to->unifiedAddressing = 1;
    to->managedMemory = to->concurrentManagedAccess = to->cooperativeLaunch = to->canMapHostMemory = 1;
    to->globalL1CacheSupported = to->localL1CacheSupported = to->hostNativeAtomicSupported = 1;
    to->computePreemptionSupported = to->streamPrioritiesSupported = to->memoryPoolsSupported = 1;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* to, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp of;
    if (cudaGetDeviceProperties(&of, device) != cudaSuccess) return last;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *to = of.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *to = of.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *to = of.maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *to = of.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *to = of.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *to = of.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *to = of.maxGridSize[2]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *to = of.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *to = of.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *to = of.sharedMemPerMultiprocessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *to = of.reservedSharedMemPerBlock; break;
    case cudaDevAttrTotalConstantMemory: *to = of.totalConstMem; break;
    case cudaDevAttrWarpSize: *to = of.warpSize; break;
    case cudaDevAttrMaxRegistersPerBlock: *to = of.regsPerBlock; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *to = of.regsPerMultiprocessor; break;
    case cudaDevAttrMultiProcessorCount: *to = of.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *to = of.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *to = of.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *to = of.major; break;
    case cudaDevAttrComputeCapabilityMinor: *to = of.minor; break;
    case cudaDevAttrL2CacheSize: *to = of.l2CacheSize; break;
    case cudaDevAttrClockRate: *to = 1980000; break;
    case cudaDevAttrMemoryClockRate: *to = 3201000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *to = of.memoryBusWidth; break;
    case cudaDevAttrTextureAlignment: *to = of.textureAlignment; break;
    case cudaDevAttrMaxPitch: *to = of.memPitch; break;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrStreamPrioritiesSupported: *to = 1; break;
    default: *to = 0;
    }
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
API(cudaDeviceSynchronize, (), 0)
API(cudaDeviceReset, (), 0)
NOTHING(cudaProfilerStart, ())
NOTHING(cudaProfilerStop, ())
}
