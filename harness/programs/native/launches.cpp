// What nvcc's code calls, launches, errors, and what is said of kernels.
#include "connect.h"

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

namespace harness
{
Handle handle;
thread_local cudaError_t last = cudaSuccess;
int multiprocessors = 132;
}  // namespace harness

namespace
{
struct Configuration
{
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    const void* caller;
};
thread_local std::vector<Configuration>* held;  // never freed: functions of atexit launch, too
std::vector<Configuration>& configurations()
{
    if (!held) held = new std::vector<Configuration>;
    return *held;
}
thread_local const void* launching;  // where the kernel is called whose configuration was taken last
}  // namespace

using namespace harness;

extern "C"
{
void harness_connect(Handle to, int sms)
{
    handle = to;
    multiprocessors = sms;
    // A process that the program forks has no device, as with a GPU, and no Python.
    pthread_atfork(nullptr, nullptr, [] { handle = nullptr; });
}

// The number of the thread of the host that calls, which no other one has had.
unsigned long harness_thread()
{
    static std::atomic<unsigned long> made;
    thread_local unsigned long own = ++made;
    return own;
}

void harness_print(const char* text, size_t size)
{
    fwrite(text, 1, size, stdout);
}

// -- what nvcc's code calls

void** CUDARTAPI __cudaRegisterFatBinary(void* binary)
{
    return reinterpret_cast<void**>(hand("__cudaRegisterFatBinary", CALLER, binary));
}
// What is compiled apart: `rest` registers what the file has in the module that all of them are.
void harness_linked(void (*rest)(void**), const void* binary)
{
    rest(reinterpret_cast<void**>(hand("a linked binary", CALLER, binary)));
}
void CUDARTAPI __cudaRegisterFatBinaryEnd(void**) {}
void CUDARTAPI __cudaUnregisterFatBinary(void** module)
{
    hand("__cudaUnregisterFatBinary", CALLER, module);  // when the program ends
}
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
    configurations().push_back({grid, block, shared, stream, CALLER});
    return 0;
}
cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream)
{
    if (configurations().empty()) return cudaErrorMissingConfiguration;
    Configuration top = configurations().back();
    configurations().pop_back();
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
cudaError_t CUDARTAPI __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** given, size_t shared,
                                              cudaStream_t stream)
{
    return __cudaLaunchKernel(kernel, grid, block, given, shared, stream);
}
API(cudaLaunchKernel, (const void* kernel, dim3 grid, dim3 block, void** given, size_t shared, cudaStream_t stream),
    kernel, grid, block, given, shared, stream)
API(cudaLaunchCooperativeKernel,
    (const void* kernel, dim3 grid, dim3 block, void** given, size_t shared, cudaStream_t stream), kernel, grid, block,
    given, shared, stream)
cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* kernel, void** given)
{
    dim3 cluster(0, 0, 0);
    int overlaps = 0;  // with the launch before it
    for (unsigned i = 0; i < how->numAttrs; ++i) {
        auto& of = how->attrs[i].val;
        if (how->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = dim3(of.clusterDim.x, of.clusterDim.y, of.clusterDim.z);
        if (how->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            overlaps = of.programmaticStreamSerializationAllowed;
    }
    return error("cudaLaunchKernelExC", CALLER, kernel, how->gridDim, how->blockDim, given, how->dynamicSmemBytes,
                 how->stream, cluster, overlaps);
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
    return handle ? reinterpret_cast<const char*>(hand("cudaGetErrorName", CALLER, of)) : "initialization error";
}
const char* CUDARTAPI cudaGetErrorString(cudaError_t of)
{
    return handle ? reinterpret_cast<const char*>(hand("cudaGetErrorString", CALLER, of)) : "initialization error";
}

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

long harness_refused(const char* name, const void* caller) { return error(name, caller); }
}
