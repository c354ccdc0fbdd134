// A CUDA runtime for programs whose kernels the emulator runs. What takes a decision is in Python (runtime.py):
// each function here hands its arguments on. Built by build.py, with CUDA's own headers.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace
{
// Python's side: the name of a function, where it was called, and its arguments as 64 bits each.
using Handle = long (*)(const char* name, const void* caller, const uint64_t* arguments, int count);
Handle handle;
thread_local cudaError_t last = cudaSuccess;
int multiprocessors = 132;

template <typename T> uint64_t bits(T* pointer) { return reinterpret_cast<uint64_t>(pointer); }
template <typename T> uint64_t bits(const T& value)
{
    if constexpr (sizeof(T) <= 8 && (std::is_integral_v<T> || std::is_enum_v<T>)) return static_cast<uint64_t>(value);
    else return reinterpret_cast<uint64_t>(&value);  // a struct, or a float: where it is
}

template <typename... T> long hand(const char* name, const void* caller, const T&... given)
{
    const uint64_t arguments[] = {bits(given)..., 0};
    return handle ? handle(name, caller, arguments, sizeof...(T)) : 0;  // 0 once Python has ended
}

template <typename... T> cudaError_t error(const char* name, const void* caller, const T&... given)
{
    auto found = static_cast<cudaError_t>(hand(name, caller, given...));
    if (found != cudaSuccess && found != cudaErrorNotReady) last = found;
    return found;
}

struct Configuration
{
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    const void* caller;
};
thread_local std::vector<Configuration> configurations;
thread_local const void* launching;  // where the kernel is called whose configuration was taken last
}  // namespace

#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))
#define API(name, parameters, ...) \
    cudaError_t CUDARTAPI name parameters { return error(#name, CALLER, __VA_ARGS__); }
#define NOTHING(name, parameters) \
    cudaError_t CUDARTAPI name parameters { return cudaSuccess; }

extern "C"
{
void harness_connect(Handle to, int sms)
{
    handle = to;
    multiprocessors = sms;
}

void harness_print(const char* text, size_t size)
{
    fwrite(text, 1, size, stdout);
}

void harness_flush() { fflush(nullptr); }

// -- what nvcc's code calls

void** CUDARTAPI __cudaRegisterFatBinary(void* binary)
{
    return reinterpret_cast<void**>(hand("__cudaRegisterFatBinary", CALLER, binary));
}
void CUDARTAPI __cudaRegisterFatBinaryEnd(void**) {}
void CUDARTAPI __cudaUnregisterFatBinary(void**) {}
char CUDARTAPI __cudaInitModule(void**) { return 1; }
void CUDARTAPI __cudaRegisterFunction(void** module, const char* host, char*, const char* name, int, uint3*, uint3*,
                                      dim3*, dim3*, int*)
{
    hand("__cudaRegisterFunction", CALLER, module, host, name);
}
void CUDARTAPI __cudaRegisterVar(void** module, char* host, char*, const char* name, int, size_t size, int, int)
{
    hand("__cudaRegisterVar", CALLER, module, host, name, size);
}
void CUDARTAPI __cudaRegisterManagedVar(void** module, void** host, char*, const char* name, int, size_t size, int,
                                        int)
{
    hand("__cudaRegisterManagedVar", CALLER, module, host, name, size);
}
unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    configurations.push_back({grid, block, shared, stream, CALLER});
    return 0;
}
cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream)
{
    if (configurations.empty()) return cudaErrorMissingConfiguration;
    Configuration top = configurations.back();
    configurations.pop_back();
    launching = top.caller;
    *grid = top.grid, *block = top.block, *shared = top.shared;
    *static_cast<cudaStream_t*>(stream) = top.stream;
    return cudaSuccess;
}
cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t* kernel, const void* host)
{
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetKernel(cudaKernel_t* kernel, const void* host) { return __cudaGetKernel(kernel, host); }
cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** given, size_t shared,
                                         cudaStream_t stream)
{
    return error("cudaLaunchKernel", launching, kernel, grid, block, given, shared, stream);
}
API(cudaLaunchKernel, (const void* kernel, dim3 grid, dim3 block, void** given, size_t shared, cudaStream_t stream),
    kernel, grid, block, given, shared, stream)
API(cudaLaunchCooperativeKernel,
    (const void* kernel, dim3 grid, dim3 block, void** given, size_t shared, cudaStream_t stream), kernel, grid, block,
    given, shared, stream)
cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* kernel, void** given)
{
    dim3 cluster(0, 0, 0);
    for (unsigned i = 0; i < how->numAttrs; ++i)
        if (how->attrs[i].id == cudaLaunchAttributeClusterDimension) {
            auto& of = how->attrs[i].val.clusterDim;
            cluster = dim3(of.x, of.y, of.z);
        }
    return error("cudaLaunchKernelExC", CALLER, kernel, how->gridDim, how->blockDim, given, how->dynamicSmemBytes,
                 how->stream, cluster);
}

// -- errors

cudaError_t CUDARTAPI cudaGetLastError()
{
    cudaError_t found = last;
    last = cudaSuccess;
    return found;
}
cudaError_t CUDARTAPI cudaPeekAtLastError() { return last; }
const char* CUDARTAPI cudaGetErrorName(cudaError_t of)
{
    return reinterpret_cast<const char*>(hand("cudaGetErrorName", CALLER, of));
}
const char* CUDARTAPI cudaGetErrorString(cudaError_t of)
{
    return reinterpret_cast<const char*>(hand("cudaGetErrorString", CALLER, of));
}

// -- memory

API(cudaMalloc, (void** to, size_t size), to, size)
API(cudaMallocManaged, (void** to, size_t size, unsigned flags), to, size, flags)
API(cudaMallocHost, (void** to, size_t size), to, size)
API(cudaHostAlloc, (void** to, size_t size, unsigned flags), to, size, flags)
API(cudaMallocAsync, (void** to, size_t size, cudaStream_t stream), to, size, stream)
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
cudaError_t CUDARTAPI cudaMemcpy3D(const cudaMemcpy3DParms* of)
{
    if (of->srcArray || of->dstArray)
        return error("cudaMemcpy3D with arrays", CALLER, of);
    auto place = [](const cudaPitchedPtr& in, const cudaPos& at, size_t z) {
        return static_cast<char*>(in.ptr) + ((at.z + z) * in.ysize + at.y) * in.pitch + at.x;
    };
    for (size_t z = 0; z < of->extent.depth; ++z) {
        cudaError_t found = error("cudaMemcpy2D", CALLER, place(of->dstPtr, of->dstPos, z), of->dstPtr.pitch,
                                  place(of->srcPtr, of->srcPos, z), of->srcPtr.pitch, of->extent.width,
                                  of->extent.height, of->kind);
        if (found != cudaSuccess) return found;
    }
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaMemcpy3DAsync(const cudaMemcpy3DParms* of, cudaStream_t) { return cudaMemcpy3D(of); }
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

// -- devices: one, like an H200

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

// -- kernels

API(cudaFuncSetAttribute, (const void* kernel, cudaFuncAttribute attribute, int value), kernel, attribute, value)
NOTHING(cudaFuncSetCacheConfig, (const void*, cudaFuncCache))
cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* to, const void* kernel)
{
    memset(to, 0, sizeof *to);
    to->maxThreadsPerBlock = 1024, to->numRegs = 32, to->ptxVersion = to->binaryVersion = 90;
    to->maxDynamicSharedSizeBytes = 49152;
    auto found = hand("the shared memory of a kernel", CALLER, kernel);
    to->sharedSizeBytes = found < 0 ? 0 : found;
    return found < 0 ? last = cudaErrorInvalidDeviceFunction : cudaSuccess;
}
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel,
                                                                            int threads, size_t shared, unsigned)
{
    if (threads < 1 || threads > 1024) return last = cudaErrorInvalidValue;
    auto own = hand("the shared memory of a kernel", CALLER, kernel);
    auto each = (own < 0 ? 0 : own) + static_cast<long>(shared) + 1024;
    *blocks = 2048 / ((threads + 31) / 32 * 32);
    if (*blocks > 32) *blocks = 32;
    if (*blocks > 233472 / each) *blocks = static_cast<int>(233472 / each);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                                   size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}

// -- streams and events: all work is done in the order in which it is asked for

#define MAKES(name, type, parameters) \
    cudaError_t CUDARTAPI name parameters \
    { \
        *to = reinterpret_cast<type>(hand("a handle", CALLER, to)); \
        return cudaSuccess; \
    }
MAKES(cudaStreamCreate, cudaStream_t, (cudaStream_t* to))
MAKES(cudaStreamCreateWithFlags, cudaStream_t, (cudaStream_t* to, unsigned))
MAKES(cudaStreamCreateWithPriority, cudaStream_t, (cudaStream_t* to, unsigned, int))
MAKES(cudaEventCreate, cudaEvent_t, (cudaEvent_t* to))
MAKES(cudaEventCreateWithFlags, cudaEvent_t, (cudaEvent_t* to, unsigned))
NOTHING(cudaStreamDestroy, (cudaStream_t))
NOTHING(cudaStreamWaitEvent, (cudaStream_t, cudaEvent_t, unsigned))
API(cudaStreamSynchronize, (cudaStream_t stream), stream)
API(cudaStreamQuery, (cudaStream_t stream), stream)
API(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), event, stream)
cudaError_t CUDARTAPI cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    return error("cudaEventRecord", CALLER, event, stream);
}
API(cudaEventSynchronize, (cudaEvent_t event), event)
API(cudaEventQuery, (cudaEvent_t event), event)
NOTHING(cudaEventDestroy, (cudaEvent_t))
API(cudaEventElapsedTime, (float* to, cudaEvent_t from, cudaEvent_t until), to, from, until)
cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data)
{
    function(data);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned)
{
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* to)
{
    *to = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaChannelFormatDesc CUDARTAPI cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind)
{
    return {x, y, z, w, kind};
}
long harness_refused(const char* name, const void* caller) { return error(name, caller); }
}
